//! Datagrams in fragments: any order, losses, duplicates, overlaps, floods.

use std::time::Duration;

use lstack_core::SocketId;
use smoltcp::wire::Ipv4Packet;

use crate::support::frames::{STRANGER, fragment, fragments, ipv4, to_a, udp};
use crate::support::{LinkModel, Lone, Net, Side, SplitMix};

fn lone() -> (Lone, SocketId) {
    let mut lone = Lone::new(|_| {});
    let socket = lone.host.udp(5);
    (lone, socket)
}

/// An IP packet with a datagram of the stranger for port 5.
fn datagram(id: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet =
        ipv4(STRANGER, Side::A.ip(), 17, &udp((STRANGER, 9), (Side::A.ip(), 5), payload));
    let mut header = Ipv4Packet::new_unchecked(&mut packet);
    header.set_ident(id);
    header.set_dont_frag(false);
    header.fill_checksum();
    packet
}

fn put_all(lone: &mut Lone, packets: &[Vec<u8>]) {
    for packet in packets {
        lone.put(&to_a(packet));
    }
}

#[test]
fn any_order_gives_the_datagram() {
    let (mut lone, socket) = lone();
    let mut random = SplitMix::new(5);
    for round in 0..500 {
        let len = random.below(65_508) as usize;
        let data = random.bytes(len);
        let size = 8 * (60 + random.below(125) as usize);
        let mut pieces = fragments(&datagram(round, &data), size);
        if pieces.len() < 100 {
            random.shuffle(&mut pieces);
        }
        put_all(&mut lone, &pieces);
        assert!(lone.host.udp_recv(socket).unwrap().0 == data, "round {round}");
    }
    lone.host.check_books();
    assert_eq!(lone.host.stack.next_deadline(), None, "nothing is left behind");
}

#[test]
fn duplicates_are_ignored() {
    let (mut lone, socket) = lone();
    let data = SplitMix::new(1).bytes(5_000);
    let pieces = fragments(&datagram(1, &data), 1_480);
    for piece in &pieces[..3] {
        put_all(&mut lone, &[piece.clone(), piece.clone()]);
    }
    put_all(&mut lone, &pieces[3..]);
    assert!(lone.host.udp_recv(socket).unwrap().0 == data);
    assert_eq!(lone.host.counter("rx_drop_fragment_duplicate"), 3);
    lone.host.check_books();
}

#[test]
fn overlaps_discard_the_datagram_and_what_still_comes() {
    let data = SplitMix::new(1).bytes(5_000);
    let whole = datagram(1, &data);
    let pieces = fragments(&whole, 1_480);
    let header = &whole[..20];
    let piece = |start: usize, end: usize| &whole[20 + start..20 + end];
    let overlaps = [
        // The middle of two neighbours, the end of one, all of one and more, a changed copy.
        fragment(header, 1_472, true, piece(1_472, 1_488)),
        fragment(header, 1_000, true, piece(1_000, 2_000)),
        fragment(header, 0, true, piece(0, 2_968)),
        fragment(header, 0, true, &[0xee; 1_480]),
    ];
    for overlap in overlaps {
        let (mut lone, socket) = lone();
        put_all(&mut lone, &[pieces[0].clone(), overlap]);
        put_all(&mut lone, &pieces[1..]);
        put_all(&mut lone, &pieces);
        assert!(lone.host.udp_recv(socket).is_err());
        assert_eq!(lone.host.counter("rx_drop_fragment_overlap"), 1);
        assert_eq!(lone.host.counter("rx_drop_fragment_late"), pieces.len() as u64 * 2 - 1);
        lone.host.check_books();
        // After its time the id may be used again.
        lone.pass(Duration::from_secs(30));
        put_all(&mut lone, &pieces);
        assert!(lone.host.udp_recv(socket).unwrap().0 == data);
    }
}

#[test]
fn contradicting_ends_discard_the_datagram() {
    let whole = datagram(1, &[7; 3_000]);
    let header = &whole[..20];
    let last = |at: usize, len: usize| fragment(header, at, false, &vec![7; len]);
    let more = |at: usize, len: usize| fragment(header, at, true, &vec![7; len]);
    for contradiction in [
        [last(1_600, 10), last(3_200, 10)],
        [last(1_600, 10), more(3_200, 16)],
        [more(3_200, 16), last(1_600, 10)],
        [last(3_200, 10), last(1_600, 10)],
    ] {
        let (mut lone, _) = lone();
        put_all(&mut lone, &contradiction);
        assert_eq!(lone.host.counter("rx_drop_fragment_overlap"), 1);
        lone.host.check_books();
    }
}

#[test]
fn impossible_fragments_are_dropped_alone() {
    let (mut lone, socket) = lone();
    let data = SplitMix::new(1).bytes(5_000);
    let whole = datagram(1, &data);
    let pieces = fragments(&whole, 1_480);
    put_all(&mut lone, &pieces[..2]);
    put_all(
        &mut lone,
        &[
            fragment(&whole[..20], 0, true, &[1; 1_477]),
            fragment(&whole[..20], 3_200, true, &[]),
            fragment(&whole[..20], 65_528, false, &[1; 100]),
        ],
    );
    assert_eq!(lone.host.counter("rx_drop_bad_fragment"), 3);
    put_all(&mut lone, &pieces[2..]);
    assert!(lone.host.udp_recv(socket).unwrap().0 == data);
    lone.host.check_books();
}

#[test]
fn a_missing_fragment_costs_its_datagram_and_no_memory() {
    let (mut lone, socket) = lone();
    let pieces = fragments(&datagram(1, &[1; 5_000]), 1_480);
    put_all(&mut lone, &pieces[1..]);
    lone.pass(Duration::from_millis(29_999));
    assert_eq!(lone.host.counter("reassembly_timeouts"), 0);
    lone.pass(Duration::from_millis(1));
    assert_eq!(lone.host.counter("reassembly_timeouts"), 1);
    assert_eq!(lone.host.stack.next_deadline(), None);
    put_all(&mut lone, &pieces[..1]);
    assert!(lone.host.udp_recv(socket).is_err());
    lone.host.check_books();
}

#[test]
fn floods_of_incomplete_datagrams_push_out_the_oldest() {
    let (mut lone, socket) = lone();
    for id in 0..10_000 {
        let pieces = fragments(&datagram(id, &[1; 3_000]), 1_480);
        put_all(&mut lone, &pieces[..1]);
    }
    assert_eq!(lone.host.counter("reassembly_evictions"), 10_000 - 1_024);
    // The newest still complete.
    let data = SplitMix::new(1).bytes(60_000);
    put_all(&mut lone, &fragments(&datagram(20_000, &data), 1_480));
    assert!(lone.host.udp_recv(socket).unwrap().0 == data);
    lone.pass(Duration::from_secs(30));
    let gone = lone.host.counter("reassembly_evictions") + lone.host.counter("reassembly_timeouts");
    assert_eq!(gone, 10_000);
    lone.host.check_books();
}

#[test]
fn memory_for_incomplete_datagrams_is_bounded() {
    let (mut lone, _) = lone();
    for id in 0..1_000 {
        let pieces = fragments(&datagram(id, &[1; 60_000]), 1_480);
        put_all(&mut lone, &pieces[pieces.len() - 1..]);
    }
    let kept = 1_000 - lone.host.counter("reassembly_evictions");
    assert!((60..70).contains(&kept), "{kept} buffers of 64 KiB in 4 MiB");
}

#[test]
fn datagrams_in_too_many_pieces_are_given_up() {
    let (mut lone, _) = lone();
    let pieces = fragments(&datagram(1, &[1; 60_000]), 8);
    for piece in pieces.iter().step_by(2) {
        lone.put(&to_a(piece));
    }
    assert_eq!(lone.host.counter("rx_drop_fragment_limit"), 1);
    lone.host.check_books();
}

#[test]
fn interleaved_datagrams_stay_apart() {
    let (mut lone, socket) = lone();
    let mut random = SplitMix::new(2);
    let payloads: Vec<_> = (0..20).map(|_| random.bytes(6_000)).collect();
    let mut pieces: Vec<_> = payloads
        .iter()
        .zip(0..)
        .flat_map(|(payload, id)| fragments(&datagram(id, payload), 800))
        .collect();
    random.shuffle(&mut pieces);
    put_all(&mut lone, &pieces);
    let mut received: Vec<_> =
        std::iter::from_fn(|| lone.host.udp_recv(socket).ok()).map(|(bytes, _)| bytes).collect();
    received.sort();
    let mut expected = payloads;
    expected.sort();
    assert!(received == expected);
}

#[test]
fn what_arrives_over_a_bad_link_is_what_was_sent() {
    let model = LinkModel {
        jitter: Duration::from_micros(500),
        loss: 5_000,
        duplicate: 20_000,
        corrupt: 5_000,
        ..LinkModel::default()
    };
    let mut net = Net::new(77, model);
    let (a, b) = (net.udp(Side::A, 5), net.udp(Side::B, 6));
    let mut random = SplitMix::new(8);
    let mut arrived = 0;
    for n in 0..2_000u32 {
        let len = 4 + random.below(30_000) as usize;
        let mut data = SplitMix::new(u64::from(n)).bytes(len);
        data[..4].copy_from_slice(&n.to_be_bytes());
        net.send(Side::A, a, Side::B.addr(6), &data);
        net.run_for(Duration::from_millis(1));
        while let Some((bytes, _)) = net.recv(Side::B, b) {
            let n = u32::from_be_bytes(bytes[..4].try_into().unwrap());
            assert!(bytes[4..] == SplitMix::new(u64::from(n)).bytes(bytes.len())[4..]);
            arrived += 1;
        }
    }
    assert!((1_500..1_990).contains(&arrived), "{arrived} of 2000");
    net.check_books();
}
