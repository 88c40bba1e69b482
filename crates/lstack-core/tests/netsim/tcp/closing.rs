//! How connections end: FIN from either side or both, RST, silence, `TIME_WAIT`.

use std::time::Duration;

use lstack_core::tcp::{Close, RecvError, Reuse, SendError, Shutdown, State, TcpOption};
use lstack_core::{Readiness, SocketError};

use super::script::Script;

const EVERY_OPTION: &str = "mss 1460 ws 7 sackok ts 1 0";

#[test]
fn we_close_first_and_wait() {
    let mut script = Script::established("mss 1460");
    script.shutdown(Shutdown::Write);
    assert_eq!(script.sent(), ["FA 1 1 0"]);
    assert_eq!((script.state(), script.mask()), (State::FinWait1, 0x4));
    script.put("A 1 2 0");
    assert_eq!((script.state(), script.mask()), (State::FinWait2, 0x4));
    script.put("PA 1 2 10");
    assert_eq!(script.read(100), Ok(10));
    script.sent();
    script.put("FA 11 2 0");
    assert_eq!(script.sent(), ["A 2 12 0"]);
    assert_eq!(script.mask(), 0x2015);
    assert_eq!(script.read(100), Ok(0));
    assert_eq!(script.write(1), Err(SendError::BrokenPipe));
    script.close(Close::Graceful);
    assert!(script.sent().is_empty());
    // The peer did not hear us: its FIN again, our answer again, and the wait starts again.
    script.pass(Duration::from_secs(50));
    script.put("FA 11 2 0");
    assert_eq!(script.sent(), ["A 2 12 0"]);
    script.pass(Duration::from_secs(59));
    assert_eq!(script.stack().sockets().len(), 1);
    script.pass(Duration::from_secs(2));
    assert_eq!(script.stack().sockets().len(), 0);
    assert_eq!(script.stack().next_deadline(), None);
}

#[test]
fn the_peer_closes_first() {
    let mut script = Script::accepted("mss 1460");
    script.put("FPA 1 1 3");
    assert_eq!(script.sent(), ["A 1 5 0"]);
    assert_eq!(script.events(), Readiness::READABLE | Readiness::READ_HANGUP);
    assert_eq!((script.state(), script.mask()), (State::CloseWait, 0x2005));
    assert_eq!((script.read(9), script.read(9), script.read(9)), (Ok(3), Ok(0), Ok(0)));
    assert_eq!(script.mask(), 0x2005);
    script.write(5).unwrap();
    assert_eq!(script.sent(), ["PA 1 5 5"]);
    script.shutdown(Shutdown::Write);
    assert_eq!(script.sent(), ["FA 6 5 0"]);
    assert_eq!((script.state(), script.mask()), (State::LastAck, 0x2015));
    script.put("A 5 7 0");
    assert_eq!(script.state(), State::Closed);
    script.close(Close::Graceful);
    script.put("FA 4 7 0");
    assert_eq!(script.sent(), ["R 7 0 0"], "no TIME_WAIT on this side");
}

#[test]
fn both_close_at_once() {
    let mut script = Script::established("mss 1460");
    script.shutdown(Shutdown::Both);
    assert_eq!(script.sent(), ["FA 1 1 0"]);
    assert_eq!(script.mask(), 0x2015);
    script.put("FA 1 1 0");
    assert_eq!((script.sent(), script.state()), (vec!["A 2 2 0".to_string()], State::Closing));
    script.put("A 2 2 0");
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.counter("tcp_time_wait_entered"), 1);
}

#[test]
fn a_fin_that_acknowledges_ours_ends_it_at_once() {
    let mut script = Script::established("mss 1460");
    script.close(Close::Graceful);
    assert_eq!(script.sent(), ["FA 1 1 0"]);
    script.put("FA 1 2 0");
    assert_eq!(script.sent(), ["A 2 2 0"]);
    assert_eq!(script.stack().tcp_orphans(), 0);
    assert_eq!(script.counter("tcp_time_wait_entered"), 1);
}

#[test]
fn the_fin_follows_the_data_and_is_repeated_with_it() {
    let mut script = Script::established("mss 1000 sackok");
    script.write(2_500).unwrap();
    script.close(Close::Graceful);
    assert_eq!(script.sent(), ["A 1 1 1000", "A 1001 1 1000", "PA 2001 1 500", "FA 2501 1 0"]);
    assert_eq!(script.stack().tcp_orphans(), 1);
    script.put("A 1 2001 0");
    script.pass_millis(900);
    let again = script.sent();
    assert!(again.iter().all(|text| text == "FPA 2001 1 500") && !again.is_empty(), "{again:?}");
    script.put("A 1 2502 0");
    script.put("FA 1 2502 0");
    assert_eq!(script.sent(), ["A 2502 2 0"]);
    assert_eq!(script.stack().tcp_orphans(), 0);
}

#[test]
fn a_fin_out_of_order_counts_when_its_turn_comes() {
    let mut script = Script::established("mss 1460 sackok");
    script.put("FPA 101 1 10");
    assert_eq!(script.sent(), ["A 1 1 0 sack 101-111"]);
    assert_eq!(script.mask(), 0x4);
    script.put("A 1 1 100");
    assert_eq!(script.sent(), ["A 1 112 0"]);
    assert_eq!(script.mask(), 0x2005);
    assert_eq!((script.read(200), script.read(200)), (Ok(110), Ok(0)));
}

#[test]
fn reading_may_be_shut_alone_and_later_data_is_still_readable() {
    let mut script = Script::established("mss 1460");
    script.shutdown(Shutdown::Read);
    assert_eq!(script.mask(), 0x2005);
    assert_eq!(script.read(10), Ok(0));
    script.put("PA 1 1 10");
    assert_eq!(script.sent(), ["A 1 11 0"]);
    assert_eq!(script.read(10), Ok(10));
    script.shutdown(Shutdown::Read);
    script.write(5).unwrap();
    assert_eq!(script.sent(), ["PA 1 11 5"]);
}

#[test]
fn closing_with_unread_data_resets() {
    let mut script = Script::established("mss 1460");
    script.put("PA 1 1 10");
    script.sent();
    script.close(Close::Graceful);
    assert_eq!(script.sent(), ["RA 1 11 0"]);
    assert!(script.stack().sockets().is_empty());
}

#[test]
fn a_reset_close_forgets_the_queue_and_leaves_no_time_wait() {
    let mut script = Script::established("mss 1000");
    script.write(100).unwrap();
    script.write(100).unwrap();
    assert_eq!(script.sent(), ["PA 1 1 100"]);
    script.close(Close::Reset);
    assert_eq!(script.sent(), ["RA 101 1 0"]);
    assert!(script.stack().sockets().is_empty());
    assert_eq!(script.stack().tcp_memory(), 0);
}

#[test]
fn data_for_a_closed_connection_is_answered_with_a_reset() {
    let mut script = Script::established("mss 1460");
    script.close(Close::Graceful);
    script.put("A 1 2 0");
    script.sent();
    script.put("PA 1 2 10");
    assert_eq!(script.sent(), ["RA 2 1 0"]);
    assert!(script.stack().sockets().is_empty());
}

#[test]
fn half_closed_without_an_owner_lasts_a_minute_and_with_one_for_ever() {
    let mut script = Script::established("mss 1460");
    script.shutdown(Shutdown::Write);
    script.put("A 1 2 0");
    script.pass(Duration::from_secs(3_600));
    assert_eq!(script.state(), State::FinWait2);
    script.close(Close::Graceful);
    assert_eq!(script.stack().tcp_orphans(), 1);
    script.pass(Duration::from_secs(59));
    assert_eq!(script.stack().tcp_orphans(), 1);
    script.pass(Duration::from_secs(2));
    assert!(script.stack().sockets().is_empty());
}

#[test]
fn a_reset_is_an_error_once_and_then_the_end() {
    let mut script = Script::established(EVERY_OPTION);
    script.put("PA 1 1 10 ts 2 0");
    script.sent();
    script.events();
    script.put("R 11 0 0");
    assert_eq!(script.mask(), 0x201d);
    assert_eq!(script.events().bits(), 0x201d);
    assert_eq!(script.read(4), Ok(4));
    assert_eq!(script.read(40), Ok(6), "what came before the reset is still read");
    assert_eq!(script.read(4), Err(RecvError::Failed(SocketError::ConnectionReset)));
    assert_eq!((script.read(4), script.mask()), (Ok(0), 0x2015));
    assert_eq!(script.write(4), Err(SendError::BrokenPipe));
    let id = script.id;
    assert_eq!(script.stack().remote_addr(id), None);
    assert!(script.stack().local_addr(id).is_some_and(|local| local.port() != 0));
    script.close(Close::Graceful);
    assert!(script.stack().sockets().is_empty());
}

#[test]
fn sending_takes_the_error_of_a_reset_too() {
    let mut script = Script::established("mss 1460");
    script.put("RA 1 1 0");
    assert_eq!(script.write(4), Err(SendError::Failed(SocketError::ConnectionReset)));
    assert_eq!(script.write(4), Err(SendError::BrokenPipe));
    assert_eq!(script.read(4), Ok(0));
}

#[test]
fn a_reset_after_the_peers_end_is_a_broken_pipe() {
    let mut script = Script::established("mss 1460");
    script.put("FA 1 1 0");
    script.put("R 2 0 0");
    assert_eq!(script.mask(), 0x201d);
    assert_eq!(script.read(4), Ok(0), "the end of the stream was seen");
    assert_eq!(script.error(), Some(SocketError::BrokenPipe));
}

#[test]
fn a_reset_beside_the_point_is_challenged_at_a_limited_rate() {
    let mut script = Script::established("mss 1460");
    script.put("R 2 0 0");
    assert_eq!(script.sent(), ["A 1 1 0"]);
    script.put("R 3 0 0");
    script.put("R 900 0 0");
    assert!(script.sent().is_empty());
    script.pass_millis(500);
    script.put("R 3 0 0");
    assert_eq!(script.sent(), ["A 1 1 0"]);
    script.pass_millis(500);
    script.put("R 4000000 0 0");
    assert!(script.sent().is_empty());
    assert_eq!(script.state(), State::Established);
    assert_eq!(script.counter("tcp_challenge_acks"), 2);
}

#[test]
fn a_syn_in_a_connection_is_challenged() {
    for text in ["S 1 0 0", "S 700 0 0", "SA 0 1 0", "S 4000000 0 0"] {
        let mut script = Script::established("mss 1460");
        script.put(text);
        assert_eq!((script.sent(), script.state()), (vec!["A 1 1 0".into()], State::Established));
    }
}

#[test]
fn acknowledgements_from_the_future_or_the_distant_past_are_challenged() {
    let mut script = Script::established("mss 1460 sackok");
    script.write(10).unwrap();
    script.sent();
    script.put("A 1 12 0");
    assert_eq!(script.sent(), ["A 11 1 0"]);
    script.pass_millis(600);
    script.sent();
    script.put("PA 1 4000000000 10");
    assert_eq!(script.sent(), ["A 11 1 0"]);
    assert_eq!(script.read(10), Err(RecvError::WouldBlock));
    assert_eq!(script.counter("tcp_drop_bad_ack"), 2);
}

#[test]
fn segments_without_an_acknowledgement_are_ignored() {
    let mut script = Script::established("mss 1460");
    script.put("P 1 0 10");
    script.put("F 1 0 0");
    assert!(script.sent().is_empty());
    assert_eq!(script.mask(), 0x4);
}

#[test]
fn an_old_timestamp_does_not_get_in() {
    let mut script = Script::established("mss 1460 sackok ts 1000 0");
    script.put("PA 1 1 10 ts 999 0");
    assert_eq!(script.read(10), Err(RecvError::WouldBlock));
    assert_eq!(script.counter("tcp_drop_paws"), 1);
    assert_eq!(script.sent(), ["A 1 1 0"]);
    script.put("PA 1 1 10 ts 1000 0");
    assert_eq!(script.read(10), Ok(10));
    // After 24 days the old value says nothing.
    script.pass(Duration::from_secs(25 * 86_400));
    script.put("PA 11 1 10 ts 1 0");
    assert_eq!(script.read(10), Ok(10));
    script.sent();
    assert_eq!(script.timestamps.unwrap().1, 1);
}

#[test]
fn a_new_syn_replaces_a_waiting_record_and_an_old_one_does_not() {
    let mut script = Script::accepted("mss 1460 ts 100 0");
    script.close(Close::Graceful);
    script.put("FA 1 2 0 ts 101 0");
    script.sent();
    assert_eq!(script.counter("tcp_time_wait_entered"), 1);
    script.put("R 2 0 0");
    script.put("S 500 0 0 ts 50 0");
    assert_eq!(script.sent(), ["A 2 2 0"]);
    assert_eq!(script.counter("tcp_time_wait_reused"), 0);
    script.put("S 500 0 0 mss 1460 ts 102 0");
    assert_eq!(script.sent(), ["SA 0 501 0 mss 1460"]);
    assert_eq!(script.counter("tcp_time_wait_reused"), 1);
    script.put("A 501 1 0 ts 103 0");
    assert_eq!(script.counter("tcp_passive_opens"), 2);
}

#[test]
fn a_port_in_time_wait_is_bound_again_with_reuse_only() {
    let mut script = Script::accepted("mss 1460");
    let listener = script.stack().sockets().into_iter().find(|s| s.state == Some(State::Listen));
    script.close(Close::Graceful);
    script.put("FA 1 2 0");
    script.sent();
    let now = script.lone.now;
    script.stack().close(now, listener.unwrap().socket, Close::Graceful);
    let any = ([0, 0, 0, 0], super::script::OUR_PORT).into();
    let id = script.stack().tcp_open().unwrap();
    assert!(script.stack().bind(id, any, Reuse::default()).is_err());
    script.stack().bind(id, any, Reuse { address: true, port: false }).unwrap();
    let id = script.stack().tcp_open().unwrap();
    script.pass(Duration::from_secs(61));
    assert!(script.stack().bind(id, any, Reuse::default()).is_err(), "the first still has it");
}

#[test]
fn silence_ends_a_connection_with_data_after_a_quarter_of_an_hour() {
    let mut script = Script::established(EVERY_OPTION);
    script.write(10).unwrap();
    script.pass(Duration::from_secs(900));
    assert_eq!(script.state(), State::Established);
    script.pass(Duration::from_secs(200));
    assert_eq!(script.mask(), 0x201d);
    assert_eq!(script.read(1), Err(RecvError::Failed(SocketError::TimedOut)));
    assert_eq!(script.read(1), Ok(0));
}

#[test]
fn silence_after_some_progress_ends_it_as_well() {
    let mut script = Script::established("mss 1000 sackok");
    script.write(3_000).unwrap();
    script.put("A 1 1001 0");
    script.pass(Duration::from_secs(1_200));
    assert_eq!(script.error(), Some(SocketError::TimedOut));
}

#[test]
fn the_user_timeout_ends_it_sooner() {
    let option = TcpOption::UserTimeout(Duration::from_millis(1_500));
    let mut script = Script::established_with(EVERY_OPTION, |_| {}, &[option]);
    script.write(10).unwrap();
    script.pass_millis(1_400);
    assert_eq!(script.state(), State::Established);
    script.pass_millis(400);
    assert_eq!(script.error(), Some(SocketError::TimedOut));
}

fn keepalive() -> [TcpOption; 4] {
    [
        TcpOption::KeepIdle(Duration::from_secs(1)),
        TcpOption::KeepInterval(Duration::from_secs(1)),
        TcpOption::KeepCount(2),
        TcpOption::KeepAlive(true),
    ]
}

#[test]
fn keepalive_notices_a_dead_peer() {
    let mut script = Script::established_with("mss 1460", |_| {}, &keepalive());
    script.pass_millis(999);
    assert!(script.sent().is_empty());
    script.pass_millis(1);
    assert_eq!(script.sent(), ["A 0 1 0"]);
    script.pass_millis(1_000);
    assert_eq!(script.sent(), ["A 0 1 0"]);
    script.pass_millis(1_000);
    assert_eq!(script.sent(), ["RA 1 1 0"]);
    assert_eq!(script.mask(), 0x201d);
    assert_eq!(script.read(1), Err(RecvError::Failed(SocketError::TimedOut)));
    assert_eq!(script.read(1), Ok(0));
}

#[test]
fn keepalive_spares_a_peer_that_answers() {
    let mut script = Script::established_with("mss 1460", |_| {}, &keepalive());
    for _ in 0..600 {
        script.pass_millis(1_000);
        assert_eq!(script.sent(), ["A 0 1 0"]);
        script.put("A 1 1 0");
        assert!(script.sent().is_empty());
    }
    assert_eq!(script.state(), State::Established);
}

#[test]
fn an_idle_connection_needs_no_timer_and_answers_the_peers_keepalive() {
    let mut script = Script::established("mss 1460");
    script.pass(Duration::from_secs(50 * 86_400));
    assert_eq!(script.stack().next_deadline(), None);
    script.put("A 0 1 0");
    assert_eq!(script.sent(), ["A 1 1 0"]);
}
