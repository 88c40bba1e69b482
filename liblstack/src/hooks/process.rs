//! The end of the process by `_exit`, and of threads by `pthread_cancel`. `fork` needs no hook, see
//! `exit.rs`.

use std::ffi::c_int;

use libc::pthread_t;

use super::hooks;
use crate::{cancel, exit};

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
