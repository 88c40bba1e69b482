//! `connect`: where a socket that has not decided yet goes, and what happens on the way.
//!
//! Every function here but [`Posix::connect`] itself runs under the socket's `transition` lock.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use lstack_core::Protocol;
use lstack_core::tcp::{Close, ConnectError, State as TcpState};

use crate::address;
use crate::description::{Bound, Endpoint, Family, Handle, State};
use crate::errno::Errno;
use crate::posix::{Outcome, Posix, ours};
use crate::route::Path;
use crate::socket::{OUTPUT, close_all};
use crate::wait::Ask;

/// Where an attempt to connect stands.
enum Connect {
    /// The kernel makes the call.
    Kernel,
    /// Nothing to wait for.
    Done,
    /// The handshake runs; `again` if an earlier call started it.
    Waiting { endpoint: Endpoint, again: bool },
}

impl Posix {
    /// Connects in the world the destination belongs to.
    pub fn connect(&self, fd: RawFd, addr: &[u8]) -> Outcome<()> {
        let handle = ours!(self.socket_handle(fd));
        let socket = handle.socket();
        let moving = socket.transition.lock();
        if address::is_unspecified(addr) {
            let outcome = self.dissolve(&handle);
            drop(moving);
            self.socket_moved(&handle);
            return outcome;
        }
        let remote = match address::decode(addr, socket.family) {
            Ok(remote) => remote,
            Err(errno) => return Outcome::Done(Err(errno)),
        };
        let step = match socket.protocol {
            Protocol::Tcp => self.start_connect(&handle, remote),
            Protocol::Udp => self.connect_datagram(&handle, remote),
        };
        drop(moving);
        self.socket_moved(&handle);
        match step {
            Ok(Connect::Kernel) => Outcome::Kernel,
            Ok(Connect::Done) => Outcome::Done(Ok(())),
            Ok(Connect::Waiting { endpoint, again }) => {
                Outcome::Done(self.finish_connect(&handle, &endpoint, again))
            }
            Err(errno) => Outcome::Done(Err(errno)),
        }
    }

    /// Sends a TCP socket on its way; the caller holds the transition lock.
    fn start_connect(&self, handle: &Handle, remote: SocketAddr) -> Result<Connect, Errno> {
        let socket = handle.socket();
        let state = socket.state();
        match &**state {
            State::Listener { .. } => Err(Errno(libc::EISCONN)),
            State::Datagram { .. } => Err(Errno(libc::EINVAL)),
            State::Connection(endpoint) => self.connect_again(handle, endpoint, remote),
            State::Kernel => {
                if !self.may_leave_kernel(handle, remote.ip()) {
                    return Ok(Connect::Kernel);
                }
                socket.set_state(State::Undecided(Bound::default()));
                self.connect_first(handle, &Bound::default(), remote)
            }
            State::Undecided(bound) => self.connect_first(handle, bound, remote),
        }
    }

    fn connect_first(
        &self,
        handle: &Handle,
        bound: &Bound,
        remote: SocketAddr,
    ) -> Result<Connect, Errno> {
        let socket = handle.socket();
        let in_stack_only = !bound.endpoints.is_empty() && !bound.kernel;
        let decision = self.router.connect_via(&*self.kernel, remote.ip());
        if decision.path != Path::Stack && !in_stack_only {
            close_all(&bound.endpoints);
            self.move_to_kernel(socket, decision.reason);
            return Ok(Connect::Kernel);
        }
        let endpoint = match self.bound_endpoint(bound, remote) {
            Some(endpoint) => endpoint,
            None => self.open_endpoint(socket, self.any_cell())?,
        };
        let mut guard = endpoint.enter();
        let now = guard.now();
        let started = guard.stack().tcp_connect(now, endpoint.socket, remote);
        drop(guard);
        if let Err(error) = started {
            if bound.endpoints.is_empty() {
                endpoint.close(Close::Reset);
            }
            return Err(error.into());
        }
        for other in bound.endpoints.iter().filter(|other| other.socket != endpoint.socket) {
            other.close(Close::Reset);
        }
        socket.set_state(State::Connection(endpoint.clone()));
        *socket.reason.lock() = Some(decision.reason);
        self.router.count(decision.reason);
        socket.connecting.store(true, Ordering::Relaxed);
        Ok(Connect::Waiting { endpoint, again: false })
    }

    /// `connect` on a socket that has tried before: reports the outcome once, or starts anew.
    fn connect_again(
        &self,
        handle: &Handle,
        endpoint: &Endpoint,
        remote: SocketAddr,
    ) -> Result<Connect, Errno> {
        let socket = handle.socket();
        let mut guard = endpoint.enter();
        let now = guard.now();
        match guard.stack().tcp_connect(now, endpoint.socket, remote) {
            Ok(()) => {
                socket.connecting.store(true, Ordering::Relaxed);
                Ok(Connect::Waiting { endpoint: endpoint.clone(), again: false })
            }
            Err(ConnectError::InProgress) => {
                Ok(Connect::Waiting { endpoint: endpoint.clone(), again: true })
            }
            // The first call after a non-blocking handshake succeeded says so.
            Err(ConnectError::Connected) if socket.connecting.swap(false, Ordering::Relaxed) => {
                Ok(Connect::Done)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn finish_connect(
        &self,
        handle: &Handle,
        endpoint: &Endpoint,
        again: bool,
    ) -> Result<(), Errno> {
        let socket = handle.socket();
        let outcome = |_: Ask| {
            let mut guard = endpoint.enter();
            if let Some(error) = guard.stack().take_error(endpoint.socket) {
                return Some(Err(Errno::from(error)));
            }
            match guard.stack().tcp_state(endpoint.socket) {
                TcpState::SynSent | TcpState::SynReceived => None,
                TcpState::Closed => Some(Err(Errno(libc::ECONNABORTED))),
                _ => Some(Ok(())),
            }
        };
        let pending = if again { libc::EALREADY } else { libc::EINPROGRESS };
        let result = match outcome(Ask::Stack) {
            Some(result) => result,
            None if handle.nonblocking(0) => return Err(Errno(pending)),
            None => {
                let patience = self.send_patience(socket);
                let endpoints = std::slice::from_ref(endpoint);
                match self.wait_until(endpoints, OUTPUT, &[], patience, outcome) {
                    Ok(result) => result,
                    Err(ended) => return Err(ended.errno(pending)),
                }
            }
        };
        socket.connecting.store(false, Ordering::Relaxed);
        result
    }

    /// Sets the peer of a UDP socket; the caller holds the transition lock.
    fn connect_datagram(&self, handle: &Handle, remote: SocketAddr) -> Result<Connect, Errno> {
        let socket = handle.socket();
        let state = socket.state();
        let in_stack_only = matches!(&**state, State::Datagram { kernel: false, endpoint }
            if endpoint.local_addr().is_some_and(|local| !local.ip().is_unspecified())
                && endpoint.connected_addr().is_none());
        let decision = self.router.connect_via(&*self.kernel, remote.ip());
        if decision.path != Path::Stack && !in_stack_only {
            if let State::Datagram { endpoint, .. } = &**state {
                endpoint.close(Close::Graceful);
            }
            self.move_to_kernel(socket, decision.reason);
            return Ok(Connect::Kernel);
        }
        let endpoint = match &**state {
            State::Datagram { endpoint, .. } => endpoint.clone(),
            State::Kernel if !self.may_leave_kernel(handle, remote.ip()) => {
                return Ok(Connect::Kernel);
            }
            _ => self.open_endpoint(socket, self.any_cell())?,
        };
        endpoint.enter().stack().udp_connect(endpoint.socket, Some(remote))?;
        socket.set_state(State::Datagram { endpoint, kernel: false });
        *socket.reason.lock() = Some(decision.reason);
        self.router.count(decision.reason);
        Ok(Connect::Done)
    }

    /// `connect` to `AF_UNSPEC`.
    fn dissolve(&self, handle: &Handle) -> Outcome<()> {
        let socket = handle.socket();
        let state = socket.state();
        match &**state {
            State::Kernel | State::Undecided(_) => Outcome::Kernel,
            State::Listener { .. } => Outcome::Done(Err(Errno(libc::EINVAL))),
            State::Connection(endpoint) => {
                // The next attempt may go to the kernel, by a socket of its own.
                if let Err(errno) = self.leave_shared_placeholder(handle) {
                    return Outcome::Done(Err(errno));
                }
                endpoint.close(Close::Reset);
                socket.connecting.store(false, Ordering::Relaxed);
                socket.set_state(State::Undecided(Bound::default()));
                Outcome::Done(Ok(()))
            }
            State::Datagram { endpoint, .. } => {
                let result = endpoint.enter().stack().udp_connect(endpoint.socket, None);
                Outcome::Done(result.map_err(Errno::from))
            }
        }
    }

    /// Gives an accepted socket, whose descriptors are names of a socket shared by all accepted
    /// ones, a kernel socket to itself.
    fn leave_shared_placeholder(&self, handle: &Handle) -> Result<(), Errno> {
        let socket = handle.socket();
        if !socket.accepted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let domain = match socket.family {
            Family::V4 => libc::AF_INET,
            Family::V6 => libc::AF_INET6,
        };
        let nonblocking = if handle.nonblocking(0) { libc::SOCK_NONBLOCK } else { 0 };
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | nonblocking;
        let fresh = self.kernel.socket(domain, kind, 0)?;
        let same = |fd: &RawFd| self.table.get(*fd).is_some_and(|d| d.id == handle.description.id);
        let numbers = self.table.numbers(0, usize::MAX);
        let moved = numbers.into_iter().filter(same).try_for_each(|fd| {
            let on_exec = self.kernel.fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC;
            let flags = if on_exec == 0 { 0 } else { libc::O_CLOEXEC };
            self.kernel.dup3(fresh, fd, flags).map(|_| ())
        });
        let _ = self.kernel.close(fresh);
        socket.accepted.store(false, Ordering::Relaxed);
        moved
    }

    /// Whether a socket whose attempt on the kernel came to nothing may try the stack: it is
    /// neither bound nor connected there.
    fn may_leave_kernel(&self, handle: &Handle, remote: IpAddr) -> bool {
        let mut name = [0; address::V6_LEN];
        let unconnected = self.kernel.getpeername(handle.fd, &mut name).is_err();
        let unbound = self.kernel.getsockname(handle.fd, &mut name).is_ok() && name[2..4] == [0, 0];
        unconnected && unbound && self.router.connect_via(&*self.kernel, remote).path == Path::Stack
    }

    /// The bound core socket on the stack that will see the flow's frames.
    fn bound_endpoint(&self, bound: &Bound, remote: SocketAddr) -> Option<Endpoint> {
        let [first, rest @ ..] = bound.endpoints.as_slice() else { return None };
        if rest.is_empty() {
            return Some(first.clone());
        }
        let mut guard = first.cell.lock();
        let port = bound.address.map_or(0, |address| address.port());
        let source = guard.stack().source_for(remote.ip())?;
        let owner = guard.stack().owner_of(SocketAddr::new(source, port), remote);
        bound.endpoints.get(usize::from(owner)).cloned()
    }
}
