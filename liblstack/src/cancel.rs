//! Cancelling threads that wait on the stack.
//!
//! libc cancels a thread inside its own functions; a thread that waits on the stack is in none of
//! them. So `pthread_cancel` is hooked: beside what libc does, the thread's sleep is ended. Its
//! call returns through all Rust frames as after a signal, and the hook, with nothing left to drop,
//! lets libc act ([`point`]).

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

use crate::thread::Thread;
use crate::{raw, start, thread};

/// Whether the program cancels threads at all.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// From a `pthread_t`, which in glibc is the address of the thread's control block, to its
/// [`Thread`]: the same in every thread, since a preloaded library's thread-locals are in the
/// static block. 0 while that is not known to be so.
static DISTANCE: AtomicIsize = AtomicIsize::new(0);

/// Where a hook of a function at which threads can be cancelled begins, and where it ends after
/// its sleep was cut short.
#[inline]
pub fn point() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    if IN_USE.load(Ordering::Relaxed) {
        // SAFETY: no conditions. It may unwind; the callers are hooks, which have nothing to drop.
        unsafe { pthread_testcancel() };
    }
}

/// Whether a call has to be made again: its sleep was ended to cancel the thread, and the thread
/// does not let itself be cancelled now.
pub fn was_refused(interrupted: bool) -> bool {
    if !interrupted || !IN_USE.load(Ordering::Relaxed) {
        return false;
    }
    let asked = thread::with(Thread::take_cancel);
    if asked {
        point();
    }
    asked
}

/// The calling thread's id, for [`Thread::set_sleeper`].
pub fn own_id() -> u32 {
    thread::with(|thread| thread.id_or(|| raw::thread_id() as u32))
}

/// Compares the distance in two threads; called on both, first with `None`.
pub fn learn(first: Option<isize>) -> isize {
    let own = own_distance();
    if first == Some(own) {
        DISTANCE.store(own, Ordering::Relaxed);
    }
    own
}

fn own_distance() -> isize {
    // SAFETY: no conditions.
    let block = unsafe { libc::pthread_self() } as usize;
    thread::with(|thread| (std::ptr::from_ref(thread) as usize).wrapping_sub(block)) as isize
}

/// The program has cancelled a thread: ends its sleep.
///
/// # Safety
///
/// `target` is a thread that is not joined.
pub unsafe fn wake(target: libc::pthread_t) {
    let distance = DISTANCE.load(Ordering::Relaxed);
    if distance == 0 || start::posix().is_none() {
        return;
    }
    let place = (target as usize).wrapping_add_signed(distance) as *const Thread;
    // SAFETY: see `DISTANCE`; the thread's memory stays until it is joined.
    let target = unsafe { &*place };
    let mut sleeper = target.cancel();
    // A signal between its last look and its sleep would be lost: knock until it is up.
    for _ in 0..KNOCKS {
        let Some(id) = sleeper else { return };
        let args = [raw::process_id(), id as usize, raw::int(LIBCS_SIGNAL)];
        // SAFETY: no memory is involved.
        let _ = unsafe { raw::syscall(libc::SYS_tgkill, args) };
        std::thread::yield_now();
        sleeper = target.sleeper();
    }
}

/// Before `pthread_cancel` is really called.
pub fn begin() {
    IN_USE.store(true, Ordering::SeqCst);
}

/// The signal by which libc itself wakes threads to be cancelled. Its handler does nothing to a
/// thread that is not in one of libc's functions.
const LIBCS_SIGNAL: c_int = 32;

/// A thread gets up within one or two; the bound is for one that is stopped.
const KNOCKS: usize = 1000;
