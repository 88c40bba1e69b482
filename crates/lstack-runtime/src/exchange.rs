//! Frames that change from one stack of the process to another.
//!
//! Received: a device queue hands out frames of any flow when the device cannot spread flows the
//! way [`lstack_core::stack::steer`] does. The stack whose queue it was posts foreign frames into
//! the owner's [`Inbox`]. Sent: a stack without a device queue of its own has a [`RelayLink`], whose
//! frames the first stack puts on its queue.
//!
//! Bounded queues without locks; buffers go round. A process with one stack uses none of this.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use lstack_core::{FrameSink, LinkCaps, RxMeta, TxMeta};

use crate::link::Link;

/// Frames that other stacks received for this one. Any thread posts, the holder of the owner's lock
/// takes.
#[derive(Debug)]
pub(crate) struct Inbox {
    frames: ArrayQueue<(Vec<u8>, RxMeta)>,
    spare: ArrayQueue<Vec<u8>>,
    dropped: AtomicU64,
}

impl Inbox {
    /// For a process with `stacks` stacks.
    pub(crate) fn new(stacks: usize) -> Self {
        let frames = if stacks > 1 { QUEUE_FRAMES } else { 1 };
        Self {
            frames: ArrayQueue::new(frames),
            spare: ArrayQueue::new(frames),
            dropped: AtomicU64::new(0),
        }
    }

    /// Copies a frame in; a full inbox drops it, as a full device queue would.
    pub(crate) fn post(&self, frame: &[u8], meta: RxMeta) {
        if self.frames.is_full() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(frame);
        self.post_owned(buffer, meta);
    }

    /// As [`Self::post`] without the copy.
    pub(crate) fn post_owned(&self, frame: Vec<u8>, meta: RxMeta) {
        if self.frames.push((frame, meta)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Hands at most `max` frames to `deliver`, returns how many.
    pub(crate) fn take(&self, max: usize, mut deliver: impl FnMut(&[u8], RxMeta)) -> usize {
        for taken in 0..max {
            let Some((frame, meta)) = self.frames.pop() else { return taken };
            deliver(&frame, meta);
            give_back(&self.spare, frame);
        }
        max
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Frames that found the inbox full.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Frames on their way from one [`RelayLink`] to the first stack's device.
#[derive(Debug)]
pub(crate) struct Relay {
    frames: ArrayQueue<(Vec<u8>, TxMeta)>,
    spare: ArrayQueue<Vec<u8>>,
}

impl Relay {
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// A device that only sends, through another stack's device.
#[derive(Debug)]
pub(crate) struct RelayLink {
    relay: Arc<Relay>,
    caps: LinkCaps,
    reserved: Vec<u8>,
}

impl RelayLink {
    /// Over a device with these properties.
    pub(crate) fn new(caps: LinkCaps) -> Self {
        let relay =
            Relay { frames: ArrayQueue::new(QUEUE_FRAMES), spare: ArrayQueue::new(QUEUE_FRAMES) };
        Self { relay: Arc::new(relay), caps, reserved: Vec::new() }
    }

    /// The other end, for an [`Outbox`].
    pub(crate) fn relay(&self) -> Arc<Relay> {
        Arc::clone(&self.relay)
    }
}

impl FrameSink for RelayLink {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        // This link is the only one to push, so what has room now still has it at the commit.
        if self.relay.frames.is_full() {
            return None;
        }
        self.reserved.resize(len, 0);
        Some(&mut self.reserved)
    }

    fn commit(&mut self, meta: TxMeta) {
        let next = self.relay.spare.pop().unwrap_or_default();
        let frame = std::mem::replace(&mut self.reserved, next);
        let pushed = self.relay.frames.push((frame, meta));
        debug_assert!(pushed.is_ok(), "reserve found room and nobody else pushes");
    }
}

impl Link for RelayLink {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn rx_burst(&mut self, _max: usize, _deliver: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        0
    }

    /// Always true: the first stack moves the frames on and retries by itself.
    fn flush(&mut self) -> bool {
        true
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The relays that the first stack serves; empty in all others.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    relays: Vec<Arc<Relay>>,
    /// A frame the device had no room for.
    held: Option<(usize, Vec<u8>, TxMeta)>,
}

impl Outbox {
    pub(crate) fn new(relays: Vec<Arc<Relay>>) -> Self {
        Self { relays, held: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_none() && self.relays.iter().all(|relay| relay.is_empty())
    }

    /// Moves all frames to `sink`; `false` if it took no more.
    pub(crate) fn drain(&mut self, sink: &mut dyn FrameSink) -> bool {
        if let Some((index, frame, meta)) = self.held.take()
            && !self.forward(index, frame, meta, sink)
        {
            return false;
        }
        for index in 0..self.relays.len() {
            while let Some((frame, meta)) = self.relays[index].frames.pop() {
                if !self.forward(index, frame, meta, sink) {
                    return false;
                }
            }
        }
        true
    }

    fn forward(
        &mut self,
        index: usize,
        frame: Vec<u8>,
        meta: TxMeta,
        sink: &mut dyn FrameSink,
    ) -> bool {
        let Some(room) = sink.reserve(frame.len()) else {
            self.held = Some((index, frame, meta));
            return false;
        };
        room.copy_from_slice(&frame);
        sink.commit(meta);
        give_back(&self.relays[index].spare, frame);
        true
    }
}

/// Keeps a buffer for reuse; one too many is freed.
fn give_back(spare: &ArrayQueue<Vec<u8>>, buffer: Vec<u8>) {
    drop(spare.push(buffer));
}

/// As deep as a usual device queue.
const QUEUE_FRAMES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const CAPS: LinkCaps = LinkCaps {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        tx_ip_checksum: false,
        tx_tcp_checksum: false,
        tx_udp_checksum: false,
        tso_max: None,
    };

    /// Takes `room` frames, then no more.
    struct Narrow {
        room: usize,
        reserved: Vec<u8>,
        sent: Vec<Vec<u8>>,
    }

    impl FrameSink for Narrow {
        fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
            if self.sent.len() == self.room {
                return None;
            }
            self.reserved = vec![0; len];
            Some(&mut self.reserved)
        }

        fn commit(&mut self, _meta: TxMeta) {
            self.sent.push(std::mem::take(&mut self.reserved));
        }
    }

    fn send(link: &mut RelayLink, frame: &[u8]) -> bool {
        let Some(room) = link.reserve(frame.len()) else { return false };
        room.copy_from_slice(frame);
        link.commit(TxMeta::default());
        true
    }

    #[test]
    fn relayed_frames_wait_in_order_for_a_full_device() {
        let mut link = RelayLink::new(CAPS);
        let mut outbox = Outbox::new(vec![link.relay()]);
        for number in 0..5 {
            assert!(send(&mut link, &[number; 60]));
        }
        let mut device = Narrow { room: 2, reserved: Vec::new(), sent: Vec::new() };
        assert!(!outbox.drain(&mut device));
        assert!(!outbox.drain(&mut device));
        device.room = 10;
        assert!(outbox.drain(&mut device));
        let sent: Vec<_> = device.sent.iter().map(|frame| (frame[0], frame.len())).collect();
        assert_eq!(sent, [(0, 60), (1, 60), (2, 60), (3, 60), (4, 60)]);
    }

    #[test]
    fn full_relay_gives_no_room_and_loses_nothing() {
        let mut link = RelayLink::new(CAPS);
        let mut outbox = Outbox::new(vec![link.relay()]);
        let taken = (0..).take_while(|_| send(&mut link, &[7; 20])).count();
        assert_eq!(taken, QUEUE_FRAMES);
        let mut device = Narrow { room: usize::MAX, reserved: Vec::new(), sent: Vec::new() };
        assert!(outbox.drain(&mut device));
        assert_eq!(device.sent.len(), QUEUE_FRAMES);
        // A recycled buffer takes the new frame's length.
        assert!(send(&mut link, &[9; 33]));
        assert!(outbox.drain(&mut device));
        assert_eq!(device.sent.last().map(Vec::as_slice), Some(&[9; 33][..]));
    }

    #[test]
    fn full_inbox_drops_and_counts() {
        let inbox = Inbox::new(2);
        for _ in 0..QUEUE_FRAMES + 3 {
            inbox.post(&[1; 60], RxMeta::default());
        }
        assert_eq!(inbox.dropped(), 3);
        let mut seen = 0;
        assert_eq!(inbox.take(10, |frame, _| seen += frame.len()), 10);
        assert_eq!(seen, 600);
        assert_eq!(inbox.take(usize::MAX, |_, _| {}), QUEUE_FRAMES - 10);
        assert!(inbox.is_empty());
    }
}
