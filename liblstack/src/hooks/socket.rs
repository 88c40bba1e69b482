//! Sockets: making, naming, connecting, options.

use std::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};
use lstack_posix::{Errno, Outcome, Posix};

use super::hooks;
use crate::abi::{self, Room};
use crate::entry::{self, Answer};
use crate::{start, thread};

hooks! {
    /// `socket(2)`: the first one of the internet families starts the stack.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        if is_for_the_stack(domain, kind) && !thread::with(thread::Thread::is_inside) {
            start::ensure();
            start::posix().filter(|_| start::accepts_this_thread()).and_then(|posix| {
                entry::with(posix, |posix| Ok(posix.socket(domain, kind, protocol)))
            })
        } else {
            None
        }
    }

    /// `bind(2)`.
    fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the caller's address.
        entry::on(fd, |posix| Ok(posix.bind(fd, unsafe { abi::address(addr, len) }?)))
    }

    /// `listen(2)`.
    fn listen(fd: c_int, backlog: c_int) -> c_int {
        entry::on(fd, |posix| Ok(posix.listen(fd, backlog)))
    }

    /// `accept(2)`.
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int, waits {
        // SAFETY: the caller's room.
        entry::on(fd, |posix| unsafe { accept_into(posix, fd, addr, len, 0) })
    }

    /// `accept4(2)`.
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int, waits {
        // SAFETY: the caller's room.
        entry::on(fd, |posix| unsafe { accept_into(posix, fd, addr, len, flags) })
    }

    /// `connect(2)`.
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int, waits {
        // SAFETY: the caller's address.
        entry::on(fd, |posix| Ok(posix.connect(fd, unsafe { abi::address(addr, len) }?)))
    }

    /// `getsockname(2)`.
    fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: the caller's room.
        entry::on(fd, |posix| unsafe {
            fill(addr.cast(), len, |room| posix.getsockname(fd, room))
        })
    }

    /// `getpeername(2)`.
    fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: the caller's room.
        entry::on(fd, |posix| unsafe {
            fill(addr.cast(), len, |room| posix.getpeername(fd, room))
        })
    }

    /// `getsockopt(2)`.
    fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int {
        // SAFETY: the caller's room.
        entry::on(fd, |posix| unsafe {
            fill(value, len, |room| posix.getsockopt(fd, level, name, room))
        })
    }

    /// `setsockopt(2)`.
    fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> c_int {
        entry::on(fd, |posix| {
            let len = usize::try_from(len as c_int).map_err(|_| Errno(libc::EINVAL))?;
            // SAFETY: the caller's value.
            Ok(posix.setsockopt(fd, level, name, unsafe { abi::bytes(value, len) }?))
        })
    }

    /// `shutdown(2)`.
    fn shutdown(fd: c_int, how: c_int) -> c_int {
        entry::on(fd, |posix| Ok(posix.shutdown(fd, how)))
    }
}

fn is_for_the_stack(domain: c_int, kind: c_int) -> bool {
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    matches!(domain, libc::AF_INET | libc::AF_INET6)
        && matches!(kind, libc::SOCK_STREAM | libc::SOCK_DGRAM)
}

/// # Safety
///
/// As for [`Room::optional`].
unsafe fn accept_into(
    posix: &Posix,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Answer<c_int> {
    // SAFETY: as the caller vouches.
    let room = unsafe { Room::optional(addr, len) }?;
    Ok(match posix.accept4(fd, room.bytes, flags) {
        Outcome::Done(Ok((accepted, full))) => {
            room.set_len(full);
            Outcome::Done(Ok(accepted))
        }
        Outcome::Done(Err(error)) => Outcome::Done(Err(error)),
        Outcome::Kernel => Outcome::Kernel,
    })
}

/// Calls for something of variable length.
///
/// # Safety
///
/// As for [`Room::new`].
unsafe fn fill(
    start: *mut c_void,
    len: *mut socklen_t,
    call: impl FnOnce(&mut [u8]) -> Outcome<usize>,
) -> Answer<()> {
    // SAFETY: as the caller vouches.
    let room = unsafe { Room::new(start, len) }?;
    Ok(match call(room.bytes) {
        Outcome::Done(Ok(full)) => {
            room.set_len(full);
            Outcome::Done(Ok(()))
        }
        Outcome::Done(Err(error)) => Outcome::Done(Err(error)),
        Outcome::Kernel => Outcome::Kernel,
    })
}
