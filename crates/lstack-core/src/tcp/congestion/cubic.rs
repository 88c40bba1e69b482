//! CUBIC, RFC 9438, with HyStart++ in slow start. Windows are in segments inside, as in the RFC.

use super::hystart::HyStart;
use super::{AckSample, CongestionControl, Window};

/// RFC 9438 4.6 and 5.
const BETA: f64 = 0.7;
const C: f64 = 0.4;

/// RFC 9438 4.3: the increase per round trip that gives Reno's share with our `BETA`.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// State of CUBIC.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cubic {
    hystart: HyStart,
    epoch: Option<Epoch>,
    /// Window before the last reduction, lowered further when it was falling (fast convergence).
    w_max: f32,
    /// Window when loss was last detected.
    w_prior: f32,
    /// Part of a byte that growth has left over.
    carry: f64,
}

/// One congestion avoidance stage.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: u64,
    /// Seconds until the cubic reaches `origin`.
    k: f64,
    origin: f64,
    /// Window Reno would have.
    w_est: f64,
}

impl CongestionControl for Cubic {
    fn on_ack(&mut self, window: &mut Window, sample: &AckSample) {
        if window.in_slow_start() {
            match self.hystart.on_ack(sample.una, sample.nxt, sample.acked, sample.rtt) {
                Some(growth) => {
                    window.grow(growth.min(window.ssthresh - window.cwnd));
                    return;
                }
                None => window.ssthresh = window.cwnd,
            }
        }
        let mss = f64::from(window.mss);
        let cwnd = f64::from(window.cwnd) / mss;
        let acked = f64::from(sample.acked) / mss;
        let w_max = f64::from(self.w_max);
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            start: sample.now,
            k: ((w_max - cwnd).max(0.0) / C).cbrt(),
            origin: w_max.max(cwnd),
            w_est: cwnd,
        });
        let alpha = if epoch.w_est < f64::from(self.w_prior) { ALPHA } else { 1.0 };
        epoch.w_est += alpha * acked / cwnd;
        let seconds = sample.now.saturating_sub(epoch.start) as f64 / 1e6;
        let cubic = |t: f64| C * (t - epoch.k).powi(3) + epoch.origin;
        let growth = if cubic(seconds) < epoch.w_est {
            (epoch.w_est - cwnd).max(0.0)
        } else {
            let target = cubic(seconds + f64::from(sample.srtt) / 1e6).clamp(cwnd, 1.5 * cwnd);
            (target - cwnd) / cwnd * acked
        };
        let bytes = growth * mss + self.carry;
        self.carry = bytes.fract();
        window.grow(bytes as u32);
    }

    fn on_loss(&mut self, window: &Window) -> u32 {
        let mss = f64::from(window.mss);
        let cwnd = f64::from(window.cwnd) / mss;
        let shrinks = cwnd < f64::from(self.w_max);
        self.w_max = if shrinks { cwnd * (1.0 + BETA) / 2.0 } else { cwnd } as f32;
        self.w_prior = cwnd as f32;
        self.epoch = None;
        self.carry = 0.0;
        ((cwnd * BETA * mss) as u32).max(2 * window.mss)
    }

    fn restart(&mut self) {
        self.epoch = None;
        self.hystart = HyStart::default();
    }
}

#[cfg(test)]
mod tests {
    use super::{AckSample, CongestionControl, Cubic, Window};
    use crate::tcp::seq::Seq;

    /// Drives one second of acknowledgements at the given round trip; returns the window.
    fn run(cubic: &mut Cubic, window: &mut Window, from: u64, rtt: u32, seconds: u64) -> u32 {
        let mut now = from;
        while now < from + seconds * 1_000_000 {
            now += u64::from(rtt);
            let sample = AckSample {
                now,
                acked: window.cwnd,
                rtt: Some(rtt),
                srtt: rtt,
                una: Seq(0),
                nxt: Seq(0),
            };
            cubic.on_ack(window, &sample);
        }
        window.cwnd
    }

    #[test]
    fn a_long_path_returns_to_the_old_window_after_k_seconds() {
        let mut cubic = Cubic::default();
        let mut window = Window { cwnd: 1_000_000, ssthresh: 1, mss: 1_000 };
        window.ssthresh = cubic.on_loss(&window);
        window.cwnd = window.ssthresh;
        assert_eq!(window.cwnd, 700_000);
        // K = cbrt(300 / 0.4) = 9.09 s.
        let after = run(&mut cubic, &mut window, 0, 100_000, 9);
        assert!((980_000..1_020_000).contains(&after), "{after}");
        let later = run(&mut cubic, &mut window, 9_000_000, 100_000, 10);
        assert!(later > 1_300_000, "{later}");
    }

    #[test]
    fn a_short_path_grows_as_reno_does() {
        let mut cubic = Cubic::default();
        let mut window = Window { cwnd: 100_000, ssthresh: 1, mss: 1_000 };
        window.ssthresh = cubic.on_loss(&window);
        window.cwnd = window.ssthresh;
        // 56 rounds of 0.53 segments regain what was lost.
        let mut rounds = 0;
        while window.cwnd < 99_500 {
            run(&mut cubic, &mut window, rounds * 100, 100, 0);
            let sample = AckSample {
                now: rounds * 100,
                acked: window.cwnd,
                rtt: Some(100),
                srtt: 100,
                una: Seq(0),
                nxt: Seq(0),
            };
            cubic.on_ack(&mut window, &sample);
            rounds += 1;
        }
        assert!((50..62).contains(&rounds), "{rounds}");
    }
}
