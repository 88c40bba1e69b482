//! A tap device: its descriptor wakes a sleeper, and no signal is used.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/kernel.rs"]
mod kernel;
mod support;

use dpdk::Queues;
use kernel::{enter_namespace, ip, rests, sleep_until_the_kernel_asks};
use support::{REQUEST, eal, start};

/// The signals this process handles, as the kernel shows them.
fn caught_signals() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find(|line| line.starts_with("SigCgt")).unwrap().to_owned()
}

#[test]
fn an_idle_program_sleeps_on_the_tap_and_handles_no_signal() {
    enter_namespace();
    let signals = caught_signals();
    let eal = eal("net_tap0,iface=lstest0");
    let (started, negotiated, pool) = start(&eal, &REQUEST);
    assert_eq!(negotiated.mtu, 1500);
    let mut queues = started.queues.into_iter().next().unwrap();
    let wake = queues.wake_fd().unwrap();
    assert!(dpdk::owns_descriptor(std::os::fd::AsRawFd::as_raw_fd(&wake)));
    assert!(!dpdk::owns_descriptor(1));

    ip("address add 10.99.1.1/24 dev lstest0");
    sleep_until_the_kernel_asks(&mut queues, "10.99.1.2");
    rests(&mut queues);
    // Again, after having been at rest.
    sleep_until_the_kernel_asks(&mut queues, "10.99.1.3");
    assert_eq!(caught_signals(), signals);

    drop((queues, started.port));
    assert_eq!(pool.available(), pool.capacity());
}
