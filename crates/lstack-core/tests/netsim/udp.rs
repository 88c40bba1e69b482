//! UDP sockets from end to end.

use std::collections::HashSet;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use lstack_core::tcp::{BindError, Close, OpenError, Reuse, Shutdown};
use lstack_core::udp::{UdpOption, UdpRecvError, UdpSendError};
use lstack_core::{Readiness, SocketId};
use smoltcp::wire::ArpOperation;

use crate::support::frames::{
    BROADCAST, STRANGER, STRANGER_MAC, arp, arp_reply, ipv4, to_a, udp, udp_frame,
};
use crate::support::{LinkModel, Lone, Net, Side, SplitMix};

const ADDRESS: Reuse = Reuse { address: true, port: false };
const PORT: Reuse = Reuse { address: false, port: true };
const NEITHER: Reuse = Reuse { address: false, port: false };

fn any(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}

fn lone() -> Lone {
    Lone::new(|_| {})
}

/// A lone host that knows the stranger.
fn acquainted() -> Lone {
    let mut lone = lone();
    lone.put(&arp(ArpOperation::Request, (STRANGER_MAC, STRANGER), Side::A.ip(), BROADCAST));
    lone.sent();
    lone
}

fn bound(lone: &mut Lone, local: SocketAddr, reuse: Reuse) -> Result<SocketId, BindError> {
    let socket = lone.host.stack.udp_open().unwrap();
    lone.host.stack.bind(socket, local, reuse).map(|_| socket)
}

/// Sends every size through the link and checks every byte.
fn exchange(net: &mut Net, sizes: impl Iterator<Item = usize>) {
    let (a, b) = (net.udp(Side::A, 5), net.udp(Side::B, 6));
    let pattern = SplitMix::new(9).bytes(70_000);
    for len in sizes {
        let data = &pattern[len % 1_000..][..len];
        net.send(Side::A, a, Side::B.addr(6), data);
        net.run_for(Duration::from_millis(1));
        let (bytes, datagram) = net.recv(Side::B, b).unwrap_or_else(|| panic!("{len} bytes"));
        assert!(bytes == data, "{len} bytes");
        assert_eq!((datagram.len, datagram.from), (len, Side::A.addr(5)));
    }
    net.check_books();
}

#[test]
fn every_size_arrives() {
    // In full up to three fragments; beyond that around each multiple of a fragment's payload.
    let edges = (3..=44).flat_map(|n| n * 1_480 - 40..n * 1_480 + 4);
    let sizes = (0..4_500).chain(edges).chain(65_400..=65_507);
    exchange(&mut Net::new(1, LinkModel::default()), sizes.filter(|&len| len <= 65_507));
}

#[test]
fn other_mtus_work() {
    for mtu in [576, 1_006, 9_000] {
        let model = LinkModel { mtu, ..LinkModel::default() };
        exchange(&mut Net::new(2, model), (0..20_000).step_by(97).chain([65_507]));
    }
}

#[test]
fn devices_that_compute_checksums_are_used() {
    let mut net = Net::with(3, LinkModel::default(), |_, config| {
        config.link.tx_ip_checksum = true;
        config.link.tx_udp_checksum = true;
    });
    exchange(&mut net, (0..4_000).step_by(7));
}

#[test]
fn ends_ttl_and_tos_are_reported() {
    let mut net = Net::new(1, LinkModel::default());
    let (a, b) = (net.udp(Side::A, 5), net.udp(Side::B, 6));
    net.stack(Side::A).udp_set_option(a, UdpOption::Ttl(17));
    net.stack(Side::A).udp_set_option(a, UdpOption::Tos(0x2e));
    net.send(Side::A, a, Side::B.addr(6), b"x");
    net.run_for(Duration::from_millis(1));
    let (_, datagram) = net.recv(Side::B, b).unwrap();
    assert_eq!((datagram.ttl, datagram.tos), (17, 0x2e));
    assert_eq!((datagram.from, datagram.to), (Side::A.addr(5), IpAddr::V4(Side::B.ip())));
}

#[test]
fn a_short_buffer_truncates_and_peeking_takes_nothing() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    lone.put(&udp_frame(9, 5, b"abcdef"));
    lone.put(&udp_frame(9, 5, b""));
    let mut buffer = [0; 4];
    for (peek, unread) in [(true, 6), (false, 6)] {
        assert_eq!(lone.host.stack.unread(socket), unread);
        let bufs = &mut [std::io::IoSliceMut::new(&mut buffer)];
        let datagram = lone.host.stack.udp_recv(socket, bufs, peek).unwrap();
        assert_eq!((datagram.copied, datagram.len), (4, 6));
        assert_eq!(&buffer, b"abcd");
    }
    assert!(lone.host.stack.readiness(socket).contains(Readiness::READABLE));
    assert_eq!(lone.host.udp_recv(socket).unwrap().1.len, 0);
    assert_eq!(lone.host.udp_recv(socket).unwrap_err(), UdpRecvError::WouldBlock);
    assert!(!lone.host.stack.readiness(socket).contains(Readiness::READABLE));
}

#[test]
fn each_arrival_is_an_edge_and_one_burst_one_event() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    for _ in 0..3 {
        for _ in 0..4 {
            lone.host.stack.handle_frame(lone.now, &udp_frame(9, 5, b"x"), Default::default());
        }
        lone.host.poll(lone.now);
        assert_eq!(lone.host.events.len(), 1);
        let event = lone.host.events.pop_front().unwrap();
        assert_eq!(event.socket, socket);
        assert_eq!(event.edges, Readiness::READABLE);
        assert_eq!(event.level, Readiness::READABLE | Readiness::WRITABLE);
    }
}

#[test]
fn too_long_and_destinationless_datagrams_are_refused() {
    let mut lone = acquainted();
    let socket = lone.host.udp(5);
    let to = (STRANGER, 9).into();
    assert_eq!(lone.send(socket, to, &[0; 65_508]), Err(UdpSendError::TooLong));
    assert_eq!(lone.send(socket, to, &[0; 65_507]), Ok(65_507));
    lone.host.stack.udp_set_option(socket, UdpOption::DontFragment(true));
    assert_eq!(lone.send(socket, to, &[0; 1_473]), Err(UdpSendError::TooLong));
    lone.sent();
    assert_eq!(lone.send(socket, to, &[0; 1_472]), Ok(1_472));
    assert_eq!(lone.sent()[0][20], 0x40, "don't fragment");
    let now = lone.now;
    assert_eq!(lone.host.udp_send(now, socket, None, b"x"), Err(UdpSendError::NoDestination));
    let far = "192.0.2.1:9".parse().unwrap();
    assert_eq!(lone.send(socket, far, b"x"), Err(UdpSendError::Unreachable));
    let v6 = "[2001:db8::1]:9".parse().unwrap();
    assert_eq!(lone.send(socket, v6, b"x"), Err(UdpSendError::Unreachable));
    assert_eq!(lone.host.stack.udp_connect(socket, Some(v6)), Err(UdpSendError::Unreachable));
}

#[test]
fn a_datagram_is_gathered_from_its_pieces() {
    let mut lone = acquainted();
    let socket = lone.host.udp(5);
    let pieces = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")];
    let to = Some((STRANGER, 9).into());
    let sent = lone.host.stack.udp_send(lone.now, socket, to, &pieces, &mut lone.host.sink);
    assert_eq!(sent, Ok(5));
    assert_eq!(lone.sent()[0][42..], *b"abcde");
}

#[test]
fn a_connected_socket_hears_its_peer_alone() {
    let mut lone = acquainted();
    let socket = lone.host.udp(5);
    let stack = &mut lone.host.stack;
    stack.udp_connect(socket, Some((STRANGER, 9).into())).unwrap();
    assert_eq!(stack.local_addr(socket), Some(Side::A.addr(5)));
    assert_eq!(stack.remote_addr(socket), Some((STRANGER, 9).into()));
    lone.put(&udp_frame(10, 5, b"other port"));
    lone.put(&udp_frame(9, 5, b"peer"));
    assert_eq!(lone.host.udp_recv(socket).unwrap().0, b"peer");
    assert!(lone.host.udp_recv(socket).is_err());
    lone.sent();
    // Without an address to the peer, with one to anybody.
    let now = lone.now;
    lone.host.udp_send(now, socket, None, b"x").unwrap();
    assert_eq!(lone.sent()[0][36..38], 9u16.to_be_bytes());
    lone.send(socket, (STRANGER, 11).into(), b"x").unwrap();
    assert_eq!(lone.sent()[0][36..38], 11u16.to_be_bytes());
    // Another peer, then none.
    lone.host.stack.udp_connect(socket, Some((STRANGER, 10).into())).unwrap();
    lone.put(&udp_frame(10, 5, b"new peer"));
    lone.put(&udp_frame(9, 5, b"old peer"));
    assert_eq!(lone.host.udp_recv(socket).unwrap().0, b"new peer");
    assert!(lone.host.udp_recv(socket).is_err());
    lone.host.stack.udp_connect(socket, None).unwrap();
    assert_eq!(lone.host.stack.local_addr(socket), Some(any(5)));
    assert_eq!(lone.host.stack.remote_addr(socket), None);
    lone.put(&udp_frame(9, 5, b"anybody"));
    assert_eq!(lone.host.udp_recv(socket).unwrap().0, b"anybody");
}

#[test]
fn dissolving_gives_back_a_port_nobody_chose() {
    let mut lone = lone();
    let socket = lone.host.stack.udp_open().unwrap();
    assert_eq!(lone.host.stack.local_addr(socket), Some(any(0)));
    lone.host.stack.udp_connect(socket, Some((STRANGER, 9).into())).unwrap();
    let port = lone.host.stack.local_addr(socket).unwrap().port();
    assert_eq!(bound(&mut lone, any(port), NEITHER), Err(BindError::InUse));
    lone.host.stack.udp_connect(socket, None).unwrap();
    assert_eq!(lone.host.stack.local_addr(socket), Some(any(0)));
    assert!(bound(&mut lone, any(port), NEITHER).is_ok());
}

#[test]
fn connected_beats_bound_beats_wildcard() {
    let mut lone = lone();
    let wildcard = bound(&mut lone, any(5), ADDRESS).unwrap();
    let specific = bound(&mut lone, Side::A.addr(5), ADDRESS).unwrap();
    let connected = bound(&mut lone, Side::A.addr(5), ADDRESS).unwrap();
    lone.host.stack.udp_connect(connected, Some((STRANGER, 9).into())).unwrap();
    for (src_port, expected) in [(9, connected), (10, specific)] {
        lone.put(&udp_frame(src_port, 5, b"x"));
        for socket in [wildcard, specific, connected] {
            assert_eq!(lone.host.udp_recv(socket).is_ok(), socket == expected);
        }
    }
    lone.host.stack.close(lone.now, specific, Close::Graceful);
    lone.put(&udp_frame(10, 5, b"x"));
    assert!(lone.host.udp_recv(wildcard).is_ok());
    lone.host.check_books();
}

#[test]
fn addresses_are_shared_as_on_linux() {
    let own = Side::A.addr(5);
    for (first, second, shared) in [
        (NEITHER, NEITHER, false),
        (ADDRESS, NEITHER, false),
        (ADDRESS, ADDRESS, true),
        (PORT, PORT, true),
        (PORT, ADDRESS, false),
    ] {
        for (one, two) in [(own, own), (any(5), any(5)), (own, any(5)), (any(5), own)] {
            let mut lone = lone();
            bound(&mut lone, one, first).unwrap();
            let result = bound(&mut lone, two, second);
            assert_eq!(result.is_ok(), shared, "{first:?} {second:?} {one} {two}");
        }
    }
    let mut lone = lone();
    assert_eq!(bound(&mut lone, (STRANGER, 5).into(), NEITHER), Err(BindError::NotLocal));
    let socket = bound(&mut lone, own, NEITHER).unwrap();
    let again = lone.host.stack.bind(socket, any(6), NEITHER);
    assert_eq!(again, Err(BindError::AlreadyBound));
    lone.host.stack.close(lone.now, socket, Close::Graceful);
    assert!(bound(&mut lone, own, NEITHER).is_ok());
}

#[test]
fn the_newest_of_reuseaddr_sockets_gets_all() {
    let mut lone = lone();
    let old = bound(&mut lone, any(5), ADDRESS).unwrap();
    let new = bound(&mut lone, any(5), ADDRESS).unwrap();
    for src in 0..20 {
        lone.put(&udp_frame(src, 5, b"x"));
        assert!(lone.host.udp_recv(new).is_ok() && lone.host.udp_recv(old).is_err());
    }
    lone.host.stack.close(lone.now, new, Close::Graceful);
    lone.put(&udp_frame(9, 5, b"x"));
    assert!(lone.host.udp_recv(old).is_ok());
}

#[test]
fn reuseport_sockets_share_the_peers_and_each_peer_sticks() {
    let mut lone = lone();
    let sockets: Vec<_> = (0..4).map(|_| bound(&mut lone, any(5), PORT).unwrap()).collect();
    let receiver = |lone: &mut Lone, src: u16| {
        lone.put(&udp_frame(src, 5, b"x"));
        let got: Vec<_> = (0..4).filter(|&i| lone.host.udp_recv(sockets[i]).is_ok()).collect();
        assert_eq!(got.len(), 1);
        got[0]
    };
    let mut counts = [0; 4];
    for src in 1..=400 {
        let first = receiver(&mut lone, src);
        assert_eq!(receiver(&mut lone, src), first);
        counts[first] += 1;
    }
    assert!(counts.iter().all(|&n| n > 60), "{counts:?}");
}

#[test]
fn random_ports_are_unpredictable_and_run_out_cleanly() {
    let mut lone = Lone::new(|config| config.udp.max_sockets = 40_000);
    let mut ports = Vec::new();
    loop {
        let socket = lone.host.stack.udp_open().unwrap();
        match lone.host.stack.bind(socket, any(0), NEITHER) {
            Ok(local) => ports.push(local.port()),
            Err(error) => {
                assert_eq!(error, BindError::NoFreePort);
                break;
            }
        }
    }
    assert_eq!(ports.len(), 60_999 - 32_768 + 1);
    assert_eq!(ports.iter().collect::<HashSet<_>>().len(), ports.len());
    let in_order = ports[..1_000].windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
    assert!(in_order < 10, "{in_order} ports follow the one before");
    let socket = lone.host.stack.udp_open().unwrap();
    let sent = lone.send(socket, (STRANGER, 9).into(), b"x");
    assert_eq!(sent, Err(UdpSendError::NoFreePort));
}

#[test]
fn sockets_are_limited_and_dead_ids_find_nothing() {
    let mut lone = Lone::new(|config| config.udp.max_sockets = 2);
    let first = lone.host.udp(5);
    lone.host.udp(6);
    assert_eq!(lone.host.stack.udp_open(), Err(OpenError::LimitReached));
    lone.host.stack.close(lone.now, first, Close::Graceful);
    lone.host.stack.close(lone.now, first, Close::Graceful);
    let second = lone.host.udp(7);
    assert_eq!(second.slot(), first.slot());
    assert_ne!(second, first);
    let stack = &mut lone.host.stack;
    assert_eq!(stack.local_addr(first), None);
    assert_eq!(stack.readiness(first), Readiness::empty());
    assert_eq!(stack.bind(first, any(8), NEITHER), Err(BindError::NoSocket));
    assert_eq!(stack.udp_connect(first, None), Err(UdpSendError::NoSocket));
    assert_eq!(lone.send(first, (STRANGER, 9).into(), b"x"), Err(UdpSendError::NoSocket));
    assert_eq!(lone.host.stack.sockets().len(), 2);
}

#[test]
fn a_full_queue_drops_the_newest_and_counts() {
    let mut lone = lone();
    let (slow, other) = (lone.host.udp(5), lone.host.udp(6));
    lone.host.stack.udp_set_option(slow, UdpOption::RecvBuffer(64 * 1_024));
    for n in 0..1_000u32 {
        lone.put(&udp_frame(9, 5, &[&n.to_be_bytes()[..], &[0; 1_000]].concat()));
        lone.put(&udp_frame(9, 6, b"x"));
        assert!(lone.host.udp_recv(other).is_ok());
    }
    let received: Vec<u32> = std::iter::from_fn(|| lone.host.udp_recv(slow).ok())
        .map(|(bytes, _)| u32::from_be_bytes(bytes[..4].try_into().unwrap()))
        .collect();
    assert_eq!(received, (0..received.len() as u32).collect::<Vec<_>>());
    assert!((50..=65).contains(&received.len()), "{}", received.len());
    let dropped = lone.host.counter("udp_drop_queue_full");
    assert_eq!(dropped, 1_000 - received.len() as u64);
    lone.put(&udp_frame(9, 5, b"again"));
    assert_eq!(lone.host.udp_recv(slow).unwrap().0, b"again");
    lone.host.check_books();
}

#[test]
fn a_sender_without_room_waits_and_is_told() {
    let mut lone = acquainted();
    let socket = lone.host.udp(5);
    let to = (STRANGER, 9).into();
    lone.host.sink.set_room(1);
    lone.send(socket, to, b"first").unwrap();
    assert_eq!(lone.send(socket, to, b"second"), Err(UdpSendError::WouldBlock));
    assert!(!lone.host.stack.readiness(socket).contains(Readiness::WRITABLE));
    assert!(lone.host.stack.wants_poll());
    assert!(lone.host.events.is_empty());
    assert_eq!(lone.sent().len(), 1);
    lone.host.poll(lone.now);
    let event = lone.host.events.pop_front().unwrap();
    assert_eq!((event.socket, event.edges), (socket, Readiness::WRITABLE));
    assert!(event.level.contains(Readiness::WRITABLE));
    lone.send(socket, to, b"second").unwrap();
    assert_eq!(lone.sent()[0][42..], *b"second");
    assert!(!lone.host.stack.wants_poll());
}

#[test]
fn a_large_datagram_is_sent_in_full_or_not_at_all() {
    let mut lone = acquainted();
    let socket = lone.host.udp(5);
    let to = (STRANGER, 9).into();
    lone.host.sink.set_room(10);
    lone.send(socket, to, &[1; 65_507]).unwrap();
    let mut frames = lone.sent();
    assert_eq!(frames.len(), 10);
    for _ in 0..4 {
        // The rest goes first, whatever comes now.
        lone.host.poll(lone.now);
        frames.extend(lone.sent());
    }
    assert_eq!(frames.len(), 45);
    lone.host.sink.set_room(0);
    assert_eq!(lone.send(socket, to, &[1; 65_507]), Err(UdpSendError::WouldBlock));
    lone.host.sink.set_room(usize::MAX);
    lone.host.poll(lone.now);
    assert!(lone.sent().is_empty());
}

#[test]
fn the_own_address_is_reached_inside_the_stack() {
    let mut lone = lone();
    let (a, b) = (lone.host.udp(5), lone.host.udp(6));
    for len in [0, 1, 1_472, 1_473, 65_507] {
        let data = SplitMix::new(len as u64).bytes(len);
        lone.send(a, Side::A.addr(6), &data).unwrap();
        let (bytes, datagram) = lone.host.udp_recv(b).unwrap();
        assert!(bytes == data);
        assert_eq!(datagram.from, Side::A.addr(5));
    }
    assert!(lone.sent().is_empty());
    // A closed port answers here too.
    lone.host.stack.udp_connect(a, Some(Side::A.addr(99))).unwrap();
    let now = lone.now;
    lone.host.udp_send(now, a, None, b"x").unwrap();
    lone.host.poll(lone.now);
    lone.host.poll(lone.now);
    assert!(lone.host.stack.take_error(a).is_some());
    lone.host.check_books();
}

#[test]
fn a_flood_to_oneself_is_bounded() {
    let mut lone = lone();
    let (a, _) = (lone.host.udp(5), lone.host.udp(6));
    let mut sent = 0;
    let now = lone.now;
    while lone.host.udp_send(now, a, Some(Side::A.addr(6)), &[0; 60_000]).is_ok() {
        sent += 1;
    }
    assert!((60..80).contains(&sent), "{sent} datagrams of 60,000 bytes");
    lone.host.poll(now);
    assert!(lone.host.stack.readiness(a).contains(Readiness::WRITABLE));
    assert!(lone.host.udp_send(now, a, Some(Side::A.addr(6)), b"x").is_ok());
    lone.host.poll(now);
    lone.host.check_books();
}

#[test]
fn broadcasts_need_permission_and_reach_everybody() {
    let mut net = Net::new(1, LinkModel::default());
    let a = net.udp(Side::A, 6);
    let b = [ADDRESS, ADDRESS].map(|reuse| {
        let socket = net.stack(Side::B).udp_open().unwrap();
        net.stack(Side::B).bind(socket, any(6), reuse).unwrap();
        socket
    });
    for dst in [Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 0, 255)] {
        let to = SocketAddr::new(dst.into(), 6);
        let now = net.now;
        net.stack(Side::A).udp_set_option(a, UdpOption::Broadcast(false));
        let denied = net.host(Side::A).udp_send(now, a, Some(to), b"x");
        assert_eq!(denied, Err(UdpSendError::BroadcastDenied));
        let denied = net.stack(Side::A).udp_connect(a, Some(to));
        assert_eq!(denied, Err(UdpSendError::BroadcastDenied));
        net.stack(Side::A).udp_set_option(a, UdpOption::Broadcast(true));
        for len in [3, 4_000] {
            net.send(Side::A, a, to, &vec![len as u8; len]);
            net.run_for(Duration::from_millis(1));
            for socket in b {
                let (bytes, datagram) = net.recv(Side::B, socket).unwrap();
                assert_eq!((bytes.len(), datagram.to), (len, IpAddr::V4(dst)));
            }
            assert_eq!(net.recv(Side::A, a).unwrap().0.len(), len, "the sender hears itself");
        }
    }
    net.check_books();
}

#[test]
fn groups_leave_with_their_own_hardware_address_and_ttl_one() {
    let mut lone = lone();
    let socket = lone.host.udp(5);
    lone.send(socket, "239.129.2.3:9".parse().unwrap(), b"x").unwrap();
    let sent = lone.sent();
    assert_eq!(sent[0][..6], [1, 0, 0x5e, 1, 2, 3]);
    assert_eq!(sent[0][22], 1);
}

#[test]
fn a_socket_bound_to_the_broadcast_address_hears_broadcasts_alone() {
    let mut lone = acquainted();
    let all: Ipv4Addr = [10, 0, 0, 255].into();
    let socket = bound(&mut lone, (all, 5).into(), NEITHER).unwrap();
    lone.put(&udp_frame(9, 5, b"to us"));
    lone.put(&to_a(&ipv4(STRANGER, all, 17, &udp((STRANGER, 9), (all, 5), b"to all"))));
    assert_eq!(lone.host.udp_recv(socket).unwrap().0, b"to all");
    assert!(lone.host.udp_recv(socket).is_err());
    lone.sent();
    lone.send(socket, (STRANGER, 9).into(), b"x").unwrap();
    assert_eq!(lone.sent()[0][26..30], Side::A.ip().octets(), "it sends as this host");
}

#[test]
fn shutdown_ends_the_directions() {
    let mut lone = acquainted();
    let socket = lone.host.udp(5);
    lone.host.stack.udp_connect(socket, Some((STRANGER, 9).into())).unwrap();
    lone.put(&udp_frame(9, 5, b"before"));
    lone.host.stack.tcp_shutdown(lone.now, socket, Shutdown::Read).unwrap();
    lone.put(&udp_frame(9, 5, b"after"));
    assert_eq!(lone.host.udp_recv(socket).unwrap().0, b"before");
    assert_eq!(lone.host.udp_recv(socket).unwrap().0, b"after");
    assert_eq!(lone.host.udp_recv(socket).unwrap_err(), UdpRecvError::Shutdown);
    let level = lone.host.stack.readiness(socket);
    assert_eq!(level, Readiness::READABLE | Readiness::WRITABLE | Readiness::READ_HANGUP);
    lone.host.stack.tcp_shutdown(lone.now, socket, Shutdown::Write).unwrap();
    assert!(lone.host.stack.readiness(socket).contains(Readiness::HANGUP));
    let now = lone.now;
    assert_eq!(lone.host.udp_send(now, socket, None, b"x"), Err(UdpSendError::BrokenPipe));
    lone.host.check_books();
}

#[test]
fn work_does_not_depend_on_the_number_of_sockets() {
    // Not a measurement: ten thousand sockets, each found by its own datagram.
    let mut lone = lone();
    let sockets: Vec<_> = (1..=10_000).map(|port| lone.host.udp(port)).collect();
    for (&socket, port) in sockets.iter().zip(1..) {
        lone.put(&udp_frame(9, port, &port.to_be_bytes()));
        assert_eq!(lone.host.udp_recv(socket).unwrap().0, port.to_be_bytes());
        assert_eq!(lone.host.events.pop_front().unwrap().socket, socket);
    }
    for socket in sockets {
        lone.host.stack.close(lone.now, socket, Close::Graceful);
    }
    assert!(lone.host.stack.sockets().is_empty());
    lone.put(&arp_reply((STRANGER_MAC, STRANGER)));
    lone.host.check_books();
}
