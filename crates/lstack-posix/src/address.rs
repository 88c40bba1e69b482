//! Socket addresses: raw `sockaddr` bytes in and out.
//!
//! On an `AF_INET6` socket the stack's IPv4 world appears as mapped addresses (RFC 4291 2.5.5.2),
//! as on a dual-stack Linux socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::description::Family;
use crate::errno::Errno;

/// Reads an address for a socket of `family`. Mapped IPv4 addresses come out as IPv4.
///
/// # Errors
///
/// `EINVAL` when it is too short, `EAFNOSUPPORT` for another family (ip(7)).
pub(crate) fn decode(bytes: &[u8], family: Family) -> Result<SocketAddr, Errno> {
    let Some(named) = family_of(bytes) else { return Err(Errno(libc::EINVAL)) };
    match (family, named) {
        (Family::V4, libc::AF_INET) if bytes.len() >= V4_LEN => Ok(decode_v4(bytes)),
        (Family::V6, libc::AF_INET6) if bytes.len() >= V6_LEN_MIN => Ok(decode_v6(bytes)),
        (Family::V4, libc::AF_INET) | (Family::V6, libc::AF_INET6) => Err(Errno(libc::EINVAL)),
        (Family::V4, _) if bytes.len() < V4_LEN => Err(Errno(libc::EINVAL)),
        (Family::V6, _) if bytes.len() < V6_LEN_MIN => Err(Errno(libc::EINVAL)),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Whether the address says `AF_UNSPEC`: `connect` dissolves the association.
pub(crate) fn is_unspecified(bytes: &[u8]) -> bool {
    family_of(bytes) == Some(libc::AF_UNSPEC)
}

/// Writes `addr` as a socket of `family` shows it: at most `out.len()` bytes. Returns the full
/// length, which may be more.
pub(crate) fn encode(addr: SocketAddr, family: Family, out: &mut [u8]) -> usize {
    let mut bytes = [0; V6_LEN];
    let len = match family {
        Family::V4 => {
            let ip = match addr.ip() {
                IpAddr::V4(ip) => ip,
                IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
            };
            put_family(&mut bytes, libc::AF_INET);
            bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&ip.octets());
            V4_LEN
        }
        Family::V6 => {
            put_family(&mut bytes, libc::AF_INET6);
            bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
            bytes[8..24].copy_from_slice(&as_v6(addr.ip()).octets());
            V6_LEN
        }
    };
    let written = len.min(out.len());
    out[..written].copy_from_slice(&bytes[..written]);
    len
}

/// The address as bytes of full length.
pub(crate) fn encoded(addr: SocketAddr, family: Family) -> ([u8; V6_LEN], usize) {
    let mut bytes = [0; V6_LEN];
    let len = encode(addr, family, &mut bytes);
    (bytes, len)
}

/// The wildcard of a family, port 0.
pub(crate) fn unspecified(family: Family) -> SocketAddr {
    match family {
        Family::V4 => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        Family::V6 => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}

/// `sizeof(struct sockaddr_in)`.
const V4_LEN: usize = 16;
/// `sizeof(struct sockaddr_in6)`.
pub(crate) const V6_LEN: usize = 28;
/// Linux takes an address without the scope id (`SIN6_LEN_RFC2133`).
const V6_LEN_MIN: usize = 24;

fn family_of(bytes: &[u8]) -> Option<i32> {
    let raw = bytes.first_chunk::<2>()?;
    Some(i32::from(u16::from_ne_bytes(*raw)))
}

fn put_family(bytes: &mut [u8], family: i32) {
    let family = u16::try_from(family).expect("address families are small numbers");
    bytes[..2].copy_from_slice(&family.to_ne_bytes());
}

fn decode_v4(bytes: &[u8]) -> SocketAddr {
    let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
    SocketAddr::new(ip.into(), u16::from_be_bytes([bytes[2], bytes[3]]))
}

fn decode_v6(bytes: &[u8]) -> SocketAddr {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[8..24]);
    let ip = Ipv6Addr::from(octets);
    if let Some(mapped) = ip.to_ipv4_mapped() {
        return SocketAddr::new(mapped.into(), port);
    }
    let scope =
        bytes.get(24..28).map_or(0, |raw| u32::from_ne_bytes([raw[0], raw[1], raw[2], raw[3]]));
    SocketAddrV6::new(ip, port, 0, scope).into()
}

/// The unspecified address stays unspecified: `::`, not `::ffff:0.0.0.0`.
fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V6(ip) => ip,
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv6Addr::UNSPECIFIED,
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, proptest};

    use super::{V6_LEN, decode, encode, encoded, is_unspecified};
    use crate::description::Family;
    use crate::errno::Errno;

    #[test]
    fn a_mapped_address_is_ipv4_inside_and_ipv6_outside() {
        let shown = "[::ffff:192.0.2.7]:80".parse().unwrap();
        let (bytes, len) = encoded(shown, Family::V6);
        assert_eq!(decode(&bytes[..len], Family::V6).unwrap(), "192.0.2.7:80".parse().unwrap());
        let (again, _) = encoded("192.0.2.7:80".parse().unwrap(), Family::V6);
        assert_eq!(again, bytes);
    }

    #[test]
    fn a_short_buffer_gets_a_part_and_the_full_length() {
        let mut out = [0xff; 4];
        assert_eq!(encode("1.2.3.4:5".parse().unwrap(), Family::V4, &mut out), 16);
        assert_eq!(&out[2..], [0, 5]);
    }

    #[test]
    fn wrong_families_and_lengths_fail_as_on_linux() {
        let (v6, len) = encoded("[::1]:1".parse().unwrap(), Family::V6);
        assert_eq!(decode(&v6[..len], Family::V4), Err(Errno(libc::EAFNOSUPPORT)));
        assert_eq!(decode(&v6[..20], Family::V6), Err(Errno(libc::EINVAL)));
        assert_eq!(decode(&[2], Family::V4), Err(Errno(libc::EINVAL)));
        assert!(is_unspecified(&[0, 0]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn v4_addresses_survive_a_round_trip(ip in any::<[u8; 4]>(), port in any::<u16>()) {
            let addr = std::net::SocketAddr::new(ip.into(), port);
            let (bytes, len) = encoded(addr, Family::V4);
            assert_eq!(decode(&bytes[..len], Family::V4), Ok(addr));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..V6_LEN + 4)) {
            let _ = decode(&bytes, Family::V4);
            let _ = decode(&bytes, Family::V6);
        }
    }
}
