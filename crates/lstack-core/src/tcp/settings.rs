//! Settings of one socket. A listener's are copied to the connections it accepts.

use core::time::Duration;

use super::ecn;
use super::types::{Congestion, TcpOption};
use crate::config::TcpConfig;

/// Linux's defaults: `tcp_keepalive_time`, `_intvl`, `_probes`, `tcp_syn_retries`.
const KEEP_IDLE: Millis = Millis(7_200_000);
const KEEP_INTERVAL: Millis = Millis(75_000);
const KEEP_COUNT: u8 = 9;
const SYN_RETRIES: u8 = 6;
const TTL: u8 = 64;

/// Smallest buffers: one segment must be able to pass (Linux's floors are near).
const BUFFER_MIN: usize = 1_024;

/// Sizes are bytes of payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub no_delay: bool,
    pub cork: bool,
    pub keep_alive: bool,
    pub send_buffer_fixed: bool,
    pub recv_buffer_fixed: bool,
    pub keep_count: u8,
    pub syn_retries: u8,
    pub tos: u8,
    pub ttl: u8,
    /// Largest segment, 0 for no limit but the path's.
    pub mss: u16,
    pub congestion: Congestion,
    pub send_buffer: u32,
    pub recv_buffer: u32,
    pub recv_low: u32,
    /// 0: no limit.
    pub not_sent_low: u32,
    pub keep_idle: Millis,
    pub keep_interval: Millis,
    /// 0: the system's patience.
    pub user_timeout: Millis,
    pub fin_wait2: Millis,
    /// 0: off.
    pub defer_accept: Millis,
}

impl Settings {
    pub(super) fn new(config: &TcpConfig) -> Self {
        Self {
            no_delay: false,
            cork: false,
            keep_alive: false,
            send_buffer_fixed: false,
            recv_buffer_fixed: false,
            keep_count: KEEP_COUNT,
            syn_retries: SYN_RETRIES,
            tos: 0,
            ttl: TTL,
            mss: 0,
            congestion: Congestion::default(),
            send_buffer: buffer_size(config.send_buffer, config.send_buffer_max),
            recv_buffer: buffer_size(config.recv_buffer, config.recv_buffer_max),
            recv_low: 1,
            not_sent_low: 0,
            keep_idle: KEEP_IDLE,
            keep_interval: KEEP_INTERVAL,
            user_timeout: Millis(0),
            fin_wait2: Millis::from(config.fin_wait2),
            defer_accept: Millis(0),
        }
    }

    /// Takes a new value. What it changes at once in a connection is the connection's business.
    pub(super) fn apply(&mut self, option: TcpOption, config: &TcpConfig) {
        match option {
            TcpOption::NoDelay(on) => self.no_delay = on,
            TcpOption::Cork(on) => self.cork = on,
            // Says something about the moment, not about the socket.
            TcpOption::QuickAck(_) => {}
            TcpOption::MaxSegment(mss) => self.mss = mss,
            TcpOption::KeepAlive(on) => self.keep_alive = on,
            TcpOption::KeepIdle(time) => self.keep_idle = time.into(),
            TcpOption::KeepInterval(time) => self.keep_interval = time.into(),
            TcpOption::KeepCount(count) => self.keep_count = count,
            TcpOption::UserTimeout(time) => self.user_timeout = time.into(),
            TcpOption::SynRetries(count) => self.syn_retries = count,
            TcpOption::FinWait2(time) => self.fin_wait2 = time.into(),
            TcpOption::SendBuffer(size) => {
                self.send_buffer = buffer_size(size, config.send_buffer_max);
                self.send_buffer_fixed = true;
            }
            TcpOption::RecvBuffer(size) => {
                self.recv_buffer = buffer_size(size, config.recv_buffer_max);
                self.recv_buffer_fixed = true;
            }
            TcpOption::RecvLowWater(bytes) => self.recv_low = (bytes as u32).max(1),
            TcpOption::NotSentLowWater(bytes) => self.not_sent_low = bytes as u32,
            TcpOption::DeferAccept(time) => self.defer_accept = time.into(),
            TcpOption::Congestion(congestion) => self.congestion = congestion,
            TcpOption::Tos(tos) => self.tos = ecn::without_field(tos),
            TcpOption::Ttl(ttl) => self.ttl = ttl,
        }
    }
}

/// A time in milliseconds, half the size of one in microseconds: no option is finer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Millis(u32);

impl From<Duration> for Millis {
    fn from(time: Duration) -> Self {
        Self(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
    }
}

impl Millis {
    pub(super) fn micros(self) -> u64 {
        u64::from(self.0) * 1_000
    }
}

/// Saturating, though no time a program can name comes near the end of 64 bits.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A buffer size within its limits; a gigabyte is half of what sequence numbers can tell apart.
fn buffer_size(size: usize, max: usize) -> u32 {
    size.clamp(BUFFER_MIN, max.clamp(BUFFER_MIN, 1 << 30)) as u32
}
