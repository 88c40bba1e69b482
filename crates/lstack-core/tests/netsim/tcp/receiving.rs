//! When and how a connection acknowledges, and what window it offers.

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
