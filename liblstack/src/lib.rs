//! The preload library: libc socket calls in, packets out.
//!
//! `LD_PRELOAD=liblstack.so program`. Every exported name is one of libc's; a call that does not
//! concern a socket of the stack goes on to libc with the caller's own arguments. Until the program
//! opens its first internet socket nothing happens at all: no file, no thread, no output.
//!
//! | module | subject |
//! |---|---|
//! | `hooks` | the exported names, by subject |
//! | `entry` | the way from a hook to the stack and back |
//! | `start` | the lazy start, and what becomes of a program without a stack |
//! | `signal`, `thread` | the program's signal handlers, and when they may run |
//! | `cancel` | threads that are cancelled while they wait |
//! | `real`, `raw`, `symbol` | the operating system: as a trait, as system calls, as libc's functions |
//! | `exit`, `last_thread`, `service` | the end of the process: last bytes, last thread |
//! | `hidden` | the library's descriptors |
//! | `foreign_epoll` | epoll waits that are the kernel's, for now |
//! | `log`, `stats` | what it says |
#![cfg_attr(test, allow(dead_code, reason = "tests reach the conversions, not the exports"))]

mod abi;
mod cancel;
mod entry;
mod errno;
mod exit;
mod foreign_epoll;
mod hidden;
mod hooks;
mod last_thread;
mod log;
mod raw;
mod real;
mod service;
mod signal;
mod start;
mod stats;
mod symbol;
mod thread;

use std::ffi::c_char;

/// The version, for people and tools that look into a process.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn lstack_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Runs when the library is loaded: finds the real functions, nothing else.
#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    hooks::resolve_all();
}
