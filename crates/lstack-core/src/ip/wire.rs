//! Numbers and field access of the formats the fast path reads and writes: Ethernet II, 802.1Q,
//! IPv4 (RFC 791), ICMP (RFC 792).

use core::net::Ipv4Addr;

pub(crate) const ETHERNET_LEN: usize = 14;
pub(crate) const VLAN_TAG_LEN: usize = 4;
pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const ICMP_LEN: usize = 8;

/// Longest IPv4 header: 15 words.
pub(crate) const IPV4_LEN_MAX: usize = 60;
/// Longest IPv4 packet.
pub(crate) const IPV4_TOTAL_MAX: usize = 65_535;

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
pub(crate) const ETHERTYPE_VLAN: u16 = 0x8100;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;

pub(crate) const PROTOCOL_ICMP: u8 = 1;
pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const PROTOCOL_UDP: u8 = 17;

/// Flags and offset word of the IPv4 header.
pub(crate) const DONT_FRAGMENT: u16 = 0x4000;
pub(crate) const MORE_FRAGMENTS: u16 = 0x2000;
/// Fragment offset, in units of eight bytes.
pub(crate) const OFFSET_MASK: u16 = 0x1fff;

pub(crate) const ICMP_ECHO_REPLY: u8 = 0;
pub(crate) const ICMP_UNREACHABLE: u8 = 3;
pub(crate) const ICMP_SOURCE_QUENCH: u8 = 4;
pub(crate) const ICMP_REDIRECT: u8 = 5;
pub(crate) const ICMP_ECHO_REQUEST: u8 = 8;
pub(crate) const ICMP_TIME_EXCEEDED: u8 = 11;
pub(crate) const ICMP_PARAMETER_PROBLEM: u8 = 12;

/// Whether ICMP messages of this type quote a packet.
pub(crate) fn is_icmp_error(kind: u8) -> bool {
    matches!(
        kind,
        ICMP_UNREACHABLE
            | ICMP_SOURCE_QUENCH
            | ICMP_REDIRECT
            | ICMP_TIME_EXCEEDED
            | ICMP_PARAMETER_PROBLEM
    )
}

/// The big-endian word at `offset`.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

/// The address at `offset`.
pub(crate) fn ipv4_at(bytes: &[u8], offset: usize) -> Option<Ipv4Addr> {
    bytes.get(offset..)?.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets))
}
