//! The calling thread's `errno`.

use std::ffi::c_int;

/// Reads it.
#[inline]
pub fn get() -> c_int {
    // SAFETY: no conditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: valid for the calling thread.
    unsafe { *place }
}

/// Writes it.
#[inline]
pub fn set(value: c_int) {
    // SAFETY: no conditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: valid for the calling thread.
    unsafe { *place = value }
}
