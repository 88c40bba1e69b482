//! Every byte arrives, whatever the link does, and nothing is left behind.

use std::time::Duration;

use lstack_core::StackConfig;

use super::pump::Pair;
use crate::support::{LinkModel, Side};

const PLAIN: fn(Side, &mut StackConfig) = |_, _| {};

fn both_ways(seed: u64, model: LinkModel, bytes: u64, change: impl Fn(Side, &mut StackConfig)) {
    let mut pair = Pair::connect(seed, model, [bytes, bytes], change);
    assert!(pair.run(Duration::from_secs(600)), "seed {seed}: {}", pair.progress());
    pair.finish();
}

#[test]
fn a_clean_link_carries_both_streams() {
    both_ways(1, LinkModel::default(), 3_000_000, PLAIN);
}

fn bad_link(loss: u32) -> LinkModel {
    LinkModel {
        latency: Duration::from_micros(200),
        jitter: Duration::from_micros(100),
        bits_per_second: Some(1_000_000_000),
        loss,
        duplicate: 50_000,
        corrupt: 10_000,
        ..LinkModel::default()
    }
}

#[test]
fn loss_reordering_duplication_and_corruption_change_no_byte() {
    for seed in 0..40 {
        let loss = [1_000, 10_000, 50_000, 200_000][seed as usize % 4];
        both_ways(seed, bad_link(loss), 200_000, PLAIN);
    }
}

#[test]
fn tiny_buffers_and_tiny_segments_get_through() {
    for seed in 0..10 {
        let model = LinkModel { mtu: [68, 100, 576, 1_500][seed as usize % 4], ..bad_link(20_000) };
        both_ways(100 + seed, model, 30_000, |_, config| {
            config.tcp.send_buffer = 1_024;
            config.tcp.send_buffer_max = 1_024;
            config.tcp.recv_buffer = 1_024 + 300 * seed as usize;
            config.tcp.recv_buffer_max = config.tcp.recv_buffer;
        });
    }
}

#[test]
fn a_pool_smaller_than_the_windows_only_slows_down() {
    for seed in 0..10 {
        both_ways(200 + seed, bad_link(20_000), 500_000, |_, config| {
            config.tcp.memory_max = 64 * 1024;
        });
    }
}

#[test]
fn a_slow_reader_closes_the_window_and_loses_nothing() {
    for seed in 0..6 {
        let mut pair = Pair::connect(300 + seed, bad_link(10_000), [400_000, 0], |side, config| {
            if side == Side::B {
                config.tcp.recv_buffer = 20_000;
                config.tcp.recv_buffer_max = 20_000;
            }
        });
        let reader = &mut pair.pumps[1];
        reader.read_chunk = [1_000, 20_000, 333][seed as usize % 3];
        reader.read_pause = Duration::from_millis([5, 700, 1][seed as usize % 3]);
        assert!(pair.run(Duration::from_secs(600)), "{}", pair.progress());
        pair.finish();
    }
}

#[test]
fn a_reader_that_pauses_for_half_a_minute_is_waited_for() {
    for seed in 0..4 {
        let mut pair = Pair::connect(400 + seed, bad_link(50_000), [2_000_000, 0], PLAIN);
        pair.pumps[1].read_pause = Duration::from_secs(30);
        pair.run_until(Duration::from_secs(29), |_| false);
        pair.pumps[1].read_pause = Duration::ZERO;
        pair.pumps[1].next_read = pair.net.now;
        let start = pair.net.now;
        assert!(pair.run(Duration::from_secs(60)), "{}", pair.progress());
        // Should the update be lost, the next probe finds the window open.
        assert!(pair.net.now - start < Duration::from_secs(12), "{:?}", pair.net.now - start);
        pair.finish();
    }
}

#[test]
fn a_black_out_is_survived_and_left_within_the_backed_off_timeout() {
    for (seed, seconds) in [(500, 3), (501, 3), (502, 30), (503, 30)] {
        let mut pair = Pair::connect(seed, bad_link(1_000), [20_000_000, 500_000], PLAIN);
        pair.run_until(Duration::from_millis(20), |_| false);
        for side in [Side::A, Side::B] {
            pair.net.model(side).loss = 1_000_000;
        }
        pair.run_until(Duration::from_secs(seconds), |_| false);
        let received = pair.pumps[1].received;
        for side in [Side::A, Side::B] {
            pair.net.model(side).loss = 1_000;
        }
        // The last timeout was at most as long as the black-out.
        let resumed = Duration::from_secs(seconds + 1);
        assert!(pair.run_until(resumed, |pair| pair.pumps[1].received > received));
        assert!(pair.run(Duration::from_secs(60)), "{}", pair.progress());
        pair.finish();
    }
}
