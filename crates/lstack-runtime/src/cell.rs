//! One stack with its device behind its lock.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;

use lstack_config::{Config, StackThreadMode};
use lstack_core::udp::UdpSendError;
use lstack_core::{Instant, SocketId, Stack};

use crate::link::Link;
use crate::watch::{ReadyWord, Watcher};

/// All stacks of a process, their devices and driver threads.
pub struct Runtime {}

/// Why the stacks could not start. The text says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// For the helper that writes this file: replace by real variants.
    #[error("not implemented")]
    Skeleton,
}

impl Runtime {
    /// Starts the devices and stacks of `config`; blocks until they run (some 100 ms).
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub fn start(_config: &Config) -> Result<Self, StartError> {
        todo!()
    }

    /// As [`Self::start`], over devices the caller brings (one per stack): tests.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub fn with_links(_config: &Config, _links: Vec<Box<dyn Link>>) -> Result<Self, StartError> {
        todo!()
    }

    /// The stacks; never empty, fixed for the life of the process.
    #[must_use]
    pub fn cells(&self) -> &[Arc<StackCell>] {
        todo!()
    }

    /// The time on the clock all stacks use.
    #[must_use]
    pub fn now(&self) -> Instant {
        todo!()
    }

    /// Stops driver threads and devices after at most `linger`, during which orphans are flushed.
    pub fn stop(&self, _linger: std::time::Duration) {
        todo!()
    }
}

/// One stack, its device and its lock.
pub struct StackCell {}

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
    /// Position among the process's stacks.
    #[must_use]
    pub fn index(&self) -> usize {
        todo!()
    }

    /// Takes the lock. When the guard goes, what the calls queued is sent and watchers are told.
    #[must_use]
    pub fn lock(&self) -> Guard<'_> {
        todo!()
    }

    /// As [`Self::lock`]; in run-to-completion mode frames that have arrived are handled first, so
    /// that the caller sees them.
    #[must_use]
    pub fn enter(&self) -> Guard<'_> {
        todo!()
    }

    /// Drives the stack once if nobody else does: one receive burst, timers, one transmit burst.
    /// What a thread calls while it spins in run-to-completion mode; never blocks.
    pub fn drive(&self) -> Progress {
        todo!()
    }

    /// The calling thread is about to sleep: the driver thread takes over at once.
    pub fn hand_over(&self) {
        todo!()
    }

    /// How the stack is driven.
    #[must_use]
    pub fn mode(&self) -> StackThreadMode {
        todo!()
    }

    /// Whether the stack was stopped after breaking an invariant; its sockets report errors.
    #[must_use]
    pub fn failed(&self) -> bool {
        todo!()
    }
}

/// The lock of a stack, held.
pub struct Guard<'a> {
    _cell: &'a StackCell,
}

impl Guard<'_> {
    /// The stack.
    pub fn stack(&mut self) -> &mut Stack {
        todo!()
    }

    /// The time at which the lock was taken.
    #[must_use]
    pub fn now(&self) -> Instant {
        todo!()
    }

    /// [`Stack::udp_send`] over the cell's device.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn udp_send(
        &mut self,
        _id: SocketId,
        _to: Option<SocketAddr>,
        _data: &[IoSlice<'_>],
    ) -> Result<usize, UdpSendError> {
        todo!()
    }

    /// The word in which this socket's readiness is published; made at the first call, current
    /// when it returns.
    pub fn ready_word(&mut self, _socket: SocketId) -> Arc<ReadyWord> {
        todo!()
    }

    /// Tells `watcher` of this socket's events from now on, with `token`. The same watcher may
    /// watch with several tokens.
    pub fn watch(&mut self, _socket: SocketId, _watcher: Arc<dyn Watcher>, _token: u64) {
        todo!()
    }

    /// Ends a watch.
    pub fn unwatch(&mut self, _socket: SocketId, _watcher: &Arc<dyn Watcher>, _token: u64) {
        todo!()
    }

    /// Forgets the socket's word and watchers; call right before [`Stack::close`]. Watchers are
    /// not told.
    pub fn forget(&mut self, _socket: SocketId) {
        todo!()
    }
}
