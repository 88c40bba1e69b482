//! What the socket calls mean, without the C ABI.
//!
//! [`Posix`] answers every call with an [`Outcome`]: a result, or "this one is the kernel's". It
//! reaches the kernel only through [`Kernel`], which the preload library implements over the real
//! libc functions and the unit tests over a model.
#![forbid(unsafe_code)]

mod errno;
mod kernel;
mod posix;

pub use errno::Errno;
pub use kernel::{EpollEvent, Kernel, PollFd, SigSet};
pub use posix::{FdSet, Outcome, Posix, RecvMsg, Timeout};
