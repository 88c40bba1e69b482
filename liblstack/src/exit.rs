//! The end of the process: last bytes are not lost.
//!
//! Three ways out are covered: `exit` and returning from `main` run [`FINISH`], after the
//! program's own `atexit` functions and static destructors (the loader calls the program's
//! destructors before those of its libraries); `quick_exit` runs what [`register`] registered;
//! `_exit` has a hook of its own. Death by a signal is `signal.rs`'s part. All only ask the service
//! thread and wait, bounded.

use std::ffi::c_int;

use crate::{service, start};

/// Runs when the loader is done with the program, on the thread that called `exit`.
#[used]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
static FINISH: extern "C" fn() = finish;

/// Closes everything in order; returns at once where no stack runs.
pub extern "C" fn finish() {
    service::finish_and_wait(service::patience());
}

/// Once, before the start.
pub fn register() {
    unsafe extern "C" fn forget_in_child() {
        start::abandon();
    }
    // SAFETY: the handler does only async-signal-safe things.
    unsafe { pthread_atfork(None, None, Some(forget_in_child)) };
    // SAFETY: `finish` may run at any time.
    unsafe { at_quick_exit(finish) };
}

// Not in the `libc` crate, or not with these types.
unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
    fn at_quick_exit(function: extern "C" fn()) -> c_int;
}
