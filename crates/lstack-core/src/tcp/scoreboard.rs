//! What is in flight: every byte between `SND.UNA` and `SND.NXT`, when it was last sent, and whether
//! it was selectively acknowledged, is deemed lost, or was sent again.
//!
//! Records tile the range without gaps. Segments of one burst share a record and neighbours that
//! were selectively acknowledged melt together, so the list is about as long as the number of
//! bursts and holes, not of segments.

use std::collections::VecDeque;

use super::header::SackBlock;
use super::rack::Rack;
use super::seq::Seq;

/// Bytes that one record may cover: what a device cuts at once, and a bound for the split that a
/// loss in the middle costs.
const RECORD_MAX: u32 = 65_535;

/// A scoreboard that has drained keeps room for this many records; more is given back.
const KEPT_RECORDS: usize = 8;

/// A range that was sent at one time and shares one fate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub start: Seq,
    pub end: Seq,
    /// Microseconds, of the last transmission.
    pub at: u64,
    pub fate: Fate,
    /// Sent more than once: an acknowledgement says nothing of the round trip (Karn).
    pub again: bool,
}

/// What we believe of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    InFlight,
    /// To be sent again.
    Lost,
    /// The peer has it, beyond a hole.
    Sacked,
}

impl Sent {
    fn len(&self) -> u32 {
        self.end.since(self.start)
    }
}

/// What one acknowledgement has told us.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivery {
    /// Bytes the peer has now and had not before.
    pub delivered: u32,
    /// Send times of the oldest and the newest of them that were sent only once.
    pub oldest: Option<u64>,
    pub newest: Option<u64>,
    /// Some of them were sent only once.
    pub originals: bool,
    /// Some of them were thought lost.
    pub revived: u32,
}

/// The records of one connection.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    records: VecDeque<Sent>,
    in_flight: u32,
    lost: u32,
    sacked: u32,
    /// No lost range starts before this.
    lost_from: Seq,
}

impl Scoreboard {
    /// Bytes believed to be on the way.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Bytes to be sent again.
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// Bytes the peer has beyond a hole.
    pub(super) fn sacked(&self) -> u32 {
        self.sacked
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Notes new data, which starts where the last record ends.
    pub(super) fn push(&mut self, start: Seq, end: Seq, at: u64) {
        self.in_flight += end.since(start);
        if let Some(last) = self.records.back_mut()
            && last.at == at
            && last.fate == Fate::InFlight
            && !last.again
            && end.since(last.start) <= RECORD_MAX
        {
            last.end = end;
            return;
        }
        self.records.push_back(Sent { start, end, at, fate: Fate::InFlight, again: false });
    }

    /// Takes a cumulative acknowledgement.
    pub(super) fn acknowledge(
        &mut self,
        una: Seq,
        now: u64,
        rack: &mut Rack,
        delivery: &mut Delivery,
    ) {
        while let Some(front) = self.records.front_mut() {
            if front.start.at_or_after(una) {
                break;
            }
            let mut done = *front;
            if front.end.after(una) {
                done.end = una;
                front.start = una;
            } else {
                self.records.pop_front();
            }
            let len = done.len();
            match done.fate {
                Fate::Sacked => {
                    self.sacked -= len;
                    continue;
                }
                Fate::InFlight => self.in_flight -= len,
                Fate::Lost => {
                    self.lost -= len;
                    delivery.revived += len;
                }
            }
            note_delivered(&done, now, rack, delivery);
        }
        if self.records.is_empty() {
            self.records.shrink_to(KEPT_RECORDS);
        }
    }

    /// Takes a selective acknowledgement of a range between `SND.UNA` and `SND.NXT`.
    pub(super) fn sack(
        &mut self,
        block: SackBlock,
        now: u64,
        rack: &mut Rack,
        delivery: &mut Delivery,
    ) {
        let mut i = self.records.partition_point(|record| record.end.at_or_before(block.start));
        while let Some(record) = self.records.get(i).copied()
            && record.start.before(block.end)
        {
            if record.fate == Fate::Sacked {
                i += 1;
                continue;
            }
            if record.start.before(block.start) {
                self.split(i, block.start);
                i += 1;
                continue;
            }
            if record.end.after(block.end) {
                self.split(i, block.end);
            }
            let record = &mut self.records[i];
            let len = record.len();
            match record.fate {
                Fate::Lost => {
                    self.lost -= len;
                    delivery.revived += len;
                }
                _ => self.in_flight -= len,
            }
            self.sacked += len;
            record.fate = Fate::Sacked;
            let record = *record;
            note_delivered(&record, now, rack, delivery);
            if !self.melt(i) {
                i += 1;
            }
        }
        if i < self.records.len() {
            self.melt(i);
        }
    }

    /// RACK (RFC 8985 6.2 step 5): what was sent long enough before something that has arrived is
    /// lost. Returns the bytes newly deemed lost, and in how many microseconds more of them are
    /// due.
    pub(super) fn detect_loss(&mut self, now: u64, rack: &Rack, window: u64) -> (u32, Option<u64>) {
        let before = self.lost;
        let mut due: Option<u64> = None;
        let patience = u64::from(rack.rtt()) + window;
        let mut i = 0;
        while let Some(record) = self.records.get(i).copied() {
            if record.fate == Fate::InFlight {
                if rack.sent_before(record.at, record.end) {
                    let deadline = record.at + patience;
                    if deadline <= now {
                        self.mark_lost(i);
                    } else {
                        let wait = deadline - now;
                        due = Some(due.map_or(wait, |due| due.max(wait)));
                    }
                } else if !record.again {
                    // First transmissions lie in the order of their times: all that follows was
                    // sent later still.
                    break;
                }
            }
            i += 1;
        }
        (self.lost - before, due)
    }

    /// After a retransmission timeout: the first range, and all that has been under way for longer
    /// than a round trip, is lost (RFC 8985 6.3). A peer that acknowledges selectively what comes
    /// first has thrown data away (RFC 2018 section 8): then nothing it said counts.
    pub(super) fn lose_after_timeout(&mut self, now: u64, patience: u64) {
        if self.records.front().is_some_and(|record| record.fate == Fate::Sacked) {
            for record in &mut self.records {
                if record.fate == Fate::Sacked {
                    record.fate = Fate::InFlight;
                    record.again = true;
                }
            }
            self.in_flight += self.sacked;
            self.sacked = 0;
        }
        for i in 0..self.records.len() {
            let record = self.records[i];
            if record.fate == Fate::InFlight && (i == 0 || record.at + patience <= now) {
                self.mark_lost(i);
            }
        }
    }

    /// Deems the first `len` bytes lost, if they are in flight. For peers without SACK.
    pub(super) fn lose_front(&mut self, len: u32) {
        if let Some(front) = self.records.front().copied()
            && front.fate == Fate::InFlight
        {
            if front.len() > len {
                self.split(0, front.start + len);
            }
            self.mark_lost(0);
        }
    }

    /// Takes back every belief that something is lost.
    pub(super) fn unlose(&mut self) {
        for record in &mut self.records {
            if record.fate == Fate::Lost {
                record.fate = Fate::InFlight;
            }
        }
        self.in_flight += core::mem::take(&mut self.lost);
    }

    /// The first lost range.
    pub(super) fn next_lost(&mut self) -> Option<SackBlock> {
        if self.lost == 0 {
            return None;
        }
        let from = self.lost_from;
        let first = self.records.partition_point(|record| record.end.at_or_before(from));
        let record = self.records.range(first..).find(|record| record.fate == Fate::Lost)?;
        self.lost_from = record.start;
        Some(SackBlock { start: record.start, end: record.end })
    }

    /// The last `len` bytes that the peer may not have, for a tail loss probe.
    pub(super) fn tail(&self, len: u32) -> Option<SackBlock> {
        let record = self.records.iter().rev().find(|record| record.fate != Fate::Sacked)?;
        let start = record.start.max(record.end - len);
        Some(SackBlock { start, end: record.end })
    }

    /// Notes that a range was sent again. It lies within one record.
    pub(super) fn resent(&mut self, range: SackBlock, at: u64) {
        let mut i = self.records.partition_point(|record| record.end.at_or_before(range.start));
        let Some(record) = self.records.get(i).copied() else { return };
        if record.start.before(range.start) {
            self.split(i, range.start);
            i += 1;
        }
        if record.end.after(range.end) {
            self.split(i, range.end);
        }
        let record = &mut self.records[i];
        record.at = at;
        record.again = true;
        if record.fate == Fate::Lost {
            record.fate = Fate::InFlight;
            let len = record.len();
            self.lost -= len;
            self.in_flight += len;
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn mark_lost(&mut self, i: usize) {
        let record = &mut self.records[i];
        record.fate = Fate::Lost;
        let (start, len) = (record.start, record.len());
        if self.lost == 0 || start.before(self.lost_from) {
            self.lost_from = start;
        }
        self.in_flight -= len;
        self.lost += len;
    }

    fn split(&mut self, i: usize, at: Seq) {
        let mut second = self.records[i];
        self.records[i].end = at;
        second.start = at;
        self.records.insert(i + 1, second);
    }

    /// Joins record `i` to the one before if both were selectively acknowledged.
    fn melt(&mut self, i: usize) -> bool {
        let Some(before) = i.checked_sub(1) else { return false };
        if self.records[i].fate != Fate::Sacked || self.records[before].fate != Fate::Sacked {
            return false;
        }
        let record = self.records[i];
        let kept = &mut self.records[before];
        kept.end = record.end;
        kept.at = kept.at.max(record.at);
        kept.again |= record.again;
        self.records.remove(i);
        true
    }
}

fn note_delivered(record: &Sent, now: u64, rack: &mut Rack, delivery: &mut Delivery) {
    delivery.delivered += record.len();
    if !record.again {
        delivery.originals = true;
        delivery.oldest = Some(delivery.oldest.map_or(record.at, |at| at.min(record.at)));
        delivery.newest = Some(delivery.newest.map_or(record.at, |at| at.max(record.at)));
    }
    rack.on_delivered(record, now);
}

#[cfg(test)]
mod tests {
    use super::{Delivery, Fate, Scoreboard};
    use crate::tcp::header::SackBlock;
    use crate::tcp::rack::Rack;
    use crate::tcp::seq::Seq;

    const MSS: u32 = 1_000;

    fn block(start: u32, end: u32) -> SackBlock {
        SackBlock { start: Seq(start), end: Seq(end) }
    }

    /// Ten segments, one microsecond apart.
    fn ten() -> (Scoreboard, Rack) {
        let mut board = Scoreboard::default();
        for i in 0..10 {
            board.push(Seq(i * MSS), Seq((i + 1) * MSS), 100 + u64::from(i));
        }
        (board, Rack::new(Seq(0)))
    }

    fn check(board: &Scoreboard) {
        let sum = |fate| -> u32 {
            board.records.iter().filter(|r| r.fate == fate).map(super::Sent::len).sum()
        };
        assert_eq!(sum(Fate::InFlight), board.in_flight);
        assert_eq!(sum(Fate::Lost), board.lost);
        assert_eq!(sum(Fate::Sacked), board.sacked);
        for pair in board.records.iter().zip(board.records.iter().skip(1)) {
            assert_eq!(pair.0.end, pair.1.start);
        }
    }

    #[test]
    fn cumulative_and_selective_acknowledgements_are_counted_once() {
        let (mut board, mut rack) = ten();
        let mut delivery = Delivery::default();
        board.acknowledge(Seq(1_500), 200, &mut rack, &mut delivery);
        board.sack(block(3_000, 5_000), 200, &mut rack, &mut delivery);
        board.sack(block(3_000, 5_500), 200, &mut rack, &mut delivery);
        check(&board);
        assert_eq!(delivery.delivered, 4_000);
        assert_eq!((board.in_flight(), board.sacked()), (6_000, 2_500));
        assert_eq!((delivery.oldest, delivery.newest), (Some(100), Some(105)));
        board.acknowledge(Seq(10_000), 300, &mut rack, &mut delivery);
        check(&board);
        assert_eq!(delivery.delivered, 10_000);
        assert!(board.is_empty());
    }

    #[test]
    fn what_was_sent_before_a_delivered_segment_is_lost_after_the_window() {
        let (mut board, mut rack) = ten();
        let mut delivery = Delivery::default();
        board.sack(block(2_000, 4_000), 200, &mut rack, &mut delivery);
        let (lost, due) = board.detect_loss(200, &rack, 25);
        // The delivered one was sent at 103 and took 97; the first two are due at 222 and 223.
        assert_eq!((lost, due), (0, Some(23)));
        let (lost, due) = board.detect_loss(223, &rack, 25);
        assert_eq!((lost, due), (2_000, None));
        check(&board);
        assert_eq!(board.next_lost(), Some(block(0, 1_000)));
        board.resent(block(0, 1_000), 230);
        assert_eq!(board.next_lost(), Some(block(1_000, 2_000)));
        board.resent(block(1_000, 1_500), 230);
        assert_eq!(board.next_lost(), Some(block(1_500, 2_000)));
        check(&board);
    }

    #[test]
    fn a_lost_retransmission_is_noticed_when_later_data_arrives() {
        let (mut board, mut rack) = ten();
        let mut delivery = Delivery::default();
        board.sack(block(1_000, 10_000), 200, &mut rack, &mut delivery);
        assert_eq!(board.detect_loss(200, &rack, 0).0, 1_000);
        board.resent(block(0, 1_000), 210);
        board.push(Seq(10_000), Seq(11_000), 215);
        assert_eq!(board.detect_loss(300, &rack, 0).0, 0);
        board.sack(block(10_000, 11_000), 315, &mut rack, &mut delivery);
        assert_eq!(board.detect_loss(315, &rack, 0).0, 1_000);
        check(&board);
    }

    #[test]
    fn a_peer_that_forgets_what_it_had_gets_it_again_after_a_timeout() {
        let (mut board, mut rack) = ten();
        let mut delivery = Delivery::default();
        board.sack(block(1_000, 3_000), 200, &mut rack, &mut delivery);
        board.acknowledge(Seq(1_000), 210, &mut rack, &mut delivery);
        board.lose_after_timeout(1_000_000, 100);
        check(&board);
        assert_eq!((board.lost(), board.sacked()), (9_000, 0));
        board.unlose();
        assert_eq!((board.lost(), board.in_flight()), (0, 9_000));
    }

    #[test]
    fn the_tail_is_the_last_range_the_peer_may_lack() {
        let (mut board, mut rack) = ten();
        board.sack(block(9_000, 10_000), 200, &mut rack, &mut Delivery::default());
        assert_eq!(board.tail(700), Some(block(8_300, 9_000)));
        board.resent(block(8_300, 9_000), 300);
        check(&board);
    }
}
