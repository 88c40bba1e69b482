//! TCP sockets. RFCs to read first: 9293, 7323, 2018, 6298, 8985, 9438, 5961.
//!
//! [`Tcp`] holds every TCP socket of a stack: connections, listeners, `TIME_WAIT` records, timers
//! and buffers. It is called by [`crate::Stack`] only.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io::{IoSlice, IoSliceMut};

use crate::config::{Secret, Steering, TcpConfig};
use crate::counters::counters;
use crate::event::Event;
use crate::ip::{Egress, IcmpError, PacketMeta};
use crate::socket::{Readiness, SocketError, SocketId};
use crate::time::Instant;

/// All TCP sockets of a stack.
#[derive(Debug)]
pub(crate) struct Tcp {
    config: TcpConfig,
    counters: TcpCounters,
}

/// Connection states, RFC 9293 section 3.3.2. Values are Linux's `tcpi_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Data may flow.
    Established = 1,
    /// SYN sent.
    SynSent,
    /// SYN received.
    SynReceived,
    /// Our FIN sent.
    FinWait1,
    /// Our FIN acknowledged.
    FinWait2,
    /// Waiting for old segments to die.
    TimeWait,
    /// Nothing yet, or over.
    Closed,
    /// The peer's FIN received.
    CloseWait,
    /// Both FINs sent, the peer's received.
    LastAck,
    /// Accepting connections.
    Listen,
    /// Both FINs sent, ours not acknowledged.
    Closing,
}

/// How `recv` treats the bytes it copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvMode {
    /// They are consumed.
    Take,
    /// They stay (`MSG_PEEK`).
    Peek,
    /// They are consumed without being copied (`MSG_TRUNC` on TCP).
    Discard,
}

/// Whether more data follows at once (`MSG_MORE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// Send what there is, by Nagle's rules.
    No,
    /// Hold back a partial segment for at most 200 ms.
    Yes,
}

/// Which directions `shutdown` closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Receiving.
    Read,
    /// Sending: a FIN follows the queued data.
    Write,
    /// Both.
    Both,
}

/// How `close` ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Queued data, then FIN; RST at once if received data was not read (RFC 2525 2.17).
    Graceful,
    /// RST, queued data is thrown away (`SO_LINGER` with zero).
    Reset,
}

/// Whether two sockets may share an address (`SO_REUSEADDR`, `SO_REUSEPORT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// `SO_REUSEADDR`.
    pub address: bool,
    /// `SO_REUSEPORT`.
    pub port: bool,
}

/// A connection taken from a listener.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// The new socket.
    pub socket: SocketId,
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
}

/// `tcp_open` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// `max_sockets` are open (`ENOBUFS`).
    #[error("the limit of sockets is reached")]
    LimitReached,
}

/// `bind` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// No such socket.
    #[error("no such socket")]
    NoSocket,
    /// It has an address already, or is connected (`EINVAL`).
    #[error("already bound")]
    AlreadyBound,
    /// Another socket has the address (`EADDRINUSE`).
    #[error("address in use")]
    InUse,
    /// Not an address of this stack (`EADDRNOTAVAIL`).
    #[error("address not available")]
    NotLocal,
    /// Port 0 was asked for and none is free (`EADDRINUSE`).
    #[error("no free port")]
    NoFreePort,
}

/// `listen` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// No such socket.
    #[error("no such socket")]
    NoSocket,
    /// It is connecting or connected (`EINVAL`).
    #[error("connected")]
    Connected,
    /// Another listener has the address (`EADDRINUSE`).
    #[error("address in use")]
    InUse,
}

/// `accept` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// No such socket, or it does not listen (`EINVAL`).
    #[error("not listening")]
    NotListening,
    /// Nobody waits (`EAGAIN`).
    #[error("no connection waits")]
    WouldBlock,
}

/// `connect` failed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No such socket.
    #[error("no such socket")]
    NoSocket,
    /// It listens, or is connected (`EISCONN`).
    #[error("already connected")]
    Connected,
    /// An earlier connect is under way (`EALREADY`).
    #[error("already connecting")]
    InProgress,
    /// No route (`ENETUNREACH`).
    #[error("network is unreachable")]
    Unreachable,
    /// Every port is taken for this destination, or the four-tuple is (`EADDRNOTAVAIL`).
    #[error("no free address")]
    NoFreeAddress,
    /// The pending error of the attempt before, which this call reports instead of starting a new
    /// one.
    #[error(transparent)]
    Failed(SocketError),
}

/// `send` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The buffer is full, or the handshake is not over (`EAGAIN`, or wait).
    #[error("no room")]
    WouldBlock,
    /// Never connected, shut down for sending, or over (`EPIPE`).
    #[error("broken pipe")]
    BrokenPipe,
    /// A pending error, which is now taken.
    #[error(transparent)]
    Failed(SocketError),
}

/// `recv` failed. End of stream is `Ok(0)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// Nothing there (`EAGAIN`, or wait).
    #[error("no data")]
    WouldBlock,
    /// Never connected (`ENOTCONN`).
    #[error("not connected")]
    NotConnected,
    /// A pending error, which is now taken.
    #[error(transparent)]
    Failed(SocketError),
}

/// The socket is not connected (`ENOTCONN`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not connected")]
pub struct NotConnected;

/// A setting of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// `TCP_NODELAY`.
    NoDelay(bool),
    /// `TCP_CORK`.
    Cork(bool),
    /// `TCP_QUICKACK`.
    QuickAck(bool),
    /// `TCP_MAXSEG`, bytes; before the handshake.
    MaxSegment(u16),
    /// `SO_KEEPALIVE`.
    KeepAlive(bool),
    /// `TCP_KEEPIDLE`.
    KeepIdle(Duration),
    /// `TCP_KEEPINTVL`.
    KeepInterval(Duration),
    /// `TCP_KEEPCNT`.
    KeepCount(u8),
    /// `TCP_USER_TIMEOUT`; zero means the system's default.
    UserTimeout(Duration),
    /// `TCP_SYNCNT`.
    SynRetries(u8),
    /// `TCP_LINGER2`: stay in `FIN_WAIT2`.
    FinWait2(Duration),
    /// Send buffer in bytes of payload (`SO_SNDBUF` without Linux's doubling).
    SendBuffer(usize),
    /// Receive buffer in bytes of payload; switches tuning off.
    RecvBuffer(usize),
    /// `SO_RCVLOWAT`.
    RecvLowWater(usize),
    /// `TCP_NOTSENT_LOWAT`.
    NotSentLowWater(usize),
    /// `TCP_DEFER_ACCEPT`: a listener waits this long for data.
    DeferAccept(Duration),
    /// `IP_TOS`.
    Tos(u8),
    /// `IP_TTL`.
    Ttl(u8),
}

/// What `TCP_INFO` and the statistics tell of a connection.
#[derive(Clone, Copy, Debug)]
pub struct TcpInfo {
    /// State.
    pub state: State,
    /// Retransmission timeouts since the last progress.
    pub retransmits: u8,
    /// Window scale in use (ours, peer's), if both sides offered it.
    pub window_scale: Option<(u8, u8)>,
    /// Timestamps in use.
    pub timestamps: bool,
    /// Selective acknowledgements in use.
    pub sack: bool,
    /// Retransmission timeout.
    pub rto: Duration,
    /// Smoothed round trip time.
    pub srtt: Duration,
    /// Its variation.
    pub rttvar: Duration,
    /// Smallest round trip time seen.
    pub min_rtt: Duration,
    /// Largest payload we put in a segment, bytes.
    pub send_mss: u16,
    /// Largest payload seen from the peer, bytes.
    pub recv_mss: u16,
    /// Congestion window, bytes.
    pub cwnd: u32,
    /// Slow start threshold, bytes; `u32::MAX` before the first loss.
    pub ssthresh: u32,
    /// Window the peer offers, bytes.
    pub send_window: u32,
    /// Window we offer, bytes.
    pub recv_window: u32,
    /// Sent and not acknowledged, bytes.
    pub in_flight: u32,
    /// Payload acknowledged by the peer, bytes.
    pub bytes_acked: u64,
    /// Payload received in order, bytes.
    pub bytes_received: u64,
    /// Payload sent again, bytes.
    pub bytes_retransmitted: u64,
    /// Segments sent.
    pub segments_out: u64,
    /// Segments received.
    pub segments_in: u64,
    /// Segments sent again.
    pub retransmitted_total: u32,
    /// Since the last data was sent.
    pub since_data_sent: Duration,
    /// Since the last data was received.
    pub since_data_received: Duration,
    /// Since the last acknowledgement was received.
    pub since_ack_received: Duration,
    /// Effective size of the send buffer, bytes.
    pub send_buffer: usize,
    /// Effective size of the receive buffer, bytes.
    pub recv_buffer: usize,
}

counters! {
    /// TCP's counters.
    pub struct TcpCounters {
        /// Segments received.
        tcp_segments_rx,
        /// Segments sent.
        tcp_segments_tx,
    }
}

impl Tcp {
    pub(crate) fn new(config: TcpConfig, _steering: Steering, _secret: &Secret) -> Self {
        Self { config, counters: TcpCounters::default() }
    }

    pub(crate) fn open(&mut self) -> Result<SocketId, OpenError> {
        Err(OpenError::LimitReached)
    }

    /// Binds to `local` (port 0: any free). The address is one of the stack's or unspecified; the
    /// caller has checked that.
    pub(crate) fn bind(
        &mut self,
        _id: SocketId,
        _local: SocketAddr,
        _reuse: Reuse,
    ) -> Result<SocketAddr, BindError> {
        Err(BindError::NoSocket)
    }

    pub(crate) fn listen(&mut self, _id: SocketId, _backlog: u32) -> Result<(), ListenError> {
        Err(ListenError::NoSocket)
    }

    pub(crate) fn accept(&mut self, _now: Instant, _id: SocketId) -> Result<Accepted, AcceptError> {
        Err(AcceptError::NotListening)
    }

    /// Starts a handshake. `source` is the address to use when the socket is not bound to one;
    /// `mss` is the largest segment for the path.
    pub(crate) fn connect(
        &mut self,
        _now: Instant,
        _id: SocketId,
        _source: IpAddr,
        _remote: SocketAddr,
        _mtu: u16,
    ) -> Result<(), ConnectError> {
        Err(ConnectError::NoSocket)
    }

    pub(crate) fn send(
        &mut self,
        _now: Instant,
        _id: SocketId,
        _data: &[IoSlice<'_>],
        _skip: usize,
        _more: More,
    ) -> Result<usize, SendError> {
        Err(SendError::BrokenPipe)
    }

    pub(crate) fn recv(
        &mut self,
        _now: Instant,
        _id: SocketId,
        _bufs: &mut [IoSliceMut<'_>],
        _skip: usize,
        _mode: RecvMode,
    ) -> Result<usize, RecvError> {
        Err(RecvError::NotConnected)
    }

    pub(crate) fn shutdown(
        &mut self,
        _now: Instant,
        _id: SocketId,
        _how: Shutdown,
    ) -> Result<(), NotConnected> {
        Err(NotConnected)
    }

    pub(crate) fn close(&mut self, _now: Instant, _id: SocketId, _how: Close) {
        let _ = &self.config;
    }

    pub(crate) fn readiness(&self, _id: SocketId) -> Readiness {
        Readiness::empty()
    }

    pub(crate) fn take_error(&mut self, _id: SocketId) -> Option<SocketError> {
        None
    }

    pub(crate) fn state(&self, _id: SocketId) -> State {
        State::Closed
    }

    pub(crate) fn local_addr(&self, _id: SocketId) -> Option<SocketAddr> {
        None
    }

    pub(crate) fn remote_addr(&self, _id: SocketId) -> Option<SocketAddr> {
        None
    }

    /// Bytes that `recv` would give now.
    pub(crate) fn unread(&self, _id: SocketId) -> usize {
        0
    }

    /// Bytes sent or queued and not acknowledged.
    pub(crate) fn unacked(&self, _id: SocketId) -> usize {
        0
    }

    pub(crate) fn set_option(&mut self, _now: Instant, _id: SocketId, _option: TcpOption) {}

    pub(crate) fn info(&self, _now: Instant, _id: SocketId) -> Option<TcpInfo> {
        None
    }

    /// Connections that the program has closed and that still have something to send.
    pub(crate) fn orphans(&self) -> usize {
        0
    }

    /// Every socket, for statistics: id, local, remote, state.
    pub(crate) fn sockets(
        &self,
    ) -> impl Iterator<Item = (SocketId, Option<SocketAddr>, Option<SocketAddr>, State)> + '_ {
        core::iter::empty()
    }

    pub(crate) fn counters(&self) -> &TcpCounters {
        &self.counters
    }

    /// A segment for one of our addresses: `segment` is the TCP header and all that follows it in
    /// the IP packet.
    pub(crate) fn handle_segment(&mut self, _now: Instant, _meta: &PacketMeta, _segment: &[u8]) {}

    /// An ICMP error (or a failed neighbour) about a segment we sent: `quoted` is the start of its
    /// TCP header, at least 8 bytes (ports and sequence number).
    pub(crate) fn handle_icmp(
        &mut self,
        _now: Instant,
        _src: IpAddr,
        _dst: IpAddr,
        _quoted: &[u8],
        _error: IcmpError,
    ) {
    }

    /// Runs the timers that are due.
    pub(crate) fn poll_timers(&mut self, _now: Instant) {}

    /// Sends what is to be sent. `false`: the device took no more, call again.
    pub(crate) fn poll_transmit(&mut self, _out: &mut Egress<'_>) -> bool {
        true
    }

    /// When [`Self::poll_timers`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Whether [`Self::poll_transmit`] has something to do.
    pub(crate) fn wants_transmit(&self) -> bool {
        false
    }

    pub(crate) fn take_event(&mut self) -> Option<Event> {
        None
    }

    /// Called once after each burst of frames: acknowledgements that waited for the end of the
    /// burst become due.
    pub(crate) fn end_of_burst(&mut self, _now: Instant) {}
}
