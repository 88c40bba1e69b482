//! One connection: its state, and what a program can ask of it.
//!
//! Segments come in through `input` and `ack_input`, leave through `output`, time passes through
//! `expiry`. Every entry leaves marks behind (`edges`, `wants_output`, `reset`, deadlines, the state)
//! that [`super::Tcp`] acts on once, afterwards: a connection never touches tables or queues itself.

use core::time::Duration;

use super::black_hole::PathTrust;
use super::congestion::{Algorithm, Window};
use super::ecn::Ecn;
use super::flow::FlowKey;
use super::header::{Flags, HEADER_LEN, Reset, SackBlock, Segment, TIMESTAMPS_LEN};
use super::rack::Rack;
use super::recovery::Recovery;
use super::recv_buffer::RecvBuffer;
use super::rtt::RttEstimator;
use super::scoreboard::Scoreboard;
use super::send_buffer::SendBuffer;
use super::seq::Seq;
use super::settings::Settings;
use super::types::{State, TcpCounters, TcpInfo};
use crate::buffer::BlockPool;
use crate::config::TcpConfig;
use crate::socket::{Readiness, SocketError};

/// What a connection may use while it works.
pub(super) struct Env<'a> {
    /// Microseconds.
    pub now: u64,
    pub config: &'a TcpConfig,
    pub pool: &'a mut BlockPool,
    pub counters: &'a mut TcpCounters,
}

/// A connection, from the SYN (ours or the one a listener has answered) to its end.
#[derive(Debug)]
pub(super) struct Connection {
    pub key: FlowKey,
    pub state: State,
    /// In `Tcp`'s list of connections with something to send.
    pub queued: bool,
    /// Something may be to be sent.
    pub wants_output: bool,
    /// The program has closed it.
    pub orphan: bool,
    /// An orphan whose end the peer has acknowledged: nothing of it can be lost any more.
    pub delivered: bool,
    /// The program knows it: it was opened by it, or accepted.
    pub visible: bool,
    /// The flow table knows it.
    pub in_table: bool,
    /// The program will send no more.
    pub shut_write: bool,
    /// The program wants to read no more.
    pub shut_read: bool,
    /// The handshake was completed at some time.
    pub was_established: bool,
    /// There was no memory for data to send, or for a window worth a segment.
    pub out_of_memory: bool,
    /// `Tcp` will tell when there is.
    pub awaits_memory: bool,
    pub use_timestamps: bool,
    pub use_sack: bool,
    /// What `Tcp`'s timer is armed for; it may be earlier than any deadline.
    pub armed: u64,
    pub hash: u32,
    pub timers: Deadlines,
    pub snd: SendSide,
    pub rcv: RecvSide,
    pub ack: AckState,
    pub ecn: Ecn,
    pub keep: KeepAlive,
    pub settings: Settings,
    /// What happened since the last event.
    pub edges: Readiness,
    pub error: Option<SocketError>,
    /// What an ICMP error said; becomes the error if the connection times out.
    pub soft_error: Option<SocketError>,
    /// A reset to send.
    pub reset: Option<Reset>,
    pub timestamp_offset: u32,
    pub stats: Stats,
}

/// Sending, RFC 9293 3.3.1.
#[derive(Debug)]
pub(super) struct SendSide {
    pub iss: Seq,
    pub una: Seq,
    pub nxt: Seq,
    /// The peer's window, scaled.
    pub wnd: u32,
    pub wl1: Seq,
    pub wl2: Seq,
    /// Largest window the peer has offered.
    pub max_wnd: u32,
    /// The peer's window scale.
    pub scale: u8,
    /// Largest payload with its options the peer and the path take.
    pub mss: u32,
    /// The MSS the peer announced.
    pub peer_mss: u16,
    /// Largest IP packet for the path.
    pub mtu: u16,
    pub path_trust: PathTrust,
    /// After the last byte the program has given us; a FIN has this number.
    pub stream_end: Seq,
    /// End of the last segment sent that was not full (Minshall's variant of Nagle's rule).
    pub small_end: Seq,
    /// `MSG_MORE`: hold back what is not full.
    pub more: bool,
    /// Held back long enough: send what there is.
    pub push_partial: bool,
    /// The peer's window keeps back what is to be sent.
    pub window_blocked: bool,
    /// Most that was in flight in the present round trip, and where that ends.
    pub used_window: u32,
    pub round_end: Seq,
    /// The window is too small for what the rules ask, and nothing is in flight: send anyway.
    pub override_window: bool,
    /// The program found no room: tell it when there is.
    pub starved: bool,
    pub limit: u32,
    pub buffer: SendBuffer,
    pub board: Scoreboard,
    pub rack: Rack,
    pub rtt: RttEstimator,
    pub window: Window,
    pub algorithm: Algorithm,
    pub recovery: Recovery,
}

/// Receiving, RFC 9293 3.3.1.
#[derive(Debug)]
pub(super) struct RecvSide {
    pub buffer: RecvBuffer,
    /// Where the peer's FIN is, once it was seen.
    pub fin_at: Option<Seq>,
    /// It was reached.
    pub fin_done: bool,
    /// Right edge of the window we have offered.
    pub edge: Seq,
    /// Our last acknowledgement.
    pub acked: Seq,
    /// Our window scale.
    pub scale: u8,
    pub limit: u32,
    /// Largest payload seen: what the peer takes for a full segment.
    pub mss: u16,
    pub timestamp: u32,
    /// When `timestamp` was taken, for the 24 days of RFC 7323 5.5.
    pub timestamp_at: u64,
    pub tuning: Tuning,
}

/// Receive buffer tuning: bytes the program took in the present round trip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tuning {
    pub since: u64,
    pub taken: u32,
}

/// When and how to acknowledge.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckState {
    pub need: AckNeed,
    /// Acknowledge this many segments at once.
    pub quick: u8,
    /// Answers follow requests: an acknowledgement can wait for the answer.
    pub interactive: bool,
    /// The program was promised to see all: PSH.
    pub pushed: bool,
    /// Duplicates to send to a peer that counts them (one without SACK).
    pub duplicates: u8,
    pub last_data_at: u64,
    /// A duplicate to report.
    pub dsack: Option<SackBlock>,
    /// Segments that cannot be are not answered before this.
    pub challenge_from: u64,
}

/// How urgent an acknowledgement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckNeed {
    None,
    Delayed,
    Now,
}

/// Liveness probes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeepAlive {
    pub last_received_at: u64,
    /// Probes without an answer, of either kind.
    pub unanswered: u8,
    pub due: ProbeDue,
}

/// A probe to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ProbeDue {
    #[default]
    None,
    KeepAlive,
    Window,
}

/// Numbers for `TCP_INFO`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stats {
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub bytes_retransmitted: u64,
    pub segments_out: u64,
    pub segments_in: u64,
    pub retransmitted: u32,
    pub data_sent_at: u64,
    pub ack_received_at: u64,
}

/// Names of a connection's timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// Retransmission, tail loss probe, window probe or SYN: whatever comes next.
    Retransmit,
    /// RACK's reordering window.
    Reorder,
    DelayedAck,
    Cork,
    /// Keepalive, or the end of `FIN_WAIT2`.
    Life,
}

/// Number of timers.
const TIMERS: usize = 5;

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// Deadlines in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines([u64; TIMERS]);

impl Deadlines {
    pub(super) fn none() -> Self {
        Self([NEVER; TIMERS])
    }

    pub(super) fn set(&mut self, timer: Timer, at: u64) {
        self.0[timer as usize] = at;
    }

    pub(super) fn clear(&mut self, timer: Timer) {
        self.set(timer, NEVER);
    }

    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.0[timer as usize] != NEVER
    }

    /// Clears the timer if it is due.
    pub(super) fn take_due(&mut self, timer: Timer, now: u64) -> bool {
        let due = self.0[timer as usize] <= now;
        if due {
            self.clear(timer);
        }
        due
    }

    pub(super) fn earliest(&self) -> u64 {
        self.0.iter().copied().fold(NEVER, u64::min)
    }
}

/// What a new connection starts from.
pub(super) struct Start {
    pub key: FlowKey,
    pub hash: u32,
    pub iss: Seq,
    pub timestamp_offset: u32,
    pub settings: Settings,
    pub mtu: u16,
}

/// What the peer's SYN has told.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerSyn {
    pub irs: Seq,
    pub mss: u16,
    pub scale: Option<u8>,
    pub timestamp: Option<u32>,
    pub sack: bool,
    /// It asks for ECN, or agrees to it.
    pub ecn: bool,
}

/// Without an MSS option, RFC 9293 3.7.1.
const DEFAULT_MSS: u16 = 536;

/// No smaller MSS is believed: a peer that announces one wants us to work ourselves to death
/// (Linux's `tcp_min_snd_mss`).
const PEER_MSS_MIN: u16 = 48;

/// Payload of a segment on the smallest path there is (RFC 791: 68 bytes) with timestamps.
const PAYLOAD_MIN: u16 = 16;

/// Acknowledgements sent at once when a connection starts or wakes up, as Linux does.
pub(super) const QUICK_ACKS: u8 = 16;

impl PeerSyn {
    pub(super) fn of(segment: &Segment<'_>) -> Self {
        let options = &segment.options;
        // RFC 3168 6.1.1. A peer that merely repeats the bits of our SYN does not know them.
        let ecn =
            if segment.flags.contains(Flags::ACK) { Flags::ECE } else { Flags::ECE | Flags::CWR };
        Self {
            irs: segment.seq,
            mss: options.mss.filter(|&mss| mss != 0).unwrap_or(DEFAULT_MSS).max(PEER_MSS_MIN),
            scale: options.window_scale,
            timestamp: options.timestamps.map(|timestamps| timestamps.value),
            sack: options.sack_permitted,
            ecn: segment.flags & (Flags::ECE | Flags::CWR) == ecn,
        }
    }
}

impl Connection {
    /// A connection that is about to send its SYN.
    pub(super) fn new(start: &Start, env: &Env<'_>) -> Self {
        let Start { key, hash, iss, timestamp_offset, settings, mtu } = *start;
        let mss = u32::from(DEFAULT_MSS);
        Self {
            key,
            state: State::SynSent,
            queued: false,
            wants_output: true,
            orphan: false,
            delivered: false,
            visible: true,
            in_table: true,
            shut_write: false,
            shut_read: false,
            was_established: false,
            out_of_memory: false,
            awaits_memory: false,
            use_timestamps: false,
            use_sack: false,
            armed: NEVER,
            hash,
            timers: Deadlines::none(),
            snd: SendSide {
                iss,
                una: iss,
                nxt: iss,
                wnd: 0,
                wl1: Seq(0),
                wl2: iss,
                max_wnd: 0,
                scale: 0,
                mss,
                peer_mss: DEFAULT_MSS,
                mtu,
                path_trust: PathTrust::default(),
                stream_end: iss + 1,
                small_end: iss,
                more: false,
                push_partial: false,
                window_blocked: false,
                used_window: 0,
                round_end: iss,
                override_window: false,
                starved: false,
                limit: settings.send_buffer,
                buffer: SendBuffer::default(),
                board: Scoreboard::default(),
                rack: Rack::new(iss),
                rtt: RttEstimator::new(super::settings::micros(env.config.min_rto) as u32),
                window: Window::initial(mss),
                algorithm: Algorithm::new(settings.congestion),
                recovery: Recovery::new(iss),
            },
            rcv: RecvSide {
                buffer: RecvBuffer::new(Seq(0)),
                fin_at: None,
                fin_done: false,
                edge: Seq(0),
                acked: Seq(0),
                scale: 0,
                limit: settings.recv_buffer,
                mss: DEFAULT_MSS,
                timestamp: 0,
                timestamp_at: 0,
                tuning: Tuning::default(),
            },
            ack: AckState {
                need: AckNeed::None,
                quick: QUICK_ACKS,
                interactive: false,
                pushed: false,
                duplicates: 0,
                last_data_at: env.now,
                dsack: None,
                challenge_from: 0,
            },
            ecn: Ecn::new(iss),
            keep: KeepAlive { last_received_at: env.now, ..KeepAlive::default() },
            settings,
            edges: Readiness::empty(),
            error: None,
            soft_error: None,
            reset: None,
            timestamp_offset,
            stats: Stats { data_sent_at: env.now, ack_received_at: env.now, ..Stats::default() },
        }
    }

    /// Takes over what the peer's SYN says. `our_scale` is what our own SYN offered.
    pub(super) fn take_peer_syn(&mut self, syn: &PeerSyn, our_scale: u8, now: u64) {
        self.rcv.buffer = RecvBuffer::new(syn.irs + 1);
        self.rcv.edge = syn.irs + 1 + self.rcv.limit.min(u32::from(u16::MAX));
        self.rcv.acked = syn.irs + 1;
        if let Some(scale) = syn.scale {
            self.snd.scale = scale;
            self.rcv.scale = our_scale;
        }
        self.ecn.on = syn.ecn;
        self.use_sack = syn.sack;
        if syn.sack {
            self.snd.recovery.allow_probes();
        }
        if let Some(value) = syn.timestamp {
            self.use_timestamps = true;
            self.rcv.timestamp = value;
            self.rcv.timestamp_at = now;
        }
        self.snd.peer_mss = syn.mss;
        self.snd.wl1 = syn.irs;
        self.set_mss();
        self.snd.window = Window::initial(self.snd.mss);
    }

    /// Computes the largest payload from the peer's MSS, the path and the options.
    pub(super) fn set_mss(&mut self) {
        let mut mss = self.snd.peer_mss.min(self.mss_of_mtu());
        if self.settings.mss != 0 {
            mss = mss.min(self.settings.mss.max(PEER_MSS_MIN));
        }
        let options = if self.use_timestamps { TIMESTAMPS_LEN as u16 } else { 0 };
        self.snd.mss = u32::from(mss.saturating_sub(options).max(PAYLOAD_MIN));
        self.snd.window.mss = self.snd.mss;
    }

    /// The MSS we announce: what fits the path, or what the program wants.
    pub(super) fn announced_mss(&self) -> u16 {
        let mss = self.mss_of_mtu();
        if self.settings.mss == 0 { mss } else { mss.min(self.settings.mss) }
    }

    fn mss_of_mtu(&self) -> u16 {
        self.snd.mtu.saturating_sub(self.ip_header_len() + HEADER_LEN as u16)
    }

    pub(super) fn ip_header_len(&self) -> u16 {
        if self.key.remote.is_ipv4() { 20 } else { 40 }
    }

    /// The handshake is complete.
    pub(super) fn establish(&mut self, env: &mut Env<'_>) {
        self.state = State::Established;
        self.was_established = true;
        self.snd.recovery.retries = 0;
        self.snd.rtt.reset_backoff();
        self.timers.clear(Timer::Retransmit);
        self.keep.last_received_at = env.now;
        self.arm_keepalive(env.now);
        self.rcv.tuning.since = env.now;
        self.notify(Readiness::WRITABLE);
    }

    /// Next sequence number we expect.
    pub(super) fn rcv_nxt(&self) -> Seq {
        self.rcv.buffer.next() + u32::from(self.rcv.fin_done)
    }

    /// Window as the peer knows it.
    pub(super) fn rcv_wnd(&self) -> u32 {
        self.rcv.edge.since(self.rcv_nxt())
    }

    /// Bytes given by the program and not sent.
    pub(super) fn unsent(&self) -> u32 {
        self.snd.stream_end.since(self.snd.nxt)
    }

    pub(super) fn fin_sent(&self) -> bool {
        self.snd.nxt.after(self.snd.stream_end)
    }

    pub(super) fn fin_acked(&self) -> bool {
        self.snd.una.after(self.snd.stream_end)
    }

    /// Notes that something happened that a waiter may wait for.
    pub(super) fn notify(&mut self, edges: Readiness) {
        self.edges |= edges;
    }

    /// Something is to be sent.
    pub(super) fn request_output(&mut self) {
        self.wants_output = true;
    }

    /// Our clock for timestamps: milliseconds, as Linux. Finer ones would make peers refuse
    /// segments after a pause of half the clock's period (36 minutes for microseconds).
    pub(super) fn timestamp_now(&self, now: u64) -> u32 {
        ((now / 1_000) as u32).wrapping_add(self.timestamp_offset)
    }

    /// What `poll` would say, by the rules of Linux's `tcp_poll`.
    pub(super) fn readiness(&self) -> Readiness {
        let mut ready = Readiness::empty();
        let read_closed = self.shut_read || self.rcv.fin_done || self.is_over();
        let write_closed = self.shut_write || self.is_over();
        if (read_closed && write_closed) || self.state == State::Closed {
            ready |= Readiness::HANGUP;
        }
        if read_closed {
            ready |= Readiness::READABLE | Readiness::READ_HANGUP;
        }
        if !matches!(self.state, State::SynSent | State::SynReceived) {
            if self.rcv.buffer.ready() >= self.settings.recv_low.min(self.rcv.limit) as usize {
                ready |= Readiness::READABLE;
            }
            if write_closed || self.is_writable() {
                ready |= Readiness::WRITABLE;
            }
        }
        if self.error.is_some() {
            ready |= Readiness::ERROR;
        }
        ready
    }

    /// Linux's `sk_stream_is_writeable`: a third of the buffer is free.
    pub(super) fn is_writable(&self) -> bool {
        let queued = self.snd.buffer.len() as u64;
        let low = self.settings.not_sent_low;
        queued + queued / 2 <= u64::from(self.snd.limit) && (low == 0 || self.unsent() < low)
    }

    /// Memory has become free after there was none.
    pub(super) fn on_memory(&mut self) {
        self.awaits_memory = false;
        if core::mem::take(&mut self.out_of_memory) && !self.is_over() {
            self.tell_if_writable();
            self.ack_now();
        }
    }

    /// The connection has ended, by whatever way, or never was.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Closed
    }

    /// Ends the connection. What was received stays readable, unless nobody can read it.
    pub(super) fn die(&mut self, env: &mut Env<'_>, error: Option<SocketError>) {
        if self.state == State::SynSent || self.state == State::SynReceived {
            env.counters.tcp_attempt_fails += 1;
        }
        self.state = State::Closed;
        if error.is_some() {
            self.error = error;
        }
        self.drop_output(env);
        self.rcv.buffer.renege(env.pool);
        if self.orphan {
            self.rcv.buffer.clear(env.pool);
        }
        self.notify(
            Readiness::READABLE
                | Readiness::WRITABLE
                | Readiness::HANGUP
                | Readiness::READ_HANGUP
                | if error.is_some() { Readiness::ERROR } else { Readiness::empty() },
        );
    }

    /// Forgets everything that is to be sent, and every timer.
    pub(super) fn drop_output(&mut self, env: &mut Env<'_>) {
        self.snd.buffer.clear(env.pool);
        self.snd.board.clear();
        self.timers = Deadlines::none();
        self.wants_output = false;
        self.ack.need = AckNeed::None;
        self.keep.due = ProbeDue::None;
    }

    /// Gives all memory back.
    pub(super) fn release(&mut self, pool: &mut BlockPool) {
        self.snd.buffer.clear(pool);
        self.rcv.buffer.clear(pool);
    }

    pub(super) fn info(&self, now: u64) -> TcpInfo {
        let since = |at: u64| Duration::from_micros(now.saturating_sub(at));
        let micros = |value: u32| Duration::from_micros(u64::from(value));
        let has_rtt = self.snd.rtt.has_sample();
        TcpInfo {
            state: self.state,
            retransmits: self.snd.recovery.retries,
            window_scale: (self.rcv.scale != 0 || self.snd.scale != 0)
                .then_some((self.rcv.scale, self.snd.scale)),
            timestamps: self.use_timestamps,
            sack: self.use_sack,
            ecn: self.ecn.on,
            rto: Duration::from_micros(self.snd.rtt.rto()),
            srtt: micros(if has_rtt { self.snd.rtt.srtt() } else { 0 }),
            rttvar: micros(self.snd.rtt.rttvar()),
            min_rtt: micros(if has_rtt { self.snd.rtt.min_rtt() } else { 0 }),
            send_mss: self.snd.mss as u16,
            recv_mss: self.rcv.mss,
            cwnd: self.snd.window.cwnd,
            ssthresh: self.snd.window.ssthresh,
            send_window: self.snd.wnd,
            recv_window: self.rcv_wnd(),
            in_flight: self.snd.nxt.since(self.snd.una),
            bytes_acked: self.stats.bytes_acked,
            bytes_received: self.stats.bytes_received,
            bytes_retransmitted: self.stats.bytes_retransmitted,
            segments_out: self.stats.segments_out,
            segments_in: self.stats.segments_in,
            retransmitted_total: self.stats.retransmitted,
            since_data_sent: since(self.stats.data_sent_at),
            since_data_received: since(self.ack.last_data_at),
            since_ack_received: since(self.stats.ack_received_at),
            send_buffer: self.snd.limit as usize,
            recv_buffer: self.rcv.limit as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Connection;

    /// With its slot, its timer and its cell of the flow table an idle connection stays below
    /// 1 KiB; buffers and scoreboard are empty then.
    #[test]
    fn an_idle_connection_is_small() {
        let cell = 8 * 2;
        let total = size_of::<Connection>()
            + size_of::<crate::tcp::slab::Place<crate::tcp::Socket>>()
            + crate::timer::NODE_LEN
            + cell;
        assert!(total <= 1_024, "{total} bytes");
    }
}
