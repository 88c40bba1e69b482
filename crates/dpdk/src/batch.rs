//! Packets on their way between a queue and its user.

/// A bounded row of packets. Its memory is taken once.
#[derive(Debug)]
pub struct Batch<P> {
    packets: Vec<P>,
    capacity: usize,
}

impl<P> Batch<P> {
    /// An empty batch for at most `capacity` packets.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { packets: Vec::with_capacity(capacity), capacity }
    }

    /// How many packets are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// How many more fit.
    #[must_use]
    pub fn room(&self) -> usize {
        self.capacity - self.packets.len()
    }

    /// Adds a packet at the end.
    ///
    /// # Errors
    ///
    /// The packet, when the batch is full.
    pub fn push(&mut self, packet: P) -> Result<(), P> {
        if self.room() == 0 {
            return Err(packet);
        }
        self.packets.push(packet);
        Ok(())
    }

    /// Takes the last packet.
    pub fn pop(&mut self) -> Option<P> {
        self.packets.pop()
    }

    /// Drops all packets, one by one.
    pub fn clear(&mut self) {
        self.packets.clear();
    }

    /// The packets, first to last.
    pub fn iter(&self) -> std::slice::Iter<'_, P> {
        self.packets.iter()
    }

    /// Takes the first `count` packets, or all if there are fewer.
    pub fn take_front(&mut self, count: usize) -> impl Iterator<Item = P> + '_ {
        let count = count.min(self.packets.len());
        self.packets.drain(..count)
    }

    /// The packets and the room behind them, for a callee that fills it.
    pub(crate) fn spare(&mut self) -> &mut [std::mem::MaybeUninit<P>] {
        let room = self.room();
        &mut self.packets.spare_capacity_mut()[..room]
    }

    /// Counts the first `count` packets of [`Self::spare`] in.
    ///
    /// # Safety
    ///
    /// They must have been written, and `count` must not exceed [`Self::room`].
    pub(crate) unsafe fn grow(&mut self, count: usize) {
        debug_assert!(count <= self.room());
        let len = self.packets.len() + count;
        // SAFETY: the caller wrote the packets; the room was within the vector's capacity.
        unsafe { self.packets.set_len(len) }
    }

    /// The packets, for a callee that takes some from the front.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut P {
        self.packets.as_mut_ptr()
    }

    /// Forgets the first `count` packets without dropping them: somebody else owns them now.
    ///
    /// # Safety
    ///
    /// Ownership of exactly those packets must have passed on, and `count` must not exceed
    /// [`Self::len`].
    pub(crate) unsafe fn forget_front(&mut self, count: usize) {
        debug_assert!(count <= self.packets.len());
        let rest = self.packets.len() - count;
        let start = self.packets.as_mut_ptr();
        // SAFETY: from zero packets on nothing can be dropped twice.
        unsafe { self.packets.set_len(0) };
        // SAFETY: `count + rest` packets lie there, initialised; both ranges are inside.
        let from = unsafe { start.add(count) };
        // SAFETY: as above; `copy` allows overlap.
        unsafe { std::ptr::copy(from, start, rest) };
        // SAFETY: `rest` packets were moved to the front.
        unsafe { self.packets.set_len(rest) };
    }
}

impl<'a, P> IntoIterator for &'a Batch<P> {
    type Item = &'a P;
    type IntoIter = std::slice::Iter<'a, P>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::Batch;

    #[test]
    fn full_batch_gives_the_packet_back() {
        let mut batch = Batch::with_capacity(1);
        assert_eq!(batch.push(1), Ok(()));
        assert_eq!(batch.push(2), Err(2));
        assert_eq!(batch.room(), 0);
    }

    #[test]
    fn forgotten_packets_are_not_dropped_and_the_rest_moves_up() {
        let packets: Vec<_> = (0..4).map(Rc::new).collect();
        let mut batch = Batch::with_capacity(4);
        for packet in &packets {
            batch.push(Rc::clone(packet)).expect("capacity is four");
        }
        // SAFETY: the two counts are given up below.
        unsafe { batch.forget_front(2) };
        assert_eq!(batch.iter().map(|packet| **packet).collect::<Vec<_>>(), [2, 3]);
        drop(batch);
        let counts: Vec<_> = packets.iter().map(Rc::strong_count).collect();
        assert_eq!(counts, [2, 2, 1, 1]);
        for packet in &packets[..2] {
            // SAFETY: the count was leaked above by `forget_front`.
            unsafe { Rc::decrement_strong_count(Rc::as_ptr(packet)) };
        }
    }

    #[test]
    fn spare_room_can_be_filled_from_outside() {
        let mut batch = Batch::with_capacity(3);
        batch.push(7_u32).expect("empty");
        for (slot, value) in batch.spare().iter_mut().zip([8, 9]) {
            slot.write(value);
        }
        // SAFETY: two were written just now.
        unsafe { batch.grow(2) };
        assert_eq!(batch.iter().copied().collect::<Vec<_>>(), [7, 8, 9]);
    }
}
