//! What a connection sends, and when: RFC 9293 3.8, 5681, 896 with Minshall's variant, 1122
//! 4.2.3.4.
//!
//! Headers and payload are written once, straight into the frame. Nothing in the connection changes
//! before the device has taken the segment, so that a refusal only means to come again.

use super::connection::{AckNeed, Connection, Env, ProbeDue, Timer};
use super::ecn;
use super::header::{
    Flags, HEADER_LEN, Header, Options, SACK_BLOCK_LEN, SACK_LEAD_LEN, SackBlock, SackBlocks,
    TIMESTAMPS_LEN, Timestamps,
};
use super::seq::Seq;
use super::types::State;
use crate::config::{EcnMode, TcpConfig};
use crate::ip::{Egress, EgressError, Outgoing};
use crate::link::L4;

/// Bytes a connection sends before others get their turn: what a device segments at once, about
/// 50 µs of a 10 Gbit/s link.
const QUANTUM: u32 = 64 * 1024;

/// Longest a corked or `MSG_MORE` remainder waits, as Linux.
const CORK_TIME: u64 = 200_000;

/// Bytes of a header with all the options it can have.
const HEADER_MAX: usize = 60;

/// IP protocol number.
pub(super) const PROTOCOL: u8 = 6;

/// How far [`Connection::transmit`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing more can be sent now.
    Done,
    /// The quantum is used up.
    More,
    /// The device took no more.
    Blocked,
}

/// The device took no more.
struct NoRoom;

/// The bytes of a segment.
struct Payload {
    start: Seq,
    len: u32,
    /// More than one segment: the device cuts it into pieces of this size.
    segment_size: Option<u16>,
    /// Routers may mark it.
    ecn_capable: bool,
}

impl Payload {
    fn none(start: Seq) -> Self {
        Self { start, len: 0, segment_size: None, ecn_capable: false }
    }
}

/// Why new data stops.
enum Halt {
    NothingLeft,
    PeerWindow,
    CongestionWindow,
    HeldBack,
}

impl Connection {
    /// Sends what may be sent.
    pub(super) fn transmit(&mut self, env: &mut Env<'_>, out: &mut Egress<'_>) -> Progress {
        let done = match self.state {
            State::SynSent | State::SynReceived => self.transmit_handshake(env, out),
            State::Closed | State::Listen | State::TimeWait => return Progress::Done,
            _ => self.transmit_established(env, out),
        };
        match done {
            Ok(true) => Progress::Done,
            Ok(false) => Progress::More,
            Err(NoRoom) => Progress::Blocked,
        }
    }

    /// States in which data and FIN may be sent or sent again.
    pub(super) fn state_sends(&self) -> bool {
        matches!(
            self.state,
            State::Established
                | State::CloseWait
                | State::FinWait1
                | State::Closing
                | State::LastAck
        )
    }

    fn transmit_handshake(
        &mut self,
        env: &mut Env<'_>,
        out: &mut Egress<'_>,
    ) -> Result<bool, NoRoom> {
        if self.snd.nxt != self.snd.iss {
            return Ok(true);
        }
        self.snd.mtu = out.path_mtu(self.key.remote);
        let is_answer = self.state == State::SynReceived;
        let first = self.snd.recovery.retries == 0 && !is_answer;
        let timestamps = Timestamps {
            value: self.timestamp_now(env.now),
            echo: if is_answer { self.rcv.timestamp } else { 0 },
        };
        let scale = if is_answer { self.rcv.scale } else { self.offered_scale(env) };
        let scaled = !is_answer || self.rcv.scale != 0 || self.snd.scale != 0;
        let flags = match (is_answer, self.ecn.on) {
            (true, true) => Flags::SYN | Flags::ACK | Flags::ECE,
            (true, false) => Flags::SYN | Flags::ACK,
            // A second SYN does not ask for ECN: the first may have been dropped for it.
            (false, _) if first && env.config.ecn == EcnMode::On => {
                Flags::SYN | Flags::ECE | Flags::CWR
            }
            (false, _) => Flags::SYN,
        };
        let header = Header {
            src_port: self.key.local_port,
            dst_port: self.key.remote_port,
            seq: self.snd.iss,
            ack: if is_answer { self.rcv_nxt() } else { Seq(0) },
            flags,
            window: self.rcv.limit.min(u32::from(u16::MAX)) as u16,
            options: Options {
                mss: Some(self.announced_mss()),
                window_scale: scaled.then_some(scale),
                sack_permitted: !is_answer || self.use_sack,
                timestamps: (!is_answer || self.use_timestamps).then_some(timestamps),
                sack: SackBlocks::default(),
            },
        };
        self.emit(env, out, &header, None)?;
        self.snd.nxt = self.snd.iss + 1;
        if first {
            self.stats.data_sent_at = env.now;
        }
        self.snd.recovery.stuck_since.get_or_insert(env.now);
        let wait = self.within_user_timeout(env, self.snd.rtt.rto());
        self.timers.set(Timer::Retransmit, env.now + wait);
        Ok(true)
    }

    /// The shift our SYN offers: what the largest buffer we may come to needs.
    pub(super) fn offered_scale(&self, env: &Env<'_>) -> u8 {
        let largest = if self.settings.recv_buffer_fixed {
            self.rcv.limit as usize
        } else {
            env.config.recv_buffer_max.max(self.rcv.limit as usize)
        };
        window_scale(largest)
    }

    fn transmit_established(
        &mut self,
        env: &mut Env<'_>,
        out: &mut Egress<'_>,
    ) -> Result<bool, NoRoom> {
        let mut finished = true;
        if self.state_sends() {
            let before = self.snd.nxt;
            let sent = self.transmit_data(env, out);
            self.arm_after_sending(env, before);
            // Less is unsent now: TCP_NOTSENT_LOWAT.
            self.tell_if_writable();
            finished = sent?;
        }
        self.transmit_probe(env, out)?;
        if self.ack.need == AckNeed::Now {
            let copies = if self.use_sack { 1 } else { self.ack.duplicates.max(1) };
            for left in (0..copies).rev() {
                self.ack.duplicates = left + 1;
                self.send_ack(env, out)?;
            }
            self.ack.duplicates = 0;
        }
        Ok(finished)
    }

    fn transmit_data(&mut self, env: &mut Env<'_>, out: &mut Egress<'_>) -> Result<bool, NoRoom> {
        let mut budget = QUANTUM;
        while let Some(range) = self.next_retransmission() {
            self.send_range(env, out, range)?;
            let len = range.end.since(range.start);
            self.snd.recovery.on_sent(len);
            self.snd.recovery.on_resent(len);
            budget = budget.saturating_sub(len);
            if budget == 0 {
                return Ok(false);
            }
        }
        if self.snd.recovery.probe_due {
            self.send_tail_probe(env, out)?;
        }
        let large =
            out.segmentation_max(self.key.remote).map_or(0, |max| self.largest_for(max as u32));
        loop {
            // CWR belongs to one packet, and devices differ in what they make of it.
            let large = if self.ecn.reduced { 0 } else { large };
            let (len, fin) = match self.next_new(large) {
                Ok(next) => next,
                Err(halt) => {
                    self.on_halt(env, &halt);
                    return Ok(true);
                }
            };
            self.send_new(env, out, len, fin)?;
            budget = budget.saturating_sub(len.max(1));
            if budget == 0 {
                return Ok(false);
            }
        }
    }

    /// The first lost range, cut to a segment, if the window lets it go.
    fn next_retransmission(&mut self) -> Option<SackBlock> {
        let mut range = self.snd.board.next_lost()?;
        let snd = &self.snd;
        range.end = range.end.min(range.start + snd.mss);
        let len = range.end.since(range.start);
        let fits = snd.in_flight() + len <= snd.window.cwnd || snd.recovery.force_one;
        // A peer that has shrunk its window still gets the first segment, as its probe.
        let allowed =
            range.start == snd.una || range.end.at_or_before(snd.una + snd.wnd.max(snd.mss));
        (fits && allowed).then_some(range)
    }

    /// Length and FIN of the next new segment.
    fn next_new(&self, large: u32) -> Result<(u32, bool), Halt> {
        let snd = &self.snd;
        let unsent = self.unsent();
        let fin = self.shut_write && !self.fin_sent();
        if unsent == 0 && !fin {
            return Err(Halt::NothingLeft);
        }
        let room = (snd.una + snd.wnd).since(snd.nxt);
        let mss = snd.mss;
        if unsent == 0 {
            return if room > 0 || snd.override_window {
                Ok((0, true))
            } else {
                Err(Halt::PeerWindow)
            };
        }
        let mut len = unsent.min(room);
        if len < unsent && len < mss && len < (snd.max_wnd / 2).max(1) && !snd.override_window {
            // RFC 9293 3.8.6.2.1: not worth a segment until the window opens.
            return Err(Halt::PeerWindow);
        }
        if len == 0 {
            return Err(Halt::PeerWindow);
        }
        let open = snd.window.cwnd.saturating_sub(snd.in_flight());
        if open < len.min(mss) && snd.in_flight() > 0 {
            return Err(Halt::CongestionWindow);
        }
        len = len.min(open.max(mss)).min(large.max(mss));
        let partial = len % mss;
        let is_rest = len == unsent;
        if partial != 0 && !(is_rest && self.may_send_small()) {
            if len > mss {
                // Full segments first; the remainder is decided on by itself.
                len -= partial;
            } else if is_rest {
                return Err(Halt::HeldBack);
            }
        }
        Ok((len, fin && len == unsent && len < room))
    }

    /// Nagle's rule in Minshall's form, `TCP_NODELAY`, `TCP_CORK` and `MSG_MORE`.
    fn may_send_small(&self) -> bool {
        if self.shut_write || self.snd.push_partial {
            return true;
        }
        if self.settings.cork || self.snd.more {
            return false;
        }
        self.settings.no_delay || self.snd.small_end.at_or_before(self.snd.una)
    }

    fn on_halt(&mut self, env: &mut Env<'_>, halt: &Halt) {
        self.snd.window_blocked = matches!(halt, Halt::PeerWindow);
        match halt {
            Halt::NothingLeft => self.snd.push_partial = false,
            Halt::HeldBack
                if (self.settings.cork || self.snd.more) && !self.timers.is_set(Timer::Cork) =>
            {
                self.timers.set(Timer::Cork, env.now + CORK_TIME);
            }
            _ => {}
        }
    }

    /// Largest payload of a segment that the device cuts, a multiple of the segment size.
    fn largest_for(&self, tso_max: u32) -> u32 {
        // Room for both headers with all options they can have.
        let payload = tso_max.min(65_535).saturating_sub(40 + 60);
        payload - payload % self.snd.mss
    }

    fn send_new(
        &mut self,
        env: &mut Env<'_>,
        out: &mut Egress<'_>,
        len: u32,
        fin: bool,
    ) -> Result<(), NoRoom> {
        let start = self.snd.nxt;
        let end = start + len + u32::from(fin);
        self.restart_if_idle(env);
        self.send_range(env, out, SackBlock { start, end })?;
        self.note_sent(env, start, end);
        if len > 0 && env.now.saturating_sub(self.ack.last_data_at) < super::input::DELAYED_ACK {
            self.ack.interactive = true;
        }
        Ok(())
    }

    /// The scoreboard learns of new data.
    fn note_sent(&mut self, env: &Env<'_>, start: Seq, end: Seq) {
        let snd = &mut self.snd;
        snd.board.push(start, end, env.now);
        snd.nxt = end;
        if !end.since(start).is_multiple_of(snd.mss) {
            snd.small_end = end;
        }
        snd.recovery.on_sent(end.since(start));
        snd.recovery.stuck_since.get_or_insert(env.now);
        snd.override_window = false;
        let in_flight = snd.in_flight();
        if snd.una.at_or_after(snd.round_end) {
            snd.round_end = end;
            snd.used_window = in_flight;
        } else {
            snd.used_window = snd.used_window.max(in_flight);
        }
        self.stats.data_sent_at = env.now;
    }

    /// RFC 5681 4.1: after a pause the window says little; halve it for every timeout that passed.
    fn restart_if_idle(&mut self, env: &Env<'_>) {
        let snd = &mut self.snd;
        if !snd.board.is_empty() {
            return;
        }
        let rto = snd.rtt.rto();
        let mut idle = env.now.saturating_sub(self.stats.data_sent_at);
        if idle <= rto {
            return;
        }
        let restart = super::congestion::Window::initial(snd.mss).cwnd;
        snd.window.ssthresh = snd.window.ssthresh.max(snd.window.cwnd / 4 * 3);
        while idle > rto && snd.window.cwnd > restart {
            snd.window.cwnd = (snd.window.cwnd / 2).max(restart);
            idle -= rto;
        }
        super::congestion::CongestionControl::restart(&mut snd.algorithm);
    }

    /// RFC 8985 7.3: new data if there is some, else the last segment again.
    fn send_tail_probe(&mut self, env: &mut Env<'_>, out: &mut Egress<'_>) -> Result<(), NoRoom> {
        let room = (self.snd.una + self.snd.wnd).since(self.snd.nxt);
        let len = self.unsent().min(self.snd.mss);
        if len > 0 && len <= room {
            self.send_new(env, out, len, false)?;
            self.snd.recovery.on_probe_sent(self.snd.nxt, false);
        } else if let Some(range) = self.snd.board.tail(self.snd.mss) {
            self.send_range(env, out, range)?;
            self.snd.recovery.on_resent(range.end.since(range.start));
            self.snd.recovery.on_probe_sent(self.snd.nxt, true);
        }
        self.snd.recovery.probe_due = false;
        env.counters.tcp_probes_tx += 1;
        Ok(())
    }

    /// Sends the bytes (and FIN) of a range, new or old.
    fn send_range(
        &mut self,
        env: &mut Env<'_>,
        out: &mut Egress<'_>,
        range: SackBlock,
    ) -> Result<(), NoRoom> {
        let again = range.start.before(self.snd.nxt);
        let data_end = range.end.min(self.snd.stream_end);
        let len = data_end.since(range.start);
        let mut flags = Flags::ACK;
        // RFC 3168 6.1.5: what is sent again may not be marked, and does not tell of reductions.
        let ecn_capable = self.ecn.on && !again && len > 0;
        if ecn_capable && self.ecn.reduced {
            flags |= Flags::CWR;
        }
        if range.end.after(self.snd.stream_end) {
            flags |= Flags::FIN;
        }
        if len > 0 && data_end == self.snd.stream_end {
            flags |= Flags::PSH;
        }
        let mut header = self.header(env, range.start, flags);
        // SACK blocks only where they do not push payload out.
        if len as usize + header.options.len() > self.snd.mss as usize + self.timestamps_len() {
            header.options.sack = SackBlocks::default();
        }
        let segment_size = (len > self.snd.mss).then_some(self.snd.mss as u16);
        let payload = Payload { start: range.start, len, segment_size, ecn_capable };
        self.emit(env, out, &header, Some(payload))?;
        if ecn_capable {
            self.ecn.reduced = false;
        }
        if again {
            self.snd.board.resent(range, env.now);
            self.stats.retransmitted = self.stats.retransmitted.saturating_add(1);
            self.stats.bytes_retransmitted += u64::from(len);
            env.counters.tcp_retransmits_tx += 1;
        }
        Ok(())
    }

    /// Probes of an idle peer or a closed window: a segment it cannot accept and must answer.
    fn transmit_probe(&mut self, env: &mut Env<'_>, out: &mut Egress<'_>) -> Result<(), NoRoom> {
        if self.keep.due == ProbeDue::None {
            return Ok(());
        }
        let header = self.header(env, self.snd.una - 1, Flags::ACK);
        self.emit(env, out, &header, None)?;
        match self.keep.due {
            ProbeDue::KeepAlive => env.counters.tcp_keepalive_probes_tx += 1,
            _ => env.counters.tcp_window_probes_tx += 1,
        }
        self.keep.due = ProbeDue::None;
        Ok(())
    }

    fn send_ack(&mut self, env: &mut Env<'_>, out: &mut Egress<'_>) -> Result<(), NoRoom> {
        let header = self.header(env, self.snd.nxt, Flags::ACK);
        self.emit(env, out, &header, None)
    }

    /// A header with all that every segment carries.
    fn header(&mut self, env: &Env<'_>, seq: Seq, flags: Flags) -> Header {
        let timestamps = self
            .use_timestamps
            .then(|| Timestamps { value: self.timestamp_now(env.now), echo: self.rcv.timestamp });
        let sack = self.sack_to_report();
        Header {
            src_port: self.key.local_port,
            dst_port: self.key.remote_port,
            seq,
            ack: self.rcv_nxt(),
            flags: if self.ecn.echo { flags | Flags::ECE } else { flags },
            window: (self.select_window(env) >> self.rcv.scale).min(u32::from(u16::MAX)) as u16,
            options: Options { timestamps, sack, ..Options::default() },
        }
    }

    /// What we have beyond a hole, as far as the header and the path have room for it.
    fn sack_to_report(&mut self) -> SackBlocks {
        let mut sack = SackBlocks::default();
        if self.ack.dsack.is_none() && !self.rcv.buffer.has_holes() {
            return sack;
        }
        let largest = usize::from(self.snd.mtu.saturating_sub(self.ip_header_len()));
        let taken = HEADER_LEN + self.timestamps_len() + SACK_LEAD_LEN;
        let max = HEADER_MAX.min(largest).saturating_sub(taken) / SACK_BLOCK_LEN;
        if let Some(duplicate) = self.ack.dsack.filter(|_| max > 0) {
            sack.push(duplicate);
        }
        if self.use_sack {
            for block in self.rcv.buffer.sack_blocks(max - sack.len()).iter() {
                sack.push(*block);
            }
        }
        sack
    }

    fn timestamps_len(&self) -> usize {
        if self.use_timestamps { TIMESTAMPS_LEN } else { 0 }
    }

    /// Hands a segment to the device and notes what it acknowledged.
    fn emit(
        &mut self,
        env: &mut Env<'_>,
        out: &mut Egress<'_>,
        header: &Header,
        payload: Option<Payload>,
    ) -> Result<(), NoRoom> {
        let header_len = header.len();
        let Payload { start, len, segment_size, ecn_capable } =
            payload.unwrap_or(Payload::none(header.seq));
        let packet = Outgoing {
            src: self.key.local,
            dst: self.key.remote,
            protocol: PROTOCOL,
            tos: if ecn_capable { self.settings.tos | ecn::CAPABLE } else { self.settings.tos },
            ttl: self.settings.ttl,
            dont_fragment: true,
            l4: L4::Tcp { header_len: header_len as u8 },
            segment_size,
        };
        let snd = &self.snd;
        let pool = &*env.pool;
        let offset = start.since(snd.stream_end - snd.buffer.len() as u32) as usize;
        let sent = out.send(&packet, header_len + len as usize, |frame| {
            header.write(frame);
            if len > 0 {
                snd.buffer.read(pool, offset, &mut frame[header_len..]);
            }
        });
        match sent {
            Ok(()) => {}
            Err(EgressError::NoRoom) => return Err(NoRoom),
            // Lost on the way, for all we know: the timers repair what can be repaired.
            Err(EgressError::NoRoute) => env.counters.tcp_no_route += 1,
            Err(EgressError::TooLong) => self.lower_mtu(out.path_mtu(self.key.remote)),
        }
        env.counters.tcp_segments_tx += 1;
        self.stats.segments_out += 1;
        if header.flags.contains(Flags::ACK) && !header.flags.contains(Flags::SYN) {
            self.rcv.acked = header.ack;
            self.rcv.edge =
                self.rcv.edge.max(header.ack + (u32::from(header.window) << self.rcv.scale));
            self.ack.need = AckNeed::None;
            self.ack.dsack = None;
            self.timers.clear(Timer::DelayedAck);
        }
        Ok(())
    }

    /// The path takes less than we thought: send what is in flight again, in smaller pieces.
    pub(super) fn lower_mtu(&mut self, mtu: u16) {
        if mtu < self.snd.mtu {
            self.snd.mtu = mtu;
            self.set_mss();
        }
    }

    /// The window to offer, RFC 9293 3.8.6.2.2: never less than was offered, and more only when it
    /// is worth a segment.
    pub(super) fn select_window(&mut self, env: &Env<'_>) -> u32 {
        let limit = self.window_limit();
        let room = limit.saturating_sub(self.rcv.buffer.ready() as u32);
        let offered = self.rcv_wnd();
        let worth = u32::from(self.rcv.mss).min(limit / 2).max(1);
        // Under memory pressure nobody is offered more than a part of what is left.
        let free = room.min(u32::try_from(env.pool.free_bytes() / 4).unwrap_or(u32::MAX));
        if free < worth && room >= worth {
            self.out_of_memory = true;
        }
        let unit = 1 << self.rcv.scale;
        if free < offered + worth {
            // Rounded up: rounded down it would shrink.
            return offered.div_ceil(unit) * unit;
        }
        (free / unit * unit).max(offered.div_ceil(unit) * unit)
    }

    /// Largest window: what the buffer takes and the header can express.
    pub(super) fn window_limit(&self) -> u32 {
        self.rcv.limit.min(u32::from(u16::MAX) << self.rcv.scale)
    }

    /// Starts the retransmission timer if it does not run, or the persist timer. New data moves a
    /// tail loss probe, never a timeout (RFC 8985 7.2).
    fn arm_after_sending(&mut self, env: &mut Env<'_>, nxt_before: Seq) {
        let moved = self.snd.nxt != nxt_before && self.snd.probe_timeout().is_some();
        if moved || !self.timers.is_set(Timer::Retransmit) {
            self.rearm_retransmit(env);
        }
    }
}

/// The smallest shift with which a 16-bit window can express `buffer` bytes.
pub(super) fn window_scale(buffer: usize) -> u8 {
    (0..14).find(|&shift| buffer >> shift <= usize::from(u16::MAX)).unwrap_or(14)
}

/// Sends a segment that belongs to no connection. `false`: the device took no more.
pub(super) fn send_bare(
    out: &mut Egress<'_>,
    key: &super::flow::FlowKey,
    header: &Header,
    ip: BareConfig,
) -> bool {
    let packet = Outgoing {
        src: key.local,
        dst: key.remote,
        protocol: PROTOCOL,
        tos: ip.tos,
        ttl: ip.ttl,
        dont_fragment: true,
        l4: L4::Tcp { header_len: header.len() as u8 },
        segment_size: None,
    };
    !matches!(
        out.send(&packet, header.len(), |frame| header.write(frame)),
        Err(EgressError::NoRoom)
    )
}

/// IP settings of a segment that belongs to no connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct BareConfig {
    pub tos: u8,
    pub ttl: u8,
}

/// The offer in a SYN or SYN+ACK of a listener.
pub(super) fn listener_scale(config: &TcpConfig, recv_buffer: u32, fixed: bool) -> u8 {
    let largest = recv_buffer as usize;
    window_scale(if fixed { largest } else { largest.max(config.recv_buffer_max) })
}
