//! Descriptors of the library, kept out of the program's way.
//!
//! They live at high numbers, so that the program's own get the numbers it expects, and the hooks
//! of `close`, `dup2`, `close_range` and `closefrom` spare them: a daemon that closes everything
//! at start must not take a device from under the stack. A bitmap of atomics, readable from any
//! thread and signal handler.

use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use lstack_posix::Errno;

use crate::raw;

static HIDDEN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Whether `fd` is the library's, or a device's that it opened later (a memif peer that came back).
#[inline]
pub fn contains(fd: RawFd) -> bool {
    place(fd).is_some_and(|(word, bit)| HIDDEN[word].load(Ordering::Relaxed) & bit != 0)
        || lstack_runtime::is_device_descriptor(fd)
}

/// Hides `fd`. A number too high for the table stays visible, which harms no ordinary program.
pub fn insert(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        HIDDEN[word].fetch_or(bit, Ordering::Relaxed);
    }
}

/// Closes a hidden descriptor.
pub fn close(fd: RawFd) {
    // In this order: once closed, the number may become the program's.
    if let Some((word, bit)) = place(fd) {
        HIDDEN[word].fetch_and(!bit, Ordering::Relaxed);
    }
    raw::close(fd);
}

/// Moves a fresh descriptor to a high number, close-on-exec, and hides it there. When no number is
/// free it stays where it is.
pub fn move_up(fd: RawFd) -> RawFd {
    let args = [raw::int(fd), raw::int(libc::F_DUPFD_CLOEXEC), raw::int(first_number())];
    // SAFETY: no memory is involved.
    let moved = match unsafe { raw::syscall(libc::SYS_fcntl, args) } {
        Ok(high) => {
            raw::close(fd);
            high as RawFd
        }
        Err(_) => fd,
    };
    insert(moved);
    moved
}

/// Another descriptor of what `fd` refers to, hidden; `fd` stays the program's.
pub fn duplicate(fd: RawFd) -> Result<RawFd, Errno> {
    let args = [raw::int(fd), raw::int(libc::F_DUPFD_CLOEXEC), raw::int(first_number())];
    // SAFETY: no memory is involved.
    let copy = unsafe { raw::syscall(libc::SYS_fcntl, args) }? as RawFd;
    insert(copy);
    Ok(copy)
}

/// The lowest number the library takes: just under the limit of most processes (1024), lower when
/// the limit is lower. Not higher when it is higher: the kernel's table would grow to it.
pub fn first_number() -> RawFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let limit = c_int::try_from(limit.rlim_cur).unwrap_or(c_int::MAX).min(1024);
    limit - (limit / 4).min(128)
}

/// The parts of `range` between hidden descriptors.
pub fn gaps(range: RangeInclusive<u32>) -> impl Iterator<Item = RangeInclusive<u32>> {
    let (first, last) = range.into_inner();
    let mut next = Some(first);
    std::iter::from_fn(move || {
        let mut start = next?;
        while start <= last && is_hidden(start) {
            start += 1;
        }
        if start > last {
            next = None;
            return None;
        }
        let mut end = start;
        while end < last && end < END && !is_hidden(end + 1) {
            end += 1;
        }
        if end >= END {
            // Nothing is hidden from here on.
            end = last;
        }
        next = end.checked_add(1);
        Some(start..=end)
    })
}

fn is_hidden(fd: u32) -> bool {
    RawFd::try_from(fd).is_ok_and(contains)
}

fn place(fd: RawFd) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok()?;
    (fd < END as usize).then_some((fd / 64, 1 << (fd % 64)))
}

/// Twice what the numbers start at, see [`first_number`].
const END: u32 = 2048;
const WORDS: usize = END as usize / 64;

#[cfg(test)]
mod tests {
    use super::{gaps, insert};

    #[test]
    fn a_range_is_split_around_hidden_descriptors() {
        // One test for all: the table is one for the process.
        insert(900);
        insert(901);
        insert(1000);
        let split =
            |range| gaps(range).map(std::ops::RangeInclusive::into_inner).collect::<Vec<_>>();
        assert_eq!(split(3..=u32::MAX), [(3, 899), (902, 999), (1001, u32::MAX)]);
        assert_eq!(split(900..=901), []);
        assert_eq!(split(901..=950), [(902, 950)]);
        assert_eq!(split(5000..=u32::MAX), [(5000, u32::MAX)]);
        assert_eq!(split(u32::MAX..=u32::MAX), [(u32::MAX, u32::MAX)]);
    }
}
