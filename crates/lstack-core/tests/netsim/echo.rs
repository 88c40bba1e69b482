//! ICMP: echo, errors out, errors in.

use std::time::Duration;

use lstack_core::udp::{UdpOption, UdpRecvError, UdpSendError};
use lstack_core::{Readiness, SocketError, SocketId};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, IpProtocol, Ipv4Packet, Ipv4Repr,
};

use crate::support::frames::{
    BROADCAST, STRANGER, STRANGER_MAC, arp_reply, fragments, icmp_frame, ipv4, to_a, udp, udp_frame,
};
use crate::support::{LinkModel, Lone, Net, Side, SplitMix};

/// A lone host that knows the stranger's address.
fn lone() -> Lone {
    let mut lone = Lone::new(|_| {});
    let socket = lone.host.udp(1);
    lone.send(socket, (STRANGER, 1).into(), b"").unwrap();
    lone.put(&arp_reply((STRANGER_MAC, STRANGER)));
    lone.host.stack.close(lone.now, socket, lstack_core::tcp::Close::Graceful);
    lone.sent();
    lone
}

/// The ICMP messages among `frames`, put together and verified.
fn messages(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let mut partial = Vec::new();
    for frame in frames {
        let Ok(packet) = Ipv4Packet::new_checked(&frame[14..]) else { continue };
        if packet.next_header() != IpProtocol::Icmp {
            continue;
        }
        assert!(packet.verify_checksum());
        assert_eq!(packet.frag_offset() as usize, partial.len());
        partial.extend(packet.payload());
        if !packet.more_frags() {
            let message = std::mem::take(&mut partial);
            assert!(Icmpv4Packet::new_checked(&message[..]).unwrap().verify_checksum());
            messages.push(message);
        }
    }
    messages
}

fn echo(data: &[u8]) -> Vec<u8> {
    let repr = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 9, data };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes), &ChecksumCapabilities::default());
    bytes
}

/// An ICMP error of the stranger about a datagram of ours to `STRANGER:9` from port 5.
fn unreachable(code: u8, mtu: u16) -> Vec<u8> {
    let datagram = udp((Side::A.ip(), 5), (STRANGER, 9), b"sent");
    let quoted = ipv4(Side::A.ip(), STRANGER, 17, &datagram);
    let mut message = vec![3, code, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(&quoted[..28]);
    let mut packet = Icmpv4Packet::new_unchecked(&mut message);
    packet.fill_checksum();
    to_a(&ipv4(STRANGER, Side::A.ip(), 1, &message))
}

fn connected(lone: &mut Lone) -> SocketId {
    let socket = lone.host.udp(5);
    lone.host.stack.udp_connect(socket, Some((STRANGER, 9).into())).unwrap();
    socket
}

#[test]
fn echo_is_answered_with_its_payload_at_every_size() {
    let mut lone = lone();
    for len in (0..3_000).chain([8_000, 65_000, 65_507]) {
        let data = SplitMix::new(len as u64).bytes(len);
        let request = ipv4(STRANGER, Side::A.ip(), 1, &echo(&data));
        if len <= 1_472 {
            lone.put(&to_a(&request));
        } else {
            for fragment in fragments(&request, 1_480) {
                lone.put(&to_a(&fragment));
            }
        }
        let answers = messages(&lone.sent());
        assert_eq!(answers.len(), 1, "{len} bytes");
        assert_eq!(answers[0][..2], [0, 0]);
        assert_eq!(answers[0][4..8], [0, 7, 0, 9]);
        assert!(answers[0][8..] == data);
    }
    lone.host.check_books();
}

#[test]
fn echo_to_many_is_not_answered() {
    let mut lone = lone();
    for dst in ["255.255.255.255", "10.0.0.255", "224.0.0.1"] {
        let mut frame = to_a(&ipv4(STRANGER, dst.parse().unwrap(), 1, &echo(b"x")));
        frame[..6].copy_from_slice(&BROADCAST);
        lone.put(&frame);
    }
    assert!(lone.sent().is_empty());
    assert_eq!(lone.host.counter("rx_drop_icmp_ignored"), 3);
    lone.host.check_books();
}

#[test]
fn a_closed_port_is_reported_with_the_packet_quoted() {
    let mut lone = lone();
    let frame = udp_frame(1_234, 4_321, &[7; 1_000]);
    lone.put(&frame);
    let answers = messages(&lone.sent());
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0][..2], [3, 3]);
    assert_eq!(answers[0][8..], frame[14..14 + 548]);
    assert_eq!(lone.host.counter("udp_drop_no_port"), 1);
    lone.host.check_books();
}

#[test]
fn an_unknown_protocol_is_reported() {
    let mut lone = lone();
    lone.put(&to_a(&ipv4(STRANGER, Side::A.ip(), 99, &[1; 20])));
    assert_eq!(messages(&lone.sent())[0][..2], [3, 2]);
    assert_eq!(lone.host.counter("rx_drop_unknown_protocol"), 1);
    lone.host.check_books();
}

#[test]
fn datagrams_to_many_are_never_answered_with_an_error() {
    let mut lone = lone();
    for dst in ["255.255.255.255", "10.0.0.255", "224.0.0.1"] {
        let dst = dst.parse().unwrap();
        let datagram = udp((STRANGER, 9), (dst, 4_321), b"x");
        lone.put(&to_a(&ipv4(STRANGER, dst, 17, &datagram)));
    }
    assert!(lone.sent().is_empty());
    assert_eq!(lone.host.counter("udp_drop_no_port"), 3);
    lone.host.check_books();
}

#[test]
fn errors_are_sent_at_a_bounded_rate() {
    let mut lone = lone();
    for _ in 0..10_000 {
        lone.put(&udp_frame(9, 4_321, b"x"));
    }
    assert_eq!(messages(&lone.sent()).len(), 50);
    assert_eq!(lone.host.counter("icmp_errors_suppressed"), 9_950);
    lone.pass(Duration::from_secs(1));
    lone.put(&udp_frame(9, 4_321, b"x"));
    assert_eq!(messages(&lone.sent()).len(), 1);
}

#[test]
fn a_connected_socket_is_refused_once() {
    let mut net = Net::new(1, LinkModel::default());
    let a = net.udp(Side::A, 5);
    net.stack(Side::A).udp_connect(a, Some(Side::B.addr(6))).unwrap();
    let refused = SocketError::ConnectionRefused;
    for take in 0..3 {
        net.send(Side::A, a, Side::B.addr(6), b"x");
        net.run_for(Duration::from_millis(1));
        let level = net.stack(Side::A).readiness(a);
        assert_eq!(level, Readiness::WRITABLE | Readiness::ERROR);
        let event = net.host(Side::A).events.pop_back().unwrap();
        assert_eq!((event.socket, event.level), (a, level));
        assert!(event.edges.contains(Readiness::ERROR));
        let now = net.now;
        let host = net.host(Side::A);
        match take {
            0 => assert_eq!(host.udp_recv(a).unwrap_err(), UdpRecvError::Failed(refused)),
            1 => assert_eq!(host.udp_send(now, a, None, b"y"), Err(UdpSendError::Failed(refused))),
            _ => assert_eq!(host.stack.take_error(a), Some(refused)),
        }
        assert_eq!(host.udp_recv(a).unwrap_err(), UdpRecvError::WouldBlock);
        assert_eq!(host.stack.readiness(a), Readiness::WRITABLE);
    }
}

#[test]
fn an_unconnected_socket_hears_errors_only_if_it_wants() {
    let mut net = Net::new(1, LinkModel::default());
    let a = net.udp(Side::A, 5);
    net.send(Side::A, a, Side::B.addr(6), b"x");
    net.run_for(Duration::from_millis(1));
    assert_eq!(net.stack(Side::A).take_error(a), None);
    net.stack(Side::A).udp_set_option(a, UdpOption::RecvErr(true));
    net.send(Side::A, a, Side::B.addr(6), b"x");
    net.run_for(Duration::from_millis(1));
    assert_eq!(net.stack(Side::A).take_error(a), Some(SocketError::ConnectionRefused));
}

#[test]
fn errors_that_may_pass_are_not_reported() {
    let mut lone = lone();
    let socket = connected(&mut lone);
    for code in [0, 1, 5, 11, 12] {
        lone.put(&unreachable(code, 0));
        assert_eq!(lone.host.stack.take_error(socket), None, "code {code}");
    }
    for (code, error) in [
        (2, SocketError::ProtocolUnreachable),
        (3, SocketError::ConnectionRefused),
        (4, SocketError::MessageTooLong),
        (9, SocketError::NetworkUnreachable),
        (13, SocketError::HostUnreachable),
    ] {
        lone.put(&unreachable(code, 1_400));
        assert_eq!(lone.host.stack.take_error(socket), Some(error), "code {code}");
    }
    lone.host.check_books();
}

#[test]
fn a_narrow_path_is_remembered() {
    let mut lone = lone();
    let socket = connected(&mut lone);
    lone.host.stack.udp_set_option(socket, UdpOption::DontFragment(true));
    let to = (STRANGER, 9).into();
    lone.put(&unreachable(4, 1_400));
    lone.host.stack.take_error(socket);
    assert_eq!(lone.send(socket, to, &[0; 1_373]), Err(UdpSendError::TooLong));
    assert_eq!(lone.send(socket, to, &[0; 1_372]), Ok(1_372));
    lone.host.stack.udp_set_option(socket, UdpOption::DontFragment(false));
    lone.sent();
    assert_eq!(lone.send(socket, to, &[0; 1_373]), Ok(1_373));
    let sent = lone.sent();
    assert!(sent.len() == 2 && sent.iter().all(|frame| frame.len() <= 1_414));
}

#[test]
fn errors_about_packets_that_are_not_ours_change_nothing() {
    let mut lone = lone();
    let socket = connected(&mut lone);
    lone.host.stack.udp_set_option(socket, UdpOption::DontFragment(true));
    let header = Ipv4Repr {
        src_addr: STRANGER,
        dst_addr: Side::A.ip(),
        next_header: IpProtocol::Udp,
        payload_len: 12,
        hop_limit: 64,
    };
    // About a stranger's packet, with ports of ours.
    let datagram = udp((STRANGER, 5), (STRANGER, 9), b"sent");
    let reason = Icmpv4DstUnreachable::PortUnreachable;
    lone.put(&icmp_frame(&Icmpv4Repr::DstUnreachable { reason, header, data: &datagram }));
    assert_eq!(lone.host.counter("rx_drop_bad_icmp"), 1);
    // About a packet of ours that no socket sent.
    let mut frame = unreachable(4, 600);
    let ports = 14 + 20 + 8 + 20;
    frame[ports..ports + 2].copy_from_slice(&6u16.to_be_bytes());
    Icmpv4Packet::new_unchecked(&mut frame[34..]).fill_checksum();
    lone.put(&frame);
    assert_eq!(lone.host.stack.take_error(socket), None);
    assert_eq!(lone.send(socket, (STRANGER, 9).into(), &[0; 1_472]), Ok(1_472));
    lone.host.check_books();
}

#[test]
fn truncated_and_corrupt_messages_are_counted() {
    let mut lone = lone();
    connected(&mut lone);
    let whole = unreachable(3, 0);
    for len in 0..8 {
        let packet = ipv4(STRANGER, Side::A.ip(), 1, &whole[34..34 + len]);
        lone.put(&to_a(&packet));
    }
    assert_eq!(lone.host.counter("rx_drop_bad_icmp"), 8);
    let mut corrupt = whole;
    *corrupt.last_mut().unwrap() ^= 1;
    lone.put(&corrupt);
    assert_eq!(lone.host.counter("rx_drop_bad_icmp_checksum"), 1);
    lone.host.check_books();
}
