//! The one way from a hooked call to the stack.
//!
//! A hook asks [`on`] (or one of its kin) first. `None` means the call is the kernel's: the hook
//! then makes the real call with the caller's own arguments, as its last act and with nothing left
//! to drop, so that a thread can be cancelled or left by `pthread_exit` in there: unwinding through
//! Rust frames would end the process otherwise.

use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};

use lstack_posix::{Errno, Outcome, Posix};

use crate::{errno, start, thread};

/// The answer to a call, or why its arguments are no use.
pub type Answer<T> = Result<Outcome<T>, Errno>;

/// What C functions return.
pub trait Returns {
    /// As C sees it.
    type C: From<i8>;
    /// Converts a success.
    fn into_c(self) -> Self::C;
}

impl Returns for () {
    type C = c_int;
    fn into_c(self) -> c_int {
        0
    }
}

impl Returns for c_int {
    type C = c_int;
    fn into_c(self) -> c_int {
        self
    }
}

impl Returns for usize {
    type C = isize;
    fn into_c(self) -> isize {
        // No call moves more than `isize::MAX` bytes.
        isize::try_from(self).unwrap_or(isize::MAX)
    }
}

/// A call on a descriptor.
#[inline]
pub fn on<T: Returns>(fd: c_int, body: impl FnOnce(&'static Posix) -> Answer<T>) -> Option<T::C> {
    let posix = start::posix()?;
    if posix.knows(fd) { with(posix, body) } else { None }
}

/// A call on two descriptors.
#[inline]
pub fn on_either<T: Returns>(
    fds: [c_int; 2],
    body: impl FnOnce(&'static Posix) -> Answer<T>,
) -> Option<T::C> {
    let posix = start::posix()?;
    if fds.iter().any(|fd| posix.knows(*fd)) { with(posix, body) } else { None }
}

/// A call that changes the descriptor table. A child of `vfork` makes such before it executes
/// another program, in its parent's memory but on its own table: the stack must not hear of it.
#[inline]
pub fn on_table<T: Returns>(
    fds: [c_int; 2],
    body: impl FnOnce(&'static Posix) -> Answer<T>,
) -> Option<T::C> {
    let posix = start::posix()?;
    let concerned = fds.iter().any(|fd| posix.knows(*fd)) && start::is_own_process();
    if concerned { with(posix, body) } else { None }
}

/// A call on many descriptors, or on the library's own.
#[inline]
pub fn with_own<T: Returns>(body: impl FnOnce(&'static Posix) -> Answer<T>) -> Option<T::C> {
    let posix = start::posix()?;
    if start::is_own_process() { with(posix, body) } else { None }
}

/// Whether a call ended with `EINTR`.
pub fn is_interrupted<C: From<i8> + PartialEq>(answer: &Option<C>) -> bool {
    *answer == Some((-1_i8).into()) && errno::get() == libc::EINTR
}

/// A call whose concern is decided elsewhere.
#[inline]
pub fn with<T: Returns>(
    posix: &'static Posix,
    body: impl FnOnce(&'static Posix) -> Answer<T>,
) -> Option<T::C> {
    if thread::with(thread::Thread::is_inside) {
        return None;
    }
    let before = errno::get();
    thread::with(thread::Thread::enter);
    let answer = panic::catch_unwind(AssertUnwindSafe(|| body(posix)));
    // Handlers of the program may run here, and change `errno`.
    thread::with(thread::Thread::leave);
    match answer {
        Ok(Ok(Outcome::Done(Ok(value)))) => {
            errno::set(before);
            Some(value.into_c())
        }
        Ok(Ok(Outcome::Kernel)) => {
            errno::set(before);
            None
        }
        Ok(Ok(Outcome::Done(Err(error))) | Err(error)) => {
            errno::set(error.0);
            Some((-1_i8).into())
        }
        Err(payload) => {
            // The panic hook has logged it. Its payload may be anything, also what panics again
            // when it is dropped.
            std::mem::forget(payload);
            errno::set(libc::EIO);
            Some((-1_i8).into())
        }
    }
}
