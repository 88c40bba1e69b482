//! Path MTU as routers reported it, RFC 1191.

use core::net::Ipv4Addr;
use core::time::Duration;

use crate::time::Instant;

/// What is known of paths narrower than our own link. Bounded: a new entry may displace another,
/// which a router will then report again.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    entries: Vec<Option<Entry>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    dst: Ipv4Addr,
    mtu: u16,
    expires: Instant,
}

impl PathMtus {
    /// Notes a report, already matched to a packet of ours.
    pub(crate) fn note(&mut self, now: Instant, dst: Ipv4Addr, mtu: u16) {
        // Most programs never see such a report and pay no memory for it.
        if self.entries.is_empty() {
            self.entries = vec![None; ENTRIES];
        }
        let entry = &mut self.entries[index(dst)];
        let mtu = mtu.max(FLOOR);
        *entry = match *entry {
            // Only ever downwards while it lasts: an old report may come late.
            Some(old) if old.dst == dst && now < old.expires && old.mtu <= mtu => Some(old),
            _ => Some(Entry { dst, mtu, expires: now + LIFETIME }),
        };
    }

    /// The largest packet to `dst`, at most `link_mtu`.
    pub(crate) fn get(&self, now: Instant, dst: Ipv4Addr, link_mtu: u16) -> u16 {
        if self.entries.is_empty() {
            return link_mtu;
        }
        match self.entries[index(dst)] {
            Some(entry) if entry.dst == dst && now < entry.expires => entry.mtu.min(link_mtu),
            _ => link_mtu,
        }
    }
}

fn index(dst: Ipv4Addr) -> usize {
    let [a, b, c, d] = dst.octets();
    usize::from(a ^ b ^ c ^ d)
}

/// One per value of [`index`].
const ENTRIES: usize = 256;

/// Linux's `route.min_pmtu`: a forged report cannot make us send crumbs.
const FLOOR: u16 = 552;

/// RFC 1191 section 6.3 and Linux's `route.mtu_expires`.
const LIFETIME: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::PathMtus;
    use crate::time::Instant;

    #[test]
    fn reports_lower_the_mtu_for_ten_minutes() {
        let mut mtus = PathMtus::default();
        let (dst, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let start = Instant::from_millis(5);
        assert_eq!(mtus.get(start, dst, 1_500), 1_500);
        mtus.note(start, dst, 1_400);
        mtus.note(start, dst, 1_450);
        assert_eq!(mtus.get(start, dst, 1_500), 1_400);
        assert_eq!(mtus.get(start, other, 1_500), 1_500);
        assert_eq!(mtus.get(start + Duration::from_secs(600), dst, 1_500), 1_500);
    }

    #[test]
    fn silly_reports_do_little_harm() {
        let mut mtus = PathMtus::default();
        let dst = [192, 0, 2, 1].into();
        for mtu in [0, 68] {
            mtus.note(Instant::ZERO, dst, mtu);
            assert_eq!(mtus.get(Instant::ZERO, dst, 1_500), 552);
        }
        mtus.note(Instant::ZERO, [192, 0, 2, 9].into(), 9_000);
        assert_eq!(mtus.get(Instant::ZERO, [192, 0, 2, 9].into(), 1_500), 1_500);
    }
}
