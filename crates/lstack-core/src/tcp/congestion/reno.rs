//! Reno, RFC 5681 with appropriate byte counting (RFC 3465).

use super::{AckSample, CongestionControl, Window};

/// State of Reno.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reno {
    /// Bytes acknowledged since the window last grew.
    counted: u32,
}

impl CongestionControl for Reno {
    fn on_ack(&mut self, window: &mut Window, sample: &AckSample) {
        if window.in_slow_start() {
            window.grow(sample.acked.min(window.ssthresh - window.cwnd));
            return;
        }
        self.counted = self.counted.saturating_add(sample.acked);
        if self.counted >= window.cwnd {
            self.counted -= window.cwnd;
            window.grow(window.mss);
        }
    }

    fn on_loss(&mut self, window: &Window) -> u32 {
        self.counted = 0;
        (window.cwnd / 2).max(2 * window.mss)
    }

    fn restart(&mut self) {
        self.counted = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{AckSample, CongestionControl, Reno, Window};
    use crate::tcp::seq::Seq;

    #[test]
    fn one_segment_per_round_trip_after_slow_start() {
        let mut reno = Reno::default();
        let mut window = Window { cwnd: 20_000, ssthresh: 20_000, mss: 1_000 };
        let sample =
            AckSample { now: 0, acked: 2_000, rtt: None, srtt: 100, una: Seq(0), nxt: Seq(0) };
        for _ in 0..10 {
            reno.on_ack(&mut window, &sample);
        }
        assert_eq!(window.cwnd, 21_000);
        assert_eq!(reno.on_loss(&window), 10_500);
    }
}
