//! One stack with its device behind its lock, as the callers see it.
//!
//! Application threads come here from their socket calls. They hold a [`Guard`] for one call, never
//! two at a time, and never sleep with one.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lstack_config::StackThreadMode;
use lstack_core::udp::UdpSendError;
use lstack_core::{Instant, Readiness, SocketError, SocketId, Stack};

use crate::clock;
use crate::doorbell::Sleep;
use crate::lock::MutexGuard;
use crate::shard::{After, Driver, Inner, Shard, Shards};
use crate::watch::{FAILED, ReadyWord, Watcher};

/// One stack, its device and its lock.
pub struct StackCell {
    shards: Arc<Shards>,
    index: usize,
}

/// A thread that has data to take looks at the device this often: other sockets' frames and timers
/// wait no longer than they would for a short system call.
const DATA_LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// Frames it takes then: 640,000 a second, about what one reader of small datagrams takes out.
const DATA_LOOK_FRAMES: usize = 32;

/// What a drive did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Frames came or went.
    Some,
    /// Nothing to do.
    None,
    /// Somebody else holds the lock and drives.
    Busy,
}

impl StackCell {
    pub(crate) fn new(shards: Arc<Shards>, index: usize) -> Self {
        Self { shards, index }
    }

    fn shard(&self) -> &Shard {
        &self.shards.all[self.index]
    }

    /// Position among the process's stacks.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Takes the lock. When the guard goes, what the calls queued is sent and watchers are told.
    #[must_use]
    pub fn lock(&self) -> Guard<'_> {
        Guard::new(self, self.shard().lock.lock())
    }

    /// As [`Self::lock`]; in run-to-completion mode frames that have arrived are handled first, so
    /// that the caller sees them.
    #[must_use]
    pub fn enter(&self) -> Guard<'_> {
        if self.mode() == StackThreadMode::RunToWakeup {
            return self.lock();
        }
        if self.shards.all.len() > 1 {
            self.shards.drive_neighbours(self.index, Driver::Application);
        }
        // If the lock is taken its holder has just received: we need not.
        let Some(inner) = self.shard().lock.try_lock() else { return self.lock() };
        let mut guard = Guard::new(self, inner);
        guard.receive(usize::MAX);
        guard
    }

    /// As [`Self::enter`], for a caller that will find what it wants without new frames (data is
    /// there already): the device is looked at only now and then, and for a few frames.
    ///
    /// So a reader empties its socket before it fills it further, and what it cannot keep up with
    /// waits in the device's queue, where it holds the sender back, instead of overflowing the
    /// socket's.
    #[must_use]
    pub fn enter_with_data(&self) -> Guard<'_> {
        let mut guard = self.lock();
        if self.mode() == StackThreadMode::RunToCompletion {
            let polled = Instant::from_micros(self.shard().last_polled.load(Ordering::Relaxed));
            if guard.now - polled >= DATA_LOOK_INTERVAL {
                guard.receive(DATA_LOOK_FRAMES);
            }
        }
        guard
    }

    /// Drives the stack once if nobody else does: one receive burst, timers, one transmit burst.
    /// What a thread calls while it spins in run-to-completion mode; never blocks. In
    /// run-to-wakeup mode the driver thread does all that and this does nothing.
    pub fn drive(&self) -> Progress {
        match self.mode() {
            StackThreadMode::RunToCompletion => self.shards.drive_spinning(self.index),
            StackThreadMode::RunToWakeup => Progress::Busy,
        }
    }

    /// The calling thread is about to sleep: the driver thread takes over at once.
    pub fn hand_over(&self) {
        if self.mode() == StackThreadMode::RunToWakeup {
            return;
        }
        // All of them: with several stacks any device queue may bring frames for this one.
        for shard in &self.shards.all {
            shard.last_spun.store(0, Ordering::Relaxed);
            shard.handovers.fetch_add(1, Ordering::Relaxed);
            // A driver that sleeps on its device is woken by the next frame.
            shard.bell.ring(Sleep::STANDBY.or(Sleep::NAP));
        }
    }

    /// How the stack is driven.
    #[must_use]
    pub fn mode(&self) -> StackThreadMode {
        self.shards.mode
    }

    /// Whether the stack was stopped after breaking an invariant; its sockets report errors.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.shard().failed()
    }

    /// Counters of the stack, of its device (`link_*`) and of the way it is driven (`runtime_*`).
    #[must_use]
    pub fn stats(&self) -> Vec<(&'static str, u64)> {
        self.shards.stats(self.index)
    }
}

/// The lock of a stack, held.
pub struct Guard<'a> {
    cell: &'a StackCell,
    /// Present until dropped.
    inner: Option<MutexGuard<'a, Inner>>,
    now: Instant,
    after: After,
    received: usize,
    /// The thread was panicking before it took the lock: the panic is not the stack's.
    panicking: bool,
}

impl<'a> Guard<'a> {
    fn new(cell: &'a StackCell, inner: MutexGuard<'a, Inner>) -> Self {
        Self {
            cell,
            inner: Some(inner),
            now: clock::now(),
            after: After::default(),
            received: 0,
            panicking: std::thread::panicking(),
        }
    }

    fn receive(&mut self, max: usize) {
        let shard = self.cell.shard();
        if let Some(inner) = &mut self.inner {
            self.received = shard.receive(&self.cell.shards, inner, self.now, &mut self.after, max);
        }
        shard.last_polled.store(self.now.as_micros(), Ordering::Relaxed);
    }

    fn inner(&mut self) -> &mut Inner {
        self.inner.as_mut().expect("only drop takes it")
    }

    /// The stack. That of a failed cell is empty: no call finds a socket in it.
    pub fn stack(&mut self) -> &mut Stack {
        &mut self.inner().stack
    }

    /// The time at which the lock was taken.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// [`Stack::udp_send`] over the cell's device.
    ///
    /// # Errors
    ///
    /// As there; [`SocketError::StackFailed`] on a failed cell.
    pub fn udp_send(
        &mut self,
        id: SocketId,
        to: Option<SocketAddr>,
        data: &[IoSlice<'_>],
    ) -> Result<usize, UdpSendError> {
        if self.cell.failed() {
            return Err(UdpSendError::Failed(SocketError::StackFailed));
        }
        let now = self.now;
        // Sent at once, so `Stack::wants_poll` says nothing of it: the device must be flushed.
        self.after.note_sent();
        let Inner { stack, link, .. } = self.inner();
        stack.udp_send(now, id, to, data, &mut **link)
    }

    /// The word in which this socket's readiness is published; made at the first call, current
    /// when it returns.
    pub fn ready_word(&mut self, socket: SocketId) -> Arc<ReadyWord> {
        let level = self.refresh(socket);
        self.inner().watches.word(socket, level)
    }

    /// Publishes the level the socket has now, without an event, and returns it: for a call that
    /// took the last of something.
    pub fn refresh(&mut self, socket: SocketId) -> Readiness {
        let failed = self.cell.failed();
        let inner = self.inner();
        let level = if failed { FAILED } else { inner.stack.readiness(socket) };
        inner.watches.set_level(socket, level);
        level
    }

    /// Tells `watcher` of this socket's events from now on, with `token`. The same watcher may
    /// watch with several tokens.
    pub fn watch(&mut self, socket: SocketId, watcher: Arc<dyn Watcher>, token: u64) {
        let level = self.refresh(socket);
        self.inner().watches.add(socket, level, watcher, token);
    }

    /// Ends a watch.
    pub fn unwatch(&mut self, socket: SocketId, watcher: &Arc<dyn Watcher>, token: u64) {
        self.inner().watches.remove(socket, watcher, token);
    }

    /// Forgets the socket's word and watchers; call right before [`Stack::close`]. Watchers are
    /// not told.
    pub fn forget(&mut self, socket: SocketId) {
        self.inner().watches.forget(socket);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else { return };
        let shard = self.cell.shard();
        let mut after = std::mem::take(&mut self.after);
        if std::thread::panicking() && !self.panicking {
            // Something panicked while it worked on the stack, which may be half changed.
            shard.fail(&mut inner, &mut after);
        } else {
            shard.settle(&self.cell.shards, &mut inner, self.now, self.received, &mut after);
        }
        self.cell.shards.release(self.cell.index, inner, &after, Driver::Application);
    }
}
