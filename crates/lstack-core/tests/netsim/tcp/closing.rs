//! How connections end: FIN from either side or both, RST, silence, `TIME_WAIT`.

use std::time::Duration;

use lstack_core::tcp::{Close, Reuse, State};

use super::script::Script;

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
