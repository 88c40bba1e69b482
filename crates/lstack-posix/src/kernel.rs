//! The operating system as this crate uses it.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::errno::Errno;

/// `struct pollfd`.
pub use libc::pollfd as PollFd;

/// `struct epoll_event`, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// `EPOLL*` bits.
    pub events: u32,
    /// The caller's 64 bits.
    pub data: u64,
}

/// A signal mask: bit `n - 1` is signal `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SigSet(pub u64);

/// System calls on kernel descriptors, sleeping, and what the signal wrapper saw.
///
/// Implementations call the real functions behind the preloaded names. Addresses are raw
/// `sockaddr` bytes. Calls never retry on `EINTR`.
#[allow(missing_docs, reason = "one method per system call of the same name")]
pub trait Kernel: Send + Sync + 'static {
    fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<RawFd, Errno>;
    fn bind(&self, fd: RawFd, addr: &[u8]) -> Result<(), Errno>;
    fn listen(&self, fd: RawFd, backlog: i32) -> Result<(), Errno>;
    /// Fills `addr`, returns the descriptor and the full length of the address.
    fn accept4(&self, fd: RawFd, addr: &mut [u8], flags: i32) -> Result<(RawFd, usize), Errno>;
    fn connect(&self, fd: RawFd, addr: &[u8]) -> Result<(), Errno>;
    fn shutdown(&self, fd: RawFd, how: i32) -> Result<(), Errno>;
    fn getsockname(&self, fd: RawFd, addr: &mut [u8]) -> Result<usize, Errno>;
    fn getpeername(&self, fd: RawFd, addr: &mut [u8]) -> Result<usize, Errno>;
    fn getsockopt(&self, fd: RawFd, level: i32, name: i32, out: &mut [u8]) -> Result<usize, Errno>;
    fn setsockopt(&self, fd: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno>;
    fn close(&self, fd: RawFd) -> Result<(), Errno>;
    fn dup(&self, fd: RawFd) -> Result<RawFd, Errno>;
    fn dup3(&self, old: RawFd, new: RawFd, flags: i32) -> Result<RawFd, Errno>;
    fn fcntl(&self, fd: RawFd, command: i32, arg: usize) -> Result<i32, Errno>;
    fn read(&self, fd: RawFd, buf: &mut [u8]) -> Result<usize, Errno>;
    fn pread(&self, fd: RawFd, buf: &mut [u8], offset: i64) -> Result<usize, Errno>;
    fn write(&self, fd: RawFd, buf: &[u8]) -> Result<usize, Errno>;
    fn lseek(&self, fd: RawFd, offset: i64, whence: i32) -> Result<i64, Errno>;
    /// `recvfrom` with scattered buffers; fills `addr`, returns bytes, address length, `msg_flags`.
    fn recvmsg(
        &self,
        fd: RawFd,
        bufs: &mut [std::io::IoSliceMut<'_>],
        addr: &mut [u8],
        flags: i32,
    ) -> Result<(usize, usize, i32), Errno>;
    /// `sendto` with gathered buffers; an empty `addr` means none.
    fn sendmsg(
        &self,
        fd: RawFd,
        bufs: &[std::io::IoSlice<'_>],
        addr: &[u8],
        flags: i32,
    ) -> Result<usize, Errno>;
    /// `ppoll`. `None` waits for ever. Deferred signal handlers run before and after, handlers run
    /// at once inside, and a signal that came since the last [`Self::signals_seen`] the calling
    /// thread made ends the sleep with `EINTR` even if it came before the sleep began.
    fn poll(
        &self,
        fds: &mut [PollFd],
        timeout: Option<Duration>,
        mask: Option<&SigSet>,
    ) -> Result<usize, Errno>;
    fn epoll_create1(&self, flags: i32) -> Result<RawFd, Errno>;
    fn epoll_ctl(&self, epfd: RawFd, op: i32, fd: RawFd, event: EpollEvent) -> Result<(), Errno>;
    /// `epoll_pwait2`, sleeping as [`Self::poll`] does.
    fn epoll_wait(
        &self,
        epfd: RawFd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
        mask: Option<&SigSet>,
    ) -> Result<usize, Errno>;
    /// A close-on-exec, non-blocking eventfd at a high number, hidden from the program.
    fn eventfd(&self) -> Result<RawFd, Errno>;
    /// A TCP socket that is never used, at a high number, hidden from the program: accepted
    /// connections get their numbers as duplicates of it.
    fn hidden_socket(&self) -> Result<RawFd, Errno>;
    /// As [`Self::hidden_socket`], of a family: options of accepted connections are checked on it.
    fn hidden_socket_of(&self, domain: i32) -> Result<RawFd, Errno>;
    /// Another descriptor of what `fd` refers to, hidden like the others.
    fn dup_hidden(&self, fd: RawFd) -> Result<RawFd, Errno> {
        self.fcntl(fd, libc::F_DUPFD_CLOEXEC, 3)
    }
    /// Closes a hidden descriptor.
    fn close_hidden(&self, fd: RawFd);
    /// Names every descriptor on which a thread is in a real epoll wait that was not made through
    /// [`Self::epoll_wait`]. A thread is on the list before it asks [`crate::Posix::knows_epoll`].
    fn epoll_sleepers(&self, _name: &mut dyn FnMut(RawFd)) {}
    /// Whether the number has been added to an epoll instance while [`crate::Posix::knows`] did
    /// not know it. Better yes than no when in doubt.
    fn is_watched(&self, _fd: RawFd) -> bool {
        false
    }
    /// Sleeps while `word` holds `expected`, with the signal rules of [`Self::poll`]. Returning
    /// for no reason is allowed.
    fn futex_wait(
        &self,
        word: &AtomicU32,
        expected: u32,
        timeout: Option<Duration>,
    ) -> Result<(), Errno>;
    fn futex_wake(&self, word: &AtomicU32, waiters: u32);
    /// The addresses of the kernel's interfaces with prefix lengths.
    fn interfaces(&self) -> Vec<(IpAddr, u8)>;
    /// Raises `SIGPIPE` in the calling thread.
    fn raise_sigpipe(&self);
    /// How many signal handlers of the program ran in this thread so far: all, and those installed
    /// without `SA_RESTART`.
    fn signals_seen(&self) -> (u64, u64);
    /// No lock is held here: handlers that came while one was held run now.
    fn safe_point(&self);
}
