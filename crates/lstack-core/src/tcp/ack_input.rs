//! Acknowledgements and windows that arrive, RFC 9293 3.10.7.4 fifth step.

use super::congestion::{AckSample, CongestionControl};
use super::connection::{Connection, Env, Timer};
use super::header::Segment;
use super::scoreboard::Delivery;
use super::seq::Seq;
use crate::socket::Readiness;

/// Whether the rest of a segment is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    GoOn,
    Drop,
}

impl Connection {
    /// Takes the acknowledgement, the window and the SACK blocks of a segment.
    pub(super) fn take_ack(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) -> Verdict {
        let ack = segment.ack;
        if ack.after(self.snd.nxt) {
            env.counters.tcp_drop_bad_ack += 1;
            self.challenge(env);
            return Verdict::Drop;
        }
        if ack.before(self.snd.una - self.snd.max_wnd) {
            // RFC 5961 section 5.2: older than anything the peer can have seen.
            env.counters.tcp_drop_bad_ack += 1;
            self.challenge(env);
            return Verdict::Drop;
        }
        self.stats.ack_received_at = env.now;
        self.take_ecn_echo(env, segment);
        let advanced = ack.after(self.snd.una);
        let was_blocked = self.snd.wnd == 0;
        let window_moved = self.take_window(segment);
        if was_blocked && self.snd.wnd > 0 {
            self.snd.rtt.reset_backoff();
            self.request_output();
        }
        let nothing_out = self.snd.una == self.snd.nxt;
        if nothing_out && !advanced {
            // A window update, a probe's answer or an idle peer's keepalive.
            self.snd.override_window = false;
            self.rearm_retransmit(env);
            if window_moved {
                self.request_output();
            }
            return Verdict::GoOn;
        }
        let is_duplicate = !advanced
            && !window_moved
            && segment.payload.is_empty()
            && !self.use_sack
            && !nothing_out;
        self.take_delivery(env, segment, advanced, is_duplicate);
        Verdict::GoOn
    }

    /// RFC 9293 3.10.7.4: only a newer segment may change the window.
    fn take_window(&mut self, segment: &Segment<'_>) -> bool {
        let snd = &mut self.snd;
        let newer = snd.wl1.before(segment.seq)
            || (snd.wl1 == segment.seq && snd.wl2.at_or_before(segment.ack));
        if !newer {
            return false;
        }
        let window = u32::from(segment.window) << snd.scale;
        snd.wl1 = segment.seq;
        snd.wl2 = segment.ack;
        let moved = window != snd.wnd;
        snd.wnd = window;
        snd.max_wnd = snd.max_wnd.max(window);
        moved
    }

    fn take_delivery(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        advanced: bool,
        is_duplicate: bool,
    ) {
        let now = env.now;
        let min_rtt = self.snd.rtt.min_rtt();
        self.snd.rack.set_min_rtt(min_rtt);
        let mut delivery = Delivery::default();
        if advanced {
            self.advance(env, segment.ack, &mut delivery);
        } else if is_duplicate {
            let duplicates = &mut self.snd.recovery.duplicates;
            *duplicates = duplicates.saturating_add(1);
        }
        let dsack = self.use_sack && self.take_sack(env, segment, &mut delivery);
        if let Some(at) = delivery.oldest {
            self.snd.rtt.sample(now, elapsed(now, at));
        }
        let newest = delivery.newest.map(|at| elapsed(now, at));
        if let Some(rtt) = newest {
            self.snd.rtt.note_min(now, rtt);
        }
        let limited = self.is_window_limited();
        self.repair(env, &delivery, advanced);
        self.judge_probe(dsack, advanced, delivery.delivered > 0);
        if delivery.delivered > 0 && limited {
            self.grow_window(env, &delivery, newest);
        }
        if advanced || delivery.delivered > 0 {
            self.snd.recovery.on_delivered();
            self.rearm_retransmit(env);
        }
        if self.snd.board.lost() > 0
            || self.unsent() > 0
            || (self.shut_write && !self.fin_sent())
            || self.snd.recovery.duplicates > 0
        {
            self.request_output();
        }
    }

    /// Moves `SND.UNA` and frees what was acknowledged.
    fn advance(&mut self, env: &mut Env<'_>, ack: Seq, delivery: &mut Delivery) {
        let snd = &mut self.snd;
        snd.board.acknowledge(ack, env.now, &mut snd.rack, delivery);
        let start = snd.stream_end - snd.buffer.len() as u32;
        let bytes = ack.min(snd.stream_end).since(start);
        snd.buffer.drop_front(env.pool, bytes as usize);
        self.stats.bytes_acked += u64::from(bytes);
        snd.una = ack;
        snd.rtt.reset_backoff();
        snd.recovery.duplicates = 0;
        snd.recovery.on_progress(env.now, snd.board.is_empty());
        self.review_path(env);
        if self.snd.starved {
            self.tell_if_writable();
        }
    }

    /// Tells a program that found no room that there is some again.
    pub(super) fn tell_if_writable(&mut self) {
        if self.snd.starved && self.is_writable() {
            self.snd.starved = false;
            self.notify(Readiness::WRITABLE);
        }
    }

    /// Takes the SACK blocks. Returns whether the first reports a duplicate (RFC 2883 section 4).
    fn take_sack(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        delivery: &mut Delivery,
    ) -> bool {
        let mut dsack = false;
        let blocks = &segment.options.sack;
        let second = blocks.iter().nth(1).copied();
        for (index, block) in blocks.iter().enumerate() {
            let len = block.end.distance(block.start);
            if len <= 0 || block.end.after(self.snd.nxt) {
                continue;
            }
            let within_second = second.is_some_and(|second| {
                second.start.at_or_before(block.start) && block.end.at_or_before(second.end)
            });
            if index == 0 && (block.start.before(segment.ack) || within_second) {
                dsack = true;
                self.on_dsack(env, len as u32);
            } else if block.start.at_or_after(self.snd.una) {
                let snd = &mut self.snd;
                snd.board.sack(*block, env.now, &mut snd.rack, delivery);
            }
        }
        dsack
    }

    fn grow_window(&mut self, env: &mut Env<'_>, delivery: &Delivery, rtt: Option<u32>) {
        if self.snd.recovery.phase == super::recovery::Phase::Recovery {
            return;
        }
        let snd = &mut self.snd;
        let sample = AckSample {
            now: env.now,
            acked: delivery.delivered,
            rtt,
            srtt: snd.rtt.srtt(),
            una: snd.una,
            nxt: snd.nxt,
        };
        snd.algorithm.on_ack(&mut snd.window, &sample);
        if !self.settings.send_buffer_fixed {
            // Twice the window, as Linux: one in flight, one to be filled meanwhile.
            let wanted = snd.window.cwnd.saturating_mul(2);
            let max = env.config.send_buffer_max as u32;
            snd.limit = snd.limit.max(wanted.min(max));
        }
    }

    /// Whether the congestion window is what keeps us from sending more: if the program or the
    /// peer's window does, its growth would mean nothing (RFC 7661).
    fn is_window_limited(&self) -> bool {
        let snd = &self.snd;
        let used = snd.used_window;
        if snd.window.in_slow_start() {
            snd.window.cwnd < used.saturating_mul(2)
        } else {
            used.saturating_add(snd.mss) > snd.window.cwnd
        }
    }

    /// Restarts, starts or stops the retransmission timer, RFC 6298 section 5.
    pub(super) fn rearm_retransmit(&mut self, env: &mut Env<'_>) {
        let snd = &self.snd;
        if !snd.board.is_empty() {
            let rto = snd.rtt.rto();
            let wait = snd.probe_timeout().filter(|&probe| probe < rto).unwrap_or(rto);
            let wait = self.within_user_timeout(env, wait);
            self.timers.set(Timer::Retransmit, env.now + wait);
        } else if snd.window_blocked {
            // Persist: nothing is in flight whose acknowledgement could open the window.
            if !self.timers.is_set(Timer::Retransmit) {
                self.timers.set(Timer::Retransmit, env.now + self.persist_timeout());
            }
        } else {
            self.timers.clear(Timer::Retransmit);
        }
    }
}

fn elapsed(now: u64, at: u64) -> u32 {
    u32::try_from(now.saturating_sub(at)).unwrap_or(u32::MAX)
}
