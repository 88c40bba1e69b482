//! The queues of a started port.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys as sys;

use crate::batch::Batch;
use crate::mbuf::{Mbuf, free_with};
use crate::mempool::Mempool;
use crate::packet::Queues;
use crate::port::StartedPort;
use crate::wake;

/// One receive and one transmit queue of a port.
///
/// May move between threads, but has one user at a time: neither DPDK's queues nor the packet
/// caches may be shared. The port stops when the last of its queue pairs goes.
#[derive(Debug)]
pub struct QueuePair {
    port: Arc<StartedPort>,
    queue: u16,
    /// Where packets to send come from.
    tx_pool: Mempool,
    /// Which of the pools' per-lcore caches this queue pair uses; nobody else has the number.
    cache: u32,
    wake: Option<OwnedFd>,
    /// Packets the device can never send, dropped.
    refused: u64,
}

impl QueuePair {
    pub(crate) fn new(
        port: Arc<StartedPort>,
        queue: u16,
        tx_pool: Mempool,
        wake: Option<OwnedFd>,
    ) -> Self {
        let next = NEXT_CACHE.fetch_add(1, Ordering::Relaxed);
        let cache = if next < sys::LS_CACHES { next } else { sys::LS_NO_CACHE };
        Self { port, queue, tx_pool, cache, wake, refused: 0 }
    }

    /// Its number within the port.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.queue
    }

    /// The port it belongs to.
    #[must_use]
    pub fn port(&self) -> &Arc<StartedPort> {
        &self.port
    }
}

impl Queues for QueuePair {
    type Packet = Mbuf;

    fn receive(&mut self, into: &mut Batch<Mbuf>, max: usize) -> usize {
        let spare = into.spare();
        let count = u16::try_from(spare.len().min(max)).unwrap_or(u16::MAX);
        let room = spare.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: the port is started and has this queue, which has no other user (`&mut`);
        // `Mbuf` is a transparent non-null pointer and there is room for `count` of them; the cache
        // number is this queue pair's own.
        let got = unsafe { sys::ls_rx_burst(self.port.id(), self.queue, room, count, self.cache) };
        let got = usize::from(got);
        // SAFETY: DPDK wrote `got` packets, at most `count`, and gave up their ownership.
        unsafe { into.grow(got) };
        got
    }

    fn transmit(&mut self, from: &mut Batch<Mbuf>) -> usize {
        let count = u16::try_from(from.len()).unwrap_or(u16::MAX);
        let packets = from.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        let mut refused = 0;
        // SAFETY: as in `receive`; the batch holds `count` packets.
        let sent = unsafe {
            let (port, queue) = (self.port.id(), self.queue);
            sys::ls_tx_burst(port, queue, packets, count, self.cache, &raw mut refused)
        };
        self.refused += u64::from(refused);
        let sent = usize::from(sent);
        // SAFETY: DPDK took the first `sent` packets and frees them itself.
        unsafe { from.forget_front(sent) };
        sent
    }

    fn allocate(&mut self, into: &mut Batch<Mbuf>, count: usize) -> bool {
        let spare = into.spare();
        if spare.len() < count {
            return false;
        }
        let room = spare.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        let bulk = u32::try_from(count).expect("batches are small");
        // SAFETY: the pool is alive; there is room for `count` packets; the cache is our own.
        let error = unsafe { sys::ls_alloc_bulk(self.tx_pool.as_ptr(), room, bulk, self.cache) };
        if error != 0 {
            return false;
        }
        // SAFETY: the call wrote all `count` packets.
        unsafe { into.grow(count) };
        true
    }

    fn free(&mut self, packets: &mut Batch<Mbuf>) {
        free_with(packets, self.cache);
    }

    fn refused(&self) -> u64 {
        self.refused
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }

    fn settle_wake_fd(&mut self) {
        if let Some(wake) = &self.wake {
            wake::clear_error(wake.as_fd());
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Some(wake) = self.wake.take() {
            wake::close(wake);
        }
    }
}

/// Cache numbers are not reused: a process opens a handful of queues in its life.
static NEXT_CACHE: AtomicU32 = AtomicU32::new(0);
