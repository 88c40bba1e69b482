//! How a driver thread sleeps and is woken: an event count.
//!
//! The driver reads [`Doorbell::rings`], looks whether there is something to do, and if not sleeps
//! with that number; a ring in between makes the sleep return at once. Every thread may ring; the
//! driver alone sleeps.
//!
//! # Why no wake-up is lost
//!
//! A ringer (1) makes work visible, (2) adds to `rings`, (3) reads `sleep`. The driver (a) reads
//! `rings`, (b) looks for work, (c) writes `sleep`, (d) compares `rings` with what it read in (a):
//! the kernel does that for a futex, [`Doorbell::sleep_on_device`] does it itself. All of 2, 3, c
//! and d are sequentially consistent. If (3) misses the sleeper, then (c) comes after it, hence (d)
//! after (2), and the driver does not sleep. If (2) comes before (a), then (b) sees the work. In
//! the rest of the cases the ringer sees the sleeper and wakes it: with a futex wake, or through
//! the eventfd, which stays readable should the driver not have reached `poll` yet.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lstack_core::Instant;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use crate::clock;
use crate::lock;

/// How the driver sleeps; the values are bits, so that a ringer can name several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sleep(u32);

impl Sleep {
    const AWAKE: Self = Self(0);
    /// Application threads drive; the driver looks after them now and then.
    pub(crate) const STANDBY: Self = Self(1);
    /// Nothing to do; looks again when the time is over.
    pub(crate) const NAP: Self = Self(2);
    /// Nothing to do; the device's descriptor wakes it.
    pub(crate) const DEVICE: Self = Self(4);
    /// Every way to sleep.
    pub(crate) const ANY: Self = Self(7);

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// The bell of one driver. Plain words but for the eventfd, which belongs to the process.
#[derive(Debug, Default)]
pub(crate) struct Doorbell {
    rings: AtomicU32,
    /// A [`Sleep`].
    sleep: AtomicU32,
    /// When the sleep ends by itself, microseconds; means something only during one.
    until: AtomicU64,
    event: OnceLock<OwnedFd>,
}

/// What ended a sleep on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A ring, the time, or nothing in particular.
    Other,
    /// The device.
    ByDevice,
    /// The device's descriptor is no good (the program closed it): use it no more.
    DeviceLost,
}

impl Doorbell {
    /// Makes sleeping on a device possible.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub(crate) fn open_event(&self) -> Result<(), rustix::io::Errno> {
        let event = high(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        // Called once, before the driver starts; a second descriptor would just be closed.
        let _ = self.event.set(event);
        Ok(())
    }

    /// The eventfd, if there is one.
    pub(crate) fn event(&self) -> Option<BorrowedFd<'_>> {
        self.event.get().map(AsFd::as_fd)
    }

    /// The number of rings so far, for the sleep that follows.
    pub(crate) fn rings(&self) -> u32 {
        self.rings.load(Ordering::SeqCst)
    }

    /// Wakes the driver if it sleeps in one of `ways`. If it is about to sleep it will not.
    pub(crate) fn ring(&self, ways: Sleep) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        let sleep = Sleep(self.sleep.load(Ordering::SeqCst));
        if !sleep.overlaps(ways) {
            return;
        }
        if sleep == Sleep::DEVICE {
            if let Some(event) = self.event.get() {
                // Fails only when the counter is full: then it is readable already.
                let _ = rustix::io::write(event, &1u64.to_ne_bytes());
            }
        } else {
            lock::wake(&self.rings, 1);
        }
    }

    /// Rings if the driver would sleep idly beyond `deadline`, which has just been published.
    pub(crate) fn ring_before(&self, deadline: Instant) {
        let sleep = Sleep(self.sleep.load(Ordering::SeqCst));
        let idle = Sleep::NAP.or(Sleep::DEVICE);
        if sleep.overlaps(idle) && deadline.as_micros() < self.until.load(Ordering::SeqCst) {
            self.ring(idle);
        }
    }

    /// Whether the driver naps. A hint: it may have changed since.
    pub(crate) fn naps(&self) -> bool {
        Sleep(self.sleep.load(Ordering::Relaxed)) == Sleep::NAP
    }

    /// Sleeps until `until` or a ring after `seen`, unless `still` says no once the sleep is
    /// announced.
    pub(crate) fn sleep(
        &self,
        how: Sleep,
        seen: u32,
        until: Instant,
        still: impl FnOnce() -> bool,
    ) {
        self.announce(how, until);
        if still() {
            lock::wait(&self.rings, seen, Some(until - clock::now()));
        }
        self.sleep.store(Sleep::AWAKE.0, Ordering::SeqCst);
    }

    /// As [`Self::sleep`], also until `device` becomes readable.
    pub(crate) fn sleep_on_device(
        &self,
        device: BorrowedFd<'_>,
        seen: u32,
        until: Instant,
        still: impl FnOnce() -> bool,
    ) -> Woken {
        let Some(event) = self.event.get() else { return Woken::DeviceLost };
        self.announce(Sleep::DEVICE, until);
        let woken = if self.rings() == seen && still() {
            poll_two(device, event.as_fd(), until)
        } else {
            Woken::Other
        };
        self.sleep.store(Sleep::AWAKE.0, Ordering::SeqCst);
        woken
    }

    fn announce(&self, how: Sleep, until: Instant) {
        self.until.store(until.as_micros(), Ordering::SeqCst);
        self.sleep.store(how.0, Ordering::SeqCst);
    }
}

fn poll_two(device: BorrowedFd<'_>, event: BorrowedFd<'_>, until: Instant) -> Woken {
    let timeout = Timespec::try_from(until - clock::now()).ok();
    let mut fds = [
        PollFd::from_borrowed_fd(device, PollFlags::IN),
        PollFd::from_borrowed_fd(event, PollFlags::IN),
    ];
    if poll(&mut fds, timeout.as_ref()).is_err() {
        return Woken::Other;
    }
    let broken = PollFlags::NVAL | PollFlags::ERR | PollFlags::HUP;
    let [device, event_poll] = fds.map(|fd| fd.revents());
    if device.intersects(broken) || event_poll.intersects(broken) {
        return Woken::DeviceLost;
    }
    if event_poll.contains(PollFlags::IN) {
        // Empties the counter; nothing to read means another wake-up will come.
        let _ = rustix::io::read(event, &mut [0u8; 8]);
    }
    if device.contains(PollFlags::IN) { Woken::ByDevice } else { Woken::Other }
}

/// Moves a descriptor to a high number, out of the way of programs that expect low ones or close
/// them one by one. Stays where it is if there is no room.
pub(crate) fn high(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, HIGH_FD).unwrap_or(fd)
}

/// Below the usual limit of 1024 descriptors, above what most programs use.
pub(crate) const HIGH_FD: i32 = 960;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// A sleep this long means that a wake-up was lost.
    const FOREVER: Duration = Duration::from_secs(20);

    const ROUNDS: u64 = 20_000;

    /// Makes `ROUNDS` pieces of work one after the other; each is made while the driver is
    /// finishing the last one, or about to sleep, or asleep.
    fn work_is_always_found(bell: Doorbell, sleep: impl Fn(&Doorbell, u32) + Send + 'static) {
        let bell = Arc::new(bell);
        let made = Arc::new(AtomicU64::new(0));
        let done = Arc::new(AtomicU64::new(0));
        let driver = thread::spawn({
            let (bell, made, done) = (Arc::clone(&bell), Arc::clone(&made), Arc::clone(&done));
            move || {
                while done.load(Ordering::Relaxed) < ROUNDS {
                    let seen = bell.rings();
                    if made.load(Ordering::Relaxed) > done.load(Ordering::Relaxed) {
                        done.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    let before = clock::now();
                    sleep(&bell, seen);
                    assert!(clock::now() - before < FOREVER, "a ring was lost");
                }
            }
        });
        for round in 1..=ROUNDS {
            made.fetch_add(1, Ordering::Relaxed);
            bell.ring(Sleep::NAP.or(Sleep::DEVICE));
            // Of different lengths, so that rings meet the driver everywhere.
            for _ in 0..round % 50 {
                std::hint::spin_loop();
            }
            while round % 3 == 0 && done.load(Ordering::Relaxed) < round {
                if driver.is_finished() {
                    break;
                }
                thread::yield_now();
            }
        }
        driver.join().expect("no ring was lost");
    }

    #[test]
    fn no_ring_is_lost_by_a_napping_driver() {
        work_is_always_found(Doorbell::default(), |bell, seen| {
            bell.sleep(Sleep::NAP, seen, clock::now() + FOREVER, || true);
        });
    }

    #[test]
    fn no_ring_is_lost_by_a_driver_sleeping_on_a_device() {
        let bell = Doorbell::default();
        bell.open_event().expect("descriptors are left");
        let device = eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors are left");
        work_is_always_found(bell, move |bell, seen| {
            let until = clock::now() + FOREVER;
            let woken = bell.sleep_on_device(device.as_fd(), seen, until, || true);
            assert_eq!(woken, Woken::Other);
        });
    }

    #[test]
    fn readable_device_ends_the_sleep() {
        let bell = Doorbell::default();
        bell.open_event().expect("descriptors are left");
        let device = eventfd(1, EventfdFlags::CLOEXEC).expect("descriptors are left");
        let until = clock::now() + FOREVER;
        let woken = bell.sleep_on_device(device.as_fd(), bell.rings(), until, || true);
        assert_eq!(woken, Woken::ByDevice);
    }

    #[test]
    fn ring_for_another_way_to_sleep_still_prevents_the_next_sleep() {
        let bell = Doorbell::default();
        let seen = bell.rings();
        bell.ring(Sleep::STANDBY);
        let before = clock::now();
        bell.sleep(Sleep::NAP, seen, before + FOREVER, || true);
        assert!(clock::now() - before < FOREVER);
    }

    #[test]
    fn earlier_deadline_ends_an_announced_sleep() {
        let bell = Arc::new(Doorbell::default());
        let deadline = Arc::new(AtomicU64::new(u64::MAX));
        let driver = thread::spawn({
            let (bell, deadline) = (Arc::clone(&bell), Arc::clone(&deadline));
            move || {
                for round in 0..ROUNDS {
                    // Ends when the deadline of this round has been published.
                    while deadline.load(Ordering::SeqCst) != round {
                        let seen = bell.rings();
                        let until = clock::now() + FOREVER;
                        bell.sleep(Sleep::NAP, seen, until, || {
                            deadline.load(Ordering::SeqCst) != round
                        });
                        assert!(clock::now() < until, "a deadline was missed");
                    }
                    deadline.store(u64::MAX, Ordering::SeqCst);
                }
            }
        });
        for round in 0..ROUNDS {
            deadline.store(round, Ordering::SeqCst);
            bell.ring_before(Instant::from_micros(round));
            while deadline.load(Ordering::SeqCst) == round && !driver.is_finished() {
                thread::yield_now();
            }
        }
        driver.join().expect("no deadline was missed");
    }
}
