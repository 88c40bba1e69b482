//! How much gets through at a given loss: a table against targets.

use std::time::Duration;

use super::pump::Pair;
use crate::support::LinkModel;

/// Megabits per second from A to B with 10 Gbit/s, 100 µs round trip and 1 MB buffers.
fn goodput(loss: u32, time: Duration, seed: u64) -> u64 {
    let model = LinkModel {
        latency: Duration::from_micros(50),
        bits_per_second: Some(10_000_000_000),
        loss,
        ..LinkModel::default()
    };
    let mut pair = Pair::connect(seed, model, [u64::MAX / 2, 0], |_, config| {
        config.tcp.send_buffer = 1 << 20;
        config.tcp.send_buffer_max = 1 << 20;
        config.tcp.recv_buffer = 1 << 20;
        config.tcp.recv_buffer_max = 1 << 20;
    });
    let start = pair.net.now;
    let end = start + time;
    pair.run_until(time, |pair| pair.net.now >= end);
    let elapsed = pair.net.now - start;
    pair.pumps[1].received * 8 / elapsed.as_micros() as u64
}

#[test]
fn goodput_meets_its_targets() {
    println!("loss in millionths, Mbit/s, target");
    for (loss, target, millis) in [
        (0, 9_200, 50),
        (100, 8_000, 100),
        (1_000, 4_000, 300),
        (10_000, 1_200, 500),
        (50_000, 200, 1_000),
    ] {
        let measured = goodput(loss, Duration::from_millis(millis), 42);
        println!("{loss:>8} {measured:>8} {target:>8}");
        assert!(measured >= target, "{measured} Mbit/s at a loss of {loss} in a million");
    }
}
