//! When and what a connection sends: Nagle, cork, windows, retransmission, probes.

use lstack_core::tcp::State;

use super::script::Script;

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
