//! The end of the process by `_exit`. `fork` needs no hook, see `exit.rs`.

use std::ffi::c_int;

use super::hooks;
use crate::exit;

hooks! {
    /// `_exit(2)`: comes back only through the real one.
    fn _exit(status: c_int) -> () {
        exit::finish();
        None
    }

    /// `_exit` by its name in ISO C.
    fn _Exit(status: c_int) -> () {
        exit::finish();
        None
    }
}
