//! The operating system for `lstack-posix`.
//!
//! Implements [`Kernel`] by system calls, see `raw.rs` for why not by libc's functions. Called by
//! application threads inside a hook, and by the driver threads for wake-ups.

use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lstack_posix::{EpollEvent, Errno, Kernel, PollFd, SigSet};

use crate::{foreign_epoll, hidden, raw, signal, thread};

/// The kernel under this process.
pub struct Real;

/// Makes the call named, `SYS_` left out.
macro_rules! syscall {
    ($name:ident $(, $arg:expr)*) => {
        // SAFETY: every pointer among the arguments comes from a reference that lives across the
        // call and goes with its length.
        unsafe { raw::syscall(libc::$name, [$($arg),*]) }
    };
}

impl Kernel for Real {
    fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<RawFd, Errno> {
        let args = [domain, kind, protocol].map(raw::int);
        syscall!(SYS_socket, args[0], args[1], args[2]).map(fd)
    }

    fn bind(&self, fd: RawFd, addr: &[u8]) -> Result<(), Errno> {
        syscall!(SYS_bind, raw::int(fd), start(addr), addr.len()).map(drop)
    }

    fn listen(&self, fd: RawFd, backlog: i32) -> Result<(), Errno> {
        syscall!(SYS_listen, raw::int(fd), raw::int(backlog)).map(drop)
    }

    fn accept4(&self, fd_: RawFd, addr: &mut [u8], flags: i32) -> Result<(RawFd, usize), Errno> {
        let mut len = length(addr);
        let len_at = (&raw mut len) as usize;
        let accepted =
            syscall!(SYS_accept4, raw::int(fd_), start_mut(addr), len_at, raw::int(flags))?;
        Ok((fd(accepted), len as usize))
    }

    fn connect(&self, fd: RawFd, addr: &[u8]) -> Result<(), Errno> {
        syscall!(SYS_connect, raw::int(fd), start(addr), addr.len()).map(drop)
    }

    fn shutdown(&self, fd: RawFd, how: i32) -> Result<(), Errno> {
        syscall!(SYS_shutdown, raw::int(fd), raw::int(how)).map(drop)
    }

    fn getsockname(&self, fd: RawFd, addr: &mut [u8]) -> Result<usize, Errno> {
        let mut len = length(addr);
        let len_at = (&raw mut len) as usize;
        syscall!(SYS_getsockname, raw::int(fd), start_mut(addr), len_at)?;
        Ok(len as usize)
    }

    fn getpeername(&self, fd: RawFd, addr: &mut [u8]) -> Result<usize, Errno> {
        let mut len = length(addr);
        let len_at = (&raw mut len) as usize;
        syscall!(SYS_getpeername, raw::int(fd), start_mut(addr), len_at)?;
        Ok(len as usize)
    }

    fn getsockopt(&self, fd: RawFd, level: i32, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
        let mut len = length(out);
        let len_at = (&raw mut len) as usize;
        let [level, name] = [level, name].map(raw::int);
        syscall!(SYS_getsockopt, raw::int(fd), level, name, start_mut(out), len_at)?;
        Ok(len as usize)
    }

    fn setsockopt(&self, fd: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        let [level, name] = [level, name].map(raw::int);
        syscall!(SYS_setsockopt, raw::int(fd), level, name, start(value), value.len()).map(drop)
    }

    fn close(&self, fd: RawFd) -> Result<(), Errno> {
        syscall!(SYS_close, raw::int(fd)).map(drop)
    }

    fn dup(&self, old: RawFd) -> Result<RawFd, Errno> {
        syscall!(SYS_dup, raw::int(old)).map(fd)
    }

    fn dup3(&self, old: RawFd, new: RawFd, flags: i32) -> Result<RawFd, Errno> {
        syscall!(SYS_dup3, raw::int(old), raw::int(new), raw::int(flags)).map(fd)
    }

    fn fcntl(&self, fd: RawFd, command: i32, arg: usize) -> Result<i32, Errno> {
        syscall!(SYS_fcntl, raw::int(fd), raw::int(command), arg).map(self::fd)
    }

    fn read(&self, fd: RawFd, buf: &mut [u8]) -> Result<usize, Errno> {
        syscall!(SYS_read, raw::int(fd), start_mut(buf), buf.len())
    }

    fn pread(&self, fd: RawFd, buf: &mut [u8], offset: i64) -> Result<usize, Errno> {
        syscall!(SYS_pread64, raw::int(fd), start_mut(buf), buf.len(), offset as usize)
    }

    fn write(&self, fd: RawFd, buf: &[u8]) -> Result<usize, Errno> {
        syscall!(SYS_write, raw::int(fd), start(buf), buf.len())
    }

    fn lseek(&self, fd: RawFd, offset: i64, whence: i32) -> Result<i64, Errno> {
        let position = syscall!(SYS_lseek, raw::int(fd), offset as usize, raw::int(whence))?;
        Ok(position as i64)
    }

    fn recvmsg(
        &self,
        fd: RawFd,
        bufs: &mut [IoSliceMut<'_>],
        addr: &mut [u8],
        flags: i32,
    ) -> Result<(usize, usize, i32), Errno> {
        let mut header = message(addr.as_mut_ptr(), addr.len());
        // `IoSliceMut` has the layout of `iovec`, by its documentation.
        header.msg_iov = bufs.as_mut_ptr().cast();
        header.msg_iovlen = bufs.len();
        let header_at = (&raw mut header) as usize;
        let received = syscall!(SYS_recvmsg, raw::int(fd), header_at, raw::int(flags))?;
        Ok((received, header.msg_namelen as usize, header.msg_flags))
    }

    fn sendmsg(
        &self,
        fd: RawFd,
        bufs: &[IoSlice<'_>],
        addr: &[u8],
        flags: i32,
    ) -> Result<usize, Errno> {
        let mut header = message(addr.as_ptr().cast_mut(), addr.len());
        // `IoSlice` has the layout of `iovec`, by its documentation; the kernel only reads.
        header.msg_iov = bufs.as_ptr().cast_mut().cast();
        header.msg_iovlen = bufs.len();
        syscall!(SYS_sendmsg, raw::int(fd), (&raw const header) as usize, raw::int(flags))
    }

    fn poll(
        &self,
        fds: &mut [PollFd],
        timeout: Option<Duration>,
        mask: Option<&SigSet>,
    ) -> Result<usize, Errno> {
        let timeout = timeout.map(raw::timespec);
        signal::asleep(mask.map(|mask| mask.0), |mask| {
            let fds_at = fds.as_mut_ptr() as usize;
            syscall!(SYS_ppoll, fds_at, fds.len(), at(timeout.as_ref()), at(mask), MASK_SIZE)
        })
    }

    fn epoll_create1(&self, flags: i32) -> Result<RawFd, Errno> {
        syscall!(SYS_epoll_create1, raw::int(flags)).map(fd)
    }

    fn epoll_ctl(&self, epfd: RawFd, op: i32, fd: RawFd, event: EpollEvent) -> Result<(), Errno> {
        let event = libc::epoll_event { events: event.events, u64: event.data };
        let event_at = (&raw const event) as usize;
        syscall!(SYS_epoll_ctl, raw::int(epfd), raw::int(op), raw::int(fd), event_at).map(drop)
    }

    fn epoll_wait(
        &self,
        epfd: RawFd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
        mask: Option<&SigSet>,
    ) -> Result<usize, Errno> {
        let mut found = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_AT_ONCE];
        let room = found.len().min(events.len());
        let count = signal::asleep(mask.map(|mask| mask.0), |mask| {
            epoll_pwait(epfd, &mut found[..room], timeout, mask)
        })?;
        for (event, found) in events.iter_mut().zip(&found[..count]) {
            *event = EpollEvent { events: found.events, data: found.u64 };
        }
        Ok(count)
    }

    fn eventfd(&self) -> Result<RawFd, Errno> {
        let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
        let low = syscall!(SYS_eventfd2, 0, raw::int(flags)).map(fd)?;
        Ok(hidden::move_up(low))
    }

    fn hidden_socket(&self) -> Result<RawFd, Errno> {
        self.hidden_socket_of(libc::AF_INET)
    }

    fn hidden_socket_of(&self, domain: i32) -> Result<RawFd, Errno> {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        self.socket(domain, kind, 0).map(hidden::move_up)
    }

    fn dup_hidden(&self, fd: RawFd) -> Result<RawFd, Errno> {
        hidden::duplicate(fd)
    }

    fn close_hidden(&self, fd: RawFd) {
        hidden::close(fd);
    }

    fn epoll_sleepers(&self, name: &mut dyn FnMut(RawFd)) {
        foreign_epoll::name_sleepers(name);
    }

    fn is_watched(&self, fd: RawFd) -> bool {
        foreign_epoll::is_watched(fd)
    }

    fn futex_wait(
        &self,
        word: &AtomicU32,
        expected: u32,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        signal::asleep_on_word(word, expected, timeout)
    }

    fn futex_wake(&self, word: &AtomicU32, waiters: u32) {
        raw::futex_wake(word, waiters);
    }

    fn interfaces(&self) -> Vec<(IpAddr, u8)> {
        let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        let prefix = |mask: &[u8]| mask.iter().map(|byte| byte.count_ones() as u8).sum();
        let described = interfaces.into_iter().map(|interface| match interface.addr {
            if_addrs::IfAddr::V4(v4) => (v4.ip.into(), prefix(&v4.netmask.octets())),
            if_addrs::IfAddr::V6(v6) => (v6.ip.into(), prefix(&v6.netmask.octets())),
        });
        described.collect()
    }

    fn raise_sigpipe(&self) {
        let [process, thread] = [raw::process_id(), raw::thread_id()];
        let _ = syscall!(SYS_tgkill, process, thread, raw::int(libc::SIGPIPE));
    }

    fn signals_seen(&self) -> (u64, u64) {
        thread::with(thread::Thread::ask_handled)
    }

    fn safe_point(&self) {
        thread::with(thread::Thread::safe_point);
    }
}

/// `epoll_pwait2`, or what comes closest to it before Linux 5.11.
fn epoll_pwait(
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
    mask: Option<&u64>,
) -> Result<usize, Errno> {
    static MISSING: AtomicBool = AtomicBool::new(false);
    let [epfd, events_at, room] = [raw::int(epfd), events.as_mut_ptr() as usize, events.len()];
    if !MISSING.load(Ordering::Relaxed) {
        let timeout = timeout.map(raw::timespec);
        let timeout_at = at(timeout.as_ref());
        match syscall!(SYS_epoll_pwait2, epfd, events_at, room, timeout_at, at(mask), MASK_SIZE) {
            Err(Errno(libc::ENOSYS)) => MISSING.store(true, Ordering::Relaxed),
            result => return result,
        }
    }
    // Rounded up: a program that waits for its own timer must not wake before it.
    let milliseconds = timeout.map_or(-1, |timeout| {
        i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    });
    let timeout = raw::int(milliseconds);
    syscall!(SYS_epoll_pwait, epfd, events_at, room, timeout, at(mask), MASK_SIZE)
}

fn message(name: *mut u8, name_len: usize) -> libc::msghdr {
    // SAFETY: all zero is a message header without anything.
    let mut header = unsafe { std::mem::zeroed::<libc::msghdr>() };
    if name_len > 0 {
        header.msg_name = name.cast();
        header.msg_namelen = name_len as libc::socklen_t;
    }
    header
}

/// The address of a slice for the kernel: null when there is nothing.
fn start(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { bytes.as_ptr() as usize }
}

fn start_mut(bytes: &mut [u8]) -> usize {
    if bytes.is_empty() { 0 } else { bytes.as_mut_ptr() as usize }
}

fn length(bytes: &[u8]) -> libc::socklen_t {
    libc::socklen_t::try_from(bytes.len()).unwrap_or(libc::socklen_t::MAX)
}

fn at<T>(value: Option<&T>) -> usize {
    value.map_or(0, |value| ptr::from_ref(value) as usize)
}

/// A result of the kernel that is an `int`.
fn fd(result: usize) -> RawFd {
    result as RawFd
}

/// The size of the kernel's signal mask.
const MASK_SIZE: usize = size_of::<u64>();

/// Events taken from the kernel in one call: more than most programs ask for, little enough for
/// the stack of a small thread (3 KiB).
const EVENTS_AT_ONCE: usize = 256;
