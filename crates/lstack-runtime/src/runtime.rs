//! Start and stop of all stacks of a process.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lstack_config::{Config, Ecn, StackThreadMode};
use lstack_core::{
    EcnMode, Instant, Ipv4Config, LinkCaps, Secret, StackConfig, Steering, TcpConfig, UdpConfig,
};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::capture::Capture;
use crate::cell::StackCell;
use crate::claim;
use crate::clock;
use crate::conflict;
use crate::device::{self, DeviceError};
use crate::doorbell::{Sleep, high};
use crate::driver::{DriverParts, DriverThread};
use crate::exchange::RelayLink;
use crate::idle::{Idle, Power};
use crate::link::{ClosedLink, Link};
use crate::lock;
use crate::shard::{Driver, Shard, ShardParts, Shards, Unfinished};

/// All stacks of a process, their devices and driver threads.
pub struct Runtime {
    shards: Arc<Shards>,
    cells: Vec<Arc<StackCell>>,
    stopped: AtomicBool,
    threads: Mutex<Threads>,
    hidden_fds: Vec<RawFd>,
    /// Holds the address on this machine.
    claim: Option<OwnedFd>,
}

#[derive(Default)]
struct Threads {
    drivers: Vec<DriverThread>,
    capture: Option<Capture>,
}

/// Why the stacks could not start. The text says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Neither an IPv4 nor an IPv6 address.
    #[error("host_addr is not set: the stack needs an address")]
    NoAddress,
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Another host has the address.
    #[error(
        "address {address} (host_addr) is taken by the host {owner}: choose another, or stop that host"
    )]
    AddressTaken {
        /// Ours, as configured.
        address: std::net::Ipv4Addr,
        /// Its hardware address.
        owner: String,
    },
    /// Another program on this machine has a stack with the address.
    #[error(
        "address {address} (host_addr) is in use by another program on this machine: each needs an \
         address of its own"
    )]
    AddressHeld {
        /// Ours, as configured.
        address: std::net::Ipv4Addr,
    },
    /// The address could not be held.
    #[error("no socket to hold the address with: {0}")]
    Claim(#[source] std::io::Error),
    /// The caller brought no device.
    #[error("no device")]
    NoDevice,
    /// More stacks than the steering can count.
    #[error("num_cpus lists {0} processors; at most {STACKS_MAX} stacks are possible")]
    TooManyStacks(usize),
    /// The kernel gives no random bytes.
    #[error("no random bytes: {0}")]
    Random(#[source] std::io::Error),
    /// A driver thread could not be started.
    #[error("cannot start the driver thread of stack {index}: {source}")]
    Thread {
        /// The stack.
        index: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// The capture file could not be made.
    #[error("capture: cannot write {path}: {source}")]
    Capture {
        /// The file.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Runtime {
    /// Starts the devices and stacks of `config`; blocks until they run (some 100 ms).
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub fn start(config: &Config) -> Result<Self, StartError> {
        // Before a device is touched.
        let address = config.host_addr.ok_or(StartError::NoAddress)?;
        let claim = claim::hold(address)
            .map_err(StartError::Claim)?
            .ok_or(StartError::AddressHeld { address })?;
        let mut links = device::open(config)?;
        if let Some(first) = links.first_mut()
            && let Some(owner) = conflict::find(&mut **first, config.vlan, address)
        {
            return Err(StartError::AddressTaken {
                address,
                owner: device::hardware_address(owner),
            });
        }
        let mut runtime = Self::with_links(config, links)?;
        runtime.claim = Some(claim);
        Ok(runtime)
    }

    /// The descriptor by which this process holds its address. A forked child, which has no stack,
    /// gives it up.
    #[must_use]
    pub fn claim_fd(&self) -> Option<RawFd> {
        self.claim.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// As [`Self::start`], over devices the caller brings: tests. There are as many stacks as
    /// `num_cpus` says; stacks without a device of their own send through the first one.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub fn with_links(config: &Config, mut links: Vec<Box<dyn Link>>) -> Result<Self, StartError> {
        let stacks = config.stack_count().max(1);
        if config.host_addr.is_none() {
            return Err(StartError::NoAddress);
        }
        if stacks > STACKS_MAX {
            return Err(StartError::TooManyStacks(stacks));
        }
        let Some(caps) = links.first().map(|link| link.caps()) else {
            return Err(StartError::NoDevice);
        };
        links.truncate(stacks);
        let capture = start_capture(config, stacks)?;
        if let Some(capture) = &capture {
            let tapped =
                links.into_iter().enumerate().map(|(index, link)| capture.tap(index, link));
            links = tapped.collect();
        }
        let mut threads = Threads { drivers: Vec::new(), capture };
        let shards = Arc::new(make_shards(config, links, caps)?);
        let mut hidden_fds = Vec::new();
        for index in 0..stacks {
            match start_driver(config, &shards, index, &mut hidden_fds) {
                Ok(driver) => threads.drivers.push(driver),
                Err(source) => {
                    stop_threads(&shards, &mut threads);
                    return Err(StartError::Thread { index, source });
                }
            }
        }
        let cells = (0..stacks).map(|index| Arc::new(StackCell::new(Arc::clone(&shards), index)));
        Ok(Self {
            cells: cells.collect(),
            shards,
            stopped: AtomicBool::new(false),
            threads: Mutex::new(threads),
            hidden_fds,
            claim: None,
        })
    }

    /// The stacks; never empty, fixed for the life of the process.
    #[must_use]
    pub fn cells(&self) -> &[Arc<StackCell>] {
        &self.cells
    }

    /// The time on the clock all stacks use.
    #[must_use]
    pub fn now(&self) -> Instant {
        clock::now()
    }

    /// Descriptors of the runtime itself, which the program must not close or see.
    #[must_use]
    pub fn hidden_fds(&self) -> &[RawFd] {
        &self.hidden_fds
    }

    /// Stops driver threads and devices after at most `linger`, during which data of closed
    /// connections and everything queued is sent. Later locks find stacks that no longer reach the
    /// network. Safe in an exit handler: it waits for no lock without a limit and does not panic.
    /// Calls after the first do nothing.
    pub fn stop(&self, linger: Duration) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        let end = clock::now() + linger;
        for index in 0..self.shards.all.len() {
            self.flush(index, end);
        }
        let mut threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        stop_threads(&self.shards, &mut threads);
    }

    /// Drives one stack until it has nothing left to send, not beyond `end`.
    fn flush(&self, index: usize, end: Instant) {
        let mut pause = FLUSH_PAUSE_MIN;
        let start = clock::now();
        loop {
            self.shards.drive(index, Driver::Application);
            let now = clock::now();
            let patience = (end - now).min(LOCK_PATIENCE);
            let limit = match self.shards.with(index, Some(patience), |inner| inner.unfinished()) {
                Some(None) => return,
                Some(Some(Unfinished::Connections)) | None => end,
                Some(Some(Unfinished::Neighbors)) => start + NEIGHBOR_PATIENCE,
                Some(Some(Unfinished::Frames)) => start + FRAMES_PATIENCE,
                Some(Some(Unfinished::Closing)) => start + CLOSING_PATIENCE,
            };
            let end = end.min(limit);
            if self.shards.all[index].failed() || now >= end {
                return;
            }
            // The peer's acknowledgements take their time; its ring may be polled meanwhile by
            // somebody who needs this processor.
            lock::wait(&0.into(), 0, Some(pause.min(end - now)));
            pause = (pause * 2).min(FLUSH_PAUSE_MAX);
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

fn start_capture(config: &Config, stacks: usize) -> Result<Option<Capture>, StartError> {
    let Some(path) = &config.capture else { return Ok(None) };
    match Capture::start(path, stacks) {
        Ok(capture) => Ok(Some(capture)),
        Err(source) => Err(StartError::Capture { path: path.clone(), source }),
    }
}

fn make_shards(
    config: &Config,
    links: Vec<Box<dyn Link>>,
    caps: LinkCaps,
) -> Result<Shards, StartError> {
    let stacks = config.stack_count().max(1);
    let now = clock::now();
    // The tuple hash's key is common to all stacks, every other secret is each one's own.
    let [steering_key, ..] = random_words()?;
    let with_queue = links.len();
    let mut links: Vec<(Box<dyn Link>, Vec<_>)> =
        links.into_iter().map(|link| (link, Vec::new())).collect();
    for _ in with_queue..stacks {
        let link = RelayLink::new(caps);
        let relay = link.relay();
        links[0].1.push(Arc::clone(&relay));
        links.push((Box::new(link), vec![relay]));
    }
    let mut all = Vec::with_capacity(stacks);
    for (index, (link, relays)) in links.into_iter().enumerate() {
        let steering = Steering {
            index: u16::try_from(index).unwrap_or(u16::MAX),
            count: u16::try_from(stacks).unwrap_or(u16::MAX),
            key: steering_key,
        };
        let parts = ShardParts {
            index,
            stacks,
            has_queue: index < with_queue,
            burst: config.nic_read_number.max(1),
            config: stack_config(config, link.caps(), steering),
            secret: random_secret()?,
            link,
            relays,
        };
        all.push(Shard::new(parts, now));
    }
    Ok(Shards {
        all: all.into_boxed_slice(),
        mode: config.stack_thread_mode,
        stopping: AtomicBool::new(false),
    })
}

fn stack_config(config: &Config, mut link: LinkCaps, steering: Steering) -> StackConfig {
    link.mtu = config.mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu));
    let stacks = usize::from(steering.count);
    let tcp = TcpConfig {
        max_sockets: config.tcp_conn_count,
        send_buffer: config.send_buffer,
        send_buffer_max: config.send_buffer_max,
        recv_buffer: config.recv_buffer,
        recv_buffer_max: config.recv_buffer_max,
        memory_max: config.buffer_memory_max / stacks,
        min_rto: config.min_rto,
        ecn: match config.ecn {
            Ecn::Off => EcnMode::Off,
            Ecn::On => EcnMode::On,
            Ecn::Accept => EcnMode::Accept,
        },
        ..TcpConfig::default()
    };
    let udp = UdpConfig::default();
    let udp = UdpConfig {
        recv_buffer: config.udp_recv_buffer,
        recv_buffer_max: udp.recv_buffer_max.max(config.udp_recv_buffer),
        ..udp
    };
    StackConfig {
        link,
        ipv4: config.host_addr.map(|address| Ipv4Config {
            address,
            prefix_len: config.prefix_len,
            gateway: config.gateway_addr,
        }),
        vlan: config.vlan,
        neighbors_max: NEIGHBORS_MAX,
        steering,
        tcp,
        udp,
    }
}

fn start_driver(
    config: &Config,
    shards: &Arc<Shards>,
    index: usize,
    hidden_fds: &mut Vec<RawFd>,
) -> std::io::Result<DriverThread> {
    // The descriptor belongs to the device; a copy lets the driver sleep without the lock.
    let copy = shards
        .with(index, None, |inner| inner.link.wake_fd().map(rustix::io::dup).transpose())
        .transpose()?;
    let wake = copy.flatten().map(high);
    if let Some(wake) = &wake {
        let bell = &shards.all[index].bell;
        bell.open_event()?;
        hidden_fds.push(wake.as_raw_fd());
        hidden_fds.extend(bell.event().map(|event| event.as_raw_fd()));
    }
    let power = if config.low_power_mode { Power::Low } else { Power::Normal };
    let pinned = config.stack_thread_mode == StackThreadMode::RunToWakeup;
    let cpu = config.num_cpus.as_ref().filter(|_| pinned).and_then(|cpus| cpus.get(index).copied());
    DriverThread::start(DriverParts {
        shards: Arc::clone(shards),
        index,
        idle: Idle::new(config.idle_spin, power),
        cpu,
        wake,
        device_nap: if config.stack_interrupt { Duration::ZERO } else { DEVICE_NAP },
    })
}

fn stop_threads(shards: &Shards, threads: &mut Threads) {
    let Threads { drivers, capture } = threads;
    shards.stopping.store(true, Ordering::SeqCst);
    for shard in &shards.all {
        shard.bell.ring(Sleep::ANY);
    }
    for driver in drivers.drain(..) {
        driver.join(JOIN_PATIENCE);
    }
    for index in 0..shards.all.len() {
        // Taken out under the lock, closed outside: closing a device takes its time.
        let link = shards.with(index, Some(LOCK_PATIENCE), |inner| {
            let closed = Box::new(ClosedLink::new(inner.link.caps()));
            std::mem::replace(&mut inner.link, closed)
        });
        drop(link);
    }
    if let Some(capture) = capture.take() {
        capture.stop();
    }
}

fn random_secret() -> Result<Secret, StartError> {
    let mut bytes = [0; 32];
    fill_random(&mut bytes)?;
    Ok(Secret(bytes))
}

fn random_words() -> Result<[u64; 1], StartError> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok([u64::from_ne_bytes(bytes)])
}

fn fill_random(bytes: &mut [u8]) -> Result<(), StartError> {
    // Up to 256 bytes come at once, or not at all when a signal interrupts the wait for the
    // kernel's first entropy.
    loop {
        match getrandom(&mut *bytes, GetRandomFlags::empty()) {
            Ok(len) if len == bytes.len() => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(StartError::Random(error.into())),
        }
    }
}

/// A software-spread process has no use for more; the steering's `u16` could count further.
const STACKS_MAX: usize = 1024;

/// A driver that would nap this long sleeps on its device instead, without `stack_interrupt`. Going
/// to sleep and being woken there costs more than a short nap, and a device that signals a frame
/// more itself.
const DEVICE_NAP: Duration = Duration::from_millis(1);

/// ARP entries per stack: a whole /21 of neighbours.
const NEIGHBORS_MAX: usize = 2048;

/// Longest wait at the end for a neighbour's answer to ARP, after which a datagram is lost that the
/// kernel would still have sent: two requests.
const NEIGHBOR_PATIENCE: Duration = Duration::from_secs(1);

/// Longest wait at the end for a device to take frames that no connection needs.
const FRAMES_PATIENCE: Duration = Duration::from_millis(100);

/// Longest wait at the end for the peers of connections whose data is delivered to close as well,
/// so that they get an answer to it. Programs notice nothing if they do not.
const CLOSING_PATIENCE: Duration = Duration::from_millis(50);

/// Longest wait for one lock while stopping.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// Longest wait for one driver thread while stopping: far more than a burst takes.
const JOIN_PATIENCE: Duration = Duration::from_secs(2);

/// Pauses between two looks at what is still to be sent at the end.
const FLUSH_PAUSE_MIN: Duration = Duration::from_micros(20);
const FLUSH_PAUSE_MAX: Duration = Duration::from_millis(1);
