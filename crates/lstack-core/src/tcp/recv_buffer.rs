//! Bytes the peer has sent and the program has not read, with the holes between them.
//!
//! Data out of order is copied to its final place at once; what is missing is a list of ranges.
//! References: RFC 9293 3.10.7.4 (queueing), RFC 2018 (what to report), RFC 2883 (duplicates).

use std::collections::VecDeque;
use std::io::IoSliceMut;

use super::header::{SackBlock, SackBlocks};
use super::seq::Seq;
use super::types::RecvMode;
use crate::buffer::{BLOCK_LEN, Block, BlockPool, Urgency};

/// Most separate ranges kept beyond a hole. A range costs 8 bytes; the bound only keeps a hostile
/// peer from making each insertion slow.
const RANGES_MAX: usize = 16_384;

/// A buffer that has drained keeps room for this many block names; more is given back.
const KEPT_BLOCK_NAMES: usize = 16;

/// Reassembles a stream.
#[derive(Debug)]
pub(super) struct RecvBuffer {
    blocks: VecDeque<Block>,
    /// Bytes already read at the start of the first block.
    head: usize,
    /// Bytes the program may read.
    ready: usize,
    /// Sequence number after the readable bytes.
    next: Seq,
    /// What lies beyond `next`: sorted, neither touching nor overlapping.
    ranges: VecDeque<SackBlock>,
    /// A number inside each of the ranges that changed last, newest first. A number of before
    /// `next` says nothing.
    recent: [Seq; 4],
}

/// What became of a segment's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// Bytes that became readable, including older ones that a filled hole has joined.
    pub ready: usize,
    /// Bytes that were taken.
    pub taken: usize,
    /// The bytes were there already (to report by DSACK).
    pub duplicate: Option<SackBlock>,
}

impl RecvBuffer {
    /// An empty buffer that expects `next` first.
    pub(super) fn new(next: Seq) -> Self {
        Self {
            blocks: VecDeque::new(),
            head: 0,
            ready: 0,
            next,
            ranges: VecDeque::new(),
            recent: [next; 4],
        }
    }

    /// Sequence number after the readable bytes.
    pub(super) fn next(&self) -> Seq {
        self.next
    }

    /// Bytes the program may read.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    /// Whether something waits beyond a hole.
    pub(super) fn has_holes(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Takes a segment's bytes. The caller has cut them to the window: they do not start before
    /// [`Self::next`].
    pub(super) fn write(&mut self, pool: &mut BlockPool, seq: Seq, data: &[u8]) -> Written {
        if seq == self.next {
            let taken = self.copy_in(pool, self.ready, data, Urgency::InOrder);
            let before = self.next;
            self.next += taken as u32;
            self.ready += taken;
            if !self.ranges.is_empty() {
                self.join_ranges();
            }
            let ready = self.next.since(before) as usize;
            return Written { ready, taken, duplicate: None };
        }
        self.write_beyond(pool, seq, data)
    }

    fn write_beyond(&mut self, pool: &mut BlockPool, seq: Seq, data: &[u8]) -> Written {
        let end = seq + data.len() as u32;
        // The first range that ends at or after our start is the only one that can hold us.
        let first = self.ranges.partition_point(|range| range.end.before(seq));
        if let Some(range) = self.ranges.get(first)
            && range.start.at_or_before(seq)
            && end.at_or_before(range.end)
        {
            self.note_recent(seq);
            let duplicate = Some(SackBlock { start: seq, end });
            return Written { ready: 0, taken: 0, duplicate };
        }
        if self.ranges.len() >= RANGES_MAX {
            return Written { ready: 0, taken: 0, duplicate: None };
        }
        let offset = self.ready + seq.since(self.next) as usize;
        let taken = self.copy_in(pool, offset, data, Urgency::Ordinary);
        if taken > 0 {
            self.insert_range(first, SackBlock { start: seq, end: seq + taken as u32 });
            self.note_recent(seq);
        }
        Written { ready: 0, taken, duplicate: None }
    }

    /// The ranges beyond a hole, the one that changed last first (RFC 2018 section 4), at most
    /// `max`.
    pub(super) fn sack_blocks(&self, max: usize) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if self.ranges.is_empty() {
            return blocks;
        }
        for seq in self.recent {
            let index = self.ranges.partition_point(|range| range.end.at_or_before(seq));
            if let Some(range) = self.ranges.get(index)
                && range.start.at_or_before(seq)
                && blocks.len() < max
                && !blocks.contains(*range)
            {
                blocks.push(*range);
            }
        }
        blocks
    }

    /// Copies readable bytes to `bufs` from byte `skip` on; `Take` and `Discard` consume them.
    pub(super) fn read(
        &mut self,
        pool: &mut BlockPool,
        bufs: &mut [IoSliceMut<'_>],
        mut skip: usize,
        mode: RecvMode,
    ) -> usize {
        let mut copied = 0;
        for buf in bufs {
            if skip >= buf.len() {
                skip -= buf.len();
                continue;
            }
            let to = &mut buf[core::mem::take(&mut skip)..];
            let count = to.len().min(self.ready - copied);
            if mode != RecvMode::Discard {
                self.copy_out(pool, copied, &mut to[..count]);
            }
            copied += count;
            if copied == self.ready {
                break;
            }
        }
        if mode != RecvMode::Peek {
            self.consume(pool, copied);
        }
        copied
    }

    /// Throws away what lies beyond a hole. The peer still has it (RFC 2018 section 8 allows it).
    pub(super) fn renege(&mut self, pool: &mut BlockPool) {
        self.ranges = VecDeque::new();
        let keep = (self.head + self.ready).div_ceil(BLOCK_LEN);
        while self.blocks.len() > keep {
            if let Some(block) = self.blocks.pop_back() {
                pool.give(block);
            }
        }
    }

    /// Throws everything away.
    pub(super) fn clear(&mut self, pool: &mut BlockPool) {
        self.ready = 0;
        self.head = 0;
        self.renege(pool);
        self.blocks = VecDeque::new();
    }

    /// Copies `data` to `offset` after the first unread byte, as far as memory goes.
    fn copy_in(
        &mut self,
        pool: &mut BlockPool,
        offset: usize,
        data: &[u8],
        urgency: Urgency,
    ) -> usize {
        let mut at = self.head + offset;
        let mut rest = data;
        while !rest.is_empty() {
            let index = at / BLOCK_LEN;
            while self.blocks.len() <= index {
                self.blocks.push_back(Block::NONE);
            }
            if self.blocks[index] == Block::NONE {
                let Some(block) = pool.take(urgency) else { break };
                self.blocks[index] = block;
            }
            let start = at % BLOCK_LEN;
            let count = rest.len().min(BLOCK_LEN - start);
            pool.bytes_mut(self.blocks[index])[start..start + count]
                .copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            at += count;
        }
        data.len() - rest.len()
    }

    fn copy_out(&self, pool: &BlockPool, offset: usize, mut to: &mut [u8]) {
        let mut at = self.head + offset;
        while !to.is_empty() {
            let start = at % BLOCK_LEN;
            let count = to.len().min(BLOCK_LEN - start);
            let (now, later) = to.split_at_mut(count);
            now.copy_from_slice(&pool.bytes(self.blocks[at / BLOCK_LEN])[start..start + count]);
            to = later;
            at += count;
        }
    }

    fn consume(&mut self, pool: &mut BlockPool, count: usize) {
        self.ready -= count;
        self.head += count;
        while self.head >= BLOCK_LEN {
            self.head -= BLOCK_LEN;
            if let Some(block) = self.blocks.pop_front() {
                pool.give(block);
            }
        }
        if self.ready == 0 && self.ranges.is_empty() {
            while let Some(block) = self.blocks.pop_front() {
                pool.give(block);
            }
            self.blocks.shrink_to(KEPT_BLOCK_NAMES);
            self.head = 0;
        }
    }

    /// Joins the ranges that the readable bytes have reached.
    fn join_ranges(&mut self) {
        while let Some(range) = self.ranges.front()
            && range.start.at_or_before(self.next)
        {
            let gained = range.end.since(self.next);
            self.ready += gained as usize;
            self.next += gained;
            self.ranges.pop_front();
        }
        if self.ranges.is_empty() {
            self.ranges.shrink_to(KEPT_BLOCK_NAMES);
        }
    }

    /// Inserts a range; `first` is the first one that ends at or after its start.
    fn insert_range(&mut self, first: usize, mut range: SackBlock) {
        let mut last = first;
        while let Some(other) = self.ranges.get(last)
            && other.start.at_or_before(range.end)
        {
            range.start = range.start.min(other.start);
            range.end = range.end.max(other.end);
            last += 1;
        }
        if last == first {
            self.ranges.insert(first, range);
        } else {
            self.ranges[first] = range;
            self.ranges.drain(first + 1..last);
        }
    }

    fn note_recent(&mut self, seq: Seq) {
        let inside =
            |range: &SackBlock, seq: Seq| range.start.at_or_before(seq) && range.end.after(seq);
        let index = self.ranges.partition_point(|range| range.end.at_or_before(seq));
        let Some(range) = self.ranges.get(index).copied() else { return };
        // Every number that fell into the same range gives way to the new one.
        let mut kept = [seq; 4];
        let mut count = 1;
        for old in self.recent {
            if count < kept.len() && !inside(&range, old) {
                kept[count] = old;
                count += 1;
            }
        }
        self.recent = kept;
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;

    use super::{RecvBuffer, Written};
    use crate::buffer::{BLOCK_LEN, BlockPool};
    use crate::tcp::RecvMode;
    use crate::tcp::header::SackBlock;
    use crate::tcp::seq::Seq;

    fn byte(seq: u32) -> u8 {
        (seq.wrapping_mul(31) >> 3) as u8
    }

    fn bytes(from: u32, len: u32) -> Vec<u8> {
        (0..len).map(|i| byte(from.wrapping_add(i))).collect()
    }

    fn take(buffer: &mut RecvBuffer, pool: &mut BlockPool, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let count = buffer.read(pool, &mut [IoSliceMut::new(&mut out)], 0, RecvMode::Take);
        out.truncate(count);
        out
    }

    #[test]
    fn segments_in_any_order_give_the_stream() {
        let mut pool = BlockPool::new(4 << 20);
        let start = u32::MAX - 5000;
        let mut order: Vec<u32> = (0..300).collect();
        let mut state = 7_u64;
        for i in (1..order.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            order.swap(i, (state >> 33) as usize % (i + 1));
        }
        let mut buffer = RecvBuffer::new(Seq(start));
        let mut ready = 0;
        for piece in order {
            // Every piece overlaps its successor by 50 bytes.
            let seq = start.wrapping_add(piece * 100);
            let mut data = bytes(seq, 150);
            let mut seq = Seq(seq);
            if seq.before(buffer.next()) {
                let old = buffer.next().since(seq) as usize;
                if old >= data.len() {
                    continue;
                }
                data.drain(..old);
                seq = buffer.next();
            }
            ready += buffer.write(&mut pool, seq, &data).ready;
        }
        assert_eq!(ready, 30_050);
        assert!(!buffer.has_holes());
        assert_eq!(take(&mut buffer, &mut pool, 40_000), bytes(start, 30_050));
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn ten_thousand_single_byte_holes_are_kept_and_filled() {
        let mut pool = BlockPool::new(1 << 20);
        let mut buffer = RecvBuffer::new(Seq(0));
        for i in (1..20_000).rev().step_by(2) {
            assert_eq!(buffer.write(&mut pool, Seq(i), &bytes(i, 1)).taken, 1);
        }
        for i in (0..20_000).step_by(2) {
            buffer.write(&mut pool, Seq(i), &bytes(i, 1));
        }
        assert_eq!(take(&mut buffer, &mut pool, 30_000), bytes(0, 20_000));
    }

    #[test]
    fn the_newest_range_is_reported_first_and_duplicates_are_named() {
        let mut pool = BlockPool::new(1 << 20);
        let mut buffer = RecvBuffer::new(Seq(0));
        for start in [100, 300, 500, 700, 900] {
            buffer.write(&mut pool, Seq(start), &bytes(start, 50));
        }
        buffer.write(&mut pool, Seq(350), &bytes(350, 50));
        let blocks = buffer.sack_blocks(3);
        let starts: Vec<u32> = blocks.iter().map(|block| block.start.0).collect();
        assert_eq!(starts, [300, 900, 700]);
        let again = buffer.write(&mut pool, Seq(710), &bytes(710, 20));
        let duplicate = Some(SackBlock { start: Seq(710), end: Seq(730) });
        assert_eq!(again, Written { ready: 0, taken: 0, duplicate });
    }

    #[test]
    fn peek_leaves_and_discard_takes_without_copying() {
        let mut pool = BlockPool::new(1 << 20);
        let mut buffer = RecvBuffer::new(Seq(0));
        buffer.write(&mut pool, Seq(0), b"hello");
        let mut out = [0; 5];
        let count = buffer.read(&mut pool, &mut [IoSliceMut::new(&mut out)], 2, RecvMode::Peek);
        assert_eq!((count, &out), (3, b"\0\0hel"));
        let count = buffer.read(&mut pool, &mut [IoSliceMut::new(&mut out)], 0, RecvMode::Discard);
        assert_eq!((count, &out), (5, b"\0\0hel"));
        assert_eq!((buffer.ready(), pool.used_bytes()), (0, 0));
    }

    #[test]
    fn reneging_frees_only_what_is_beyond_the_hole() {
        let mut pool = BlockPool::new(1 << 20);
        let mut buffer = RecvBuffer::new(Seq(0));
        buffer.write(&mut pool, Seq(0), &bytes(0, 10));
        buffer.write(&mut pool, Seq(20_000), &bytes(20_000, 10_000));
        buffer.renege(&mut pool);
        assert_eq!(pool.used_bytes(), BLOCK_LEN);
        assert_eq!(take(&mut buffer, &mut pool, 100), bytes(0, 10));
    }
}
