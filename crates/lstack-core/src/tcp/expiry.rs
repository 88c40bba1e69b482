//! What a connection does when time has passed: timeouts, probes, keepalive, delayed
//! acknowledgements. RFC 6298, 8985, 9293 3.8.3 and 3.8.4, with Linux's limits.

use super::connection::{AckNeed, Connection, Env, NEVER, ProbeDue, Timer};
use super::types::State;
use crate::socket::SocketError;

/// Linux's `tcp_retries2` of 15 in time: how long data may stay unacknowledged.
const PATIENCE: u64 = 924_600_000;

/// The same for a connection whose program has gone (`tcp_orphan_retries`).
const ORPHAN_PATIENCE: u64 = 102_200_000;

/// Probes of a closed window that must be unanswered before silence counts.
const PROBES_MIN: u8 = 8;

/// Longest time between two probes of a closed window: what a lost window update costs at most.
const PERSIST_MAX: u64 = 5_000_000;

impl Connection {
    /// Runs what is due.
    pub(super) fn on_timer(&mut self, env: &mut Env<'_>) {
        if self.timers.take_due(Timer::DelayedAck, env.now) && self.ack.need == AckNeed::Delayed {
            // The answer that was to carry it did not come: it is not that kind of exchange.
            self.ack.interactive = false;
            self.ack_now();
        }
        if self.timers.take_due(Timer::Cork, env.now) {
            self.snd.push_partial = true;
            self.request_output();
        }
        if self.timers.take_due(Timer::Reorder, env.now) {
            self.detect_loss(env, false);
            self.on_loss_found(env);
        }
        if self.timers.take_due(Timer::Retransmit, env.now) {
            self.on_retransmit_timer(env);
        }
        if self.timers.take_due(Timer::Life, env.now) {
            self.on_life_timer(env);
        }
    }

    fn on_retransmit_timer(&mut self, env: &mut Env<'_>) {
        match self.state {
            State::SynSent | State::SynReceived => self.on_handshake_timeout(env),
            _ if !self.snd.board.is_empty() => self.on_flight_timeout(env),
            _ if self.snd.window_blocked => self.on_persist_timeout(env),
            _ => {}
        }
    }

    fn on_handshake_timeout(&mut self, env: &mut Env<'_>) {
        if self.snd.recovery.retries >= self.settings.syn_retries
            || self.is_out_of_patience(env, NEVER)
        {
            self.time_out(env);
            return;
        }
        self.snd.recovery.retries += 1;
        self.snd.rtt.back_off();
        self.snd.nxt = self.snd.iss;
        self.request_output();
    }

    /// Nothing was acknowledged for a while: probe, or start over.
    fn on_flight_timeout(&mut self, env: &mut Env<'_>) {
        let patience = if self.orphan { ORPHAN_PATIENCE } else { PATIENCE };
        if self.is_out_of_patience(env, patience) {
            self.time_out(env);
            return;
        }
        let rto = self.snd.rtt.rto();
        if self.snd.probe_timeout().is_some_and(|probe| probe < rto) {
            // The timer starts again when the probe has left.
            self.snd.recovery.probe_due = true;
            self.request_output();
        } else {
            self.enter_loss(env);
            self.suspect_black_hole(env);
            self.rearm_retransmit(env);
        }
    }

    /// RFC 9293 3.8.6.1. Goes on for as long as the peer answers.
    fn on_persist_timeout(&mut self, env: &mut Env<'_>) {
        let silent = env.now.saturating_sub(self.keep.last_received_at);
        let patience = match self.settings.user_timeout.micros() {
            0 if self.orphan => ORPHAN_PATIENCE,
            0 => PATIENCE,
            time => time,
        };
        let is_tested =
            self.keep.unanswered >= PROBES_MIN || self.settings.user_timeout.micros() != 0;
        if is_tested && silent >= patience {
            self.time_out(env);
            return;
        }
        self.keep.unanswered = self.keep.unanswered.saturating_add(1);
        if self.snd.wnd > 0 {
            self.snd.override_window = true;
        } else {
            self.keep.due = ProbeDue::Window;
        }
        self.snd.rtt.back_off();
        self.rearm_retransmit(env);
        self.request_output();
    }

    /// A wait that does not go beyond `TCP_USER_TIMEOUT`.
    pub(super) fn within_user_timeout(&self, env: &Env<'_>, wait: u64) -> u64 {
        match (self.settings.user_timeout.micros(), self.snd.recovery.stuck_since) {
            (0, _) | (_, None) => wait,
            (timeout, Some(since)) => {
                wait.min(since.saturating_add(timeout).saturating_sub(env.now))
            }
        }
    }

    /// How long to wait for a closed window before probing it.
    pub(super) fn persist_timeout(&self) -> u64 {
        self.snd.rtt.rto().min(PERSIST_MAX)
    }

    fn is_out_of_patience(&self, env: &Env<'_>, patience: u64) -> bool {
        let patience = match self.settings.user_timeout.micros() {
            0 => patience,
            time => time,
        };
        self.snd.recovery.stuck_since.is_some_and(|since| env.now.saturating_sub(since) >= patience)
    }

    /// Nobody answers any more.
    fn time_out(&mut self, env: &mut Env<'_>) {
        env.counters.tcp_timeouts += 1;
        let error = self.soft_error.unwrap_or(SocketError::TimedOut);
        self.die(env, Some(error));
    }

    /// Arms the keepalive timer if it is wanted and nothing else uses it.
    pub(super) fn arm_keepalive(&mut self, now: u64) {
        if self.orphan && self.state == State::FinWait2 {
            return;
        }
        let wanted = self.settings.keep_alive
            && !matches!(self.state, State::SynSent | State::SynReceived | State::Closed);
        if wanted {
            let idle = now.saturating_sub(self.keep.last_received_at);
            let wait = self.settings.keep_idle.micros().saturating_sub(idle).max(1);
            self.timers.set(Timer::Life, now.saturating_add(wait));
        } else {
            self.timers.clear(Timer::Life);
        }
    }

    fn on_life_timer(&mut self, env: &mut Env<'_>) {
        if self.orphan && self.state == State::FinWait2 {
            // The program is gone and the peer does not end its half: so be it.
            self.die(env, None);
            return;
        }
        if !self.settings.keep_alive {
            return;
        }
        let idle = env.now.saturating_sub(self.keep.last_received_at);
        if !self.snd.board.is_empty() || self.unsent() > 0 {
            // What is to be sent tests the peer already.
            self.timers.set(Timer::Life, env.now + self.settings.keep_idle.micros());
        } else if idle < self.settings.keep_idle.micros() {
            self.timers.set(Timer::Life, env.now + self.settings.keep_idle.micros() - idle);
        } else if self.is_keepalive_exhausted(idle) {
            self.reset = Some(self.reset_numbers());
            self.time_out(env);
        } else {
            self.keep.unanswered = self.keep.unanswered.saturating_add(1);
            self.keep.due = ProbeDue::KeepAlive;
            self.timers.set(Timer::Life, env.now + self.settings.keep_interval.micros());
            self.request_output();
        }
    }

    fn is_keepalive_exhausted(&self, idle: u64) -> bool {
        match self.settings.user_timeout.micros() {
            0 => self.keep.unanswered >= self.settings.keep_count,
            time => idle >= time && self.keep.unanswered > 0,
        }
    }
}
