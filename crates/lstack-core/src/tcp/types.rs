//! What callers of TCP see: states, settings, results and errors.

use core::net::SocketAddr;
use core::time::Duration;

use crate::counters::counters;
use crate::socket::{SocketError, SocketId};

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
    /// The attempt before failed and its error was taken already (`ECONNABORTED`); the next call
    /// starts a new one.
    #[error("connection aborted")]
    Aborted,
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

/// How a connection reacts to congestion (`TCP_CONGESTION`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// RFC 9438 with HyStart++.
    #[default]
    Cubic,
    /// RFC 5681.
    Reno,
}

impl Congestion {
    /// Linux's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
        }
    }

    /// The algorithm with this name, if we have it.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Cubic, Self::Reno].into_iter().find(|algorithm| algorithm.name() == name)
    }
}

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
    /// `TCP_CONGESTION`; at any time.
    Congestion(Congestion),
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
    /// Explicit congestion notification is in use.
    pub ecn: bool,
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
        /// Segments sent; a large one that the device cuts counts once.
        tcp_segments_tx,
        /// Segments sent again.
        tcp_retransmits_tx,
        /// Resets sent.
        tcp_rst_tx,
        /// Resets received and believed.
        tcp_rst_rx,
        /// Connections opened by us.
        tcp_active_opens,
        /// Connections opened by a peer.
        tcp_passive_opens,
        /// Attempts of ours that failed.
        tcp_attempt_fails,
        /// Established connections that a reset ended.
        tcp_established_resets,
        /// Connections that ended for want of an answer.
        tcp_timeouts,
        /// Segments that a router has marked (RFC 3168).
        tcp_ecn_marks_rx,
        /// Reductions of the window because of marks that the peer echoed.
        tcp_ecn_reductions,
        /// Retransmission timeouts that fired.
        tcp_rto_fired,
        /// Retransmission timeouts that turned out needless (RFC 5682).
        tcp_rto_spurious,
        /// Packets made smaller because large ones seem to vanish without a report (RFC 4821).
        tcp_black_holes,
        /// Tail loss probes sent.
        tcp_probes_tx,
        /// Fast recoveries entered.
        tcp_recoveries,
        /// Zero-window probes sent.
        tcp_window_probes_tx,
        /// Keepalive probes sent.
        tcp_keepalive_probes_tx,
        /// Challenge acknowledgements sent (RFC 5961).
        tcp_challenge_acks,
        /// Duplicate data reported by DSACK.
        tcp_dsack_tx,
        /// DSACKs received.
        tcp_dsack_rx,
        /// Data received out of order.
        tcp_out_of_order_rx,
        /// Connections that moved to `TIME_WAIT`.
        tcp_time_wait_entered,
        /// `TIME_WAIT` records that a new connection replaced.
        tcp_time_wait_reused,
        /// `TIME_WAIT` records thrown away before their time because there were too many.
        tcp_time_wait_overflow,
        /// Segments dropped: shorter than their header says.
        tcp_drop_malformed,
        /// Segments dropped: wrong checksum.
        tcp_drop_bad_checksum,
        /// Segments dropped: nobody has the port (answered with a reset unless one itself).
        tcp_drop_no_socket,
        /// Segments dropped: to or from an address no connection can have.
        tcp_drop_bad_address,
        /// SYNs dropped: the accept queue is full.
        tcp_listen_overflow,
        /// SYNs answered by a SYN cookie: the listener keeps no more half-open connections.
        tcp_syn_cookies_tx,
        /// Connections made from a SYN cookie that came back.
        tcp_syn_cookies_rx,
        /// Acknowledgements of no SYN cookie, while some were out.
        tcp_syn_cookies_failed,
        /// Half-open connections given up: no answer to our SYN+ACK.
        tcp_syn_timeouts,
        /// Segments dropped: older timestamp than the last (RFC 7323 5.3).
        tcp_drop_paws,
        /// Segments dropped: outside the window.
        tcp_drop_out_of_window,
        /// Segments dropped: acknowledge what was never sent.
        tcp_drop_bad_ack,
        /// Segments dropped: not possible in the connection's state.
        tcp_drop_bad_state,
        /// Data dropped: no memory, or too many holes.
        tcp_drop_no_memory,
        /// Answers dropped: too many wait to be sent.
        tcp_drop_reply_overflow,
        /// ICMP errors ignored: they match no segment in flight.
        tcp_icmp_ignored,
        /// Packets that found no route when they were to be sent.
        tcp_no_route,
    }
}
