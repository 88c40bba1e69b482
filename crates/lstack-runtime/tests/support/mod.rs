//! Two hosts joined by a cable in memory, and the blocking calls a program would make of them.
#![allow(dead_code, reason = "every test binary uses its own part")]

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use lstack_config::{Config, StackThreadMode};
use lstack_core::tcp::{AcceptError, Close, More, RecvError, RecvMode, Reuse, SendError, State};
use lstack_core::udp::{UdpRecvError, UdpSendError};
use lstack_core::{Event, SocketId};
use lstack_runtime::{Link, Progress, Runtime, StackCell, Watcher, memory_pair};

/// The longest any wait in these tests may take: far longer than a loaded machine needs.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

pub const MODES: [StackThreadMode; 2] =
    [StackThreadMode::RunToCompletion, StackThreadMode::RunToWakeup];

pub fn config(address: Ipv4Addr, mode: StackThreadMode, stacks: u32) -> Config {
    let mut config = Config::default_for_tests(address, 24);
    config.stack_thread_mode = mode;
    // Processors beyond the machine's are allowed: the driver then runs where it can.
    config.num_cpus = Some((0..stacks).collect());
    config.min_rto = Duration::from_millis(20);
    config
}

/// Client and server.
pub struct Hosts {
    pub client: Arc<Runtime>,
    pub server: Arc<Runtime>,
}

impl Hosts {
    pub fn new(mode: StackThreadMode, stacks: u32) -> Self {
        Self::with(&config(CLIENT, mode, stacks), &config(SERVER, mode, stacks))
    }

    pub fn with(client: &Config, server: &Config) -> Self {
        let (one, other) = memory_pair(1500);
        Self { client: start(client, one), server: start(server, other) }
    }

    pub fn stop(&self) {
        self.client.stop(Duration::ZERO);
        self.server.stop(Duration::ZERO);
    }
}

pub fn start(config: &Config, link: impl Link + 'static) -> Arc<Runtime> {
    Arc::new(Runtime::with_links(config, vec![Box::new(link)]).expect("a memory link starts"))
}

/// A thread that waits.
#[derive(Default)]
pub struct Waiter {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Waiter {
    /// Waits for an event since the last wait.
    pub fn wait(&self) {
        let woken = self.woken.lock().expect("no waiter panics");
        let (mut woken, timeout) = self
            .changed
            .wait_timeout_while(woken, PATIENCE, |woken| !*woken)
            .expect("no waiter panics");
        assert!(!timeout.timed_out(), "nothing happened in {PATIENCE:?}");
        *woken = false;
    }
}

impl Watcher for Waiter {
    fn on_event(&self, _token: u64, _event: &Event) -> bool {
        true
    }

    fn wake(&self) {
        *self.woken.lock().expect("no waiter panics") = true;
        self.changed.notify_all();
    }
}

/// A blocking socket.
pub struct Socket {
    pub cell: Arc<StackCell>,
    pub id: SocketId,
    pub waiter: Arc<Waiter>,
    /// Looks before sleeping.
    pub spins: u32,
}

impl Socket {
    pub fn new(cell: &Arc<StackCell>, id: SocketId) -> Self {
        let waiter = Arc::new(Waiter::default());
        let watcher: Arc<dyn Watcher> = Arc::clone(&waiter) as _;
        cell.lock().watch(id, watcher, 0);
        Self { cell: Arc::clone(cell), id, waiter, spins: 0 }
    }

    pub fn udp(cell: &Arc<StackCell>, local: SocketAddr) -> Self {
        let id = {
            let mut guard = cell.lock();
            let id = guard.stack().udp_open().expect("within the limit");
            guard.stack().bind(id, local, Reuse::default()).expect("the port is free");
            id
        };
        Self::new(cell, id)
    }

    pub fn listen(cell: &Arc<StackCell>, local: SocketAddr) -> Self {
        let id = {
            let mut guard = cell.lock();
            let id = guard.stack().tcp_open().expect("within the limit");
            guard.stack().bind(id, local, Reuse::default()).expect("the port is free");
            guard.stack().tcp_listen(id, 128).expect("a bound socket listens");
            id
        };
        Self::new(cell, id)
    }

    pub fn connect(cell: &Arc<StackCell>, remote: SocketAddr) -> Self {
        let id = cell.lock().stack().tcp_open().expect("within the limit");
        let socket = Self::new(cell, id);
        {
            let mut guard = cell.enter();
            let now = guard.now();
            guard.stack().tcp_connect(now, id, remote).expect("there is a route");
        }
        socket.until(|guard| match guard.stack().tcp_state(id) {
            State::SynSent | State::SynReceived => None,
            state => Some(state),
        });
        assert_eq!(cell.lock().stack().take_error(id), None);
        socket
    }

    /// Does what a blocking call does: tries, spins, hands over, sleeps, tries again.
    pub fn until<T>(
        &self,
        mut attempt: impl FnMut(&mut lstack_runtime::Guard<'_>) -> Option<T>,
    ) -> T {
        loop {
            if let Some(result) = attempt(&mut self.cell.enter()) {
                return result;
            }
            let worked = (0..self.spins).any(|_| self.cell.drive() == Progress::Some);
            if worked {
                continue;
            }
            self.cell.hand_over();
            self.waiter.wait();
        }
    }

    pub fn send_to(&self, to: SocketAddr, data: &[u8]) {
        self.until(|guard| match guard.udp_send(self.id, Some(to), &[IoSlice::new(data)]) {
            Ok(sent) => {
                assert_eq!(sent, data.len());
                Some(())
            }
            Err(UdpSendError::WouldBlock) => None,
            Err(error) => panic!("udp_send: {error}"),
        });
    }

    pub fn recv_from(&self, buffer: &mut [u8]) -> (usize, SocketAddr) {
        self.until(|guard| {
            match guard.stack().udp_recv(self.id, &mut [IoSliceMut::new(buffer)], false) {
                Ok(datagram) => Some((datagram.len, datagram.from)),
                Err(UdpRecvError::WouldBlock) => None,
                Err(error) => panic!("udp_recv: {error}"),
            }
        })
    }

    pub fn accept(&self) -> Self {
        let accepted = self.until(|guard| {
            let now = guard.now();
            match guard.stack().tcp_accept(now, self.id) {
                Ok(accepted) => Some(accepted),
                Err(AcceptError::WouldBlock) => None,
                Err(error) => panic!("tcp_accept: {error}"),
            }
        });
        let mut socket = Self::new(&self.cell, accepted.socket);
        socket.spins = self.spins;
        socket
    }

    pub fn send_all(&self, data: &[u8]) {
        let mut sent = 0;
        while sent < data.len() {
            sent += self.until(|guard| {
                let now = guard.now();
                match guard.stack().tcp_send(now, self.id, &[IoSlice::new(data)], sent, More::No) {
                    Ok(count) => Some(count),
                    Err(SendError::WouldBlock) => None,
                    Err(error) => panic!("tcp_send: {error}"),
                }
            });
        }
    }

    /// 0 at the end of the stream.
    pub fn recv(&self, buffer: &mut [u8]) -> usize {
        self.try_recv(buffer).unwrap_or_else(|error| panic!("tcp_recv: {error}"))
    }

    pub fn try_recv(&self, buffer: &mut [u8]) -> Result<usize, RecvError> {
        self.until(|guard| {
            let now = guard.now();
            let mut bufs = [IoSliceMut::new(buffer)];
            match guard.stack().tcp_recv(now, self.id, &mut bufs, 0, RecvMode::Take) {
                Err(RecvError::WouldBlock) => None,
                result => Some(result),
            }
        })
    }

    pub fn recv_exact(&self, buffer: &mut [u8]) {
        let mut received = 0;
        while received < buffer.len() {
            let count = self.recv(&mut buffer[received..]);
            assert_ne!(count, 0, "the stream ended after {received} bytes");
            received += count;
        }
    }

    pub fn close(self) {
        let mut guard = self.cell.lock();
        guard.forget(self.id);
        let now = guard.now();
        guard.stack().close(now, self.id, Close::Graceful);
    }
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

/// The value of one counter of a cell.
pub fn stat(cell: &StackCell, name: &str) -> u64 {
    let stats = cell.stats();
    let found = stats.iter().find(|(other, _)| *other == name);
    found.unwrap_or_else(|| panic!("no counter {name}: {stats:?}")).1
}
