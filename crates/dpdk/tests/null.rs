//! A real DPDK over a device that offers nothing: it receives endless garbage and sends to nobody.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use dpdk::{Batch, Port, PortError, PortRequest, Queues};
use support::{REQUEST, eal, start};

#[test]
fn a_device_without_offloads_works_and_clamps_what_it_is_asked() {
    let eal = eal("net_null0,size=64");

    let missing = Port::find(&eal, Some([2, 0, 0, 0, 0, 99])).unwrap_err();
    assert!(matches!(missing, PortError::NotFound { .. }));
    let text = missing.to_string();
    assert!(text.contains("02:00:00:00:00:63") && text.contains("net_null"), "{text}");

    let port = Port::find(&eal, None).unwrap();
    let refused = port.negotiate(&PortRequest { mtu: Some(12), ..REQUEST }).unwrap_err();
    assert!(matches!(refused, PortError::Mtu { wanted: 12, .. }), "{refused}");
    let by_address = Port::find(&eal, Some(port.info().mac)).unwrap();
    assert_eq!(by_address.info(), port.info());
    drop((port, by_address));

    let (started, negotiated, pool) = start(&eal, &PortRequest { queues: 1, ..REQUEST });
    assert!(!negotiated.tso && !negotiated.rx_tcp_checksum && !negotiated.rss);
    let mut queues = started.queues.into_iter().next().unwrap();
    assert!(queues.wake_fd().is_none());
    let mut batch = Batch::with_capacity(32);
    assert_eq!(queues.receive(&mut batch, 64), 32, "no more than there is room for");
    queues.transmit(&mut batch);
    queues.free(&mut batch);
    drop((queues, started.port));
    assert_eq!(pool.available(), pool.capacity());
}
