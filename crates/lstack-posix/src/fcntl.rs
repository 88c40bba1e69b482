//! `fcntl`, `ioctl`, `dup` and their kin.

use crate::posix::{Outcome, Posix};
use std::os::fd::RawFd;

impl Posix {
    pub fn fcntl(&self, _fd: RawFd, _command: i32, _arg: usize) -> Outcome<i32> {
        Outcome::Kernel
    }
    pub fn ioctl(&self, _fd: RawFd, _request: u64, _value: Option<&mut i32>) -> Outcome<i32> {
        Outcome::Kernel
    }
    pub fn dup(&self, _fd: RawFd) -> Outcome<RawFd> {
        Outcome::Kernel
    }
    pub fn dup3(&self, _old: RawFd, _new: RawFd, _flags: i32) -> Outcome<RawFd> {
        Outcome::Kernel
    }
    pub fn close_range(&self, _first: u32, _last: u32, _flags: i32) -> Outcome<()> {
        Outcome::Kernel
    }
}
