//! Every option that programs are known to use, and what becomes of it on a socket of the stack.
//!
//! Pure data: which values are valid is the kernel's knowledge (`store.rs`), so nothing here
//! repeats its ranges and roundings. An option that is missing here belongs to the kernel's half
//! of a socket alone; a socket without such a half refuses it.

use std::time::Duration;

use lstack_core::Protocol;
use lstack_core::tcp::TcpOption;
use lstack_core::udp::UdpOption;

use super::answer::Question;
use crate::description::{Settings, TimestampUnit};

/// One option.
pub(crate) struct Spec {
    pub(crate) level: i32,
    pub(crate) name: i32,
    /// As in the headers.
    pub(crate) label: &'static str,
    /// What setting it does, beyond being stored.
    pub(super) acts: Acts,
    /// Where the answer of `getsockopt` comes from.
    pub(super) answer: Answer,
}

/// What setting an option does. The functions get the value as the kernel understood it.
#[derive(Clone, Copy)]
pub(super) enum Acts {
    /// Nothing: it is stored, and true whatever the stack does.
    Stored,
    /// It becomes a setting of the core socket, if the protocol has it.
    Core(fn(Protocol, i32) -> Option<CoreOption>),
    /// As `Core`, for sizes of buffers: the function gets bytes of payload. `.1` is the option
    /// under which the size is read.
    Buffer(fn(Protocol, usize) -> Option<CoreOption>, i32),
    /// It changes what this crate does.
    Ours(fn(&mut Settings, &[u8])),
    /// The stack could not keep the promise, wherever the socket may end up.
    Refused,
}

/// Where the answer of `getsockopt` comes from.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// From the store: what was set, or Linux's default.
    Store,
    /// From the socket of the stack.
    Computed(Question),
}

/// A setting of a core socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CoreOption {
    Tcp(TcpOption),
    Udp(UdpOption),
}

/// The option `name` of `level`.
pub(super) fn find(level: i32, name: i32) -> Option<&'static Spec> {
    let name = match (level, name) {
        // The same values where `time_t` has 64 bits.
        (libc::SOL_SOCKET, SO_RCVTIMEO_NEW) => libc::SO_RCVTIMEO,
        (libc::SOL_SOCKET, SO_SNDTIMEO_NEW) => libc::SO_SNDTIMEO,
        _ => name,
    };
    TABLE.iter().find(|spec| spec.level == level && spec.name == name)
}

const fn stored(level: i32, name: i32, label: &'static str) -> Spec {
    Spec { level, name, label, acts: Acts::Stored, answer: Answer::Store }
}

const fn core(
    level: i32,
    name: i32,
    label: &'static str,
    option: fn(Protocol, i32) -> Option<CoreOption>,
) -> Spec {
    Spec { level, name, label, acts: Acts::Core(option), answer: Answer::Store }
}

const fn ours(
    level: i32,
    name: i32,
    label: &'static str,
    change: fn(&mut Settings, &[u8]),
) -> Spec {
    Spec { level, name, label, acts: Acts::Ours(change), answer: Answer::Store }
}

const fn computed(level: i32, name: i32, label: &'static str, question: Question) -> Spec {
    Spec { level, name, label, acts: Acts::Stored, answer: Answer::Computed(question) }
}

const fn refused(level: i32, name: i32, label: &'static str) -> Spec {
    Spec { level, name, label, acts: Acts::Refused, answer: Answer::Store }
}

impl Spec {
    const fn answered_by(mut self, question: Question) -> Self {
        self.answer = Answer::Computed(question);
        self
    }
}

const fn buffer(
    name: i32,
    label: &'static str,
    option: fn(Protocol, usize) -> Option<CoreOption>,
    question: Question,
    read_as: i32,
) -> Spec {
    Spec {
        level: SOCKET,
        name,
        label,
        acts: Acts::Buffer(option, read_as),
        answer: Answer::Computed(question),
    }
}

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const UDP: i32 = libc::IPPROTO_UDP;
const IP: i32 = libc::IPPROTO_IP;
const IPV6: i32 = libc::IPPROTO_IPV6;

pub(crate) const TABLE: &[Spec] = &[
    ours(SOCKET, libc::SO_REUSEADDR, "SO_REUSEADDR", |s, v| s.reuse.address = is_set(v)),
    ours(SOCKET, libc::SO_REUSEPORT, "SO_REUSEPORT", |s, v| s.reuse.port = is_set(v)),
    ours(SOCKET, libc::SO_LINGER, "SO_LINGER", |s, v| s.linger = linger(v)),
    ours(SOCKET, libc::SO_RCVTIMEO, "SO_RCVTIMEO", |s, v| s.receive_timeout = timeout(v)),
    ours(SOCKET, libc::SO_SNDTIMEO, "SO_SNDTIMEO", |s, v| s.send_timeout = timeout(v)),
    ours(SOCKET, libc::SO_TIMESTAMP, "SO_TIMESTAMP", |s, v| {
        s.timestamp = is_set(v).then_some(TimestampUnit::Micros);
    })
    .answered_by(Question::TimestampMicros),
    ours(SOCKET, libc::SO_TIMESTAMPNS, "SO_TIMESTAMPNS", |s, v| {
        s.timestamp = is_set(v).then_some(TimestampUnit::Nanos);
    })
    .answered_by(Question::TimestampNanos),
    core(SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE", |p, v| tcp(p, TcpOption::KeepAlive(v != 0))),
    core(SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT", |p, v| tcp(p, TcpOption::RecvLowWater(size(v)))),
    core(SOCKET, libc::SO_BROADCAST, "SO_BROADCAST", |p, v| udp(p, UdpOption::Broadcast(v != 0))),
    buffer(libc::SO_RCVBUF, "SO_RCVBUF", receive_buffer, Question::ReceiveBuffer, libc::SO_RCVBUF),
    buffer(
        libc::SO_RCVBUFFORCE,
        "SO_RCVBUFFORCE",
        receive_buffer,
        Question::Unreadable,
        libc::SO_RCVBUF,
    ),
    buffer(libc::SO_SNDBUF, "SO_SNDBUF", send_buffer, Question::SendBuffer, libc::SO_SNDBUF),
    buffer(
        libc::SO_SNDBUFFORCE,
        "SO_SNDBUFFORCE",
        send_buffer,
        Question::Unreadable,
        libc::SO_SNDBUF,
    ),
    computed(SOCKET, libc::SO_ERROR, "SO_ERROR", Question::Error),
    computed(SOCKET, libc::SO_TYPE, "SO_TYPE", Question::Type),
    computed(SOCKET, libc::SO_DOMAIN, "SO_DOMAIN", Question::Domain),
    computed(SOCKET, libc::SO_PROTOCOL, "SO_PROTOCOL", Question::Protocol),
    computed(SOCKET, libc::SO_ACCEPTCONN, "SO_ACCEPTCONN", Question::AcceptsConnections),
    computed(SOCKET, libc::SO_PEERNAME, "SO_PEERNAME", Question::PeerName),
    computed(SOCKET, SO_COOKIE, "SO_COOKIE", Question::Cookie),
    stored(SOCKET, libc::SO_PRIORITY, "SO_PRIORITY"),
    stored(SOCKET, libc::SO_MARK, "SO_MARK"),
    stored(SOCKET, libc::SO_BINDTODEVICE, "SO_BINDTODEVICE"),
    stored(SOCKET, SO_BINDTOIFINDEX, "SO_BINDTOIFINDEX"),
    stored(SOCKET, libc::SO_DONTROUTE, "SO_DONTROUTE"),
    stored(SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE"),
    stored(SOCKET, libc::SO_DEBUG, "SO_DEBUG"),
    stored(SOCKET, libc::SO_SNDLOWAT, "SO_SNDLOWAT"),
    stored(SOCKET, libc::SO_BUSY_POLL, "SO_BUSY_POLL"),
    stored(SOCKET, SO_PREFER_BUSY_POLL, "SO_PREFER_BUSY_POLL"),
    stored(SOCKET, SO_BUSY_POLL_BUDGET, "SO_BUSY_POLL_BUDGET"),
    // -1 (unknown), unless the program chose one.
    stored(SOCKET, libc::SO_INCOMING_CPU, "SO_INCOMING_CPU"),
    stored(SOCKET, SO_INCOMING_NAPI_ID, "SO_INCOMING_NAPI_ID"),
    stored(SOCKET, SO_MAX_PACING_RATE, "SO_MAX_PACING_RATE"),
    stored(SOCKET, libc::SO_RXQ_OVFL, "SO_RXQ_OVFL"),
    stored(SOCKET, SO_SELECT_ERR_QUEUE, "SO_SELECT_ERR_QUEUE"),
    stored(SOCKET, libc::SO_PEERCRED, "SO_PEERCRED"),
    stored(SOCKET, SO_NO_CHECK, "SO_NO_CHECK"),
    // Its user waits for notices that the stack does not send.
    refused(SOCKET, libc::SO_ZEROCOPY, "SO_ZEROCOPY"),
    core(TCP, libc::TCP_NODELAY, "TCP_NODELAY", |p, v| tcp(p, TcpOption::NoDelay(v != 0))),
    core(TCP, libc::TCP_CORK, "TCP_CORK", |p, v| tcp(p, TcpOption::Cork(v != 0))),
    core(TCP, libc::TCP_QUICKACK, "TCP_QUICKACK", |p, v| tcp(p, TcpOption::QuickAck(v != 0))),
    core(TCP, libc::TCP_MAXSEG, "TCP_MAXSEG", |p, v| {
        tcp(p, TcpOption::MaxSegment(u16::try_from(v).unwrap_or(u16::MAX)))
    })
    .answered_by(Question::MaxSegment),
    core(TCP, libc::TCP_KEEPIDLE, "TCP_KEEPIDLE", |p, v| tcp(p, TcpOption::KeepIdle(seconds(v)))),
    core(TCP, libc::TCP_KEEPINTVL, "TCP_KEEPINTVL", |p, v| {
        tcp(p, TcpOption::KeepInterval(seconds(v)))
    }),
    core(TCP, libc::TCP_KEEPCNT, "TCP_KEEPCNT", |p, v| tcp(p, TcpOption::KeepCount(byte(v)))),
    core(TCP, libc::TCP_SYNCNT, "TCP_SYNCNT", |p, v| tcp(p, TcpOption::SynRetries(byte(v)))),
    core(TCP, libc::TCP_LINGER2, "TCP_LINGER2", |p, v| tcp(p, TcpOption::FinWait2(seconds(v)))),
    core(TCP, libc::TCP_DEFER_ACCEPT, "TCP_DEFER_ACCEPT", |p, v| {
        tcp(p, TcpOption::DeferAccept(seconds(v)))
    }),
    core(TCP, libc::TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT", |p, v| {
        tcp(p, TcpOption::UserTimeout(Duration::from_millis(u64::from(v.cast_unsigned()))))
    }),
    core(TCP, TCP_NOTSENT_LOWAT, "TCP_NOTSENT_LOWAT", |p, v| {
        // An unsigned number: "-1" is as good as no limit.
        tcp(p, TcpOption::NotSentLowWater(v.cast_unsigned() as usize))
    }),
    computed(TCP, libc::TCP_INFO, "TCP_INFO", Question::TcpInfo),
    computed(TCP, libc::TCP_CONGESTION, "TCP_CONGESTION", Question::Congestion),
    stored(TCP, libc::TCP_WINDOW_CLAMP, "TCP_WINDOW_CLAMP"),
    stored(TCP, libc::TCP_FASTOPEN, "TCP_FASTOPEN"),
    stored(TCP, TCP_FASTOPEN_CONNECT, "TCP_FASTOPEN_CONNECT"),
    stored(TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, "TCP_THIN_LINEAR_TIMEOUTS"),
    stored(TCP, libc::TCP_THIN_DUPACK, "TCP_THIN_DUPACK"),
    stored(TCP, TCP_TX_DELAY, "TCP_TX_DELAY"),
    core(IP, libc::IP_TOS, "IP_TOS", traffic_class),
    core(IP, libc::IP_TTL, "IP_TTL", hop_limit),
    core(IP, libc::IP_MTU_DISCOVER, "IP_MTU_DISCOVER", path_mtu_discovery),
    core(IP, libc::IP_RECVERR, "IP_RECVERR", |p, v| udp(p, UdpOption::RecvErr(v != 0))),
    ours(IP, libc::IP_PKTINFO, "IP_PKTINFO", |s, v| s.packet_info = is_set(v)),
    ours(IP, libc::IP_RECVTTL, "IP_RECVTTL", |s, v| s.receive_ttl = is_set(v)),
    ours(IP, libc::IP_RECVTOS, "IP_RECVTOS", |s, v| s.receive_tos = is_set(v)),
    computed(IP, libc::IP_MTU, "IP_MTU", Question::Mtu),
    stored(IP, IP_BIND_ADDRESS_NO_PORT, "IP_BIND_ADDRESS_NO_PORT"),
    stored(IP, IP_LOCAL_PORT_RANGE, "IP_LOCAL_PORT_RANGE"),
    stored(IP, libc::IP_TRANSPARENT, "IP_TRANSPARENT"),
    stored(IP, libc::IP_FREEBIND, "IP_FREEBIND"),
    stored(IP, libc::IP_MINTTL, "IP_MINTTL"),
    // Groups are the kernel's, and so is what goes to them; these only describe that.
    stored(IP, libc::IP_MULTICAST_TTL, "IP_MULTICAST_TTL"),
    stored(IP, libc::IP_MULTICAST_LOOP, "IP_MULTICAST_LOOP"),
    stored(IP, libc::IP_MULTICAST_ALL, "IP_MULTICAST_ALL"),
    ours(IPV6, libc::IPV6_V6ONLY, "IPV6_V6ONLY", |s, v| s.v6_only = is_set(v)),
    ours(IPV6, libc::IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO", |s, v| s.packet_info = is_set(v)),
    ours(IPV6, libc::IPV6_RECVHOPLIMIT, "IPV6_RECVHOPLIMIT", |s, v| s.receive_ttl = is_set(v)),
    ours(IPV6, libc::IPV6_RECVTCLASS, "IPV6_RECVTCLASS", |s, v| s.receive_tos = is_set(v)),
    computed(IPV6, libc::IPV6_MTU, "IPV6_MTU", Question::Mtu),
    // The stack's packets are IPv4: these describe others, and Linux ignores them there as well.
    stored(IPV6, libc::IPV6_TCLASS, "IPV6_TCLASS"),
    stored(IPV6, libc::IPV6_UNICAST_HOPS, "IPV6_UNICAST_HOPS"),
    stored(IPV6, libc::IPV6_MTU_DISCOVER, "IPV6_MTU_DISCOVER"),
    stored(IPV6, libc::IPV6_RECVERR, "IPV6_RECVERR"),
    stored(IPV6, libc::IPV6_MULTICAST_HOPS, "IPV6_MULTICAST_HOPS"),
    stored(IPV6, libc::IPV6_MULTICAST_LOOP, "IPV6_MULTICAST_LOOP"),
    // Without the device's help there is nothing to merge; each datagram comes alone.
    stored(UDP, libc::UDP_GRO, "UDP_GRO"),
    // These change what one `send` means.
    refused(UDP, libc::UDP_SEGMENT, "UDP_SEGMENT"),
    refused(UDP, libc::UDP_CORK, "UDP_CORK"),
];

fn tcp(protocol: Protocol, option: TcpOption) -> Option<CoreOption> {
    (protocol == Protocol::Tcp).then_some(CoreOption::Tcp(option))
}

fn udp(protocol: Protocol, option: UdpOption) -> Option<CoreOption> {
    (protocol == Protocol::Udp).then_some(CoreOption::Udp(option))
}

#[allow(clippy::unnecessary_wraps, reason = "one signature for all entries of the table")]
fn receive_buffer(protocol: Protocol, payload: usize) -> Option<CoreOption> {
    Some(match protocol {
        Protocol::Tcp => CoreOption::Tcp(TcpOption::RecvBuffer(payload)),
        Protocol::Udp => CoreOption::Udp(UdpOption::RecvBuffer(payload)),
    })
}

fn send_buffer(protocol: Protocol, payload: usize) -> Option<CoreOption> {
    tcp(protocol, TcpOption::SendBuffer(payload))
}

#[allow(clippy::unnecessary_wraps, reason = "one signature for all entries of the table")]
fn traffic_class(protocol: Protocol, value: i32) -> Option<CoreOption> {
    Some(match protocol {
        Protocol::Tcp => CoreOption::Tcp(TcpOption::Tos(byte(value))),
        Protocol::Udp => CoreOption::Udp(UdpOption::Tos(byte(value))),
    })
}

#[allow(clippy::unnecessary_wraps, reason = "one signature for all entries of the table")]
fn hop_limit(protocol: Protocol, value: i32) -> Option<CoreOption> {
    Some(match protocol {
        Protocol::Tcp => CoreOption::Tcp(TcpOption::Ttl(byte(value))),
        Protocol::Udp => CoreOption::Udp(UdpOption::Ttl(byte(value))),
    })
}

/// `IP_PMTUDISC_DO` and `_PROBE` forbid fragments; the others leave it to the sender. TCP never
/// sends fragments.
fn path_mtu_discovery(protocol: Protocol, value: i32) -> Option<CoreOption> {
    let never = matches!(value, libc::IP_PMTUDISC_DO | libc::IP_PMTUDISC_PROBE);
    udp(protocol, UdpOption::DontFragment(never))
}

/// An `int`, or the single byte that IP options may be.
pub(super) fn number(value: &[u8]) -> i32 {
    match (value.first_chunk::<4>(), value.first()) {
        (Some(int), _) => i32::from_ne_bytes(*int),
        (None, Some(byte)) => i32::from(*byte),
        (None, None) => 0,
    }
}

fn is_set(value: &[u8]) -> bool {
    number(value) != 0
}

/// `struct linger`.
fn linger(value: &[u8]) -> Option<Duration> {
    is_set(value).then(|| seconds(number(value.get(4..).unwrap_or_default())))
}

/// `struct timeval` with 64-bit fields; zero is no timeout.
fn timeout(value: &[u8]) -> Option<Duration> {
    let word = |at: usize| {
        let bytes = value.get(at..).and_then(|rest| rest.first_chunk::<8>());
        u64::try_from(bytes.map_or(0, |bytes| i64::from_ne_bytes(*bytes))).unwrap_or(0)
    };
    let timeout = Duration::from_secs(word(0)) + Duration::from_micros(word(8));
    Some(timeout).filter(|timeout| !timeout.is_zero())
}

/// Negative times are none (`TCP_LINGER2` takes them).
fn seconds(value: i32) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}

fn size(value: i32) -> usize {
    usize::try_from(value).unwrap_or(0)
}

fn byte(value: i32) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

// Not in the `libc` crate for this target: asm-generic/socket.h, linux/tcp.h, linux/in.h.
const SO_NO_CHECK: i32 = 11;
const SO_SELECT_ERR_QUEUE: i32 = 45;
const SO_MAX_PACING_RATE: i32 = 47;
const SO_INCOMING_NAPI_ID: i32 = 56;
const SO_COOKIE: i32 = 57;
const SO_BINDTOIFINDEX: i32 = 62;
const SO_RCVTIMEO_NEW: i32 = 66;
const SO_SNDTIMEO_NEW: i32 = 67;
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;
const TCP_NOTSENT_LOWAT: i32 = 25;
const TCP_FASTOPEN_CONNECT: i32 = 30;
const TCP_TX_DELAY: i32 = 37;
const IP_BIND_ADDRESS_NO_PORT: i32 = 24;
const IP_LOCAL_PORT_RANGE: i32 = 51;
