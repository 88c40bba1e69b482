//! A namespace of the test thread's own, and frames from the kernel in it.

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::Command;

use dpdk::{Batch, Packet, QueuePair, Queues};

/// Moves the thread, and what it starts, into an empty network namespace.
pub fn enter_namespace() {
    // SAFETY: changes the calling thread only.
    let error = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(error, 0, "the test needs root: {}", std::io::Error::last_os_error());
}

/// Runs `ip` with these words.
pub fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

/// Whether the descriptor is readable within `timeout_ms`.
pub fn readable(fd: BorrowedFd<'_>, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    let ready = unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
    assert!(ready >= 0, "poll: {}", std::io::Error::last_os_error());
    ready == 1
}

/// Lets the kernel look for a neighbour behind the device, and sleeps on the device's descriptor
/// until the question arrives. Afterwards nothing waits and the descriptor is not readable.
pub fn sleep_until_the_kernel_asks(queues: &mut QueuePair, neighbour: &str) {
    drain(queues);
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.send_to(b"x", (neighbour, 9)).unwrap();
    let mut asked = false;
    for _ in 0..100 {
        let wake = queues.wake_fd().expect("the device has a descriptor");
        assert!(readable(wake, 10_000), "nothing wakes the sleeper");
        asked |= drain(queues);
        if asked {
            break;
        }
    }
    assert!(asked, "the question for the neighbour arrives");
}

/// Receives everything that waits; whether an ARP request was there.
fn drain(queues: &mut QueuePair) -> bool {
    let mut batch = Batch::with_capacity(32);
    let mut asked = false;
    while queues.receive(&mut batch, 32) > 0 {
        asked |= batch.iter().any(|packet| {
            packet.contiguous().is_some_and(|bytes| bytes.get(12..14) == Some(&[8, 6]))
        });
        queues.free(&mut batch);
    }
    asked
}

/// That a device at rest lets its user sleep: after all is received, the descriptor becomes quiet.
pub fn rests(queues: &mut QueuePair) {
    // The kernel may still send something of its own; it stops within a few rounds.
    for _ in 0..100 {
        drain(queues);
        let wake = queues.wake_fd().expect("the device has a descriptor");
        if !readable(wake, 100) {
            return;
        }
    }
    panic!("the descriptor stays readable though all was received");
}
