//! The calls.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use lstack_runtime::Runtime;

use crate::errno::Errno;
use crate::kernel::{EpollEvent, Kernel, PollFd, SigSet};

/// Who answers a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The descriptor is none of ours: make the real call with the caller's own arguments.
    Kernel,
    /// Answered.
    Done(Result<T, Errno>),
}

/// How long a call may wait: `None` for ever.
pub type Timeout = Option<Duration>;

/// A `fd_set` of `select`, as words of 64 descriptors; as long as `nfds` needs.
pub type FdSet<'a> = Option<&'a mut [u64]>;

/// What `recvmsg` returns besides the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvMsg {
    /// Bytes received (with `MSG_TRUNC`, the datagram's length).
    pub len: usize,
    /// Full length of the sender's address; the buffer may have been shorter.
    pub name_len: usize,
    /// Bytes of control messages written.
    pub control_len: usize,
    /// `msg_flags`.
    pub flags: i32,
}

/// The descriptors of a process and its stacks.
pub struct Posix {}

#[allow(missing_docs, reason = "one method per call of the same name in design.md section 5")]
impl Posix {
    /// Over running stacks.
    #[must_use]
    pub fn new(
        _config: &lstack_config::Config,
        _runtime: Runtime,
        _kernel: Arc<dyn Kernel>,
    ) -> Self {
        todo!()
    }

    /// Whether `fd` is one of ours in any way; one atomic load, safe in signal handlers.
    #[must_use]
    pub fn knows(&self, _fd: RawFd) -> bool {
        todo!()
    }

    pub fn socket(&self, _domain: i32, _kind: i32, _protocol: i32) -> Outcome<RawFd> {
        todo!()
    }
    pub fn bind(&self, _fd: RawFd, _addr: &[u8]) -> Outcome<()> {
        todo!()
    }
    pub fn listen(&self, _fd: RawFd, _backlog: i32) -> Outcome<()> {
        todo!()
    }
    /// Writes at most `addr.len()` bytes of the peer's address, returns the descriptor and the
    /// address's full length.
    pub fn accept4(&self, _fd: RawFd, _addr: &mut [u8], _flags: i32) -> Outcome<(RawFd, usize)> {
        todo!()
    }
    pub fn connect(&self, _fd: RawFd, _addr: &[u8]) -> Outcome<()> {
        todo!()
    }
    pub fn getsockname(&self, _fd: RawFd, _addr: &mut [u8]) -> Outcome<usize> {
        todo!()
    }
    pub fn getpeername(&self, _fd: RawFd, _addr: &mut [u8]) -> Outcome<usize> {
        todo!()
    }
    pub fn getsockopt(
        &self,
        _fd: RawFd,
        _level: i32,
        _name: i32,
        _out: &mut [u8],
    ) -> Outcome<usize> {
        todo!()
    }
    pub fn setsockopt(&self, _fd: RawFd, _level: i32, _name: i32, _value: &[u8]) -> Outcome<()> {
        todo!()
    }
    pub fn shutdown(&self, _fd: RawFd, _how: i32) -> Outcome<()> {
        todo!()
    }
    pub fn close(&self, _fd: RawFd) -> Outcome<()> {
        todo!()
    }
    /// `read` and `readv`.
    pub fn read(&self, _fd: RawFd, _bufs: &mut [IoSliceMut<'_>]) -> Outcome<usize> {
        todo!()
    }
    /// `write` and `writev`.
    pub fn write(&self, _fd: RawFd, _bufs: &[IoSlice<'_>]) -> Outcome<usize> {
        todo!()
    }
    /// `send`, `sendto`, `sendmsg`; an empty `to` means no address.
    pub fn sendmsg(
        &self,
        _fd: RawFd,
        _bufs: &[IoSlice<'_>],
        _to: &[u8],
        _control: &[u8],
        _flags: i32,
    ) -> Outcome<usize> {
        todo!()
    }
    /// `recv`, `recvfrom`, `recvmsg`.
    pub fn recvmsg(
        &self,
        _fd: RawFd,
        _bufs: &mut [IoSliceMut<'_>],
        _name: &mut [u8],
        _control: &mut [u8],
        _flags: i32,
    ) -> Outcome<RecvMsg> {
        todo!()
    }
    /// `offset`: in and out, `None` uses and moves the file's own position.
    pub fn sendfile(
        &self,
        _out: RawFd,
        _input: RawFd,
        _offset: Option<&mut i64>,
        _count: usize,
    ) -> Outcome<usize> {
        todo!()
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
        todo!()
    }
    pub fn poll(
        &self,
        _fds: &mut [PollFd],
        _timeout: Timeout,
        _mask: Option<&SigSet>,
    ) -> Outcome<usize> {
        todo!()
    }
    pub fn select(
        &self,
        _nfds: usize,
        _read: FdSet<'_>,
        _write: FdSet<'_>,
        _except: FdSet<'_>,
        _timeout: Timeout,
        _mask: Option<&SigSet>,
    ) -> Outcome<usize> {
        todo!()
    }
    /// Called after the kernel made an epoll instance: nothing to do until a socket of ours joins.
    pub fn epoll_ctl(
        &self,
        _epfd: RawFd,
        _op: i32,
        _fd: RawFd,
        _event: Option<EpollEvent>,
    ) -> Outcome<()> {
        todo!()
    }
    pub fn epoll_wait(
        &self,
        _epfd: RawFd,
        _events: &mut [EpollEvent],
        _timeout: Timeout,
        _mask: Option<&SigSet>,
    ) -> Outcome<usize> {
        todo!()
    }
    pub fn fcntl(&self, _fd: RawFd, _command: i32, _arg: usize) -> Outcome<i32> {
        todo!()
    }
    /// `value`: the caller's int for requests that read or write one.
    pub fn ioctl(&self, _fd: RawFd, _request: u64, _value: Option<&mut i32>) -> Outcome<i32> {
        todo!()
    }
    pub fn dup(&self, _fd: RawFd) -> Outcome<RawFd> {
        todo!()
    }
    /// `dup2` (`flags` 0, equal numbers allowed) is decided by the caller; this is `dup3`.
    pub fn dup3(&self, _old: RawFd, _new: RawFd, _flags: i32) -> Outcome<RawFd> {
        todo!()
    }
    /// Before the kernel closes `first..=last`: ours among them are closed or marked.
    pub fn close_range(&self, _first: u32, _last: u32, _flags: i32) -> Outcome<()> {
        todo!()
    }
    /// At exit: closes what is open, lets orphans finish within `exit_linger`.
    pub fn finish(&self) {
        todo!()
    }
    /// Counters of every stack, sockets, and the path decision of every descriptor with its
    /// reason, as JSON.
    #[must_use]
    pub fn stats_json(&self) -> String {
        todo!()
    }
}
