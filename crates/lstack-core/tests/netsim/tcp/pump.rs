//! A program on each side: sends a known stream, checks what it receives, closes.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use lstack_core::tcp::{Close, More, RecvError, RecvMode, Reuse, SendError, Shutdown, State};
use lstack_core::{Instant, SocketId, StackConfig};

use crate::support::{Host, LinkModel, Net, Side};

pub const PORT: u16 = 5001;

/// One end's program.
pub struct Pump {
    pub id: SocketId,
    /// Tells the streams of the two ends apart.
    pattern: u64,
    peer_pattern: u64,
    pub to_send: u64,
    pub sent: u64,
    pub received: u64,
    /// Bytes it reads when it reads.
    pub read_chunk: usize,
    /// Reads only after this much time has passed since it last did.
    pub read_pause: Duration,
    pub next_read: Instant,
    pub shut: bool,
    pub eof: bool,
    /// What is sent next, from `scratch_at` of the stream on.
    scratch: Vec<u8>,
    scratch_at: u64,
    room: Vec<u8>,
    expected: Vec<u8>,
}

/// Most given to `send` at once.
const SEND_MAX: u64 = 256 * 1024;

/// Eight bytes of the stream `pattern` from `word * 8` on.
fn word(pattern: u64, word: u64) -> [u8; 8] {
    let mut z = (pattern ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).to_le_bytes()
}

/// Fills `to` with the stream from `offset` on.
fn fill(pattern: u64, offset: u64, to: &mut [u8]) {
    let skip = (offset % 8) as usize;
    let (head, rest) = to.split_at_mut(if skip == 0 { 0 } else { (8 - skip).min(to.len()) });
    head.copy_from_slice(&word(pattern, offset / 8)[skip..skip + head.len()]);
    let first = offset.div_ceil(8);
    for (index, chunk) in rest.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(pattern, first + index as u64)[..chunk.len()]);
    }
}

impl Pump {
    fn new(id: SocketId, side: Side, to_send: u64) -> Self {
        let pattern = |side: Side| 0x1234_5678_0000_0000 * (side as u64 + 1);
        Self {
            id,
            pattern: pattern(side),
            peer_pattern: pattern(side.other()),
            to_send,
            sent: 0,
            received: 0,
            read_chunk: 256 * 1024,
            read_pause: Duration::ZERO,
            next_read: Instant::ZERO,
            shut: false,
            eof: false,
            scratch: Vec::new(),
            scratch_at: 0,
            room: Vec::new(),
            expected: Vec::new(),
        }
    }

    /// When it wants to run although nothing came.
    pub fn deadline(&self) -> Option<Instant> {
        (self.read_pause > Duration::ZERO && !self.eof).then_some(self.next_read)
    }

    /// Whether all was sent, all was received, and both ends are known.
    pub fn done(&self) -> bool {
        self.shut && self.eof
    }

    pub fn run(&mut self, host: &mut Host, now: Instant) {
        if host.stack.tcp_state(self.id) == State::SynSent {
            return;
        }
        while self.sent < self.to_send {
            let have = self.scratch_at + self.scratch.len() as u64;
            if self.sent == have {
                self.scratch.resize((self.to_send - self.sent).min(SEND_MAX) as usize, 0);
                fill(self.pattern, self.sent, &mut self.scratch);
                self.scratch_at = self.sent;
            }
            let rest = &self.scratch[(self.sent - self.scratch_at) as usize..];
            match host.stack.tcp_send(now, self.id, &[IoSlice::new(rest)], 0, More::No) {
                Ok(count) => self.sent += count as u64,
                Err(SendError::WouldBlock) => break,
                Err(error) => panic!("send after {} bytes: {error}", self.sent),
            }
        }
        if self.sent == self.to_send && !self.shut {
            host.stack.tcp_shutdown(now, self.id, Shutdown::Write).unwrap();
            self.shut = true;
        }
        if now >= self.next_read {
            self.read(host, now);
        }
    }

    fn read(&mut self, host: &mut Host, now: Instant) {
        while !self.eof {
            self.room.resize(self.read_chunk, 0);
            let mut bufs = [IoSliceMut::new(&mut self.room)];
            match host.stack.tcp_recv(now, self.id, &mut bufs, 0, RecvMode::Take) {
                Ok(0) => self.eof = true,
                Ok(count) => {
                    self.expected.resize(count, 0);
                    fill(self.peer_pattern, self.received, &mut self.expected);
                    assert!(self.room[..count] == self.expected, "at {}", self.received);
                    self.received += count as u64;
                    if self.read_pause > Duration::ZERO {
                        self.next_read = now + self.read_pause;
                        break;
                    }
                }
                Err(RecvError::WouldBlock) => break,
                Err(error) => panic!("recv after {} bytes: {error}", self.received),
            }
        }
    }
}

/// A connection between two programs on a net of their own.
pub struct Pair {
    pub net: Net,
    pub pumps: [Pump; 2],
    pub listener: SocketId,
}

impl Pair {
    /// Connects A to B; A will send `lens[0]` bytes, B `lens[1]`.
    pub fn connect(
        seed: u64,
        model: LinkModel,
        lens: [u64; 2],
        change: impl Fn(Side, &mut StackConfig),
    ) -> Self {
        let mut net = Net::with(seed, model, change);
        let listener = net.host(Side::B).tcp_listener(PORT);
        let now = net.now;
        let client = net.stack(Side::A).tcp_open().unwrap();
        net.stack(Side::A).tcp_connect(now, client, Side::B.addr(PORT)).unwrap();
        let mut server = None;
        let connected = net.run_until(Duration::from_secs(200), |net| {
            let now = net.now;
            server = server.or_else(|| net.stack(Side::B).tcp_accept(now, listener).ok());
            server.is_some() && net.stack(Side::A).tcp_state(client) != State::SynSent
        });
        assert!(connected, "no connection");
        let pumps = [
            Pump::new(client, Side::A, lens[0]),
            Pump::new(server.unwrap().socket, Side::B, lens[1]),
        ];
        Self { net, pumps, listener }
    }

    /// Runs until both programs are done, or the time is over.
    pub fn run(&mut self, limit: Duration) -> bool {
        self.run_until(limit, |pair| pair.pumps.iter().all(Pump::done))
    }

    pub fn run_until(&mut self, limit: Duration, done: impl Fn(&Pair) -> bool) -> bool {
        let limit = self.net.now + limit;
        loop {
            let now = self.net.now;
            let [a, b] = &mut self.pumps;
            a.run(self.net.host(Side::A), now);
            b.run(self.net.host(Side::B), now);
            if done(self) {
                return true;
            }
            let wake = self.pumps.iter().filter_map(Pump::deadline).filter(|&at| at > now).min();
            let until = wake.map_or(limit, |wake| wake.min(limit));
            if !self.net.step(until) && until == limit {
                return done(self);
            }
        }
    }

    /// Closes everything, waits for `TIME_WAIT` to pass, and checks that nothing is left.
    pub fn finish(mut self) {
        let now = self.net.now;
        let [a, b] = &self.pumps;
        let ids = [(Side::A, a.id), (Side::B, b.id), (Side::B, self.listener)];
        for (side, id) in ids {
            self.net.stack(side).close(now, id, Close::Graceful);
        }
        self.net.run_for(Duration::from_secs(400));
        for side in [Side::A, Side::B] {
            let sockets = self.net.stack(side).sockets();
            assert!(sockets.is_empty(), "left on {side:?}: {sockets:?}");
            assert_eq!(self.net.stack(side).tcp_orphans(), 0);
            assert_eq!(self.net.stack(side).tcp_memory(), 0, "memory kept by {side:?}");
            assert_eq!(self.net.stack(side).next_deadline(), None);
        }
    }

    /// For messages of failed assertions.
    pub fn progress(&mut self) -> String {
        let now = self.net.now;
        let mut text = format!("at {now:?}");
        for side in [Side::A, Side::B] {
            let pump = &self.pumps[side as usize];
            let (id, sent, received) = (pump.id, pump.sent, pump.received);
            let info = self.net.stack(side).tcp_info(now, id);
            text += &format!("\n{side:?}: sent {sent}, received {received}, {info:?}");
        }
        text
    }
}

impl Host {
    pub fn tcp_listener(&mut self, port: u16) -> SocketId {
        let id = self.stack.tcp_open().unwrap();
        self.stack.bind(id, ([0, 0, 0, 0], port).into(), Reuse::default()).unwrap();
        self.stack.tcp_listen(id, 16).unwrap();
        id
    }
}
