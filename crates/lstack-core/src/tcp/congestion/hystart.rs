//! HyStart++, RFC 9406: leaves slow start when round trips grow, before there is loss.

use crate::tcp::seq::Seq;

/// RFC 9406 4.3.
const MIN_RTT_THRESHOLD: u32 = 4_000;
const MAX_RTT_THRESHOLD: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const RTT_SAMPLES: u8 = 8;
const CSS_ROUNDS: u8 = 5;

/// Divides growth in conservative slow start.
const CSS_GROWTH_DIVISOR: u32 = 4;

/// State of one slow start.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// The round ends when this is acknowledged.
    round_end: Option<Seq>,
    last_round_min: u32,
    round_min: u32,
    samples: u8,
    /// Smallest round trip when conservative slow start began, and rounds since.
    css: Option<(u32, u8)>,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            round_end: None,
            last_round_min: u32::MAX,
            round_min: u32::MAX,
            samples: 0,
            css: None,
        }
    }
}

impl HyStart {
    /// Takes an acknowledgement in slow start; returns by how much the window may grow, `None`
    /// when slow start is over.
    pub(super) fn on_ack(
        &mut self,
        una: Seq,
        nxt: Seq,
        acked: u32,
        rtt: Option<u32>,
    ) -> Option<u32> {
        if self.round_end.is_none_or(|end| una.at_or_after(end)) {
            self.round_end = Some(nxt);
            self.last_round_min = self.round_min;
            self.round_min = u32::MAX;
            self.samples = 0;
            if let Some((_, rounds)) = &mut self.css {
                *rounds += 1;
                if *rounds >= CSS_ROUNDS {
                    return None;
                }
            }
        }
        if let Some(rtt) = rtt {
            self.round_min = self.round_min.min(rtt);
            self.samples = self.samples.saturating_add(1);
        }
        let judged = self.samples >= RTT_SAMPLES
            && self.round_min != u32::MAX
            && self.last_round_min != u32::MAX;
        match self.css {
            None if judged => {
                let threshold = (self.last_round_min / MIN_RTT_DIVISOR)
                    .clamp(MIN_RTT_THRESHOLD, MAX_RTT_THRESHOLD);
                if self.round_min >= self.last_round_min.saturating_add(threshold) {
                    self.css = Some((self.round_min, 0));
                }
            }
            // The growth was noise.
            Some((baseline, _)) if judged && self.round_min < baseline => self.css = None,
            _ => {}
        }
        Some(if self.css.is_some() { acked / CSS_GROWTH_DIVISOR } else { acked })
    }
}

#[cfg(test)]
mod tests {
    use super::{CSS_ROUNDS, HyStart};
    use crate::tcp::seq::Seq;

    fn round(hystart: &mut HyStart, n: u32, rtt: u32) -> Option<u32> {
        let mut grown = 0;
        for i in 0..10 {
            let una = Seq(n * 1_000 + i);
            grown += hystart.on_ack(una, Seq((n + 1) * 1_000), 100, Some(rtt))?;
        }
        Some(grown)
    }

    #[test]
    fn steady_round_trips_never_end_slow_start() {
        let mut hystart = HyStart::default();
        for n in 0..20 {
            assert_eq!(round(&mut hystart, n, 20_000), Some(1_000));
        }
    }

    #[test]
    fn growing_round_trips_slow_down_and_then_end_it() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 0, 20_000);
        round(&mut hystart, 1, 20_000);
        assert!(round(&mut hystart, 2, 30_000) < Some(1_000));
        let rounds = (3..20).take_while(|&n| round(&mut hystart, n, 30_000).is_some()).count();
        assert_eq!(rounds, usize::from(CSS_ROUNDS) - 1);
    }

    #[test]
    fn a_passing_spike_is_forgiven() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 0, 20_000);
        round(&mut hystart, 1, 20_000);
        round(&mut hystart, 2, 30_000);
        round(&mut hystart, 3, 20_000);
        assert_eq!(round(&mut hystart, 4, 20_000), Some(1_000));
    }
}
