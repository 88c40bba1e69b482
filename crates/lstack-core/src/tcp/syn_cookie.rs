//! SYN cookies: a handshake that is remembered by the peer instead of by us.
//!
//! When a listener has as many half-open connections as it keeps, a SYN is still answered, but
//! nothing is stored: our initial sequence number is a keyed hash of what the SYN said, with the
//! segment size in it, and the acknowledgement brings it back (RFC 4987 3.6). The options that do
//! not fit travel in the low bits of our timestamp, as Linux does it; a peer without timestamps
//! gets a connection without window scaling and without SACK, which is better than none.
//!
//! Layout of a cookie: 24 bits of hash, 5 of the minute, 3 of the segment size. The lower 8 are
//! masked with another hash, so that nothing of it can be told from a random number.

use core::hash::{BuildHasher, Hasher};

use super::connection::PeerSyn;
use super::flow::FlowKey;
use super::header::Timestamps;
use super::seq::Seq;
use crate::config::Secret;
use crate::random::KeyedHash;

/// After the last cookie of a listener, for how long acknowledgements may bring one back: the
/// minutes that [`SynCookies::open`] accepts. Microseconds.
pub(super) const LIFETIME: u64 = AGE_MAX * MINUTE;

/// Cookies of this many past minutes are good (Linux: 2).
const AGE_MAX: u64 = 2;

const MINUTE: u64 = 60_000_000;

/// Sizes a cookie can tell: the next smaller one is used. Common link sizes with and without
/// tunnels, for both families, and what nobody exceeds.
const SIZES: [u16; 8] = [48, 536, 1_220, 1_360, 1_440, 1_460, 4_036, 8_960];

/// Low bits of our timestamp that carry options.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
/// In place of a window scale: there was none.
const NO_SCALE: u32 = 0xf;
const SACK_BIT: u32 = 0x10;
const ECN_BIT: u32 = 0x20;

/// The keys.
#[derive(Debug)]
pub(super) struct SynCookies {
    proof: KeyedHash,
    mask: KeyedHash,
}

impl SynCookies {
    pub(super) fn new(secret: &Secret) -> Self {
        Self {
            proof: KeyedHash::new(secret, "tcp syn cookie"),
            mask: KeyedHash::new(secret, "tcp syn cookie mask"),
        }
    }

    /// The initial sequence number that remembers a SYN, at `now` (microseconds).
    pub(super) fn seal(&self, key: &FlowKey, peer: &PeerSyn, now: u64) -> Seq {
        let size = SIZES.iter().rposition(|&size| size <= peer.mss).unwrap_or(0) as u32;
        self.cookie(key, peer.irs, now / MINUTE, size)
    }

    /// What the SYN said, if `cookie` is one of ours and fresh. `echo` is our timestamp as the peer
    /// sends it back, `value` the peer's own.
    pub(super) fn open(
        &self,
        key: &FlowKey,
        irs: Seq,
        cookie: Seq,
        timestamps: Option<Timestamps>,
        now: u64,
    ) -> Option<PeerSyn> {
        let low = (cookie.0 ^ self.mask(key, irs)) & 0xff;
        let (minute, size) = (u64::from(low >> 3), low & 7);
        let this_minute = now / MINUTE;
        let minute = (0..=AGE_MAX)
            .filter_map(|age| this_minute.checked_sub(age))
            .find(|candidate| candidate & 0x1f == minute)?;
        if self.cookie(key, irs, minute, size) != cookie {
            return None;
        }
        let options = timestamps.map_or(NO_SCALE, |timestamps| timestamps.echo & OPTION_MASK);
        let scale = options & 0xf;
        Some(PeerSyn {
            irs,
            mss: SIZES[size as usize],
            scale: (scale != NO_SCALE).then_some(scale as u8),
            timestamp: timestamps.map(|timestamps| timestamps.value),
            sack: options & SACK_BIT != 0,
            ecn: options & ECN_BIT != 0,
        })
    }

    fn cookie(&self, key: &FlowKey, irs: Seq, minute: u64, size: u32) -> Seq {
        let mut hasher = self.proof.build_hasher();
        key.feed(&mut hasher);
        hasher.write_u32(irs.0);
        hasher.write_u64(minute);
        hasher.write_u32(size);
        let proof = hasher.finish() as u32 & !0xff;
        Seq((proof | (minute as u32 & 0x1f) << 3 | size) ^ self.mask(key, irs))
    }

    fn mask(&self, key: &FlowKey, irs: Seq) -> u32 {
        let mut hasher = self.mask.build_hasher();
        key.feed(&mut hasher);
        hasher.write_u32(irs.0);
        hasher.finish() as u32 & 0xff
    }
}

/// Our timestamp `value` with the options of a SYN in its low bits. Not above `value`: what the
/// connection sends later must not look older.
pub(super) fn timestamp_with_options(value: u32, peer: &PeerSyn) -> u32 {
    let scale = peer.scale.map_or(NO_SCALE, u32::from);
    let sack = if peer.sack { SACK_BIT } else { 0 };
    let ecn = if peer.ecn { ECN_BIT } else { 0 };
    let carried = value & !OPTION_MASK | scale | sack | ecn;
    if carried.wrapping_sub(value) as i32 > 0 {
        carried.wrapping_sub(1 << OPTION_BITS)
    } else {
        carried
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::{LIFETIME, MINUTE, SynCookies, timestamp_with_options};
    use crate::config::Secret;
    use crate::tcp::connection::PeerSyn;
    use crate::tcp::flow::FlowKey;
    use crate::tcp::header::Timestamps;
    use crate::tcp::seq::Seq;

    const NOW: u64 = 1_000 * MINUTE + 59_000_000;

    fn key(port: u16) -> FlowKey {
        FlowKey {
            local: IpAddr::from([10, 0, 0, 1]),
            remote: IpAddr::from([10, 0, 0, 2]),
            local_port: 80,
            remote_port: port,
        }
    }

    fn peer(mss: u16, scale: Option<u8>, sack: bool) -> PeerSyn {
        PeerSyn { irs: Seq(77), mss, scale, timestamp: Some(5), sack, ecn: !sack }
    }

    #[test]
    fn what_the_syn_said_comes_back() {
        let cookies = SynCookies::new(&Secret([1; 32]));
        for (mss, told) in [(48, 48), (535, 48), (536, 536), (1_459, 1_440), (65_535, 8_960)] {
            for (scale, sack) in [(None, false), (Some(0), true), (Some(14), false)] {
                let syn = peer(mss, scale, sack);
                let cookie = cookies.seal(&key(9), &syn, NOW);
                let echo = timestamp_with_options(123_456, &syn);
                let timestamps = Some(Timestamps { value: 6, echo });
                let back = cookies.open(&key(9), syn.irs, cookie, timestamps, NOW).unwrap();
                assert_eq!((back.mss, back.scale, back.sack), (told, scale, sack));
                assert_eq!(back.ecn, !sack);
                assert_eq!(back.timestamp, Some(6));
            }
        }
    }

    #[test]
    fn without_timestamps_only_the_size_comes_back() {
        let cookies = SynCookies::new(&Secret([1; 32]));
        let syn = peer(1_460, Some(7), true);
        let cookie = cookies.seal(&key(9), &syn, NOW);
        let back = cookies.open(&key(9), syn.irs, cookie, None, NOW).unwrap();
        assert_eq!((back.mss, back.scale, back.sack), (1_460, None, false));
    }

    #[test]
    fn cookies_of_other_tuples_numbers_and_times_are_refused() {
        let cookies = SynCookies::new(&Secret([1; 32]));
        let syn = peer(1_460, None, false);
        let cookie = cookies.seal(&key(9), &syn, NOW);
        let open = |key, irs, cookie, now| cookies.open(&key, irs, cookie, None, now).is_some();
        assert!(open(key(9), syn.irs, cookie, NOW + LIFETIME));
        assert!(!open(key(9), syn.irs, cookie, NOW + LIFETIME + MINUTE));
        assert!(!open(key(8), syn.irs, cookie, NOW));
        assert!(!open(key(9), syn.irs + 1, cookie, NOW));
        let forged = (1..1_000).filter(|&n| open(key(9), syn.irs, cookie + n, NOW)).count();
        assert_eq!(forged, 0);
    }

    #[test]
    fn timestamps_with_options_never_run_ahead() {
        for value in [0, 1, 63, 64, 1_000, u32::MAX] {
            for syn in [peer(1, None, true), peer(1, Some(0), false), peer(1, Some(14), true)] {
                let behind = value.wrapping_sub(timestamp_with_options(value, &syn));
                assert!(behind < 64, "{behind}");
            }
        }
    }
}
