//! A packet in DPDK's memory.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use dpdk_sys as sys;

use crate::batch::Batch;
use crate::packet::{Checksum, L4Offload, Packet, RxFlags, TxOffload};

/// One packet, of one or more segments. Dropping it gives its memory back to the pool.
///
/// Not used by anybody else while it exists: packets are never shared between owners here, neither
/// cloned nor reference-counted.
#[repr(transparent)]
#[derive(Debug)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an mbuf is plain memory with one owner; DPDK's pools may be used from any thread.
unsafe impl Send for Mbuf {}

/// Two packets were not joined.
#[derive(Debug, thiserror::Error)]
#[error("a packet cannot have that many segments")]
pub struct ChainError;

impl Mbuf {
    /// The packet as C sees it.
    pub(crate) fn as_ptr(&self) -> *mut sys::rte_mbuf {
        self.0.as_ptr()
    }

    /// How many segments it has.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        usize::from(self.view().segments)
    }

    /// The segments, first to last.
    #[must_use]
    pub fn segments(&self) -> Segments<'_> {
        Segments { next: self.as_ptr(), _packet: self }
    }

    /// Appends the segments of `tail`.
    ///
    /// # Errors
    ///
    /// When there would be too many; `tail` is dropped.
    pub fn chain(&mut self, tail: Self) -> Result<(), ChainError> {
        // SAFETY: both packets are owned here and alive; on success the head owns the tail.
        let error = unsafe { sys::ls_mbuf_chain(self.as_ptr(), tail.as_ptr()) };
        if error != 0 {
            return Err(ChainError);
        }
        std::mem::forget(tail);
        Ok(())
    }

    /// How many owners DPDK counts; 1 unless something is broken.
    #[must_use]
    pub fn reference_count(&self) -> u16 {
        // SAFETY: the packet is owned and alive.
        unsafe { sys::ls_mbuf_refcnt(self.as_ptr()) }
    }

    fn view(&self) -> sys::ls_mbuf_view {
        view(self.as_ptr())
    }
}

fn view(packet: *const sys::rte_mbuf) -> sys::ls_mbuf_view {
    let mut view = MaybeUninit::uninit();
    // SAFETY: the callers pass a live segment of a packet they borrow or own.
    unsafe { sys::ls_mbuf_view_of(packet, view.as_mut_ptr()) };
    // SAFETY: the call above fills all fields.
    unsafe { view.assume_init() }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        let mut packet = self.as_ptr();
        // SAFETY: the packet is owned and used by nobody from here on.
        unsafe { sys::ls_free_bulk(&raw mut packet, 1, sys::LS_NO_CACHE) };
    }
}

/// The segments of a packet.
#[derive(Debug)]
pub struct Segments<'a> {
    next: *mut sys::rte_mbuf,
    _packet: &'a Mbuf,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.next.is_null() {
            return None;
        }
        let view = view(self.next);
        self.next = view.next;
        // SAFETY: DPDK keeps `data_len` bytes at `data` initialised and inside the segment's
        // buffer; the packet is borrowed for 'a, and mutation needs it mutably.
        Some(unsafe { std::slice::from_raw_parts(view.data, usize::from(view.data_len)) })
    }
}

impl Packet for Mbuf {
    fn packet_len(&self) -> usize {
        self.view().packet_len as usize
    }

    fn contiguous(&self) -> Option<&[u8]> {
        let view = self.view();
        if !view.next.is_null() {
            return None;
        }
        // SAFETY: as in `Segments::next`.
        Some(unsafe { std::slice::from_raw_parts(view.data, usize::from(view.data_len)) })
    }

    fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut copied = 0;
        for segment in self.segments() {
            let room = &mut out[copied..];
            let len = segment.len().min(room.len());
            room[..len].copy_from_slice(&segment[..len]);
            copied += len;
        }
        copied
    }

    fn rx_flags(&self) -> RxFlags {
        let view = self.view();
        let stripped = view.flags & sys::LS_MBUF_RX_VLAN_STRIPPED != 0;
        RxFlags {
            ip: verdict(
                view.flags & sys::LS_MBUF_RX_IP_MASK,
                sys::LS_MBUF_RX_IP_GOOD,
                sys::LS_MBUF_RX_IP_BAD,
            ),
            l4: verdict(
                view.flags & sys::LS_MBUF_RX_L4_MASK,
                sys::LS_MBUF_RX_L4_GOOD,
                sys::LS_MBUF_RX_L4_BAD,
            ),
            vlan: stripped.then_some(view.vlan),
        }
    }

    fn resize(&mut self, len: usize) -> Option<&mut [u8]> {
        let wanted = u32::try_from(len).ok()?;
        // SAFETY: the packet is owned; the call refuses what does not fit.
        let data = unsafe { sys::ls_mbuf_resize(self.as_ptr(), wanted) };
        if data.is_null() {
            return None;
        }
        // SAFETY: `len` bytes at `data` are inside the packet's buffer, which is mapped and was
        // initialised by earlier packets or zero from the start; it is borrowed mutably.
        Some(unsafe { std::slice::from_raw_parts_mut(data, len) })
    }

    fn set_offload(&mut self, offload: &TxOffload) {
        let mut flags = 0;
        if offload.ip_checksum || offload.l4.is_some() || offload.segment_size.is_some() {
            flags |= if offload.ipv6 { sys::LS_MBUF_TX_IPV6 } else { sys::LS_MBUF_TX_IPV4 };
        }
        if offload.ip_checksum {
            flags |= sys::LS_MBUF_TX_IP_CHECKSUM;
        }
        let l4_len = match offload.l4 {
            Some(L4Offload::Tcp { header_len }) => {
                flags |= sys::LS_MBUF_TX_TCP_CHECKSUM;
                header_len
            }
            Some(L4Offload::Udp) => {
                flags |= sys::LS_MBUF_TX_UDP_CHECKSUM;
                UDP_HEADER_LEN
            }
            None => 0,
        };
        if offload.segment_size.is_some() {
            flags |= sys::LS_MBUF_TX_TCP_SEG;
        }
        // SAFETY: the packet is owned; the call writes its own fields only.
        unsafe {
            sys::ls_mbuf_tx_offload(
                self.as_ptr(),
                flags,
                u64::from(offload.l2_len),
                u64::from(offload.l3_len),
                u64::from(l4_len),
                u64::from(offload.segment_size.unwrap_or(0)),
            );
        }
    }

    fn free_all(packets: &mut Batch<Self>) {
        free_with(packets, sys::LS_NO_CACHE);
    }
}

/// Gives all packets back through the cache `cache`.
pub(crate) fn free_with(packets: &mut Batch<Mbuf>, cache: u32) {
    let count = packets.len();
    let start = packets.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
    // A batch is never larger than what fits a queue's 16-bit counts.
    let bulk = u32::try_from(count).expect("batches are small");
    // SAFETY: `Mbuf` is a transparent non-null pointer, so the batch is an array of pointers; the
    // packets are owned and forgotten right after. Who passes a cache may use it alone.
    unsafe { sys::ls_free_bulk(start, bulk, cache) };
    // SAFETY: all `count` packets were given back above.
    unsafe { packets.forget_front(count) };
}

fn verdict(flags: u64, good: u64, bad: u64) -> Checksum {
    // Both bits together mean "no checksum, but the data is intact": good enough to accept.
    if flags & good != 0 {
        Checksum::Good
    } else if flags & bad != 0 {
        Checksum::Bad
    } else {
        Checksum::Unknown
    }
}

const UDP_HEADER_LEN: u8 = 8;
