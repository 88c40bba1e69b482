//! How connections begin: handshakes, refusals, listeners, ports.

use std::net::SocketAddr;
use std::time::Duration;

use lstack_core::tcp::{
    BindError, Close, ConnectError, ListenError, Reuse, Shutdown, State, TcpOption,
};

use super::script::{OUR_PORT, PEER_PORT, Script};
use crate::support::frames::STRANGER;
use crate::support::{LinkModel, Net, Side};

fn stranger() -> SocketAddr {
    SocketAddr::new(STRANGER.into(), PEER_PORT)
}

#[test]
fn a_socket_may_connect_to_itself() {
    let mut net = Net::new(1, LinkModel::default());
    let now = net.now;
    let id = net.stack(Side::A).tcp_open().unwrap();
    let reuse = Reuse::default();
    let local = net.stack(Side::A).bind(id, Side::A.addr(0), reuse).unwrap();
    net.stack(Side::A).tcp_connect(now, id, local).unwrap();
    net.run_for(Duration::from_millis(10));
    assert_eq!(net.stack(Side::A).tcp_state(id), State::Established);
}

#[test]
fn a_full_backlog_drops_without_a_word() {
    for (backlog, admitted) in [(0, 1), (1, 2), (3, 4)] {
        let mut script = Script::listening(backlog);
        for n in 0..6 {
            script.play_port(5_000 + n);
            script.put("S 0 0 0");
            if !script.sent().is_empty() {
                script.put("A 1 1 0");
            }
            assert!(script.sent().is_empty());
        }
        assert_eq!(script.counter("tcp_passive_opens"), admitted);
        assert_eq!(script.counter("tcp_listen_overflow"), 6 - admitted);
        assert_eq!(script.counter("tcp_rst_tx"), 0);
        // Room again: the next SYN is welcome.
        let (now, id) = (script.lone.now, script.id);
        script.stack().tcp_accept(now, id).unwrap();
        script.play_port(6_000);
        script.put("S 0 0 0");
        assert_eq!(script.sent().len(), 1);
    }
}

/// Handshakes that a listener of a small backlog remembers by itself.
const REMEMBERED: u16 = 257;

/// A listener that has no memory left for handshakes.
fn flooded() -> Script {
    let mut script = Script::listening(16);
    for n in 0..2_000 {
        script.play_port(10_000 + n);
        script.put("S 0 0 0 mss 1460 ws 7 sackok ts 1 0");
    }
    assert_eq!(script.sent().len(), 2_000);
    assert_eq!(script.counter("tcp_syn_cookies_tx"), u64::from(2_000 - REMEMBERED));
    script
}

#[test]
fn a_flood_of_syns_keeps_nobody_out_and_costs_bounded_memory() {
    let mut script = flooded();
    let memory = script.stack().tcp_memory();
    // One that is not remembered, and one that is.
    for (port, cookies) in [(11_999, 1), (10_000, 1)] {
        script.play_port(port);
        script.put("S 0 0 0 mss 1460 ws 7 sackok ts 100 0");
        let answer = script.sent();
        assert_eq!(answer, ["SA 0 1 0 mss 1460 ws 7 sackok"]);
        let (ours, _) = script.timestamps.unwrap();
        script.put(&format!("A 1 1 0 ts 101 {ours}"));
        assert_eq!(script.counter("tcp_syn_cookies_rx"), cookies);
    }
    assert_eq!(script.counter("tcp_passive_opens"), 2);
    assert_eq!(script.stack().tcp_memory(), memory);
}

#[test]
fn a_cookie_brings_back_what_the_syn_said() {
    let mut script = flooded();
    script.play_port(9_000);
    script.put("S 0 0 0 mss 1000 ws 7 sackok ts 100 0");
    assert_eq!(script.sent(), ["SA 0 1 0 mss 1460 ws 7 sackok"]);
    let (ours, echo) = script.timestamps.unwrap();
    assert_eq!(echo, 100);
    // The acknowledgement gets lost; data brings the cookie as well.
    script.put(&format!("PA 1 1 10 win 10 ts 101 {ours}"));
    script.accept();
    assert_eq!(script.read(100).unwrap(), 10);
    script.sent();
    let info = script.info();
    assert_eq!(info.send_window, 10 << 7);
    script.write(5_000).unwrap();
    // The next smaller size a cookie knows, less the timestamps.
    let sent = script.sent();
    assert!(sent[0].starts_with("A 1 11 524") || sent[0].starts_with("PA 1 11 524"), "{sent:?}");
    let (later, _) = script.timestamps.unwrap();
    assert!(later.wrapping_sub(ours) < 1_000, "timestamps rise");
}

#[test]
fn a_peer_without_timestamps_gets_a_plain_connection_by_cookie() {
    let mut script = flooded();
    script.play_port(9_000);
    script.put("S 0 0 0 mss 1460 ws 7 sackok");
    assert_eq!(script.sent(), ["SA 0 1 0 mss 1460"]);
    script.put("A 1 1 0 win 10");
    script.accept();
    assert_eq!(script.info().send_window, 10);
}

#[test]
fn a_guessed_cookie_is_reset() {
    let mut script = flooded();
    script.play_port(9_000);
    script.put("A 1 1 0");
    assert_eq!(script.sent().len(), 1);
    assert_eq!(script.counter("tcp_syn_cookies_failed"), 1);
    assert_eq!(script.counter("tcp_rst_tx"), 1);
    assert_eq!(script.counter("tcp_passive_opens"), 0);
}

#[test]
fn a_cookie_is_good_for_minutes_only() {
    let mut script = flooded();
    script.play_port(9_000);
    script.put("S 0 0 0");
    script.sent();
    script.pass_millis(180_000);
    script.sent();
    script.put("A 1 1 0");
    assert_eq!(script.counter("tcp_rst_tx"), 1);
    assert_eq!(script.counter("tcp_passive_opens"), 0);
}

#[test]
fn a_cookie_that_finds_the_backlog_full_counts_when_there_is_room() {
    let mut script = flooded();
    for n in 0..17 {
        script.play_port(9_000 + n);
        script.put("S 0 0 0");
        script.sent();
        script.put("A 1 1 0");
    }
    let listener = script.id;
    script.play_port(9_017);
    // The backlog is full: SYNs are dropped, and so is an acknowledgement that comes late.
    script.put("S 0 0 0");
    assert!(script.sent().is_empty());
    let now = script.lone.now;
    script.stack().tcp_accept(now, listener).unwrap();
    script.put("S 0 0 0");
    assert_eq!(script.sent().len(), 1);
    script.put("A 1 1 0");
    assert_eq!(script.counter("tcp_syn_cookies_rx"), 18);
    assert_eq!(script.counter("tcp_rst_tx"), 0);
}

#[test]
fn five_hundred_clients_at_once_all_get_in() {
    let mut script = Script::listening(511);
    let mut answers = Vec::new();
    for n in 0..500 {
        script.play_port(10_000 + n);
        script.put("S 0 0 0");
        script.sent();
        script.put("A 1 1 0");
        answers.push(script.counter("tcp_passive_opens"));
    }
    assert_eq!(answers.last(), Some(&500));
    let (now, id) = (script.lone.now, script.id);
    for n in 0..500 {
        let accepted = script.stack().tcp_accept(now, id).unwrap();
        assert_eq!(accepted.remote.port(), 10_000 + n, "the oldest first");
    }
}

#[test]
fn closing_a_listener_resets_who_waits_and_spares_who_was_accepted() {
    let mut script = Script::listening(4);
    script.put("S 0 0 0");
    script.sent();
    script.put("A 1 1 0");
    let listener = script.accept();
    let accepted = script.id;
    script.play_port(5_000);
    script.put("S 0 0 0");
    script.sent();
    script.put("A 1 1 0");
    let now = script.lone.now;
    script.stack().close(now, listener, Close::Graceful);
    script.poll();
    assert_eq!(script.sent(), ["RA 1 1 0"]);
    assert_eq!(script.stack().tcp_state(accepted), State::Established);
    // The port can be had again, with SO_REUSEADDR on both.
    let id = script.stack().tcp_open().unwrap();
    let any = ([0, 0, 0, 0], OUR_PORT).into();
    assert_eq!(script.stack().bind(id, any, Reuse::default()), Err(BindError::InUse));
    let reuse = Reuse { address: true, port: false };
    script.stack().bind(id, any, reuse).unwrap();
    script.stack().tcp_listen(id, 1).unwrap();
}

#[test]
fn a_listener_that_is_shut_down_can_listen_again() {
    let mut script = Script::listening(4);
    script.shutdown(Shutdown::Write);
    assert_eq!(script.state(), State::Listen);
    script.shutdown(Shutdown::Both);
    assert_eq!((script.state(), script.mask()), (State::Closed, 0x14));
    script.put("S 0 0 0");
    assert_eq!(script.sent(), ["RA 0 1 0"]);
    let id = script.id;
    script.stack().tcp_listen(id, 4).unwrap();
    script.put("S 0 0 0");
    assert_eq!(script.sent(), ["SA 0 1 0 mss 1460"]);
}

#[test]
fn listen_without_bind_picks_a_port_and_a_second_listen_only_changes_the_backlog() {
    let mut script = Script::listening(1);
    let id = script.stack().tcp_open().unwrap();
    assert_eq!(script.stack().local_addr(id), Some(([0, 0, 0, 0], 0).into()));
    script.stack().tcp_listen(id, 1).unwrap();
    let port = script.stack().local_addr(id).unwrap().port();
    assert!(port >= 32_768);
    script.stack().tcp_listen(id, 9).unwrap();
    let now = script.lone.now;
    assert_eq!(script.stack().tcp_connect(now, id, stranger()), Err(ConnectError::Connected));
}

#[test]
fn two_sockets_may_bind_one_port_but_not_listen_on_it() {
    let mut script = Script::connecting();
    let reuse = Reuse { address: true, port: false };
    let any = ([0, 0, 0, 0], 90).into();
    let [a, b] = [(); 2].map(|()| {
        let id = script.stack().tcp_open().unwrap();
        script.stack().bind(id, any, reuse).unwrap();
        id
    });
    script.stack().tcp_listen(a, 1).unwrap();
    assert_eq!(script.stack().tcp_listen(b, 1), Err(ListenError::InUse));
    assert_eq!(script.stack().bind(b, any, reuse), Err(BindError::AlreadyBound));
}

#[test]
fn accepted_connections_inherit_the_listeners_settings() {
    let mut script = Script::listening(4);
    script.option(TcpOption::NoDelay(true));
    script.option(TcpOption::SendBuffer(7_000));
    script.option(TcpOption::MaxSegment(500));
    script.put("S 0 0 0 mss 1460");
    assert_eq!(script.sent(), ["SA 0 1 0 mss 500"]);
    script.put("A 1 1 0");
    script.accept();
    assert_eq!(script.info().send_buffer, 7_000);
    for n in 0..3 {
        script.write(10).unwrap();
        assert_eq!(script.sent(), [format!("PA {} 1 10", 1 + 10 * n)]);
    }
}

#[test]
fn connections_get_distinct_ports_for_one_peer_and_share_them_between_peers() {
    let mut script = Script::with_many_sockets();
    let now = script.lone.now;
    let mut ports = std::collections::HashSet::new();
    for _ in 0..28_232 {
        let id = script.stack().tcp_open().unwrap();
        script.stack().tcp_connect(now, id, stranger()).unwrap();
        assert!(ports.insert(script.stack().local_addr(id).unwrap().port()));
    }
    let id = script.stack().tcp_open().unwrap();
    let full = script.stack().tcp_connect(now, id, stranger());
    assert_eq!(full, Err(ConnectError::NoFreeAddress));
    let other = SocketAddr::new(STRANGER.into(), PEER_PORT + 1);
    script.stack().tcp_connect(now, id, other).unwrap();
}
