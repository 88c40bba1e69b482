//! Descriptors: flags, `ioctl`, copies, and closing many at once.
//!
//! A copy is made by the kernel first; the table then follows it with the same description.
//! `O_NONBLOCK` belongs to the description. The placeholder has it too, for the calls that reach it,
//! with two exceptions: a listener of both worlds never blocks in the kernel (see `socket.rs`),
//! and accepted connections share one placeholder that says nothing of any of them.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lstack_core::SocketId;
use lstack_runtime::Guard;

use crate::description::{Description, Endpoint, Handle, State};
use crate::errno::Errno;
use crate::fd_table::FdTable;
use crate::posix::{Outcome, Posix, ours};

impl Posix {
    /// `fcntl`. What concerns the descriptor alone, or signals, is the kernel's.
    pub fn fcntl(&self, fd: RawFd, command: i32, arg: usize) -> Outcome<i32> {
        let Some(description) = self.table.get(fd) else { return Outcome::Kernel };
        if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
            return Outcome::Done(self.copy(description, || self.kernel.fcntl(fd, command, arg)));
        }
        if description.socket().is_none() {
            return Outcome::Kernel;
        }
        let handle = Handle { fd, description };
        match command {
            libc::F_GETFL => Outcome::Done(self.flags(&handle)),
            // The flags are an int; the rest of the register is no part of them.
            libc::F_SETFL => Outcome::Done(self.set_flags(&handle, arg as i32)),
            _ => Outcome::Kernel,
        }
    }

    /// `ioctl`. `value`: the caller's int for requests that read or write one.
    pub fn ioctl(&self, fd: RawFd, request: u64, value: Option<&mut i32>) -> Outcome<i32> {
        let handle = ours!(self.socket_handle(fd));
        let Some(value) = value else { return Outcome::Kernel };
        let state = handle.socket().state();
        let answer = match request {
            libc::FIONBIO => {
                let on = *value != 0;
                let changed = self.flags(&handle).and_then(|flags| {
                    let rest = flags & !libc::O_NONBLOCK;
                    self.set_flags(&handle, if on { rest | libc::O_NONBLOCK } else { rest })
                });
                return Outcome::Done(changed);
            }
            // A signal for one would be a signal for all that share the placeholder.
            libc::FIOASYNC if shares_placeholder(&handle) => return Outcome::Done(Ok(0)),
            libc::FIONREAD => unread(&state),
            libc::TIOCOUTQ => of_stream(&state, |guard, socket| guard.stack().unacked(socket)),
            SIOCOUTQNSD => of_stream(&state, unsent),
            // The stack keeps urgent data in the stream, without a mark.
            SIOCATMARK => of_stream(&state, |_, _| 0),
            _ => return Outcome::Kernel,
        };
        match answer {
            None => Outcome::Kernel,
            Some(Ok(bytes)) => {
                *value = i32::try_from(bytes).unwrap_or(i32::MAX);
                Outcome::Done(Ok(0))
            }
            Some(Err(errno)) => Outcome::Done(Err(errno)),
        }
    }

    /// `dup`.
    pub fn dup(&self, fd: RawFd) -> Outcome<RawFd> {
        let Some(description) = self.table.get(fd) else { return Outcome::Kernel };
        Outcome::Done(self.copy(description, || self.kernel.dup(fd)))
    }

    /// `dup3`, and `dup2` (`flags` 0) unless both numbers are the same. What `new` was is closed.
    pub fn dup3(&self, old: RawFd, new: RawFd, flags: i32) -> Outcome<RawFd> {
        let description = self.table.get(old);
        if description.is_none() && !self.table.knows(new) {
            return Outcome::Kernel;
        }
        if description.is_some() && new >= 0 && !FdTable::can_hold(new) {
            // As if the limit of descriptors were there.
            return Outcome::Done(Err(Errno(libc::EBADF)));
        }
        let fd = match self.kernel.dup3(old, new, flags) {
            Ok(fd) => fd,
            Err(errno) => return Outcome::Done(Err(errno)),
        };
        // The number was taken all the time, so nobody else can have got it in between.
        let displaced = match description {
            Some(description) => self.table.insert(fd, description),
            None => self.table.remove(fd),
        };
        if let Some(displaced) = displaced {
            self.let_go(displaced);
        }
        Outcome::Done(Ok(fd))
    }

    /// Before the kernel closes `first..=last`: ours among them are given back. The real call
    /// is still to be made.
    pub fn close_range(&self, first: u32, last: u32, flags: i32) -> Outcome<()> {
        let known = libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC;
        let flags = flags.cast_unsigned();
        // Invalid, or only marks descriptors.
        if first > last || flags & !known != 0 || flags & libc::CLOSE_RANGE_CLOEXEC != 0 {
            return Outcome::Kernel;
        }
        for fd in self.table.numbers(first as usize, last as usize) {
            if let Some(description) = self.table.remove(fd) {
                self.let_go(description);
            }
        }
        Outcome::Kernel
    }

    /// One more number for `description`, which `copy` makes.
    fn copy(
        &self,
        description: Arc<Description>,
        copy: impl FnOnce() -> Result<RawFd, Errno>,
    ) -> Result<RawFd, Errno> {
        let fd = copy()?;
        if !FdTable::can_hold(fd) {
            let _ = self.kernel.close(fd);
            return Err(Errno(libc::EMFILE));
        }
        // A leftover means that somebody closed the number behind our back: its turn is over.
        if let Some(leftover) = self.table.insert(fd, description) {
            self.let_go(leftover);
        }
        Ok(fd)
    }

    fn flags(&self, handle: &Handle) -> Result<i32, Errno> {
        let flags = self.kernel.fcntl(handle.fd, libc::F_GETFL, 0)? & !libc::O_NONBLOCK;
        Ok(if handle.description.nonblocking() { flags | libc::O_NONBLOCK } else { flags })
    }

    fn set_flags(&self, handle: &Handle, flags: i32) -> Result<i32, Errno> {
        let socket = handle.socket();
        // A listener that comes into being sets the placeholder's flags as well.
        let _moving = socket.transition.lock();
        if !shares_placeholder(handle) {
            let must_not_block = matches!(&**socket.state(), State::Listener { kernel: true, .. });
            let for_kernel = if must_not_block { flags | libc::O_NONBLOCK } else { flags };
            let for_kernel = for_kernel.cast_unsigned() as usize;
            self.kernel.fcntl(handle.fd, libc::F_SETFL, for_kernel)?;
        }
        handle.description.set_nonblocking(flags & libc::O_NONBLOCK != 0);
        Ok(0)
    }
}

/// Whether the placeholder belongs to other connections as well.
fn shares_placeholder(handle: &Handle) -> bool {
    handle.socket().accepted.load(Ordering::Relaxed)
}

/// Bytes that can be read; of datagrams, those of the next. `None`: the kernel has the answer.
fn unread(state: &State) -> Option<Result<usize, Errno>> {
    let count = |endpoint: &Endpoint| endpoint.cell.enter().stack().unread(endpoint.socket);
    match state {
        State::Undecided(_) | State::Kernel => None,
        State::Listener { .. } => Some(Err(Errno(libc::EINVAL))),
        State::Connection(endpoint) => Some(Ok(count(endpoint))),
        State::Datagram { endpoint, kernel } => {
            let bytes = count(endpoint);
            (bytes > 0 || !kernel).then_some(Ok(bytes))
        }
    }
}

/// A number that only streams have.
fn of_stream(
    state: &State,
    count: impl FnOnce(&mut Guard<'_>, SocketId) -> usize,
) -> Option<Result<usize, Errno>> {
    match state {
        State::Undecided(_) | State::Kernel | State::Datagram { .. } => None,
        State::Listener { .. } => Some(Err(Errno(libc::EINVAL))),
        State::Connection(endpoint) => Some(Ok(count(&mut endpoint.cell.enter(), endpoint.socket))),
    }
}

/// Bytes of the send buffer that have not been sent once.
fn unsent(guard: &mut Guard<'_>, socket: SocketId) -> usize {
    let now = guard.now();
    let queued = guard.stack().unacked(socket);
    let sent = guard.stack().tcp_info(now, socket).map_or(0, |info| info.in_flight as usize);
    queued.saturating_sub(sent)
}

// Not in the `libc` crate: asm-generic/sockios.h, linux/sockios.h.
const SIOCATMARK: u64 = 0x8905;
const SIOCOUTQNSD: u64 = 0x894b;
