//! Memory for the bytes of streams: fixed-size blocks, taken as data arrives and given back when it
//! has been read or acknowledged.
//!
//! Blocks are named by index, never by pointer, and come in slabs, so that 100,000 sockets share a
//! few large allocations. Slabs are kept for reuse; the pool's size follows the peak, below its
//! limit.

/// Bytes of one block. A full-size segment touches at most two; an interactive connection with a
/// few bytes in a buffer costs one.
pub(crate) const BLOCK_LEN: usize = 4096;

/// Blocks of one slab: 256 KiB, large enough that the allocator maps it, small enough not to
/// reserve much for a program with one socket.
const SLAB_BLOCKS: usize = 64;

/// Part of the pool that only in-order received data may use: without it, a pool full of unsent
/// and out-of-order bytes could not take the segment that frees them.
const RESERVE_DIVISOR: usize = 8;

/// Names a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block(u32);

impl Block {
    /// Stands for a block that was not taken yet.
    pub(crate) const NONE: Block = Block(u32::MAX);
}

/// Who asks for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// May wait or be refused: data to send, data out of order.
    Ordinary,
    /// Data that moves a connection forward.
    InOrder,
}

/// All blocks of a stack.
#[derive(Debug)]
pub(crate) struct BlockPool {
    slabs: Vec<Box<[u8]>>,
    free: Vec<Block>,
    used: usize,
    limit: usize,
}

impl BlockPool {
    /// A pool that grows up to `bytes_max`.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            slabs: Vec::new(),
            free: Vec::new(),
            used: 0,
            limit: (bytes_max / BLOCK_LEN).max(16),
        }
    }

    /// Takes a block with unspecified contents.
    pub(crate) fn take(&mut self, urgency: Urgency) -> Option<Block> {
        let limit = match urgency {
            Urgency::InOrder => self.limit,
            Urgency::Ordinary => self.limit - self.limit / RESERVE_DIVISOR,
        };
        if self.used >= limit {
            return None;
        }
        if self.free.is_empty() {
            let first = self.slabs.len() * SLAB_BLOCKS;
            self.slabs.push(vec![0; SLAB_BLOCKS * BLOCK_LEN].into_boxed_slice());
            // Lowest number last, so that it is taken first.
            self.free.extend((first..first + SLAB_BLOCKS).rev().map(|index| Block(index as u32)));
        }
        self.used += 1;
        self.free.pop()
    }

    /// Gives a block back. [`Block::NONE`] is ignored.
    pub(crate) fn give(&mut self, block: Block) {
        if block != Block::NONE {
            self.used -= 1;
            self.free.push(block);
        }
    }

    pub(crate) fn bytes(&self, block: Block) -> &[u8] {
        let (slab, start) = Self::place(block);
        &self.slabs[slab][start..start + BLOCK_LEN]
    }

    pub(crate) fn bytes_mut(&mut self, block: Block) -> &mut [u8] {
        let (slab, start) = Self::place(block);
        &mut self.slabs[slab][start..start + BLOCK_LEN]
    }

    /// Bytes of the blocks in use.
    pub(crate) fn used_bytes(&self) -> usize {
        self.used * BLOCK_LEN
    }

    /// Bytes that may still be taken, the reserve included.
    pub(crate) fn free_bytes(&self) -> usize {
        (self.limit - self.used) * BLOCK_LEN
    }

    /// Whether there is enough for those who were refused to try again.
    pub(crate) fn is_relaxed(&self) -> bool {
        self.used < self.limit - self.limit / RESERVE_DIVISOR
    }

    fn place(block: Block) -> (usize, usize) {
        let index = block.0 as usize;
        (index / SLAB_BLOCKS, index % SLAB_BLOCKS * BLOCK_LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_LEN, Block, BlockPool, Urgency};

    #[test]
    fn ordinary_requests_leave_a_reserve_for_data_in_order() {
        let mut pool = BlockPool::new(16 * BLOCK_LEN);
        let ordinary: Vec<Block> =
            core::iter::from_fn(|| pool.take(Urgency::Ordinary)).take(100).collect();
        assert_eq!(ordinary.len(), 14);
        assert!(!pool.is_relaxed());
        assert!(pool.take(Urgency::InOrder).is_some());
        assert!(pool.take(Urgency::InOrder).is_some());
        assert!(pool.take(Urgency::InOrder).is_none());
        for block in ordinary {
            pool.give(block);
        }
        assert_eq!(pool.used_bytes(), 2 * BLOCK_LEN);
    }

    #[test]
    fn blocks_do_not_overlap() {
        let mut pool = BlockPool::new(1 << 20);
        let blocks: Vec<Block> = (0..130).filter_map(|_| pool.take(Urgency::InOrder)).collect();
        assert_eq!(blocks.len(), 130);
        for (value, block) in blocks.iter().enumerate() {
            pool.bytes_mut(*block).fill(value as u8);
        }
        for (value, block) in blocks.iter().enumerate() {
            assert!(pool.bytes(*block).iter().all(|&byte| byte == value as u8));
        }
    }
}
