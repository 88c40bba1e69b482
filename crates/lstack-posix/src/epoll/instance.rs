//! One epoll instance with sockets of ours in it, and what is registered in it.
//!
//! Registrations change under the control lock, which is taken before any stack's lock and never
//! inside one. The ready list has a lock of its own, inside the stacks'.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use lstack_runtime::Watcher;
use parking_lot::Mutex;

use super::ready::{Claim, Interest, Ready, Token, Words};
use crate::description::{Endpoints, Handle, Socket, State};
use crate::errno::Errno;
use crate::kernel::{EpollEvent, Kernel, SigSet};

/// An epoll instance.
pub(crate) struct Epoll {
    kernel: Arc<dyn Kernel>,
    /// A hidden duplicate of the program's descriptor: numbers of the program may be closed and
    /// used again at any time.
    fd: RawFd,
    pub(super) ready: Arc<Ready>,
    control: Mutex<HashMap<Key, Registration>>,
    /// Registrations with a side in a stack.
    in_stack: AtomicUsize,
    /// Stacks that have had a socket here, by index; the last bit stands for all from 63 on.
    stacks: AtomicU64,
    /// When the kernel was last asked, microseconds after `made`.
    asked: AtomicU64,
    made: Instant,
    /// Who chooses first when there is not room for all.
    kernel_first: AtomicBool,
}

/// What a socket keeps of an epoll instance that watches it.
pub(crate) struct Membership {
    pub(super) epoll: Weak<Epoll>,
    pub(super) key: Key,
    claim: Option<Claim>,
}

/// As for the kernel: a descriptor number together with what it referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) fd: RawFd,
    description: u64,
}

struct Registration {
    token: Token,
    interest: Interest,
    /// Watched on the stack's side.
    endpoints: Endpoints,
    /// The number by which the placeholder is registered with the kernel.
    in_kernel: Option<RawFd>,
}

/// When [`Epoll::look`] asks the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskKernel {
    /// If it was not asked for a while.
    WhenDue,
    /// Also when there is nothing else.
    Always,
}

/// The numbers of a socket.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'a> {
    /// One that refers to it.
    pub(super) live: RawFd,
    /// Whether another does.
    pub(super) refers: &'a dyn Fn(RawFd) -> bool,
}

impl Epoll {
    /// Makes ours of the instance that `epfd` refers to; fails as `epoll_ctl` does on anything
    /// else.
    pub(super) fn new(kernel: &Arc<dyn Kernel>, epfd: RawFd, key: u64) -> Result<Arc<Self>, Errno> {
        let ready = Ready::new(Arc::clone(kernel), key)?;
        let epoll = Arc::new(Self {
            kernel: Arc::clone(kernel),
            fd: kernel.dup_hidden(epfd)?,
            ready,
            control: Mutex::default(),
            in_stack: AtomicUsize::new(0),
            stacks: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            made: Instant::now(),
            kernel_first: AtomicBool::new(false),
        });
        let (wake, event) = epoll.ready.wake_entry();
        kernel.epoll_ctl(epoll.fd, libc::EPOLL_CTL_ADD, wake, event)?;
        Ok(epoll)
    }

    /// Whether `epfd` refers to this instance.
    pub(super) fn is(&self, epfd: RawFd) -> bool {
        let (wake, event) = self.ready.wake_entry();
        // Only here is our descriptor registered; elsewhere there is nothing to modify.
        self.kernel.epoll_ctl(epfd, libc::EPOLL_CTL_MOD, wake, event).is_ok()
    }

    /// The descriptor is about to be watched by another epoll, poll or select.
    pub(crate) fn watched_from_outside(&self) -> Result<(), Errno> {
        self.open_level()?;
        self.ready.watched_from_outside();
        Ok(())
    }

    /// A thread sleeps on `fd`, this instance, since before it was ours.
    pub(super) fn slept_on_outside(&self, fd: RawFd) -> Result<(), Errno> {
        self.open_level()?;
        self.ready.slept_on_outside(fd);
        Ok(())
    }

    fn open_level(&self) -> Result<(), Errno> {
        let _control = self.control.lock();
        if let Some((level, event)) = self.ready.level_entry()? {
            self.kernel.epoll_ctl(self.fd, libc::EPOLL_CTL_ADD, level, event)?;
        }
        Ok(())
    }

    /// `EPOLL_CTL_ADD` of a socket of ours.
    pub(super) fn add(self: &Arc<Self>, handle: &Handle, interest: Interest) -> Result<(), Errno> {
        let socket = handle.socket();
        let key = Key::of(handle);
        let mut control = self.control.lock();
        if control.contains_key(&key) {
            return Err(Errno(libc::EEXIST));
        }
        let exclusive = interest.events & EXCLUSIVE != 0;
        // In this order: a transition after the membership is entered moves the registration, one
        // before it is seen in the state.
        let claim = self.join(socket, key, exclusive);
        let added = self.ready.insert(interest, socket.protocol, claim).and_then(|token| {
            let endpoints = Endpoints::new();
            let mut registration = Registration { token, interest, endpoints, in_kernel: None };
            let numbers = Numbers { live: handle.fd, refers: &|_| true };
            match self.settle(&mut registration, key.fd, &socket.state(), numbers) {
                Ok(()) => Ok(registration),
                Err(error) => {
                    self.ready.remove(token);
                    Err(error)
                }
            }
        });
        match added {
            Ok(registration) => {
                let token = registration.token;
                control.insert(key, registration);
                drop(control);
                self.ready.reconsider(token);
                Ok(())
            }
            Err(error) => {
                self.leave(socket, key);
                Err(error)
            }
        }
    }

    /// `EPOLL_CTL_MOD` of a socket of ours.
    pub(super) fn modify(&self, handle: &Handle, interest: Interest) -> Result<(), Errno> {
        let mut control = self.control.lock();
        let registration = control.get_mut(&Key::of(handle)).ok_or(Errno(libc::ENOENT))?;
        if registration.interest.events & EXCLUSIVE != 0 {
            return Err(Errno(libc::EINVAL));
        }
        registration.interest = interest;
        let token = registration.token;
        self.ready.modify(token, interest);
        if let Some(fd) = registration.in_kernel {
            let event = self.kernel_event(registration);
            self.kernel.epoll_ctl(self.fd, libc::EPOLL_CTL_MOD, fd, event)?;
        }
        drop(control);
        self.ready.reconsider(token);
        Ok(())
    }

    /// `EPOLL_CTL_DEL` of a socket of ours.
    pub(super) fn delete(&self, handle: &Handle) -> Result<(), Errno> {
        let key = Key::of(handle);
        let mut control = self.control.lock();
        let mut registration = control.remove(&key).ok_or(Errno(libc::ENOENT))?;
        self.ready.remove(registration.token);
        self.unwatch(&mut registration);
        self.leave(handle.socket(), key);
        if let Some(fd) = registration.in_kernel {
            let event = self.kernel_event(&registration);
            self.kernel.epoll_ctl(self.fd, libc::EPOLL_CTL_DEL, fd, event)?;
        }
        Ok(())
    }

    /// The socket has gone from one state to another.
    pub(super) fn moved(&self, socket: &Socket, key: Key, numbers: Numbers<'_>) {
        let mut control = self.control.lock();
        let Some(registration) = control.get_mut(&key) else { return };
        if let Err(error) = self.settle(registration, key.fd, &socket.state(), numbers) {
            log::warn!("epoll: descriptor {} could not follow its socket: {}", key.fd, error.0);
        }
        let token = registration.token;
        drop(control);
        self.ready.reconsider(token);
    }

    /// The socket is gone. The kernel and the stacks drop their side by themselves.
    fn forget(&self, key: Key) {
        if let Some(registration) = self.control.lock().remove(&key) {
            self.ready.remove(registration.token);
            self.count_in_stack(&registration.endpoints, &[]);
        }
    }

    fn join(self: &Arc<Self>, socket: &Socket, key: Key, exclusive: bool) -> Option<Claim> {
        let mut memberships = socket.memberships.lock();
        // Those of instances that have been closed.
        memberships.retain(|membership| membership.epoll.strong_count() > 0);
        let claim = exclusive
            .then(|| memberships.iter().find_map(|other| other.claim.clone()).unwrap_or_default());
        let epoll = Arc::downgrade(self);
        memberships.push(Membership { epoll, key, claim: claim.clone() });
        claim
    }

    fn leave(&self, socket: &Socket, key: Key) {
        socket.memberships.lock().retain(|membership| {
            membership.key != key || !std::ptr::eq(membership.epoll.as_ptr(), self)
        });
    }

    /// Watches what a socket in this state consists of, and nothing else.
    fn settle(
        &self,
        registration: &mut Registration,
        number: RawFd,
        state: &State,
        numbers: Numbers<'_>,
    ) -> Result<(), Errno> {
        if state.kernel_too() && registration.in_kernel.is_none() {
            let fd = if (numbers.refers)(number) { number } else { numbers.live };
            let event = self.kernel_event(registration);
            self.kernel.epoll_ctl(self.fd, libc::EPOLL_CTL_ADD, fd, event)?;
            registration.in_kernel = Some(fd);
        }
        if !same(&registration.endpoints, state) {
            self.unwatch(registration);
            self.watch(registration, state);
        }
        if !state.kernel_too()
            && let Some(fd) = registration.in_kernel.take()
        {
            self.leave_kernel(fd, numbers)?;
        }
        Ok(())
    }

    fn watch(&self, registration: &mut Registration, state: &State) {
        let token = registration.token;
        let endpoints: Endpoints = state.endpoints().iter().cloned().collect();
        let words: Words = endpoints.iter().map(|endpoint| Arc::clone(&endpoint.ready)).collect();
        self.ready.set_words(token, words);
        for (index, endpoint) in endpoints.iter().enumerate() {
            let bit = endpoint.cell.index().min(63);
            self.stacks.fetch_or(1 << bit, Ordering::Relaxed);
            let watcher = Arc::clone(&self.ready) as Arc<dyn Watcher>;
            endpoint.cell.lock().watch(endpoint.socket, watcher, token.of_endpoint(index));
        }
        self.count_in_stack(&[], &endpoints);
        registration.endpoints = endpoints;
    }

    fn unwatch(&self, registration: &mut Registration) {
        let watcher = Arc::clone(&self.ready) as Arc<dyn Watcher>;
        let endpoints = std::mem::take(&mut registration.endpoints);
        for (index, endpoint) in endpoints.iter().enumerate() {
            let token = registration.token.of_endpoint(index);
            endpoint.cell.lock().unwatch(endpoint.socket, &watcher, token);
        }
        self.count_in_stack(&endpoints, &[]);
    }

    fn count_in_stack<T>(&self, before: &[T], after: &[T]) {
        match (before.is_empty(), after.is_empty()) {
            (true, false) => self.in_stack.fetch_add(1, Ordering::Relaxed),
            (false, true) => self.in_stack.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }

    fn leave_kernel(&self, fd: RawFd, numbers: Numbers<'_>) -> Result<(), Errno> {
        let event = EpollEvent { events: 0, data: 0 };
        if (numbers.refers)(fd) {
            return self.kernel.epoll_ctl(self.fd, libc::EPOLL_CTL_DEL, fd, event);
        }
        // The number was closed while another refers to the socket. The kernel knows the
        // registration by the number only, so it is borrowed. If it is in use by now, the
        // registration stays until the socket is closed; its events are dropped.
        let from = usize::try_from(fd).map_err(|_| Errno(libc::EBADF))?;
        let borrowed = self.kernel.fcntl(numbers.live, libc::F_DUPFD_CLOEXEC, from)?;
        let result = if borrowed == fd {
            self.kernel.epoll_ctl(self.fd, libc::EPOLL_CTL_DEL, fd, event)
        } else {
            Err(Errno(libc::EBUSY))
        };
        self.kernel.close(borrowed)?;
        result
    }

    fn kernel_event(&self, registration: &Registration) -> EpollEvent {
        let Registration { token, interest, .. } = registration;
        EpollEvent { events: interest.events, data: self.ready.kernel_data(*token) }
    }

    /// Whether a socket here has a side in a stack.
    pub(super) fn has_stack_sockets(&self) -> bool {
        self.in_stack.load(Ordering::Relaxed) > 0
    }

    /// Whether a socket of stack `index` has been here.
    pub(super) fn concerns(&self, index: usize) -> bool {
        self.stacks.load(Ordering::Relaxed) & (1 << index.min(63)) != 0
    }

    /// Collects what is ready now, of both worlds.
    pub(super) fn look(&self, out: &mut [EpollEvent], now: Instant, ask: AskKernel) -> usize {
        let queued = self.ready.queued();
        let elapsed = micros(now.duration_since(self.made));
        let due = elapsed.saturating_sub(self.asked.load(Ordering::Relaxed)) >= KERNEL_INTERVAL;
        if queued == 0 && !due && ask == AskKernel::WhenDue {
            return 0;
        }
        let mut room = 0;
        if due || queued == 0 {
            // Half of the room at least, and what the stack's sockets leave; the odd place goes to
            // either in turn.
            let first = self.kernel_first.fetch_xor(true, Ordering::Relaxed);
            let half = if first { out.len().div_ceil(2) } else { out.len() / 2 };
            room = half.max(out.len().saturating_sub(queued));
        }
        let from_kernel = self.peek(&mut out[..room], elapsed);
        let count = self.ready.gather(out, from_kernel);
        if count > 0 || room > 0 || ask == AskKernel::WhenDue {
            return count;
        }
        // What was queued is not ready any more.
        let from_kernel = self.peek(out, elapsed);
        self.ready.gather(out, from_kernel)
    }

    fn peek(&self, out: &mut [EpollEvent], now: u64) -> usize {
        if out.is_empty() {
            return 0;
        }
        self.asked.store(now, Ordering::Relaxed);
        self.ask_kernel(out, Some(Duration::ZERO), None).unwrap_or(0)
    }

    /// The kernel's events, without our own wake-ups and still to be translated by the ready list.
    pub(super) fn ask_kernel(
        &self,
        out: &mut [EpollEvent],
        timeout: Option<Duration>,
        mask: Option<&SigSet>,
    ) -> Result<usize, Errno> {
        let mut count = self.kernel.epoll_wait(self.fd, out, timeout, mask)?;
        let mut kept = self.ready.strip(&mut out[..count]);
        for _ in 0..WAKE_UPS {
            // A wake-up took the place of an event: there may be more.
            if kept > 0 || count < out.len() {
                break;
            }
            count = self.kernel.epoll_wait(self.fd, out, Some(Duration::ZERO), None).unwrap_or(0);
            kept = self.ready.strip(&mut out[..count]);
        }
        Ok(kept)
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        let control = std::mem::take(self.control.get_mut());
        for mut registration in control.into_values() {
            self.unwatch(&mut registration);
        }
        self.kernel.close_hidden(self.fd);
    }
}

impl Membership {
    /// The socket is gone: no event of it is told any more.
    pub(crate) fn remove(self) {
        if let Some(epoll) = self.epoll.upgrade() {
            epoll.forget(self.key);
        }
    }
}

impl Key {
    fn of(handle: &Handle) -> Self {
        Self { fd: handle.fd, description: handle.description.id }
    }
}

/// Whether these are the endpoints of a socket in this state.
fn same(endpoints: &Endpoints, state: &State) -> bool {
    let others = state.endpoints();
    endpoints.len() == others.len()
        && endpoints
            .iter()
            .zip(others)
            .all(|(one, other)| one.socket == other.socket && Arc::ptr_eq(&one.cell, &other.cell))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// `EPOLLEXCLUSIVE`.
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE.cast_unsigned();

/// While sockets of the stack keep a thread busy, or it spins, the kernel's descriptors are looked
/// at this often, microseconds. A look costs some 0.3 µs, so this spends under 1 % on them and
/// delays them by far less than a scheduler does.
const KERNEL_INTERVAL: u64 = 50;

/// Our own descriptors in the kernel's instance.
const WAKE_UPS: usize = 2;
