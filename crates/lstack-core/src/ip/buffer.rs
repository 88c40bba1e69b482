//! Memory for packets the stack keeps: waiting for a neighbour, on the way to itself, being
//! reassembled. Buffers are used again, so that in steady state no packet allocates.

use crate::link::TxMeta;

/// Bytes that were all written at some time; what counts is the owner's business.
pub(crate) type Buffer = Box<[u8]>;

/// Free buffers by size.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    free: [Vec<Buffer>; CLASSES.len()],
}

/// A frame that waits to be sent.
#[derive(Debug)]
pub(crate) struct Frame {
    buffer: Buffer,
    len: usize,
    pub(crate) meta: TxMeta,
}

impl BufferPool {
    /// A buffer of at least `len` bytes with unspecified contents.
    pub(crate) fn take(&mut self, len: usize) -> Buffer {
        match class_for(len) {
            Some(class) => self.free[class].pop().unwrap_or_else(|| zeroed(CLASSES[class].size)),
            None => zeroed(len),
        }
    }

    /// Gives a buffer back.
    pub(crate) fn put(&mut self, buffer: Buffer) {
        let class = CLASSES.iter().position(|class| class.size == buffer.len());
        if let Some(class) = class
            && self.free[class].len() < CLASSES[class].keep
        {
            self.free[class].push(buffer);
        }
    }

    /// A frame of `len` bytes with unspecified contents.
    pub(crate) fn take_frame(&mut self, len: usize, meta: TxMeta) -> Frame {
        Frame { buffer: self.take(len), len, meta }
    }

    /// Gives a frame's memory back.
    pub(crate) fn put_frame(&mut self, frame: Frame) {
        self.put(frame.buffer);
    }
}

impl Frame {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }
}

fn class_for(len: usize) -> Option<usize> {
    CLASSES.iter().position(|class| len <= class.size)
}

fn zeroed(len: usize) -> Buffer {
    vec![0; len].into_boxed_slice()
}

struct Class {
    size: usize,
    /// Free buffers kept.
    keep: usize,
}

/// An Ethernet frame, a jumbo frame, and the longest IP packet with room for headers before it.
/// The free lists of the classes hold at most some 4 MiB each.
const CLASSES: [Class; 3] = [
    Class { size: 2_048, keep: 2_048 },
    Class { size: 16_384, keep: 256 },
    Class { size: 66_048, keep: 64 },
];

#[cfg(test)]
mod tests {
    use super::{BufferPool, CLASSES};

    #[test]
    fn a_buffer_given_back_is_used_again() {
        let mut pool = BufferPool::default();
        let buffer = pool.take(100);
        let address = buffer.as_ptr();
        pool.put(buffer);
        let again = pool.take(2_000);
        assert_eq!(again.as_ptr(), address);
    }

    #[test]
    fn sizes_beyond_the_largest_class_are_served_and_not_kept() {
        let mut pool = BufferPool::default();
        let buffer = pool.take(100_000);
        assert_eq!(buffer.len(), 100_000);
        pool.put(buffer);
        assert!(pool.free.iter().all(Vec::is_empty));
    }

    #[test]
    fn free_lists_are_bounded() {
        let mut pool = BufferPool::default();
        let last = CLASSES.len() - 1;
        let buffers: Vec<_> =
            (0..2 * CLASSES[last].keep).map(|_| pool.take(CLASSES[last].size)).collect();
        for buffer in buffers {
            pool.put(buffer);
        }
        assert_eq!(pool.free[last].len(), CLASSES[last].keep);
    }
}
