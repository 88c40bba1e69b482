//! `epoll`.
//!
//! `epoll_create` is not among the hooks: an instance is a kernel one, and interesting only once a
//! socket of the stack joins it. That may happen while threads sleep in it, so a real wait is made
//! under the eyes of `foreign_epoll.rs`, and what it gives is looked through if the instance has
//! become the stack's meanwhile.

use std::ffi::c_int;
use std::ptr;
use std::time::Instant;

use libc::{epoll_event, sigset_t, timespec};
use lstack_posix::{EpollEvent, Errno, Outcome};

use super::hooks;
use crate::abi::{self, Limit};
use crate::entry::{self, Answer};
use crate::{foreign_epoll, raw, start};

hooks! {
    /// `epoll_ctl(2)`.
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if op == libc::EPOLL_CTL_ADD {
            foreign_epoll::note_watched(fd);
        }
        entry::on_either([epfd, fd], |posix| {
            let event = if op == libc::EPOLL_CTL_DEL {
                None
            } else {
                // SAFETY: the caller's event; copied, since it need not be aligned.
                let event = unsafe { abi::input(event.cast::<[u8; size_of::<epoll_event>()]>()) }?;
                // SAFETY: any bytes are an event.
                let event = unsafe { event.as_ptr().cast::<epoll_event>().read_unaligned() };
                Some(EpollEvent { events: event.events, data: event.u64 })
            };
            Ok(posix.epoll_ctl(epfd, op, fd, event))
        })
    }

    /// `epoll_wait(2)`.
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int, waits {
        let really = || {
            // SAFETY: the caller's own arguments.
            unsafe { real::epoll_wait.get()(epfd, events, room, timeout) }
        };
        let limit = Limit::Milliseconds(timeout);
        // SAFETY: the caller's array.
        unsafe { wait_anywhere(epfd, events, room, limit, ptr::null(), really) }
    }

    /// `epoll_pwait(2)`.
    fn epoll_pwait(
        epfd: c_int,
        events: *mut epoll_event,
        room: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int, waits {
        let really = || {
            // SAFETY: the caller's own arguments.
            unsafe { real::epoll_pwait.get()(epfd, events, room, timeout, mask) }
        };
        // SAFETY: the caller's array and mask.
        unsafe { wait_anywhere(epfd, events, room, Limit::Milliseconds(timeout), mask, really) }
    }
}

/// `epoll_pwait2(2)`.
///
/// Beside the macro because libc has it only since 2.35: the system call is the real function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let answer = hooks!(@answer waits {
        let really = || {
            let (number, mask_size) = (libc::SYS_epoll_pwait2, size_of::<u64>());
            // SAFETY: the caller's own arguments.
            unsafe { libc::syscall(number, epfd, events, room, timeout, mask, mask_size) as c_int }
        };
        // SAFETY: the caller's array, timeout and mask.
        unsafe { wait_anywhere(epfd, events, room, Limit::Exact(timeout), mask, really) }
    });
    answer.unwrap_or(-1)
}

/// Waits on the stack, or by the real call.
///
/// Nothing here is dropped: a thread may be cancelled in `really`.
///
/// # Safety
///
/// As for [`wait`].
unsafe fn wait_anywhere(
    epfd: c_int,
    events: *mut epoll_event,
    room: c_int,
    limit: Limit,
    mask: *const sigset_t,
    really: impl Fn() -> c_int,
) -> Option<c_int> {
    // SAFETY: as the caller vouches.
    let wait = |limit| unsafe { wait(epfd, events, room, limit, mask) };
    if let Some(count) = wait(limit) {
        return Some(count);
    }
    let begun = Instant::now();
    let place = foreign_epoll::enter(epfd);
    if is_the_stacks(epfd) {
        foreign_epoll::leave(&place);
        return wait(limit).or_else(|| Some(really()));
    }
    let count = really();
    foreign_epoll::leave(&place);
    if count <= 0 || !is_the_stacks(epfd) {
        return Some(count);
    }
    // SAFETY: the real call has filled that many.
    match unsafe { sift(epfd, events, count) } {
        0 => {
            // SAFETY: as the caller vouches.
            let (timeout, _) = unsafe { abi::limits(limit, ptr::null()) }.ok()?;
            let left =
                timeout.map(|timeout| raw::timespec(timeout.saturating_sub(begun.elapsed())));
            let limit = Limit::Exact(left.as_ref().map_or(ptr::null(), ptr::from_ref));
            wait(limit).or(Some(0))
        }
        left => Some(left),
    }
}

/// Whether the instance is the stack's by now, perhaps by another descriptor.
fn is_the_stacks(epfd: c_int) -> bool {
    let ours = start::posix().and_then(|posix| {
        entry::with(posix, |posix| -> Answer<c_int> {
            Ok(if posix.knows_epoll(epfd) { Outcome::Done(Ok(0)) } else { Outcome::Kernel })
        })
    });
    ours.is_some()
}

/// Leaves those events that are the program's.
///
/// # Safety
///
/// `events` holds `count` events.
unsafe fn sift(epfd: c_int, events: *mut epoll_event, count: c_int) -> c_int {
    let sifted = start::posix().and_then(|posix| {
        entry::with(posix, |posix| -> Answer<c_int> {
            let whole = usize::try_from(count).unwrap_or(0);
            let mut kept = 0;
            for first in (0..whole).step_by(EVENTS_AT_ONCE) {
                let mut found = [EpollEvent { events: 0, data: 0 }; EVENTS_AT_ONCE];
                let found = &mut found[..EVENTS_AT_ONCE.min(whole - first)];
                for (index, event) in found.iter_mut().enumerate() {
                    // SAFETY: within what the caller vouches for; it need not be aligned.
                    let given = unsafe { events.wrapping_add(first + index).read_unaligned() };
                    *event = EpollEvent { events: given.events, data: given.u64 };
                }
                let left = posix.sift(epfd, found);
                // SAFETY: never more than were read so far.
                unsafe { store(events.wrapping_add(kept), &found[..left]) };
                kept += left;
            }
            Ok(Outcome::Done(Ok(kept as c_int)))
        })
    });
    sifted.unwrap_or(count)
}

/// # Safety
///
/// `events` has room for all of `found`.
unsafe fn store(events: *mut epoll_event, found: &[EpollEvent]) {
    for (index, event) in found.iter().enumerate() {
        let event = epoll_event { events: event.events, u64: event.data };
        // SAFETY: within the caller's array, which need not be aligned.
        unsafe { events.wrapping_add(index).write_unaligned(event) };
    }
}

/// # Safety
///
/// `events` is null or valid for writing `room` entries, the limits as for [`abi::limits`].
unsafe fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    room: c_int,
    limit: Limit,
    mask: *const sigset_t,
) -> Option<c_int> {
    entry::on(epfd, |posix| -> Answer<c_int> {
        let room = usize::try_from(room).ok().filter(|room| *room > 0);
        let room = room.ok_or(Errno(libc::EINVAL))?;
        // SAFETY: as the caller vouches; only looked at by its address here.
        unsafe { abi::bytes_mut(events.cast(), room.saturating_mul(size_of::<epoll_event>())) }?;
        // SAFETY: as the caller vouches.
        let (timeout, mask) = unsafe { abi::limits(limit, mask) }?;
        let mut found = [EpollEvent { events: 0, data: 0 }; EVENTS_AT_ONCE];
        let room = room.min(found.len());
        Ok(match posix.epoll_wait(epfd, &mut found[..room], timeout, mask.as_ref()) {
            Outcome::Done(Ok(count)) => {
                // SAFETY: no more than there is room for.
                unsafe { store(events, &found[..count]) };
                Outcome::Done(Ok(count as c_int))
            }
            Outcome::Done(Err(error)) => Outcome::Done(Err(error)),
            Outcome::Kernel => Outcome::Kernel,
        })
    })
}

/// Events told in one call: fewer than the caller has room for is allowed, the rest comes with
/// the next call. 2 KiB of stack, cleared in some 20 ns.
const EVENTS_AT_ONCE: usize = 128;
