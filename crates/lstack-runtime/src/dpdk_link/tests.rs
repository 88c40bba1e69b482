use dpdk::mock::{Mempool, QueuePair, pair};
use dpdk::{Checksum, L4Offload, RxFlags, TxOffload};
use lstack_core::link::L4;
use lstack_core::{ChecksumVerdict, FrameSink, LinkCaps, TxMeta};

use super::{DpdkLink, PENDING_MAX, RX_BURST, STOCK};
use crate::link::Link;

const CAPS: LinkCaps = LinkCaps {
    mac: [2, 0, 0, 0, 0, 1],
    mtu: 1500,
    tx_ip_checksum: true,
    tx_tcp_checksum: true,
    tx_udp_checksum: true,
    tso_max: None,
};

/// A link over the mock, its pool, and the other end of the wire with its pool.
fn rig(packets: usize, ring: usize) -> (DpdkLink<QueuePair>, Mempool, QueuePair, Mempool) {
    let near = Mempool::new(packets, 2048);
    let far = Mempool::new(packets, 2048);
    let (queues, peer) = pair([near.clone(), far.clone()], ring);
    (DpdkLink::new(queues, CAPS), near, peer, far)
}

fn send(link: &mut DpdkLink<QueuePair>, bytes: &[u8], meta: TxMeta) -> bool {
    let Some(frame) = link.reserve(bytes.len()) else { return false };
    frame.copy_from_slice(bytes);
    link.commit(meta);
    true
}

fn counter(link: &DpdkLink<QueuePair>, name: &str) -> u64 {
    let counters = link.counters();
    counters.iter().find(|(each, _)| *each == name).expect("a known counter").1
}

#[test]
fn frames_are_delivered_in_order_with_the_devices_verdicts_and_no_packet_leaks() {
    let (mut link, near, mut peer, far) = rig(256, 512);
    for number in 0..100_u8 {
        let mut packet = far.take().expect("enough");
        dpdk::Packet::resize(&mut packet, 60).expect("small").fill(number);
        packet.set_rx_flags(RxFlags {
            ip: Checksum::Good,
            l4: if number == 7 { Checksum::Bad } else { Checksum::Unknown },
            vlan: (number == 8).then_some(5),
        });
        dpdk::Queues::transmit(&mut peer, &mut one(packet));
    }
    let mut seen = Vec::new();
    let mut deliver = |frame: &[u8], meta: lstack_core::RxMeta| {
        assert_eq!(frame.len(), 60);
        assert_eq!(meta.ip_checksum, ChecksumVerdict::Good);
        assert_eq!(meta.l4_checksum == ChecksumVerdict::Bad, frame[0] == 7);
        assert_eq!(meta.vlan.is_some(), frame[0] == 8);
        seen.push(frame[0]);
    };
    assert_eq!(link.rx_burst(10, &mut deliver), 10);
    assert_eq!(link.rx_burst(1000, &mut deliver), 90);
    assert_eq!(link.rx_burst(1000, &mut deliver), 0);
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    const { assert!(RX_BURST < 90, "more than one burst is needed") };
    assert_eq!(counter(&link, "link_rx_frames"), 100);
    drop(link);
    assert_eq!((near.available(), far.available()), (256, 256));
}

fn one(packet: dpdk::mock::Mbuf) -> dpdk::Batch<dpdk::mock::Mbuf> {
    let mut batch = dpdk::Batch::with_capacity(1);
    batch.push(packet).expect("room for one");
    batch
}

#[test]
fn segments_arrive_joined_and_what_no_ip_length_can_describe_is_dropped() {
    let (mut link, _near, mut peer, far) = rig(8, 8);
    let mut packet = far.take().expect("enough");
    dpdk::Packet::resize(&mut packet, 3).expect("small").copy_from_slice(b"abc");
    packet.push_segment(b"def");
    dpdk::Queues::transmit(&mut peer, &mut one(packet));
    let mut long = far.take().expect("enough");
    long.push_segment(&[0; 70_000]);
    long.push_segment(&[0]);
    dpdk::Queues::transmit(&mut peer, &mut one(long));

    let mut seen = Vec::new();
    assert_eq!(link.rx_burst(8, &mut |frame, _| seen.push(frame.to_vec())), 2);
    assert_eq!(seen, [b"abcdef".to_vec()]);
    assert_eq!(counter(&link, "link_rx_frames_joined"), 1);
    assert_eq!(counter(&link, "link_rx_drop_too_long"), 1);
    assert_eq!(far.available(), 8);
}

#[test]
fn offloads_reach_the_device_as_the_stack_asked() {
    let (mut link, _near, mut peer, _far) = rig(64, 8);
    let udp = TxMeta {
        l2_len: 14,
        l3_len: 20,
        l4: L4::Udp,
        offload_ip_checksum: true,
        offload_l4_checksum: true,
        ..TxMeta::default()
    };
    assert!(send(&mut link, &[0; 60], udp));
    assert!(send(&mut link, &[0; 60], TxMeta { l2_len: 14, l3_len: 20, ..TxMeta::default() }));
    assert!(link.flush());

    let mut received = dpdk::Batch::with_capacity(8);
    dpdk::Queues::receive(&mut peer, &mut received, 8);
    let offloads: Vec<_> = received.iter().map(dpdk::mock::Mbuf::offload).collect();
    let expected = TxOffload {
        l2_len: 14,
        l3_len: 20,
        ip_checksum: true,
        l4: Some(L4Offload::Udp),
        ..TxOffload::default()
    };
    assert_eq!(offloads, [expected, TxOffload::default()]);
}

#[test]
fn a_segmented_frame_keeps_its_length_out_of_the_pseudo_header_sum() {
    let (mut link, _near, mut peer, _far) = rig(64, 8);
    // Any pseudo-header sum without length, and with the length of this segment added.
    let without: u16 = 0xfe12;
    let segment_len: u16 = 2000 - 34;
    let with = super::fold(u32::from(without) + u32::from(segment_len));
    let mut frame = vec![0; 2000];
    frame[34 + 16..34 + 18].copy_from_slice(&with.to_be_bytes());
    let meta = TxMeta {
        l2_len: 14,
        l3_len: 20,
        l4: L4::Tcp { header_len: 20 },
        offload_ip_checksum: true,
        offload_l4_checksum: true,
        segment_size: Some(1448),
        ..TxMeta::default()
    };
    assert!(send(&mut link, &frame, meta));
    assert!(link.flush());

    let mut received = dpdk::Batch::with_capacity(1);
    dpdk::Queues::receive(&mut peer, &mut received, 1);
    let packet = received.pop().expect("one was sent");
    let bytes = dpdk::Packet::contiguous(&packet).expect("one segment").to_vec();
    assert_eq!(bytes[50..52], without.to_be_bytes());
    assert_eq!(packet.offload().segment_size, Some(1448));
    assert_eq!(packet.offload().l4, Some(L4Offload::Tcp { header_len: 20 }));
}

#[test]
fn a_device_that_takes_nothing_leaves_a_bounded_row_and_then_all_is_sent_in_order() {
    let (mut link, near, mut peer, _far) = rig(1024, 0);
    let mut sent = 0_u32;
    while send(&mut link, &sent.to_be_bytes(), TxMeta::default()) {
        sent += 1;
    }
    assert_eq!(sent as usize, PENDING_MAX);
    assert!(!link.flush());
    assert!(counter(&link, "link_tx_ring_full") > 0);
    drop(link);
    assert_eq!(near.available(), 1024);

    let (mut link, _near, mut other, _far) = rig(1024, 100);
    std::mem::swap(&mut peer, &mut other);
    let mut next = 0_u32;
    let mut expected = 0_u32;
    let mut received = dpdk::Batch::with_capacity(16);
    while expected < 1000 {
        while next < 1000 && send(&mut link, &next.to_be_bytes(), TxMeta::default()) {
            next += 1;
        }
        link.flush();
        dpdk::Queues::receive(&mut peer, &mut received, 16);
        for packet in &received {
            let bytes = dpdk::Packet::contiguous(packet).expect("one segment");
            assert_eq!(bytes, expected.to_be_bytes());
            expected += 1;
        }
        received.clear();
    }
    assert!(link.flush());
}

#[test]
fn an_empty_pool_refuses_until_packets_come_back() {
    let (mut link, near, mut peer, _far) = rig(STOCK + 2, 512);
    for _ in 0..STOCK + 2 {
        assert!(send(&mut link, b"x", TxMeta::default()));
    }
    assert!(!send(&mut link, b"x", TxMeta::default()));
    assert_eq!(counter(&link, "link_tx_no_memory"), 1);
    assert_eq!(near.available(), 0);
    assert!(link.flush());
    assert!(peer_drops_one(&mut peer));
    assert!(send(&mut link, b"x", TxMeta::default()));
}

fn peer_drops_one(peer: &mut QueuePair) -> bool {
    let mut received = dpdk::Batch::with_capacity(1);
    dpdk::Queues::receive(peer, &mut received, 1) == 1
}

#[test]
fn a_reserve_without_commit_is_replaced_and_uses_no_second_packet() {
    let (mut link, near, _peer, _far) = rig(STOCK, 8);
    assert_eq!(link.reserve(10).map(|frame| frame.len()), Some(10));
    assert_eq!(link.reserve(1514).map(|frame| frame.len()), Some(1514));
    assert!(link.reserve(5000).is_none());
    assert_eq!(counter(&link, "link_tx_too_long"), 1);
    assert!(send(&mut link, b"ok", TxMeta::default()));
    assert!(link.flush());
    assert_eq!(near.available(), 0, "all but one are in the stock");
    drop(link);
    assert_eq!(near.available(), STOCK - 1, "one is on the wire");
}
