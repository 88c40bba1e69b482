//! The end of the process by `_exit`, and of threads. `fork` needs no hook, see `exit.rs`.

use std::ffi::{c_int, c_void};

use libc::pthread_t;

use super::hooks;
use crate::{cancel, exit, last_thread};

hooks! {
    /// `_exit(2)`: comes back only through the real one.
    fn _exit(status: c_int) -> () {
        exit::finish();
        None
    }

    /// `_exit` by its name in ISO C.
    #[allow(non_snake_case, reason = "its name")]
    fn _Exit(status: c_int) -> () {
        exit::finish();
        None
    }

    /// `pthread_exit(3)`: of the first thread, it leaves the end of the process to the last one.
    fn pthread_exit(value: *mut c_void) -> () {
        last_thread::this_one_leaves();
        None
    }

    /// `pthread_cancel(3)`.
    fn pthread_cancel(thread: pthread_t) -> c_int {
        cancel::begin();
        // SAFETY: the caller's thread.
        let result = unsafe { real::pthread_cancel.get()(thread) };
        if result == 0 {
            // SAFETY: as above: it was there a moment ago, and is not joined while it is cancelled.
            unsafe { cancel::wake(thread) };
        }
        Some(result)
    }
}
