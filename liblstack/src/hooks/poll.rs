//! `poll` and `select`.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;
use std::time::Instant;

use libc::{fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use lstack_posix::{FdSet, Outcome};

use super::hooks;
use crate::abi::{self, Limit};
use crate::entry;
use crate::start;

hooks! {
    /// `poll(2)`.
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int, waits {
        // SAFETY: the caller's array.
        unsafe { poll_among(fds, count, Limit::Milliseconds(timeout), ptr::null()) }
    }

    /// `poll`, from a program built with `_FORTIFY_SOURCE`: the real one reports an overrun.
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int, waits {
        if holds(room, count) {
            // SAFETY: the caller's array.
            unsafe { poll_among(fds, count, Limit::Milliseconds(timeout), ptr::null()) }
        } else {
            None
        }
    }

    /// `ppoll(2)`.
    fn ppoll(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int, waits {
        // SAFETY: the caller's array, timeout and mask.
        unsafe { poll_among(fds, count, Limit::Exact(timeout), mask) }
    }

    /// `ppoll`, checked.
    fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        room: size_t,
    ) -> c_int, waits {
        if holds(room, count) {
            // SAFETY: the caller's array, timeout and mask.
            unsafe { poll_among(fds, count, Limit::Exact(timeout), mask) }
        } else {
            None
        }
    }

    /// `select(2)`: the time left goes back to the caller.
    fn select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int, waits {
        // SAFETY: the caller's sets and timeout.
        unsafe { select_among(count, [read, write, except], TimeLeft::Told(timeout), ptr::null()) }
    }

    /// `pselect(2)`.
    fn pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int, waits {
        // SAFETY: the caller's sets, timeout and mask.
        unsafe { select_among(count, [read, write, except], TimeLeft::Untold(timeout), mask) }
    }
}

/// Whether the caller's timeout becomes the time left.
#[derive(Clone, Copy)]
enum TimeLeft {
    Told(*mut timeval),
    Untold(*const timespec),
}

/// Whether an array of `room` bytes holds `count` entries.
fn holds(room: usize, count: nfds_t) -> bool {
    room / size_of::<pollfd>() >= count as usize
}

/// Polls on the stack if one of the descriptors is the stack's.
///
/// # Safety
///
/// `fds` is null or valid for `count` entries during the call, the limits as for [`abi::limits`].
unsafe fn poll_among(
    fds: *mut pollfd,
    count: nfds_t,
    limit: Limit,
    mask: *const sigset_t,
) -> Option<c_int> {
    let posix = start::posix()?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0 && !fds.is_null())?;
    // SAFETY: as the caller vouches.
    let fds = unsafe { slice::from_raw_parts_mut(fds, count) };
    if !fds.iter().any(|entry| posix.knows(entry.fd)) {
        return None;
    }
    entry::with(posix, |posix| {
        // SAFETY: as the caller vouches.
        let (timeout, mask) = unsafe { abi::limits(limit, mask) }?;
        Ok(as_int(posix.poll(fds, timeout, mask.as_ref())))
    })
}

/// Selects on the stack if one of the descriptors is the stack's.
///
/// # Safety
///
/// Each of `sets` is null or valid for `count` descriptors during the call, the other pointers are
/// null or valid.
unsafe fn select_among(
    count: c_int,
    sets: [*mut fd_set; 3],
    limit: TimeLeft,
    mask: *const sigset_t,
) -> Option<c_int> {
    let posix = start::posix()?;
    let count = descriptors(count)?;
    // SAFETY: as the caller vouches.
    let sets = sets.map(|set| unsafe { words(set, count) });
    if !sets.iter().flatten().any(|set| numbers(set, count).any(|fd| posix.knows(fd))) {
        return None;
    }
    entry::with(posix, |posix| {
        // SAFETY: as the caller vouches.
        let mask = unsafe { abi::signal_set(mask) }?;
        let [read, write, except] = sets;
        let mut told = None;
        let timeout = match limit {
            TimeLeft::Told(timeout) => {
                // SAFETY: as the caller vouches.
                told = unsafe { abi::optional(timeout) }?;
                abi::duration_of(told.as_deref())?
            }
            // SAFETY: as the caller vouches.
            TimeLeft::Untold(timeout) => unsafe { abi::duration(timeout) }?,
        };
        let begun = Instant::now();
        let answer = posix.select(count, read, write, except, timeout, mask.as_ref());
        if let (Some(told), Some(timeout), Outcome::Done(_)) = (told, timeout, &answer) {
            *told = abi::timeval(timeout.saturating_sub(begun.elapsed()));
        }
        Ok(as_int(answer))
    })
}

/// As many as the kernel would look at: a program may say more than it has room for, when its
/// descriptor table is smaller.
fn descriptors(count: c_int) -> Option<usize> {
    let count = usize::try_from(count).ok()?;
    if count <= libc::FD_SETSIZE {
        return Some(count);
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let open_at_most = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX);
    Some(count.min(open_at_most.max(libc::FD_SETSIZE)))
}

/// The words of a set that `count` descriptors need.
///
/// # Safety
///
/// `set` is null or valid for `count` descriptors.
unsafe fn words<'a>(set: *mut fd_set, count: usize) -> FdSet<'a> {
    if set.is_null() {
        return None;
    }
    let words = set.cast::<c_void>().cast::<u64>();
    // SAFETY: as the caller vouches; a set is an array of words of 64 bits.
    Some(unsafe { slice::from_raw_parts_mut(words, count.div_ceil(64)) })
}

/// The descriptors in a set.
fn numbers(set: &[u64], count: usize) -> impl Iterator<Item = c_int> {
    let bits = set.iter().enumerate().flat_map(|(index, word)| {
        let mut left = *word;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(index * 64 + bit)
        })
    });
    bits.take_while(move |fd| *fd < count).map(|fd| fd as c_int)
}

fn as_int(outcome: Outcome<usize>) -> Outcome<c_int> {
    match outcome {
        Outcome::Done(result) => Outcome::Done(result.map(|count| count as c_int)),
        Outcome::Kernel => Outcome::Kernel,
    }
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn a_set_ends_at_the_number_of_descriptors() {
        let set = [1 | 1 << 63, 0, 1 << 2];
        assert_eq!(numbers(&set, 192).collect::<Vec<_>>(), [0, 63, 130]);
        assert_eq!(numbers(&set, 130).collect::<Vec<_>>(), [0, 63]);
        assert_eq!(numbers(&set, 0).count(), 0);
    }
}
