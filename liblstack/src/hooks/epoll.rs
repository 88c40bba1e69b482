//! `epoll`.
//!
//! `epoll_create` is not among the hooks: an instance is a kernel one, and interesting only once a
//! socket of the stack joins it.

use std::ffi::c_int;
use std::ptr;

use libc::{epoll_event, sigset_t, timespec};
use lstack_posix::{EpollEvent, Errno, Outcome};

use super::hooks;
use crate::abi::{self, Limit};
use crate::entry::{self, Answer};

hooks! {
    /// `epoll_ctl(2)`.
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
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
        // SAFETY: the caller's array.
        unsafe { wait(epfd, events, room, Limit::Milliseconds(timeout), ptr::null()) }
    }

    /// `epoll_pwait(2)`.
    fn epoll_pwait(
        epfd: c_int,
        events: *mut epoll_event,
        room: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int, waits {
        // SAFETY: the caller's array and mask.
        unsafe { wait(epfd, events, room, Limit::Milliseconds(timeout), mask) }
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
        // SAFETY: the caller's array, timeout and mask.
        unsafe { wait(epfd, events, room, Limit::Exact(timeout), mask) }
    });
    answer.unwrap_or_else(|| {
        let mask_size = size_of::<u64>();
        // SAFETY: the caller's own arguments.
        unsafe {
            libc::syscall(libc::SYS_epoll_pwait2, epfd, events, room, timeout, mask, mask_size)
                as c_int
        }
    })
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
                for (index, event) in found[..count].iter().enumerate() {
                    let event = epoll_event { events: event.events, u64: event.data };
                    let place = events.wrapping_add(index);
                    // SAFETY: within the caller's array, which need not be aligned.
                    unsafe { place.write_unaligned(event) };
                }
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
