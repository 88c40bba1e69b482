//! A DPDK queue pair as a [`Link`].
//!
//! Driven by whoever holds the stack's lock. Packets to send are taken from a small stock, filled
//! in place, and wait in a bounded row until the device takes them. No allocation and no system
//! call of its own per frame, and nothing is logged: what goes wrong is counted.

use std::os::fd::BorrowedFd;

use dpdk::{Batch, Checksum, L4Offload, Packet, QueuePair, Queues, RxFlags, TxOffload};
use lstack_core::link::L4;
use lstack_core::{ChecksumVerdict, FrameSink, LinkCaps, RxMeta, TxMeta};

use crate::link::Link;

/// A queue pair and what is on its way to or from it.
pub(crate) struct DpdkLink<Q: Queues = QueuePair> {
    caps: LinkCaps,
    /// Received, not yet given back.
    received: Batch<Q::Packet>,
    /// Allocated, not yet used.
    stock: Batch<Q::Packet>,
    reserved: Option<Q::Packet>,
    /// Committed, not yet taken by the device.
    pending: Batch<Q::Packet>,
    /// Where packets of several segments are joined.
    joined: Vec<u8>,
    counters: Counters,
    /// Last: all packets must be back when the device and their pool go.
    queues: Q,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    rx_frames: u64,
    rx_joined: u64,
    rx_too_long: u64,
    tx_frames: u64,
    tx_no_memory: u64,
    tx_too_long: u64,
    tx_ring_full: u64,
}

impl<Q: Queues> DpdkLink<Q> {
    /// Over a started queue pair of a device with these properties.
    pub(crate) fn new(queues: Q, caps: LinkCaps) -> Self {
        Self {
            caps,
            received: Batch::with_capacity(RX_BURST),
            stock: Batch::with_capacity(STOCK),
            reserved: None,
            pending: Batch::with_capacity(PENDING_MAX),
            joined: vec![0; JOINED_MAX],
            counters: Counters::default(),
            queues,
        }
    }

    fn take_packet(&mut self) -> Option<Q::Packet> {
        if let Some(packet) = self.reserved.take() {
            return Some(packet);
        }
        if self.stock.is_empty() && !self.queues.allocate(&mut self.stock, STOCK) {
            // What is left of the pool; slower, and rare.
            self.queues.allocate(&mut self.stock, 1);
        }
        self.stock.pop()
    }

    fn transmit(&mut self) {
        let waiting = self.pending.len();
        self.queues.transmit(&mut self.pending);
        if waiting > 0 && self.pending.len() == waiting {
            self.counters.tx_ring_full += 1;
        }
    }
}

impl<Q: Queues> FrameSink for DpdkLink<Q> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.pending.room() == 0 {
            self.transmit();
            if self.pending.room() == 0 {
                return None;
            }
        }
        let Some(packet) = self.take_packet() else {
            self.counters.tx_no_memory += 1;
            return None;
        };
        let frame = self.reserved.insert(packet).resize(len);
        if frame.is_none() {
            self.counters.tx_too_long += 1;
        }
        frame
    }

    fn commit(&mut self, meta: TxMeta) {
        let Some(mut packet) = self.reserved.take() else {
            debug_assert!(false, "commit without reserve");
            return;
        };
        if meta.segment_size.is_some() {
            leave_length_to_device(&mut packet, &meta);
        }
        if meta.offload_ip_checksum || meta.offload_l4_checksum || meta.segment_size.is_some() {
            packet.set_offload(&offload(&meta));
        }
        let pushed = self.pending.push(packet);
        debug_assert!(pushed.is_ok(), "reserve saw to the room");
        self.counters.tx_frames += 1;
        if self.pending.len().is_multiple_of(TX_BURST) {
            // A peer on another CPU starts on the first frames while the rest is being built.
            self.transmit();
        }
    }
}

impl<Q: Queues> Link for DpdkLink<Q> {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn rx_burst(&mut self, max: usize, deliver: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        let mut total = 0;
        while total < max {
            // A panic in `deliver` left some: they were seen, and are not delivered twice.
            self.queues.free(&mut self.received);
            let wanted = RX_BURST.min(max - total);
            let got = self.queues.receive(&mut self.received, wanted);
            for packet in &self.received {
                let meta = rx_meta(packet.rx_flags());
                if let Some(frame) = packet.contiguous() {
                    deliver(frame, meta);
                    continue;
                }
                let len = packet.packet_len();
                let frame = self.joined.get_mut(..len).unwrap_or_default();
                // What a device claims and what its segments hold must agree.
                if len > 0 && packet.copy_to(frame) == len {
                    self.counters.rx_joined += 1;
                    deliver(frame, meta);
                } else {
                    self.counters.rx_too_long += 1;
                }
            }
            self.queues.free(&mut self.received);
            total += got;
            if got < wanted {
                break;
            }
        }
        self.counters.rx_frames += total as u64;
        total
    }

    fn flush(&mut self) -> bool {
        if !self.pending.is_empty() {
            self.transmit();
        }
        self.pending.is_empty()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queues.wake_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        // The descriptor needs no arming: it is readable as long as frames wait.
        self.queues.settle_wake_fd();
        true
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let Counters {
            rx_frames,
            rx_joined,
            rx_too_long,
            tx_frames,
            tx_no_memory,
            tx_too_long,
            tx_ring_full,
        } = self.counters;
        vec![
            ("link_rx_frames", rx_frames),
            ("link_rx_frames_joined", rx_joined),
            ("link_rx_drop_too_long", rx_too_long),
            ("link_tx_frames", tx_frames),
            ("link_tx_no_memory", tx_no_memory),
            ("link_tx_too_long", tx_too_long),
            ("link_tx_ring_full", tx_ring_full),
            ("link_tx_drop_refused", self.queues.refused()),
        ]
    }
}

fn rx_meta(flags: RxFlags) -> RxMeta {
    let verdict = |checksum| match checksum {
        Checksum::Unknown => ChecksumVerdict::Unknown,
        Checksum::Good => ChecksumVerdict::Good,
        Checksum::Bad => ChecksumVerdict::Bad,
    };
    RxMeta { ip_checksum: verdict(flags.ip), l4_checksum: verdict(flags.l4), vlan: flags.vlan }
}

fn offload(meta: &TxMeta) -> TxOffload {
    let wants_l4 = meta.offload_l4_checksum || meta.segment_size.is_some();
    let l4 = match meta.l4 {
        L4::Tcp { header_len } => Some(L4Offload::Tcp { header_len }),
        L4::Udp => Some(L4Offload::Udp),
        L4::Other => None,
    };
    TxOffload {
        l2_len: meta.l2_len,
        l3_len: meta.l3_len,
        ipv6: meta.ipv6,
        // A device that segments writes a new IPv4 header for each segment.
        ip_checksum: meta.offload_ip_checksum || (meta.segment_size.is_some() && !meta.ipv6),
        l4: l4.filter(|_| wants_l4),
        segment_size: meta.segment_size,
    }
}

/// Takes the segment's length out of the pseudo-header sum in the TCP header: a device that
/// segments adds the length of each segment itself.
fn leave_length_to_device<P: Packet>(packet: &mut P, meta: &TxMeta) {
    let frame_len = packet.packet_len();
    let start = usize::from(meta.l2_len) + usize::from(meta.l3_len);
    let Some(segment_len) = frame_len.checked_sub(start) else { return };
    let field = start + TCP_CHECKSUM_OFFSET;
    let Some(frame) = packet.resize(frame_len) else { return };
    let Some(bytes) = frame.get_mut(field..field + 2) else { return };
    let sum = u32::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    // A length above 16 bits was added as two words.
    let length = segment_len as u32;
    let length = fold((length >> 16) + (length & 0xffff));
    let rest = fold(sum + u32::from(!length));
    bytes.copy_from_slice(&rest.to_be_bytes());
}

/// One's complement sum in 16 bits.
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    // The loop left 16 bits.
    sum as u16
}

const TCP_CHECKSUM_OFFSET: usize = 16;

/// Packets per receive call: a burst that stays in the first-level cache with its headers.
pub(crate) const RX_BURST: usize = 64;

/// Packets taken from the pool at once.
pub(crate) const STOCK: usize = 32;

/// Committed frames that start on their way without waiting for the flush.
const TX_BURST: usize = 32;

/// Frames that wait for a device that is slower than the stack. More would only be latency: beyond
/// it the stack keeps its data where it is.
pub(crate) const PENDING_MAX: usize = 256;

/// Longest packet an IP length can describe, with room for the link header.
const JOINED_MAX: usize = 65_536 + 64;

#[cfg(test)]
mod tests;
