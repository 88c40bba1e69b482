//! How connections begin: handshakes, refusals, listeners, ports.

use std::net::SocketAddr;
use std::time::Duration;

use lstack_core::SocketError;
use lstack_core::tcp::{
    AcceptError, BindError, Close, ConnectError, ListenError, RecvError, Reuse, SendError,
    Shutdown, State, TcpOption,
};

use super::script::{OUR_PORT, PEER_PORT, Script};
use crate::support::frames::STRANGER;
use crate::support::{LinkModel, Net, Side};

fn stranger() -> SocketAddr {
    SocketAddr::new(STRANGER.into(), PEER_PORT)
}

#[test]
fn a_fresh_socket_is_writable_and_hung_up() {
    let mut script = Script::listening(1);
    let fresh = script.stack().tcp_open().unwrap();
    script.id = fresh;
    assert_eq!(script.mask(), 0x14);
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.write(1), Err(SendError::BrokenPipe));
    assert_eq!(script.read(1), Err(RecvError::NotConnected));
    let now = script.lone.now;
    assert!(script.stack().tcp_shutdown(now, fresh, Shutdown::Both).is_err());
    assert_eq!(script.stack().tcp_accept(now, fresh).unwrap_err(), AcceptError::NotListening);
}

#[test]
fn connect_offers_every_option_and_is_established_by_the_answer() {
    let mut script = Script::connecting();
    assert_eq!(script.sent(), ["S 0 0 0 mss 1460 ws 7 sackok"]);
    assert_eq!((script.mask(), script.state()), (0, State::SynSent));
    assert_eq!(script.write(1), Err(SendError::WouldBlock));
    assert_eq!(script.read(1), Err(RecvError::WouldBlock));
    script.put("SA 0 1 0 mss 1460 ws 7 sackok ts 5 0");
    assert_eq!(script.sent(), ["A 1 1 0"]);
    assert_eq!(script.timestamps.unwrap().1, 5);
    assert_eq!((script.mask(), script.state()), (0x4, State::Established));
    let info = script.info();
    assert_eq!((info.window_scale, info.sack, info.timestamps), (Some((7, 7)), true, true));
    assert_eq!((info.send_mss, info.send_window), (1_448, 60_000));
    let (now, id) = (script.lone.now, script.id);
    assert_eq!(script.stack().tcp_connect(now, id, stranger()), Err(ConnectError::Connected));
}

#[test]
fn options_the_peer_does_not_offer_are_not_used() {
    let mut script = Script::established("mss 1460");
    let info = script.info();
    assert_eq!((info.window_scale, info.sack, info.timestamps), (None, false, false));
    assert_eq!(info.send_mss, 1_460);
    assert_eq!(script.timestamps, None);
    let mut script = Script::established("");
    assert_eq!(script.info().send_mss, 536);
    let mut script = Script::established("mss 9000 ws 15");
    assert_eq!((script.info().send_mss, script.info().window_scale), (1_460, Some((7, 14))));
    let mut script = Script::established("mss 1");
    assert_eq!(script.info().send_mss, 48);
}

#[test]
fn a_refused_connection_says_so_once() {
    let mut script = Script::connecting();
    script.sent();
    script.put("RA 0 1 0");
    assert_eq!(script.mask(), 0x201d);
    assert_eq!(script.error(), Some(SocketError::ConnectionRefused));
    assert_eq!(script.error(), None);
    assert_eq!(script.mask(), 0x2015);
    assert_eq!(script.write(1), Err(SendError::BrokenPipe));
    assert_eq!(script.read(1), Ok(0));
    let (now, id) = (script.lone.now, script.id);
    assert_eq!(script.stack().remote_addr(id), None);
    // The next connect ends the attempt, the one after it starts another.
    assert_eq!(script.stack().tcp_connect(now, id, stranger()), Err(ConnectError::Aborted));
    assert_eq!(script.stack().tcp_connect(now, id, stranger()), Ok(()));
    assert_eq!(script.stack().tcp_connect(now, id, stranger()), Err(ConnectError::InProgress));
    script.poll();
    assert_eq!(script.sent().len(), 1);
}

#[test]
fn connect_reports_the_pending_error_of_the_attempt_before() {
    let mut script = Script::connecting();
    script.sent();
    script.put("RA 0 1 0");
    let (now, id) = (script.lone.now, script.id);
    let refused = ConnectError::Failed(SocketError::ConnectionRefused);
    assert_eq!(script.stack().tcp_connect(now, id, stranger()), Err(refused));
    assert_eq!(script.stack().tcp_connect(now, id, stranger()), Ok(()));
}

#[test]
fn a_reset_or_an_answer_with_a_wrong_acknowledgement_is_not_believed() {
    let mut script = Script::connecting();
    script.sent();
    script.put("RA 0 2 0");
    script.put("R 0 0 0");
    assert_eq!(script.state(), State::SynSent);
    script.put("SA 0 9 0");
    assert_eq!(script.sent(), ["R 9 0 0"]);
    script.put("A 0 1 0");
    assert_eq!((script.sent().len(), script.state()), (0, State::SynSent));
    script.put("SA 0 1 0");
    assert_eq!(script.state(), State::Established);
}

#[test]
fn a_syn_is_repeated_six_times_and_then_it_is_a_timeout() {
    let mut script = Script::connecting();
    let syn = "S 0 0 0 mss 1460 ws 7 sackok";
    assert_eq!(script.sent(), [syn]);
    for wait in [1, 2, 4, 8, 16, 32] {
        script.pass(Duration::from_secs(wait) - Duration::from_micros(1));
        assert!(script.sent().is_empty());
        script.pass(Duration::from_micros(1));
        assert_eq!(script.sent(), [syn], "after {wait} s");
    }
    script.pass(Duration::from_secs(64));
    assert_eq!(script.mask(), 0x201d);
    assert_eq!(script.error(), Some(SocketError::TimedOut));
}

#[test]
fn syn_retries_and_user_timeout_shorten_the_wait() {
    let mut script = Script::connecting_with(|_| {}, &[TcpOption::SynRetries(1)]);
    script.pass(Duration::from_secs(3));
    assert_eq!(script.error(), Some(SocketError::TimedOut));
    let timeout = TcpOption::UserTimeout(Duration::from_millis(1_500));
    let mut script = Script::connecting_with(|_| {}, &[timeout]);
    script.pass(Duration::from_secs(3));
    assert_eq!(script.error(), Some(SocketError::TimedOut));
}

#[test]
fn both_sides_may_open_at_once() {
    let mut script = Script::connecting();
    script.sent();
    script.put("S 0 0 0 mss 1460 ws 7 sackok");
    assert_eq!(script.sent(), ["SA 0 1 0 mss 1460 ws 7 sackok"]);
    assert_eq!(script.state(), State::SynReceived);
    script.put("SA 0 1 0 mss 1460 ws 7 sackok");
    assert_eq!(script.state(), State::Established);
    assert_eq!(script.write(10), Ok(10));
    assert_eq!(script.sent(), ["PA 1 1 10"]);
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
fn a_listener_answers_with_the_options_of_the_syn_and_accepts() {
    let mut script = Script::listening(1);
    assert_eq!((script.mask(), script.state()), (0, State::Listen));
    script.put("S 0 0 0 mss 1000 ws 3 sackok ts 9 0");
    assert_eq!(script.sent(), ["SA 0 1 0 mss 1460 ws 7 sackok"]);
    assert_eq!(script.timestamps.unwrap().1, 9);
    assert_eq!(script.mask(), 0);
    script.put("A 1 1 0 ts 10 0");
    assert_eq!(script.mask(), 0x1);
    assert_eq!(script.events().bits(), 0x1);
    let now = script.lone.now;
    let listener = script.accept();
    assert_eq!((script.state(), script.mask()), (State::Established, 0x4));
    let info = script.info();
    assert_eq!((info.send_mss, info.window_scale), (988, Some((7, 3))));
    let again = script.stack().tcp_accept(now, listener);
    assert_eq!(again.unwrap_err(), AcceptError::WouldBlock);
    assert_eq!(script.stack().readiness(listener).bits(), 0);
}

#[test]
fn the_last_segment_of_the_handshake_may_bring_data_and_the_end() {
    let mut script = Script::listening(1);
    script.put("S 0 0 0");
    assert_eq!(script.sent(), ["SA 0 1 0 mss 1460"]);
    script.put("FPA 1 1 10");
    script.accept();
    assert_eq!(script.mask(), 0x2005);
    assert_eq!((script.read(100), script.read(100)), (Ok(10), Ok(0)));
    assert_eq!(script.sent(), ["A 1 12 0"]);
}

#[test]
fn an_answer_to_a_syn_is_repeated_five_times() {
    let mut script = Script::listening(1);
    script.put("S 0 0 0");
    for wait in [0, 1, 2, 4, 8, 16] {
        script.pass(Duration::from_secs(wait));
        assert_eq!(script.sent(), ["SA 0 1 0 mss 1460"]);
    }
    script.pass(Duration::from_secs(32));
    assert_eq!(script.counter("tcp_syn_timeouts"), 1);
    script.put("A 1 1 0");
    assert_eq!(script.sent(), ["R 1 0 0"]);
}

#[test]
fn a_repeated_syn_is_answered_again_and_a_reset_ends_the_handshake_only() {
    let mut script = Script::listening(1);
    script.put("S 0 0 0");
    script.put("S 0 0 0");
    assert_eq!(script.sent(), ["SA 0 1 0 mss 1460"; 2]);
    script.put("R 5 0 0");
    assert_eq!(script.counter("tcp_rst_rx"), 0);
    script.put("R 1 0 0");
    assert_eq!(script.counter("tcp_rst_rx"), 1);
    assert_eq!((script.state(), script.mask()), (State::Listen, 0));
    script.put("S 0 0 0");
    assert_eq!(script.sent().len(), 1);
}

#[test]
fn a_listener_is_not_impressed_by_anything_but_a_syn() {
    let mut script = Script::listening(1);
    script.put("R 0 0 0");
    script.put("F 0 0 0");
    script.put("P 0 0 5");
    script.put("SF 0 0 0");
    assert!(script.sent().is_empty());
    script.put("A 7 3 0");
    script.put("SA 0 4 0");
    assert_eq!(script.sent(), ["R 3 0 0", "R 4 0 0"]);
    assert_eq!(script.state(), State::Listen);
}

#[test]
fn a_port_without_a_listener_refuses() {
    let mut script = Script::listening(1);
    let id = script.id;
    let now = script.lone.now;
    script.stack().close(now, id, Close::Graceful);
    script.put("S 0 0 0");
    assert_eq!(script.sent(), ["RA 0 1 0"]);
    script.put("A 5 6 10");
    assert_eq!(script.sent(), ["R 6 0 0"]);
    script.put("F 5 0 10");
    assert_eq!(script.sent(), ["RA 0 16 0"]);
    script.put("R 5 0 0");
    assert!(script.sent().is_empty());
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

#[test]
fn an_acknowledgement_that_finds_the_backlog_full_counts_when_there_is_room() {
    let mut script = Script::listening(0);
    script.put("S 0 0 0");
    script.sent();
    let first = PEER_PORT;
    script.play_port(first + 1);
    script.put("S 0 0 0");
    script.sent();
    script.put("A 1 1 0");
    let waiting = script.stack().sockets().len();
    script.play_port(first);
    script.put("S 0 0 0");
    script.sent();
    script.put("A 1 1 0");
    assert_eq!(script.stack().sockets().len(), waiting);
    assert_eq!(script.counter("tcp_listen_overflow"), 1);
    let (now, id) = (script.lone.now, script.id);
    script.stack().tcp_accept(now, id).unwrap();
    script.pass_millis(1_000);
    assert_eq!(script.sent(), ["SA 0 1 0 mss 1460"]);
    script.put("A 1 1 0");
    script.accept();
    assert_eq!(script.state(), State::Established);
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
fn a_listener_that_defers_waits_for_data() {
    let mut script = Script::listening(4);
    script.option(TcpOption::DeferAccept(Duration::from_secs(5)));
    script.put("S 0 0 0");
    script.sent();
    script.put("A 1 1 0");
    assert_eq!(script.mask(), 0);
    script.put("PA 1 1 10");
    assert_eq!(script.mask(), 1);
    script.accept();
    assert_eq!(script.read(100), Ok(10));
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
