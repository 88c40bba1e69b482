//! Options on sockets that are undecided, connected, accepted, listening.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::time::Duration;

use super::table::{Acts, Answer, TABLE};
use crate::description::Settings;
use crate::errno::Errno;
use crate::posix::Outcome;
use crate::testbed::{STACK, Testbed, done, raw};

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const IP: i32 = libc::IPPROTO_IP;

fn set(bed: &Testbed, fd: RawFd, level: i32, name: i32, value: i32) -> Outcome<()> {
    bed.posix.setsockopt(fd, level, name, &value.to_ne_bytes())
}

fn get(bed: &Testbed, fd: RawFd, level: i32, name: i32) -> Outcome<i32> {
    let mut out = [0; 4];
    match bed.posix.getsockopt(fd, level, name, &mut out) {
        Outcome::Kernel => Outcome::Kernel,
        Outcome::Done(result) => Outcome::Done(result.map(|len| {
            assert_eq!(len, 4);
            i32::from_ne_bytes(out)
        })),
    }
}

fn settings(bed: &Testbed, fd: RawFd) -> Settings {
    let handle = bed.posix.socket_handle(fd).expect("it is ours");
    let settings = handle.socket().settings.lock();
    *settings
}

fn fails<T>(errno: i32) -> Outcome<T> {
    Outcome::Done(Err(Errno(errno)))
}

#[test]
fn the_table_has_every_option_that_programs_are_known_to_use() {
    let wanted = "SO_REUSEADDR SO_REUSEPORT SO_KEEPALIVE SO_LINGER SO_RCVBUF SO_SNDBUF \
        SO_RCVBUFFORCE SO_PRIORITY SO_MARK SO_BINDTODEVICE SO_BUSY_POLL SO_INCOMING_CPU \
        SO_TIMESTAMP SO_ERROR SO_TYPE SO_DOMAIN SO_PROTOCOL SO_ACCEPTCONN SO_RCVLOWAT SO_ZEROCOPY \
        SO_RCVTIMEO SO_SNDTIMEO TCP_NODELAY TCP_CORK TCP_MAXSEG TCP_KEEPIDLE TCP_KEEPINTVL \
        TCP_KEEPCNT TCP_SYNCNT TCP_LINGER2 TCP_DEFER_ACCEPT TCP_WINDOW_CLAMP TCP_INFO TCP_QUICKACK \
        TCP_CONGESTION TCP_USER_TIMEOUT TCP_FASTOPEN TCP_NOTSENT_LOWAT IP_TOS IP_TTL \
        IP_MTU_DISCOVER IP_MTU IP_RECVERR IP_PKTINFO IP_RECVTTL IP_RECVTOS \
        IP_BIND_ADDRESS_NO_PORT IP_TRANSPARENT IP_FREEBIND IPV6_V6ONLY";
    for label in wanted.split_whitespace() {
        assert!(TABLE.iter().any(|spec| spec.label == label), "{label}");
    }
}

#[test]
fn no_option_is_listed_twice() {
    for (index, spec) in TABLE.iter().enumerate() {
        let same = |other: &&super::Spec| (other.level, other.name) == (spec.level, spec.name);
        assert_eq!(TABLE[index + 1..].iter().find(same).map(|other| other.label), None);
    }
}

#[test]
fn what_the_placeholder_cannot_know_is_never_asked_of_it() {
    for label in "SO_ERROR SO_TYPE SO_DOMAIN SO_PROTOCOL SO_ACCEPTCONN TCP_INFO TCP_MAXSEG \
        TCP_CONGESTION IP_MTU SO_RCVBUF SO_SNDBUF"
        .split_whitespace()
    {
        let spec = TABLE.iter().find(|spec| spec.label == label).expect("it is in the table");
        assert!(matches!(spec.answer, Answer::Computed(_)), "{label}");
        assert!(!matches!(spec.acts, Acts::Refused), "{label}");
    }
}

#[test]
fn a_value_set_before_the_connection_reads_back_after_it_and_works() {
    let bed = Testbed::new();
    let (listener, port) = bed.listener(STACK);
    let client = bed.socket(libc::SOCK_STREAM);
    done(set(&bed, client, SOCKET, libc::SO_RCVBUF, 1000));
    done(set(&bed, client, SOCKET, libc::SO_SNDBUF, 50_000));
    done(set(&bed, client, TCP, libc::TCP_NODELAY, 7));
    bed.connect(client, port);
    assert_eq!(get(&bed, client, SOCKET, libc::SO_RCVBUF), Outcome::Done(Ok(2304)));
    assert_eq!(get(&bed, client, SOCKET, libc::SO_SNDBUF), Outcome::Done(Ok(100_000)));
    assert_eq!(get(&bed, client, TCP, libc::TCP_NODELAY), Outcome::Done(Ok(1)));
    let handle = bed.posix.socket_handle(client).expect("it is ours");
    let state = handle.socket().state();
    let endpoint = &state.endpoints()[0];
    let mut guard = endpoint.cell.lock();
    let now = guard.now();
    let info = guard.stack().tcp_info(now, endpoint.socket).expect("it is a connection");
    assert_eq!((info.send_buffer, info.recv_buffer), (50_000, 1152));
    drop(guard);
    bed.close(listener);
}

#[test]
fn an_accepted_connection_inherits_and_then_goes_its_own_way() {
    let bed = Testbed::new();
    let (listener, port) = bed.listener(STACK);
    done(set(&bed, listener, TCP, libc::TCP_KEEPIDLE, 77));
    done(set(&bed, listener, IP, libc::IP_TOS, 0x10));
    let timeout: Vec<u8> = [2_i64, 500_000].iter().flat_map(|word| word.to_ne_bytes()).collect();
    done(bed.posix.setsockopt(listener, SOCKET, libc::SO_RCVTIMEO, &timeout));
    let clients = [bed.socket(libc::SOCK_STREAM), bed.socket(libc::SOCK_STREAM)];
    for client in clients {
        bed.connect(client, port);
    }
    let [first, second] = [bed.accept(listener), bed.accept(listener)];
    assert_eq!(get(&bed, first, TCP, libc::TCP_KEEPIDLE), Outcome::Done(Ok(77)));
    assert_eq!(get(&bed, first, IP, libc::IP_TOS), Outcome::Done(Ok(0x10)));
    assert_eq!(settings(&bed, first).receive_timeout, Some(Duration::from_millis(2500)));
    done(set(&bed, first, TCP, libc::TCP_KEEPIDLE, 88));
    assert_eq!(get(&bed, first, TCP, libc::TCP_KEEPIDLE), Outcome::Done(Ok(88)));
    assert_eq!(get(&bed, second, TCP, libc::TCP_KEEPIDLE), Outcome::Done(Ok(77)));
    assert_eq!(get(&bed, listener, TCP, libc::TCP_KEEPIDLE), Outcome::Done(Ok(77)));
    assert_eq!(get(&bed, second, IP, libc::IP_TTL), Outcome::Done(Ok(64)), "Linux's default");
}

#[test]
fn the_kernels_error_is_the_answer_on_both_kinds_of_socket() {
    let bed = Testbed::new();
    let (client, server) = bed.pair();
    for fd in [client, server] {
        assert_eq!(set(&bed, fd, TCP, libc::TCP_KEEPIDLE, 0), fails(libc::EINVAL));
        assert_eq!(set(&bed, fd, SOCKET, libc::SO_ERROR, 0), fails(libc::ENOPROTOOPT));
        assert_eq!(bed.posix.setsockopt(fd, SOCKET, libc::SO_KEEPALIVE, &[1]), fails(libc::EINVAL));
        assert_eq!(
            bed.posix.setsockopt(fd, TCP, libc::TCP_CONGESTION, b"bogus"),
            fails(libc::ENOENT)
        );
        assert_eq!(get(&bed, fd, SOCKET, 999), fails(libc::ENOPROTOOPT));
        assert_eq!(set(&bed, fd, SOCKET, 999, 1), fails(libc::ENOPROTOOPT));
        assert_eq!(get(&bed, fd, 999, 1), fails(libc::EOPNOTSUPP));
    }
    let (datagram, _) = bed.datagram(STACK);
    assert_eq!(set(&bed, datagram, TCP, libc::TCP_NODELAY, 1), fails(libc::ENOPROTOOPT));
}

#[test]
fn an_option_that_only_the_kernel_has_reaches_its_half_of_the_socket() {
    let bed = Testbed::new();
    let undecided = bed.socket(libc::SOCK_DGRAM);
    assert_eq!(set(&bed, undecided, IP, libc::IP_ADD_MEMBERSHIP, 0), Outcome::Kernel);
    let (both, _) = bed.datagram(Ipv4Addr::UNSPECIFIED);
    assert_eq!(set(&bed, both, IP, libc::IP_ADD_MEMBERSHIP, 0), Outcome::Kernel);
    let (in_stack, _) = bed.datagram(STACK);
    let refused = set(&bed, in_stack, IP, libc::IP_ADD_MEMBERSHIP, 0);
    assert_eq!(refused, fails(libc::ENOPROTOOPT));
}

#[test]
fn promises_that_the_stack_cannot_keep_are_refused_before_it_is_known_who_serves() {
    let bed = Testbed::new();
    let undecided = bed.socket(libc::SOCK_STREAM);
    assert_eq!(set(&bed, undecided, SOCKET, libc::SO_ZEROCOPY, 1), fails(libc::ENOPROTOOPT));
}

#[test]
fn a_congestion_control_of_the_kernel_is_refused_in_the_stack() {
    let bed = Testbed::new();
    let undecided = bed.socket(libc::SOCK_STREAM);
    done(bed.posix.setsockopt(undecided, TCP, libc::TCP_CONGESTION, b"bbr"));
    let (client, _) = bed.pair();
    done(bed.posix.setsockopt(client, TCP, libc::TCP_CONGESTION, b"cubic"));
    let refused = bed.posix.setsockopt(client, TCP, libc::TCP_CONGESTION, b"bbr");
    assert_eq!(refused, fails(libc::ENOENT));
    let mut name = [0; 16];
    assert_eq!(done(bed.posix.getsockopt(client, TCP, libc::TCP_CONGESTION, &mut name)), 16);
    assert_eq!(&name[..6], b"cubic\0");
}

#[test]
fn what_a_socket_is_comes_from_the_stack() {
    let bed = Testbed::new();
    let (listener, _) = bed.listener(STACK);
    let (client, server) = bed.pair();
    for (fd, accepts) in [(listener, 1), (client, 0), (server, 0)] {
        assert_eq!(get(&bed, fd, SOCKET, libc::SO_TYPE), Outcome::Done(Ok(libc::SOCK_STREAM)));
        assert_eq!(get(&bed, fd, SOCKET, libc::SO_DOMAIN), Outcome::Done(Ok(libc::AF_INET)));
        assert_eq!(get(&bed, fd, SOCKET, libc::SO_PROTOCOL), Outcome::Done(Ok(TCP)));
        assert_eq!(get(&bed, fd, SOCKET, libc::SO_ACCEPTCONN), Outcome::Done(Ok(accepts)));
        assert_eq!(get(&bed, fd, SOCKET, libc::SO_ERROR), Outcome::Done(Ok(0)));
    }
}

#[test]
fn a_refused_connection_leaves_its_error_for_one_look() {
    let bed = Testbed::new();
    let client = bed.socket(libc::SOCK_STREAM);
    let (listener, port) = bed.listener(STACK);
    bed.close(listener);
    let refused = match bed.posix.connect(client, &raw(STACK, port)) {
        Outcome::Done(Err(Errno(libc::EINPROGRESS))) => get(&bed, client, SOCKET, libc::SO_ERROR),
        Outcome::Done(Err(error)) => Outcome::Done(Ok(error.0)),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused, Outcome::Done(Ok(libc::ECONNREFUSED)));
    assert_eq!(get(&bed, client, SOCKET, libc::SO_ERROR), Outcome::Done(Ok(0)));
}

#[test]
fn tcp_info_gives_as_much_as_is_asked_for() {
    let bed = Testbed::new();
    let (client, _) = bed.pair();
    let mut whole = [0xff; 512];
    let len = done(bed.posix.getsockopt(client, TCP, libc::TCP_INFO, &mut whole));
    assert_eq!((len, whole[0]), (240, 1));
    let mut part = [0; 104];
    assert_eq!(done(bed.posix.getsockopt(client, TCP, libc::TCP_INFO, &mut part)), 104);
    assert_eq!(part[0], 1);
    let (listener, _) = bed.listener(STACK);
    done(bed.posix.getsockopt(listener, TCP, libc::TCP_INFO, &mut part));
    assert_eq!(part[0], 10);
}

#[test]
fn the_largest_packet_is_known_of_connected_sockets_only() {
    let bed = Testbed::new();
    let (client, _) = bed.pair();
    assert!(matches!(get(&bed, client, IP, libc::IP_MTU), Outcome::Done(Ok(1500..))));
    let (datagram, _) = bed.datagram(STACK);
    assert_eq!(get(&bed, datagram, IP, libc::IP_MTU), fails(libc::ENOTCONN));
}

#[test]
fn one_timestamp_replaces_the_other() {
    let bed = Testbed::new();
    let (_, server) = bed.pair();
    done(set(&bed, server, SOCKET, libc::SO_TIMESTAMP, 1));
    done(set(&bed, server, SOCKET, libc::SO_TIMESTAMPNS, 1));
    assert_eq!(get(&bed, server, SOCKET, libc::SO_TIMESTAMP), Outcome::Done(Ok(0)));
    assert_eq!(get(&bed, server, SOCKET, libc::SO_TIMESTAMPNS), Outcome::Done(Ok(1)));
}

#[test]
fn linger_is_kept_with_its_time() {
    let bed = Testbed::new();
    let (client, _) = bed.pair();
    let linger: Vec<u8> = [1_i32, 3].iter().flat_map(|word| word.to_ne_bytes()).collect();
    done(bed.posix.setsockopt(client, SOCKET, libc::SO_LINGER, &linger));
    assert_eq!(settings(&bed, client).linger, Some(Duration::from_secs(3)));
    let mut out = [0; 8];
    assert_eq!(done(bed.posix.getsockopt(client, SOCKET, libc::SO_LINGER, &mut out)), 8);
    assert_eq!(out[..], linger);
    done(bed.posix.setsockopt(client, SOCKET, libc::SO_LINGER, &[0; 8]));
    assert_eq!(settings(&bed, client).linger, None);
}
