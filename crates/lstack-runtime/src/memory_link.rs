//! A cable inside the process, for tests: two devices joined by bounded queues.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use lstack_core::{FrameSink, LinkCaps, RxMeta, TxMeta};
use rustix::event::{EventfdFlags, eventfd};

use crate::link::Link;

/// Two devices, each receiving what the other sends. Addresses are 02:00:00:00:00:01 and
/// 02:00:00:00:00:02; nothing is offloaded.
#[must_use]
pub fn memory_pair(mtu: u16) -> (MemoryLink, MemoryLink) {
    let one = Arc::new(Lane::new(None));
    let other = Arc::new(Lane::new(None));
    (MemoryLink::new(1, mtu, &one, &other), MemoryLink::new(2, mtu, &other, &one))
}

/// As [`memory_pair`], with wake-up descriptors.
///
/// # Errors
///
/// The process has no descriptor left.
pub fn memory_pair_with_wake_up(mtu: u16) -> std::io::Result<(MemoryLink, MemoryLink)> {
    let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let one = Arc::new(Lane::new(Some(event()?)));
    let other = Arc::new(Lane::new(Some(event()?)));
    Ok((MemoryLink::new(1, mtu, &one, &other), MemoryLink::new(2, mtu, &other, &one)))
}

/// One end of a [`memory_pair`].
#[derive(Debug)]
pub struct MemoryLink {
    caps: LinkCaps,
    rx: Arc<Lane>,
    tx: Arc<Lane>,
    reserved: Vec<u8>,
    frames_rx: u64,
    frames_tx: u64,
    /// Frames were sent since the last flush.
    unflushed: bool,
}

/// Frames in one direction.
#[derive(Debug)]
struct Lane {
    frames: ArrayQueue<Vec<u8>>,
    spare: ArrayQueue<Vec<u8>>,
    wake: Option<OwnedFd>,
    /// The receiver sleeps on `wake`.
    armed: AtomicBool,
}

impl Lane {
    fn new(wake: Option<OwnedFd>) -> Self {
        Self {
            frames: ArrayQueue::new(LANE_FRAMES),
            spare: ArrayQueue::new(LANE_FRAMES),
            wake,
            armed: AtomicBool::new(false),
        }
    }
}

impl MemoryLink {
    fn new(host: u8, mtu: u16, rx: &Arc<Lane>, tx: &Arc<Lane>) -> Self {
        let caps = LinkCaps {
            mac: [2, 0, 0, 0, 0, host],
            mtu,
            tx_ip_checksum: false,
            tx_tcp_checksum: false,
            tx_udp_checksum: false,
            tso_max: None,
        };
        Self {
            caps,
            rx: Arc::clone(rx),
            tx: Arc::clone(tx),
            reserved: Vec::new(),
            frames_rx: 0,
            frames_tx: 0,
            unflushed: false,
        }
    }
}

impl FrameSink for MemoryLink {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        // This end alone pushes, so what has room now still has it at the commit.
        if self.tx.frames.is_full() {
            return None;
        }
        self.reserved.resize(len, 0);
        Some(&mut self.reserved)
    }

    fn commit(&mut self, _meta: TxMeta) {
        let next = self.tx.spare.pop().unwrap_or_default();
        let frame = std::mem::replace(&mut self.reserved, next);
        if self.tx.frames.push(frame).is_ok() {
            self.frames_tx += 1;
            self.unflushed = true;
        }
    }
}

impl Link for MemoryLink {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn rx_burst(&mut self, max: usize, deliver: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        for received in 0..max {
            let Some(frame) = self.rx.frames.pop() else { return received };
            self.frames_rx += 1;
            deliver(&frame, RxMeta::default());
            drop(self.rx.spare.push(frame));
        }
        max
    }

    fn flush(&mut self) -> bool {
        // `armed` is read after the push and written before the receiver's last look
        // (`prepare_sleep`): one of the two sees the other.
        if std::mem::take(&mut self.unflushed)
            && self.tx.armed.swap(false, Ordering::SeqCst)
            && let Some(wake) = &self.tx.wake
        {
            // Fails only when it is readable already.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
        true
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.rx.wake.as_ref().map(AsFd::as_fd)
    }

    fn prepare_sleep(&mut self) -> bool {
        if let Some(wake) = &self.rx.wake {
            // Empties it; nothing there is as good.
            let _ = rustix::io::read(wake, &mut [0u8; 8]);
        }
        self.rx.armed.swap(true, Ordering::SeqCst);
        self.rx.frames.is_empty()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("link_frames_rx", self.frames_rx), ("link_frames_tx", self.frames_tx)]
    }
}

/// As deep as a usual device queue.
const LANE_FRAMES: usize = 1024;
