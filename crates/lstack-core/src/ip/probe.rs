//! Asking whether an address is free before it is used: ARP probes, RFC 5227 section 2.1.1.
//!
//! Pure functions for whoever starts a stack; the stack itself does not exist yet.

use core::net::Ipv4Addr;

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};

use super::arp::ARP_LEN;
use super::ethernet::BROADCAST;
use super::wire;

/// A frame that asks who has `address` without claiming it: the sender's protocol address is
/// unspecified, so nobody learns anything from it.
#[must_use]
pub fn address_probe(mac: [u8; 6], vlan: Option<u16>, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(wire::ETHERNET_LEN + wire::VLAN_TAG_LEN + ARP_LEN);
    frame.extend_from_slice(&BROADCAST);
    frame.extend_from_slice(&mac);
    if let Some(vlan) = vlan {
        frame.extend_from_slice(&wire::ETHERTYPE_VLAN.to_be_bytes());
        frame.extend_from_slice(&vlan.to_be_bytes());
    }
    frame.extend_from_slice(&wire::ETHERTYPE_ARP.to_be_bytes());
    let header_len = frame.len();
    frame.resize(header_len + ARP_LEN, 0);
    let repr = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr: Ipv4Addr::UNSPECIFIED,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: address,
    };
    repr.emit(&mut ArpPacket::new_unchecked(&mut frame[header_len..]));
    frame
}

/// The hardware address of a host that has `address`, or is asking for it at the same time, if
/// `frame` says so. `mac` is our own.
#[must_use]
pub fn contested_by(frame: &[u8], mac: [u8; 6], address: Ipv4Addr) -> Option<[u8; 6]> {
    let mut offset = wire::ETHERNET_LEN;
    let mut ethertype = wire::u16_at(frame, 12)?;
    if ethertype == wire::ETHERTYPE_VLAN {
        ethertype = wire::u16_at(frame, 16)?;
        offset += wire::VLAN_TAG_LEN;
    }
    if ethertype != wire::ETHERTYPE_ARP {
        return None;
    }
    let packet = ArpPacket::new_checked(frame.get(offset..)?).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(sender),
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let has_it = source_protocol_addr == address;
    let probes_for_it = operation == ArpOperation::Request
        && source_protocol_addr.is_unspecified()
        && target_protocol_addr == address;
    (sender != mac && (has_it || probes_for_it)).then_some(sender)
}

#[cfg(test)]
mod tests {
    use super::{address_probe, contested_by};

    const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];

    #[test]
    fn somebody_elses_probe_contests_and_our_own_does_not() {
        let address = "192.0.2.1".parse().unwrap();
        for vlan in [None, Some(7)] {
            let theirs = address_probe(THEIRS, vlan, address);
            assert_eq!(contested_by(&theirs, OURS, address), Some(THEIRS));
            assert_eq!(contested_by(&theirs, OURS, "192.0.2.9".parse().unwrap()), None);
            assert_eq!(contested_by(&address_probe(OURS, vlan, address), OURS, address), None);
        }
    }

    #[test]
    fn frames_of_any_length_are_looked_at_safely() {
        let address = "192.0.2.1".parse().unwrap();
        let whole = address_probe(THEIRS, None, address);
        for len in 0..whole.len() {
            assert_eq!(contested_by(&whole[..len], OURS, address), None, "{len} bytes");
        }
    }
}
