//! `accept`: one queue per stack, and the kernel's for a listener of both worlds.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lstack_core::Protocol;
use lstack_core::tcp::{AcceptError, Accepted};

use crate::address;
use crate::description::{Endpoint, Handle, Socket, State};
use crate::errno::Errno;
use crate::fd_table::FdTable;
use crate::kernel::PollFd;
use crate::options;
use crate::posix::{Outcome, Posix, ours};
use crate::route::Reason;
use crate::socket::{INPUT, KERNEL_SHARE};
use crate::wait::Ask;

impl Posix {
    /// Takes a connection of either world. Writes at most `addr.len()` bytes of the peer's address,
    /// returns the descriptor and the address's full length.
    pub fn accept4(&self, fd: RawFd, addr: &mut [u8], flags: i32) -> Outcome<(RawFd, usize)> {
        let handle = ours!(self.socket_handle(fd));
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Outcome::Done(Err(Errno(libc::EINVAL)));
        }
        let state = handle.socket().state();
        let (endpoints, kernel) = match &**state {
            State::Listener { endpoints, kernel } => (endpoints, *kernel),
            State::Connection(_) => return Outcome::Done(Err(Errno(libc::EINVAL))),
            // The placeholder is no listener either and says so.
            State::Undecided(_) | State::Kernel | State::Datagram { .. } => return Outcome::Kernel,
        };
        let mut attempt =
            |ask: Ask| self.try_accept(&handle, endpoints, kernel, ask, addr, flags).transpose();
        let first = if handle.nonblocking(0) { Ask::Both } else { Ask::Stack };
        if let Some(result) = attempt(first) {
            return Outcome::Done(result);
        }
        if handle.nonblocking(0) {
            return Outcome::Done(Err(Errno(libc::EAGAIN)));
        }
        let placeholder = PollFd { fd, events: libc::POLLIN, revents: 0 };
        let kernel_fds = if kernel { std::slice::from_ref(&placeholder) } else { &[] };
        let patience = self.receive_patience(handle.socket());
        let result = self.wait_until(endpoints, INPUT, kernel_fds, patience, attempt);
        Outcome::Done(result.unwrap_or_else(|ended| Err(ended.errno(libc::EAGAIN))))
    }

    /// One try at both queues: `None` when both are empty. The world asked first alternates once
    /// both have something, so neither starves the other.
    fn try_accept(
        &self,
        handle: &Handle,
        endpoints: &[Endpoint],
        kernel: bool,
        ask: Ask,
        addr: &mut [u8],
        flags: i32,
    ) -> Result<Option<(RawFd, usize)>, Errno> {
        let kernel_first = kernel
            && handle.socket().turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(KERNEL_SHARE);
        if kernel_first && let Some(taken) = self.accept_from_kernel(handle.fd, addr, flags)? {
            return Ok(Some(taken));
        }
        for endpoint in endpoints {
            if let Some(taken) = self.accept_from_stack(handle, endpoint, addr, flags)? {
                return Ok(Some(taken));
            }
        }
        if kernel && !kernel_first && ask == Ask::Both {
            return self.accept_from_kernel(handle.fd, addr, flags);
        }
        Ok(None)
    }

    fn accept_from_kernel(
        &self,
        fd: RawFd,
        addr: &mut [u8],
        flags: i32,
    ) -> Result<Option<(RawFd, usize)>, Errno> {
        match self.kernel.accept4(fd, addr, flags) {
            Ok(taken) => {
                self.router.count(Reason::AcceptedKernel);
                Ok(Some(taken))
            }
            Err(Errno(libc::EAGAIN)) => Ok(None),
            // After `shutdown` of a listener in both worlds each says EINVAL; one is enough.
            Err(errno) => Err(errno),
        }
    }

    fn accept_from_stack(
        &self,
        handle: &Handle,
        endpoint: &Endpoint,
        addr: &mut [u8],
        flags: i32,
    ) -> Result<Option<(RawFd, usize)>, Errno> {
        let mut guard = endpoint.enter();
        if !guard.stack().readiness(endpoint.socket).intersects(INPUT) {
            return Ok(None);
        }
        // The number comes first: without one the connection stays in the queue, as on Linux.
        let fd = self.accepted_number(flags & libc::SOCK_CLOEXEC != 0)?;
        let now = guard.now();
        match guard.stack().tcp_accept(now, endpoint.socket) {
            Ok(accepted) => {
                let ready = guard.ready_word(accepted.socket);
                drop(guard);
                Ok(Some(self.enter_accepted(handle, endpoint, accepted, ready, fd, addr, flags)))
            }
            Err(error) => {
                drop(guard);
                let _ = self.kernel.close(fd);
                match error {
                    AcceptError::WouldBlock => Ok(None),
                    AcceptError::NotListening => Err(error.into()),
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the pieces of one accepted connection")]
    fn enter_accepted(
        &self,
        listener: &Handle,
        endpoint: &Endpoint,
        accepted: Accepted,
        ready: Arc<lstack_runtime::ReadyWord>,
        fd: RawFd,
        addr: &mut [u8],
        flags: i32,
    ) -> (RawFd, usize) {
        let family = listener.socket().family;
        let child = Endpoint { cell: Arc::clone(&endpoint.cell), socket: accepted.socket, ready };
        let socket = Socket::new(family, Protocol::Tcp, State::Connection(child));
        *socket.reason.lock() = Some(Reason::Accepted);
        self.router.count(Reason::Accepted);
        options::inherit(listener.socket(), &socket);
        self.enter_table(fd, socket, flags & libc::SOCK_NONBLOCK != 0);
        (fd, address::encode(accepted.remote, family, addr))
    }

    /// A descriptor for an accepted connection: one more name for a hidden socket, so that it
    /// costs no socket of the kernel.
    fn accepted_number(&self, close_on_exec: bool) -> Result<RawFd, Errno> {
        let mut placeholder = self.placeholder.lock();
        let hidden = match *placeholder {
            Some(fd) => fd,
            None => *placeholder.insert(self.kernel.hidden_socket()?),
        };
        let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        let fd = self.kernel.fcntl(hidden, command, 0)?;
        if FdTable::can_hold(fd) {
            return Ok(fd);
        }
        let _ = self.kernel.close(fd);
        Err(Errno(libc::EMFILE))
    }
}
