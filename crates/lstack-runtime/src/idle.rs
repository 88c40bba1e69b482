//! What a driver does when there is nothing to do: a pure function of the time.

use std::time::Duration;

use lstack_core::Instant;

/// The idle policy of one driver and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Idle {
    spin: Duration,
    nap_max: Duration,
    /// When the work ran out.
    since: Option<Instant>,
    nap: Duration,
}

/// How to pass the time until the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Look again at once.
    Spin,
    /// Sleep at most this long.
    Nap(Duration),
}

impl Idle {
    /// Spins for `spin` after the last work, then naps, longer and longer.
    pub(crate) fn new(spin: Duration, power: Power) -> Self {
        let nap_max = match power {
            Power::Normal => NAP_MAX,
            Power::Low => NAP_MAX_LOW_POWER,
        };
        Self { spin, nap_max, since: None, nap: NAP_MIN }
    }

    /// There was work.
    pub(crate) fn restart(&mut self) {
        self.since = None;
        self.nap = NAP_MIN;
    }

    /// There was none.
    pub(crate) fn rest(&mut self, now: Instant) -> Rest {
        let since = *self.since.get_or_insert(now);
        let idle = now - since;
        if idle < self.spin {
            return Rest::Spin;
        }
        let nap = self.nap;
        let max = if idle < LONG_IDLE { self.nap_max } else { self.nap_max.max(NAP_MAX_LONG_IDLE) };
        self.nap = (nap * 2).min(max);
        Rest::Nap(nap)
    }
}

/// How much idling may cost (`low_power_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// Short naps.
    Normal,
    /// Longer naps: less power, later answers to the first frame.
    Low,
}

/// The first nap. The kernel's timer slack adds up to as much again.
const NAP_MIN: Duration = Duration::from_micros(50);

/// The longest nap while idle for less than [`LONG_IDLE`]: a thousand wake-ups a second, some 5 µs
/// each.
const NAP_MAX: Duration = Duration::from_millis(1);

/// From here on the process counts as idle.
const LONG_IDLE: Duration = Duration::from_secs(1);

/// The longest nap of an idle process. The first frame after an idle second waits for at most this
/// long; in exchange an idle process costs a quarter.
const NAP_MAX_LONG_IDLE: Duration = Duration::from_millis(4);

/// The longest nap with `low_power_mode`.
const NAP_MAX_LOW_POWER: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    #[test]
    fn spins_then_naps_longer_up_to_the_limit() {
        let mut idle = Idle::new(Duration::from_micros(100), Power::Normal);
        assert_eq!(idle.rest(at(1_000)), Rest::Spin);
        assert_eq!(idle.rest(at(1_099)), Rest::Spin);
        let naps: Vec<_> = (0..7).map(|_| idle.rest(at(1_100))).collect();
        let micros = [50, 100, 200, 400, 800, 1_000, 1_000];
        assert_eq!(naps, micros.map(|micros| Rest::Nap(Duration::from_micros(micros))));
    }

    #[test]
    fn work_starts_the_policy_over() {
        let mut idle = Idle::new(Duration::from_micros(10), Power::Low);
        idle.rest(at(0));
        for _ in 0..20 {
            idle.rest(at(50));
        }
        assert_eq!(idle.rest(at(60)), Rest::Nap(NAP_MAX_LOW_POWER));
        idle.restart();
        assert_eq!(idle.rest(at(100)), Rest::Spin);
        assert_eq!(idle.rest(at(110)), Rest::Nap(NAP_MIN));
    }

    #[test]
    fn an_idle_second_allows_longer_naps() {
        let mut idle = Idle::new(Duration::ZERO, Power::Normal);
        for _ in 0..10 {
            assert!(matches!(idle.rest(at(5)), Rest::Nap(nap) if nap <= NAP_MAX));
        }
        let late = at(5) + LONG_IDLE;
        for _ in 0..3 {
            idle.rest(late);
        }
        assert_eq!(idle.rest(late), Rest::Nap(NAP_MAX_LONG_IDLE));
    }
}
