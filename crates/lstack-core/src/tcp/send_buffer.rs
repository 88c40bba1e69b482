//! Bytes a program has sent and the peer has not acknowledged.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::buffer::{BLOCK_LEN, Block, BlockPool, Urgency};

/// A queue of bytes in blocks: every block is full except that the first has lost its
/// acknowledged start and the last its end.
#[derive(Debug, Default)]
pub(super) struct SendBuffer {
    blocks: VecDeque<Block>,
    /// Acknowledged bytes at the start of the first block.
    head: usize,
    len: usize,
}

/// A buffer that has drained keeps room for this many block names; more is given back.
const KEPT_BLOCK_NAMES: usize = 16;

impl SendBuffer {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends bytes of `data` from byte `skip` on, at most `room`. Returns how many; fewer when
    /// the pool has no more.
    pub(super) fn push(
        &mut self,
        pool: &mut BlockPool,
        data: &[IoSlice<'_>],
        mut skip: usize,
        room: usize,
    ) -> usize {
        let before = self.len;
        let end = before + room;
        for slice in data {
            let mut rest = &slice[..];
            if skip >= rest.len() {
                skip -= rest.len();
                continue;
            }
            rest = &rest[core::mem::take(&mut skip)..];
            while !rest.is_empty() && self.len < end {
                let tail = (self.head + self.len) % BLOCK_LEN;
                if (self.head + self.len) / BLOCK_LEN == self.blocks.len() {
                    let Some(block) = pool.take(Urgency::Ordinary) else {
                        return self.len - before;
                    };
                    self.blocks.push_back(block);
                }
                let Some(&last) = self.blocks.back() else { break };
                let count = rest.len().min(BLOCK_LEN - tail).min(end - self.len);
                pool.bytes_mut(last)[tail..tail + count].copy_from_slice(&rest[..count]);
                rest = &rest[count..];
                self.len += count;
            }
        }
        self.len - before
    }

    /// Copies `to.len()` bytes that start at `offset`.
    pub(super) fn read(&self, pool: &BlockPool, offset: usize, mut to: &mut [u8]) {
        let mut at = self.head + offset;
        while !to.is_empty() {
            let Some(&block) = self.blocks.get(at / BLOCK_LEN) else { return };
            let start = at % BLOCK_LEN;
            let count = to.len().min(BLOCK_LEN - start);
            let (now, later) = to.split_at_mut(count);
            now.copy_from_slice(&pool.bytes(block)[start..start + count]);
            to = later;
            at += count;
        }
    }

    /// Drops `count` acknowledged bytes from the front.
    pub(super) fn drop_front(&mut self, pool: &mut BlockPool, count: usize) {
        let count = count.min(self.len);
        self.len -= count;
        self.head += count;
        while self.head >= BLOCK_LEN {
            self.head -= BLOCK_LEN;
            if let Some(block) = self.blocks.pop_front() {
                pool.give(block);
            }
        }
        if self.len == 0 {
            self.clear(pool);
        }
    }

    /// Throws everything away.
    pub(super) fn clear(&mut self, pool: &mut BlockPool) {
        while let Some(block) = self.blocks.pop_front() {
            pool.give(block);
        }
        self.blocks.shrink_to(KEPT_BLOCK_NAMES);
        self.head = 0;
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::SendBuffer;
    use crate::buffer::{BLOCK_LEN, BlockPool};

    fn pattern(from: usize, len: usize) -> Vec<u8> {
        (from..from + len).map(|i| (i * 7 + i / 256) as u8).collect()
    }

    #[test]
    fn bytes_come_out_as_they_went_in_at_any_offset() {
        let mut pool = BlockPool::new(1 << 20);
        let mut buffer = SendBuffer::default();
        let (mut pushed, mut dropped) = (0, 0);
        for step in 1..200 {
            let len = step * 37 % 5000 + 1;
            let bytes = pattern(pushed, len);
            let (a, b) = bytes.split_at(len / 3);
            let slices = [IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)];
            assert_eq!(buffer.push(&mut pool, &slices, 0, usize::MAX - BLOCK_LEN * 99), len);
            pushed += len;
            let drop = (step * 53 % 4900).min(buffer.len());
            buffer.drop_front(&mut pool, drop);
            dropped += drop;
            let mut out = vec![0; buffer.len().min(3000)];
            let offset = (buffer.len() - out.len()) / 2;
            buffer.read(&pool, offset, &mut out);
            assert_eq!(out, pattern(dropped + offset, out.len()));
        }
        buffer.drop_front(&mut pool, usize::MAX);
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn skip_and_room_bound_what_is_taken() {
        let mut pool = BlockPool::new(1 << 20);
        let mut buffer = SendBuffer::default();
        let slices = [IoSlice::new(b"abc"), IoSlice::new(b"defgh")];
        assert_eq!(buffer.push(&mut pool, &slices, 4, 3), 3);
        let mut out = [0; 3];
        buffer.read(&pool, 0, &mut out);
        assert_eq!(&out, b"efg");
    }

    #[test]
    fn an_exhausted_pool_takes_a_part() {
        let mut pool = BlockPool::new(16 * BLOCK_LEN);
        let mut buffer = SendBuffer::default();
        let bytes = vec![1; 20 * BLOCK_LEN];
        assert_eq!(buffer.push(&mut pool, &[IoSlice::new(&bytes)], 0, 1 << 30), 14 * BLOCK_LEN);
        assert_eq!(buffer.push(&mut pool, &[IoSlice::new(&bytes)], 0, 1 << 30), 0);
    }
}
