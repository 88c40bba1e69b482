//! Signal handlers: see `crate::signal` for what happens to them.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{SIG_ERR, sighandler_t};

use super::hooks;
use crate::{errno, signal};

hooks! {
    /// `sigaction(2)`.
    fn sigaction(number: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        signal::is_wrapping(number).then(|| {
            // SAFETY: null, or the caller's action.
            let new = unsafe { new.as_ref() };
            // SAFETY: null, or the caller's room.
            unsafe { signal::sigaction(number, new, old) }
        })
    }

    /// `signal(2)`, as BSD has it: slow calls go on.
    fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        let restart = if signal::is_interrupting(number) { 0 } else { libc::SA_RESTART };
        signal::is_wrapping(number).then(|| replace(number, handler, restart, Blocks::Itself))
    }

    /// `signal` by another name.
    fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        let restart = if signal::is_interrupting(number) { 0 } else { libc::SA_RESTART };
        signal::is_wrapping(number).then(|| replace(number, handler, restart, Blocks::Itself))
    }

    /// `signal` by yet another name.
    fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
        let restart = if signal::is_interrupting(number) { 0 } else { libc::SA_RESTART };
        signal::is_wrapping(number).then(|| replace(number, handler, restart, Blocks::Itself))
    }

    /// `signal`, as System V has it: once, nothing blocked, slow calls end.
    fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        signal::is_wrapping(number).then(|| replace(number, handler, SYSTEM_V, Blocks::Nothing))
    }

    /// `signal`, from a program built for strict ISO C or System V.
    fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        signal::is_wrapping(number).then(|| replace(number, handler, SYSTEM_V, Blocks::Nothing))
    }

    /// `siginterrupt(3)`.
    fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
        signal::is_wrapping(number).then(|| interrupt(number, interrupts != 0))
    }
}

/// What is blocked beside while a handler runs.
#[derive(Clone, Copy)]
enum Blocks {
    Itself,
    Nothing,
}

const SYSTEM_V: c_int = libc::SA_RESETHAND | libc::SA_NODEFER;

/// Installs a handler in the way of `signal`, returns the one before.
fn replace(number: c_int, handler: sighandler_t, flags: c_int, blocks: Blocks) -> sighandler_t {
    if handler == SIG_ERR {
        errno::set(libc::EINVAL);
        return SIG_ERR;
    }
    // SAFETY: all zero is an action without flags and with an empty mask.
    let mut new = unsafe { std::mem::zeroed::<libc::sigaction>() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if matches!(blocks, Blocks::Itself) {
        // SAFETY: the mask is valid and the number was checked.
        unsafe { libc::sigaddset(&raw mut new.sa_mask, number) };
    }
    let mut old = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `old` is valid for writing.
    if unsafe { signal::sigaction(number, Some(&new), old.as_mut_ptr()) } != 0 {
        return SIG_ERR;
    }
    // SAFETY: the call succeeded and filled it.
    unsafe { old.assume_init() }.sa_sigaction
}

fn interrupt(number: c_int, interrupts: bool) -> c_int {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `action` is valid for writing.
    if unsafe { signal::sigaction(number, None, action.as_mut_ptr()) } != 0 {
        return -1;
    }
    // SAFETY: the call succeeded and filled it.
    let mut action = unsafe { action.assume_init() };
    if interrupts {
        action.sa_flags &= !libc::SA_RESTART;
    } else {
        action.sa_flags |= libc::SA_RESTART;
    }
    signal::interrupt(number, interrupts);
    // SAFETY: null asks for nothing.
    unsafe { signal::sigaction(number, Some(&action), ptr::null_mut()) }
}
