//! What the library keeps per thread.
//!
//! Owns the "inside" mark: a thread is inside from the entry of a hook that the stack answers to
//! its return. Calls made inside come from the library itself and go to the kernel; handlers of
//! asynchronous signals wait until the thread is outside (see `signal.rs`), so that none can meet a
//! lock its own thread holds. Read and written by its thread and the signal handlers on it; no
//! destructor, nothing is allocated.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};

use crate::raw;

/// The state of one thread. Atomics because signal handlers on the same thread see it; plain
/// (relaxed) accesses, for no other thread does, except where said.
pub struct Thread {
    depth: AtomicU32,
    /// Handlers of the program that ran here.
    handled: AtomicU64,
    /// Those installed without `SA_RESTART`.
    handled_without_restart: AtomicU64,
    /// `handled` when the thread last asked.
    asked: AtomicU64,
    /// A futex word: changes with every handler and every request to cancel this thread. Other
    /// threads change it too.
    stir: AtomicU32,
    /// Requests to cancel this thread, counted by other threads, and how many it knows of.
    cancels: AtomicU32,
    cancels_known: AtomicU32,
    /// The thread's id while it sleeps in a call that no futex ends, else 0. Read by others.
    sleeper: AtomicU32,
    /// The thread's id once asked for.
    id: AtomicU32,
    /// Signals are kept back: they are blocked, and `mask` is what the program had.
    holding: AtomicBool,
    mask: AtomicU64,
}

thread_local! {
    static CURRENT: Thread = const {
        Thread {
            depth: AtomicU32::new(0),
            handled: AtomicU64::new(0),
            handled_without_restart: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            stir: AtomicU32::new(0),
            cancels: AtomicU32::new(0),
            cancels_known: AtomicU32::new(0),
            sleeper: AtomicU32::new(0),
            id: AtomicU32::new(0),
            holding: AtomicBool::new(false),
            mask: AtomicU64::new(0),
        }
    };
}

/// Whether a handler lets slow calls go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Installed with `SA_RESTART`.
    Yes,
    /// Installed without.
    No,
}

/// Runs `body` on the calling thread's state.
#[inline]
pub fn with<R>(body: impl FnOnce(&Thread) -> R) -> R {
    CURRENT.with(body)
}

/// The calling thread is the library's own: it stays inside for ever.
pub fn mark_own() {
    with(Thread::enter);
}

impl Thread {
    /// Whether calls of this thread come from the library.
    #[inline]
    pub fn is_inside(&self) -> bool {
        self.depth.load(Ordering::Relaxed) > 0
    }

    /// Goes inside.
    #[inline]
    pub fn enter(&self) {
        self.depth.store(self.depth.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Leaves; signals that were kept back are delivered here.
    #[inline]
    pub fn leave(&self) {
        compiler_fence(Ordering::SeqCst);
        let depth = self.depth.load(Ordering::Relaxed) - 1;
        self.depth.store(depth, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if depth == 0 && self.holding.load(Ordering::Relaxed) {
            self.release();
        }
    }

    /// Delivers what was kept back, between two parts of a call.
    #[inline]
    pub fn safe_point(&self) {
        if self.holding.load(Ordering::Relaxed) {
            let depth = self.step_out();
            self.release();
            self.step_in(depth);
        }
    }

    /// Leaves for a sleep; the result is for [`Self::step_in`].
    #[inline]
    pub fn step_out(&self) -> u32 {
        compiler_fence(Ordering::SeqCst);
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        depth
    }

    /// Comes back from a sleep.
    #[inline]
    pub fn step_in(&self, depth: u32) {
        compiler_fence(Ordering::SeqCst);
        self.depth.store(depth, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// A signal is kept back from now on: `mask` is the program's, all are blocked.
    pub fn hold(&self, mask: u64) {
        self.mask.store(mask, Ordering::Relaxed);
        self.holding.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Ends [`Self::hold`] without touching the kernel's mask, returns the program's.
    pub fn take_held_mask(&self) -> Option<u64> {
        let holding = self.holding.swap(false, Ordering::Relaxed);
        holding.then(|| self.mask.load(Ordering::Relaxed))
    }

    /// Gives the program's mask back to the kernel, which delivers what is pending.
    #[cold]
    pub fn release(&self) {
        if let Some(mask) = self.take_held_mask() {
            raw::replace_signal_mask(mask);
        }
    }

    /// A handler of the program runs now.
    pub fn count_handler(&self, restart: Restart) {
        let count = self.handled.load(Ordering::Relaxed) + 1;
        self.handled.store(count, Ordering::Relaxed);
        self.stir.fetch_add(1, Ordering::Relaxed);
        if restart == Restart::No {
            let count = self.handled_without_restart.load(Ordering::Relaxed) + 1;
            self.handled_without_restart.store(count, Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Events that end a sleep so far: handlers and requests to cancel, all of them and those that
    /// let no call go on. A sleep ends when there are more.
    pub fn ask_handled(&self) -> (u64, u64) {
        let cancels = u64::from(self.cancels.load(Ordering::SeqCst));
        let all = self.handled.load(Ordering::Relaxed) + cancels;
        // In this order: a handler that comes now is then counted as new.
        self.asked.store(all, Ordering::Relaxed);
        (all, self.handled_without_restart.load(Ordering::Relaxed) + cancels)
    }

    /// Whether there were any since [`Self::ask_handled`].
    pub fn handled_since_asked(&self) -> bool {
        compiler_fence(Ordering::SeqCst);
        let cancels = u64::from(self.cancels.load(Ordering::SeqCst));
        self.handled.load(Ordering::Relaxed) + cancels != self.asked.load(Ordering::Relaxed)
    }

    /// Changes with every event that ends a sleep.
    pub fn stir(&self) -> &AtomicU32 {
        &self.stir
    }

    /// Told before and after a sleep that only a signal ends.
    pub fn set_sleeper(&self, id: u32) {
        // SeqCst: `cancel` counts and then looks here, a sleeper says so here and then looks at
        // the count; one of them sees the other.
        self.sleeper.store(id, Ordering::SeqCst);
    }

    /// The thread that sleeps, see [`Self::set_sleeper`].
    pub fn sleeper(&self) -> Option<u32> {
        Some(self.sleeper.load(Ordering::SeqCst)).filter(|id| *id != 0)
    }

    /// The thread's id, asked for once.
    pub fn id_or(&self, ask: impl FnOnce() -> u32) -> u32 {
        match self.id.load(Ordering::Relaxed) {
            0 => {
                let id = ask();
                self.id.store(id, Ordering::Relaxed);
                id
            }
            id => id,
        }
    }

    /// Another thread wants to cancel this one: ends its sleep. Returns the id of a thread that
    /// needs a signal for that.
    pub fn cancel(&self) -> Option<u32> {
        self.cancels.fetch_add(1, Ordering::SeqCst);
        self.stir.fetch_add(1, Ordering::SeqCst);
        raw::futex_wake(&self.stir, u32::MAX);
        self.sleeper()
    }

    /// Whether there was a request to cancel since this was last asked.
    pub fn take_cancel(&self) -> bool {
        let cancels = self.cancels.load(Ordering::SeqCst);
        self.cancels_known.swap(cancels, Ordering::Relaxed) != cancels
    }
}
