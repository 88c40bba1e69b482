//! Single packets to and from a device.

use std::time::{Duration, Instant};

use dpdk::{Batch, Mbuf, Packet, QueuePair, Queues};

/// A packet with these bytes.
pub fn packet(queues: &mut QueuePair, bytes: &[u8]) -> Mbuf {
    let mut batch = Batch::with_capacity(1);
    assert!(queues.allocate(&mut batch, 1));
    let mut packet = batch.pop().expect("one was allocated");
    packet.resize(bytes.len()).expect("it fits one segment").copy_from_slice(bytes);
    packet
}

/// Sends one packet, waiting for room at most ten seconds.
pub fn send(queues: &mut QueuePair, packet: Mbuf) {
    let mut batch = Batch::with_capacity(1);
    batch.push(packet).expect("room for one");
    let deadline = Instant::now() + Duration::from_secs(10);
    while queues.transmit(&mut batch) == 0 {
        assert!(Instant::now() < deadline, "the device takes no packet");
        std::thread::yield_now();
    }
}

/// The next received packet, joined; waits at most ten seconds.
pub fn receive(queues: &mut QueuePair) -> Vec<u8> {
    let mut batch = Batch::with_capacity(1);
    let deadline = Instant::now() + Duration::from_secs(10);
    while queues.receive(&mut batch, 1) == 0 {
        assert!(Instant::now() < deadline, "no packet arrives");
        std::thread::yield_now();
    }
    let packet = batch.pop().expect("one was received");
    let mut bytes = vec![0; packet.packet_len()];
    assert_eq!(packet.copy_to(&mut bytes), bytes.len());
    bytes
}
