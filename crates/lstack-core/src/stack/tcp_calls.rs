//! The socket calls of TCP.

use core::net::SocketAddr;
use std::io::{IoSlice, IoSliceMut};

use super::Stack;
use crate::socket::{Protocol, SocketId};
use crate::tcp::{
    AcceptError, Accepted, Congestion, ConnectError, ListenError, More, NotConnected, OpenError,
    RecvError, RecvMode, SendError, Shutdown, State, TcpInfo, TcpOption,
};
use crate::time::Instant;

impl Stack {
    /// Opens a TCP socket.
    ///
    /// # Errors
    ///
    /// The limit of sockets is reached.
    pub fn tcp_open(&mut self) -> Result<SocketId, OpenError> {
        self.tcp.open()
    }

    /// Makes a TCP socket a listener, or changes its backlog.
    ///
    /// # Errors
    ///
    /// See [`ListenError`].
    pub fn tcp_listen(&mut self, id: SocketId, backlog: u32) -> Result<(), ListenError> {
        self.tcp.listen(id, backlog)
    }

    /// Takes the oldest established connection of a listener.
    ///
    /// # Errors
    ///
    /// See [`AcceptError`].
    pub fn tcp_accept(&mut self, now: Instant, id: SocketId) -> Result<Accepted, AcceptError> {
        self.tcp.accept(now, id)
    }

    /// Starts a connection; the outcome is an event.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn tcp_connect(
        &mut self,
        now: Instant,
        id: SocketId,
        remote: SocketAddr,
    ) -> Result<(), ConnectError> {
        let destination = remote.ip();
        let to_one = !destination.is_multicast() && !self.ip.routes().is_broadcast(destination);
        let source = self.ip.routes().source_for(destination).filter(|_| to_one);
        let source = source.ok_or(ConnectError::Unreachable)?;
        let mtu = self.ip.path_mtu(now, destination);
        self.tcp.connect(now, id, source, remote, mtu)
    }

    /// Queues bytes of `data`, from byte `skip` on; returns how many fitted (at least 1).
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn tcp_send(
        &mut self,
        now: Instant,
        id: SocketId,
        data: &[IoSlice<'_>],
        skip: usize,
        more: More,
    ) -> Result<usize, SendError> {
        self.tcp.send(now, id, data, skip, more)
    }

    /// Copies received bytes to `bufs`, from byte `skip` on; 0 is end of stream.
    ///
    /// # Errors
    ///
    /// See [`RecvError`].
    pub fn tcp_recv(
        &mut self,
        now: Instant,
        id: SocketId,
        bufs: &mut [IoSliceMut<'_>],
        skip: usize,
        mode: RecvMode,
    ) -> Result<usize, RecvError> {
        self.tcp.recv(now, id, bufs, skip, mode)
    }

    /// Ends one or both directions, TCP or UDP.
    ///
    /// # Errors
    ///
    /// The socket is not connected.
    pub fn tcp_shutdown(
        &mut self,
        now: Instant,
        id: SocketId,
        how: Shutdown,
    ) -> Result<(), NotConnected> {
        match id.protocol() {
            Protocol::Tcp => self.tcp.shutdown(now, id, how),
            Protocol::Udp => self.udp.shutdown(id, how),
        }
    }

    /// The connection's state.
    #[must_use]
    pub fn tcp_state(&self, id: SocketId) -> State {
        self.tcp.state(id)
    }

    /// Bytes not acknowledged yet (TCP).
    #[must_use]
    pub fn unacked(&self, id: SocketId) -> usize {
        match id.protocol() {
            Protocol::Tcp => self.tcp.unacked(id),
            Protocol::Udp => 0,
        }
    }

    /// Changes a setting.
    pub fn tcp_set_option(&mut self, now: Instant, id: SocketId, option: TcpOption) {
        self.tcp.set_option(now, id, option);
    }

    /// The connection in numbers.
    #[must_use]
    pub fn tcp_info(&self, now: Instant, id: SocketId) -> Option<TcpInfo> {
        self.tcp.info(now, id)
    }

    /// The congestion control algorithm in use.
    #[must_use]
    pub fn tcp_congestion(&self, id: SocketId) -> Option<Congestion> {
        self.tcp.congestion(id)
    }

    /// Bytes of memory that TCP's buffers hold.
    #[must_use]
    pub fn tcp_memory(&self) -> usize {
        self.tcp.memory()
    }

    /// Closed connections that still have something to send or to be acknowledged.
    #[must_use]
    pub fn tcp_orphans(&self) -> usize {
        self.tcp.orphans()
    }

    /// Closed connections whose data or end the peer has not acknowledged yet: what would be lost
    /// if the stack went away now. Those that only wait for the peer's end are not counted.
    #[must_use]
    pub fn tcp_undelivered(&self) -> usize {
        self.tcp.undelivered()
    }
}
