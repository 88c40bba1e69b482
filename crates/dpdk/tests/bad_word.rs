//! A word DPDK does not know is an error in words, and the process lives on.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use dpdk::{Eal, EalError};

#[test]
fn an_unknown_word_is_named() {
    let error = Eal::init(&["--no-such-word".to_owned()], 64).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, EalError::Refused { .. }), "{text}");
    assert!(text.contains("--no-such-word"), "{text}");
}
