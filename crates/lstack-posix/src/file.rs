//! `sendfile` and `splice`.

use crate::posix::{Outcome, Posix};
use std::os::fd::RawFd;

impl Posix {
    pub fn sendfile(&self, _out: RawFd, _input: RawFd, _offset: Option<&mut i64>, _count: usize) -> Outcome<usize> {
        Outcome::Kernel
    }
    pub fn splice(
        &self,
        _input: RawFd,
        _in_offset: Option<&mut i64>,
        _out: RawFd,
        _out_offset: Option<&mut i64>,
        _count: usize,
        _flags: u32,
    ) -> Outcome<usize> {
        Outcome::Kernel
    }
}
