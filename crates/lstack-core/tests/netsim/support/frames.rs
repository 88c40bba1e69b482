//! Frames made by hand, with smoltcp's formats: a second opinion on ours.

use std::net::Ipv4Addr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv4Packet, Icmpv4Repr, IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};

use super::Side;

pub const BROADCAST: [u8; 6] = [0xff; 6];
/// A third host on the link of A and B.
pub const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);
pub const STRANGER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 77];

pub fn ethernet(src: [u8; 6], dst: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let repr = EthernetRepr {
        src_addr: EthernetAddress(src),
        dst_addr: EthernetAddress(dst),
        ethertype: EthernetProtocol::from(ethertype),
    };
    let mut frame = vec![0; 14 + payload.len()];
    repr.emit(&mut EthernetFrame::new_unchecked(&mut frame));
    frame[14..].copy_from_slice(payload);
    frame
}

/// An ARP packet from `sender`; `to` is the destination of the frame.
pub fn arp(
    operation: ArpOperation,
    sender: ([u8; 6], Ipv4Addr),
    target: Ipv4Addr,
    to: [u8; 6],
) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(sender.0),
        source_protocol_addr: sender.1,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: target,
    };
    let mut payload = vec![0; 28];
    repr.emit(&mut ArpPacket::new_unchecked(&mut payload));
    ethernet(sender.0, to, 0x0806, &payload)
}

/// The answer of `sender` to a question of A.
pub fn arp_reply(sender: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    arp(ArpOperation::Reply, sender, Side::A.ip(), Side::A.mac())
}

/// Reads an ARP packet: operation, sender's hardware address and target; `None` if it is none.
pub fn read_arp(frame: &[u8]) -> Option<(ArpOperation, [u8; 6], Ipv4Addr)> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let packet = ArpPacket::new_checked(frame.payload()).ok()?;
    match ArpRepr::parse(&packet).ok()? {
        ArpRepr::EthernetIpv4 { operation, source_hardware_addr, target_protocol_addr, .. }
            if frame.ethertype() == EthernetProtocol::Arp =>
        {
            Some((operation, source_hardware_addr.0, target_protocol_addr))
        }
        _ => None,
    }
}

/// An IPv4 packet around `payload`.
pub fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let repr = Ipv4Repr {
        src_addr: src,
        dst_addr: dst,
        next_header: IpProtocol::from(protocol),
        payload_len: payload.len(),
        hop_limit: 64,
    };
    let mut packet = vec![0; 20 + payload.len()];
    repr.emit(&mut Ipv4Packet::new_unchecked(&mut packet), &ChecksumCapabilities::default());
    packet[20..].copy_from_slice(payload);
    packet
}

/// A UDP datagram with its checksum.
pub fn udp(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let repr = UdpRepr { src_port: src.1, dst_port: dst.1 };
    let mut datagram = vec![0; 8 + payload.len()];
    repr.emit(
        &mut UdpPacket::new_unchecked(&mut datagram),
        &src.0.into(),
        &dst.0.into(),
        payload.len(),
        |room| room.copy_from_slice(payload),
        &ChecksumCapabilities::default(),
    );
    datagram
}

/// A frame from the stranger to host A with a UDP datagram.
pub fn udp_frame(src_port: u16, dst_port: u16, payload: &[u8]) -> Vec<u8> {
    let datagram = udp((STRANGER, src_port), (Side::A.ip(), dst_port), payload);
    to_a(&ipv4(STRANGER, Side::A.ip(), 17, &datagram))
}

/// A frame from the stranger to host A with an ICMP message.
pub fn icmp_frame(message: &Icmpv4Repr<'_>) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes), &ChecksumCapabilities::default());
    to_a(&ipv4(STRANGER, Side::A.ip(), 1, &bytes))
}

/// An IPv4 packet in a frame from the stranger to host A.
pub fn to_a(packet: &[u8]) -> Vec<u8> {
    ethernet(STRANGER_MAC, Side::A.mac(), 0x0800, packet)
}

/// Cuts an IPv4 packet without options into fragments with payloads of `size` bytes.
pub fn fragments(packet: &[u8], size: usize) -> Vec<Vec<u8>> {
    assert_eq!(size % 8, 0);
    let (header, payload) = packet.split_at(20);
    let last = payload.len().div_ceil(size) - 1;
    let pieces = payload.chunks(size).enumerate();
    pieces.map(|(i, piece)| fragment(header, i * size, i < last, piece)).collect()
}

/// A fragment of the datagram that `header` belongs to.
pub fn fragment(header: &[u8], offset: usize, more: bool, piece: &[u8]) -> Vec<u8> {
    let mut bytes = header.to_vec();
    bytes.extend(piece);
    let mut packet = Ipv4Packet::new_unchecked(&mut bytes);
    packet.set_total_len((20 + piece.len()) as u16);
    packet.set_frag_offset(offset as u16);
    packet.set_more_frags(more);
    packet.set_dont_frag(false);
    packet.fill_checksum();
    bytes
}
