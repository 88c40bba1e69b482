//! Round trip time and retransmission timeout, RFC 6298, in microseconds.

/// Before the first sample, RFC 6298 2.1.
const INITIAL_RTO: u32 = 1_000_000;

/// RFC 6298 2.5 allows any ceiling of at least 60 s; Linux's.
pub(super) const RTO_MAX: u32 = 120_000_000;

/// The smallest round trip is forgotten after this long, so that a path that became longer is
/// noticed.
const MIN_WINDOW: u64 = 60_000_000;

/// Estimates of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct RttEstimator {
    /// Smoothed, times 8; 0 before the first sample.
    srtt8: u32,
    /// Variation, times 4.
    rttvar4: u32,
    rto_min: u32,
    /// Doublings of the timeout since the last progress.
    backoff: u8,
    /// Smallest sample of the current window and of the one before.
    min: [u32; 2],
    window_end: u64,
}

impl RttEstimator {
    pub(super) fn new(rto_min: u32) -> Self {
        Self { srtt8: 0, rttvar4: 0, rto_min, backoff: 0, min: [u32::MAX; 2], window_end: 0 }
    }

    /// Takes a sample of a segment that was sent once (Karn's rule is the caller's).
    pub(super) fn sample(&mut self, now: u64, rtt: u32) {
        let rtt = rtt.clamp(1, RTO_MAX);
        if self.srtt8 == 0 {
            self.srtt8 = rtt * 8;
            self.rttvar4 = rtt * 2;
        } else {
            let deviation = (self.srtt8 / 8).abs_diff(rtt);
            self.rttvar4 = self.rttvar4 - self.rttvar4 / 4 + deviation;
            self.srtt8 = self.srtt8 - self.srtt8 / 8 + rtt;
        }
        self.note_min(now, rtt);
    }

    /// Takes a sample that may only lower the minimum (of the newest acknowledged segment, free of
    /// the peer's acknowledgement delay).
    pub(super) fn note_min(&mut self, now: u64, rtt: u32) {
        if now >= self.window_end {
            self.min = [u32::MAX, self.min[0]];
            self.window_end = now + MIN_WINDOW;
        }
        self.min[0] = self.min[0].min(rtt.max(1));
    }

    /// Timeout with its back-off.
    pub(super) fn rto(&self) -> u64 {
        let base = u64::from(self.base_rto());
        (base << self.backoff.min(16)).min(u64::from(RTO_MAX))
    }

    /// Timeout without back-off. The variation counts at least the configured minimum, as in
    /// Linux: a peer's delayed acknowledgement comes on top of any round trip.
    fn base_rto(&self) -> u32 {
        if self.srtt8 == 0 {
            return INITIAL_RTO;
        }
        (self.srtt8 / 8 + self.rttvar4.max(self.rto_min)).min(RTO_MAX)
    }

    pub(super) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    pub(super) fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    pub(super) fn has_sample(&self) -> bool {
        self.srtt8 != 0
    }

    /// Smoothed round trip; the initial timeout before the first sample.
    pub(super) fn srtt(&self) -> u32 {
        if self.srtt8 == 0 { INITIAL_RTO } else { self.srtt8 / 8 }
    }

    pub(super) fn rttvar(&self) -> u32 {
        self.rttvar4 / 4
    }

    /// Smallest sample of the last one to two minutes; the smoothed one before any.
    pub(super) fn min_rtt(&self) -> u32 {
        let min = self.min[0].min(self.min[1]);
        if min == u32::MAX { self.srtt() } else { min }
    }
}

#[cfg(test)]
mod tests {
    use super::{RTO_MAX, RttEstimator};

    #[test]
    fn the_timeout_follows_rfc_6298_above_the_minimum() {
        let mut rtt = RttEstimator::new(1_000);
        assert_eq!(rtt.rto(), 1_000_000);
        rtt.sample(0, 80_000);
        assert_eq!((rtt.srtt(), rtt.rttvar()), (80_000, 40_000));
        assert_eq!(rtt.rto(), 80_000 + 4 * 40_000);
        for _ in 0..100 {
            rtt.sample(0, 80_000);
        }
        assert!((81_000..82_000).contains(&rtt.rto()), "{}", rtt.rto());
    }

    #[test]
    fn a_short_path_keeps_the_minimum_on_top() {
        let mut rtt = RttEstimator::new(200_000);
        rtt.sample(0, 100);
        assert_eq!(rtt.rto(), 200_100);
        rtt.back_off();
        assert_eq!(rtt.rto(), 400_200);
        for _ in 0..40 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), u64::from(RTO_MAX));
        rtt.reset_backoff();
        assert_eq!(rtt.rto(), 200_100);
    }

    #[test]
    fn the_minimum_is_forgotten_after_two_windows() {
        let mut rtt = RttEstimator::new(200_000);
        rtt.sample(0, 100);
        rtt.sample(70_000_000, 500);
        assert_eq!(rtt.min_rtt(), 100);
        rtt.sample(140_000_000, 400);
        assert_eq!(rtt.min_rtt(), 400);
    }
}
