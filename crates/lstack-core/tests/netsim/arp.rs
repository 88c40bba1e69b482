//! Neighbours: learning, asking, confirming, giving up, and who may tell us what.

use std::net::Ipv4Addr;
use std::time::Duration;

use lstack_core::{Instant, Readiness, SocketError, StackConfig};
use smoltcp::wire::ArpOperation::{Reply, Request};

use crate::support::frames::{
    BROADCAST, STRANGER, STRANGER_MAC, arp, arp_reply, read_arp, to_a, udp, udp_frame,
};
use crate::support::{Host, LinkModel, Lone, Net, Side, SplitMix, config};

const MOVED_MAC: [u8; 6] = [2, 0, 0, 0, 9, 9];

fn lone() -> Lone {
    Lone::new(|_| {})
}

/// Targets and destinations of the ARP requests among `frames`.
fn requests(frames: &[Vec<u8>]) -> Vec<(Ipv4Addr, [u8; 6])> {
    let read = |frame: &Vec<u8>| {
        let (operation, _, target) = read_arp(frame)?;
        (operation == Request).then(|| (target, frame[..6].try_into().unwrap()))
    };
    frames.iter().filter_map(read).collect()
}

/// Destinations of the frames that are not ARP.
fn destinations(frames: &[Vec<u8>]) -> Vec<[u8; 6]> {
    let others = frames.iter().filter(|frame| read_arp(frame).is_none());
    others.map(|frame| frame[..6].try_into().unwrap()).collect()
}

fn neighbor(n: u16) -> ([u8; 6], Ipv4Addr) {
    let [high, low] = n.to_be_bytes();
    ([2, 7, 0, 0, high, low], Ipv4Addr::new(10, 0, 100 + high, low))
}

fn wide(config: &mut StackConfig) {
    config.ipv4.as_mut().unwrap().prefix_len = 16;
}

#[test]
fn the_address_is_announced_twice_at_start() {
    let now = Instant::from_millis(3);
    let mut host = Host::new(config(Side::A, 1_500), &mut SplitMix::new(1), now);
    assert_eq!(host.stack.next_deadline(), Some(now));
    host.poll(now);
    let frames = host.sink.take();
    assert_eq!(requests(&frames), [(Side::A.ip(), BROADCAST)]);
    host.poll(now + Duration::from_millis(1_999));
    assert!(host.sink.take().is_empty());
    host.poll(now + Duration::from_millis(2_000));
    assert_eq!(requests(&host.sink.take()), [(Side::A.ip(), BROADCAST)]);
    assert_eq!(host.stack.next_deadline(), None);
}

#[test]
fn packets_wait_for_the_neighbour_and_none_is_lost() {
    let mut net = Net::new(1, LinkModel::default());
    let (a, b) = (net.udp(Side::A, 5), net.udp(Side::B, 6));
    for n in 0..10u8 {
        net.send(Side::A, a, Side::B.addr(6), &[n]);
    }
    net.run_for(Duration::from_millis(1));
    for n in 0..10u8 {
        assert_eq!(net.recv(Side::B, b).unwrap().0, [n]);
    }
    assert_eq!(net.host(Side::A).counter("arp_requests_tx"), 2, "one announcement, one question");
}

#[test]
fn a_lost_question_is_asked_again() {
    let mut net = Net::new(1, LinkModel::default());
    let (a, b) = (net.udp(Side::A, 5), net.udp(Side::B, 6));
    net.run_for(Duration::from_secs(5));
    net.model(Side::A).loss = 1_000_000;
    net.send(Side::A, a, Side::B.addr(6), b"x");
    net.run_for(Duration::from_millis(500));
    net.model(Side::A).loss = 0;
    let asked = net.now;
    let arrived = |net: &mut Net| net.stack(Side::B).unread(b) > 0;
    assert!(net.run_until(Duration::from_secs(10), arrived));
    assert!(net.now - asked < Duration::from_millis(600), "{:?}", net.now - asked);
}

#[test]
fn a_question_is_asked_three_times_a_second_apart() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    lone.send(socket, (STRANGER, 9).into(), b"x").unwrap();
    for _ in 0..3 {
        assert_eq!(requests(&lone.sent()), [(STRANGER, BROADCAST)]);
        lone.pass(Duration::from_millis(999));
        assert!(lone.sent().is_empty());
        lone.pass(Duration::from_millis(1));
    }
    assert!(lone.sent().is_empty());
    assert_eq!(lone.host.counter("neighbor_failures"), 1);
    assert_eq!(lone.host.counter("tx_drop_neighbor_failed"), 1);
    // As on Linux, the socket hears nothing of it.
    assert_eq!(lone.host.stack.readiness(socket), Readiness::WRITABLE);
    assert_eq!(lone.host.stack.next_deadline(), None);
}

#[test]
fn a_connection_to_nobody_fails_with_the_neighbour() {
    let mut lone = lone();
    let socket = lone.host.stack.tcp_open().unwrap();
    lone.host.stack.tcp_connect(lone.now, socket, (STRANGER, 80).into()).unwrap();
    lone.pass(Duration::from_millis(2_999));
    assert_eq!(lone.host.stack.take_error(socket), None);
    lone.pass(Duration::from_millis(1));
    assert!(lone.host.stack.readiness(socket).contains(Readiness::ERROR));
    assert_eq!(lone.host.stack.take_error(socket), Some(SocketError::HostUnreachable));
}

#[test]
fn a_late_answer_after_failure_is_not_learnt_and_the_next_packet_asks_anew() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    lone.send(socket, (STRANGER, 9).into(), b"x").unwrap();
    lone.pass(Duration::from_secs(4));
    lone.sent();
    lone.put(&arp_reply((STRANGER_MAC, STRANGER)));
    lone.send(socket, (STRANGER, 9).into(), b"y").unwrap();
    assert_eq!(requests(&lone.sent()), [(STRANGER, BROADCAST)]);
    lone.put(&arp_reply((STRANGER_MAC, STRANGER)));
    assert_eq!(destinations(&lone.sent()), [STRANGER_MAC]);
}

#[test]
fn a_host_that_asks_for_us_is_answered_and_known() {
    let mut lone = lone();
    lone.put(&arp(Request, (STRANGER_MAC, STRANGER), Side::A.ip(), BROADCAST));
    let sent = lone.sent();
    let (operation, mac, target) = read_arp(&sent[0]).unwrap();
    assert_eq!((operation, mac, target), (Reply, Side::A.mac(), STRANGER));
    assert_eq!(sent[0][..6], STRANGER_MAC);
    let socket = lone.host.udp(5);
    lone.send(socket, (STRANGER, 9).into(), b"x").unwrap();
    assert_eq!(destinations(&lone.sent()), [STRANGER_MAC]);
}

#[test]
fn every_request_of_a_flood_is_answered() {
    let mut lone = lone();
    for n in 0..1_000u16 {
        let asker = ([2, 7, 0, 1, (n >> 8) as u8, n as u8], STRANGER);
        lone.host.stack.handle_frame(
            lone.now,
            &arp(Request, asker, Side::A.ip(), BROADCAST),
            Default::default(),
        );
    }
    lone.host.poll(lone.now);
    assert_eq!(lone.sent().len(), 1_000);
    assert_eq!(lone.host.counter("arp_replies_dropped"), 0);
    lone.host.check_books();
}

#[test]
fn strangers_cannot_put_themselves_into_the_table() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    // Gratuitous, in both forms; a reply nobody asked for; a request for somebody else.
    lone.put(&arp(Request, (STRANGER_MAC, STRANGER), STRANGER, BROADCAST));
    lone.put(&arp(Reply, (STRANGER_MAC, STRANGER), STRANGER, BROADCAST));
    lone.put(&arp_reply((STRANGER_MAC, STRANGER)));
    lone.put(&arp(Request, (STRANGER_MAC, STRANGER), Side::B.ip(), BROADCAST));
    assert!(lone.sent().is_empty());
    lone.send(socket, (STRANGER, 9).into(), b"x").unwrap();
    assert_eq!(requests(&lone.sent()), [(STRANGER, BROADCAST)]);
}

#[test]
fn impossible_senders_are_not_learnt() {
    let mut lone = lone();
    let far = Ipv4Addr::new(192, 0, 2, 1);
    for (mac, ip) in [
        (BROADCAST, STRANGER),
        ([1, 0, 0x5e, 0, 0, 1], STRANGER),
        ([0; 6], STRANGER),
        (Side::A.mac(), STRANGER),
    ] {
        lone.put(&arp(Request, (mac, ip), Side::A.ip(), BROADCAST));
    }
    assert!(lone.sent().is_empty());
    assert_eq!(lone.host.counter("rx_drop_bad_arp"), 4);
    // Off our subnet: answered, not learnt.
    lone.put(&arp(Request, (STRANGER_MAC, far), Side::A.ip(), BROADCAST));
    assert_eq!(lone.sent().len(), 1);
    // A probe for our address is answered, its sender has no address yet.
    lone.put(&arp(Request, (STRANGER_MAC, Ipv4Addr::UNSPECIFIED), Side::A.ip(), BROADCAST));
    assert_eq!(lone.sent().len(), 1);
    lone.host.check_books();
}

#[test]
fn somebody_with_our_address_is_counted_and_not_believed() {
    let mut lone = lone();
    lone.put(&arp(Request, (STRANGER_MAC, Side::A.ip()), Side::A.ip(), BROADCAST));
    assert_eq!(lone.host.counter("arp_conflicts"), 1);
    assert!(lone.sent().is_empty());
}

#[test]
fn a_changed_address_is_learnt_at_once_from_a_gratuitous_arp() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    lone.put(&arp(Request, (STRANGER_MAC, STRANGER), Side::A.ip(), BROADCAST));
    lone.put(&arp(Request, (MOVED_MAC, STRANGER), STRANGER, BROADCAST));
    lone.sent();
    lone.send(socket, (STRANGER, 9).into(), b"x").unwrap();
    assert_eq!(destinations(&lone.sent()), [MOVED_MAC]);
    assert_eq!(lone.host.counter("neighbor_mac_changes"), 1);
}

#[test]
fn an_address_in_use_is_confirmed_by_unicast_without_a_gap() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    lone.put(&arp(Request, (STRANGER_MAC, STRANGER), Side::A.ip(), BROADCAST));
    lone.sent();
    let mut confirmations = 0;
    for _ in 0..600 {
        lone.pass(Duration::from_millis(100));
        lone.send(socket, (STRANGER, 9).into(), b"x").unwrap();
        let sent = lone.sent();
        assert_eq!(destinations(&sent), [STRANGER_MAC]);
        for (target, to) in requests(&sent) {
            assert_eq!((target, to), (STRANGER, STRANGER_MAC));
            confirmations += 1;
            lone.put(&arp_reply((STRANGER_MAC, STRANGER)));
        }
    }
    assert!((3..=4).contains(&confirmations), "{confirmations} in a minute");
}

#[test]
fn a_host_that_moved_silently_is_found_by_asking_everybody() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    lone.put(&arp(Request, (STRANGER_MAC, STRANGER), Side::A.ip(), BROADCAST));
    lone.pass(Duration::from_secs(16));
    lone.sent();
    lone.send(socket, (STRANGER, 9).into(), b"x").unwrap();
    lone.pass(Duration::from_millis(3_000));
    let sent = lone.sent();
    let to: Vec<_> = requests(&sent).into_iter().map(|(_, to)| to).collect();
    assert_eq!(to, [STRANGER_MAC, STRANGER_MAC, STRANGER_MAC, BROADCAST]);
    // Until the answer comes packets wait instead of going nowhere.
    lone.send(socket, (STRANGER, 9).into(), b"y").unwrap();
    assert!(destinations(&lone.sent()).is_empty());
    lone.put(&arp_reply((MOVED_MAC, STRANGER)));
    assert_eq!(destinations(&lone.sent()), [MOVED_MAC]);
}

#[test]
fn traffic_beyond_the_subnet_asks_for_the_gateway() {
    let gateway = Ipv4Addr::new(10, 0, 0, 254);
    let mut lone = Lone::new(|config| config.ipv4.as_mut().unwrap().gateway = Some(gateway));
    let socket = lone.host.udp(5);
    for host in 1..=3 {
        lone.send(socket, (Ipv4Addr::new(192, 0, 2, host), 9).into(), b"x").unwrap();
    }
    assert_eq!(requests(&lone.sent()), [(gateway, BROADCAST)]);
    lone.put(&arp_reply((STRANGER_MAC, gateway)));
    assert_eq!(destinations(&lone.sent()), [STRANGER_MAC; 3]);
}

#[test]
fn a_thousand_neighbours_are_remembered() {
    let mut lone = Lone::new(wide);
    let socket = lone.host.udp(5);
    for n in 0..1_024 {
        let (mac, ip) = neighbor(n);
        lone.send(socket, (ip, 9).into(), b"x").unwrap();
        assert_eq!(requests(&lone.sent()), [(ip, BROADCAST)]);
        lone.put(&arp_reply((mac, ip)));
        assert_eq!(destinations(&lone.sent()), [mac]);
    }
    for n in 0..1_024 {
        let (mac, ip) = neighbor(n);
        lone.send(socket, (ip, 9).into(), b"x").unwrap();
        let sent = lone.sent();
        assert_eq!((destinations(&sent), requests(&sent).len()), (vec![mac], 0));
    }
    assert_eq!(lone.host.counter("neighbor_evictions"), 0);
}

#[test]
fn a_full_table_forgets_those_not_used_lately() {
    let mut lone = Lone::new(|config| {
        wide(config);
        config.neighbors_max = 8;
    });
    let socket = lone.host.udp(5);
    let (busy_mac, busy) = neighbor(0);
    for n in 0..100 {
        let (mac, ip) = neighbor(n);
        lone.send(socket, (ip, 9).into(), b"x").unwrap();
        lone.put(&arp_reply((mac, ip)));
        lone.sent();
        lone.send(socket, (busy, 9).into(), b"x").unwrap();
        assert_eq!(destinations(&lone.sent()), [busy_mac], "after {n}");
    }
    assert_eq!(lone.host.counter("neighbor_evictions"), 92);
    // Askers find no room to push others out.
    let (mac, ip) = neighbor(200);
    lone.put(&arp(Request, (mac, ip), Side::A.ip(), BROADCAST));
    assert_eq!(lone.sent().len(), 1);
    assert_eq!(lone.host.counter("neighbor_evictions"), 92);
}

#[test]
fn too_many_waiting_packets_push_out_the_oldest() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    for n in 0..1_000u32 {
        let mut data = vec![0; 1_000];
        data[..4].copy_from_slice(&n.to_be_bytes());
        lone.send(socket, (STRANGER, 9).into(), &data).unwrap();
    }
    lone.sent();
    lone.put(&arp_reply((STRANGER_MAC, STRANGER)));
    let sent = lone.sent();
    let numbers: Vec<u32> =
        sent.iter().map(|f| u32::from_be_bytes(f[42..46].try_into().unwrap())).collect();
    let dropped = lone.host.counter("tx_drop_neighbor_queue");
    assert_eq!(numbers, (dropped as u32..1_000).collect::<Vec<_>>());
    assert!(numbers.len() > 200 && dropped > 700, "{} kept", numbers.len());
}

#[test]
fn memory_for_waiting_packets_is_bounded_over_all_neighbours() {
    let mut lone = Lone::new(wide);
    let socket = lone.host.udp(5);
    for n in 0..200 {
        for _ in 0..100 {
            lone.send(socket, (neighbor(n).1, 9).into(), &[0; 1_400]).unwrap();
        }
    }
    let kept = 200 * 100 - lone.host.counter("tx_drop_neighbor_queue");
    assert!((2_000..=3_000).contains(&kept), "{kept} frames of 1442 bytes");
    lone.pass(Duration::from_secs(5));
    assert_eq!(lone.host.counter("tx_drop_neighbor_failed"), kept);
    assert_eq!(lone.host.counter("neighbor_failures"), 200);
}

#[test]
fn a_large_datagram_for_an_unknown_neighbour_arrives_whole() {
    let mut net = Net::new(1, LinkModel::default());
    let (a, b) = (net.udp(Side::A, 5), net.udp(Side::B, 6));
    let data = SplitMix::new(4).bytes(65_507);
    net.send(Side::A, a, Side::B.addr(6), &data);
    net.run_for(Duration::from_millis(1));
    assert!(net.recv(Side::B, b).unwrap().0 == data);
}

#[test]
fn questions_survive_a_device_without_room() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    lone.host.sink.set_room(0);
    lone.send(socket, (STRANGER, 9).into(), b"x").unwrap();
    assert!(lone.host.stack.wants_poll());
    lone.host.sink.set_room(usize::MAX);
    lone.host.poll(lone.now);
    assert_eq!(requests(&lone.sent()), [(STRANGER, BROADCAST)]);
    lone.host.sink.set_room(0);
    lone.put(&arp_reply((STRANGER_MAC, STRANGER)));
    assert!(lone.host.stack.wants_poll());
    lone.host.sink.set_room(usize::MAX);
    lone.host.poll(lone.now);
    assert_eq!(destinations(&lone.sent()), [STRANGER_MAC]);
    assert!(!lone.host.stack.wants_poll());
}

#[test]
fn frames_from_unknown_hosts_do_not_teach_addresses() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    lone.put(&udp_frame(9, 5, b"hello"));
    assert_eq!(lone.host.udp_recv(socket).unwrap().0, b"hello");
    lone.send(socket, (STRANGER, 9).into(), b"x").unwrap();
    assert_eq!(requests(&lone.sent()), [(STRANGER, BROADCAST)]);
}

#[test]
fn a_vlan_port_speaks_and_hears_its_own_tag_alone() {
    let mut lone = Lone::new(|config| config.vlan = Some(42));
    let socket = lone.host.udp(5);
    let tag = |frame: &[u8], tci: u16| {
        let mut tagged = frame[..12].to_vec();
        tagged.extend([0x81, 0]);
        tagged.extend(tci.to_be_bytes());
        tagged.extend(&frame[12..]);
        tagged
    };
    let plain = udp_frame(9, 5, b"hello");
    lone.put(&plain);
    lone.put(&tag(&plain, 0));
    lone.put(&tag(&plain, 43));
    lone.put(&tag(&tag(&plain, 42), 42));
    assert!(lone.host.udp_recv(socket).is_err());
    lone.put(&tag(&plain, 42 | 0xe000));
    assert!(lone.host.udp_recv(socket).is_ok());
    lone.send(socket, (STRANGER, 9).into(), &[1; 1_472]).unwrap();
    lone.put(&tag(&arp_reply((STRANGER_MAC, STRANGER)), 42));
    let sent = lone.sent();
    assert!(sent.iter().all(|frame| frame[12..16] == [0x81, 0, 0, 42]), "{sent:?}");
    assert_eq!(sent.last().unwrap().len(), 1_518, "a full packet fits beside the tag");
    assert_eq!(lone.host.counter("rx_drop_other_vlan"), 3);
    lone.host.check_books();
}

#[test]
fn two_hosts_on_a_vlan_reach_each_other() {
    let mut net = Net::with(3, LinkModel::default(), |_, config| config.vlan = Some(7));
    let (a, b) = (net.udp(Side::A, 5), net.udp(Side::B, 6));
    let data = SplitMix::new(4).bytes(10_000);
    net.send(Side::A, a, Side::B.addr(6), &data);
    net.run_for(Duration::from_millis(1));
    assert!(net.recv(Side::B, b).unwrap().0 == data);
    // To oneself as well.
    net.send(Side::A, a, Side::A.addr(5), &data);
    net.run_for(Duration::from_millis(1));
    assert!(net.recv(Side::A, a).unwrap().0 == data);
    net.check_books();
}

#[test]
fn a_priority_tag_is_no_vlan() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    let datagram = udp((STRANGER, 9), (Side::A.ip(), 5), b"hello");
    let mut frame = to_a(&crate::support::frames::ipv4(STRANGER, Side::A.ip(), 17, &datagram));
    frame.splice(12..12, [0x81, 0, 0xe0, 0]);
    lone.put(&frame);
    assert_eq!(lone.host.udp_recv(socket).unwrap().0, b"hello");
}
