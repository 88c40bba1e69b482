//! Our addresses and the way to all others.

use core::net::{IpAddr, Ipv4Addr};

use crate::config::Ipv4Config;

/// Addresses and routes of the interface: one subnet and one default gateway per family.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    v4: Option<V4>,
}

/// Where an IPv4 packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// Back to this stack.
    Local,
    /// To every host of the link.
    Broadcast,
    /// To a group.
    Multicast,
    /// To this host of the link: the destination itself, or the gateway.
    Neighbor(Ipv4Addr),
}

/// What a destination address of a received packet means to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Our address.
    Own,
    /// A broadcast we are part of.
    Broadcast,
    /// A group every host is part of.
    AllHosts,
    /// A group we did not join.
    OtherGroup,
    /// Somebody else.
    Other,
}

#[derive(Clone, Copy, Debug)]
struct V4 {
    address: Ipv4Addr,
    mask: u32,
    /// The subnet's broadcast address; `None` where RFC 3021 leaves none.
    broadcast: Option<Ipv4Addr>,
    gateway: Option<Ipv4Addr>,
}

impl Routes {
    pub(crate) fn new(config: Option<Ipv4Config>) -> Self {
        Self { v4: config.map(V4::new) }
    }

    /// Our IPv4 address.
    pub(crate) fn address_v4(&self) -> Option<Ipv4Addr> {
        self.v4.map(|v4| v4.address)
    }

    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.address_v4() == Some(address),
            IpAddr::V6(_) => false,
        }
    }

    /// The address packets to `remote` leave from.
    pub(crate) fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let IpAddr::V4(remote) = remote else { return None };
        self.next_hop_v4(remote)?;
        self.address_v4().map(IpAddr::V4)
    }

    /// Whether packets to `address` reach every host of the link.
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else { return false };
        self.v4.is_some_and(|v4| v4.is_broadcast(address))
    }

    /// Whether `address` is a host of our link, so that ARP may speak of it.
    pub(crate) fn is_on_link(&self, address: Ipv4Addr) -> bool {
        self.v4.is_some_and(|v4| v4.is_on_link(address) || v4.gateway == Some(address))
    }

    /// Where a packet to `dst` goes, `None` without a route.
    pub(crate) fn next_hop_v4(&self, dst: Ipv4Addr) -> Option<NextHop> {
        let v4 = self.v4.as_ref()?;
        if dst == v4.address {
            return Some(NextHop::Local);
        }
        if v4.is_on_link(dst) && Some(dst) != v4.broadcast {
            return Some(NextHop::Neighbor(dst));
        }
        if v4.is_broadcast(dst) {
            return Some(NextHop::Broadcast);
        }
        if dst.is_multicast() {
            return Some(NextHop::Multicast);
        }
        // 0/8 and 127/8 never leave a host (RFC 1122 section 3.2.1.3).
        if dst.octets()[0] == 0 || dst.is_loopback() {
            return None;
        }
        v4.gateway.map(NextHop::Neighbor)
    }

    /// What `dst` of a received packet means to us.
    pub(crate) fn classify_v4(&self, dst: Ipv4Addr) -> Destination {
        match self.v4.as_ref() {
            Some(v4) if dst == v4.address => Destination::Own,
            Some(v4) if v4.is_broadcast(dst) => Destination::Broadcast,
            _ if dst == ALL_HOSTS => Destination::AllHosts,
            _ if dst.is_multicast() => Destination::OtherGroup,
            _ => Destination::Other,
        }
    }

    /// Whether a packet from the wire may come from `src`. Nobody else has our address; the
    /// unspecified address is DHCP's, to broadcasts only.
    pub(crate) fn is_valid_source_v4(&self, src: Ipv4Addr, dst: Destination) -> bool {
        if src.is_unspecified() {
            return dst == Destination::Broadcast;
        }
        let unusable = src.octets()[0] == 0 || src.is_loopback() || src.is_multicast();
        !unusable && self.v4.is_some_and(|v4| src != v4.address && !v4.is_broadcast(src))
    }
}

impl V4 {
    fn new(config: Ipv4Config) -> Self {
        let prefix_len = u32::from(config.prefix_len.min(32));
        let mask = u32::MAX.checked_shl(32 - prefix_len).unwrap_or(0);
        let broadcast =
            (prefix_len <= 30).then(|| Ipv4Addr::from_bits(config.address.to_bits() | !mask));
        Self { address: config.address, mask, broadcast, gateway: config.gateway }
    }

    fn is_on_link(&self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.address.to_bits()) & self.mask == 0
    }

    fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        address.is_broadcast() || self.broadcast == Some(address)
    }
}

/// Every host of a link that speaks multicast, RFC 1112.
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::{Destination, NextHop, Routes};
    use crate::config::Ipv4Config;

    fn routes(prefix_len: u8, gateway: Option<Ipv4Addr>) -> Routes {
        Routes::new(Some(Ipv4Config { address: ip(5), prefix_len, gateway }))
    }

    fn ip(host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 1, 2, host)
    }

    #[test]
    fn subnet_is_on_link_and_the_rest_goes_to_the_gateway() {
        let routes = routes(24, Some(ip(1)));
        assert_eq!(routes.next_hop_v4(ip(9)), Some(NextHop::Neighbor(ip(9))));
        let far = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(routes.next_hop_v4(far), Some(NextHop::Neighbor(ip(1))));
        assert_eq!(routes.next_hop_v4(ip(5)), Some(NextHop::Local));
        assert_eq!(routes.next_hop_v4(ip(255)), Some(NextHop::Broadcast));
        assert_eq!(routes.next_hop_v4(Ipv4Addr::BROADCAST), Some(NextHop::Broadcast));
        assert_eq!(routes.next_hop_v4(Ipv4Addr::new(239, 1, 1, 1)), Some(NextHop::Multicast));
        assert_eq!(routes.next_hop_v4(Ipv4Addr::LOCALHOST), None);
        assert_eq!(routes.next_hop_v4(Ipv4Addr::UNSPECIFIED), None);
    }

    #[test]
    fn without_gateway_only_the_subnet_is_reachable() {
        let routes = routes(24, None);
        assert_eq!(routes.next_hop_v4(Ipv4Addr::new(10, 1, 3, 1)), None);
    }

    #[test]
    fn small_and_whole_prefixes_work() {
        assert_eq!(routes(31, None).next_hop_v4(ip(4)), Some(NextHop::Neighbor(ip(4))));
        assert_eq!(routes(32, Some(ip(1))).next_hop_v4(ip(6)), Some(NextHop::Neighbor(ip(1))));
        let any = Ipv4Addr::new(8, 8, 8, 8);
        assert_eq!(routes(0, None).next_hop_v4(any), Some(NextHop::Neighbor(any)));
    }

    #[test]
    fn impossible_sources_are_refused() {
        let routes = routes(24, None);
        for bad in [ip(5), ip(255), Ipv4Addr::BROADCAST, Ipv4Addr::LOCALHOST, [224, 0, 0, 1].into()]
        {
            assert!(!routes.is_valid_source_v4(bad, Destination::Own), "{bad}");
        }
        assert!(!routes.is_valid_source_v4(Ipv4Addr::UNSPECIFIED, Destination::Own));
        assert!(routes.is_valid_source_v4(Ipv4Addr::UNSPECIFIED, Destination::Broadcast));
        assert!(routes.is_valid_source_v4(ip(7), Destination::Own));
    }
}
