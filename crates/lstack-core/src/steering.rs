//! Which of several stacks of a process a packet belongs to. Pure functions.
//!
//! The driver of a device calls [`steer`] for each received frame when the device does not spread
//! flows itself; the transports call [`flow_owner`] and [`udp_owner`] to pick ports whose traffic
//! comes back to the stack that picked them.

use core::hash::Hasher;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use siphasher::sip::SipHasher13;

use crate::ip::wire;

/// Which stack of `count` a received frame belongs to; `None`: every stack gets a copy (ARP).
///
/// TCP goes by [`flow_owner`], UDP by [`udp_owner`], an ICMP error by the flow it quotes;
/// fragments and all the rest go to stack 0. Reads a few header bytes; never panics, whatever the
/// frame holds. `vlan_stripped` says that the device took the tag off; a tag that is still there
/// is skipped.
#[must_use]
pub fn steer(frame: &[u8], vlan_stripped: bool, key: u64, count: u16) -> Option<u16> {
    let Some(mut ethertype) = wire::u16_at(frame, 12) else { return Some(0) };
    let mut offset = wire::ETHERNET_LEN;
    if ethertype == wire::ETHERTYPE_VLAN && !vlan_stripped {
        let Some(inner) = wire::u16_at(frame, 16) else { return Some(0) };
        ethertype = inner;
        offset += wire::VLAN_TAG_LEN;
    }
    match ethertype {
        wire::ETHERTYPE_ARP => None,
        wire::ETHERTYPE_IPV4 => Some(steer_ipv4(&frame[offset..], key, count)),
        _ => Some(0),
    }
}

/// The stack that owns the TCP flow between two ends. The same for both directions, so that the
/// owner of a connection can be computed before its first packet.
#[must_use]
pub fn flow_owner(local: SocketAddr, remote: SocketAddr, key: u64, count: u16) -> u16 {
    if count <= 1 {
        return 0;
    }
    let (first, second) = if local <= remote { (local, remote) } else { (remote, local) };
    let mut hasher = SipHasher13::new_with_keys(key, FLOW_KEY);
    for end in [first, second] {
        match end.ip() {
            IpAddr::V4(ip) => {
                hasher.write_u64(u64::from(ip.to_bits()) << 16 | u64::from(end.port()));
            }
            IpAddr::V6(ip) => {
                hasher.write_u128(ip.to_bits());
                hasher.write_u16(end.port());
            }
        }
    }
    // Multiply and shift instead of a remainder: even for every count.
    let product = (hasher.finish() >> 32) * u64::from(count);
    u16::try_from(product >> 32).expect("below count, which is 16 bits")
}

/// The stack that owns a local UDP port.
#[must_use]
pub fn udp_owner(port: u16, count: u16) -> u16 {
    port.checked_rem(count).unwrap_or(0)
}

/// As [`steer`], for an IPv4 packet.
pub(crate) fn steer_ipv4(packet: &[u8], key: u64, count: u16) -> u16 {
    if count <= 1 {
        return 0;
    }
    let Some(flow) = Ipv4Flow::of(packet) else { return 0 };
    match flow.protocol {
        wire::PROTOCOL_TCP => flow.owner_tcp(key, count),
        wire::PROTOCOL_UDP => udp_owner(flow.dst_port, count),
        wire::PROTOCOL_ICMP => flow.owner_icmp(packet, key, count),
        _ => 0,
    }
}

/// Ends of an IPv4 packet that is not a fragment.
struct Ipv4Flow {
    protocol: u8,
    header_len: usize,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    /// The first four bytes of the transport header; meaningless for protocols without ports.
    src_port: u16,
    dst_port: u16,
}

impl Ipv4Flow {
    fn of(packet: &[u8]) -> Option<Self> {
        let first = *packet.first()?;
        let header_len = usize::from(first & 0x0f) * 4;
        let fragment = wire::u16_at(packet, 6)? & (wire::MORE_FRAGMENTS | wire::OFFSET_MASK);
        if first >> 4 != 4 || header_len < wire::IPV4_LEN || fragment != 0 {
            return None;
        }
        Some(Self {
            protocol: *packet.get(9)?,
            header_len,
            src: wire::ipv4_at(packet, 12)?,
            dst: wire::ipv4_at(packet, 16)?,
            src_port: wire::u16_at(packet, header_len)?,
            dst_port: wire::u16_at(packet, header_len + 2)?,
        })
    }

    fn owner_tcp(&self, key: u64, count: u16) -> u16 {
        let src = SocketAddr::new(self.src.into(), self.src_port);
        let dst = SocketAddr::new(self.dst.into(), self.dst_port);
        flow_owner(dst, src, key, count)
    }

    /// The owner of the flow an ICMP error quotes, 0 if this is none.
    fn owner_icmp(&self, packet: &[u8], key: u64, count: u16) -> u16 {
        if !packet.get(self.header_len).is_some_and(|&kind| wire::is_icmp_error(kind)) {
            return 0;
        }
        let Some(quoted) = packet.get(self.header_len + wire::ICMP_LEN..).and_then(Self::of) else {
            return 0;
        };
        // The quoted packet is one of ours: its source is the local end.
        match quoted.protocol {
            wire::PROTOCOL_TCP => quoted.owner_tcp(key, count),
            wire::PROTOCOL_UDP => udp_owner(quoted.src_port, count),
            _ => 0,
        }
    }
}

/// Second half of the hash key; the first half is the configuration's.
const FLOW_KEY: u64 = 0x6c73_7461_636b_666c;
