//! What is left of a connection that we closed first: enough to answer a repeated FIN, and to tell
//! a new life of the four-tuple from an old one. RFC 9293 3.6, 6191, 1337.
//!
//! A record is 64 bytes at most; the server that closes a million connections a minute keeps a
//! million of them.

use core::net::{IpAddr, Ipv6Addr};

use bitflags::bitflags;

use super::flow::FlowKey;
use super::header::Segment;
use super::ports::{Claim, Class, PortHold};
use super::seq::Seq;
use super::slab::Slab;
use super::types::Reuse;
use crate::bound::BoundTo;

/// Most records; the oldest make room for new ones. 64 MB of them.
const RECORDS_MAX: usize = 1 << 20;

const NONE: u32 = u32::MAX;

/// A closed connection that waits for old segments to die.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeWait {
    local: [u8; 16],
    remote: [u8; 16],
    local_port: u16,
    remote_port: u16,
    pub snd_nxt: Seq,
    pub rcv_nxt: Seq,
    /// The peer's last timestamp.
    timestamp: u32,
    /// Milliseconds, wrapping.
    expires: u32,
    older: u32,
    newer: u32,
    /// Window of our last segment, as on the wire.
    pub window: u16,
    has_timestamps: bool,
    port: HeldPort,
}

bitflags! {
    /// The claim on the local port, without the address. Bits: with `bool`s a record would be over
    /// 64 bytes.
    #[derive(Clone, Copy, Debug)]
    struct HeldPort: u8 {
        /// Every address, of the connection's family unless `BOTH`.
        const WILDCARD = 1;
        const AUTO = 2;
        const REUSE_ADDRESS = 4;
        const REUSE_PORT = 8;
        /// Every address of both families.
        const BOTH = 16;
    }
}

impl HeldPort {
    fn of(hold: Option<&PortHold>) -> Self {
        let Some(PortHold { claim: Claim { addr, reuse, class }, .. }) = hold else {
            return Self::empty();
        };
        let mut held = Self::empty();
        held.set(Self::WILDCARD, addr.address().is_none());
        held.set(Self::BOTH, *addr == BoundTo::Any);
        held.set(Self::AUTO, *class == Class::Auto);
        held.set(Self::REUSE_ADDRESS, reuse.address);
        held.set(Self::REUSE_PORT, reuse.port);
        held
    }
}

/// What a record is made of.
pub(super) struct Ended {
    pub key: FlowKey,
    pub snd_nxt: Seq,
    pub rcv_nxt: Seq,
    pub timestamp: Option<u32>,
    pub window: u16,
    pub hold: Option<PortHold>,
}

/// All records, and their order: all live equally long.
#[derive(Debug)]
pub(super) struct TimeWaits {
    records: Slab<TimeWait>,
    oldest: u32,
    newest: u32,
    life: u32,
}

impl TimeWait {
    pub(super) fn key(&self) -> FlowKey {
        FlowKey {
            local: Ipv6Addr::from(self.local).to_canonical(),
            remote: Ipv6Addr::from(self.remote).to_canonical(),
            local_port: self.local_port,
            remote_port: self.remote_port,
        }
    }

    pub(super) fn is(&self, key: &FlowKey) -> bool {
        self.local_port == key.local_port
            && self.remote_port == key.remote_port
            && self.local == packed(key.local)
            && self.remote == packed(key.remote)
    }

    /// The claim on the port that goes with the record.
    pub(super) fn hold(&self) -> PortHold {
        let held = self.port;
        let local = Ipv6Addr::from(self.local).to_canonical();
        let [address, family, both] = BoundTo::hearing(local);
        PortHold {
            port: self.local_port,
            claim: Claim {
                addr: if held.contains(HeldPort::BOTH) {
                    both
                } else if held.contains(HeldPort::WILDCARD) {
                    family
                } else {
                    address
                },
                reuse: Reuse {
                    address: held.contains(HeldPort::REUSE_ADDRESS),
                    port: held.contains(HeldPort::REUSE_PORT),
                },
                class: if held.contains(HeldPort::AUTO) { Class::Auto } else { Class::Bound },
            },
        }
    }

    /// RFC 6191 section 2, RFC 9293 3.10.7.4: a SYN that cannot be an old one starts a new life.
    pub(super) fn accepts_syn(&self, segment: &Segment<'_>) -> bool {
        match (self.has_timestamps, segment.options.timestamps) {
            (true, Some(timestamps)) => {
                let ahead = timestamps.value.wrapping_sub(self.timestamp).cast_signed();
                ahead > 0 || (ahead == 0 && segment.seq.after(self.rcv_nxt))
            }
            _ => segment.seq.after(self.rcv_nxt),
        }
    }

    /// Whether we may start a new life ourselves: timestamps tell it apart, and ours has moved.
    pub(super) fn may_be_reused(&self, now: u64, life: u32) -> bool {
        let entered = self.expires.wrapping_sub(life);
        self.has_timestamps && millis(now).wrapping_sub(entered) > 1_000
    }

    /// First sequence number of the next life: beyond all that was sent in this one.
    pub(super) fn next_life(&self) -> Seq {
        self.snd_nxt + 65_537
    }

    /// The echo for an answer.
    pub(super) fn timestamp(&self) -> Option<u32> {
        self.has_timestamps.then_some(self.timestamp)
    }
}

impl TimeWaits {
    /// `life` in microseconds.
    pub(super) fn new(life: u64) -> Self {
        Self {
            records: Slab::new(),
            oldest: NONE,
            newest: NONE,
            life: u32::try_from(life / 1_000).unwrap_or(u32::MAX / 2),
        }
    }

    pub(super) fn life(&self) -> u32 {
        self.life
    }

    pub(super) fn is_full(&self) -> bool {
        self.records.len() >= RECORDS_MAX
    }

    pub(super) fn get(&self, index: u32) -> Option<&TimeWait> {
        self.records.get(index)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &TimeWait)> {
        self.records.iter()
    }

    /// The record that ends first.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub(super) fn insert(&mut self, now: u64, ended: &Ended) -> u32 {
        let index = self.records.insert(TimeWait {
            local: packed(ended.key.local),
            remote: packed(ended.key.remote),
            local_port: ended.key.local_port,
            remote_port: ended.key.remote_port,
            snd_nxt: ended.snd_nxt,
            rcv_nxt: ended.rcv_nxt,
            timestamp: ended.timestamp.unwrap_or(0),
            expires: 0,
            older: NONE,
            newer: NONE,
            window: ended.window,
            has_timestamps: ended.timestamp.is_some(),
            port: HeldPort::of(ended.hold.as_ref()),
        });
        self.append(now, index);
        index
    }

    /// Starts the wait again.
    pub(super) fn restart(&mut self, now: u64, index: u32) {
        self.detach(index);
        self.append(now, index);
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<TimeWait> {
        self.detach(index);
        self.records.remove(index)
    }

    /// A record whose time is over.
    pub(super) fn due(&self, now: u64) -> Option<u32> {
        let record = self.records.get(self.oldest)?;
        (millis(now).wrapping_sub(record.expires).cast_signed() >= 0).then_some(self.oldest)
    }

    /// When [`Self::due`] has something next, in microseconds.
    pub(super) fn next_deadline(&self, now: u64) -> Option<u64> {
        let record = self.records.get(self.oldest)?;
        let wait = record.expires.wrapping_sub(millis(now)).cast_signed().max(0);
        // Whole milliseconds: the wait is rounded up.
        Some((now / 1_000 + u64::from(wait.unsigned_abs())) * 1_000)
    }

    fn append(&mut self, now: u64, index: u32) {
        let newest = self.newest;
        if let Some(record) = self.records.get_mut(index) {
            record.expires = millis(now).wrapping_add(self.life).wrapping_add(1);
            record.older = newest;
            record.newer = NONE;
        }
        match self.records.get_mut(newest) {
            Some(record) => record.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
    }

    fn detach(&mut self, index: u32) {
        let Some(&TimeWait { older, newer, .. }) = self.records.get(index) else { return };
        match self.records.get_mut(older) {
            Some(record) => record.newer = newer,
            None => self.oldest = newer,
        }
        match self.records.get_mut(newer) {
            Some(record) => record.older = older,
            None => self.newest = older,
        }
    }
}

fn packed(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn millis(micros: u64) -> u32 {
    (micros / 1_000) as u32
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::{Ended, FlowKey, Seq, TimeWait, TimeWaits};

    fn ended(port: u16) -> Ended {
        Ended {
            key: FlowKey {
                local: IpAddr::from([10, 0, 0, 1]),
                remote: IpAddr::from([10, 0, 0, 2]),
                local_port: 80,
                remote_port: port,
            },
            snd_nxt: Seq(1),
            rcv_nxt: Seq(2),
            timestamp: None,
            window: 0,
            hold: None,
        }
    }

    #[test]
    fn a_record_is_small() {
        assert!(size_of::<TimeWait>() <= 64);
        assert!(size_of::<Option<TimeWait>>() <= 64);
    }

    #[test]
    fn records_end_in_order_and_a_restarted_one_last() {
        let mut waits = TimeWaits::new(60_000_000);
        let now = 5_000_000_000_000;
        let indices: Vec<u32> =
            (1..=3).map(|i| waits.insert(now + u64::from(i), &ended(i))).collect();
        assert_eq!(waits.get(indices[1]).map(TimeWait::key), Some(ended(2).key));
        waits.restart(now + 1_000_000, indices[0]);
        assert_eq!(waits.due(now + 59_000_000), None);
        let deadline = waits.next_deadline(now).expect("there are records");
        assert!((now + 60_000_000..now + 60_010_000).contains(&deadline));
        for expected in [indices[1], indices[2]] {
            let due = waits.due(deadline + 5_000).expect("its time is over");
            assert_eq!(due, expected);
            waits.remove(due);
        }
        assert_eq!(waits.due(deadline + 5_000), None);
        assert_eq!(waits.due(deadline + 1_005_000), Some(indices[0]));
        waits.remove(indices[0]);
        assert_eq!(waits.next_deadline(now), None);
    }
}
