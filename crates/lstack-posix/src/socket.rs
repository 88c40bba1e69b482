//! `socket`, `bind`, `listen`, `shutdown`, `close` and the names; see `accept.rs`, `connect.rs`.
//!
//! This is where a socket moves between the worlds. Each move happens under the socket's
//! `transition` lock and ends with [`Posix::socket_moved`], which tells epoll.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use lstack_core::stack::udp_owner;
use lstack_core::tcp::{Close, Shutdown, State as TcpState};
use lstack_core::{Protocol, Readiness};
use lstack_runtime::StackCell;

use crate::address;
use crate::description::{
    Bound, Description, Endpoint, Endpoints, Family, Handle, Kind, Socket, State,
};
use crate::errno::Errno;
use crate::fd_table::FdTable;
use crate::options;
use crate::posix::{Outcome, Posix, ours};
use crate::route::{Path, Reason};
use crate::wait::{Ask, Ended, Patience, Restart};

impl Posix {
    /// Opens a socket: a real kernel socket, and a description if it may use the stack.
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Outcome<RawFd> {
        let family = match domain {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => return Outcome::Kernel,
        };
        let transport = match (kind & SOCK_TYPE_MASK, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Protocol::Tcp,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) if self.udp_enable => Protocol::Udp,
            (libc::SOCK_DGRAM, _) => {
                self.router.count(Reason::UdpDisabled);
                return Outcome::Kernel;
            }
            _ => return Outcome::Kernel,
        };
        let fd = match self.kernel.socket(domain, kind, protocol) {
            Ok(fd) => fd,
            Err(errno) => return Outcome::Done(Err(errno)),
        };
        if !FdTable::can_hold(fd) {
            self.router.count(Reason::NumberTooHigh);
            return Outcome::Done(Ok(fd));
        }
        let socket = Socket::new(family, transport, State::Undecided(Bound::default()));
        self.enter_table(fd, socket, kind & libc::SOCK_NONBLOCK != 0);
        Outcome::Done(Ok(fd))
    }

    /// Binds in the stack, in the kernel, or in both, by the address.
    pub fn bind(&self, fd: RawFd, addr: &[u8]) -> Outcome<()> {
        let handle = ours!(self.socket_handle(fd));
        let socket = handle.socket();
        let _moving = socket.transition.lock();
        match &**socket.state() {
            State::Kernel => return Outcome::Kernel,
            State::Undecided(bound) if bound.address.is_none() => {}
            _ => return Outcome::Done(Err(Errno(libc::EINVAL))),
        }
        // The placeholder refuses a malformed address exactly as Linux does.
        let Ok(local) = address::decode(addr, socket.family) else { return Outcome::Kernel };
        Outcome::Done(self.bind_decoded(&handle, local, addr))
    }

    /// Makes a TCP socket a listener on every stack, and in the kernel if it is bound there.
    pub fn listen(&self, fd: RawFd, backlog: i32) -> Outcome<()> {
        let handle = ours!(self.socket_handle(fd));
        let socket = handle.socket();
        if socket.protocol != Protocol::Tcp {
            return Outcome::Kernel;
        }
        let moving = socket.transition.lock();
        let result = match &**socket.state() {
            State::Kernel => return Outcome::Kernel,
            State::Connection(_) | State::Datagram { .. } => Err(Errno(libc::EINVAL)),
            State::Listener { endpoints, kernel } => {
                self.listen_both(&handle, endpoints, *kernel, backlog)
            }
            State::Undecided(_) => self.start_listening(&handle, backlog),
        };
        drop(moving);
        if result.is_ok() {
            self.socket_moved(&handle);
        }
        Outcome::Done(result)
    }

    /// The socket's own address.
    pub fn getsockname(&self, fd: RawFd, addr: &mut [u8]) -> Outcome<usize> {
        let handle = ours!(self.socket_handle(fd));
        let socket = handle.socket();
        let local = match &**socket.state() {
            State::Kernel => return Outcome::Kernel,
            State::Undecided(bound) => bound.address,
            other => other.endpoints().first().and_then(Endpoint::local_addr),
        };
        match local {
            Some(local) => Outcome::Done(Ok(address::encode(local, socket.family, addr))),
            None => Outcome::Kernel,
        }
    }

    /// The peer's address.
    pub fn getpeername(&self, fd: RawFd, addr: &mut [u8]) -> Outcome<usize> {
        let handle = ours!(self.socket_handle(fd));
        let socket = handle.socket();
        let state = socket.state();
        let remote = match &**state {
            State::Kernel | State::Undecided(_) => return Outcome::Kernel,
            State::Listener { .. } => None,
            State::Connection(endpoint) | State::Datagram { endpoint, .. } => {
                endpoint.connected_addr()
            }
        };
        Outcome::Done(match remote {
            Some(remote) => Ok(address::encode(remote, socket.family, addr)),
            None => Err(Errno(libc::ENOTCONN)),
        })
    }

    /// Ends one or both directions.
    pub fn shutdown(&self, fd: RawFd, how: i32) -> Outcome<()> {
        let handle = ours!(self.socket_handle(fd));
        let how_in_core = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Outcome::Done(Err(Errno(libc::EINVAL))),
        };
        let state = handle.socket().state();
        match &**state {
            State::Kernel | State::Undecided(_) => Outcome::Kernel,
            State::Connection(endpoint) | State::Datagram { endpoint, .. } => {
                let mut guard = endpoint.enter();
                let now = guard.now();
                let result = guard.stack().tcp_shutdown(now, endpoint.socket, how_in_core);
                Outcome::Done(result.map_err(Errno::from))
            }
            State::Listener { endpoints, kernel } => {
                for endpoint in endpoints {
                    let mut guard = endpoint.enter();
                    let now = guard.now();
                    // A listener has no connection to miss: shutting it down stops listening.
                    let _ = guard.stack().tcp_shutdown(now, endpoint.socket, how_in_core);
                }
                Outcome::Done(if *kernel { self.kernel.shutdown(fd, how) } else { Ok(()) })
            }
        }
    }

    /// Gives a descriptor back. The connection ends with its last descriptor, after the linger time
    /// if one is set.
    pub fn close(&self, fd: RawFd) -> Outcome<()> {
        let Some(description) = self.table.remove(fd) else { return Outcome::Kernel };
        self.let_go(description);
        Outcome::Done(self.kernel.close(fd))
    }

    /// A descriptor no longer refers to `description`; waits if it was the last and lingers.
    pub(crate) fn let_go(&self, description: Arc<Description>) {
        if description.remove_descriptor()
            && let Some(socket) = description.socket()
        {
            self.linger(socket);
        }
        // Only now may the core socket go with it.
        drop(description);
    }

    /// Puts a new socket into the table.
    pub(crate) fn enter_table(&self, fd: RawFd, socket: Socket, nonblocking: bool) {
        let description = Description::new(Kind::Socket(Box::new(socket)), nonblocking);
        // A leftover means that somebody closed the number behind our back: its turn is over.
        if let Some(leftover) = self.table.insert(fd, description) {
            self.let_go(leftover);
        }
    }

    /// Opens a core socket on `cell` and gives it what the program has set so far.
    pub(crate) fn open_endpoint(
        &self,
        socket: &Socket,
        cell: &Arc<StackCell>,
    ) -> Result<Endpoint, Errno> {
        let mut guard = cell.lock();
        let id = match socket.protocol {
            Protocol::Tcp => guard.stack().tcp_open()?,
            Protocol::Udp => guard.stack().udp_open()?,
        };
        let ready = guard.ready_word(id);
        drop(guard);
        let endpoint = Endpoint { cell: Arc::clone(cell), socket: id, ready };
        options::replay(socket, &endpoint);
        Ok(endpoint)
    }

    /// The stack for a socket that may live on any.
    pub(crate) fn any_cell(&self) -> &Arc<StackCell> {
        let cells = self.runtime.cells();
        &cells[self.next_cell.fetch_add(1, Ordering::Relaxed) % cells.len()]
    }

    /// Binds an undecided socket to a wildcard port valid in both worlds, if it is not bound yet:
    /// what `listen` and the first datagram do.
    pub(crate) fn bind_wildcard(&self, handle: &Handle) -> Result<(), Errno> {
        let family = handle.socket().family;
        let local = address::unspecified(family);
        let (bytes, len) = address::encoded(local, family);
        self.bind_decoded(handle, local, &bytes[..len])
    }

    /// How long a receiving call waits.
    pub(crate) fn receive_patience(&self, socket: &Socket) -> Patience<'static> {
        Patience::with_timeout(socket.settings.lock().receive_timeout)
    }

    /// How long a sending call waits.
    pub(crate) fn send_patience(&self, socket: &Socket) -> Patience<'static> {
        Patience::with_timeout(socket.settings.lock().send_timeout)
    }

    fn bind_decoded(&self, handle: &Handle, local: SocketAddr, raw: &[u8]) -> Result<(), Errno> {
        let socket = handle.socket();
        let v6_only = socket.family == Family::V6 && socket.settings.lock().v6_only;
        let decision = self.router.bind(local.ip());
        match decision.path {
            Path::Stack => {
                let (endpoints, address) = self.bind_endpoints(socket, local)?;
                let bound = Bound { endpoints, address: Some(address), kernel: false };
                socket.set_state(State::Undecided(bound));
            }
            Path::Both if !v6_only => self.bind_both(handle, local)?,
            Path::Both | Path::Kernel => {
                self.kernel.bind(handle.fd, raw)?;
                self.move_to_kernel(socket, Reason::OtherAddress);
                self.socket_moved(handle);
                return Ok(());
            }
        }
        *socket.reason.lock() = Some(decision.reason);
        if socket.protocol == Protocol::Udp {
            self.become_datagram(socket);
            self.socket_moved(handle);
        }
        Ok(())
    }

    /// Binds the wildcard in the stack and in the kernel with one port number. The stack chooses
    /// first, because a kernel socket whose number turned out to be taken cannot be bound again.
    fn bind_both(&self, handle: &Handle, local: SocketAddr) -> Result<(), Errno> {
        let socket = handle.socket();
        let tries = if local.port() == 0 { PORT_TRIES } else { 1 };
        let mut last = Errno(libc::EADDRINUSE);
        for _ in 0..tries {
            let wildcard = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port());
            let (endpoints, bound) = self.bind_endpoints(socket, wildcard)?;
            let chosen = SocketAddr::new(local.ip(), bound.port());
            let (raw, len) = address::encoded(chosen, socket.family);
            match self.kernel.bind(handle.fd, &raw[..len]) {
                Ok(()) => {
                    let bound = Bound { endpoints, address: Some(chosen), kernel: true };
                    socket.set_state(State::Undecided(bound));
                    return Ok(());
                }
                Err(errno) => last = errno,
            }
            close_all(&endpoints);
        }
        Err(last)
    }

    /// Core sockets bound to `local`: for TCP one on every stack, for UDP one on the port's owner.
    fn bind_endpoints(
        &self,
        socket: &Socket,
        local: SocketAddr,
    ) -> Result<(Endpoints, SocketAddr), Errno> {
        let reuse = socket.settings.lock().reuse;
        let cells = self.runtime.cells();
        let count = u16::try_from(cells.len()).expect("a process has few stacks");
        let chosen = match socket.protocol {
            Protocol::Tcp => cells,
            Protocol::Udp if local.port() == 0 => std::slice::from_ref(self.any_cell()),
            Protocol::Udp => {
                std::slice::from_ref(&cells[usize::from(udp_owner(local.port(), count))])
            }
        };
        let mut endpoints = Endpoints::new();
        let mut address = local;
        for cell in chosen {
            let result = self.open_endpoint(socket, cell).and_then(|endpoint| {
                let bound = cell.lock().stack().bind(endpoint.socket, address, reuse);
                endpoints.push(endpoint);
                bound.map_err(Errno::from)
            });
            match result {
                Ok(bound) => address = bound,
                Err(errno) => {
                    close_all(&endpoints);
                    return Err(errno);
                }
            }
        }
        Ok((endpoints, address))
    }

    fn start_listening(&self, handle: &Handle, backlog: i32) -> Result<(), Errno> {
        let socket = handle.socket();
        if matches!(&**socket.state(), State::Undecided(bound) if bound.address.is_none()) {
            self.bind_wildcard(handle)?;
        }
        let state = socket.state();
        let State::Undecided(bound) = &**state else {
            // A v6-only wildcard went to the kernel when it was bound.
            return self.kernel.listen(handle.fd, backlog);
        };
        self.listen_both(handle, &bound.endpoints, bound.kernel, backlog)?;
        let endpoints = bound.endpoints.clone();
        let kernel = bound.kernel;
        socket.set_state(State::Listener { endpoints, kernel });
        let reason = *socket.reason.lock();
        self.router.count(reason.unwrap_or(Reason::Wildcard));
        Ok(())
    }

    fn listen_both(
        &self,
        handle: &Handle,
        endpoints: &[Endpoint],
        kernel: bool,
        backlog: i32,
    ) -> Result<(), Errno> {
        if kernel {
            self.kernel.listen(handle.fd, backlog)?;
            // `accept` asks both worlds in turn and must never get stuck in one; what the program
            // sees of O_NONBLOCK comes from the description.
            let flags = self.kernel.fcntl(handle.fd, libc::F_GETFL, 0)?;
            let flags = usize::try_from(flags | libc::O_NONBLOCK).unwrap_or(0);
            self.kernel.fcntl(handle.fd, libc::F_SETFL, flags)?;
        }
        // A negative backlog is a huge one, as for the kernel; the stack has a ceiling of its own.
        let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
        for endpoint in endpoints {
            endpoint.cell.lock().stack().tcp_listen(endpoint.socket, backlog)?;
        }
        Ok(())
    }

    /// A bound UDP socket is complete: it can receive. The caller holds the transition lock.
    fn become_datagram(&self, socket: &Socket) {
        let state = socket.state();
        if let State::Undecided(Bound { endpoints, kernel, .. }) = &**state
            && let Some(endpoint) = endpoints.first()
        {
            socket.set_state(State::Datagram { endpoint: endpoint.clone(), kernel: *kernel });
            let reason = *socket.reason.lock();
            self.router.count(reason.unwrap_or(Reason::Wildcard));
        }
    }

    pub(crate) fn move_to_kernel(&self, socket: &Socket, reason: Reason) {
        socket.set_state(State::Kernel);
        *socket.reason.lock() = Some(reason);
        self.router.count(reason);
    }

    /// `SO_LINGER`: the last `close` waits until the peer has everything, or the time is over.
    fn linger(&self, socket: &Socket) {
        let Some(time) = socket.settings.lock().linger.filter(|time| !time.is_zero()) else {
            return;
        };
        let state = socket.state();
        let State::Connection(endpoint) = &**state else { return };
        if endpoint.enter().stack().unread(endpoint.socket) > 0 {
            return;
        }
        let mut guard = endpoint.enter();
        let now = guard.now();
        let connected = guard.stack().tcp_shutdown(now, endpoint.socket, Shutdown::Write).is_ok();
        drop(guard);
        if !connected {
            return;
        }
        let delivered = |_: Ask| {
            let state = endpoint.enter().stack().tcp_state(endpoint.socket);
            let sending = matches!(
                state,
                TcpState::FinWait1 | TcpState::Closing | TcpState::LastAck | TcpState::Established
            );
            (!sending).then_some(())
        };
        let patience = Patience {
            deadline: Some(Instant::now() + time),
            restart: Restart::IfAsked,
            mask: None,
        };
        let endpoints = std::slice::from_ref(endpoint);
        // Out of time or interrupted: the rest goes on as an orphan.
        let _ = self.wait_until(endpoints, Readiness::all(), &[], patience, delivered);
    }
}

impl Endpoint {
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.cell.lock().stack().local_addr(self.socket)
    }

    /// The peer while the connection lasts; `None` during the handshake and after a reset.
    pub(crate) fn connected_addr(&self) -> Option<SocketAddr> {
        let mut guard = self.cell.lock();
        if self.socket.protocol() == Protocol::Tcp
            && matches!(
                guard.stack().tcp_state(self.socket),
                TcpState::Closed | TcpState::SynSent | TcpState::TimeWait | TcpState::Listen
            )
        {
            return None;
        }
        guard.stack().remote_addr(self.socket)
    }
}

impl Ended {
    /// The error for the caller: `timed_out` is what the call says when its time is over.
    pub(crate) fn errno(self, timed_out: i32) -> Errno {
        match self {
            Self::TimedOut => Errno(timed_out),
            Self::Interrupted => Errno(libc::EINTR),
        }
    }
}

impl Patience<'_> {
    /// A socket call with `SO_RCVTIMEO` or `SO_SNDTIMEO`: with a timeout it is never restarted
    /// after a signal (signal(7)).
    pub(crate) fn with_timeout(timeout: Option<std::time::Duration>) -> Patience<'static> {
        Patience {
            deadline: timeout.map(|timeout| Instant::now() + timeout),
            restart: if timeout.is_some() { Restart::Never } else { Restart::IfAsked },
            mask: None,
        }
    }
}

pub(crate) fn close_all(endpoints: &[Endpoint]) {
    for endpoint in endpoints {
        endpoint.close(Close::Reset);
    }
}

/// Something to take: data, a connection, the end, an error.
pub(crate) const INPUT: Readiness = Readiness::READABLE
    .union(Readiness::ERROR)
    .union(Readiness::HANGUP)
    .union(Readiness::READ_HANGUP);

/// Room to send, or a reason why there will be none.
pub(crate) const OUTPUT: Readiness =
    Readiness::WRITABLE.union(Readiness::ERROR).union(Readiness::HANGUP);

/// `SOCK_TYPE_MASK` of the kernel: the type without the flags.
const SOCK_TYPE_MASK: i32 = 0xf;

/// Ports tried before `bind` to port 0 gives up; each try fails only if the kernel happens to use
/// a number that is free in the stack.
const PORT_TRIES: usize = 64;

/// Of so many calls on a socket of both worlds one asks the kernel first. The kernel's half is
/// asked anyway when the stack has nothing, so this bounds its delay under load and keeps the cost
/// of a system call off the others.
pub(crate) const KERNEL_SHARE: u32 = 8;
