//! Local ports: who holds one, who listens on it, which are free. Rules as Linux's
//! `inet_csk_bind_conflict` and `__inet_hash_connect`; free ports are picked as RFC 6056 wants.

use core::net::IpAddr;
use std::collections::HashMap;

use super::types::Reuse;
use crate::bound::BoundTo;
use crate::config::Secret;
use crate::random::{KeyedHash, Random};

/// Linux's `ip_local_port_range`.
const FIRST_EPHEMERAL: u16 = 32_768;
const EPHEMERAL_COUNT: u16 = 28_232;

/// A claim on a port. Equal claims are counted, not listed: a server's port has one claim per
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub addr: BoundTo,
    pub reuse: Reuse,
    pub class: Class,
}

/// How a claim came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// `connect` picked the port: others may have it too, towards other peers.
    Auto,
    /// `bind`, or a connection accepted from a listener.
    Bound,
    Listening,
}

/// A claim and its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortHold {
    pub port: u16,
    pub claim: Claim,
}

#[derive(Debug, Default)]
struct Port {
    claims: Vec<(Claim, u32)>,
    /// Address and socket slot.
    listeners: Vec<(BoundTo, u32)>,
}

/// All local ports in use.
#[derive(Debug)]
pub(super) struct Ports {
    ports: HashMap<u16, Port, KeyedHash>,
    random: Random,
}

impl Claim {
    fn conflicts_with(&self, other: &Claim) -> bool {
        let shared_address =
            self.reuse.address && other.reuse.address && other.class != Class::Listening;
        let shared_port = self.reuse.port && other.reuse.port;
        self.addr.overlaps(other.addr) && !shared_address && !shared_port
    }
}

impl Ports {
    pub(super) fn new(secret: &Secret) -> Self {
        Self {
            ports: HashMap::with_hasher(KeyedHash::new(secret, "tcp port table")),
            random: Random::new(secret, "tcp ephemeral ports"),
        }
    }

    /// Whether someone else's claim forbids this one.
    pub(super) fn is_taken(&self, hold: &PortHold) -> bool {
        self.ports.get(&hold.port).is_some_and(|port| {
            port.claims.iter().any(|(other, _)| hold.claim.conflicts_with(other))
        })
    }

    pub(super) fn hold(&mut self, hold: &PortHold) {
        let claims = &mut self.ports.entry(hold.port).or_default().claims;
        match claims.iter_mut().find(|(claim, _)| *claim == hold.claim) {
            Some((_, count)) => *count += 1,
            None => claims.push((hold.claim, 1)),
        }
    }

    pub(super) fn release(&mut self, hold: &PortHold) {
        let Some(port) = self.ports.get_mut(&hold.port) else { return };
        if let Some(at) = port.claims.iter().position(|(claim, _)| *claim == hold.claim) {
            port.claims[at].1 -= 1;
            if port.claims[at].1 == 0 {
                port.claims.swap_remove(at);
            }
        }
        if port.claims.is_empty() && port.listeners.is_empty() {
            self.ports.remove(&hold.port);
        }
    }

    pub(super) fn add_listener(&mut self, port: u16, addr: BoundTo, slot: u32) {
        self.ports.entry(port).or_default().listeners.push((addr, slot));
    }

    pub(super) fn remove_listener(&mut self, port: u16, slot: u32) {
        if let Some(entry) = self.ports.get_mut(&port) {
            entry.listeners.retain(|&(_, other)| other != slot);
        }
    }

    /// The listener for a connection to `addr`: one bound to the address comes before those of
    /// every address of its family, and those before all others; several alike (`SO_REUSEPORT`) share by the flow's hash.
    pub(super) fn listener(&self, addr: IpAddr, port: u16, hash: u32) -> Option<u32> {
        let listeners = &self.ports.get(&port)?.listeners;
        for wanted in BoundTo::hearing(addr) {
            let alike = || listeners.iter().filter(|(bound, _)| *bound == wanted);
            let count = alike().count();
            if count > 0 {
                return alike().nth(hash as usize % count).map(|&(_, slot)| slot);
            }
        }
        None
    }

    /// A random port that nobody's claim forbids.
    pub(super) fn pick_to_bind(&mut self, claim: Claim) -> Option<PortHold> {
        self.ephemeral().map(|port| PortHold { port, claim }).find(|hold| !self.is_taken(hold))
    }

    /// A random port for a connection; `is_free` says whether the four-tuple is.
    pub(super) fn pick_to_connect(&mut self, is_free: impl Fn(u16) -> bool) -> Option<u16> {
        let shareable = |port: &u16| {
            self.ports.get(port).is_none_or(|port| {
                port.listeners.is_empty()
                    && port.claims.iter().all(|(claim, _)| claim.class == Class::Auto)
            })
        };
        let mut candidates = Self::ephemeral_from(&mut self.random);
        candidates.find(|port| shareable(port) && is_free(*port))
    }

    fn ephemeral(&mut self) -> impl Iterator<Item = u16> + use<> {
        Self::ephemeral_from(&mut self.random)
    }

    /// Every ephemeral port once, from a random one on.
    fn ephemeral_from(random: &mut Random) -> impl Iterator<Item = u16> + use<> {
        let start = random.below(u32::from(EPHEMERAL_COUNT)) as u16;
        (0..EPHEMERAL_COUNT).map(move |step| {
            let offset = (u32::from(start) + u32::from(step)) % u32::from(EPHEMERAL_COUNT);
            FIRST_EPHEMERAL + offset as u16
        })
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::{BoundTo, Claim, Class, PortHold, Ports, Reuse};
    use crate::config::Secret;

    const ADDRESS: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));

    fn hold(addr: BoundTo, reuse_address: bool, reuse_port: bool, class: Class) -> PortHold {
        let reuse = Reuse { address: reuse_address, port: reuse_port };
        PortHold { port: 80, claim: Claim { addr, reuse, class } }
    }

    #[test]
    fn bind_conflicts_are_linuxs() {
        let listening = hold(BoundTo::Any, true, false, Class::Listening);
        let bound = hold(BoundTo::Address(ADDRESS), true, false, Class::Bound);
        let plain = hold(BoundTo::Address(ADDRESS), false, false, Class::Bound);
        let other = BoundTo::Address(IpAddr::from([10, 0, 0, 2]));
        let other = hold(other, false, false, Class::Bound);
        let shared = hold(BoundTo::Any, false, true, Class::Listening);
        for (held, wanted, taken) in [
            (listening, bound, true),
            (bound, listening, false),
            (bound, bound, false),
            (bound, plain, true),
            (plain, bound, true),
            (plain, other, false),
            (shared, shared, false),
            (shared, plain, true),
        ] {
            let mut ports = Ports::new(&Secret([0; 32]));
            ports.hold(&held);
            assert_eq!(ports.is_taken(&wanted), taken, "{held:?} {wanted:?}");
            ports.release(&held);
            assert!(!ports.is_taken(&wanted) && ports.ports.is_empty());
        }
    }

    #[test]
    fn a_specific_listener_wins_and_equal_ones_share() {
        let mut ports = Ports::new(&Secret([0; 32]));
        ports.add_listener(80, BoundTo::Any, 1);
        ports.add_listener(80, BoundTo::Any, 2);
        assert_eq!(ports.listener(ADDRESS, 80, 4), Some(1));
        assert_eq!(ports.listener(ADDRESS, 80, 5), Some(2));
        ports.add_listener(80, BoundTo::Address(ADDRESS), 3);
        assert_eq!(ports.listener(ADDRESS, 80, 5), Some(3));
        ports.remove_listener(80, 3);
        assert_eq!(ports.listener(ADDRESS, 80, 5), Some(2));
        assert_eq!(ports.listener(ADDRESS, 81, 5), None);
        ports.add_listener(80, BoundTo::AnyV4, 4);
        ports.add_listener(81, BoundTo::AnyV6, 5);
        assert_eq!(ports.listener(ADDRESS, 80, 5), Some(4));
        assert_eq!(ports.listener(ADDRESS, 81, 5), None);
        let v6 = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]);
        assert_eq!(ports.listener(v6, 80, 5), Some(2));
        assert_eq!(ports.listener(v6, 81, 5), Some(5));
    }

    #[test]
    fn every_free_port_is_found_and_connections_share_ports_with_each_other_only() {
        let mut ports = Ports::new(&Secret([0; 32]));
        assert_eq!(ports.pick_to_connect(|port| port == 40_000), Some(40_000));
        assert_eq!(ports.pick_to_connect(|_| false), None);
        let addr = BoundTo::Address(ADDRESS);
        let auto = Claim { addr, reuse: Reuse::default(), class: Class::Auto };
        ports.hold(&PortHold { port: 40_000, claim: auto });
        assert_eq!(ports.pick_to_connect(|port| port == 40_000), Some(40_000));
        let bound = Claim { class: Class::Bound, ..auto };
        ports.hold(&PortHold { port: 40_001, claim: bound });
        assert_eq!(ports.pick_to_connect(|port| port == 40_001), None);
    }
}
