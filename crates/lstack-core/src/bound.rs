//! Which of our addresses a socket is bound to. TCP and UDP share the rules.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What `bind` asks for: an address and port, and for the IPv6 wildcard whether IPv4 comes with it.
///
/// `0.0.0.0` is every IPv4 address, `::` every address of both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Address and port; port 0 is any that is free.
    pub address: SocketAddr,
    /// `IPV6_V6ONLY`: `::` is every IPv6 address.
    pub v6_only: bool,
}

impl From<SocketAddr> for Binding {
    fn from(address: SocketAddr) -> Self {
        Self { address, v6_only: false }
    }
}

/// The addresses a socket hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BoundTo {
    Address(IpAddr),
    AnyV4,
    AnyV6,
    /// Both families.
    Any,
}

impl BoundTo {
    /// The one address, if it is one.
    pub(crate) fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address),
            Self::AnyV4 | Self::AnyV6 | Self::Any => None,
        }
    }

    /// As `getsockname` shows it.
    pub(crate) fn shown(self) -> IpAddr {
        match self {
            Self::Address(address) => address,
            Self::AnyV4 | Self::Any => Ipv4Addr::UNSPECIFIED.into(),
            Self::AnyV6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Whether some address belongs to both.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::AnyV4, other) | (other, Self::AnyV4) => !other.is_v6(),
            (Self::AnyV6, other) | (other, Self::AnyV6) => other.is_v6(),
            (Self::Address(one), Self::Address(other)) => one == other,
        }
    }

    /// All that hear `address`, the most particular first, as Linux's `compute_score` has it.
    pub(crate) fn hearing(address: IpAddr) -> [Self; 3] {
        let family = if address.is_ipv4() { Self::AnyV4 } else { Self::AnyV6 };
        [Self::Address(address), family, Self::Any]
    }

    fn is_v6(self) -> bool {
        match self {
            Self::Address(address) => address.is_ipv6(),
            Self::AnyV6 => true,
            Self::AnyV4 | Self::Any => false,
        }
    }
}

impl From<Binding> for BoundTo {
    fn from(binding: Binding) -> Self {
        match binding.address.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Self::AnyV4,
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) if binding.v6_only => Self::AnyV6,
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Self::Any,
            address => Self::Address(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Binding, BoundTo};

    #[test]
    fn wildcards_overlap_with_their_own_family_only() {
        let bound = |address: &str, v6_only| {
            BoundTo::from(Binding { address: address.parse().unwrap(), v6_only })
        };
        let (v4, v6) = (bound("192.0.2.1:0", false), bound("[2001:db8::1]:0", false));
        let any_v4 = bound("0.0.0.0:0", false);
        let (any_v6, any) = (bound("[::]:0", true), bound("[::]:0", false));
        for (one, other, overlap) in [
            (v4, v4, true),
            (v4, v6, false),
            (any_v4, v4, true),
            (any_v4, v6, false),
            (any_v4, any_v4, true),
            (any_v4, any_v6, false),
            (any_v6, v6, true),
            (any_v6, v4, false),
            (any_v6, any_v6, true),
            (any, v4, true),
            (any, v6, true),
            (any, any_v4, true),
            (any, any_v6, true),
        ] {
            assert_eq!(one.overlaps(other), overlap, "{one:?} {other:?}");
            assert_eq!(other.overlaps(one), overlap, "{other:?} {one:?}");
        }
    }
}
