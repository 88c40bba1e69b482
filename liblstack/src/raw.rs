//! System calls without libc's wrappers.
//!
//! For the library's own use: never a cancellation point (a cancelled thread unwinds from inside
//! the call, which Rust frames don't allow), never one of our own hooks.

use std::ffi::{c_int, c_long};
use std::time::Duration;

use lstack_posix::Errno;

use crate::errno;

/// Makes system call `number`; changes `errno` when it fails.
///
/// # Safety
///
/// As for the system call with these arguments.
#[inline]
pub unsafe fn syscall<const N: usize>(number: c_long, args: [usize; N]) -> Result<usize, Errno> {
    const { assert!(N <= 6) };
    let mut all = [0; 6];
    all[..N].copy_from_slice(&args);
    let [a, b, c, d, e, f] = all;
    // SAFETY: the caller vouches for the arguments; surplus ones are ignored.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    usize::try_from(result).map_err(|_| Errno(errno::get()))
}

/// An `int` argument as the kernel expects it in a register.
#[inline]
pub const fn int(value: c_int) -> usize {
    value as isize as usize
}

/// The calling process.
#[inline]
pub fn process_id() -> usize {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getpid, []) }.unwrap_or(0)
}

/// The calling thread.
pub fn thread_id() -> usize {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_gettid, []) }.unwrap_or(0)
}

/// Replaces the calling thread's signal mask, returns the old one. Bit `n - 1` is signal `n`.
pub fn replace_signal_mask(mask: u64) -> u64 {
    let mut old = 0_u64;
    let args = [
        int(libc::SIG_SETMASK),
        (&raw const mask) as usize,
        (&raw mut old) as usize,
        size_of::<u64>(),
    ];
    // SAFETY: both masks live across the call and have the size given.
    let result = unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
    debug_assert!(result.is_ok(), "the arguments are constants or valid");
    old
}

/// Writes all of `bytes` as far as the descriptor takes them; nobody can be told of a failure.
pub fn write_all(fd: c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let args = [int(fd), bytes.as_ptr() as usize, bytes.len()];
        // SAFETY: the buffer is valid for its length.
        match unsafe { syscall(libc::SYS_write, args) } {
            Ok(0) => return,
            Ok(written) => bytes = &bytes[written..],
            Err(Errno(libc::EINTR)) => {}
            Err(_) => return,
        }
    }
}

/// Closes a descriptor of our own.
pub fn close(fd: c_int) {
    // SAFETY: no memory is involved; the caller owns the descriptor.
    let _ = unsafe { syscall(libc::SYS_close, [int(fd)]) };
}

/// Wakes at most `waiters` threads that sleep on `word`.
pub fn futex_wake(word: &std::sync::atomic::AtomicU32, waiters: u32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let most = c_int::try_from(waiters).unwrap_or(c_int::MAX);
    let args = [word.as_ptr() as usize, int(operation), int(most)];
    // SAFETY: the word is valid; waking has no other condition.
    let _ = unsafe { syscall(libc::SYS_futex, args) };
}

/// Sleeps while `word` holds `expected`; may return early for any reason.
pub fn futex_wait(
    word: &std::sync::atomic::AtomicU32,
    expected: u32,
    timeout: Option<Duration>,
) -> Result<(), Errno> {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let timeout = timeout.map(timespec);
    let args = [
        word.as_ptr() as usize,
        int(operation),
        expected as usize,
        timeout.as_ref().map_or(0, |timeout| std::ptr::from_ref(timeout) as usize),
    ];
    // SAFETY: word and timeout live across the call.
    unsafe { syscall(libc::SYS_futex, args) }.map(drop)
}

/// A duration for the kernel; the longest it takes when it is longer.
pub fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// The calling thread's signal mask.
pub fn signal_mask() -> u64 {
    let mut mask = 0_u64;
    let args = [int(libc::SIG_SETMASK), 0, (&raw mut mask) as usize, size_of::<u64>()];
    // SAFETY: the mask lives across the call and has the size given; null asks for no change.
    let result = unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
    debug_assert!(result.is_ok(), "the arguments are constants or valid");
    mask
}
