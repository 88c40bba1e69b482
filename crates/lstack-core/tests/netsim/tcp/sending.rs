//! When and what a connection sends: Nagle, cork, windows, retransmission, probes.

use std::time::Duration;

use lstack_core::Readiness;
use lstack_core::tcp::{Close, More, SendError, Shutdown, State, TcpOption};

use super::script::Script;

#[test]
fn full_segments_go_at_once_and_the_rest_too_when_nothing_small_is_out() {
    let mut script = Script::established("mss 1000");
    script.write(2_300).unwrap();
    assert_eq!(script.sent(), ["A 1 1 1000", "A 1001 1 1000", "PA 2001 1 300"]);
    // Minshall: the small one is out, so another small one waits, a full one does not.
    script.write(100).unwrap();
    assert!(script.sent().is_empty());
    script.write(1_000).unwrap();
    assert_eq!(script.sent(), ["A 2301 1 1000"]);
    script.put("A 1 2301 0");
    assert_eq!(script.sent(), ["PA 3301 1 100"]);
}

#[test]
fn no_delay_sends_every_write() {
    let mut script = Script::established("mss 1000");
    script.write(1).unwrap();
    script.write(1).unwrap();
    assert_eq!(script.sent(), ["PA 1 1 1"]);
    script.option(TcpOption::NoDelay(true));
    assert_eq!(script.sent(), ["PA 2 1 1"], "what waited goes when the option is set");
    script.write(1).unwrap();
    assert_eq!(script.sent(), ["PA 3 1 1"]);
}

#[test]
fn a_cork_holds_the_remainder_for_two_hundred_milliseconds() {
    let mut script = Script::established_with("mss 1000", |_| {}, &[TcpOption::Cork(true)]);
    script.option(TcpOption::NoDelay(true));
    script.write(100).unwrap();
    script.pass_millis(199);
    assert!(script.sent().is_empty());
    script.pass_millis(1);
    assert_eq!(script.sent(), ["PA 1 1 100"]);
    script.put("A 1 101 0");
    script.write(1_100).unwrap();
    assert_eq!(script.sent(), ["A 101 1 1000"]);
    script.option(TcpOption::Cork(false));
    assert_eq!(script.sent(), ["PA 1101 1 100"]);
}

#[test]
fn a_cork_does_not_hold_back_the_end() {
    let mut script = Script::established_with("mss 1000", |_| {}, &[TcpOption::Cork(true)]);
    script.write(100).unwrap();
    assert!(script.sent().is_empty());
    script.shutdown(Shutdown::Write);
    assert_eq!(script.sent(), ["FPA 1 1 100"]);
}

#[test]
fn more_to_come_is_waited_for() {
    let mut script = Script::established("mss 1000");
    script.write_more(100, More::Yes).unwrap();
    assert!(script.sent().is_empty());
    script.write_more(50, More::No).unwrap();
    assert_eq!(script.sent(), ["PA 1 1 150"]);
    script.put("A 1 151 0");
    script.write_more(100, More::Yes).unwrap();
    script.pass_millis(200);
    assert_eq!(script.sent(), ["PA 151 1 100"]);
}

#[test]
fn the_initial_window_is_ten_segments_and_doubles() {
    let mut script = Script::established("mss 1000 ws 7 sackok");
    script.write(100_000).unwrap();
    assert_eq!(script.sent().len(), 10);
    script.put("A 1 5001 0");
    assert_eq!(script.sent().len(), 10);
    script.put("A 1 10001 0");
    assert_eq!(script.sent().len(), 10);
}

#[test]
fn the_peers_window_is_never_exceeded() {
    let mut script = Script::established("mss 1000 win 2500");
    script.write(10_000).unwrap();
    // The third would be less than half of the window.
    assert_eq!(script.sent(), ["A 1 1 1000", "A 1001 1 1000"]);
    script.put("A 1 2001 0 win 1500");
    assert_eq!(script.sent(), ["A 2001 1 1000"]);
}

#[test]
fn a_peer_with_a_window_below_a_segment_is_served() {
    let mut script = Script::established("mss 1000 win 500");
    script.write(1_200).unwrap();
    assert_eq!(script.sent(), ["A 1 1 500"]);
    script.put("A 1 501 0 win 500");
    assert_eq!(script.sent(), ["A 501 1 500"]);
    script.put("A 1 1001 0 win 500");
    assert_eq!(script.sent(), ["PA 1001 1 200"]);
}

#[test]
fn a_closed_window_is_probed_for_as_long_as_the_peer_answers() {
    let mut script = Script::established("mss 1000 win 1000");
    script.write(3_000).unwrap();
    script.sent();
    script.put("A 1 1001 0 win 0");
    let mut probes = 0;
    for _ in 0..4_000 {
        script.pass_millis(1_000);
        let sent = script.sent();
        assert!(sent.iter().all(|text| text == "A 1000 1 0"), "{sent:?}");
        if !sent.is_empty() {
            probes += sent.len();
            script.put("A 1 1001 0 win 0");
        }
    }
    assert!((790..820).contains(&probes), "{probes} probes in 4000 s");
    assert_eq!(script.state(), State::Established);
    script.put("A 1 1001 0 win 5000");
    assert_eq!(script.sent(), ["A 1001 1 1000", "PA 2001 1 1000"]);
}

#[test]
fn a_closed_window_of_a_silent_peer_ends_in_a_timeout() {
    let mut script = Script::established("mss 1000 win 1000");
    script.write(3_000).unwrap();
    script.put("A 1 1001 0 win 0");
    script.pass(Duration::from_secs(900));
    assert_eq!(script.state(), State::Established);
    script.pass(Duration::from_secs(60));
    assert_eq!(script.state(), State::Closed);
}

#[test]
fn a_window_too_small_to_be_worth_it_is_used_after_a_while() {
    let mut script = Script::established("mss 1000 win 4000");
    script.write(6_000).unwrap();
    assert_eq!(script.sent().len(), 4);
    script.put("A 1 4001 0 win 10");
    assert!(script.sent().is_empty());
    script.pass_millis(1_000);
    assert_eq!(script.sent()[0], "A 4001 1 10");
}

#[test]
fn a_window_that_shrinks_under_data_in_flight_does_no_harm() {
    let mut script = Script::established("mss 1000 win 8000 sackok");
    script.write(8_000).unwrap();
    assert_eq!(script.sent().len(), 8);
    script.put("A 1 1001 0 win 0");
    script.pass_millis(5_000);
    let sent = script.sent();
    assert!(sent.iter().all(|text| text == "A 1001 1 1000" || text.starts_with("PA 7001")));
    assert!(sent.contains(&"A 1001 1 1000".to_string()), "{sent:?}");
    script.put("A 1 2001 0 win 8000");
    script.pass_millis(10);
    script.put("A 1 8001 0 win 8000");
    assert_eq!(script.state(), State::Established);
}

#[test]
fn a_lost_tail_is_probed_and_then_timed_out_with_back_off() {
    let mut script = Script::established("mss 1000 sackok");
    script.write(100).unwrap();
    let segment = "PA 1 1 100";
    assert_eq!(script.sent(), [segment]);
    // Three probes within 50 ms, then the timeouts.
    script.pass_millis(50);
    assert_eq!(script.sent(), [segment; 3]);
    script.pass_millis(300);
    assert_eq!(script.sent(), [segment]);
    script.pass_millis(450);
    assert_eq!(script.sent(), [segment]);
    script.pass_millis(850);
    assert_eq!(script.sent(), [segment]);
    assert_eq!(script.counter("tcp_rto_fired"), 3);
    script.put("A 1 101 0");
    assert_eq!(script.info().retransmits, 0);
    script.pass(Duration::from_secs(10));
    assert!(script.sent().is_empty());
}

#[test]
fn without_sack_the_timeout_is_all_there_is() {
    let mut script = Script::established("mss 1000");
    script.write(100).unwrap();
    script.sent();
    script.pass_millis(199);
    assert!(script.sent().is_empty());
    script.pass_millis(2);
    assert_eq!(script.sent(), ["PA 1 1 100"]);
}

#[test]
fn three_duplicates_from_a_peer_without_sack_repeat_the_first_segment() {
    let mut script = Script::established("mss 1000");
    script.write(10_000).unwrap();
    script.sent();
    script.put("A 1 1 0");
    script.put("A 1 1 0");
    assert!(script.sent().is_empty());
    script.put("A 1 1 0");
    assert_eq!(script.sent(), ["A 1 1 1000"]);
    // A partial acknowledgement: the next hole.
    script.put("A 1 5001 0");
    assert_eq!(script.sent()[0], "A 5001 1 1000");
    script.put("A 1 10001 0");
    assert!(script.sent().is_empty());
    assert_eq!(script.counter("tcp_recoveries"), 1);
}

#[test]
fn selective_acknowledgements_repeat_exactly_the_holes() {
    let mut script = Script::connecting();
    script.sent();
    script.pass_millis(10);
    script.put("SA 0 1 0 mss 1000 sackok");
    script.write(10_000).unwrap();
    script.sent();
    script.pass_millis(10);
    script.put("A 1 1 0 sack 1001-2001");
    assert!(script.sent().is_empty(), "one segment may have been overtaken");
    script.put("A 1 1 0 sack 3001-5001 1001-2001");
    assert_eq!(script.sent(), ["A 1 1 1000"]);
    script.pass_millis(1);
    script.put("A 1 1 0 sack 3001-8001 1001-2001");
    assert_eq!(script.sent()[0], "A 2001 1 1000");
    script.put("A 1 10001 0");
    assert!(script.sent().is_empty());
    let info = script.info();
    assert_eq!(info.retransmitted_total, 2);
    assert!((7_000..8_000).contains(&info.cwnd), "{}", info.cwnd);
}

#[test]
fn a_needless_retransmission_gives_the_window_back() {
    let mut script = Script::established("mss 1000 sackok");
    script.write(10_000).unwrap();
    script.sent();
    script.put("A 1 1 0 sack 1001-5001");
    assert_eq!(script.sent(), ["A 1 1 1000"]);
    script.put("A 1 5001 0");
    script.put("A 1 5001 0 sack 1-1001");
    assert_eq!(script.info().cwnd, 10_000);
    assert_eq!(script.counter("tcp_dsack_rx"), 1);
}

#[test]
fn a_needless_timeout_gives_the_window_back() {
    let mut script = Script::established("mss 1000 sackok");
    script.write(10_000).unwrap();
    script.sent();
    script.pass_millis(300);
    assert_eq!(script.counter("tcp_rto_fired"), 1);
    script.sent();
    script.put("A 1 3001 0");
    assert_eq!(script.counter("tcp_rto_spurious"), 1);
    assert!(script.info().cwnd >= 10_000, "{:?}", script.info());
}

#[test]
fn send_fills_the_buffer_and_tells_when_a_third_is_free() {
    let mut script =
        Script::established_with("mss 1000 win 9000", |_| {}, &[TcpOption::SendBuffer(9_000)]);
    assert_eq!(script.write(20_000), Ok(9_000));
    assert_eq!(script.write(1), Err(SendError::WouldBlock));
    assert_eq!(script.mask(), 0);
    script.put("A 1 2001 0");
    assert_eq!((script.mask(), script.events()), (0, Readiness::empty()));
    script.put("A 1 3001 0");
    assert_eq!((script.mask(), script.events()), (0x4, Readiness::WRITABLE));
    script.put("A 1 4001 0");
    assert_eq!(script.events(), Readiness::empty(), "the edge comes once");
}

#[test]
fn unsent_data_may_be_limited() {
    let options = [TcpOption::NotSentLowWater(2_000)];
    let mut script = Script::established_with("mss 1000 win 1000", |_| {}, &options);
    script.write(3_000).unwrap();
    assert_eq!(script.mask(), 0);
    assert_eq!(script.write(1), Err(SendError::WouldBlock));
    script.put("A 1 1001 0 win 1000");
    assert_eq!(script.mask(), 0x4);
    assert_eq!(script.events(), Readiness::WRITABLE);
}

#[test]
fn data_and_end_of_a_closed_connection_survive_a_window_closed_for_ten_seconds() {
    let mut script = Script::established("mss 1000 win 1000");
    script.write(2_000).unwrap();
    script.close(Close::Graceful);
    script.sent();
    script.put("A 1 1001 0 win 0");
    for _ in 0..10 {
        script.pass_millis(1_000);
        if !script.sent().is_empty() {
            script.put("A 1 1001 0 win 0");
        }
    }
    script.put("A 1 1001 0 win 1000");
    assert_eq!(script.sent(), ["PA 1001 1 1000"]);
    script.put("A 1 2001 0 win 1000");
    assert_eq!(script.sent(), ["FA 2001 1 0"]);
}

#[test]
fn a_pause_shrinks_the_window_again() {
    let mut script = Script::established("mss 1000 ws 7 sackok");
    for n in 0..6 {
        script.write(10_000 << n).unwrap();
        let end = 1 + ((10_000 << (n + 1)) - 10_000);
        for _ in 0..50 {
            script.sent();
            let acked = script.info().bytes_acked as u32 + script.info().in_flight + 1;
            script.put(&format!("A 1 {acked} 0 win 60000"));
        }
        assert_eq!(script.info().bytes_acked + 1, end);
    }
    assert!(script.info().cwnd > 100_000);
    script.pass(Duration::from_secs(10));
    script.write(100_000).unwrap();
    assert_eq!(script.sent().len(), 10);
}
