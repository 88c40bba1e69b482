//! Who is told when a socket's readiness changes.

use std::sync::atomic::{AtomicU32, Ordering};

use lstack_core::{Event, Readiness};

/// A socket's readiness where anybody can read it without the stack's lock. Plain words, written
/// under the lock only.
#[derive(Debug, Default)]
pub struct ReadyWord {
    level: AtomicU32,
    sequence: AtomicU32,
}

impl ReadyWord {
    /// What holds now.
    #[must_use]
    pub fn level(&self) -> Readiness {
        Readiness::from_bits_truncate(self.level.load(Ordering::Acquire))
    }

    /// Changes with every event.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.sequence.load(Ordering::Acquire)
    }

    pub(crate) fn publish(&self, level: Readiness) {
        self.level.store(level.bits(), Ordering::Release);
        let next = self.sequence.load(Ordering::Relaxed).wrapping_add(1);
        self.sequence.store(next, Ordering::Release);
    }
}

/// Somebody who waits: a blocked thread, an epoll instance.
pub trait Watcher: Send + Sync {
    /// Told of an event, with the stack's lock held: notes it, quickly, and never calls back into
    /// a stack. Returns whether [`Self::wake`] is to be called once the lock is released.
    fn on_event(&self, token: u64, event: &Event) -> bool;

    /// Wakes the sleeper, with no lock held. Several events may have become one call.
    fn wake(&self);
}
