//! Explicit congestion notification, RFC 3168 section 6.1.

use lstack_core::{EcnMode, StackConfig};

use super::script::Script;

/// The ECN field of a packet that may be marked.
const CAPABLE: u8 = 2;

fn mode(mode: EcnMode) -> impl Fn(&mut StackConfig) {
    move |config| config.tcp.ecn = mode
}

/// A connection that we opened and that uses it.
fn established() -> Script {
    let mut script = Script::connecting_with(mode(EcnMode::On), &[]);
    assert_eq!(script.sent(), ["SEC 0 0 0 mss 1460 ws 7 sackok"]);
    script.put("SAE 0 1 0 mss 1460 sackok");
    assert_eq!(script.sent(), ["A 1 1 0"]);
    assert!(script.info().ecn);
    script
}

#[test]
fn a_listener_agrees_unless_it_is_off() {
    for (set, answer) in [
        (EcnMode::Off, "SA 0 1 0 mss 1460"),
        (EcnMode::Accept, "SAE 0 1 0 mss 1460"),
        (EcnMode::On, "SAE 0 1 0 mss 1460"),
    ] {
        let mut script = Script::listening_with(mode(set), 4);
        script.put("SEC 0 0 0");
        assert_eq!(script.sent(), [answer]);
        assert_eq!(script.tos, 0, "a handshake is not to be marked");
        script.put("A 1 1 0");
        script.accept();
        assert_eq!(script.info().ecn, set != EcnMode::Off);
    }
}

#[test]
fn a_listener_does_not_offer_what_nobody_asked_for() {
    for syn in ["S 0 0 0", "SE 0 0 0", "SC 0 0 0"] {
        let mut script = Script::listening_with(mode(EcnMode::On), 4);
        script.put(syn);
        assert_eq!(script.sent(), ["SA 0 1 0 mss 1460"]);
    }
}

#[test]
fn a_client_asks_only_when_it_is_on() {
    for set in [EcnMode::Off, EcnMode::Accept] {
        let mut script = Script::connecting_with(mode(set), &[]);
        assert_eq!(script.sent(), ["S 0 0 0 mss 1460 ws 7 sackok"]);
        script.put("SAE 0 1 0 mss 1460");
        script.sent();
        assert!(!script.info().ecn, "nobody asked for it");
    }
}

#[test]
fn an_answer_that_mirrors_our_bits_is_no_agreement() {
    for answer in ["SA 0 1 0", "SAEC 0 1 0", "SAC 0 1 0"] {
        let mut script = Script::connecting_with(mode(EcnMode::On), &[]);
        script.sent();
        script.put(answer);
        assert_eq!(script.sent(), ["A 1 1 0"]);
        assert!(!script.info().ecn);
        script.write(10).unwrap();
        script.sent();
        assert_eq!(script.tos, 0);
    }
}

#[test]
fn the_second_syn_does_not_ask_any_more() {
    let mut script = Script::connecting_with(mode(EcnMode::On), &[]);
    script.sent();
    script.pass_millis(1_100);
    assert_eq!(script.sent(), ["S 0 0 0 mss 1460 ws 7 sackok"]);
}

#[test]
fn new_data_may_be_marked_and_nothing_else() {
    let mut script = established();
    script.write(10).unwrap();
    assert_eq!(script.sent(), ["PA 1 1 10"]);
    assert_eq!(script.tos, CAPABLE);
    script.pass_millis(500);
    assert!(script.sent().contains(&"PA 1 1 10".to_owned()), "sent again");
    assert_eq!(script.tos, 0);
    script.put("A 1 11 0");
    script.put_burst(&["A 1 11 1460", "A 1461 11 1460"]);
    script.pass_millis(50);
    assert_eq!(script.sent().last().unwrap(), "A 11 2921 0");
    assert_eq!(script.tos, 0, "an acknowledgement");
}

#[test]
fn a_mark_is_echoed_until_the_peer_has_slowed_down() {
    let mut script = established();
    script.put("A 1 1 100 ce");
    assert_eq!(script.sent(), ["AE 1 101 0"]);
    script.put("A 101 1 100");
    script.pass_millis(50);
    assert_eq!(script.sent(), ["AE 1 201 0"]);
    script.write(10).unwrap();
    assert_eq!(script.sent(), ["PAE 1 201 10"]);
    script.put("AC 201 11 100");
    script.pass_millis(50);
    assert_eq!(script.sent(), ["A 11 301 0"]);
    // A mark on the segment that ends one echo begins another.
    script.put("AC 301 11 100 ce");
    assert_eq!(script.sent(), ["AE 11 401 0"]);
    assert_eq!(script.counter("tcp_ecn_marks_rx"), 2);
}

#[test]
fn marks_without_agreement_mean_nothing() {
    let mut script = Script::established("mss 1460");
    script.put("A 1 1 100 ce");
    script.put("AE 101 1 0");
    script.pass_millis(50);
    assert_eq!(script.sent(), ["A 1 101 0"]);
    assert_eq!(script.counter("tcp_ecn_marks_rx") + script.counter("tcp_ecn_reductions"), 0);
}

#[test]
fn an_echo_reduces_the_window_once_per_window_of_data() {
    let mut script = established();
    script.write(20 * 1_460).unwrap();
    let first = script.sent();
    assert_eq!(first.len(), 10);
    let before = script.info().cwnd;
    script.put("AE 1 1461 0");
    let reduced = script.info().cwnd;
    assert!(reduced < before, "{reduced} after {before}");
    for ack in 2..=9 {
        script.put(&format!("AE 1 {} 0", 1 + ack * 1_460));
    }
    assert_eq!(script.counter("tcp_ecn_reductions"), 1);
    // What is sent first says so, and only that.
    let sent = script.sent();
    assert!(sent[0].starts_with("AC 14601"), "{sent:?}");
    assert!(sent[1..].iter().all(|segment| segment.starts_with("A ")), "{sent:?}");
    assert_eq!(script.counter("tcp_retransmits_tx"), 0);
    script.put("AE 1 16061 0");
    assert_eq!(script.counter("tcp_ecn_reductions"), 2);
}
