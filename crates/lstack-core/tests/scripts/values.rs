//! How scripts write numbers, times, settings and answers.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use lstack_core::tcp::{
    AcceptError, Congestion, ConnectError, NotConnected, RecvError, SendError, State, TcpInfo,
    TcpOption,
};
use lstack_core::{EcnMode, SocketError, StackConfig};
use smoltcp::wire::Icmpv4Packet;

use crate::script::Sent;

pub fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim().replace('_', "").parse().map_err(|_| format!("`{text}` is not a number"))
}

pub fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let value: u64 = number(digits)?;
    match &text[digits.len()..] {
        "us" => Ok(Duration::from_micros(value)),
        "ms" => Ok(Duration::from_millis(value)),
        "s" => Ok(Duration::from_secs(value)),
        unit => Err(format!("`{unit}` is none of us, ms, s")),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}` is neither on nor off")),
    }
}

/// Changes a setting of the stack.
pub fn configure(config: &mut StackConfig, key: &str, value: &str) -> Result<(), String> {
    let tcp = &mut config.tcp;
    match key {
        "mtu" => config.link.mtu = number(value)?,
        "tso_max" => config.link.tso_max = Some(number(value)?),
        "max_sockets" => tcp.max_sockets = number(value)?,
        "send_buffer" => tcp.send_buffer = number(value)?,
        "recv_buffer" => tcp.recv_buffer = number(value)?,
        "recv_buffer_max" => tcp.recv_buffer_max = number(value)?,
        "memory_max" => tcp.memory_max = number(value)?,
        "min_rto" => tcp.min_rto = duration(value)?,
        "time_wait" => tcp.time_wait = duration(value)?,
        "fin_wait2" => tcp.fin_wait2 = duration(value)?,
        "ecn" => {
            tcp.ecn = match value {
                "off" => EcnMode::Off,
                "on" => EcnMode::On,
                "accept" => EcnMode::Accept,
                _ => return Err("of off, on and accept".to_owned()),
            }
        }
        _ => return Err("there is no such setting".to_owned()),
    }
    Ok(())
}

pub fn option(name: &str, value: &str) -> Result<TcpOption, String> {
    Ok(match name {
        "nodelay" => TcpOption::NoDelay(switch(value)?),
        "cork" => TcpOption::Cork(switch(value)?),
        "quickack" => TcpOption::QuickAck(switch(value)?),
        "maxseg" => TcpOption::MaxSegment(number(value)?),
        "keepalive" => TcpOption::KeepAlive(switch(value)?),
        "keepidle" => TcpOption::KeepIdle(duration(value)?),
        "keepintvl" => TcpOption::KeepInterval(duration(value)?),
        "keepcnt" => TcpOption::KeepCount(number(value)?),
        "user_timeout" => TcpOption::UserTimeout(duration(value)?),
        "syncnt" => TcpOption::SynRetries(number(value)?),
        "linger2" => TcpOption::FinWait2(duration(value)?),
        "sndbuf" => TcpOption::SendBuffer(number(value)?),
        "rcvbuf" => TcpOption::RecvBuffer(number(value)?),
        "rcvlowat" => TcpOption::RecvLowWater(number(value)?),
        "notsent_lowat" => TcpOption::NotSentLowWater(number(value)?),
        "defer_accept" => TcpOption::DeferAccept(duration(value)?),
        "congestion" => {
            TcpOption::Congestion(Congestion::by_name(value).ok_or("there is no such algorithm")?)
        }
        "tos" => TcpOption::Tos(number(value)?),
        "ttl" => TcpOption::Ttl(number(value)?),
        _ => return Err("there is no such option".to_owned()),
    })
}

/// `none`, or the names of `poll(2)`.
pub fn readiness(mask: u32) -> String {
    let names =
        [(0x1, "IN"), (0x2, "PRI"), (0x4, "OUT"), (0x8, "ERR"), (0x10, "HUP"), (0x2000, "RDHUP")];
    let set: Vec<&str> =
        names.iter().filter(|(bit, _)| mask & bit != 0).map(|&(_, name)| name).collect();
    if set.is_empty() { "none".to_owned() } else { set.join(" ") }
}

/// As `ss` has them.
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Established => "established",
        State::SynSent => "syn-sent",
        State::SynReceived => "syn-recv",
        State::FinWait1 => "fin-wait-1",
        State::FinWait2 => "fin-wait-2",
        State::TimeWait => "time-wait",
        State::Closed => "closed",
        State::CloseWait => "close-wait",
        State::LastAck => "last-ack",
        State::Listen => "listening",
        State::Closing => "closing",
    }
}

/// The name of an error number.
pub fn error_name(error: SocketError) -> String {
    match error {
        SocketError::ConnectionRefused => "ECONNREFUSED",
        SocketError::ConnectionReset => "ECONNRESET",
        SocketError::BrokenPipe => "EPIPE",
        SocketError::TimedOut => "ETIMEDOUT",
        SocketError::HostUnreachable => "EHOSTUNREACH",
        SocketError::NetworkUnreachable => "ENETUNREACH",
        SocketError::ProtocolUnreachable => "ENOPROTOOPT",
        SocketError::MessageTooLong => "EMSGSIZE",
        SocketError::StackFailed => "the stack has failed",
    }
    .to_owned()
}

/// An error of a call that has a name of `errno(3)`.
pub trait Named {
    fn name(self) -> String;
}

impl Named for SendError {
    fn name(self) -> String {
        match self {
            Self::WouldBlock => "EAGAIN".to_owned(),
            Self::BrokenPipe => "EPIPE".to_owned(),
            Self::Failed(error) => error_name(error),
        }
    }
}

impl Named for RecvError {
    fn name(self) -> String {
        match self {
            Self::WouldBlock => "EAGAIN".to_owned(),
            Self::NotConnected => "ENOTCONN".to_owned(),
            Self::Failed(error) => error_name(error),
        }
    }
}

impl Named for ConnectError {
    fn name(self) -> String {
        match self {
            Self::NoSocket => "EBADF".to_owned(),
            Self::Connected => "EISCONN".to_owned(),
            Self::InProgress => "EALREADY".to_owned(),
            Self::Unreachable => "ENETUNREACH".to_owned(),
            Self::NoFreeAddress => "EADDRNOTAVAIL".to_owned(),
            Self::Aborted => "ECONNABORTED".to_owned(),
            Self::Failed(error) => error_name(error),
        }
    }
}

impl Named for AcceptError {
    fn name(self) -> String {
        match self {
            Self::NotListening => "EINVAL".to_owned(),
            Self::WouldBlock => "EAGAIN".to_owned(),
        }
    }
}

impl Named for NotConnected {
    fn name(self) -> String {
        "ENOTCONN".to_owned()
    }
}

pub fn unit<E: Named>(result: Result<(), E>) -> String {
    result.map_or_else(Named::name, |()| "ok".to_owned())
}

pub fn count<E: Named>(result: Result<usize, E>) -> String {
    result.map_or_else(Named::name, |count| count.to_string())
}

/// A field of [`TcpInfo`]; times in milliseconds.
pub fn info(info: &TcpInfo, name: &str) -> Result<String, String> {
    let on = |value: bool| if value { "on" } else { "off" }.to_owned();
    Ok(match name {
        "cwnd" => info.cwnd.to_string(),
        "ssthresh" if info.ssthresh == u32::MAX => "none".to_owned(),
        "ssthresh" => info.ssthresh.to_string(),
        "send_mss" => info.send_mss.to_string(),
        "recv_mss" => info.recv_mss.to_string(),
        "send_window" => info.send_window.to_string(),
        "recv_window" => info.recv_window.to_string(),
        "in_flight" => info.in_flight.to_string(),
        "bytes_acked" => info.bytes_acked.to_string(),
        "bytes_received" => info.bytes_received.to_string(),
        "bytes_retransmitted" => info.bytes_retransmitted.to_string(),
        "retransmits" => info.retransmits.to_string(),
        "retransmitted_total" => info.retransmitted_total.to_string(),
        "segments_out" => info.segments_out.to_string(),
        "segments_in" => info.segments_in.to_string(),
        "send_buffer" => info.send_buffer.to_string(),
        "recv_buffer" => info.recv_buffer.to_string(),
        "rto" => info.rto.as_millis().to_string(),
        "srtt" => info.srtt.as_millis().to_string(),
        "min_rtt" => info.min_rtt.as_millis().to_string(),
        "window_scale" => match info.window_scale {
            Some((ours, peers)) => format!("{ours} {peers}"),
            None => "none".to_owned(),
        },
        "timestamps" => on(info.timestamps),
        "sack" => on(info.sack),
        "ecn" => on(info.ecn),
        _ => return Err("there is no such field".to_owned()),
    })
}

/// Compares an answer with what is wanted: the same words, or a number of a range `A..B`.
pub fn same(got: &str, wanted: &str) -> Result<(), String> {
    let equal = match wanted.split_once("..") {
        Some((low, high)) => {
            let (low, high): (u64, u64) = (number(low)?, number(high)?);
            got.parse().is_ok_and(|got: u64| (low..=high).contains(&got))
        }
        None => got == wanted.replace('_', ""),
    };
    if equal { Ok(()) } else { Err(format!("it is {got}")) }
}

/// Compares a segment with the words of a script.
pub fn matches(sent: &Sent, words: &str) -> Result<(), String> {
    let mut words = words.split_whitespace().peekable();
    let mut plain = Vec::new();
    let mut wrong = Vec::new();
    let mut compare = |name: &str, got: &dyn Display, wanted: Option<&str>| {
        if wanted != Some(got.to_string().as_str()) {
            wrong.push(format!("{name} {got}"));
        }
    };
    while let Some(word) = words.next() {
        match word {
            "win" => compare(word, &sent.window, words.next()),
            "ecn" => compare(word, &sent.ecn, words.next()),
            "dscp" => compare(word, &sent.dscp, words.next()),
            "ttl" => compare(word, &sent.ttl, words.next()),
            "echo" => {
                let echo = sent.timestamps.map_or(0, |(_, echo)| echo);
                compare(word, &echo, words.next());
            }
            "stamped" => compare(word, &sent.timestamps.is_some(), Some("true")),
            _ => plain.push(word),
        }
    }
    if sent.text != plain.join(" ") {
        return Err(format!("it has sent `{}`", sent.text));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("it has {}", wrong.join(", "))) }
}

/// An ICMP error about a packet: `KIND [MTU] [beyond]`; with `beyond` about a segment that was
/// never sent.
pub fn icmp_error(words: &str, packet: &[u8]) -> Result<Vec<u8>, String> {
    let mut words = words.split_whitespace();
    let code = match words.next().unwrap_or_default() {
        "net-unreachable" => 0,
        "host-unreachable" => 1,
        "protocol-unreachable" => 2,
        "port-unreachable" => 3,
        "too-big" => 4,
        kind => return Err(format!("there is no `{kind}`")),
    };
    let mtu: u16 = if code == 4 { number(words.next().unwrap_or_default())? } else { 0 };
    let mut quote = packet[..28].to_vec();
    match words.next() {
        None => {}
        Some("beyond") => quote[24] ^= 0x40,
        Some(word) => return Err(format!("what is `{word}`?")),
    }
    let [high, low] = mtu.to_be_bytes();
    let mut message = vec![3, code, 0, 0, 0, 0, high, low];
    message.extend(quote);
    Icmpv4Packet::new_unchecked(&mut message[..]).fill_checksum();
    Ok(message)
}
