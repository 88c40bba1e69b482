//! The stack: one value that holds the interface and all sockets.
//!
//! # Order of calls
//!
//! A driver repeats: [`Stack::handle_frame`] for each received frame, [`Stack::poll`] once, then
//! [`Stack::take_event`] until it gives nothing. Socket calls come in between in any order; a
//! [`Stack::poll`] after them sends what they queued. [`Stack::next_deadline`] says when to poll
//! although nothing came.

use core::net::{IpAddr, SocketAddr};
use std::io::{IoSlice, IoSliceMut};

use crate::config::{Secret, StackConfig};
use crate::event::Event;
use crate::link::{FrameSink, RxMeta};
use crate::socket::{Protocol, Readiness, SocketError, SocketId};
use crate::tcp::{
    AcceptError, Accepted, BindError, Close, ConnectError, ListenError, More, NotConnected,
    OpenError, RecvError, RecvMode, Reuse, SendError, Shutdown, State, TcpInfo, TcpOption,
};
use crate::time::Instant;
use crate::udp::{Datagram, UdpOption, UdpRecvError, UdpSendError};

/// A TCP/IP stack.
#[derive(Debug)]
pub struct Stack {}

/// What [`Stack::poll`] left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitStatus {
    /// All that could be sent was.
    Done,
    /// The device took no more: poll again soon.
    Blocked,
}

/// Which stack of `count` a received frame belongs to; `None`: every stack gets a copy (ARP).
///
/// Cheap: reads a few header bytes. Never panics, whatever the frame holds.
#[must_use]
pub fn steer(_frame: &[u8], _vlan_stripped: bool, _key: u64, _count: u16) -> Option<u16> {
    todo!()
}

impl Stack {
    /// A stack with no sockets. It announces its address with the first poll.
    #[must_use]
    pub fn new(_config: StackConfig, _secret: &Secret, _now: Instant) -> Self {
        todo!()
    }

    /// Takes one received frame (Ethernet header first, no FCS). What is wrong with it is counted.
    pub fn handle_frame(&mut self, _now: Instant, _frame: &[u8], _meta: RxMeta) {
        todo!()
    }

    /// Runs due timers and sends everything that is to be sent.
    pub fn poll(&mut self, _now: Instant, _sink: &mut dyn FrameSink) -> TransmitStatus {
        todo!()
    }

    /// When to poll next although nothing happened.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        todo!()
    }

    /// Whether a poll would send something now.
    #[must_use]
    pub fn wants_poll(&self) -> bool {
        todo!()
    }

    /// The next readiness event, each socket at most once per change.
    pub fn take_event(&mut self) -> Option<Event> {
        todo!()
    }

    /// A frame that turned out to be another stack's (a reassembled datagram, a packet to the own
    /// address): the driver hands it to [`Self::handle_frame`] of stack `.0`.
    pub fn take_misdirected(&mut self) -> Option<(u16, Vec<u8>)> {
        todo!()
    }

    /// Every counter with its name.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        todo!()
    }

    /// Every socket, for statistics.
    #[must_use]
    pub fn sockets(&self) -> Vec<SocketSummary> {
        todo!()
    }

    /// The address packets to `remote` leave from, `None` without a route.
    #[must_use]
    pub fn source_for(&self, _remote: IpAddr) -> Option<IpAddr> {
        todo!()
    }

    /// Whether `address` is this stack's.
    #[must_use]
    pub fn is_local(&self, _address: IpAddr) -> bool {
        todo!()
    }

    /// What `poll` would say of the socket.
    #[must_use]
    pub fn readiness(&self, _id: SocketId) -> Readiness {
        todo!()
    }

    /// Takes the pending error (`SO_ERROR`).
    pub fn take_error(&mut self, _id: SocketId) -> Option<SocketError> {
        todo!()
    }

    /// Our end; port 0 when not bound.
    #[must_use]
    pub fn local_addr(&self, _id: SocketId) -> Option<SocketAddr> {
        todo!()
    }

    /// The peer's end, `None` when not connected.
    #[must_use]
    pub fn remote_addr(&self, _id: SocketId) -> Option<SocketAddr> {
        todo!()
    }

    /// Opens a TCP socket.
    ///
    /// # Errors
    ///
    /// The limit of sockets is reached.
    pub fn tcp_open(&mut self) -> Result<SocketId, OpenError> {
        todo!()
    }

    /// Binds a TCP or UDP socket; port 0 picks a free one at random.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn bind(
        &mut self,
        _id: SocketId,
        _local: SocketAddr,
        _reuse: Reuse,
    ) -> Result<SocketAddr, BindError> {
        todo!()
    }

    /// Makes a TCP socket a listener, or changes its backlog.
    ///
    /// # Errors
    ///
    /// See [`ListenError`].
    pub fn tcp_listen(&mut self, _id: SocketId, _backlog: u32) -> Result<(), ListenError> {
        todo!()
    }

    /// Takes the oldest established connection of a listener.
    ///
    /// # Errors
    ///
    /// See [`AcceptError`].
    pub fn tcp_accept(&mut self, _now: Instant, _id: SocketId) -> Result<Accepted, AcceptError> {
        todo!()
    }

    /// Starts a connection; the outcome is an event.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn tcp_connect(
        &mut self,
        _now: Instant,
        _id: SocketId,
        _remote: SocketAddr,
    ) -> Result<(), ConnectError> {
        todo!()
    }

    /// Queues bytes of `data`, from byte `skip` on; returns how many fitted (at least 1).
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn tcp_send(
        &mut self,
        _now: Instant,
        _id: SocketId,
        _data: &[IoSlice<'_>],
        _skip: usize,
        _more: More,
    ) -> Result<usize, SendError> {
        todo!()
    }

    /// Copies received bytes to `bufs`, from byte `skip` on; 0 is end of stream.
    ///
    /// # Errors
    ///
    /// See [`RecvError`].
    pub fn tcp_recv(
        &mut self,
        _now: Instant,
        _id: SocketId,
        _bufs: &mut [IoSliceMut<'_>],
        _skip: usize,
        _mode: RecvMode,
    ) -> Result<usize, RecvError> {
        todo!()
    }

    /// Ends one or both directions.
    ///
    /// # Errors
    ///
    /// The socket is not connected.
    pub fn tcp_shutdown(
        &mut self,
        _now: Instant,
        _id: SocketId,
        _how: Shutdown,
    ) -> Result<(), NotConnected> {
        todo!()
    }

    /// The program is done with the socket, TCP or UDP. The id is dead afterwards; what a TCP
    /// connection still has to send goes on as an orphan.
    pub fn close(&mut self, _now: Instant, _id: SocketId, _how: Close) {
        todo!()
    }

    /// The connection's state.
    #[must_use]
    pub fn tcp_state(&self, _id: SocketId) -> State {
        todo!()
    }

    /// Bytes `recv` would give now (TCP), or the size of the next datagram (UDP).
    #[must_use]
    pub fn unread(&self, _id: SocketId) -> usize {
        todo!()
    }

    /// Bytes not acknowledged yet (TCP).
    #[must_use]
    pub fn unacked(&self, _id: SocketId) -> usize {
        todo!()
    }

    /// Changes a setting.
    pub fn tcp_set_option(&mut self, _now: Instant, _id: SocketId, _option: TcpOption) {
        todo!()
    }

    /// The connection in numbers.
    #[must_use]
    pub fn tcp_info(&self, _now: Instant, _id: SocketId) -> Option<TcpInfo> {
        todo!()
    }

    /// Closed connections that still have something to send or to be acknowledged.
    #[must_use]
    pub fn tcp_orphans(&self) -> usize {
        todo!()
    }

    /// Opens a UDP socket.
    ///
    /// # Errors
    ///
    /// The limit of sockets is reached.
    pub fn udp_open(&mut self) -> Result<SocketId, OpenError> {
        todo!()
    }

    /// Sets (`Some`) or dissolves (`None`) the peer.
    ///
    /// # Errors
    ///
    /// No route, or no free port.
    pub fn udp_connect(
        &mut self,
        _id: SocketId,
        _remote: Option<SocketAddr>,
    ) -> Result<(), UdpSendError> {
        todo!()
    }

    /// Sends one datagram at once.
    ///
    /// # Errors
    ///
    /// See [`UdpSendError`].
    pub fn udp_send(
        &mut self,
        _now: Instant,
        _id: SocketId,
        _to: Option<SocketAddr>,
        _data: &[IoSlice<'_>],
        _sink: &mut dyn FrameSink,
    ) -> Result<usize, UdpSendError> {
        todo!()
    }

    /// Takes (or with `peek` copies) the next datagram.
    ///
    /// # Errors
    ///
    /// See [`UdpRecvError`].
    pub fn udp_recv(
        &mut self,
        _id: SocketId,
        _bufs: &mut [IoSliceMut<'_>],
        _peek: bool,
    ) -> Result<Datagram, UdpRecvError> {
        todo!()
    }

    /// Changes a setting.
    pub fn udp_set_option(&mut self, _id: SocketId, _option: UdpOption) {
        todo!()
    }
}

/// A line of the socket table.
#[derive(Clone, Copy, Debug)]
pub struct SocketSummary {
    /// The socket; for a `TIME_WAIT` record or an orphan one the program no longer has.
    pub socket: SocketId,
    /// Transport.
    pub protocol: Protocol,
    /// Our end.
    pub local: Option<SocketAddr>,
    /// The peer's end.
    pub remote: Option<SocketAddr>,
    /// TCP state.
    pub state: Option<State>,
}
