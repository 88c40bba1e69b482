//! The receive queue of one UDP socket: payloads back to back in a ring, one record each.
//!
//! A queue owns memory only while it holds datagrams; empty ones give it to the shared spares. So
//! nothing is allocated per datagram, and idle sockets cost nothing.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;
use std::io::IoSliceMut;

/// Datagrams in order of arrival.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    memory: Memory,
    /// Where the oldest payload starts in the ring.
    head: usize,
    /// Bytes of payload.
    len: usize,
    limit: usize,
}

/// One datagram in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub len: usize,
    pub from: SocketAddr,
    pub to: IpAddr,
    pub ttl: u8,
    pub tos: u8,
}

/// Memory of empty queues, for the next one that gets a datagram.
#[derive(Debug, Default)]
pub(super) struct Spares {
    free: Vec<Memory>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Memory {
    /// A power of two long, or empty.
    ring: Box<[u8]>,
    records: VecDeque<Record>,
}

impl ReceiveQueue {
    /// An empty queue that holds datagrams of `limit` bytes, each charged its payload and
    /// [`OVERHEAD`].
    pub(super) fn new(limit: usize) -> Self {
        Self { memory: Memory::default(), head: 0, len: 0, limit }
    }

    /// Datagrams that are here stay, also beyond the new limit.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.memory.records.is_empty()
    }

    pub(super) fn front(&self) -> Option<&Record> {
        self.memory.records.front()
    }

    /// Appends a datagram; `false` if there is no room for it. An empty queue takes any, as
    /// Linux's does.
    pub(super) fn push(&mut self, record: Record, payload: &[u8], spares: &mut Spares) -> bool {
        if self.is_empty() {
            self.memory = spares.take();
            self.head = 0;
        } else if self.charge() + payload.len() + OVERHEAD > self.limit {
            return false;
        }
        if self.len + payload.len() > self.memory.ring.len() {
            self.grow(self.len + payload.len());
        }
        let ring = &mut self.memory.ring;
        if !payload.is_empty() {
            let at = (self.head + self.len) & (ring.len() - 1);
            let before_end = payload.len().min(ring.len() - at);
            let (first, second) = payload.split_at(before_end);
            ring[at..at + before_end].copy_from_slice(first);
            ring[..second.len()].copy_from_slice(second);
        }
        self.len += payload.len();
        self.memory.records.push_back(record);
        true
    }

    /// Copies the oldest datagram to `bufs`; returns how many bytes fitted.
    pub(super) fn copy_front(&self, bufs: &mut [IoSliceMut<'_>]) -> usize {
        let len = self.front().map_or(0, |record| record.len);
        let ring = &self.memory.ring;
        let before_end = len.min(ring.len() - self.head);
        let (first, second) = (&ring[self.head..self.head + before_end], &ring[..len - before_end]);
        let mut copied = 0;
        for buf in bufs {
            let mut room = &mut buf[..];
            while !room.is_empty() && copied < len {
                let source = if copied < first.len() {
                    &first[copied..]
                } else {
                    &second[copied - first.len()..]
                };
                let n = room.len().min(source.len());
                room[..n].copy_from_slice(&source[..n]);
                room = &mut room[n..];
                copied += n;
            }
        }
        copied
    }

    /// Removes the oldest datagram.
    pub(super) fn pop(&mut self, spares: &mut Spares) {
        let Some(record) = self.memory.records.pop_front() else { return };
        self.len -= record.len;
        if self.memory.records.is_empty() {
            self.clear(spares);
        } else {
            self.head = (self.head + record.len) & (self.memory.ring.len().max(1) - 1);
        }
    }

    /// Removes all.
    pub(super) fn clear(&mut self, spares: &mut Spares) {
        let mut memory = core::mem::take(&mut self.memory);
        memory.records.clear();
        self.head = 0;
        self.len = 0;
        spares.put(memory);
    }

    fn charge(&self) -> usize {
        self.len + self.memory.records.len() * OVERHEAD
    }

    fn grow(&mut self, needed: usize) {
        let mut ring = vec![0; needed.next_power_of_two().max(RING_MIN)].into_boxed_slice();
        let old = &self.memory.ring;
        let before_end = self.len.min(old.len() - self.head);
        ring[..before_end].copy_from_slice(&old[self.head..self.head + before_end]);
        ring[before_end..self.len].copy_from_slice(&old[..self.len - before_end]);
        self.memory.ring = ring;
        self.head = 0;
    }
}

impl Spares {
    fn take(&mut self) -> Memory {
        let memory = self.free.pop().unwrap_or_default();
        self.bytes -= memory.ring.len();
        memory
    }

    fn put(&mut self, memory: Memory) {
        if self.free.len() < SPARES_MAX && self.bytes + memory.ring.len() <= SPARE_BYTES_MAX {
            self.bytes += memory.ring.len();
            self.free.push(memory);
        }
    }
}

/// Charged for each datagram besides its payload, so that floods of empty ones are bounded. Covers
/// the record.
const OVERHEAD: usize = 64;

/// Smallest ring: a few frames.
const RING_MIN: usize = 4_096;

/// Spare memory: enough for the sockets that get datagrams in one burst.
const SPARES_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 32 << 20;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::IoSliceMut;

    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::{OVERHEAD, ReceiveQueue, Record, Spares};

    fn record(len: usize) -> Record {
        let from = "10.0.0.1:9".parse().unwrap();
        Record { len, from, to: [10, 0, 0, 2].into(), ttl: 64, tos: 0 }
    }

    fn read(queue: &ReceiveQueue) -> Vec<u8> {
        let mut bytes = vec![0; queue.front().unwrap().len];
        assert_eq!(queue.copy_front(&mut [IoSliceMut::new(&mut bytes)]), bytes.len());
        bytes
    }

    #[test]
    fn the_newest_is_dropped_when_full() {
        let (mut queue, mut spares) = (ReceiveQueue::new(3 * (100 + OVERHEAD)), Spares::default());
        for n in 0..4u8 {
            assert_eq!(queue.push(record(100), &[n; 100], &mut spares), n < 3);
        }
        for n in 0..3u8 {
            assert_eq!(read(&queue), [n; 100]);
            queue.pop(&mut spares);
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn an_empty_queue_takes_any_datagram() {
        let (mut queue, mut spares) = (ReceiveQueue::new(10), Spares::default());
        assert!(queue.push(record(65_507), &[7; 65_507], &mut spares));
        assert!(!queue.push(record(0), &[], &mut spares));
        assert_eq!(read(&queue).len(), 65_507);
    }

    #[test]
    fn an_empty_queue_owns_no_memory() {
        let (mut queue, mut spares) = (ReceiveQueue::new(1 << 20), Spares::default());
        assert!(queue.push(record(0), &[], &mut spares));
        assert!(queue.push(record(3), b"abc", &mut spares));
        queue.pop(&mut spares);
        assert_eq!(read(&queue), b"abc");
        queue.pop(&mut spares);
        assert!(queue.memory.ring.is_empty());
        assert_eq!(spares.free.len(), 1);
    }

    #[test]
    fn a_datagram_is_scattered_over_the_callers_buffers() {
        let (mut queue, mut spares) = (ReceiveQueue::new(1 << 20), Spares::default());
        assert!(queue.push(record(7), b"abcdefg", &mut spares));
        let (mut one, mut two, mut three) = ([0; 2], [0; 0], [0; 3]);
        let bufs = &mut [
            IoSliceMut::new(&mut one),
            IoSliceMut::new(&mut two),
            IoSliceMut::new(&mut three),
        ];
        assert_eq!(queue.copy_front(bufs), 5);
        assert_eq!((&one, &three), (b"ab", b"cde"));
    }

    proptest! {
        #[test]
        fn behaves_like_a_deque(
            steps in proptest::collection::vec((any::<bool>(), 0usize..3_000, any::<u8>()), 1..200),
        ) {
            let (mut queue, mut spares) = (ReceiveQueue::new(20_000), Spares::default());
            let mut model: VecDeque<Vec<u8>> = VecDeque::new();
            for (push, len, byte) in steps {
                if push {
                    let payload: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                    let charge: usize = model.iter().map(|d| d.len() + OVERHEAD).sum();
                    let fits = model.is_empty() || charge + len + OVERHEAD <= 20_000;
                    prop_assert_eq!(queue.push(record(len), &payload, &mut spares), fits);
                    if fits {
                        model.push_back(payload);
                    }
                } else {
                    queue.pop(&mut spares);
                    model.pop_front();
                }
                prop_assert_eq!(queue.front().map(|r| r.len), model.front().map(Vec::len));
                if let Some(front) = model.front() {
                    prop_assert_eq!(&read(&queue), front);
                }
            }
            prop_assert!(queue.len <= 20_000);
        }
    }
}
