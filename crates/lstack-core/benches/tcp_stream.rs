//! What a byte of a TCP stream costs: two stacks on one thread, frames handed over in memory.
//!
//! `cargo bench -p lstack-core --bench tcp_stream` prints gigabits per second and nanoseconds per
//! full segment, both ends together: checksums, copies and acknowledgements included.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant as Clock;

use lstack_core::tcp::{More, RecvMode, Reuse, State};
use lstack_core::{
    ChecksumVerdict, FrameSink, Instant, Ipv4Config, LinkCaps, RxMeta, Secret, SocketId, Stack,
    StackConfig, Steering, TcpConfig, TxMeta, UdpConfig,
};

/// Bytes of one measurement.
const TOTAL: usize = 8 << 30;

/// A burst of a device queue.
const ROOM: usize = 64;

/// Frames in memory that is used again.
#[derive(Default)]
struct Sink {
    frames: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    reserved: Vec<u8>,
}

impl FrameSink for Sink {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.frames.len() >= ROOM {
            return None;
        }
        if self.reserved.capacity() == 0 {
            self.reserved = self.spare.pop().unwrap_or_default();
        }
        self.reserved.resize(len, 0);
        Some(&mut self.reserved)
    }

    fn commit(&mut self, _meta: TxMeta) {
        self.frames.push(std::mem::take(&mut self.reserved));
    }
}

fn stack(host: u8, offload: bool) -> Stack {
    let config = StackConfig {
        link: LinkCaps {
            mac: [2, 0, 0, 0, 0, host],
            mtu: 1_500,
            tx_ip_checksum: offload,
            tx_tcp_checksum: offload,
            tx_udp_checksum: offload,
            tso_max: None,
        },
        ipv4: Some(Ipv4Config {
            address: Ipv4Addr::new(10, 0, 0, host),
            prefix_len: 24,
            gateway: None,
        }),
        vlan: None,
        neighbors_max: 16,
        steering: Steering::default(),
        tcp: TcpConfig::default(),
        udp: UdpConfig::default(),
    };
    Stack::new(config, &Secret([host; 32]), Instant::ZERO)
}

struct Bench {
    stacks: [Stack; 2],
    sinks: [Sink; 2],
    meta: RxMeta,
    now: Instant,
}

impl Bench {
    fn exchange(&mut self) {
        for from in 0..2 {
            self.stacks[from].poll(self.now, &mut self.sinks[from]);
            let frames = std::mem::take(&mut self.sinks[from].frames);
            for frame in frames {
                self.stacks[1 - from].handle_frame(self.now, &frame, self.meta);
                self.sinks[from].spare.push(frame);
            }
        }
    }

    fn connect(&mut self) -> (SocketId, SocketId) {
        let address = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), 80));
        let listener = self.stacks[1].tcp_open().expect("below the limit");
        self.stacks[1].bind(listener, address, Reuse::default()).expect("the port is free");
        self.stacks[1].tcp_listen(listener, 1).expect("nobody listens");
        let client = self.stacks[0].tcp_open().expect("below the limit");
        self.stacks[0].tcp_connect(self.now, client, address).expect("there is a route");
        while self.stacks[0].tcp_state(client) != State::Established {
            self.exchange();
        }
        self.exchange();
        let accepted = self.stacks[1].tcp_accept(self.now, listener).expect("it is established");
        (client, accepted.socket)
    }
}

fn measure(name: &str, offload: bool) {
    let verdict = if offload { ChecksumVerdict::Good } else { ChecksumVerdict::Unknown };
    let mut bench = Bench {
        stacks: [stack(1, offload), stack(2, offload)],
        sinks: Default::default(),
        meta: RxMeta { ip_checksum: verdict, l4_checksum: verdict, vlan: None },
        now: Instant::ZERO,
    };
    let (client, server) = bench.connect();
    let data = vec![7; 64 * 1024];
    let mut room = vec![0; 64 * 1024];
    let start = Clock::now();
    let mut received = 0;
    while received < TOTAL {
        bench.now = Instant::from_micros(start.elapsed().as_micros() as u64);
        while bench.stacks[0]
            .tcp_send(bench.now, client, &[IoSlice::new(&data)], 0, More::No)
            .is_ok()
        {}
        bench.exchange();
        let bufs = &mut [IoSliceMut::new(&mut room)];
        while let Ok(count) = bench.stacks[1].tcp_recv(bench.now, server, bufs, 0, RecvMode::Take) {
            received += count;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let segments = received as f64 / 1_448.0;
    println!(
        "{name:>10}: {:6.2} Gbit/s, {:5.0} ns per segment",
        received as f64 * 8e-9 / seconds,
        seconds * 1e9 / segments
    );
}

fn main() {
    measure("software", false);
    measure("offloaded", true);
}
