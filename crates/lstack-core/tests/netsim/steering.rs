//! Several stacks behind one device: who owns what.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use lstack_core::stack::{flow_owner, steer, udp_owner};
use lstack_core::tcp::Reuse;
use lstack_core::{RxMeta, Steering};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
use smoltcp::wire::{ArpOperation, Icmpv4Packet};

use crate::support::frames::{
    BROADCAST, STRANGER, STRANGER_MAC, arp, fragments, ipv4, read_arp, to_a, udp, udp_frame,
};
use crate::support::{Lone, Side, SplitMix};

const KEY: u64 = 0x1234_5678_9abc_def0;

fn stack(index: u16, count: u16) -> Lone {
    Lone::new(|config| config.steering = Steering { index, count, key: KEY })
}

fn tcp(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16)) -> Vec<u8> {
    let mut segment = vec![0; 20];
    segment[0..2].copy_from_slice(&src.1.to_be_bytes());
    segment[2..4].copy_from_slice(&dst.1.to_be_bytes());
    segment[12] = 0x50;
    to_a(&ipv4(src.0, dst.0, 6, &segment))
}

/// An ICMP error that quotes the packet in `frame`.
fn error_about(frame: &[u8]) -> Vec<u8> {
    let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
    message.extend(&frame[14..14 + 28]);
    Icmpv4Packet::new_unchecked(&mut message).fill_checksum();
    to_a(&ipv4(STRANGER, Side::A.ip(), 1, &message))
}

proptest! {
    #[test]
    fn both_directions_and_errors_of_a_flow_have_one_owner(
        remote: [u8; 4], local_port: u16, remote_port: u16, key: u64, count in 1u16..9,
    ) {
        let (local, remote) = ((Side::A.ip(), local_port), (remote.into(), remote_port));
        let owner = flow_owner(local.into(), remote.into(), key, count);
        prop_assert!(owner < count);
        prop_assert_eq!(flow_owner(remote.into(), local.into(), key, count), owner);
        prop_assert_eq!(steer(&tcp(remote, local), false, key, count), Some(owner));
        let sent = tcp(local, remote);
        prop_assert_eq!(steer(&sent, false, key, count), Some(owner));
        prop_assert_eq!(steer(&error_about(&sent), false, key, count), Some(owner));
    }

    #[test]
    fn datagrams_and_errors_about_them_go_by_our_port(port: u16, other: u16, count in 1u16..9) {
        let owner = udp_owner(port, count);
        prop_assert_eq!(steer(&udp_frame(other, port, b"x"), false, KEY, count), Some(owner));
        let datagram = udp((Side::A.ip(), port), (STRANGER, other), b"x");
        let sent = to_a(&ipv4(Side::A.ip(), STRANGER, 17, &datagram));
        prop_assert_eq!(steer(&error_about(&sent), false, KEY, count), Some(owner));
    }

    #[test]
    fn anything_is_steered_without_panic(
        frame in proptest::collection::vec(any::<u8>(), 0..120),
        ip: bool, stripped: bool, count in 0u16..9,
    ) {
        let mut frame = frame;
        if ip && frame.len() > 24 {
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14] = 0x45;
            frame[20..22].fill(0);
        }
        let owner = steer(&frame, stripped, KEY, count).unwrap_or(0);
        prop_assert!(owner < count.max(1));
    }
}

#[test]
fn arp_goes_to_all_and_fragments_to_the_first() {
    let frame = arp(ArpOperation::Request, (STRANGER_MAC, STRANGER), Side::A.ip(), BROADCAST);
    assert_eq!(steer(&frame, false, KEY, 4), None);
    let packet = ipv4(STRANGER, Side::A.ip(), 17, &udp((STRANGER, 9), (Side::A.ip(), 7), &[0; 99]));
    for fragment in fragments(&packet, 16) {
        assert_eq!(steer(&to_a(&fragment), false, KEY, 4), Some(0));
    }
    let mut tagged = udp_frame(9, 7, b"x");
    tagged.splice(12..12, [0x81, 0, 0, 42]);
    assert_eq!(steer(&tagged, false, KEY, 4), Some(3));
}

#[test]
fn flows_spread_evenly() {
    let mut counts = [0; 4];
    for port in 0..40_000u16 {
        let owner = flow_owner(Side::A.addr(80), (STRANGER, port).into(), KEY, 4);
        counts[usize::from(owner)] += 1;
    }
    assert!(counts.iter().all(|n| (9_500..10_500).contains(n)), "{counts:?}");
}

#[test]
fn only_the_first_stack_answers_and_announces_and_all_learn() {
    for index in 0..2 {
        let mut lone = stack(index, 2);
        assert_eq!(lone.host.counter("arp_requests_tx"), if index == 0 { 2 } else { 0 });
        lone.put(&arp(ArpOperation::Request, (STRANGER_MAC, STRANGER), Side::A.ip(), BROADCAST));
        assert_eq!(lone.sent().len(), usize::from(index == 0));
        let socket = lone.host.stack.udp_open().unwrap();
        lone.send(socket, (STRANGER, 9).into(), b"x").unwrap();
        let sent = lone.sent();
        assert!(sent.len() == 1 && read_arp(&sent[0]).is_none(), "the address is known");
        lone.host.check_books();
    }
}

#[test]
fn ports_picked_for_udp_come_back_to_their_stack() {
    for index in 0..3 {
        let mut lone = stack(index, 3);
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        for _ in 0..200 {
            let socket = lone.host.stack.udp_open().unwrap();
            let local = lone.host.stack.bind(socket, any, Reuse::default()).unwrap();
            assert_eq!(udp_owner(local.port(), 3), index);
        }
    }
}

#[test]
fn a_reassembled_datagram_is_handed_to_its_owner() {
    let (mut first, mut second) = (stack(0, 2), stack(1, 2));
    let (mine, theirs) = (first.host.udp(8), second.host.udp(7));
    let data = SplitMix::new(1).bytes(60_000);
    for port in [7, 8] {
        let datagram = udp((STRANGER, 9), (Side::A.ip(), port), &data);
        for fragment in fragments(&ipv4(STRANGER, Side::A.ip(), 17, &datagram), 1_480) {
            first.put(&to_a(&fragment));
        }
    }
    assert!(first.host.udp_recv(mine).unwrap().0 == data);
    let (owner, frame) = first.host.stack.take_misdirected().unwrap();
    assert_eq!(owner, 1);
    second.put_with(&frame, RxMeta::default());
    assert!(second.host.udp_recv(theirs).unwrap().0 == data);
    assert!(first.host.stack.take_misdirected().is_none());
    first.host.check_books();
    second.host.check_books();
}

#[test]
fn packets_to_the_own_address_find_the_stack_that_owns_them() {
    let (mut first, mut second) = (stack(0, 2), stack(1, 2));
    let (a, b) = (first.host.udp(8), second.host.udp(7));
    first.send(a, Side::A.addr(7), b"over").unwrap();
    first.send(a, Side::A.addr(8), b"self").unwrap();
    let (owner, frame) = first.host.stack.take_misdirected().unwrap();
    assert_eq!(owner, 1);
    // Nothing says that the frame is intact, so its checksums must be.
    second.host.stack.handle_frame(second.now, &frame, RxMeta::default());
    // Its source is our own address, which on the wire nobody may use.
    assert_eq!(second.host.udp_recv(b).unwrap().0, b"over");
    assert_eq!(first.host.udp_recv(a).unwrap().0, b"self");
    assert!(first.sent().is_empty());
    first.host.check_books();
    second.host.check_books();
}

#[test]
fn uncollected_frames_of_others_are_bounded() {
    let mut first = stack(0, 2);
    let socket = first.host.udp(8);
    for _ in 0..3_000 {
        first.send(socket, Side::A.addr(7), b"x").unwrap();
        first.pass(Duration::ZERO);
    }
    assert_eq!(first.host.counter("misdirected_overflow"), 3_000 - 1_024);
    first.host.check_books();
}
