//! Descriptors: flags, copies, closing.
//!
//! The place of `fdopen` too, once streams over sockets of the stack are supported.

use std::ffi::{c_int, c_uint, c_ulong};

use lstack_posix::{Errno, Outcome};

use super::hooks;
use crate::abi;
use crate::entry::{self, Answer};
use crate::{foreign_epoll, hidden, raw, start};

hooks! {
    /// `fcntl(2)`: its third argument, whatever its type, comes in the same register.
    fn fcntl(fd: c_int, command: c_int, arg: usize) -> c_int {
        entry::on_table([fd; 2], |posix| Ok(posix.fcntl(fd, command, arg)))
    }

    /// `fcntl`, from a program built for large files.
    fn fcntl64(fd: c_int, command: c_int, arg: usize) -> c_int {
        entry::on_table([fd; 2], |posix| Ok(posix.fcntl(fd, command, arg)))
    }

    /// `ioctl(2)`.
    fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
        entry::on(fd, |posix| {
            let value = if takes_int(request) {
                // SAFETY: for these requests the caller passes the address of an int.
                Some(unsafe { abi::in_out(arg as *mut c_int) }?)
            } else {
                None
            };
            Ok(posix.ioctl(fd, request, value))
        })
    }

    /// `dup(2)`.
    fn dup(fd: c_int) -> c_int {
        entry::on_table([fd; 2], |posix| Ok(posix.dup(fd)))
    }

    /// `dup2(2)`.
    fn dup2(old: c_int, new: c_int) -> c_int {
        spared(new).or_else(|| {
            entry::on_table([old, new], |posix| {
                // The same number: only asks whether it is open.
                let same = old == new;
                Ok(if same { Outcome::Kernel } else { posix.dup3(old, new, 0) })
            })
        })
    }

    /// `dup3(2)`.
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        spared(new)
            .or_else(|| entry::on_table([old, new], |posix| Ok(posix.dup3(old, new, flags))))
    }

    /// `close(2)`.
    fn close(fd: c_int) -> c_int, waits {
        foreign_epoll::forget_watched(fd);
        spared(fd).or_else(|| entry::on_table([fd; 2], |posix| Ok(posix.close(fd))))
    }
}

/// `close_range(2)`.
///
/// Beside the macro because libc has it only since 2.34: the system call is the real function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    entry::with_own(|posix| -> Answer<c_int> {
        if first > last {
            return Err(Errno(libc::EINVAL));
        }
        match posix.close_range(first, last, flags) {
            Outcome::Done(Err(error)) => return Err(error),
            Outcome::Done(Ok(())) | Outcome::Kernel => {}
        }
        for part in hidden::gaps(first..=last) {
            close_in_kernel(*part.start(), *part.end(), flags)?;
        }
        Ok(Outcome::Done(Ok(0)))
    })
    .unwrap_or_else(|| match close_in_kernel(first, last, flags) {
        Ok(()) => 0,
        Err(_) => -1,
    })
}

/// `closefrom(3)`, which libc has only since 2.34.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = c_uint::try_from(first).unwrap_or(0);
    // SAFETY: no memory is involved.
    unsafe { close_range(first, c_uint::MAX, 0) };
}

fn close_in_kernel(first: c_uint, last: c_uint, flags: c_int) -> Result<(), Errno> {
    let args = [first as usize, last as usize, raw::int(flags)];
    // SAFETY: no memory is involved.
    unsafe { raw::syscall(libc::SYS_close_range, args) }.map(drop)
}

/// A descriptor of the library does not exist for the program.
fn spared(fd: c_int) -> Option<c_int> {
    if start::posix().is_none() || !hidden::contains(fd) {
        return None;
    }
    entry::with_own(|_| -> Answer<c_int> { Err(Errno(libc::EBADF)) })
}

/// Requests whose argument is the address of an int.
fn takes_int(request: c_ulong) -> bool {
    let of_terminals = [libc::FIONBIO, libc::FIOASYNC, libc::FIONREAD, libc::TIOCOUTQ];
    of_terminals.contains(&request) || SOCKET_REQUESTS.contains(&request)
}

/// Not in the `libc` crate: `FIOSETOWN`, `SIOCSPGRP`, `FIOGETOWN`, `SIOCGPGRP` and `SIOCATMARK` by
/// asm-generic/sockios.h, `SIOCOUTQNSD` by linux/sockios.h.
const SOCKET_REQUESTS: [c_ulong; 6] = [0x8901, 0x8902, 0x8903, 0x8904, 0x8905, 0x894b];
