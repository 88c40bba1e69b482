//! From C pointers to Rust values, and back.
//!
//! A pointer that can't be right (null, the first page, beyond user space) gives `EFAULT` as the
//! kernel does. Any other bad pointer faults: asking the kernel about each would cost a system call
//! per call.

use std::ffi::{c_int, c_long, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::slice;
use std::time::Duration;

use libc::{iovec, sigset_t, sockaddr, socklen_t, timespec, timeval};
use lstack_posix::{Errno, SigSet, Timeout};
use smallvec::SmallVec;

/// Gathered or scattered buffers; as many as programs mostly use stay on the stack.
pub type Buffers<T> = SmallVec<[T; 16]>;

/// Whether `len` bytes may be at `start`, as far as the address alone tells.
fn check(start: *const c_void, len: usize) -> Result<(), Errno> {
    let start = start as usize;
    let plausible = start >= LOWEST && start.checked_add(len).is_some_and(|end| end <= HIGHEST);
    if len == 0 || plausible { Ok(()) } else { Err(Errno(libc::EFAULT)) }
}

/// A caller's value to read.
///
/// # Safety
///
/// `value` is null or valid for reading during the call.
pub unsafe fn input<'a, T>(value: *const T) -> Result<&'a T, Errno> {
    check(value.cast(), size_of::<T>())?;
    // SAFETY: not null, and the caller vouches for the rest.
    Ok(unsafe { &*value })
}

/// A caller's value to change.
///
/// # Safety
///
/// `value` is null or valid for reading and writing during the call, and nobody else uses it.
pub unsafe fn in_out<'a, T>(value: *mut T) -> Result<&'a mut T, Errno> {
    check(value.cast(), size_of::<T>())?;
    // SAFETY: not null, and the caller vouches for the rest.
    Ok(unsafe { &mut *value })
}

/// As [`in_out`], where null means that the caller has none.
///
/// # Safety
///
/// As for [`in_out`].
pub unsafe fn optional<'a, T>(value: *mut T) -> Result<Option<&'a mut T>, Errno> {
    if value.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller vouches.
    unsafe { in_out(value) }.map(Some)
}

/// Bytes to read.
///
/// # Safety
///
/// `start` is null or valid for reading `len` bytes during the call.
pub unsafe fn bytes<'a>(start: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    check(start, len)?;
    let len = len.min(MAX_TRANSFER);
    let start = if len == 0 { NonNull::dangling().as_ptr() } else { start.cast_mut().cast() };
    // SAFETY: valid as the caller vouches, or empty.
    Ok(unsafe { slice::from_raw_parts(start, len) })
}

/// Bytes to write.
///
/// # Safety
///
/// `start` is null or valid for writing `len` bytes during the call.
pub unsafe fn bytes_mut<'a>(start: *mut c_void, len: usize) -> Result<&'a mut [u8], Errno> {
    check(start, len)?;
    let len = len.min(MAX_TRANSFER);
    let start = if len == 0 { NonNull::dangling().as_ptr() } else { start.cast() };
    // SAFETY: valid as the caller vouches, or empty.
    Ok(unsafe { slice::from_raw_parts_mut(start, len) })
}

/// An address the caller gives.
///
/// # Safety
///
/// `addr` is null or valid for reading `len` bytes during the call.
pub unsafe fn address<'a>(addr: *const sockaddr, len: socklen_t) -> Result<&'a [u8], Errno> {
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller vouches.
    unsafe { bytes(addr.cast(), len as usize) }
}

/// Room for an address or option value, and where its length goes.
pub struct Room<'a> {
    /// As much as the caller has room for.
    pub bytes: &'a mut [u8],
    len: Option<&'a mut socklen_t>,
}

impl<'a> Room<'a> {
    /// Room that must be there.
    ///
    /// # Safety
    ///
    /// `len` is null or valid, `start` null or valid for writing `*len` bytes during the call.
    pub unsafe fn new(start: *mut c_void, len: *mut socklen_t) -> Result<Self, Errno> {
        // SAFETY: as the caller vouches.
        let len = unsafe { in_out(len) }?;
        if (*len as c_int) < 0 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: as the caller vouches.
        let bytes = unsafe { bytes_mut(start, *len as usize) }?;
        Ok(Self { bytes, len: Some(len) })
    }

    /// Room for an address the caller may not want.
    ///
    /// # Safety
    ///
    /// As for [`Self::new`].
    pub unsafe fn optional(addr: *mut sockaddr, len: *mut socklen_t) -> Result<Self, Errno> {
        if addr.is_null() {
            return Ok(Self { bytes: &mut [], len: None });
        }
        // SAFETY: as the caller vouches.
        unsafe { Self::new(addr.cast(), len) }
    }

    /// Tells the caller the full length of what was written, maybe in part.
    pub fn set_len(self, full: usize) {
        if let Some(len) = self.len {
            *len = full as socklen_t;
        }
    }
}

/// The caller's buffers to send from.
///
/// # Safety
///
/// `vectors` is null or valid for reading `count` entries, each null or valid for reading.
pub unsafe fn gather<'a>(
    vectors: *const iovec,
    count: usize,
) -> Result<Buffers<IoSlice<'a>>, Errno> {
    // SAFETY: as the caller vouches.
    let entries = unsafe { each(vectors, count) }?;
    let slice = |entry: Entry| {
        let (start, len) = entry?;
        // SAFETY: as the caller vouches.
        Ok(IoSlice::new(unsafe { bytes(start, len) }?))
    };
    entries.map(slice).collect()
}

/// The caller's buffers to receive into.
///
/// # Safety
///
/// `vectors` is null or valid for reading `count` entries, each null or valid for writing.
pub unsafe fn scatter<'a>(
    vectors: *const iovec,
    count: usize,
) -> Result<Buffers<IoSliceMut<'a>>, Errno> {
    // SAFETY: as the caller vouches.
    let entries = unsafe { each(vectors, count) }?;
    let slice = |entry: Entry| {
        let (start, len) = entry?;
        // SAFETY: as the caller vouches.
        Ok(IoSliceMut::new(unsafe { bytes_mut(start, len) }?))
    };
    entries.map(slice).collect()
}

/// A buffer of an array, or why the array is no use.
type Entry = Result<(*mut c_void, usize), Errno>;

/// The entries of an array of buffers by the kernel's rules: all of them are checked, and what goes
/// beyond the most that one call moves is left out.
unsafe fn each(vectors: *const iovec, count: usize) -> Result<impl Iterator<Item = Entry>, Errno> {
    if count > MAX_VECTORS {
        return Err(Errno(libc::EINVAL));
    }
    check(vectors.cast(), count * size_of::<iovec>())?;
    let mut left = MAX_TRANSFER;
    Ok((0..count).map(move |index| {
        // SAFETY: within the array the caller vouches for.
        let vector = unsafe { vectors.add(index) };
        // SAFETY: as above.
        let iovec { iov_base, iov_len } = unsafe { *vector };
        if iov_len > isize::MAX as usize {
            return Err(Errno(libc::EINVAL));
        }
        check(iov_base, iov_len)?;
        let len = iov_len.min(left);
        left -= len;
        Ok((iov_base, len))
    }))
}

/// The number of buffers in a `readv` or `writev`.
pub fn vector_count(count: c_int) -> Result<usize, Errno> {
    usize::try_from(count).map_err(|_| Errno(libc::EINVAL))
}

/// How long a call waits, as the caller says it.
#[derive(Clone, Copy)]
pub enum Limit {
    /// Negative is for ever.
    Milliseconds(c_int),
    /// Null is for ever.
    Exact(*const timespec),
}

/// How long a call waits, and with which signals blocked.
///
/// # Safety
///
/// The pointers are null or valid for reading.
pub unsafe fn limits(
    limit: Limit,
    mask: *const sigset_t,
) -> Result<(Timeout, Option<SigSet>), Errno> {
    let timeout = match limit {
        Limit::Milliseconds(timeout) => milliseconds(timeout),
        // SAFETY: as the caller vouches.
        Limit::Exact(timeout) => unsafe { duration(timeout) }?,
    };
    // SAFETY: as the caller vouches.
    Ok((timeout, unsafe { signal_set(mask) }?))
}

/// A timeout in milliseconds; negative is for ever.
pub fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// A `timespec`; null is for ever.
///
/// # Safety
///
/// `timeout` is null or valid for reading.
pub unsafe fn duration(timeout: *const timespec) -> Result<Option<Duration>, Errno> {
    if timeout.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller vouches.
    let timespec { tv_sec, tv_nsec } = *unsafe { input(timeout) }?;
    match (u64::try_from(tv_sec), u32::try_from(tv_nsec)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => {
            Ok(Some(Duration::new(seconds, nanos)))
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// A `timeval`; null is for ever. More than a second of microseconds is allowed, as in the kernel.
pub fn duration_of(timeout: Option<&timeval>) -> Result<Option<Duration>, Errno> {
    let Some(&timeval { tv_sec, tv_usec }) = timeout else { return Ok(None) };
    match (u64::try_from(tv_sec), u64::try_from(tv_usec)) {
        (Ok(seconds), Ok(micros)) => {
            Ok(Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros))))
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// A duration as a `timeval`.
pub fn timeval(duration: Duration) -> timeval {
    timeval {
        tv_sec: c_long::try_from(duration.as_secs()).unwrap_or(c_long::MAX),
        tv_usec: c_long::from(duration.subsec_micros()),
    }
}

/// A signal mask; null is none. The kernel's mask is the first word of libc's.
///
/// # Safety
///
/// `mask` is null or valid for reading.
pub unsafe fn signal_set(mask: *const sigset_t) -> Result<Option<SigSet>, Errno> {
    if mask.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller vouches; the word is part of it.
    Ok(Some(SigSet(*unsafe { input(mask.cast::<u64>()) }?)))
}

/// `IOV_MAX`.
const MAX_VECTORS: usize = 1024;

/// The most bytes one call moves: the kernel's `MAX_RW_COUNT`.
const MAX_TRANSFER: usize = 0x7fff_f000;

/// No program has memory in the first page (`vm.mmap_min_addr` is never 0 in practice).
const LOWEST: usize = 4096;

/// End of user space.
#[cfg(target_arch = "x86_64")]
const HIGHEST: usize = 0x7fff_ffff_f000;
#[cfg(not(target_arch = "x86_64"))]
const HIGHEST: usize = 1 << 52;

#[cfg(test)]
mod tests;
