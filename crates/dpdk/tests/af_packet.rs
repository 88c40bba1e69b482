//! A packet socket on one end of a cable: it wakes a sleeper.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/kernel.rs"]
mod kernel;
mod support;

use dpdk::{Port, PortRequest, Queues};
use kernel::{enter_namespace, ip, rests, sleep_until_the_kernel_asks};
use support::{REQUEST, eal, start};

#[test]
fn an_idle_program_sleeps_on_its_packet_socket() {
    enter_namespace();
    ip("link add lstest0 mtu 1400 type veth peer name lstest1");
    ip("link set lstest0 up");
    ip("link set lstest1 up");
    ip("address add 10.99.2.1/24 dev lstest1");
    let eal = eal("net_af_packet0,iface=lstest0,qpairs=1");

    let port = Port::find(&eal, None).unwrap();
    assert_eq!(port.info().interface.as_deref(), Some("lstest0"));
    drop(port);
    let (started, negotiated, pool) = start(&eal, &PortRequest { queues: 4, ..REQUEST });
    assert_eq!(negotiated.queues, 1, "it has no more");
    assert_eq!(negotiated.mtu, 1400, "as the kernel's interface");
    let mut queues = started.queues.into_iter().next().unwrap();
    assert!(queues.wake_fd().is_some());

    rests(&mut queues);
    sleep_until_the_kernel_asks(&mut queues, "10.99.2.2");
    rests(&mut queues);
    sleep_until_the_kernel_asks(&mut queues, "10.99.2.3");

    // An interface that goes down leaves an error on the socket, which must not keep it awake.
    ip("link set lstest0 down");
    ip("link set lstest0 up");
    queues.settle_wake_fd();
    rests(&mut queues);

    drop((queues, started.port));
    assert_eq!(pool.available(), pool.capacity());
}
