//! Queues and packets over plain memory, with the behaviour of the real ones.
//!
//! [`pair`] makes two queue pairs with a wire between them. Each has a pool of a fixed number of
//! packets and a transmit ring of a fixed size, so that running out of either can be tested.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::Batch;
use crate::packet::{Packet, Queues, RxFlags, TxOffload};

/// A packet in plain memory.
#[derive(Debug)]
pub struct Mbuf {
    segments: Vec<Vec<u8>>,
    room: usize,
    flags: RxFlags,
    offload: TxOffload,
    pool: Mempool,
}

impl Mbuf {
    /// What the sender asked the device to do.
    #[must_use]
    pub fn offload(&self) -> TxOffload {
        self.offload
    }

    /// Appends a segment, as a device does with a packet larger than its memory.
    pub fn push_segment(&mut self, bytes: &[u8]) {
        self.segments.push(bytes.to_vec());
    }

    /// What the device is to have said about the packet.
    pub fn set_rx_flags(&mut self, flags: RxFlags) {
        self.flags = flags;
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        *self.pool.available_mut() += 1;
    }
}

impl Packet for Mbuf {
    fn packet_len(&self) -> usize {
        self.segments.iter().map(Vec::len).sum()
    }

    fn contiguous(&self) -> Option<&[u8]> {
        match &self.segments[..] {
            [] => Some(&[]),
            [only] => Some(only),
            _ => None,
        }
    }

    fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut copied = 0;
        for (to, from) in out.iter_mut().zip(self.segments.iter().flatten()) {
            *to = *from;
            copied += 1;
        }
        copied
    }

    fn rx_flags(&self) -> RxFlags {
        self.flags
    }

    fn resize(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.room || self.segments.len() > 1 {
            return None;
        }
        self.segments.resize_with(1, Vec::new);
        self.segments[0].resize(len, 0);
        Some(&mut self.segments[0])
    }

    fn set_offload(&mut self, offload: &TxOffload) {
        self.offload = *offload;
    }
}

/// A pool of packets. Clones share it.
#[derive(Clone, Debug)]
pub struct Mempool {
    available: Arc<Mutex<usize>>,
    room: usize,
}

impl Mempool {
    /// A pool of `packets` packets of `room` bytes.
    #[must_use]
    pub fn new(packets: usize, room: usize) -> Self {
        Self { available: Arc::new(Mutex::new(packets)), room }
    }

    /// Packets nobody holds.
    #[must_use]
    pub fn available(&self) -> usize {
        *self.available_mut()
    }

    /// Takes a packet, empty.
    #[must_use]
    pub fn take(&self) -> Option<Mbuf> {
        let mut available = self.available_mut();
        *available = available.checked_sub(1)?;
        drop(available);
        Some(Mbuf {
            segments: Vec::new(),
            room: self.room,
            flags: RxFlags::default(),
            offload: TxOffload::default(),
            pool: self.clone(),
        })
    }

    fn available_mut(&self) -> MutexGuard<'_, usize> {
        self.available.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Wire = Arc<Mutex<VecDeque<Mbuf>>>;

/// One end of a wire.
#[derive(Debug)]
pub struct QueuePair {
    rx: Wire,
    tx: Wire,
    pool: Mempool,
    ring_size: usize,
}

/// Two queue pairs; what one sends the other receives. Each takes its packets from a pool of its
/// own and refuses packets while `ring_size` are on their way.
#[must_use]
pub fn pair(pools: [Mempool; 2], ring_size: usize) -> (QueuePair, QueuePair) {
    let [left, right] = pools;
    let (there, back) = (Wire::default(), Wire::default());
    let one = QueuePair { rx: Arc::clone(&back), tx: Arc::clone(&there), pool: left, ring_size };
    (one, QueuePair { rx: there, tx: back, pool: right, ring_size })
}

impl QueuePair {
    /// Puts a packet on the wire as if the other end had sent it.
    pub fn inject(&mut self, packet: Mbuf) {
        lock(&self.rx).push_back(packet);
    }

    /// Takes a packet off the wire before the other end receives it.
    pub fn intercept(&mut self) -> Option<Mbuf> {
        lock(&self.tx).pop_front()
    }

    /// Its pool.
    #[must_use]
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }
}

impl Queues for QueuePair {
    type Packet = Mbuf;

    fn receive(&mut self, into: &mut Batch<Mbuf>, max: usize) -> usize {
        let mut wire = lock(&self.rx);
        let mut taken = 0;
        while taken < max && into.room() > 0 {
            let Some(packet) = wire.pop_front() else { break };
            into.push(packet).expect("there is room");
            taken += 1;
        }
        taken
    }

    fn transmit(&mut self, from: &mut Batch<Mbuf>) -> usize {
        let mut wire = lock(&self.tx);
        let count = from.len().min(self.ring_size.saturating_sub(wire.len()));
        wire.extend(from.take_front(count));
        count
    }

    fn allocate(&mut self, into: &mut Batch<Mbuf>, count: usize) -> bool {
        if into.room() < count || self.pool.available() < count {
            return false;
        }
        for packet in std::iter::repeat_with(|| self.pool.take()).take(count).flatten() {
            into.push(packet).expect("there is room");
        }
        true
    }

    fn free(&mut self, packets: &mut Batch<Mbuf>) {
        Packet::free_all(packets);
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn lock(wire: &Wire) -> MutexGuard<'_, VecDeque<Mbuf>> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Mempool, pair};
    use crate::batch::Batch;
    use crate::packet::{Packet, Queues};

    #[test]
    fn what_one_end_sends_the_other_receives_and_no_packet_is_lost() {
        let pools = [Mempool::new(4, 100), Mempool::new(4, 100)];
        let (mut left, mut right) = pair(pools.clone(), 8);
        let mut batch = Batch::with_capacity(4);
        assert!(left.allocate(&mut batch, 1));
        let mut packet = batch.pop().expect("one was allocated");
        packet.resize(3).expect("small").copy_from_slice(b"abc");
        batch.push(packet).expect("room for four");
        assert_eq!(left.transmit(&mut batch), 1);

        let mut received = Batch::with_capacity(4);
        assert_eq!(right.receive(&mut received, 32), 1);
        assert_eq!(received.iter().next().expect("one").contiguous(), Some(&b"abc"[..]));
        right.free(&mut received);
        assert_eq!(pools.map(|pool| pool.available()), [4, 4]);
    }

    #[test]
    fn a_full_ring_leaves_packets_with_their_sender() {
        let pools = [Mempool::new(8, 100), Mempool::new(1, 100)];
        let (mut left, _right) = pair(pools, 2);
        let mut batch = Batch::with_capacity(4);
        assert!(left.allocate(&mut batch, 3));
        assert_eq!(left.transmit(&mut batch), 2);
        assert_eq!(batch.len(), 1);
    }

    #[test]
    fn an_empty_pool_gives_all_or_nothing() {
        let (mut left, _right) = pair([Mempool::new(2, 100), Mempool::new(0, 100)], 2);
        let mut batch = Batch::with_capacity(4);
        assert!(!left.allocate(&mut batch, 3));
        assert!(batch.is_empty());
        assert!(left.allocate(&mut batch, 2));
    }

    #[test]
    fn segments_are_joined_in_order() {
        let mut packet = Mempool::new(1, 4).take().expect("one is there");
        packet.resize(2).expect("small").copy_from_slice(b"ab");
        packet.push_segment(b"cd");
        packet.push_segment(b"e");
        assert_eq!(packet.contiguous(), None);
        assert_eq!(packet.packet_len(), 5);
        let mut out = [0; 8];
        assert_eq!(packet.copy_to(&mut out), 5);
        assert_eq!(&out[..5], b"abcde");
        assert!(packet.resize(1).is_none());
    }
}
