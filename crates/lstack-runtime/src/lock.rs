//! The lock of a stack: a mutex in plain words, over `futex(2)`.
//!
//! Taken by application threads inside their socket calls and by the driver thread. It holds no
//! pointer, thread id or descriptor and its futexes are not private, so it works in memory that
//! several processes share. It never allocates and calls no libc function.
//!
//! # Fairness
//!
//! A free lock goes to whoever comes first, which is fast but lets a thread that loops over
//! lock and unlock (the driver) keep everybody else out. So the driver unlocks with
//! [`lock_api::RawMutexFair::unlock_fair`]: if somebody waits, it stands back until one waiter got
//! in. A waiter that was woken and found the lock taken again asks the same of every holder.
//! Standing back is bounded, since the waiter may have been descheduled.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lock_api::{GuardNoSend, RawMutex, RawMutexFair, RawMutexTimed};
use rustix::thread::futex;

/// A mutex over [`FutexLock`].
pub(crate) type Mutex<T> = lock_api::Mutex<FutexLock, T>;

/// The held [`Mutex`].
pub(crate) type MutexGuard<'a, T> = lock_api::MutexGuard<'a, FutexLock, T>;

/// The words of the lock.
#[derive(Debug)]
pub(crate) struct FutexLock {
    /// [`FREE`], [`HELD`] or [`CONTENDED`].
    state: AtomicU32,
    /// Threads that wait, spinning or asleep.
    waiters: AtomicU32,
    /// How often a waiter got the lock; wraps.
    entries: AtomicU32,
    /// Waiters that were woken in vain and ask holders to stand back.
    impatient: AtomicU32,
}

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep on the word: the holder wakes one when it unlocks.
const CONTENDED: u32 = 2;

/// Looks at a held lock before sleeping. A burst takes a few microseconds, a sleep costs about
/// five; 100 pauses are 1-4 µs depending on the processor.
const SPINS: u32 = 100;

/// Looks before the processor is offered to others while standing back. A spinning waiter needs
/// one, a sleeping one a few microseconds.
const STAND_BACK_SPINS: u32 = 200;

/// Offers of the processor while standing back, about 0.3 µs each on an idle processor: together
/// longer than a wake-up takes on a virtual machine (20-50 µs).
const STAND_BACK_YIELDS: u32 = 200;

impl FutexLock {
    fn try_take(&self) -> bool {
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits for the lock, not beyond `deadline`; returns whether it is ours.
    #[cold]
    fn take_slow(&self, deadline: Option<Instant>) -> bool {
        // Before the state is made CONTENDED: an unlocker that sees CONTENDED sees us counted.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let mut impatient = false;
        let taken = self.spin() || self.sleep(deadline, &mut impatient);
        if impatient {
            self.impatient.fetch_sub(1, Ordering::Relaxed);
        }
        if taken {
            self.entries.fetch_add(1, Ordering::Release);
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        taken
    }

    fn spin(&self) -> bool {
        for _ in 0..SPINS {
            if self.state.load(Ordering::Relaxed) == FREE && self.try_take() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    fn sleep(&self, deadline: Option<Instant>, impatient: &mut bool) -> bool {
        let mut woken = false;
        // Taking the lock as CONTENDED although we may have been the only sleeper costs one
        // needless look at `waiters` in `unlock`; assuming HELD could leave another one asleep.
        while self.state.swap(CONTENDED, Ordering::AcqRel) != FREE {
            if woken && !*impatient {
                *impatient = true;
                self.impatient.fetch_add(1, Ordering::Relaxed);
            }
            let left = match deadline {
                None => None,
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    None | Some(Duration::ZERO) => return false,
                    left => left,
                },
            };
            woken = wait(&self.state, CONTENDED, left);
        }
        true
    }

    /// Lets a waiter in that had not entered when `entries` was read; bounded.
    #[cold]
    fn stand_back(&self, entries: u32) {
        let done = || {
            self.entries.load(Ordering::Acquire) != entries
                || self.waiters.load(Ordering::Relaxed) == 0
        };
        for _ in 0..STAND_BACK_SPINS {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
        for _ in 0..STAND_BACK_YIELDS {
            if done() {
                return;
            }
            rustix::thread::sched_yield();
        }
    }
}

#[allow(unsafe_code, reason = "implementing a lock for lock_api's guards is an unsafe promise")]
// SAFETY: the lock is exclusive. It is taken only by the step of `state` from FREE to another value
// (the compare-exchange in `try_take`, or a `swap` in `sleep` that returned FREE), which one thread
// makes, and FREE is stored only by `unlock`, whose caller holds it. Taking acquires what unlocking
// released.
unsafe impl RawMutex for FutexLock {
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "lock_api asks for this initial value"
    )]
    const INIT: Self = Self {
        state: AtomicU32::new(FREE),
        waiters: AtomicU32::new(0),
        entries: AtomicU32::new(0),
        impatient: AtomicU32::new(0),
    };

    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        if !self.try_take() {
            self.take_slow(None);
        }
    }

    fn try_lock(&self) -> bool {
        self.try_take()
    }

    unsafe fn unlock(&self) {
        let entries = self.entries.load(Ordering::Relaxed);
        if self.state.swap(FREE, Ordering::AcqRel) == CONTENDED
            && self.waiters.load(Ordering::SeqCst) > 0
        {
            wake(&self.state, 1);
            if self.impatient.load(Ordering::Relaxed) > 0 {
                self.stand_back(entries);
            }
        }
    }

    fn is_locked(&self) -> bool {
        self.state.load(Ordering::Relaxed) != FREE
    }
}

#[allow(unsafe_code, reason = "as for RawMutex")]
// SAFETY: `unlock_fair` stores FREE once, as `unlock` does, and touches nothing the lock protects
// afterwards.
unsafe impl RawMutexFair for FutexLock {
    unsafe fn unlock_fair(&self) {
        let entries = self.entries.load(Ordering::Relaxed);
        let before = self.state.swap(FREE, Ordering::AcqRel);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            if before == CONTENDED {
                wake(&self.state, 1);
            }
            self.stand_back(entries);
        }
    }
}

#[allow(unsafe_code, reason = "as for RawMutex")]
// SAFETY: both report the lock as taken only after `try_take` or `take_slow` took it.
unsafe impl RawMutexTimed for FutexLock {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_for(&self, timeout: Duration) -> bool {
        self.try_take() || self.take_slow(Some(Instant::now() + timeout))
    }

    fn try_lock_until(&self, timeout: Instant) -> bool {
        self.try_take() || self.take_slow(Some(timeout))
    }
}

/// Sleeps while `word` holds `expected`, at most `timeout`; returns whether somebody woke us. May
/// return early for no reason.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    let timeout = timeout.and_then(|left| rustix::time::Timespec::try_from(left).ok());
    // Errors are "the word changed", "a signal came" and "the time is over": the caller looks again
    // in every case.
    futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref()).is_ok()
}

/// Wakes up to `count` sleepers of [`wait`].
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    // Fails only for a bad address, which a reference is not.
    let _ = futex::wake(word, futex::Flags::empty(), count);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn many_threads_count_without_loss() {
        const THREADS: u64 = 8;
        const ROUNDS: u64 = 20_000;
        let counter = Arc::new(Mutex::new(0u64));
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                let counter = Arc::clone(&counter);
                thread::spawn(move || {
                    for round in 0..ROUNDS {
                        let mut guard = counter.lock();
                        *guard += 1;
                        // Both ways to unlock, and a try that may fail, mixed.
                        if (round + index) % 3 == 0 {
                            MutexGuard::unlock_fair(guard);
                        } else {
                            drop(guard);
                        }
                        drop(counter.try_lock());
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no counting thread panics");
        }
        assert_eq!(*counter.lock(), THREADS * ROUNDS);
    }

    #[test]
    fn waiters_get_in_while_a_driver_hammers_the_lock() {
        const WAITERS: usize = 4;
        const TURNS: u32 = 500;
        let lock = Arc::new(Mutex::new(0u64));
        let stop = Arc::new(AtomicBool::new(false));
        let driver = thread::spawn({
            let (lock, stop) = (Arc::clone(&lock), Arc::clone(&stop));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let mut guard = lock.lock();
                    *guard += 1;
                    MutexGuard::unlock_fair(guard);
                }
            }
        });
        let waiters: Vec<_> = (0..WAITERS)
            .map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    // How many bursts the driver made while this thread waited, summed.
                    let mut passed = 0;
                    for _ in 0..TURNS {
                        let before = *lock.lock();
                        passed += *lock.lock() - before;
                    }
                    passed
                })
            })
            .collect();
        for waiter in waiters {
            let passed = waiter.join().expect("no waiter panics");
            // Unfair locks show hundreds of thousands. The bound leaves room for the scheduler
            // taking the processor from a waiter now and then.
            assert!(passed < 1_000_000, "the driver made {passed} bursts in {TURNS} turns");
        }
        stop.store(true, Ordering::Relaxed);
        driver.join().expect("the driver does not panic");
    }

    #[test]
    fn timed_attempt_gives_up_and_leaves_the_lock_usable() {
        let lock = Mutex::new(());
        let held = lock.lock();
        assert!(lock.try_lock_for(Duration::from_millis(1)).is_none());
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock_for(Duration::from_millis(1)).is_some());
        assert!(lock.try_lock().is_some());
    }
}
