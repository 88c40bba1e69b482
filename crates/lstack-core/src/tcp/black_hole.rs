//! Paths that swallow large packets without a word: RFC 4821 and 8899 in their simplest form.
//!
//! Usually a router reports what is too big (`receive`). Where such reports are filtered away, full
//! segments are sent again and again and never arrive. After a few timeouts in a row packets are
//! made small; when that has helped for a while, full ones are tried again, since the silence may
//! have been an ordinary black-out.

use super::connection::{Connection, Env};
use super::seq::Seq;

/// Packets that get through nearly everywhere (RFC 8899 5.1.2, `BASE_PLPMTU`), and then those that
/// every IPv4 host must take (RFC 9293 3.7.1).
const SMALL_MTU: u16 = 1_200;
const TINY_MTU: u16 = 576;

/// Timeouts in a row that make us suspicious (Linux's `tcp_retries1`), and again.
const SUSPICIOUS: u8 = 3;
const MORE_SUSPICIOUS: u8 = 5;

/// How long packets stay small before full ones are tried again: first, and after a trial that
/// failed (RFC 8899 5.1.1, `PMTU_RAISE_TIMER`).
const FIRST_TRIAL: u64 = 5_000_000;
const NEXT_TRIAL: u64 = 600_000_000;

/// What a connection thinks of its path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum PathTrust {
    /// Full packets arrive, for all we know.
    #[default]
    Full,
    /// Packets are small until `until`; then `mtu` is tried again.
    Small { mtu: u16, until: u64 },
    /// Full packets are on trial. What lies behind `from` was sent in such.
    Trial { from: Seq },
}

impl Connection {
    /// The retransmission timer has fired: was the segment too big?
    pub(super) fn suspect_black_hole(&mut self, env: &mut Env<'_>) {
        let retries = self.snd.recovery.retries;
        let (mtu, trial) = match self.snd.path_trust {
            PathTrust::Full if retries >= SUSPICIOUS => (SMALL_MTU, FIRST_TRIAL),
            PathTrust::Small { .. } if retries >= MORE_SUSPICIOUS => (TINY_MTU, FIRST_TRIAL),
            PathTrust::Trial { .. } => (SMALL_MTU, NEXT_TRIAL),
            _ => return,
        };
        // What is out must be larger than what will be: otherwise size was not the matter.
        let headers = u32::from(self.snd.mtu).saturating_sub(self.snd.mss);
        let out = self.snd.nxt.since(self.snd.una);
        if mtu >= self.snd.mtu || out + headers <= u32::from(mtu) {
            return;
        }
        let full = match self.snd.path_trust {
            PathTrust::Small { mtu, .. } => mtu,
            PathTrust::Full | PathTrust::Trial { .. } => self.snd.mtu,
        };
        self.snd.path_trust = PathTrust::Small { mtu: full, until: env.now + trial };
        self.lower_mtu(mtu);
        env.counters.tcp_black_holes += 1;
    }

    /// Something was acknowledged.
    pub(super) fn review_path(&mut self, env: &Env<'_>) {
        match self.snd.path_trust {
            PathTrust::Full => {}
            PathTrust::Small { mtu, until } => {
                if env.now >= until {
                    self.snd.path_trust = PathTrust::Trial { from: self.snd.nxt };
                    self.snd.mtu = mtu;
                    self.set_mss();
                }
            }
            PathTrust::Trial { from } => {
                if self.snd.una.at_or_after(from + self.snd.mss) {
                    self.snd.path_trust = PathTrust::Full;
                }
            }
        }
    }

    /// A router has told the path's size: that is what will be tried, if anything.
    pub(super) fn trust_report(&mut self, reported: u16) {
        if let PathTrust::Small { mtu, .. } = &mut self.snd.path_trust {
            *mtu = (*mtu).min(reported);
        }
    }
}
