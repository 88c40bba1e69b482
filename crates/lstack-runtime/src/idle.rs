//! What a driver does when there is nothing to do: a pure function of the time.

use std::time::Duration;

use lstack_core::Instant;

/// The idle policy of one driver and where it stands.
///
/// After a short spin the driver naps, each time for a fixed share of the time it has been idle. So
/// a frame that comes after a pause waits for at most that share of the pause, and the number of
/// wake-ups falls the longer nothing happens.
#[derive(Clone, Debug)]
pub(crate) struct Idle {
    spin: Duration,
    power: Power,
    /// When the work ran out.
    since: Option<Instant>,
}

/// How to pass the time until the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Look again at once.
    Spin,
    /// Sleep at most this long.
    Nap(Duration),
}

/// How much idling may cost (`low_power_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// Short naps.
    Normal,
    /// Longer naps: less power, later answers to the first frame.
    Low,
}

impl Idle {
    /// Spins for `spin` after the last work, then naps, longer and longer.
    pub(crate) fn new(spin: Duration, power: Power) -> Self {
        Self { spin, power, since: None }
    }

    /// There was work.
    pub(crate) fn restart(&mut self) {
        self.since = None;
    }

    /// There was none.
    pub(crate) fn rest(&mut self, now: Instant) -> Rest {
        let since = *self.since.get_or_insert(now);
        let idle = now - since;
        if idle < self.spin {
            return Rest::Spin;
        }
        let (share, max) = match self.power {
            Power::Normal => (NAP_SHARE, NAP_MAX),
            Power::Low => (NAP_SHARE_LOW_POWER, NAP_MAX_LOW_POWER),
        };
        Rest::Nap((idle / share).clamp(NAP_MIN, max))
    }
}

/// The first nap.
const NAP_MIN: Duration = Duration::from_micros(50);

/// A nap is this part of the idle time: at most an eighth is added to a pause between frames.
const NAP_SHARE: u32 = 8;

/// The longest nap, reached after 80 ms. A nap costs some 5 µs of processor time, on small virtual
/// machines 27 (measured): an idle stack uses 0.05 to 0.3 % of a processor.
const NAP_MAX: Duration = Duration::from_millis(10);

/// As [`NAP_SHARE`], with `low_power_mode`.
const NAP_SHARE_LOW_POWER: u32 = 2;

/// As [`NAP_MAX`], with `low_power_mode`.
const NAP_MAX_LOW_POWER: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    fn nap(micros: u64) -> Rest {
        Rest::Nap(Duration::from_micros(micros))
    }

    #[test]
    fn spins_then_naps_for_a_share_of_the_idle_time() {
        let mut idle = Idle::new(Duration::from_micros(100), Power::Normal);
        assert_eq!(idle.rest(at(1_000)), Rest::Spin);
        assert_eq!(idle.rest(at(1_099)), Rest::Spin);
        assert_eq!(idle.rest(at(1_100)), nap(50));
        assert_eq!(idle.rest(at(1_800)), nap(100));
        assert_eq!(idle.rest(at(9_000)), nap(1_000));
        assert_eq!(idle.rest(at(10_000_000)), Rest::Nap(NAP_MAX));
    }

    #[test]
    fn work_starts_the_policy_over() {
        let mut idle = Idle::new(Duration::from_micros(10), Power::Low);
        idle.rest(at(0));
        assert_eq!(idle.rest(at(1_000_000)), Rest::Nap(NAP_MAX_LOW_POWER));
        idle.restart();
        assert_eq!(idle.rest(at(1_000_000)), Rest::Spin);
        assert_eq!(idle.rest(at(1_000_010)), nap(50));
    }
}
