//! Sequence numbers: 32 bits that wrap, RFC 9293 section 3.4.

use core::ops::{Add, AddAssign, Sub};

/// A sequence number. Order is only meaningful between numbers less than 2^31 apart, so it has
/// methods instead of `Ord`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seq(pub u32);

impl Seq {
    /// Signed distance from `earlier` to `self`.
    pub(crate) const fn distance(self, earlier: Seq) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// Bytes from `earlier` up to `self`, 0 when `self` comes first.
    pub(crate) const fn since(self, earlier: Seq) -> u32 {
        let distance = self.distance(earlier);
        if distance > 0 { distance.cast_unsigned() } else { 0 }
    }

    pub(crate) const fn before(self, other: Seq) -> bool {
        self.distance(other) < 0
    }

    pub(crate) const fn after(self, other: Seq) -> bool {
        self.distance(other) > 0
    }

    pub(crate) const fn at_or_before(self, other: Seq) -> bool {
        self.distance(other) <= 0
    }

    pub(crate) const fn at_or_after(self, other: Seq) -> bool {
        self.distance(other) >= 0
    }

    pub(crate) const fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    pub(crate) const fn min(self, other: Seq) -> Seq {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;

    fn add(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;

    fn sub(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_sub(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::Seq;

    #[test]
    fn order_survives_the_wrap() {
        let high = Seq(u32::MAX - 1);
        let low = high + 5;
        assert_eq!(low, Seq(3));
        assert!(high.before(low) && low.after(high));
        assert_eq!(low.since(high), 5);
        assert_eq!(high.since(low), 0);
        assert_eq!(high.max(low), low);
        assert_eq!(high.min(low), high);
    }
}
