//! A device that does not exist is an error in words, and the process lives on.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use dpdk::{Eal, EalError, Port, PortError};

#[test]
fn a_missing_interface_is_refused_with_the_drivers_words() {
    let words = ["--vdev=net_af_packet0,iface=nosuchif0".to_owned()];
    let (eal, _) = Eal::init(&words, 64).unwrap();
    let error = Port::find(&eal, None).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, PortError::None { .. }), "{text}");
    assert!(text.contains("net_af_packet0") && text.contains("dpdk_args"), "{text}");

    // The second try says why there is none.
    assert!(matches!(Eal::init(&words, 64), Err(EalError::AlreadyStarted)));
}
