//! What the socket calls mean, without the C ABI.
//!
//! [`Posix`] answers every call with an [`Outcome`]: a result, or "this one is the kernel's". It
//! reaches the kernel only through [`Kernel`], which the preload library implements over the real
//! libc functions and the unit tests over a model.
#![forbid(unsafe_code)]

mod accept;
mod address;
mod connect;
mod control;
mod description;
mod epoll;
mod errno;
mod exit;
mod fcntl;
mod fd_table;
mod file;
mod kernel;
mod options;
mod poll;
mod posix;
mod route;
mod socket;
mod stats;
#[cfg(test)]
mod testbed;
mod transfer;
mod wait;

pub use errno::Errno;
pub use kernel::{EpollEvent, Kernel, PollFd, SigSet};
pub use posix::{FdSet, Outcome, Posix, RecvMsg, Timeout};
