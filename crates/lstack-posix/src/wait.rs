//! Waiting: the one place where a call sleeps.
//!
//! # No lost wake-up
//!
//! A sleeper (1) registers its [`Waiter`] with every socket it waits for, (2) reads the waiter's
//! word, (3) tries its operation, (4) announces how it will sleep, (5) sleeps while the word is
//! still what (2) read. An event bumps the word and then looks at the announcement. If the event
//! comes before (3), the operation sees it; if after (2), the word differs at (5) and the sleep does
//! not begin or is ended by the waker, which saw the announcement because both sides use
//! sequentially consistent accesses.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lstack_config::StackThreadMode;
use lstack_core::{Event, Readiness};
use lstack_runtime::Watcher;

use crate::description::Endpoint;
use crate::errno::Errno;
use crate::kernel::{Kernel, PollFd, SigSet};
use crate::posix::Posix;

/// What a signal handler that ran means for a call, see signal(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// It goes on if every handler that ran was installed with `SA_RESTART`.
    IfAsked,
    /// It fails with `EINTR` (poll, epoll and select; socket calls with a timeout).
    Never,
}

/// What one call waits with.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'a> {
    /// When to give up; `None`: never.
    pub(crate) deadline: Option<Instant>,
    pub(crate) restart: Restart,
    /// Signal mask while asleep.
    pub(crate) mask: Option<&'a SigSet>,
}

/// Whom one try of an operation asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The stack, which costs no system call.
    Stack,
    /// The kernel's half of the socket as well, if it has one.
    Both,
}

/// Why a wait ended without the operation having succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The deadline passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// The object a thread sleeps on. Plain words; the descriptor is made when kernel descriptors are
/// first waited for together with sockets of ours.
pub(crate) struct Waiter {
    /// Bumped by every event.
    word: AtomicU32,
    /// How the owner sleeps: one of the constants below.
    sleeping: AtomicU32,
    eventfd: OnceLock<RawFd>,
    kernel: Arc<dyn Kernel>,
}

impl Waiter {
    pub(crate) fn new(kernel: Arc<dyn Kernel>) -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU32::new(0),
            sleeping: AtomicU32::new(AWAKE),
            eventfd: OnceLock::new(),
            kernel,
        })
    }

    /// Changes with every event.
    pub(crate) fn sequence(&self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }

    /// Sleeps until an event after `seen`, a ready descriptor of `kernel_fds`, a signal, or
    /// `timeout`. Whether a kernel descriptor is ready is in `kernel_fds`.
    pub(crate) fn sleep(
        &self,
        seen: u32,
        kernel_fds: &mut Vec<PollFd>,
        timeout: Option<Duration>,
        mask: Option<&SigSet>,
    ) -> Result<(), Errno> {
        if kernel_fds.is_empty() && mask.is_none() {
            self.sleeping.store(ON_FUTEX, Ordering::SeqCst);
            let result = self.kernel.futex_wait(&self.word, seen, timeout);
            self.sleeping.store(AWAKE, Ordering::SeqCst);
            return match result {
                Err(Errno(libc::EINTR)) => Err(Errno(libc::EINTR)),
                _ => Ok(()),
            };
        }
        let eventfd = self.eventfd()?;
        self.sleeping.store(ON_EVENTFD, Ordering::SeqCst);
        let result = if self.sequence() == seen {
            kernel_fds.push(PollFd { fd: eventfd, events: libc::POLLIN, revents: 0 });
            let result = self.kernel.poll(kernel_fds, timeout, mask);
            kernel_fds.pop();
            result
        } else {
            self.kernel.poll(kernel_fds, Some(Duration::ZERO), mask)
        };
        if self.sleeping.swap(AWAKE, Ordering::SeqCst) == SIGNALLED {
            let mut count = [0; 8];
            // The waker has written, or is about to: a later sleep may end early once, no more.
            let _ = self.kernel.read(eventfd, &mut count);
        }
        result.map(|_| ())
    }

    /// As an event: the owner looks again.
    pub(crate) fn nudge(&self) {
        self.word.fetch_add(1, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) != AWAKE {
            self.wake();
        }
    }

    fn eventfd(&self) -> Result<RawFd, Errno> {
        if let Some(&fd) = self.eventfd.get() {
            return Ok(fd);
        }
        let fd = self.kernel.eventfd()?;
        Ok(*self.eventfd.get_or_init(|| fd))
    }
}

impl Watcher for Waiter {
    fn on_event(&self, _token: u64, _event: &Event) -> bool {
        self.word.fetch_add(1, Ordering::SeqCst);
        self.sleeping.load(Ordering::SeqCst) != AWAKE
    }

    fn wake(&self) {
        if self.sleeping.load(Ordering::SeqCst) == ON_FUTEX {
            self.kernel.futex_wake(&self.word, 1);
        } else if self
            .sleeping
            .compare_exchange(ON_EVENTFD, SIGNALLED, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
            && let Some(&fd) = self.eventfd.get()
        {
            // An eventfd write of 1 fails only when the counter is full, and then it is readable.
            let _ = self.kernel.write(fd, &1_u64.to_ne_bytes());
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(&fd) = self.eventfd.get() {
            self.kernel.close_hidden(fd);
        }
    }
}

impl Posix {
    /// Tries `attempt` until it gives something, waiting for events of `endpoints` and for
    /// `kernel_fds` in between. `attempt` returns `None` while it would block; it asks the kernel
    /// only when told to.
    ///
    /// In run-to-completion mode the thread drives the stacks itself while it spins; registering
    /// with the sockets is put off until it must sleep, since most answers come sooner.
    pub(crate) fn wait_until<T>(
        &self,
        endpoints: &[Endpoint],
        interest: Readiness,
        kernel_fds: &[PollFd],
        patience: Patience<'_>,
        mut attempt: impl FnMut(Ask) -> Option<T>,
    ) -> Result<T, Ended> {
        let before = self.kernel.signals_seen();
        if let Some(done) =
            self.spin(endpoints, interest, kernel_fds, patience, before, &mut attempt)?
        {
            return Ok(done);
        }
        let waiter = self.take_waiter();
        self.watch(endpoints, &waiter);
        let result =
            self.sleep_until(endpoints, kernel_fds, patience, before, &waiter, &mut attempt);
        self.unwatch(endpoints, &waiter);
        self.put_waiter(waiter);
        result
    }

    fn spin<T>(
        &self,
        endpoints: &[Endpoint],
        interest: Readiness,
        kernel_fds: &[PollFd],
        patience: Patience<'_>,
        before: (u64, u64),
        attempt: &mut impl FnMut(Ask) -> Option<T>,
    ) -> Result<Option<T>, Ended> {
        // Only a sleeping call swaps a signal mask atomically; the kernel needs nobody to spin.
        if patience.mask.is_some() || self.app_spin.is_zero() || endpoints.is_empty() {
            return Ok(None);
        }
        let drives =
            endpoints.first().is_some_and(|e| e.cell.mode() == StackThreadMode::RunToCompletion);
        let start = Instant::now();
        let mut asked = start;
        for turn in 1_u32.. {
            for endpoint in endpoints {
                if drives {
                    endpoint.cell.drive();
                }
                if endpoint.ready.level().intersects(interest)
                    && let Some(done) = attempt(Ask::Stack)
                {
                    return Ok(Some(done));
                }
            }
            self.check_signals(patience, before)?;
            let now = Instant::now();
            if patience.deadline.is_some_and(|deadline| now >= deadline) {
                return attempt(Ask::Both).map(Some).ok_or(Ended::TimedOut);
            }
            if !kernel_fds.is_empty() && now.duration_since(asked) >= KERNEL_INTERVAL {
                asked = now;
                if let Some(done) = attempt(Ask::Both) {
                    return Ok(Some(done));
                }
            }
            if now.duration_since(start) >= self.app_spin {
                return Ok(None);
            }
            rest_a_moment(turn, drives);
        }
        Ok(None)
    }

    fn sleep_until<T>(
        &self,
        endpoints: &[Endpoint],
        kernel_fds: &[PollFd],
        patience: Patience<'_>,
        before: (u64, u64),
        waiter: &Waiter,
        attempt: &mut impl FnMut(Ask) -> Option<T>,
    ) -> Result<T, Ended> {
        let mut fds = Vec::with_capacity(kernel_fds.len() + 1);
        loop {
            let seen = waiter.sequence();
            if let Some(done) = attempt(Ask::Both) {
                return Ok(done);
            }
            self.check_signals(patience, before)?;
            let timeout = match patience.deadline {
                None => None,
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Ended::TimedOut);
                    }
                    Some(left)
                }
            };
            for endpoint in endpoints {
                endpoint.cell.hand_over();
            }
            fds.clear();
            fds.extend_from_slice(kernel_fds);
            if waiter.sleep(seen, &mut fds, timeout, patience.mask).is_err() {
                self.interrupted(patience, before)?;
            }
        }
    }

    /// Handlers that were put off run now; fails if one of them ends the call.
    fn check_signals(&self, patience: Patience<'_>, before: (u64, u64)) -> Result<(), Ended> {
        self.kernel.safe_point();
        self.interrupted(patience, before)
    }

    fn interrupted(&self, patience: Patience<'_>, before: (u64, u64)) -> Result<(), Ended> {
        let after = self.kernel.signals_seen();
        let ends = match patience.restart {
            Restart::IfAsked => after.1 != before.1,
            Restart::Never => after.0 != before.0,
        };
        if ends { Err(Ended::Interrupted) } else { Ok(()) }
    }

    fn watch(&self, endpoints: &[Endpoint], waiter: &Arc<Waiter>) {
        for endpoint in endpoints {
            endpoint.cell.lock().watch(endpoint.socket, Arc::clone(waiter) as Arc<dyn Watcher>, 0);
        }
    }

    fn unwatch(&self, endpoints: &[Endpoint], waiter: &Arc<Waiter>) {
        let watcher = Arc::clone(waiter) as Arc<dyn Watcher>;
        for endpoint in endpoints {
            endpoint.cell.lock().unwatch(endpoint.socket, &watcher, 0);
        }
    }

    /// A waiter from the pool: its descriptor, once made, is used again.
    pub(crate) fn take_waiter(&self) -> Arc<Waiter> {
        self.waiters.lock().pop().unwrap_or_else(|| Waiter::new(Arc::clone(&self.kernel)))
    }

    pub(crate) fn put_waiter(&self, waiter: Arc<Waiter>) {
        let mut pool = self.waiters.lock();
        if pool.len() < WAITERS_KEPT {
            pool.push(waiter);
        }
    }
}

const AWAKE: u32 = 0;
const ON_FUTEX: u32 = 1;
const ON_EVENTFD: u32 = 2;
const SIGNALLED: u32 = 3;

/// A spinning thread asks the kernel's half of a socket this often: an estimate, not
/// tuned: well below what a sleep and a wake-up would take.
const KERNEL_INTERVAL: Duration = Duration::from_micros(20);

/// Ends a turn of a spin. The thread lets others run now and then: the peer that is to answer may
/// be waiting for this very processor.
pub(crate) fn rest_a_moment(turn: u32, drives: bool) {
    if turn.is_multiple_of(TURNS_PER_YIELD) {
        std::thread::yield_now();
    } else if !drives {
        std::hint::spin_loop();
    }
}

/// Some microseconds of spinning, by estimate: rare enough not to slow the spin itself.
const TURNS_PER_YIELD: u32 = 32;

/// Idle waiters kept for later calls; each may hold one hidden descriptor.
const WAITERS_KEPT: usize = 32;
