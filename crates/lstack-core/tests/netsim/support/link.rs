//! A wire that delays, loses, reorders, duplicates and corrupts, as a seed has it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use lstack_core::Instant;

/// The manners of a wire. Chances are parts of one million.
#[derive(Clone, Debug)]
pub struct LinkModel {
    pub latency: Duration,
    /// Added to the latency of each frame, evenly spread: reorders.
    pub jitter: Duration,
    /// `None`: a frame takes no time.
    pub bits_per_second: Option<u64>,
    /// Bytes that may wait for their turn; more are lost.
    pub queue_bytes: usize,
    pub loss: u32,
    pub duplicate: u32,
    /// One bit flips, behind the Ethernet header (the FCS would catch it, a bad memory on the way
    /// does not have one) and not in ARP, which has no checksum at all.
    pub corrupt: u32,
    pub mtu: u16,
}

impl Default for LinkModel {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(50),
            jitter: Duration::ZERO,
            bits_per_second: None,
            queue_bytes: usize::MAX,
            loss: 0,
            duplicate: 0,
            corrupt: 0,
            mtu: 1_500,
        }
    }
}

/// One direction of a link.
pub struct Wire {
    pub model: LinkModel,
    random: SplitMix,
    /// In nanoseconds: a full frame of 10 Gbit/s takes 1.2 microseconds.
    busy_until: u64,
    in_flight: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    serial: u64,
}

impl Wire {
    pub fn new(model: LinkModel, seed: u64) -> Self {
        Self {
            model,
            random: SplitMix::new(seed),
            busy_until: 0,
            in_flight: BinaryHeap::new(),
            serial: 0,
        }
    }

    pub fn send(&mut self, now: Instant, frame: Vec<u8>) {
        let start = (now.as_micros() * 1_000).max(self.busy_until);
        self.busy_until = start;
        if let Some(rate) = self.model.bits_per_second {
            let waiting = u128::from(start - now.as_micros() * 1_000);
            if waiting * u128::from(rate) / 8_000_000_000 > self.model.queue_bytes as u128 {
                return;
            }
            // Preamble, FCS and gap belong to the time on the wire.
            let bits = (frame.len() as u64 + 24) * 8;
            self.busy_until += (bits * 1_000_000_000).div_ceil(rate);
        }
        let sent = Instant::from_micros(self.busy_until.div_ceil(1_000));
        if self.random.chance(self.model.loss) {
            return;
        }
        let copies = if self.random.chance(self.model.duplicate) { 2 } else { 1 };
        for mut copy in std::iter::repeat_n(frame, copies) {
            let is_ip = copy.get(12..14) == Some(&[8, 0]);
            if is_ip && self.random.chance(self.model.corrupt) {
                let bit = self.random.below(8 * (copy.len() as u64 - 14));
                copy[14 + bit as usize / 8] ^= 1 << (bit % 8);
            }
            let jitter = self.random.below(self.model.jitter.as_micros() as u64 + 1);
            let arrival = sent + self.model.latency + Duration::from_micros(jitter);
            self.serial += 1;
            self.in_flight.push(Reverse((arrival, self.serial, copy)));
        }
    }

    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.peek().map(|Reverse((arrival, ..))| *arrival)
    }

    pub fn take_arrived(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.next_arrival().filter(|&arrival| arrival <= now)?;
        self.in_flight.pop().map(|Reverse((.., frame))| frame)
    }
}

/// Sebastiano Vigna's generator: small, seedable, good enough for luck.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True `millionths` times in a million.
    pub fn chance(&mut self, millionths: u32) -> bool {
        millionths > 0 && self.below(1_000_000) < u64::from(millionths)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next_u64() as u8).collect()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}
