//! Explicit congestion notification, RFC 3168 section 6.1: routers mark packets instead of
//! dropping them, the receiver echoes the mark until the sender says that it has slowed down.

use super::congestion::CongestionControl;
use super::connection::{Connection, Env};
use super::header::{Flags, Segment};
use super::recovery::Phase;
use super::seq::Seq;

/// The ECN field of an IP header: its mask, "can be marked", and "was marked".
const FIELD: u8 = 0b11;
pub(super) const CAPABLE: u8 = 0b10;
const CONGESTED: u8 = 0b11;

/// A connection's part in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ecn {
    /// Both ends have agreed on it.
    pub on: bool,
    /// A mark has arrived: every acknowledgement says so until the peer's CWR.
    pub echo: bool,
    /// The window was reduced: the next new data says so.
    pub reduced: bool,
    /// Echoes of what was sent before are of the same congestion.
    point: Seq,
}

impl Ecn {
    pub(super) fn new(iss: Seq) -> Self {
        Self { on: false, echo: false, reduced: false, point: iss }
    }

    /// The window was reduced, for whatever reason; `nxt` is what is sent next.
    pub(super) fn on_reduced(&mut self, nxt: Seq) {
        self.reduced = self.on;
        self.point = nxt;
    }
}

/// Whether a packet with this type of service was marked.
pub(super) fn is_congested(tos: u8) -> bool {
    tos & FIELD == CONGESTED
}

/// The type of service a program may choose: the ECN field is not its own (as in Linux).
pub(super) fn without_field(tos: u8) -> u8 {
    tos & !FIELD
}

impl Connection {
    /// Marks and CWR of an acceptable segment.
    pub(super) fn take_ecn(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) {
        if !self.ecn.on {
            return;
        }
        if segment.flags.contains(Flags::CWR) {
            self.ecn.echo = false;
        }
        if segment.congested && !segment.payload.is_empty() {
            env.counters.tcp_ecn_marks_rx += 1;
            if !self.ecn.echo {
                self.ecn.echo = true;
                // The sender should know soon.
                self.ack_now();
            }
        }
    }

    /// An acceptable acknowledgement, which may echo a mark: slow down, once per window of data,
    /// as for a loss. Nothing is lost, so there is nothing to repair.
    pub(super) fn take_ecn_echo(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) {
        if !self.ecn.on {
            return;
        }
        let echoed = segment.flags & (Flags::ECE | Flags::SYN) == Flags::ECE;
        let snd = &mut self.snd;
        if snd.una.after(self.ecn.point) {
            // Keeps the distance small, so that the comparison holds for ever.
            self.ecn.point = snd.una;
        }
        if !echoed || !segment.ack.after(self.ecn.point) {
            return;
        }
        env.counters.tcp_ecn_reductions += 1;
        if snd.recovery.phase == Phase::Open {
            snd.window.ssthresh = snd.algorithm.on_loss(&snd.window);
            snd.window.cwnd = snd.window.cwnd.min(snd.window.ssthresh);
        }
        self.ecn.on_reduced(snd.nxt);
    }
}
