//! Moving data: `read`, `write`, `recvmsg`, `sendmsg` and their relatives.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use lstack_core::tcp::{More, RecvError, RecvMode, SendError};
use lstack_core::udp::{Datagram, UdpRecvError, UdpSendError};
use lstack_core::{Protocol, Readiness};

use crate::address;
use crate::control;
use crate::description::{Endpoint, Handle, State};
use crate::errno::Errno;
use crate::kernel::PollFd;
use crate::posix::{Outcome, Posix, RecvMsg, ours};
use crate::route::Path;
use crate::socket::{INPUT, KERNEL_SHARE, OUTPUT};
use crate::wait::Ask;

impl Posix {
    /// `read` and `readv`.
    pub fn read(&self, fd: RawFd, bufs: &mut [IoSliceMut<'_>]) -> Outcome<usize> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            // Unlike `recv`, `read` of nothing returns at once.
            let handle = ours!(self.socket_handle(fd));
            return match &**handle.socket().state() {
                State::Kernel | State::Undecided(_) => Outcome::Kernel,
                _ => Outcome::Done(Ok(0)),
            };
        }
        match self.recvmsg(fd, bufs, &mut [], &mut [], 0) {
            Outcome::Kernel => Outcome::Kernel,
            Outcome::Done(result) => Outcome::Done(result.map(|received| received.len)),
        }
    }

    /// `write` and `writev`.
    pub fn write(&self, fd: RawFd, bufs: &[IoSlice<'_>]) -> Outcome<usize> {
        self.sendmsg(fd, bufs, &[], &[], 0)
    }

    /// `send`, `sendto`, `sendmsg`; an empty `to` means no address.
    pub fn sendmsg(
        &self,
        fd: RawFd,
        bufs: &[IoSlice<'_>],
        to: &[u8],
        _control: &[u8],
        flags: i32,
    ) -> Outcome<usize> {
        let handle = ours!(self.socket_handle(fd));
        match handle.socket().protocol {
            Protocol::Tcp => {
                let state = handle.socket().state();
                match &**state {
                    State::Connection(endpoint) => {
                        Outcome::Done(self.send_stream(&handle, endpoint, bufs, flags))
                    }
                    State::Listener { .. } => Outcome::Done(self.broken_pipe(flags)),
                    State::Kernel | State::Undecided(_) | State::Datagram { .. } => Outcome::Kernel,
                }
            }
            Protocol::Udp => self.send_datagram(&handle, bufs, to, flags),
        }
    }

    /// `recv`, `recvfrom`, `recvmsg`.
    pub fn recvmsg(
        &self,
        fd: RawFd,
        bufs: &mut [IoSliceMut<'_>],
        name: &mut [u8],
        control: &mut [u8],
        flags: i32,
    ) -> Outcome<RecvMsg> {
        let handle = ours!(self.socket_handle(fd));
        let state = handle.socket().state();
        match &**state {
            State::Kernel | State::Undecided(_) => Outcome::Kernel,
            State::Listener { .. } => Outcome::Done(Err(Errno(libc::ENOTCONN))),
            State::Connection(endpoint) => {
                let received = self.recv_stream(&handle, endpoint, bufs, flags);
                Outcome::Done(received.map(|len| RecvMsg { len, ..RecvMsg::default() }))
            }
            State::Datagram { endpoint, kernel } => {
                let mut into = Into { bufs, name, control, flags };
                Outcome::Done(self.recv_datagram(&handle, endpoint, *kernel, &mut into))
            }
        }
    }

    /// `send` for callers inside this crate, on a TCP connection.
    pub(crate) fn send_bytes(
        &self,
        handle: &Handle,
        bufs: &[IoSlice<'_>],
        flags: i32,
    ) -> Result<usize, Errno> {
        match &**handle.socket().state() {
            State::Connection(endpoint) => self.send_stream(handle, endpoint, bufs, flags),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// `recv` for callers inside this crate, on a TCP connection.
    pub(crate) fn recv_bytes(
        &self,
        handle: &Handle,
        bufs: &mut [IoSliceMut<'_>],
        flags: i32,
    ) -> Result<usize, Errno> {
        match &**handle.socket().state() {
            State::Connection(endpoint) => self.recv_stream(handle, endpoint, bufs, flags),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Sends all of `bufs` on a blocking socket, what fits on a non-blocking one.
    fn send_stream(
        &self,
        handle: &Handle,
        endpoint: &Endpoint,
        bufs: &[IoSlice<'_>],
        flags: i32,
    ) -> Result<usize, Errno> {
        if endpoint.cell.failed() {
            return Err(Errno(libc::ECONNRESET));
        }
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        let more = if flags & libc::MSG_MORE != 0 { More::Yes } else { More::No };
        let mut sent = 0;
        let mut attempt = |_: Ask| {
            let mut guard = endpoint.enter();
            // An error that came after some bytes went belongs to the next call.
            if sent > 0 && guard.stack().readiness(endpoint.socket).contains(Readiness::ERROR) {
                return Some(Ok(sent));
            }
            let now = guard.now();
            match guard.stack().tcp_send(now, endpoint.socket, bufs, sent, more) {
                Ok(taken) => {
                    sent += taken;
                    (sent == total).then_some(Ok(sent))
                }
                Err(SendError::WouldBlock) => None,
                Err(_) if sent > 0 => Some(Ok(sent)),
                Err(error) => Some(Err(Errno::from(error))),
            }
        };
        let result = if total == 0 {
            return self.send_nothing(endpoint, flags);
        } else if let Some(result) = attempt(Ask::Stack) {
            result
        } else if handle.nonblocking(flags) {
            if sent > 0 { Ok(sent) } else { Err(Errno(libc::EAGAIN)) }
        } else {
            let patience = self.send_patience(handle.socket());
            let endpoints = std::slice::from_ref(endpoint);
            match self.wait_until(endpoints, OUTPUT, &[], patience, attempt) {
                Ok(result) => result,
                Err(_) if sent > 0 => Ok(sent),
                Err(ended) => Err(ended.errno(libc::EAGAIN)),
            }
        };
        match result {
            Err(Errno(libc::EPIPE)) => self.broken_pipe(flags),
            other => other,
        }
    }

    /// `send` of no bytes: succeeds wherever bytes could be sent.
    fn send_nothing(&self, endpoint: &Endpoint, flags: i32) -> Result<usize, Errno> {
        let mut guard = endpoint.enter();
        let now = guard.now();
        let result = guard.stack().tcp_send(now, endpoint.socket, &[], 0, More::No);
        drop(guard);
        match result {
            Ok(_) | Err(SendError::WouldBlock) => Ok(0),
            Err(SendError::BrokenPipe) => self.broken_pipe(flags),
            Err(SendError::Failed(error)) => Err(error.into()),
        }
    }

    fn broken_pipe(&self, flags: i32) -> Result<usize, Errno> {
        if flags & libc::MSG_NOSIGNAL == 0 {
            self.raise_sigpipe();
        }
        Err(Errno(libc::EPIPE))
    }

    fn recv_stream(
        &self,
        handle: &Handle,
        endpoint: &Endpoint,
        bufs: &mut [IoSliceMut<'_>],
        flags: i32,
    ) -> Result<usize, Errno> {
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(Errno(libc::EAGAIN));
        }
        if flags & libc::MSG_OOB != 0 {
            // Urgent data is part of the stream here, so there is never any beside it.
            return Err(Errno(libc::EINVAL));
        }
        if endpoint.cell.failed() {
            return Err(Errno(libc::ECONNRESET));
        }
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mode = if flags & libc::MSG_PEEK != 0 {
            RecvMode::Peek
        } else if flags & libc::MSG_TRUNC != 0 {
            RecvMode::Discard
        } else {
            RecvMode::Take
        };
        let wanted = if flags & libc::MSG_WAITALL != 0 { total } else { total.min(1) };
        let mut got = 0;
        let mut attempt = |_: Ask| {
            let mut guard = endpoint.enter_to_receive();
            // Peeking starts over each time: what was seen is still there.
            let skip = if mode == RecvMode::Peek { 0 } else { got };
            let now = guard.now();
            match guard.stack().tcp_recv(now, endpoint.socket, bufs, skip, mode) {
                // End of stream; or, for a buffer of no bytes, data is there.
                Ok(0) => Some(Ok(got)),
                Ok(taken) => {
                    got = skip + taken;
                    (got >= wanted).then_some(Ok(got))
                }
                Err(RecvError::WouldBlock) => None,
                Err(_) if got > 0 => Some(Ok(got)),
                Err(error) => Some(Err(Errno::from(error))),
            }
        };
        if let Some(result) = attempt(Ask::Stack) {
            return result;
        }
        if handle.nonblocking(flags) {
            return if got > 0 { Ok(got) } else { Err(Errno(libc::EAGAIN)) };
        }
        let patience = self.receive_patience(handle.socket());
        let endpoints = std::slice::from_ref(endpoint);
        match self.wait_until(endpoints, INPUT, &[], patience, attempt) {
            Ok(result) => result,
            Err(_) if got > 0 => Ok(got),
            Err(ended) => Err(ended.errno(libc::EAGAIN)),
        }
    }

    /// Sends one datagram in the world its destination belongs to.
    fn send_datagram(
        &self,
        handle: &Handle,
        bufs: &[IoSlice<'_>],
        to: &[u8],
        flags: i32,
    ) -> Outcome<usize> {
        let socket = handle.socket();
        let remote = if to.is_empty() || address::is_unspecified(to) {
            None
        } else {
            match address::decode(to, socket.family) {
                Ok(remote) if remote.port() == 0 => return Outcome::Done(Err(Errno(libc::EINVAL))),
                Ok(remote) => Some(remote),
                Err(errno) => return Outcome::Done(Err(errno)),
            }
        };
        let in_kernel = match (&**socket.state(), remote) {
            (State::Kernel, _) | (State::Undecided(_), None) => true,
            (State::Datagram { kernel: true, .. } | State::Undecided(_), Some(remote)) => {
                self.router.connect_via(&*self.kernel, remote.ip()).path != Path::Stack
            }
            _ => false,
        };
        if matches!(&**socket.state(), State::Undecided(_)) && remote.is_some() {
            let _moving = socket.transition.lock();
            // Somebody else may have sent the first datagram in between.
            if matches!(&**socket.state(), State::Undecided(_))
                && let Err(errno) = self.bind_wildcard(handle)
            {
                return Outcome::Done(Err(errno));
            }
        }
        let state = socket.state();
        match &**state {
            State::Datagram { endpoint, .. } if !in_kernel => {
                Outcome::Done(self.send_in_stack(handle, endpoint, bufs, remote, flags))
            }
            _ => Outcome::Kernel,
        }
    }

    fn send_in_stack(
        &self,
        handle: &Handle,
        endpoint: &Endpoint,
        bufs: &[IoSlice<'_>],
        remote: Option<std::net::SocketAddr>,
        flags: i32,
    ) -> Result<usize, Errno> {
        if endpoint.cell.failed() {
            return Err(Errno(libc::ENETDOWN));
        }
        let mut attempt = |_: Ask| match endpoint.enter().udp_send(endpoint.socket, remote, bufs) {
            Ok(sent) => Some(Ok(sent)),
            Err(UdpSendError::WouldBlock) => None,
            Err(error) => Some(Err(Errno::from(error))),
        };
        if let Some(result) = attempt(Ask::Stack) {
            return result;
        }
        if handle.nonblocking(flags) {
            return Err(Errno(libc::EAGAIN));
        }
        // The device makes room at its own pace and tells nobody: spin with it, then look again
        // every so often.
        let patience = self.send_patience(handle.socket());
        loop {
            let mut turn = patience;
            let soon = std::time::Instant::now() + DEVICE_FULL_NAP;
            turn.deadline = Some(patience.deadline.map_or(soon, |deadline| deadline.min(soon)));
            let endpoints = std::slice::from_ref(endpoint);
            match self.wait_until(endpoints, Readiness::all(), &[], turn, &mut attempt) {
                Ok(result) => return result,
                Err(crate::wait::Ended::TimedOut)
                    if patience.deadline.is_none_or(|end| std::time::Instant::now() < end) => {}
                Err(ended) => return Err(ended.errno(libc::EAGAIN)),
            }
        }
    }

    fn recv_datagram(
        &self,
        handle: &Handle,
        endpoint: &Endpoint,
        kernel: bool,
        into: &mut Into<'_, '_>,
    ) -> Result<RecvMsg, Errno> {
        if into.flags & libc::MSG_ERRQUEUE != 0 {
            return Err(Errno(libc::EAGAIN));
        }
        if endpoint.cell.failed() {
            return Err(Errno(libc::ENETDOWN));
        }
        let flags = into.flags;
        let mut attempt =
            |ask: Ask| self.try_recv_datagram(handle, endpoint, kernel, ask, into).transpose();
        let first = if handle.nonblocking(flags) { Ask::Both } else { Ask::Stack };
        if let Some(result) = attempt(first) {
            return result;
        }
        if handle.nonblocking(flags) {
            return Err(Errno(libc::EAGAIN));
        }
        let placeholder = PollFd { fd: handle.fd, events: libc::POLLIN, revents: 0 };
        let kernel_fds = if kernel { std::slice::from_ref(&placeholder) } else { &[] };
        let patience = self.receive_patience(handle.socket());
        let endpoints = std::slice::from_ref(endpoint);
        self.wait_until(endpoints, INPUT, kernel_fds, patience, attempt)
            .unwrap_or_else(|ended| Err(ended.errno(libc::EAGAIN)))
    }

    fn try_recv_datagram(
        &self,
        handle: &Handle,
        endpoint: &Endpoint,
        kernel: bool,
        ask: Ask,
        into: &mut Into<'_, '_>,
    ) -> Result<Option<RecvMsg>, Errno> {
        let kernel_first = kernel
            && handle.socket().turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(KERNEL_SHARE);
        if kernel_first && let Some(received) = self.recv_from_kernel(handle, into)? {
            return Ok(Some(received));
        }
        if let Some(received) = self.recv_from_stack(handle, endpoint, into)? {
            return Ok(Some(received));
        }
        if kernel && !kernel_first && ask == Ask::Both {
            return self.recv_from_kernel(handle, into);
        }
        Ok(None)
    }

    fn recv_from_kernel(
        &self,
        handle: &Handle,
        into: &mut Into<'_, '_>,
    ) -> Result<Option<RecvMsg>, Errno> {
        let flags = into.flags | libc::MSG_DONTWAIT;
        match self.kernel.recvmsg(handle.fd, into.bufs, into.name, flags) {
            Ok((len, name_len, flags)) => {
                Ok(Some(RecvMsg { len, name_len, control_len: 0, flags }))
            }
            Err(Errno(libc::EAGAIN)) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn recv_from_stack(
        &self,
        handle: &Handle,
        endpoint: &Endpoint,
        into: &mut Into<'_, '_>,
    ) -> Result<Option<RecvMsg>, Errno> {
        let peek = into.flags & libc::MSG_PEEK != 0;
        let mut guard = endpoint.enter_to_receive();
        let received = guard.stack().udp_recv(endpoint.socket, into.bufs, peek);
        drop(guard);
        match received {
            Ok(datagram) => Ok(Some(self.describe(handle, &datagram, into))),
            Err(UdpRecvError::WouldBlock) => Ok(None),
            Err(UdpRecvError::Shutdown) => Ok(Some(RecvMsg::default())),
            Err(error @ UdpRecvError::Failed(_)) => Err(error.into()),
        }
    }

    /// Everything `recvmsg` says of a datagram besides its bytes.
    fn describe(&self, handle: &Handle, datagram: &Datagram, into: &mut Into<'_, '_>) -> RecvMsg {
        let socket = handle.socket();
        let truncated = datagram.copied < datagram.len;
        let whole = into.flags & libc::MSG_TRUNC != 0;
        let mut flags = if truncated { libc::MSG_TRUNC } else { 0 };
        let name_len = address::encode(datagram.from, socket.family, into.name);
        let mut control_len = 0;
        if !into.control.is_empty() {
            let settings = *socket.settings.lock();
            let mut writer = control::Writer::new(into.control);
            writer.datagram(&settings, socket.family, datagram);
            if writer.truncated() {
                flags |= libc::MSG_CTRUNC;
            }
            control_len = writer.len();
        }
        let len = if whole { datagram.len } else { datagram.copied };
        RecvMsg { len, name_len, control_len, flags }
    }
}

/// Where a received datagram goes.
struct Into<'a, 'b> {
    bufs: &'a mut [IoSliceMut<'b>],
    name: &'a mut [u8],
    control: &'a mut [u8],
    flags: i32,
}

/// A full device empties a ring of a thousand frames in less; longer would idle it, shorter would
/// cost more system calls than it saves.
const DEVICE_FULL_NAP: std::time::Duration = std::time::Duration::from_micros(200);
