//! Repairing losses: when to reduce the window, how much to send meanwhile, and when to take it
//! all back. RFC 6675, 8985, 6937 (PRR), 5682 (F-RTO), 6582 (peers without SACK).

use super::congestion::{CongestionControl, Window};
use super::connection::{Connection, Env, SendSide, Timer};
use super::rack::Rack;
use super::scoreboard::Delivery;
use super::seq::Seq;

/// Duplicate acknowledgements that mean loss, RFC 5681.
pub(super) const DUPLICATES: u8 = 3;

/// Slack of a tail loss probe while more than one segment is in flight: scheduling noise of hosts
/// whose round trips are far below a millisecond.
const PROBE_SLACK: u64 = 500;

/// Slack of a tail loss probe for a lone segment, which the peer may delay to acknowledge. It
/// doubles whenever a probe proves needless, so that slow peers are learnt.
const LONE_SLACK_MIN: u32 = 5_000;
const LONE_SLACK_MAX: u32 = 200_000;

/// Probes before the retransmission timeout takes over. RFC 8985 sends one; each further one waits
/// twice as long, so the load is no more than that of a timeout's back-off, and a probe that is
/// lost itself no longer costs the 200 ms floor of the timeout.
const PROBES_MAX: u8 = 3;

/// What a connection is doing about loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing is wrong.
    Open,
    /// Fast recovery.
    Recovery,
    /// After a retransmission timeout.
    Loss,
}

/// State of loss repair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recovery {
    pub phase: Phase,
    /// The repair is over when this is acknowledged.
    point: Seq,
    /// Duplicate acknowledgements in a row; only counted for peers without SACK.
    pub duplicates: u8,
    /// Timeouts since the last progress.
    pub retries: u8,
    /// When the first of the unanswered transmissions was sent, or the last progress was made.
    pub stuck_since: Option<u64>,
    /// The next transmission goes whatever the window says.
    pub force_one: bool,
    // Proportional rate reduction.
    prr_delivered: u32,
    prr_out: u32,
    prr_flight: u32,
    /// Window before the reduction, for as long as it can be taken back.
    undo: Option<Undo>,
    /// A timeout has happened and the next acknowledgement shows whether it was right; what RACK
    /// knew before.
    frto: Option<Rack>,
    // Tail loss probe.
    pub probe_due: bool,
    probes: u8,
    /// None for peers without SACK: their answer to a probe would say nothing.
    probes_max: u8,
    /// `SND.NXT` when a probe was sent, and whether it repeated old data.
    probe: Option<(Seq, bool)>,
    lone_slack: u32,
}

#[derive(Clone, Copy, Debug)]
struct Undo {
    window: Window,
    /// Bytes sent again and not reported as needless.
    outstanding: u32,
}

impl Recovery {
    pub(super) fn new(iss: Seq) -> Self {
        Self {
            phase: Phase::Open,
            point: iss,
            duplicates: 0,
            retries: 0,
            stuck_since: None,
            force_one: false,
            prr_delivered: 0,
            prr_out: 0,
            prr_flight: 0,
            undo: None,
            frto: None,
            probe_due: false,
            probes: 0,
            probes_max: 0,
            probe: None,
            lone_slack: LONE_SLACK_MIN,
        }
    }

    /// The peer has SACK.
    pub(super) fn allow_probes(&mut self) {
        self.probes_max = PROBES_MAX;
    }

    /// Bytes were sent, new or again.
    pub(super) fn on_sent(&mut self, bytes: u32) {
        if self.phase == Phase::Recovery {
            self.prr_out += bytes;
        }
        self.force_one = false;
    }

    /// Bytes were sent again.
    pub(super) fn on_resent(&mut self, bytes: u32) {
        if let Some(undo) = &mut self.undo {
            undo.outstanding += bytes;
        }
    }

    /// A tail loss probe was sent.
    pub(super) fn on_probe_sent(&mut self, nxt: Seq, again: bool) {
        self.probe_due = false;
        self.probes = self.probes.saturating_add(1);
        self.probe = Some((nxt, again));
    }

    /// Something was delivered.
    pub(super) fn on_delivered(&mut self) {
        self.probes = 0;
    }

    /// `SND.UNA` has moved; patience begins anew for what is still out.
    pub(super) fn on_progress(&mut self, now: u64, is_all: bool) {
        self.retries = 0;
        self.stuck_since = (!is_all).then_some(now);
    }
}

impl SendSide {
    /// Bytes believed to be on the way; a peer without SACK tells by duplicates how many have
    /// left.
    pub(super) fn in_flight(&self) -> u32 {
        let left = u32::from(self.recovery.duplicates) * self.mss;
        self.board.in_flight().saturating_sub(left)
    }

    /// How long to wait for an acknowledgement before probing; `None` when only the retransmission
    /// timeout is left.
    pub(super) fn probe_timeout(&self) -> Option<u64> {
        let recovery = &self.recovery;
        if recovery.phase == Phase::Loss
            || recovery.probes >= recovery.probes_max
            || !self.rtt.has_sample()
        {
            return None;
        }
        let slack = if self.nxt.since(self.una) > self.mss {
            PROBE_SLACK
        } else {
            u64::from(recovery.lone_slack)
        };
        Some((2 * u64::from(self.rtt.srtt()) + slack) << recovery.probes)
    }
}

impl Connection {
    /// Looks for losses, and begins, continues or ends their repair. Called for every
    /// acknowledgement, after the scoreboard has taken it.
    pub(super) fn repair(&mut self, env: &mut Env<'_>, delivery: &Delivery, advanced: bool) {
        self.check_needless_timeout(env, delivery, advanced);
        let newly_lost = self.detect_loss(env, advanced);
        let snd = &mut self.snd;
        if snd.recovery.phase != Phase::Open && snd.una.at_or_after(snd.recovery.point) {
            self.end_recovery();
        }
        let snd = &mut self.snd;
        match snd.recovery.phase {
            Phase::Open if snd.board.lost() > 0 => self.enter_recovery(env),
            Phase::Recovery => self.pace_recovery(delivery, advanced, newly_lost > 0),
            _ => {}
        }
    }

    /// RACK for peers with SACK, duplicate counting for the others. Also run by its timer.
    pub(super) fn detect_loss(&mut self, env: &mut Env<'_>, advanced: bool) -> u32 {
        let snd = &mut self.snd;
        if !self.use_sack {
            return self.count_duplicates(advanced);
        }
        let eager = snd.recovery.phase != Phase::Open
            || snd.board.sacked() >= u32::from(DUPLICATES) * snd.mss;
        let window = snd.rack.window(snd.rtt.srtt(), eager);
        let (lost, due) = snd.board.detect_loss(env.now, &snd.rack, window);
        match due {
            Some(wait) => self.timers.set(Timer::Reorder, env.now + wait),
            None => self.timers.clear(Timer::Reorder),
        }
        lost
    }

    /// NewReno, RFC 6582: three duplicates lose the first segment, in recovery a partial
    /// acknowledgement loses the next.
    fn count_duplicates(&mut self, advanced: bool) -> u32 {
        let snd = &mut self.snd;
        let before = snd.board.lost();
        let trigger = match snd.recovery.phase {
            Phase::Open => snd.recovery.duplicates == DUPLICATES,
            Phase::Recovery => advanced && snd.una.before(snd.recovery.point),
            Phase::Loss => false,
        };
        if trigger && snd.una.before(snd.nxt) && before == 0 {
            snd.board.lose_front(snd.mss);
        }
        snd.board.lost() - before
    }

    /// The RACK timer may have found losses outside of an acknowledgement.
    pub(super) fn on_loss_found(&mut self, env: &mut Env<'_>) {
        if self.snd.board.lost() > 0 {
            if self.snd.recovery.phase == Phase::Open {
                self.enter_recovery(env);
            }
            self.request_output();
        }
    }

    fn enter_recovery(&mut self, env: &mut Env<'_>) {
        env.counters.tcp_recoveries += 1;
        let snd = &mut self.snd;
        snd.recovery.undo = Some(Undo { window: snd.window, outstanding: 0 });
        snd.window.ssthresh = snd.algorithm.on_loss(&snd.window);
        snd.recovery.phase = Phase::Recovery;
        snd.recovery.point = snd.nxt;
        snd.recovery.prr_delivered = 0;
        snd.recovery.prr_out = 0;
        snd.recovery.prr_flight = snd.nxt.since(snd.una).max(1);
        // The first retransmission goes at once; the rest follows the deliveries.
        snd.recovery.force_one = true;
        snd.window.cwnd = snd.in_flight().min(snd.window.ssthresh) + snd.mss;
        self.ecn.on_reduced(snd.nxt);
    }

    /// Proportional rate reduction with slow-start reduction bound, RFC 6937.
    fn pace_recovery(&mut self, delivery: &Delivery, advanced: bool, newly_lost: bool) {
        let snd = &mut self.snd;
        let pipe = snd.in_flight();
        let ssthresh = snd.window.ssthresh;
        let recovery = &mut snd.recovery;
        recovery.prr_delivered += delivery.delivered;
        let allowed = if pipe > ssthresh {
            let share = u64::from(recovery.prr_delivered) * u64::from(ssthresh);
            let share = share.div_ceil(u64::from(recovery.prr_flight)) as u32;
            share.saturating_sub(recovery.prr_out)
        } else {
            let conserved =
                recovery.prr_delivered.saturating_sub(recovery.prr_out).max(delivery.delivered);
            let bound = if advanced && !newly_lost { conserved + snd.mss } else { conserved };
            bound.min(ssthresh - pipe)
        };
        if newly_lost && allowed < snd.mss && pipe < snd.mss {
            // Nothing is on the way that could bring an acknowledgement.
            recovery.force_one = true;
        }
        snd.window.cwnd = (pipe + allowed).max(snd.mss);
    }

    fn end_recovery(&mut self) {
        let snd = &mut self.snd;
        if snd.recovery.phase == Phase::Recovery {
            snd.window.cwnd = snd.window.ssthresh;
            snd.rack.on_recovered();
        }
        snd.recovery.phase = Phase::Open;
        snd.recovery.frto = None;
    }

    /// A retransmission timeout: all that is old is lost, and we start over with one segment.
    pub(super) fn enter_loss(&mut self, env: &mut Env<'_>) {
        env.counters.tcp_rto_fired += 1;
        let snd = &mut self.snd;
        let fresh = snd.recovery.phase != Phase::Loss;
        if fresh {
            snd.recovery.undo = Some(Undo { window: snd.window, outstanding: 0 });
            let reduced = snd.algorithm.on_loss(&snd.window);
            if snd.recovery.phase == Phase::Open {
                snd.window.ssthresh = reduced;
            }
            snd.recovery.frto = self.use_sack.then_some(snd.rack);
        } else {
            snd.recovery.frto = None;
        }
        snd.algorithm.restart();
        snd.recovery.phase = Phase::Loss;
        snd.recovery.point = snd.nxt;
        snd.recovery.duplicates = 0;
        snd.recovery.probe = None;
        snd.recovery.probe_due = false;
        snd.recovery.retries = snd.recovery.retries.saturating_add(1);
        snd.rtt.back_off();
        let patience = u64::from(snd.rack.rtt()) + snd.rack.window(snd.rtt.srtt(), true);
        snd.board.lose_after_timeout(env.now, patience);
        snd.window.cwnd = snd.mss;
        snd.recovery.force_one = true;
        self.ecn.on_reduced(snd.nxt);
        self.request_output();
    }

    /// F-RTO, RFC 5682, for peers with SACK: if the first acknowledgement after a timeout covers
    /// data that was sent only once, the timeout was needless.
    fn check_needless_timeout(&mut self, env: &mut Env<'_>, delivery: &Delivery, advanced: bool) {
        let snd = &mut self.snd;
        let Some(rack) = snd.recovery.frto else { return };
        if delivery.delivered == 0 {
            return;
        }
        snd.recovery.frto = None;
        if delivery.originals && advanced {
            env.counters.tcp_rto_spurious += 1;
            // The acknowledgement was for the first transmission, not for the one after the
            // timeout: RACK must not take all that lies between for lost.
            snd.rack = rack;
            snd.board.unlose();
            self.undo();
        }
    }

    /// The peer says it got `bytes` twice. When all we sent again was needless, there was no loss.
    pub(super) fn on_dsack(&mut self, env: &mut Env<'_>, bytes: u32) {
        env.counters.tcp_dsack_rx += 1;
        let snd = &mut self.snd;
        snd.rack.on_needless_retransmission(snd.una, snd.nxt);
        let Some(undo) = &mut snd.recovery.undo else { return };
        if undo.outstanding == 0 {
            return;
        }
        undo.outstanding = undo.outstanding.saturating_sub(bytes);
        if undo.outstanding == 0 {
            self.undo();
        }
    }

    fn undo(&mut self) {
        let snd = &mut self.snd;
        if let Some(undo) = snd.recovery.undo.take() {
            snd.window.cwnd = snd.window.cwnd.max(undo.window.cwnd);
            snd.window.ssthresh = snd.window.ssthresh.max(undo.window.ssthresh);
            snd.recovery.phase = Phase::Open;
            snd.recovery.frto = None;
        }
    }

    /// What an acknowledgement says of a tail loss probe, RFC 8985 7.4.
    pub(super) fn judge_probe(&mut self, dsack: bool, advanced: bool, delivered: bool) {
        let snd = &mut self.snd;
        let Some((end, again)) = snd.recovery.probe else { return };
        if snd.una.before(end) {
            return;
        }
        if !again {
            snd.recovery.probe = None;
        } else if dsack || !(advanced || delivered) {
            // Both arrived: the probe was needless, its timer too short.
            snd.recovery.probe = None;
            snd.recovery.lone_slack = (snd.recovery.lone_slack * 2).min(LONE_SLACK_MAX);
        } else if snd.una.after(end) {
            // The original was lost and the probe repaired it: that counts as loss.
            snd.recovery.probe = None;
            if snd.recovery.phase == Phase::Open {
                snd.window.ssthresh = snd.algorithm.on_loss(&snd.window);
                snd.window.cwnd = snd.window.cwnd.min(snd.window.ssthresh);
            }
        }
    }
}
