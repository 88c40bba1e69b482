//! `poll` and `select`.
//!
//! A set is looked at without any lock: sockets of ours through their readiness words, the others,
//! and the placeholders of sockets that live in both worlds, with one `poll` of the kernel's that
//! does not wait. Only a thread that must sleep registers with the stacks. `select` is `poll` with
//! another idea of what counts.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lstack_core::{Protocol, Readiness};
use lstack_runtime::Watcher;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::description::{Description, Endpoint, Kind, State};
use crate::errno::Errno;
use crate::kernel::{PollFd, SigSet};
use crate::posix::{FdSet, Outcome, Posix, Timeout};
use crate::wait::{Waiter, rest_a_moment};

/// What `poll` and `epoll` call a socket's readiness: also by the names of System V.
pub(crate) fn linux_bits(readiness: Readiness, protocol: Protocol) -> u32 {
    let mut bits = readiness.bits();
    if readiness.contains(Readiness::READABLE) {
        bits |= short(libc::POLLRDNORM);
    }
    if readiness.contains(Readiness::WRITABLE) {
        bits |= short(libc::POLLWRNORM);
        if protocol == Protocol::Udp {
            bits |= short(libc::POLLWRBAND);
        }
    }
    bits
}

/// Polls that sleep on sockets which may still change sides.
#[derive(Default)]
pub(crate) struct Polls {
    /// How often a socket has.
    moves: AtomicU64,
    sleepers: Mutex<Vec<Arc<Waiter>>>,
}

impl Posix {
    /// `poll` and `ppoll`.
    pub fn poll(
        &self,
        fds: &mut [PollFd],
        timeout: Timeout,
        mask: Option<&SigSet>,
    ) -> Outcome<usize> {
        if !fds.iter().any(|entry| self.table.knows(entry.fd)) {
            return Outcome::Kernel;
        }
        let call = Call::new(self, timeout, mask);
        Outcome::Done(Set::new(self, fds, Rules::Poll).and_then(|mut set| call.run(&mut set)))
    }

    /// `select` and `pselect`. The sets change only when it succeeds.
    pub fn select(
        &self,
        nfds: usize,
        read: FdSet<'_>,
        write: FdSet<'_>,
        except: FdSet<'_>,
        timeout: Timeout,
        mask: Option<&SigSet>,
    ) -> Outcome<usize> {
        let mut sets = [read, write, except];
        let mut fds = entries(nfds, &sets);
        if !fds.iter().any(|entry| self.table.knows(entry.fd)) {
            return Outcome::Kernel;
        }
        let call = Call::new(self, timeout, mask);
        let done = Set::new(self, &mut fds, Rules::Select).and_then(|mut set| call.run(&mut set));
        Outcome::Done(done.map(|_| store(&fds, nfds, &mut sets)))
    }

    /// A socket has changed sides: whoever polls it looks again.
    pub(crate) fn wake_polls(&self) {
        self.polls.moves.fetch_add(1, Ordering::SeqCst);
        let sleepers = self.polls.sleepers.lock();
        for waiter in sleepers.iter() {
            waiter.nudge();
        }
    }
}

/// When an entry counts as ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    Poll,
    Select,
}

impl Rules {
    fn counts(self, entry: &PollFd) -> bool {
        match self {
            Self::Poll => entry.revents != 0,
            Self::Select => SELECT.iter().any(|(asked, means)| tells(entry, *asked, *means)),
        }
    }
}

/// The set of a call.
struct Set<'a> {
    posix: &'a Posix,
    fds: &'a mut [PollFd],
    rules: Rules,
    /// Sockets of ours, with their places in `fds`, ascending.
    ours: SmallVec<[(usize, Arc<Description>); 8]>,
    /// What the kernel is asked: foreign descriptors and placeholders.
    kernel: SmallVec<[PollFd; 8]>,
    /// Their places in `fds`.
    places: SmallVec<[usize; 8]>,
    /// One of ours may still change sides.
    movable: bool,
}

impl<'a> Set<'a> {
    fn new(posix: &'a Posix, fds: &'a mut [PollFd], rules: Rules) -> Result<Self, Errno> {
        let ours = fds.iter().enumerate().filter_map(|(place, entry)| {
            let description = posix.table.get(entry.fd)?;
            Some((place, description))
        });
        let ours: SmallVec<[_; 8]> = ours.collect();
        for (_, description) in &ours {
            if let Kind::Epoll(epoll) = &description.kind {
                epoll.watched_from_outside()?;
            }
        }
        let (kernel, places) = (SmallVec::new(), SmallVec::new());
        let mut set = Self { posix, fds, rules, ours, kernel, places, movable: false };
        set.ours.retain(|(_, description)| description.socket().is_some());
        set.sort_out();
        Ok(set)
    }

    /// Which entries the kernel is to be asked about, as the sockets stand now.
    fn sort_out(&mut self) {
        self.kernel.clear();
        self.places.clear();
        self.movable = false;
        let mut ours = self.ours.iter().peekable();
        for (place, entry) in self.fds.iter().enumerate() {
            if let Some((_, description)) = ours.next_if(|(our_place, _)| *our_place == place) {
                let Some(socket) = description.socket() else { continue };
                let state = socket.state();
                self.movable |= !matches!(**state, State::Connection(_) | State::Listener { .. });
                if !state.kernel_too() {
                    continue;
                }
            }
            if entry.fd >= 0 {
                self.kernel.push(PollFd { revents: 0, ..*entry });
                self.places.push(place);
            }
        }
    }

    /// Asks the kernel without waiting. `select` fails on descriptors that are not open.
    fn ask_kernel(&mut self) -> Result<(), Errno> {
        if self.kernel.is_empty() {
            return Ok(());
        }
        match self.posix.kernel.poll(&mut self.kernel, Some(Duration::ZERO), None) {
            Ok(_) => Ok(()),
            // Nothing was waited for: whether a handler ran is looked at elsewhere.
            Err(Errno(libc::EINTR)) => {
                self.forget_kernel();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn forget_kernel(&mut self) {
        for entry in &mut self.kernel {
            entry.revents = 0;
        }
    }

    /// Whether a socket of ours may have become ready.
    fn ours_stir(&self) -> bool {
        self.ours.iter().any(|(place, description)| {
            let entry =
                PollFd { revents: told(&self.fds[*place], description), ..self.fds[*place] };
            self.rules.counts(&entry)
        })
    }

    /// Fills in what holds now, with the kernel's last answer; returns how many entries count.
    fn fill(&mut self) -> usize {
        for entry in self.fds.iter_mut() {
            entry.revents = 0;
        }
        for (asked, place) in self.kernel.iter().zip(&self.places) {
            self.fds[*place].revents = asked.revents;
        }
        for (place, description) in &self.ours {
            let entry = &mut self.fds[*place];
            entry.revents |= told(entry, description);
        }
        self.fds.iter().filter(|entry| self.rules.counts(entry)).count()
    }

    /// The stack's side of the sockets.
    fn endpoints(&self) -> SmallVec<[Endpoint; 8]> {
        let mut endpoints = SmallVec::new();
        for (_, description) in &self.ours {
            if let Some(socket) = description.socket() {
                endpoints.extend(socket.state().endpoints().iter().cloned());
            }
        }
        endpoints
    }
}

/// One call of `poll` or `select`.
struct Call<'a> {
    posix: &'a Posix,
    start: Instant,
    deadline: Option<Instant>,
    once: bool,
    mask: Option<&'a SigSet>,
    signals: u64,
}

impl<'a> Call<'a> {
    fn new(posix: &'a Posix, timeout: Timeout, mask: Option<&'a SigSet>) -> Self {
        let start = Instant::now();
        let deadline = timeout.and_then(|timeout| start.checked_add(timeout));
        let once = timeout.is_some_and(|timeout| timeout.is_zero());
        Self { posix, start, deadline, once, mask, signals: posix.kernel.signals_seen().0 }
    }

    fn run(&self, set: &mut Set<'_>) -> Result<usize, Errno> {
        self.drive(set);
        set.ask_kernel()?;
        let closed = |entry: &PollFd| entry.revents & libc::POLLNVAL != 0;
        if set.rules == Rules::Select && set.kernel.iter().any(closed) {
            return Err(Errno(libc::EBADF));
        }
        let count = set.fill();
        if count > 0 || self.once {
            return Ok(count);
        }
        if let Some(count) = self.spin(set)? {
            return Ok(count);
        }
        self.sleep_watching(set)
    }

    /// In run-to-completion mode the waiting thread drives the stacks.
    fn drive(&self, set: &Set<'_>) {
        if set.ours.is_empty() || !self.posix.drives() {
            return;
        }
        for cell in self.posix.runtime.cells() {
            cell.drive();
        }
    }

    fn spin(&self, set: &mut Set<'_>) -> Result<Option<usize>, Errno> {
        let limit = self.posix.app_spin;
        // Only a sleep changes the signal mask atomically.
        if limit.is_zero() || self.mask.is_some() || set.ours.is_empty() {
            return Ok(None);
        }
        let drives = self.posix.drives();
        let mut asked = self.start;
        for turn in 1_u32.. {
            self.posix.kernel.safe_point();
            self.check_signals()?;
            self.drive(set);
            let now = Instant::now();
            let over = self.deadline.is_some_and(|deadline| now >= deadline);
            let ask = over || now.duration_since(asked) >= KERNEL_INTERVAL;
            if ask {
                asked = now;
                set.ask_kernel()?;
            }
            if ask && !set.kernel.is_empty() || set.ours_stir() {
                let count = set.fill();
                if count > 0 {
                    return Ok(Some(count));
                }
            }
            if over {
                return Ok(Some(0));
            }
            if now.duration_since(self.start) >= limit {
                return Ok(None);
            }
            rest_a_moment(turn, drives);
        }
        Ok(None)
    }

    fn sleep_watching(&self, set: &mut Set<'_>) -> Result<usize, Errno> {
        let waiter = self.posix.take_waiter();
        let listed = set.movable;
        if listed {
            self.posix.polls.sleepers.lock().push(Arc::clone(&waiter));
        }
        let result = loop {
            // Before the endpoints are looked up: a move after this is noticed.
            let moves = self.posix.polls.moves.load(Ordering::SeqCst);
            set.sort_out();
            let endpoints = set.endpoints();
            self.watch(&endpoints, &waiter);
            let result = self.sleep(set, &waiter, moves);
            self.unwatch(&endpoints, &waiter);
            if let Some(result) = result.transpose() {
                break result;
            }
        };
        if listed {
            self.posix.polls.sleepers.lock().retain(|other| !Arc::ptr_eq(other, &waiter));
        }
        self.posix.put_waiter(waiter);
        result
    }

    /// Sleeps until something counts; `None` when a socket has changed sides.
    fn sleep(
        &self,
        set: &mut Set<'_>,
        waiter: &Waiter,
        moves: u64,
    ) -> Result<Option<usize>, Errno> {
        let mut asleep = Vec::with_capacity(set.kernel.len() + 1);
        loop {
            let seen = waiter.sequence();
            let count = set.fill();
            if count > 0 {
                return Ok(Some(count));
            }
            if set.movable && self.posix.polls.moves.load(Ordering::SeqCst) != moves {
                return Ok(None);
            }
            self.posix.kernel.safe_point();
            self.check_signals()?;
            let mut left = self.deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Some(0));
            }
            if !set.ours.is_empty() {
                self.posix.hand_over();
            }
            asleep.clear();
            for entry in &set.kernel {
                // `poll` tells of hang-ups that `select` was not asked for: such an entry is left
                // out for a while.
                let mute = entry.revents != 0;
                asleep.push(PollFd { fd: if mute { !entry.fd } else { entry.fd }, ..*entry });
                if mute {
                    left = Some(left.map_or(MUTE, |left| left.min(MUTE)));
                }
            }
            let result = waiter.sleep(seen, &mut asleep, left, self.mask);
            for (entry, answer) in set.kernel.iter_mut().zip(&asleep) {
                entry.revents = if result.is_ok() { answer.revents } else { 0 };
            }
            if let Err(error) = result {
                let count = set.fill();
                return if count > 0 { Ok(Some(count)) } else { Err(error) };
            }
        }
    }

    fn watch(&self, endpoints: &[Endpoint], waiter: &Arc<Waiter>) {
        for cell in self.posix.runtime.cells() {
            let mut guard = None;
            for endpoint in endpoints.iter().filter(|endpoint| Arc::ptr_eq(&endpoint.cell, cell)) {
                let watcher = Arc::clone(waiter) as Arc<dyn Watcher>;
                guard.get_or_insert_with(|| cell.lock()).watch(endpoint.socket, watcher, 0);
            }
        }
    }

    fn unwatch(&self, endpoints: &[Endpoint], waiter: &Arc<Waiter>) {
        let watcher = Arc::clone(waiter) as Arc<dyn Watcher>;
        for cell in self.posix.runtime.cells() {
            let mut guard = None;
            for endpoint in endpoints.iter().filter(|endpoint| Arc::ptr_eq(&endpoint.cell, cell)) {
                guard.get_or_insert_with(|| cell.lock()).unwatch(endpoint.socket, &watcher, 0);
            }
        }
    }

    /// These calls are never restarted, see signal(7).
    fn check_signals(&self) -> Result<(), Errno> {
        let seen = self.posix.kernel.signals_seen().0;
        if seen == self.signals { Ok(()) } else { Err(Errno(libc::EINTR)) }
    }
}

/// What the stack's side of a socket answers to an entry.
fn told(entry: &PollFd, description: &Description) -> i16 {
    let Some(socket) = description.socket() else { return 0 };
    let bits = linux_bits(socket.stack_level(), socket.protocol);
    // All bits of `poll` fit; see the test.
    (bits as i16) & (entry.events | libc::POLLERR | libc::POLLHUP)
}

/// The sets of `select` as entries of `poll`.
fn entries(nfds: usize, sets: &[FdSet<'_>; 3]) -> SmallVec<[PollFd; 32]> {
    let mut fds = SmallVec::new();
    for index in 0..nfds.div_ceil(64) {
        let words = [0, 1, 2].map(|set| word(sets[set].as_deref(), index, nfds));
        let mut any = words[0] | words[1] | words[2];
        while any != 0 {
            let bit = any.trailing_zeros();
            any &= any - 1;
            let asked = SELECT.iter().zip(words).filter(|(_, word)| word >> bit & 1 != 0);
            let events = asked.fold(0, |events, ((asked, _), _)| events | asked);
            let fd = RawFd::try_from(index * 64 + bit as usize);
            fds.extend(fd.map(|fd| PollFd { fd, events, revents: 0 }));
        }
    }
    fds
}

/// A word of a set, without what lies beyond `nfds`.
fn word(set: Option<&[u64]>, index: usize, nfds: usize) -> u64 {
    let word = set.and_then(|set| set.get(index)).copied().unwrap_or(0);
    let left = nfds - index * 64;
    if left < 64 { word & ((1 << left) - 1) } else { word }
}

/// Writes the answers into the sets; returns how many there are.
fn store(fds: &[PollFd], nfds: usize, sets: &mut [FdSet<'_>; 3]) -> usize {
    let mut count = 0;
    for (set, (asked, means)) in sets.iter_mut().zip(SELECT) {
        let Some(set) = set else { continue };
        let words = nfds.div_ceil(64).min(set.len());
        set[..words].fill(0);
        for entry in fds.iter().filter(|entry| tells(entry, asked, means)) {
            let fd = entry.fd.unsigned_abs() as usize;
            set[fd / 64] |= 1 << (fd % 64);
            count += 1;
        }
    }
    count
}

fn tells(entry: &PollFd, asked: i16, means: i16) -> bool {
    entry.events & asked == asked && entry.revents & means != 0
}

/// A bit of `poll` where there is room for those of `epoll`.
fn short(bit: i16) -> u32 {
    u32::from(bit.cast_unsigned())
}

/// What each set of `select` asks of `poll`, and which answers put a descriptor into it (the
/// kernel's `POLLIN_SET`, `POLLOUT_SET` and `POLLEX_SET`).
const SELECT: [(i16, i16); 3] = [
    (READ, READ | libc::POLLHUP | libc::POLLERR),
    (WRITE, WRITE | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];
const READ: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;

/// How often the kernel's descriptors are looked at while the thread spins, see `epoll.rs`.
const KERNEL_INTERVAL: Duration = Duration::from_micros(50);

/// How long an entry that reports only what `select` was not asked for is left out of the sleep.
/// The case is rare (a pipe whose other end is gone, watched for writing), a delay of this length
/// harmless, and a hundred looks a second cost nothing.
const MUTE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
