//! `getsockopt` and `setsockopt`.

use crate::description::{Endpoint, Socket};
use crate::posix::{Outcome, Posix};
use std::os::fd::RawFd;

/// What the program has set.
#[derive(Default)]
pub(crate) struct Recorded;

/// Gives a new core socket what was set before it existed.
pub(crate) fn replay(_socket: &Socket, _endpoint: &Endpoint) {}

/// Gives an accepted connection what its listener had set.
pub(crate) fn inherit(_listener: &Socket, _child: &Socket) {}

impl Posix {
    pub fn getsockopt(&self, _fd: RawFd, _level: i32, _name: i32, _out: &mut [u8]) -> Outcome<usize> {
        Outcome::Kernel
    }
    pub fn setsockopt(&self, _fd: RawFd, _level: i32, _name: i32, _value: &[u8]) -> Outcome<()> {
        Outcome::Kernel
    }
}
