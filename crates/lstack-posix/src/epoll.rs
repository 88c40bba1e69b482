//! `epoll_ctl` and `epoll_wait`.
//!
//! # One instance, two worlds
//!
//! The program's descriptor is a real kernel epoll from the beginning to the end. Kernel
//! descriptors are registered there by the kernel, with the program's own data; their events pass
//! straight through. With the first socket of ours that joins, the instance becomes ours as well
//! ([`Epoll`]) and gets a ready list for the sockets' stack sides. The placeholder of a socket that
//! is undecided, or lives in both worlds, is registered with the kernel too, and its event is
//! merged with that of the stack's side. Sockets change sides while registered
//! ([`Posix::socket_moved`]).
//!
//! # Whose data is it?
//!
//! The kernel returns 64 bits with each event, all of them the program's. Ours are told apart by a
//! key, 64 random bits per instance: a placeholder's data is the key combined with the number of
//! its registration (slot and generation), and our wake-up descriptors have two numbers of their
//! own. Data of the program is mistaken for ours only if, combined with the key, it names a slot in
//! use and one of its last generations. With a thousand sockets that is about one registration in
//! 10^11, the program can neither know nor steer it, and it costs one lost event.
//!
//! A hidden inner epoll for our descriptors would need a key for its own entry just the same, and a
//! second system call per event. Registering placeholders by hidden duplicates would keep a closed
//! listener's port bound wherever a child inherited them. By their real numbers, closing, `dup` and
//! reuse are handled by the kernel itself, exactly as ever.
//!
//! # Sleeping
//!
//! A thread that finds nothing spins for `app_spin_us`, driving the stacks itself in
//! run-to-completion mode, and then sleeps in the kernel's `epoll_wait` with an eventfd of ours
//! among the instance's descriptors. It announces its sleep under the ready list's lock together
//! with its last look, so an event is either seen by that look or sees the announcement; only then
//! is the eventfd written. While no thread sleeps there are no system calls but a look at the
//! kernel's side every 50 µs.
//!
//! # Watchers we were not told of
//!
//! The descriptor itself may be watched (an epoll in an epoll, `poll`, `select`), and threads may
//! have slept on it since before it became ours. For those a second eventfd stays readable while
//! the ready list is not empty. The same instance may have several descriptors that were duplicated
//! before it became ours ([`Posix::knows_epoll`] finds them by asking the kernel whether our
//! eventfd is registered there), and a real wait that began before hands its events to
//! [`Posix::sift`].

mod instance;
mod ready;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use lstack_config::StackThreadMode;
use parking_lot::Mutex;
use smallvec::SmallVec;

pub(crate) use instance::{Epoll, Membership};

use self::instance::{AskKernel, Numbers};
use self::ready::Interest;
use crate::description::{Description, Handle, Kind};
use crate::errno::Errno;
use crate::kernel::{EpollEvent, SigSet};
use crate::posix::{Outcome, Posix, Timeout};
use crate::wait::rest_a_moment;

/// The instances of a process that have become ours.
#[derive(Default)]
pub(crate) struct Epolls {
    /// How many there have been.
    generation: AtomicU64,
    /// Those that live, with their generation. Also held while one is made.
    adopted: Mutex<Vec<(u64, Weak<Description>)>>,
    /// Descriptors found not to be ours, as of a generation.
    foreign: Mutex<HashMap<RawFd, u64>>,
}

impl Posix {
    /// `epoll_ctl`. `event` is the caller's; `None` only for `EPOLL_CTL_DEL`.
    pub fn epoll_ctl(
        &self,
        epfd: RawFd,
        op: i32,
        fd: RawFd,
        event: Option<EpollEvent>,
    ) -> Outcome<()> {
        let Some(description) = self.table.get(fd) else { return Outcome::Kernel };
        if description.epoll().is_some() {
            return self.nest(epfd, op, &description);
        }
        let handle = Handle { fd, description };
        Outcome::Done(match (op, event) {
            (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None) => Err(Errno(libc::EFAULT)),
            (libc::EPOLL_CTL_ADD, Some(event)) => self.epoll_add(epfd, &handle, event),
            // Only the kernel's side can be registered elsewhere, and is not: it has the error.
            _ if !self.knows_epoll(epfd) => return Outcome::Kernel,
            (libc::EPOLL_CTL_MOD, Some(event)) => self.epoll_modify(epfd, &handle, event),
            (libc::EPOLL_CTL_DEL, _) => self.with_epoll(epfd, |epoll| epoll.delete(&handle)),
            _ => Err(Errno(libc::EINVAL)),
        })
    }

    /// `epoll_wait` and its kin.
    pub fn epoll_wait(
        &self,
        epfd: RawFd,
        events: &mut [EpollEvent],
        timeout: Timeout,
        mask: Option<&SigSet>,
    ) -> Outcome<usize> {
        if !self.knows_epoll(epfd) {
            return Outcome::Kernel;
        }
        if events.is_empty() {
            return Outcome::Done(Err(Errno(libc::EINVAL)));
        }
        Outcome::Done(self.with_epoll(epfd, |epoll| {
            let start = Instant::now();
            let deadline = timeout.and_then(|timeout| start.checked_add(timeout));
            let once = timeout.is_some_and(|timeout| timeout.is_zero());
            EpollWait { posix: self, epoll, start, deadline, mask }.run(events, once)
        }))
    }

    /// Whether `epfd` is one of ours, which includes descriptors that were duplicated before the
    /// instance became ours. Cheap while there is no instance of ours.
    ///
    /// A wait on any other descriptor is the kernel's. Since that may change while a thread sleeps
    /// in it, the caller lists the thread (see [`crate::Kernel::epoll_sleepers`]) *before* it asks
    /// here, and calls [`Self::sift`] afterwards.
    #[must_use]
    pub fn knows_epoll(&self, epfd: RawFd) -> bool {
        if self.table.knows(epfd) {
            return true;
        }
        let generation = self.epolls.generation.load(Ordering::SeqCst);
        if generation == 0 {
            return false;
        }
        let asked = self.epolls.foreign.lock().get(&epfd).copied().unwrap_or(0);
        if asked == generation {
            return false;
        }
        let candidates: SmallVec<[Arc<Description>; 4]> = {
            let adopted = self.epolls.adopted.lock();
            let later = adopted.iter().filter(|(generation, _)| *generation > asked);
            later.filter_map(|(_, description)| description.upgrade()).collect()
        };
        for description in candidates {
            if description.epoll().is_some_and(|epoll| epoll.is(epfd)) {
                self.table.insert(epfd, description);
                return true;
            }
        }
        self.epolls.foreign.lock().insert(epfd, generation);
        false
    }

    /// After a real wait on `epfd` gave `events`: if the instance has become ours meanwhile, turns
    /// them into the program's and drops those that are not. Returns how many there are; none means
    /// that the call is to be made again through [`Self::epoll_wait`] with the time that is left.
    pub fn sift(&self, epfd: RawFd, events: &mut [EpollEvent]) -> usize {
        if !self.knows_epoll(epfd) {
            return events.len();
        }
        let sifted = self.with_epoll(epfd, |epoll| {
            let from_kernel = epoll.ready.strip(events);
            Ok(epoll.ready.gather(events, from_kernel))
        });
        sifted.unwrap_or(events.len())
    }

    /// A socket has gone from one state to another: epoll instances and sleeping polls follow.
    ///
    /// Called with the socket's transition lock held, but no stack's.
    pub(crate) fn socket_moved(&self, handle: &Handle) {
        let socket = handle.socket();
        let memberships: SmallVec<[_; 2]> = {
            let memberships = socket.memberships.lock();
            let live = memberships.iter().filter_map(|m| Some((m.epoll.upgrade()?, m.key)));
            live.collect()
        };
        let id = handle.description.id;
        let refers = |fd| self.table.get(fd).is_some_and(|description| description.id == id);
        for (epoll, key) in memberships {
            epoll.moved(socket, key, Numbers { live: handle.fd, refers: &refers });
        }
        self.wake_polls();
    }

    /// An instance of ours joins another, or leaves it: a matter of the kernel's, but it must be
    /// readable from now on when it has something.
    fn nest(&self, epfd: RawFd, op: i32, inner: &Arc<Description>) -> Outcome<()> {
        let itself = self.table.get(epfd).is_some_and(|outer| Arc::ptr_eq(&outer, inner));
        if op == libc::EPOLL_CTL_ADD
            && !itself
            && let Some(epoll) = inner.epoll()
            && let Err(error) = epoll.watched_from_outside()
        {
            return Outcome::Done(Err(error));
        }
        Outcome::Kernel
    }

    fn epoll_add(&self, epfd: RawFd, handle: &Handle, event: EpollEvent) -> Result<(), Errno> {
        let EpollEvent { events, data } = event;
        self.adopt(epfd)?;
        if events & EXCLUSIVE != 0 && events & !EXCLUSIVE_ALLOWS != 0 {
            return Err(Errno(libc::EINVAL));
        }
        self.with_epoll(epfd, |epoll| epoll.add(handle, Interest { events, data }))
    }

    fn epoll_modify(&self, epfd: RawFd, handle: &Handle, event: EpollEvent) -> Result<(), Errno> {
        let EpollEvent { events, data } = event;
        if events & EXCLUSIVE != 0 {
            return Err(Errno(libc::EINVAL));
        }
        self.with_epoll(epfd, |epoll| epoll.modify(handle, Interest { events, data }))
    }

    fn with_epoll<T>(
        &self,
        epfd: RawFd,
        work: impl FnOnce(&Arc<Epoll>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let description = self.table.get(epfd).ok_or(Errno(libc::EBADF))?;
        // A socket is not an epoll instance.
        work(description.epoll().ok_or(Errno(libc::EINVAL))?)
    }

    /// Makes the instance behind `epfd` ours, if it is not yet.
    fn adopt(&self, epfd: RawFd) -> Result<(), Errno> {
        if self.knows_epoll(epfd) {
            return Ok(());
        }
        let mut adopted = self.epolls.adopted.lock();
        if self.table.knows(epfd) {
            return Ok(());
        }
        let alias = adopted.iter().filter_map(|(_, description)| description.upgrade());
        for description in alias {
            // Another thread may have adopted it by another number a moment ago.
            if description.epoll().is_some_and(|epoll| epoll.is(epfd)) {
                self.table.insert(epfd, description);
                return Ok(());
            }
        }
        let key = RandomState::new().build_hasher().finish();
        let epoll = Epoll::new(&self.kernel, epfd, key)?;
        let description = Description::new(Kind::Epoll(Arc::clone(&epoll)), false);
        self.table.insert(epfd, Arc::clone(&description));
        adopted.retain(|(_, description)| description.strong_count() > 0);
        let generation = self.epolls.generation.load(Ordering::SeqCst) + 1;
        adopted.push((generation, Arc::downgrade(&description)));
        self.epolls.generation.store(generation, Ordering::SeqCst);
        drop(adopted);
        self.find_outsiders(epfd, &epoll, &description)
    }

    /// Who watches or waits on the instance although it was the kernel's until now.
    fn find_outsiders(
        &self,
        epfd: RawFd,
        epoll: &Epoll,
        description: &Arc<Description>,
    ) -> Result<(), Errno> {
        let mut sleepers: SmallVec<[RawFd; 4]> = SmallVec::new();
        self.kernel.epoll_sleepers(&mut |fd| sleepers.push(fd));
        sleepers.sort_unstable();
        sleepers.dedup();
        for fd in sleepers {
            let alias = !self.table.knows(fd) && epoll.is(fd);
            if alias {
                self.table.insert(fd, Arc::clone(description));
            }
            if alias || fd == epfd {
                epoll.slept_on_outside(fd)?;
            }
        }
        if self.kernel.is_watched(epfd) {
            epoll.watched_from_outside()?;
        }
        Ok(())
    }
}

/// One call of `epoll_wait`.
struct EpollWait<'a> {
    posix: &'a Posix,
    epoll: &'a Epoll,
    start: Instant,
    deadline: Option<Instant>,
    mask: Option<&'a SigSet>,
}

impl EpollWait<'_> {
    fn run(&self, out: &mut [EpollEvent], once: bool) -> Result<usize, Errno> {
        let signals = self.posix.kernel.signals_seen().0;
        // Where all sockets are the kernel's, the sleep is the look.
        if once || self.epoll.has_stack_sockets() {
            let ask = if once { AskKernel::Always } else { AskKernel::WhenDue };
            self.drive();
            let count = self.epoll.look(out, self.start, ask);
            if count > 0 || once {
                return Ok(count);
            }
        }
        let _waiting = self.epoll.ready.waiting();
        if let Some(count) = self.spin(out, signals)? {
            return Ok(count);
        }
        self.sleep(out, signals)
    }

    /// In run-to-completion mode the waiting thread drives the stacks.
    fn drive(&self) {
        if self.epoll.has_stack_sockets() {
            for cell in self.posix.runtime.cells() {
                if self.epoll.concerns(cell.index()) {
                    cell.drive();
                }
            }
        }
    }

    fn spin(&self, out: &mut [EpollEvent], signals: u64) -> Result<Option<usize>, Errno> {
        let limit = self.posix.app_spin;
        // Only a sleep changes the signal mask atomically.
        if limit.is_zero() || self.mask.is_some() || !self.epoll.has_stack_sockets() {
            return Ok(None);
        }
        let drives = self.posix.drives();
        for turn in 1_u32.. {
            self.posix.kernel.safe_point();
            self.check_signals(signals)?;
            let now = Instant::now();
            let over = self.deadline.is_some_and(|deadline| now >= deadline);
            let ask = if over { AskKernel::Always } else { AskKernel::WhenDue };
            self.drive();
            let count = self.epoll.look(out, now, ask);
            if count > 0 || over {
                return Ok(Some(count));
            }
            if now.duration_since(self.start) >= limit {
                return Ok(None);
            }
            rest_a_moment(turn, drives);
        }
        Ok(None)
    }

    fn sleep(&self, out: &mut [EpollEvent], signals: u64) -> Result<usize, Errno> {
        loop {
            self.posix.kernel.safe_point();
            self.check_signals(signals)?;
            let left = self.deadline.map(|end| end.saturating_duration_since(Instant::now()));
            let count = self.epoll.ready.announce(out);
            if count > 0 {
                return Ok(count);
            }
            if self.epoll.has_stack_sockets() {
                self.posix.hand_over();
            }
            let result = self.epoll.ask_kernel(out, left, self.mask);
            let count = self.epoll.ready.awake(out, *result.as_ref().unwrap_or(&0));
            if count > 0 {
                return Ok(count);
            }
            result?;
            if left.is_some_and(|left| left.is_zero())
                || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
            {
                return Ok(0);
            }
        }
    }

    /// These calls are never restarted, see signal(7).
    fn check_signals(&self, before: u64) -> Result<(), Errno> {
        if self.posix.kernel.signals_seen().0 == before { Ok(()) } else { Err(Errno(libc::EINTR)) }
    }
}

impl Posix {
    /// Whether application threads drive the stacks.
    pub(crate) fn drives(&self) -> bool {
        let cell = self.runtime.cells().first();
        cell.is_some_and(|cell| cell.mode() == StackThreadMode::RunToCompletion)
    }

    /// The calling thread is about to sleep: driver threads take over.
    pub(crate) fn hand_over(&self) {
        // One speaks for all.
        if let Some(cell) = self.runtime.cells().first() {
            cell.hand_over();
        }
    }
}

/// `EPOLLEXCLUSIVE`, and what may be asked for together with it.
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE.cast_unsigned();
const EXCLUSIVE_ALLOWS: u32 = EXCLUSIVE
    | (libc::EPOLLIN
        | libc::EPOLLOUT
        | libc::EPOLLERR
        | libc::EPOLLHUP
        | libc::EPOLLWAKEUP
        | libc::EPOLLET)
        .cast_unsigned();

#[cfg(test)]
mod tests;
