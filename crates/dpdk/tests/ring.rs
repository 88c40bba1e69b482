//! A real DPDK over a device that returns what it is sent.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;
#[path = "support/traffic.rs"]
mod traffic;

use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use dpdk::{Checksum, EalError, Packet, Queues};
use support::{MEMORY, REQUEST, eal, start};
use traffic::{packet, receive, send};

/// Collects what is logged.
#[derive(Debug)]
struct Collector(Mutex<Vec<String>>);

impl log::Log for Collector {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(format!("{} {} {}", record.level(), record.target(), record.args()));
    }

    fn flush(&self) {}
}

/// What a program can see of its own process and thread.
#[derive(Debug, PartialEq, Eq)]
struct Visible {
    affinity: String,
    blocked_signals: String,
    ignored_signals: String,
    caught_signals: String,
    descriptor_limit: String,
}

fn visible() -> Visible {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let limit = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    Visible {
        affinity: field("Cpus_allowed_list:"),
        blocked_signals: field("SigBlk:"),
        ignored_signals: field("SigIgn:"),
        caught_signals: field("SigCgt:"),
        descriptor_limit: limit.to_owned(),
    }
}

/// Points stdout and stderr to a file while `call` runs; returns what was written there.
fn printed_by(call: impl FnOnce()) -> String {
    let path = std::env::temp_dir().join(format!("lstack-dpdk-ring-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    let swap = |fd: i32| {
        // SAFETY: descriptors of this process; the copies are put back below.
        let kept = unsafe { libc::dup(fd) };
        // SAFETY: as above.
        unsafe { libc::dup2(file.as_raw_fd(), fd) };
        kept
    };
    let kept = [(1, swap(1)), (2, swap(2))];
    call();
    for (fd, kept) in kept {
        // SAFETY: puts the descriptor kept above back.
        unsafe { libc::dup2(kept, fd) };
    }
    let printed = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    printed
}

#[test]
fn packets_come_back_whole_and_the_process_is_left_as_it_was() {
    static LOG: Collector = Collector(Mutex::new(Vec::new()));
    log::set_logger(&LOG).unwrap();
    log::set_max_level(log::LevelFilter::Trace);

    let before = visible();
    let mut running = None;
    let printed = printed_by(|| running = Some(eal("net_ring0")));
    assert_eq!(printed, "");
    let eal = running.unwrap();
    assert!(eal.version().starts_with("DPDK "), "{}", eal.version());
    assert!(LOG.0.lock().unwrap().iter().any(|line| line.contains("dpdk EAL:")));
    assert!(matches!(dpdk::Eal::init(&[], MEMORY), Err(EalError::AlreadyStarted)));

    let (started, negotiated, pool) = start(&eal, &REQUEST);
    assert_eq!(visible(), before);
    assert_eq!(negotiated.queues, 1);
    assert!(started.port.wait_for_link(std::time::Duration::from_secs(5)));
    let mut queues = started.queues.into_iter().next().unwrap();

    // One segment, every length a frame can have.
    for len in [1, 14, 60, 1499, 1514] {
        let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let sent = packet(&mut queues, &bytes);
        assert_eq!(sent.contiguous(), Some(&bytes[..]));
        send(&mut queues, sent);
        assert_eq!(receive(&mut queues), bytes);
    }

    // Several segments.
    let mut head = packet(&mut queues, b"one ");
    let tail = packet(&mut queues, b"two ");
    head.chain(tail).unwrap();
    let tail = packet(&mut queues, b"three");
    head.chain(tail).unwrap();
    assert_eq!(head.segment_count(), 3);
    assert_eq!(head.reference_count(), 1);
    assert_eq!(head.contiguous(), None);
    assert_eq!(head.packet_len(), 13);
    assert_eq!(head.rx_flags().l4, Checksum::Unknown);
    assert!(head.resize(1).is_none());
    send(&mut queues, head);
    assert_eq!(receive(&mut queues), b"one two three");

    // More than a segment holds.
    let mut small = packet(&mut queues, b"");
    assert!(small.resize(2048).is_some());
    assert!(small.resize(2049).is_none());
    assert!(small.resize(usize::MAX).is_none());
    drop(small);

    // Bursts, until the ring refuses; what it refuses stays ours.
    let mut batch = dpdk::Batch::with_capacity(256);
    assert!(queues.allocate(&mut batch, 256));
    assert!(!queues.allocate(&mut batch, 1));
    let taken = queues.transmit(&mut batch);
    assert_eq!(batch.len(), 256 - taken);
    queues.free(&mut batch);
    let mut received = dpdk::Batch::with_capacity(256);
    while queues.receive(&mut received, 64) > 0 {}
    assert_eq!(received.len(), taken);
    drop(received);

    assert_eq!(started.port.stats().rx_packets, started.port.stats().tx_packets);
    drop((queues, started.port));
    assert_eq!(pool.available(), pool.capacity());
    assert_eq!(visible(), before);
}
