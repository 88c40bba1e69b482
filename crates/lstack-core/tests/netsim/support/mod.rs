//! Two stacks on a bad link in virtual time ([`Net`]), or one stack and crafted frames ([`Lone`]).

pub mod frames;
mod link;
mod sink;

use std::collections::{HashMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use lstack_core::tcp::Reuse;
use lstack_core::udp::{Datagram, UdpRecvError, UdpSendError};
use lstack_core::{
    Event, Instant, Ipv4Config, LinkCaps, RxMeta, Secret, SocketId, Stack, StackConfig, Steering,
    TcpConfig, TransmitStatus, UdpConfig,
};

use self::link::Wire;
pub use self::link::{LinkModel, SplitMix};
pub use self::sink::VecSink;

/// One of the two hosts of a [`Net`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

/// Two hosts, 10.0.0.1 and 10.0.0.2, and a wire for each direction.
pub struct Net {
    pub now: Instant,
    hosts: [Host; 2],
    /// By the side that sends.
    wires: [Wire; 2],
}

/// One stack with its device.
pub struct Host {
    pub stack: Stack,
    pub sink: VecSink,
    /// Events nobody has looked at.
    pub events: VecDeque<Event>,
}

impl Side {
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }

    pub fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, self as u8 + 1)
    }

    pub fn addr(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip().into(), port)
    }

    pub fn mac(self) -> [u8; 6] {
        [2, 0, 0, 0, 0, self as u8 + 1]
    }
}

/// What both hosts are configured with, unless a test changes it.
pub fn config(side: Side, mtu: u16) -> StackConfig {
    StackConfig {
        link: LinkCaps {
            mac: side.mac(),
            mtu,
            tx_ip_checksum: false,
            tx_tcp_checksum: false,
            tx_udp_checksum: false,
            tso_max: None,
        },
        ipv4: Some(Ipv4Config { address: side.ip(), prefix_len: 24, gateway: None }),
        vlan: None,
        neighbors_max: 1_024,
        steering: Steering::default(),
        tcp: TcpConfig::default(),
        udp: UdpConfig::default(),
    }
}

impl Net {
    pub fn new(seed: u64, model: LinkModel) -> Self {
        Self::with(seed, model, |_, _| {})
    }

    /// As [`Self::new`], with a configuration that `change` has changed.
    pub fn with(seed: u64, model: LinkModel, change: impl Fn(Side, &mut StackConfig)) -> Self {
        let mut random = SplitMix::new(seed);
        let now = Instant::from_millis(1_000);
        let hosts = [Side::A, Side::B].map(|side| {
            let mut config = config(side, model.mtu);
            change(side, &mut config);
            Host::new(config, &mut random, now)
        });
        let wires = [model.clone(), model].map(|model| Wire::new(model, random.next_u64()));
        Self { now, hosts, wires }
    }

    pub fn host(&mut self, side: Side) -> &mut Host {
        &mut self.hosts[side as usize]
    }

    pub fn stack(&mut self, side: Side) -> &mut Stack {
        &mut self.hosts[side as usize].stack
    }

    /// The wire on which `side` sends, to change its manners on the way.
    pub fn model(&mut self, side: Side) -> &mut LinkModel {
        &mut self.wires[side as usize].model
    }

    /// Goes to the next moment at which something happens, but not beyond `limit`. `false`:
    /// nothing happens until then.
    pub fn step(&mut self, limit: Instant) -> bool {
        self.poll_both();
        let arrivals = self.wires.iter().filter_map(Wire::next_arrival);
        let deadlines = self.hosts.iter().filter_map(|host| host.stack.next_deadline());
        let next = arrivals.chain(deadlines).min().filter(|&next| next <= limit);
        let Some(next) = next else {
            self.now = self.now.max(limit);
            return false;
        };
        self.now = self.now.max(next);
        for side in [Side::A, Side::B] {
            while let Some(frame) = self.wires[side.other() as usize].take_arrived(self.now) {
                let now = self.now;
                self.stack(side).handle_frame(now, &frame, RxMeta::default());
            }
        }
        self.poll_both();
        true
    }

    pub fn run_for(&mut self, duration: Duration) {
        let limit = self.now + duration;
        while self.step(limit) {}
    }

    /// Runs until `done`, at most for `limit`; whether it came to that.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Net) -> bool) -> bool {
        let limit = self.now + limit;
        loop {
            if done(self) {
                return true;
            }
            if !self.step(limit) {
                return done(self);
            }
        }
    }

    /// A UDP socket of `side`, bound to `port` of any address.
    pub fn udp(&mut self, side: Side, port: u16) -> SocketId {
        self.host(side).udp(port)
    }

    pub fn send(&mut self, side: Side, id: SocketId, to: SocketAddr, data: &[u8]) {
        let now = self.now;
        let sent = self.host(side).udp_send(now, id, Some(to), data);
        assert_eq!(sent, Ok(data.len()));
    }

    pub fn recv(&mut self, side: Side, id: SocketId) -> Option<(Vec<u8>, Datagram)> {
        self.host(side).udp_recv(id).ok()
    }

    /// Polls both hosts and puts what they send on the wires.
    pub fn poll_both(&mut self) {
        let now = self.now;
        for (host, wire) in self.hosts.iter_mut().zip(&mut self.wires) {
            host.poll(now);
            for frame in host.sink.take() {
                wire.send(now, frame);
            }
        }
    }

    /// Checks the counters of both hosts.
    pub fn check_books(&mut self) {
        for host in &self.hosts {
            host.check_books();
        }
    }
}

impl Host {
    pub fn new(config: StackConfig, random: &mut SplitMix, now: Instant) -> Self {
        let mut secret = [0; 32];
        for chunk in secret.chunks_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        Self {
            sink: VecSink::new(config.link),
            stack: Stack::new(config, &Secret(secret), now),
            events: VecDeque::new(),
        }
    }

    /// Polls until nothing more is to be sent at `now`, and collects events.
    pub fn poll(&mut self, now: Instant) {
        for _ in 0..1_000 {
            let status = self.stack.poll(now, &mut self.sink);
            if status == TransmitStatus::Done || !self.sink.has_room() {
                break;
            }
        }
        while let Some(event) = self.stack.take_event() {
            self.events.push_back(event);
        }
    }

    pub fn udp(&mut self, port: u16) -> SocketId {
        let id = self.stack.udp_open().unwrap();
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
        self.stack.bind(id, any, Reuse::default()).unwrap();
        id
    }

    pub fn udp_send(
        &mut self,
        now: Instant,
        id: SocketId,
        to: Option<SocketAddr>,
        data: &[u8],
    ) -> Result<usize, UdpSendError> {
        self.stack.udp_send(now, id, to, &[IoSlice::new(data)], &mut self.sink)
    }

    pub fn udp_recv(&mut self, id: SocketId) -> Result<(Vec<u8>, Datagram), UdpRecvError> {
        let mut buffer = vec![0; 65_536];
        let datagram = self.stack.udp_recv(id, &mut [IoSliceMut::new(&mut buffer)], false)?;
        buffer.truncate(datagram.copied);
        Ok((buffer, datagram))
    }

    pub fn counters(&self) -> HashMap<&'static str, u64> {
        let list = self.stack.counters();
        let map: HashMap<_, _> = list.iter().copied().collect();
        assert_eq!(map.len(), list.len(), "names are unique");
        map
    }

    pub fn counter(&self, name: &str) -> u64 {
        self.counters()[name]
    }

    /// Every frame is in one counter, and so is every datagram.
    pub fn check_books(&self) {
        let counters = self.counters();
        let sum = |prefix: &str| -> u64 {
            counters.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, n)| n).sum()
        };
        assert_eq!(counters["frames_rx"], sum("rx_"), "{counters:?}");
        let udp = counters["udp_datagrams_rx"] + sum("udp_drop_");
        assert_eq!(counters["rx_udp"], udp, "{counters:?}");
    }
}

/// One stack, host A, that a test talks to by hand.
pub struct Lone {
    pub now: Instant,
    pub host: Host,
}

impl Lone {
    pub fn new(change: impl Fn(&mut StackConfig)) -> Self {
        let now = Instant::from_millis(1_000);
        let mut config = config(Side::A, 1_500);
        change(&mut config);
        let mut lone = Self { now, host: Host::new(config, &mut SplitMix::new(1), now) };
        // The announcements of the start are no test's business but one's.
        lone.pass(Duration::from_secs(5));
        lone.sent();
        lone
    }

    /// Gives the stack a frame and polls it.
    pub fn put(&mut self, frame: &[u8]) {
        self.put_with(frame, RxMeta::default());
    }

    pub fn put_with(&mut self, frame: &[u8], meta: RxMeta) {
        self.host.stack.handle_frame(self.now, frame, meta);
        self.host.poll(self.now);
    }

    /// What the stack has sent since the last call.
    pub fn sent(&mut self) -> Vec<Vec<u8>> {
        self.host.sink.take()
    }

    /// Lets time pass, polling whenever the stack wants to be.
    pub fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.host.poll(self.now);
        while let Some(due) = self.host.stack.next_deadline().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            self.host.poll(self.now);
        }
        self.now = end;
        self.host.poll(self.now);
    }

    /// As [`Host::udp_send`], and polls.
    pub fn send(
        &mut self,
        id: SocketId,
        to: SocketAddr,
        data: &[u8],
    ) -> Result<usize, UdpSendError> {
        let sent = self.host.udp_send(self.now, id, Some(to), data);
        self.host.poll(self.now);
        sent
    }
}
