//! When and how a connection acknowledges, and what window it offers.

use lstack_core::tcp::{RecvError, TcpOption};
use lstack_core::{Readiness, TcpConfig};

use super::script::Script;

/// An established connection that has used up its quick acknowledgements.
fn settled(words: &str) -> (Script, u32) {
    let mut script = Script::established(words);
    let mut seq = 1;
    for _ in 0..16 {
        script.put(&format!("PA {seq} 1 1000"));
        seq += 1_000;
        assert_eq!(script.sent(), [format!("A 1 {seq} 0")], "quick at the start");
    }
    script.read(100_000).unwrap();
    script.sent();
    script.events();
    (script, seq)
}

#[test]
fn every_second_segment_is_acknowledged_and_a_lone_one_after_forty_milliseconds() {
    let (mut script, seq) = settled("mss 1000");
    script.put(&format!("A {seq} 1 1000"));
    assert!(script.sent().is_empty());
    script.put(&format!("A {} 1 1000", seq + 1_000));
    assert_eq!(script.sent(), [format!("A 1 {} 0", seq + 2_000)]);
    script.put(&format!("A {} 1 1000", seq + 2_000));
    script.pass_millis(39);
    assert!(script.sent().is_empty());
    script.pass_millis(1);
    assert_eq!(script.sent(), [format!("A 1 {} 0", seq + 3_000)]);
}

#[test]
fn a_burst_is_acknowledged_once() {
    let (mut script, seq) = settled("mss 1000");
    let texts: Vec<String> = (0..20).map(|n| format!("A {} 1 1000", seq + 1_000 * n)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    script.put_burst(&texts);
    assert_eq!(script.sent(), [format!("A 1 {} 0", seq + 20_000)]);
    assert_eq!(script.events(), Readiness::READABLE);
}

#[test]
fn an_answer_carries_the_acknowledgement() {
    let mut script = Script::accepted("mss 1000");
    script.put("PA 1 1 10");
    script.sent();
    script.read(10).unwrap();
    script.write(10).unwrap();
    assert_eq!(script.sent(), ["PA 1 11 10"]);
    // Now it looks like question and answer: no acknowledgement of its own any more.
    script.put("PA 11 11 10");
    script.read(10).unwrap();
    assert!(script.sent().is_empty());
    script.write(10).unwrap();
    assert_eq!(script.sent(), ["PA 11 21 10"]);
}

#[test]
fn holes_are_reported_at_once_newest_first() {
    let (mut script, seq) = settled("mss 1000 sackok");
    let at = |n: u32| seq + n * 1_000;
    script.put(&format!("A {} 1 1000", at(1)));
    assert_eq!(script.sent(), [format!("A 1 {seq} 0 sack {}-{}", at(1), at(2))]);
    script.put(&format!("A {} 1 1000", at(3)));
    let both = format!("sack {}-{} {}-{}", at(3), at(4), at(1), at(2));
    assert_eq!(script.sent(), [format!("A 1 {seq} 0 {both}")]);
    assert_eq!(script.read(1), Err(RecvError::WouldBlock));
    script.put(&format!("A {seq} 1 1000"));
    assert_eq!(script.sent(), [format!("A 1 {} 0 sack {}-{}", at(2), at(3), at(4))]);
    script.put(&format!("A {} 1 1000", at(2)));
    assert_eq!(script.sent(), [format!("A 1 {} 0", at(4))]);
    assert_eq!(script.read(9_000), Ok(4_000));
}

#[test]
fn a_burst_with_a_hole_costs_a_peer_without_sack_no_duplicates() {
    let (mut script, seq) = settled("mss 1000");
    let texts: Vec<String> = (1..5).map(|n| format!("A {} 1 1000", seq + 1_000 * n)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    script.put_burst(&texts);
    assert_eq!(script.sent(), vec![format!("A 1 {seq} 0"); 4]);
}

#[test]
fn duplicates_are_reported() {
    let (mut script, seq) = settled("mss 1000 sackok");
    script.put(&format!("A {} 1 1000", seq - 1_000));
    let answer = format!("A 1 {seq} 0 sack {}-{seq}", seq - 1_000);
    assert_eq!(script.sent(), [answer]);
    // Partly old: the new part counts.
    script.put(&format!("A {} 1 1000", seq - 500));
    let answer = format!("A 1 {} 0 sack {}-{seq}", seq + 500, seq - 500);
    assert_eq!(script.sent(), [answer]);
    assert_eq!(script.read(9_000), Ok(500));
}

#[test]
fn the_window_closes_with_the_buffer_and_opens_when_it_is_worth_it() {
    let change = |config: &mut lstack_core::StackConfig| {
        config.tcp =
            TcpConfig { recv_buffer: 4_000, recv_buffer_max: 4_000, ..TcpConfig::default() };
    };
    let mut script = Script::established_with("mss 1000", change, &[]);
    for n in 0..4 {
        script.put(&format!("PA {} 1 1000", 1 + 1_000 * n));
        script.sent();
        assert_eq!(script.window, 4_000 - 1_000 * (n as u16 + 1));
    }
    // A probe with data finds no room, and is answered.
    script.put("PA 4001 1 1");
    assert_eq!(script.sent(), ["A 1 4001 0"]);
    script.read(500).unwrap();
    assert!(script.sent().is_empty(), "half a segment is not worth an update");
    script.read(500).unwrap();
    assert_eq!((script.sent(), script.window), (vec!["A 1 4001 0".into()], 1_000));
    script.read(3_000).unwrap();
    assert_eq!((script.sent(), script.window), (vec!["A 1 4001 0".into()], 4_000));
}

#[test]
fn data_beyond_the_window_is_cut_off() {
    let change = |config: &mut lstack_core::StackConfig| {
        config.tcp =
            TcpConfig { recv_buffer: 2_000, recv_buffer_max: 2_000, ..TcpConfig::default() };
    };
    let mut script = Script::established_with("mss 1000", change, &[]);
    script.put("PA 1501 1 1000");
    script.put("PA 1 1 1500");
    assert_eq!(script.read(9_000), Ok(2_000));
    script.put("PA 9001 1 1000");
    assert_eq!(script.counter("tcp_drop_out_of_window"), 1);
}

#[test]
fn readers_may_ask_for_more_than_one_byte_at_a_time() {
    let mut script = Script::established_with("mss 1000", |_| {}, &[TcpOption::RecvLowWater(5)]);
    script.put("PA 1 1 4");
    assert_eq!((script.mask(), script.events()), (0x4, Readiness::empty()));
    script.put("PA 5 1 1");
    assert_eq!((script.mask(), script.events()), (0x5, Readiness::READABLE));
}

#[test]
fn every_arrival_is_an_edge() {
    let mut script = Script::established("mss 1000");
    for n in 0..3 {
        script.put(&format!("PA {} 1 1", 1 + n));
        assert_eq!(script.events(), Readiness::READABLE);
    }
    script.read(1).unwrap();
    assert_eq!(script.events(), Readiness::empty());
}

#[test]
fn quick_acknowledgements_can_be_asked_for() {
    let (mut script, seq) = settled("mss 1000");
    script.put(&format!("A {seq} 1 10"));
    assert!(script.sent().is_empty());
    script.option(TcpOption::QuickAck(true));
    assert_eq!(script.sent(), [format!("A 1 {} 0", seq + 10)]);
    script.put(&format!("A {} 1 10", seq + 10));
    assert_eq!(script.sent().len(), 1);
}

#[test]
fn urgent_data_is_ordinary_data_and_padding_is_not_data() {
    let mut script = Script::established("mss 1000");
    script.put("PA 1 1 5");
    assert_eq!(script.read(100), Ok(5));
}
