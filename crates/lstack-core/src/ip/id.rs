//! Identification of IPv4 packets, RFC 6864: unique per source, destination and protocol for as
//! long as a datagram may be reassembled, and of no use to an observer who counts packets.

use core::net::Ipv4Addr;

use crate::config::{Secret, Steering};
use crate::random::Random;

/// Counters that start anywhere, one for each group of destinations, so that a host that sees its
/// own ids learns little of our traffic with others.
#[derive(Debug)]
pub(crate) struct PacketIds {
    counters: Vec<u16>,
    key: u32,
    /// Stacks of a process share the address and so the numbers. Each uses its own share: those
    /// that leave its index when divided by the number of stacks.
    index: u16,
    step: u16,
    share: u32,
}

impl PacketIds {
    pub(crate) fn new(secret: &Secret, steering: Steering) -> Self {
        let mut random = Random::new(secret, "packet ids");
        let step = steering.count.max(1);
        let share = (u32::from(u16::MAX) + 1) / u32::from(step);
        let counters = (0..COUNTERS).map(|_| narrow(random.below(share))).collect();
        Self { counters, key: random.below(u32::MAX), index: steering.index, step, share }
    }

    /// The next id for a packet to `dst`.
    pub(crate) fn next(&mut self, dst: Ipv4Addr, protocol: u8) -> u16 {
        let mixed = (dst.to_bits() ^ self.key ^ u32::from(protocol) << 8).wrapping_mul(MIX);
        let counter = &mut self.counters[(mixed >> (32 - COUNTERS.ilog2())) as usize];
        *counter = narrow((u32::from(*counter) + 1) % self.share);
        counter.wrapping_mul(self.step).wrapping_add(self.index)
    }
}

fn narrow(below_share: u32) -> u16 {
    u16::try_from(below_share).expect("a share is at most 2^16")
}

/// Linux keeps at least as many (`ip_idents`).
const COUNTERS: usize = 2_048;

/// 2^32 divided by the golden ratio, odd: spreads neighbouring addresses.
const MIX: u32 = 0x9e37_79b1;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::PacketIds;
    use crate::config::{Secret, Steering};

    #[test]
    fn ids_of_a_destination_repeat_as_late_as_possible() {
        let mut ids = PacketIds::new(&Secret([3; 32]), Steering::default());
        let dst = [10, 0, 0, 9].into();
        let seen: HashSet<u16> = (0..65_000).map(|_| ids.next(dst, 17)).collect();
        assert_eq!(seen.len(), 65_000);
    }

    #[test]
    fn stacks_of_a_process_use_different_ids() {
        let dst = [10, 0, 0, 9].into();
        let share = |index| {
            let steering = Steering { index, count: 3, key: 0 };
            let mut ids = PacketIds::new(&Secret([3; 32]), steering);
            (0..21_000).map(|_| ids.next(dst, 17)).collect::<HashSet<u16>>()
        };
        let (one, two, three) = (share(0), share(1), share(2));
        assert_eq!(one.len(), 21_000);
        assert!(one.is_disjoint(&two) && two.is_disjoint(&three) && one.is_disjoint(&three));
    }
}
