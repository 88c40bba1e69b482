//! RACK: the newest delivery tells which older transmissions are lost, RFC 8985 section 6.

use super::scoreboard::Sent;
use super::seq::Seq;

/// Rounds that a widened reordering window lasts, RFC 8985 6.2 step 4.
const WINDOW_PERSIST_ROUNDS: u8 = 16;

/// State of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rack {
    /// Send time and end of the most recently sent segment that was delivered.
    at: u64,
    end: Seq,
    /// Its round trip.
    rtt: u32,
    min_rtt: u32,
    /// Highest sequence number delivered.
    highest: Seq,
    reordering_seen: bool,
    /// Reordering window in quarters of the smallest round trip.
    quarters: u8,
    persist: u8,
    /// No second widening before this is acknowledged.
    widened_until: Option<Seq>,
}

impl Rack {
    pub(super) fn new(iss: Seq) -> Self {
        Self {
            at: 0,
            end: iss,
            rtt: 0,
            min_rtt: 0,
            highest: iss,
            reordering_seen: false,
            quarters: 1,
            persist: 0,
            widened_until: None,
        }
    }

    /// The smallest round trip, by which answers to retransmissions are judged.
    pub(super) fn set_min_rtt(&mut self, min_rtt: u32) {
        self.min_rtt = min_rtt;
    }

    pub(super) fn rtt(&self) -> u32 {
        self.rtt
    }

    /// Steps 2 and 3.
    pub(super) fn on_delivered(&mut self, record: &Sent, now: u64) {
        if record.end.after(self.highest) {
            self.highest = record.end;
        } else if record.end.before(self.highest) && !record.again {
            self.reordering_seen = true;
        }
        let rtt = u32::try_from(now.saturating_sub(record.at)).unwrap_or(u32::MAX);
        if record.again && rtt < self.min_rtt {
            // Too quick: this acknowledges the first transmission, not the one we timed.
            return;
        }
        if !self.sent_before(record.at, record.end) {
            self.at = record.at;
            self.end = record.end;
            self.rtt = rtt;
        }
    }

    /// Whether a transmission was before the most recent delivered one.
    pub(super) fn sent_before(&self, at: u64, end: Seq) -> bool {
        at < self.at || (at == self.at && end.before(self.end))
    }

    /// Step 4: how much reordering to tolerate. `eager` says that loss is certain enough already
    /// (recovery has begun, or three segments have passed the hole).
    pub(super) fn window(&self, srtt: u32, eager: bool) -> u64 {
        if !self.reordering_seen && eager {
            return 0;
        }
        let window = u64::from(self.quarters) * u64::from(self.min_rtt) / 4;
        window.min(u64::from(srtt))
    }

    /// The peer reports that a retransmission was needless: wait longer, at most one step each
    /// round trip.
    pub(super) fn on_needless_retransmission(&mut self, una: Seq, nxt: Seq) {
        if self.widened_until.is_none_or(|until| una.at_or_after(until)) {
            self.widened_until = Some(nxt);
            self.quarters = self.quarters.saturating_add(1);
            self.persist = WINDOW_PERSIST_ROUNDS;
        }
    }

    /// A recovery has ended.
    pub(super) fn on_recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }
}
