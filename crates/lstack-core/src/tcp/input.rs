//! Segments that arrive for a connection, in the order of RFC 9293 3.10.7.

use super::ack_input::Verdict;
use super::connection::{AckNeed, Connection, Env, PeerSyn, QUICK_ACKS, Timer};
use super::header::{Flags, Reset, SackBlock, Segment};
use super::types::State;
use crate::config::EcnMode;
use crate::socket::{Readiness, SocketError};

/// Longest a data acknowledgement waits; Linux's `TCP_DELACK_MIN`, and what its peers expect.
pub(super) const DELAYED_ACK: u64 = 40_000;

/// Answers to segments that cannot be go out at most this often per connection, RFC 5961 section 7
/// (Linux's `tcp_invalid_ratelimit`).
const CHALLENGE_INTERVAL: u64 = 500_000;

/// RFC 7323 5.5: a timestamp this old says nothing any more.
const TIMESTAMP_VALID: u64 = 24 * 86_400 * 1_000_000;

/// Duplicate acknowledgements sent at once at most; more tell a peer nothing.
const DUPLICATES_MAX: u8 = 8;

impl Connection {
    /// Takes a segment.
    pub(super) fn handle_segment(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) {
        self.stats.segments_in += 1;
        match self.state {
            State::SynSent => self.input_syn_sent(env, segment),
            State::Closed | State::Listen | State::TimeWait => {}
            _ => self.input_synchronized(env, segment),
        }
    }

    /// RFC 9293 3.10.7.3.
    fn input_syn_sent(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) {
        let has_ack = segment.flags.contains(Flags::ACK);
        if has_ack && (segment.ack != self.snd.iss + 1 || self.snd.nxt == self.snd.iss) {
            env.counters.tcp_drop_bad_ack += 1;
            if !segment.flags.contains(Flags::RST) {
                self.reset = Some(segment.reset());
            }
            return;
        }
        if segment.flags.contains(Flags::RST) {
            if has_ack {
                env.counters.tcp_rst_rx += 1;
                self.die(env, Some(SocketError::ConnectionRefused));
            } else {
                env.counters.tcp_drop_bad_state += 1;
            }
            return;
        }
        if !segment.flags.contains(Flags::SYN) {
            env.counters.tcp_drop_bad_state += 1;
            return;
        }
        let mut syn = PeerSyn::of(segment);
        // Also when the repeated SYN, which does not ask for it, was the one answered: as Linux.
        syn.ecn &= env.config.ecn == EcnMode::On;
        self.take_peer_syn(&syn, self.offered_scale(env), env.now);
        // The window of a segment with SYN is not scaled (RFC 7323 2.2).
        self.snd.wnd = u32::from(segment.window);
        self.snd.max_wnd = self.snd.wnd;
        self.snd.wl2 = segment.ack;
        if has_ack {
            self.finish_own_handshake(env);
            self.take_text(env, segment);
        } else {
            // Simultaneous open.
            self.state = State::SynReceived;
            self.snd.nxt = self.snd.iss;
            self.snd.recovery.retries = 0;
            self.timers.clear(Timer::Retransmit);
            self.request_output();
        }
    }

    fn finish_own_handshake(&mut self, env: &mut Env<'_>) {
        if self.snd.recovery.retries == 0 {
            let rtt = env.now.saturating_sub(self.stats.data_sent_at);
            self.snd.rtt.sample(env.now, u32::try_from(rtt).unwrap_or(u32::MAX));
        }
        self.snd.una = self.snd.iss + 1;
        self.snd.wl2 = self.snd.una;
        self.establish(env);
        self.ack.need = AckNeed::Now;
        self.request_output();
    }

    /// RFC 9293 3.10.7.4.
    fn input_synchronized(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) {
        if self.state == State::Established && self.is_predicted(segment) {
            self.note_alive(env.now);
            if segment.payload.is_empty() {
                self.take_ack(env, segment);
            } else {
                if segment.ack != self.snd.una {
                    self.take_ack(env, segment);
                }
                self.take_timestamp(env, segment);
                self.take_in_order(env, segment.payload, segment.flags.contains(Flags::PSH));
            }
            return;
        }
        if self.check(env, segment) == Verdict::Drop {
            return;
        }
        self.note_alive(env.now);
        if self.state == State::SynReceived {
            if segment.ack != self.snd.iss + 1 {
                env.counters.tcp_drop_bad_ack += 1;
                self.reset = Some(segment.reset());
                return;
            }
            self.snd.wnd = u32::from(segment.window) << self.snd.scale;
            self.snd.max_wnd = self.snd.max_wnd.max(self.snd.wnd);
            self.snd.wl1 = segment.seq;
            self.snd.una = segment.ack;
            self.snd.nxt = self.snd.nxt.max(segment.ack);
            self.snd.wl2 = segment.ack;
            self.establish(env);
            if self.shut_write {
                self.state = State::FinWait1;
                self.request_output();
            }
        }
        if self.take_ack(env, segment) == Verdict::Drop {
            return;
        }
        self.take_ecn(env, segment);
        self.take_timestamp(env, segment);
        self.after_fin_acked(env);
        if self.state != State::TimeWait && self.state != State::Closed {
            self.take_text(env, segment);
        }
    }

    fn note_alive(&mut self, now: u64) {
        self.keep.last_received_at = now;
        self.keep.unanswered = 0;
    }

    /// Header prediction: nothing but the expected, from an established peer.
    fn is_predicted(&self, segment: &Segment<'_>) -> bool {
        let plain = segment.flags.difference(Flags::PSH) == Flags::ACK && !segment.congested;
        let fresh = match (self.use_timestamps, segment.options.timestamps) {
            (true, Some(timestamps)) => {
                timestamps.value.wrapping_sub(self.rcv.timestamp).cast_signed() >= 0
            }
            (false, _) => true,
            _ => false,
        };
        plain
            && fresh
            && segment.seq == self.rcv_nxt()
            && segment.ack.at_or_after(self.snd.una)
            && segment.ack.at_or_before(self.snd.nxt)
            && segment.options.sack.len() == 0
            && self.rcv.fin_at.is_none()
            && !self.orphan
            && !self.rcv.buffer.has_holes()
            && segment.payload.len() <= self.rcv_wnd() as usize
            && (segment.payload.is_empty()
                || u32::from(segment.window) << self.snd.scale == self.snd.wnd)
    }

    /// Steps one to four: timestamps, sequence number, RST, SYN, and that there is an ACK.
    fn check(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) -> Verdict {
        let is_reset = segment.flags.contains(Flags::RST);
        if !is_reset && self.is_paws_reject(env, segment) {
            env.counters.tcp_drop_paws += 1;
            self.answer_unacceptable(env, segment);
            return Verdict::Drop;
        }
        let nxt = self.rcv_nxt();
        let end = segment.seq + segment.sequence_len();
        let in_window =
            end.at_or_after(self.rcv.acked) && segment.seq.at_or_before(nxt + self.rcv_wnd());
        if !in_window {
            env.counters.tcp_drop_out_of_window += 1;
            if !is_reset {
                self.answer_unacceptable(env, segment);
            }
            return Verdict::Drop;
        }
        if is_reset {
            // RFC 5961 section 3.2.
            if segment.seq == nxt {
                self.on_reset(env);
            } else {
                self.challenge(env);
            }
            return Verdict::Drop;
        }
        if segment.flags.contains(Flags::SYN) {
            if self.state == State::SynReceived && segment.flags.contains(Flags::ACK) {
                // The other half of a simultaneous open: its SYN again, with our ACK.
                return Verdict::GoOn;
            }
            if self.state == State::SynReceived && segment.seq + 1 == nxt {
                // Its SYN again: our SYN+ACK was lost.
                self.snd.nxt = self.snd.iss;
                self.request_output();
            } else {
                self.challenge(env);
            }
            return Verdict::Drop;
        }
        if !segment.flags.contains(Flags::ACK) {
            env.counters.tcp_drop_bad_state += 1;
            return Verdict::Drop;
        }
        Verdict::GoOn
    }

    /// RFC 7323 5.3 R1.
    fn is_paws_reject(&self, env: &Env<'_>, segment: &Segment<'_>) -> bool {
        segment.options.timestamps.is_some_and(|timestamps| {
            self.use_timestamps && self.is_old_timestamp(env, timestamps.value)
        })
    }

    fn is_old_timestamp(&self, env: &Env<'_>, value: u32) -> bool {
        value.wrapping_sub(self.rcv.timestamp).cast_signed() < 0
            && env.now.saturating_sub(self.rcv.timestamp_at) < TIMESTAMP_VALID
    }

    /// RFC 7323 4.3: the timestamp of the segment that the next acknowledgement covers.
    fn take_timestamp(&mut self, env: &Env<'_>, segment: &Segment<'_>) {
        if self.use_timestamps
            && let Some(timestamps) = segment.options.timestamps
            && segment.seq.at_or_before(self.rcv.acked)
            && !self.is_old_timestamp(env, timestamps.value)
        {
            self.rcv.timestamp = timestamps.value;
            self.rcv.timestamp_at = env.now;
        }
    }

    /// A reset that is believed; errors as Linux's `tcp_reset`.
    fn on_reset(&mut self, env: &mut Env<'_>) {
        env.counters.tcp_rst_rx += 1;
        if self.was_established {
            env.counters.tcp_established_resets += 1;
        }
        let error = match self.state {
            State::SynReceived => SocketError::ConnectionRefused,
            State::CloseWait => SocketError::BrokenPipe,
            _ => SocketError::ConnectionReset,
        };
        self.die(env, Some(error));
    }

    /// What the acknowledgement of our FIN changes.
    fn after_fin_acked(&mut self, env: &mut Env<'_>) {
        if !self.fin_acked() {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                self.timers.clear(Timer::Retransmit);
                // Linux tells waiters of the peer's acknowledgement of our end.
                self.notify(Readiness::WRITABLE);
                if self.orphan {
                    self.timers.set(Timer::Life, env.now + self.settings.fin_wait2.micros());
                }
            }
            State::Closing => self.enter_time_wait(env),
            State::LastAck => self.die(env, None),
            _ => {}
        }
    }

    pub(super) fn enter_time_wait(&mut self, env: &mut Env<'_>) {
        let need = self.ack.need;
        self.state = State::TimeWait;
        self.drop_output(env);
        self.ack.need = need;
    }

    /// Payload and FIN.
    fn take_text(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) {
        let nxt = self.rcv_nxt();
        let has_fin = segment.flags.contains(Flags::FIN);
        let start = segment.seq + u32::from(segment.flags.contains(Flags::SYN));
        let end = start + segment.payload.len() as u32;
        if segment.payload.is_empty() && !has_fin {
            return;
        }
        let receives = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if !receives || self.rcv.fin_done {
            // Beyond the peer's FIN there is nothing; a repeated FIN is acknowledged again.
            if end.before(nxt) || has_fin {
                self.ack_now();
            }
            return;
        }
        if self.orphan && end.after(nxt) && !segment.payload.is_empty() {
            // Nobody will read it: the peer must know (RFC 2525 2.17, Linux's TCPABORTONDATA).
            self.reset = Some(self.reset_numbers());
            self.die(env, None);
            return;
        }
        if has_fin && end.at_or_before(nxt + self.rcv_wnd()) {
            self.rcv.fin_at = Some(end);
        }
        self.take_payload(env, segment, start, end);
        self.take_fin(env);
        if segment.payload.is_empty() && !self.rcv.fin_done {
            // The end without what is before it: the peer must learn of the hole.
            self.ack.duplicates = (self.ack.duplicates + 1).min(DUPLICATES_MAX);
            self.ack_now();
        }
    }

    /// Cuts the payload to what is new and fits the window, and stores it.
    fn take_payload(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        start: super::seq::Seq,
        end: super::seq::Seq,
    ) {
        let nxt = self.rcv.buffer.next();
        let mut data = segment.payload;
        if data.is_empty() {
            return;
        }
        if start.before(nxt) {
            let old = SackBlock { start, end: nxt.min(end) };
            self.note_duplicate(env, old);
            data = &data[(nxt.since(start) as usize).min(data.len())..];
        }
        let seq = start.max(nxt);
        let room = self.rcv.edge.since(seq) as usize;
        data = &data[..data.len().min(room)];
        if data.is_empty() {
            self.ack_now();
        } else if seq == nxt {
            self.take_in_order(env, data, segment.flags.contains(Flags::PSH));
        } else {
            env.counters.tcp_out_of_order_rx += 1;
            let written = self.rcv.buffer.write(env.pool, seq, data);
            if let Some(duplicate) = written.duplicate {
                self.note_duplicate(env, duplicate);
            } else if written.taken < data.len() {
                env.counters.tcp_drop_no_memory += 1;
            }
            self.ack.duplicates = (self.ack.duplicates + 1).min(DUPLICATES_MAX);
            self.ack_now();
        }
    }

    fn note_duplicate(&mut self, env: &mut Env<'_>, block: SackBlock) {
        if self.use_sack {
            env.counters.tcp_dsack_tx += 1;
            self.ack.dsack = Some(block);
        }
        self.ack_now();
    }

    /// Data that continues the stream.
    fn take_in_order(&mut self, env: &mut Env<'_>, data: &[u8], pushed: bool) {
        let had_holes = self.rcv.buffer.has_holes();
        let seq = self.rcv.buffer.next();
        let mut written = self.rcv.buffer.write(env.pool, seq, data);
        if written.taken < data.len() && had_holes {
            // What lies beyond the hole must not keep out what fills it.
            self.rcv.buffer.renege(env.pool);
            let taken = written.taken;
            let more = self.rcv.buffer.write(env.pool, seq + taken as u32, &data[taken..]);
            written.ready += more.ready;
            written.taken += more.taken;
        }
        if written.taken < data.len() {
            env.counters.tcp_drop_no_memory += 1;
            self.ack_now();
        }
        self.stats.bytes_received += written.ready as u64;
        self.ack.pushed |= pushed;
        self.schedule_ack(env, data.len(), had_holes);
        if self.rcv.buffer.ready() >= self.settings.recv_low.min(self.rcv.limit) as usize {
            self.notify(Readiness::READABLE);
        }
    }

    /// The peer's FIN, once everything before it is here.
    fn take_fin(&mut self, env: &mut Env<'_>) {
        let Some(fin_at) = self.rcv.fin_at else { return };
        if self.rcv.fin_done || self.rcv.buffer.next() != fin_at {
            return;
        }
        self.rcv.fin_done = true;
        self.ack_now();
        self.notify(Readiness::READABLE | Readiness::READ_HANGUP);
        if self.shut_write {
            self.notify(Readiness::HANGUP);
        }
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => {
                self.enter_time_wait(env);
            }
            _ => {}
        }
    }

    pub(super) fn ack_now(&mut self) {
        self.ack.need = AckNeed::Now;
        self.request_output();
    }

    /// Decides when data in order is acknowledged, RFC 9293 3.8.6.3 with Linux's refinements.
    fn schedule_ack(&mut self, env: &Env<'_>, len: usize, had_holes: bool) {
        let mss = u16::try_from(len).unwrap_or(u16::MAX).min(self.announced_mss());
        self.rcv.mss = self.rcv.mss.max(mss);
        if env.now.saturating_sub(self.ack.last_data_at) > self.snd.rtt.rto() {
            self.ack.quick = QUICK_ACKS;
        }
        self.ack.last_data_at = env.now;
        let pending = self.rcv_nxt().since(self.rcv.acked);
        if had_holes || pending > u32::from(self.rcv.mss) {
            self.ack_now();
        } else if self.ack.quick > 0 && !self.ack.interactive {
            self.ack.quick -= 1;
            self.ack_now();
        } else if self.ack.need == AckNeed::None {
            self.ack.need = AckNeed::Delayed;
            self.timers.set(Timer::DelayedAck, env.now + DELAYED_ACK);
        }
    }

    /// Answers a segment that is not acceptable. Segments without data are answered at a limited
    /// rate: they may be answers to our answers.
    fn answer_unacceptable(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) {
        if segment.payload.is_empty() {
            self.challenge(env);
            return;
        }
        let end = segment.seq + segment.payload.len() as u32;
        if end.at_or_before(self.rcv_nxt()) {
            self.note_duplicate(env, SackBlock { start: segment.seq, end });
        }
        self.ack.duplicates = (self.ack.duplicates + 1).min(DUPLICATES_MAX);
        self.ack_now();
    }

    /// Sends what the peer needs to see where we are, RFC 5961, at a limited rate.
    pub(super) fn challenge(&mut self, env: &mut Env<'_>) {
        if env.now >= self.ack.challenge_from {
            self.ack.challenge_from = env.now + CHALLENGE_INTERVAL;
            env.counters.tcp_challenge_acks += 1;
            self.ack_now();
        }
    }

    /// The reset that ends this connection for the peer.
    pub(super) fn reset_numbers(&self) -> Reset {
        Reset { seq: self.snd.nxt, ack: Some(self.rcv_nxt()) }
    }
}
