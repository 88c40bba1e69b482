//! Frames that mean no good: counted, never delivered, never a panic.

use std::net::Ipv4Addr;

use lstack_core::tcp::Reuse;
use lstack_core::{ChecksumVerdict, RxMeta};
use proptest::prelude::{ProptestConfig, any, proptest};
use proptest::sample::Index;
use smoltcp::wire::ArpOperation;

use crate::support::frames::{
    BROADCAST, STRANGER, STRANGER_MAC, arp, ethernet, fragments, ipv4, to_a, udp, udp_frame,
};
use crate::support::{Lone, Side, SplitMix};

/// A host with something open everywhere.
fn busy_host() -> Lone {
    let mut lone = Lone::new(|_| {});
    lone.host.udp(5);
    let connected = lone.host.udp(6);
    lone.host.stack.udp_connect(connected, Some((STRANGER, 9).into())).unwrap();
    let listener = lone.host.stack.tcp_open().unwrap();
    lone.host.stack.bind(listener, Side::A.addr(80), Reuse::default()).unwrap();
    lone.host.stack.tcp_listen(listener, 8).unwrap();
    lone
}

/// A SYN to the listener.
fn syn() -> Vec<u8> {
    let mut segment = vec![0x30, 0x39, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0x60, 2, 0xff, 0xff, 0, 0];
    segment.extend([0, 0, 2, 4, 5, 0xb4]);
    to_a(&ipv4(STRANGER, Side::A.ip(), 6, &segment))
}

fn real_frames() -> Vec<Vec<u8>> {
    let large =
        ipv4(STRANGER, Side::A.ip(), 17, &udp((STRANGER, 9), (Side::A.ip(), 5), &[3; 2_000]));
    let mut echo = vec![8, 0, 0, 0, 0, 1, 0, 2, 1, 2, 3];
    let sum = !smoltcp::wire::checksum::data(&echo);
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frames = vec![
        udp_frame(9, 5, b"hello"),
        udp_frame(9, 6, b"hello"),
        udp_frame(9, 7, b"nobody"),
        syn(),
        to_a(&ipv4(STRANGER, Side::A.ip(), 1, &echo)),
        arp(ArpOperation::Request, (STRANGER_MAC, STRANGER), Side::A.ip(), BROADCAST),
        arp(ArpOperation::Reply, (STRANGER_MAC, STRANGER), Side::A.ip(), Side::A.mac()),
        ethernet(STRANGER_MAC, Side::A.mac(), 0x86dd, &[0x60; 60]),
    ];
    frames.extend(fragments(&large, 1_480).iter().map(|fragment| to_a(fragment)));
    frames
}

#[test]
fn random_bytes_of_every_length() {
    let mut lone = busy_host();
    let mut random = SplitMix::new(3);
    for round in 0..8 {
        for len in 0..=1_514 {
            let mut frame = random.bytes(len);
            // Some get past the first checks.
            if round > 1 && len >= 14 {
                frame[..6].copy_from_slice(&Side::A.mac());
                let ethertype = [[8, 0], [8, 6], [0x86, 0xdd]][round % 3];
                frame[12..14].copy_from_slice(&ethertype);
            }
            if round > 4 && len >= 34 {
                frame[14] = 0x45;
                frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
                frame[30..34].copy_from_slice(&Side::A.ip().octets());
            }
            let verdict = ChecksumVerdict::Good;
            let meta = RxMeta { ip_checksum: verdict, l4_checksum: verdict, vlan: None };
            lone.put_with(&frame, if round % 2 == 0 { meta } else { RxMeta::default() });
        }
    }
    assert_eq!(lone.host.counter("frames_rx"), 8 * 1_515);
    lone.host.check_books();
}

#[test]
fn real_frames_cut_anywhere() {
    let mut lone = busy_host();
    let mut count = 0;
    for frame in real_frames() {
        for len in 0..frame.len() {
            lone.put(&frame[..len]);
            count += 1;
        }
    }
    assert_eq!(lone.host.counter("frames_rx"), count);
    assert_eq!(lone.host.counter("udp_datagrams_rx"), 0);
    lone.host.check_books();
}

#[test]
fn every_single_flipped_bit_of_a_datagram_is_noticed() {
    let mut lone = busy_host();
    let frame = udp_frame(9, 5, b"hello");
    for bit in 8 * 14..8 * frame.len() {
        let mut bad = frame.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        lone.put(&bad);
    }
    assert_eq!(lone.host.counter("udp_datagrams_rx"), 0);
    lone.host.check_books();
    lone.put(&frame);
    assert_eq!(lone.host.counter("udp_datagrams_rx"), 1);
}

#[test]
fn the_devices_verdict_is_believed() {
    let mut lone = busy_host();
    let good = udp_frame(9, 5, b"hello");
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    let meta = |ip_checksum, l4_checksum| RxMeta { ip_checksum, l4_checksum, vlan: None };
    use ChecksumVerdict::{Bad, Good, Unknown};
    lone.put_with(&good, meta(Unknown, Bad));
    lone.put_with(&good, meta(Bad, Good));
    lone.put_with(&bad, meta(Good, Unknown));
    assert_eq!(lone.host.counter("udp_datagrams_rx"), 0);
    assert_eq!(lone.host.counter("udp_drop_bad_checksum"), 2);
    assert_eq!(lone.host.counter("rx_drop_bad_ip_checksum"), 1);
    lone.put_with(&bad, meta(Good, Good));
    assert_eq!(lone.host.counter("udp_datagrams_rx"), 1);
    lone.host.check_books();
}

#[test]
fn a_datagram_without_checksum_is_accepted() {
    let mut lone = busy_host();
    let mut frame = udp_frame(9, 5, b"hello");
    frame[40..42].fill(0);
    lone.put(&frame);
    assert_eq!(lone.host.counter("udp_datagrams_rx"), 1);
}

#[test]
fn padding_is_not_read_as_payload() {
    let mut lone = Lone::new(|_| {});
    let socket = lone.host.udp(5);
    for len in 0..=6 {
        let mut frame = udp_frame(9, 5, &vec![1; len]);
        frame.resize(60, 0xee);
        lone.put(&frame);
        assert_eq!(lone.host.udp_recv(socket).unwrap().0, vec![1; len]);
    }
}

#[test]
fn options_are_skipped() {
    let mut lone = Lone::new(|_| {});
    let socket = lone.host.udp(5);
    let mut packet = udp_frame(9, 5, b"hello")[14..].to_vec();
    packet.splice(20..20, [1; 40]);
    packet[0] = 0x4f;
    let total = packet.len() as u16;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[10..12].fill(0);
    let sum = !smoltcp::wire::checksum::data(&packet[..60]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    lone.put(&to_a(&packet));
    assert_eq!(lone.host.udp_recv(socket).unwrap().0, b"hello");
}

#[test]
fn packets_for_and_from_impossible_addresses_are_dropped() {
    let mut lone = busy_host();
    let from =
        |src: Ipv4Addr, dst: Ipv4Addr| to_a(&ipv4(src, dst, 17, &udp((src, 9), (dst, 5), b"x")));
    let own = Side::A.ip();
    for src in [
        own,
        Ipv4Addr::LOCALHOST,
        Ipv4Addr::BROADCAST,
        Ipv4Addr::new(10, 0, 0, 255),
        Ipv4Addr::new(224, 0, 0, 5),
        Ipv4Addr::UNSPECIFIED,
    ] {
        lone.put(&from(src, own));
    }
    assert_eq!(lone.host.counter("rx_drop_bad_source"), 6);
    for dst in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 0, 3), Ipv4Addr::new(8, 8, 8, 8)] {
        lone.put(&from(STRANGER, dst));
    }
    assert_eq!(lone.host.counter("rx_drop_other_address"), 3);
    lone.put(&from(STRANGER, Ipv4Addr::new(239, 1, 1, 1)));
    assert_eq!(lone.host.counter("rx_drop_not_joined"), 1);
    assert_eq!(lone.host.counter("udp_datagrams_rx"), 0);
    lone.host.check_books();
}

#[test]
fn without_an_address_everything_is_dropped() {
    let mut lone = Lone::new(|config| config.ipv4 = None);
    for frame in real_frames() {
        lone.put(&frame);
    }
    assert!(lone.sent().is_empty());
    let counter = |name| lone.host.counter(name);
    assert_eq!(counter("frames_rx"), counter("rx_drop_ipv4_off") + counter("rx_drop_ipv6"),);
    lone.host.check_books();
}

#[test]
fn tcp_to_many_is_dropped() {
    let mut lone = busy_host();
    let mut frame = syn();
    frame[..6].copy_from_slice(&BROADCAST);
    lone.put(&frame);
    assert_eq!(lone.host.counter("rx_drop_tcp_not_unicast"), 1);
    assert_eq!(lone.host.counter("rx_tcp"), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn mutated_real_frames(
        changes in proptest::collection::vec((any::<Index>(), any::<Index>(), any::<u8>()), 1..40),
        trusted: bool,
    ) {
        let mut lone = busy_host();
        let mut frames = real_frames();
        for (which, at, value) in &changes {
            let frame = which.get(&frames).clone();
            let at = at.index(frame.len() - 6) + 6;
            let place = which.index(frames.len());
            frames[place][at] = *value;
        }
        let verdict = if trusted { ChecksumVerdict::Good } else { ChecksumVerdict::Unknown };
        let meta = RxMeta { ip_checksum: verdict, l4_checksum: verdict, vlan: None };
        for frame in frames.iter().chain(&frames) {
            lone.put_with(frame, meta);
        }
        lone.host.check_books();
    }
}
