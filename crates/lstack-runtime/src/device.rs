//! From the configuration to a started device: one link per queue pair.
//!
//! Called once, by the thread whose socket call starts the stacks. Everything that can be wrong on
//! the operator's side ends here as one sentence that says what, where and what to do.

use std::path::Path;
use std::time::{Duration, Instant};

use dpdk::{Eal, EalError, Negotiated, PoolConfig, PoolError, Port, PortError, PortRequest};
use dpdk::{Mempool, QueuePools, Started};
use lstack_config::Config;
use lstack_core::LinkCaps;

use crate::dpdk_link::{DpdkLink, PENDING_MAX, RX_BURST, STOCK};
use crate::link::Link;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The process may not do what the device needs.
    #[error("no permission for the device, run as root or with CAP_NET_ADMIN and CAP_NET_RAW: {0}")]
    Permission(String),
    /// There is not enough memory for DPDK.
    #[error(
        "no memory for DPDK, give it less to do (tcp_conn_count, nic_rxqueue_size, \
         nic_txqueue_size) or more memory (-m, --socket-mem in dpdk_args): {0}"
    )]
    Memory(String),
    /// Huge pages are asked for and there are none.
    #[error(
        "no huge pages: reserve some (/proc/sys/vm/nr_hugepages) or put --no-huge into dpdk_args: {0}"
    )]
    HugePages(String),
    /// The interface, file or card that `dpdk_args` names is not there.
    #[error("a device of dpdk_args does not exist: {0}")]
    Missing(String),
    /// A memif client found nobody at its socket.
    #[error("no server at the other end of the memif, start the program with role=server: {0}")]
    NoServer(String),
    /// Somebody else has the device.
    #[error("a device of dpdk_args is in use by another process: {0}")]
    Busy(String),
    /// DPDK does not start for another reason.
    #[error(transparent)]
    Dpdk(EalError),
    /// No memory for packets.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// No device, or it refuses.
    #[error(transparent)]
    Port(PortError),
}

impl From<EalError> for DeviceError {
    fn from(error: EalError) -> Self {
        let text = error.to_string();
        classify(text).unwrap_or(Self::Dpdk(error))
    }
}

impl From<PortError> for DeviceError {
    fn from(error: PortError) -> Self {
        // The operator's mistake is in what the driver said, not in what is missing after it.
        let words = match &error {
            PortError::None { complaints } if !complaints.is_empty() => complaints.join("; "),
            PortError::Refused { .. } => error.to_string(),
            _ => return Self::Port(error),
        };
        classify(words).unwrap_or(Self::Port(error))
    }
}

impl DeviceError {
    /// Drivers speak of devices by short names; the operator knows the words of his file.
    fn naming(self, dpdk_args: &[String]) -> Self {
        let devices: Vec<&str> = dpdk_args
            .iter()
            .filter_map(|arg| arg.strip_prefix("--vdev=").or(arg.strip_prefix("--allow=")))
            .collect();
        if devices.is_empty() {
            return self;
        }
        let named = |words: String| format!("{} ({words})", devices.join(" "));
        match self {
            Self::Permission(words) => Self::Permission(named(words)),
            Self::Missing(words) => Self::Missing(named(words)),
            Self::Busy(words) => Self::Busy(named(words)),
            Self::NoServer(words) => Self::NoServer(named(words)),
            other => other,
        }
    }
}

/// DPDK and its drivers report causes as text only.
fn classify(words: String) -> Option<DeviceError> {
    let says = |causes: &[&str]| causes.iter().any(|cause| words.contains(cause));
    if says(&["memif_connect_client"]) {
        return Some(DeviceError::NoServer(words));
    }
    // First: a missing mount of them is reported as missing permission.
    if says(&["hugepage"]) {
        return Some(DeviceError::HugePages(words));
    }
    // The packet socket's driver does not say why it was refused one; there is no other reason.
    if says(&["Permission denied", "Operation not permitted", "Could not open AF_PACKET socket"]) {
        return Some(DeviceError::Permission(words));
    }
    if says(&["Cannot allocate memory", "Cannot init memory", "out of memory"]) {
        return Some(DeviceError::Memory(words));
    }
    if says(&["Device or resource busy", "Address already in use"]) {
        return Some(DeviceError::Busy(words));
    }
    if says(&["No such device", "No such file", "Invalid socket directory"]) {
        return Some(DeviceError::Missing(words));
    }
    None
}

/// Opens the port, one link per queue pair, at most one per stack.
///
/// A device with fewer queues than there are stacks gives fewer links; the caller spreads frames in
/// software then.
pub(crate) fn open(config: &Config) -> Result<Vec<Box<dyn Link>>, DeviceError> {
    open_named(config).map_err(|error| error.naming(&config.dpdk_args))
}

fn open_named(config: &Config) -> Result<Vec<Box<dyn Link>>, DeviceError> {
    let stacks = u16::try_from(config.stack_count().max(1)).unwrap_or(u16::MAX);
    let (eal, notices) = Eal::init(&config.dpdk_args, memory_megabytes(config, stacks))?;
    for notice in notices {
        log::warn!("{notice}");
    }
    let port = Port::find(&eal, config.devices)?;
    let info = port.info().clone();
    let mut negotiated = port.negotiate(&PortRequest {
        queues: stacks,
        rx_descriptors: config.nic_rxqueue_size,
        tx_descriptors: config.nic_txqueue_size,
        mtu: config.mtu,
        // A tag that stays in the frame is checked by the stack, which needs no help with it.
        vlan_strip: false,
    })?;
    let pools = pools(&eal, config, &mut negotiated)?;
    let memif = Memif::of(&config.dpdk_args);
    if let Some(Memif::Client { socket: Some(socket) }) = memif {
        wait_for_server(socket, config.link_up_timeout);
    }
    let mut started = port.start(&negotiated, pools)?;
    if matches!(memif, Some(Memif::Client { .. })) {
        attach(&mut started, config.link_up_timeout)?;
    }
    let Started { queues, port } = started;
    let patience = match memif {
        // Its link comes up when a client attaches. A server that waited for that would not be
        // listening yet when the client calls.
        Some(Memif::Server) => Duration::ZERO,
        _ => config.link_up_timeout,
    };
    let up = port.wait_for_link(patience);
    log::info!(
        "device {} ({}), address {}: {} queue(s), MTU {}, {}",
        info.name,
        info.driver,
        hardware_address(negotiated.mac),
        negotiated.queues,
        negotiated.mtu,
        if up { "link up" } else { "link down" }
    );
    log::debug!("device {}: {negotiated:?}", info.name);
    if negotiated.queues < stacks {
        log::info!(
            "device {} has {} queue(s) for {stacks} stacks: frames are spread in software",
            info.name,
            negotiated.queues
        );
    }
    let caps = caps(&negotiated);
    let links = queues.into_iter().map(|queues| {
        let link: Box<dyn Link> = Box::new(DpdkLink::new(queues, caps));
        link
    });
    Ok(links.collect())
}

/// Which end of a shared-memory link the device is.
#[derive(Debug, PartialEq, Eq)]
enum Memif<'a> {
    Server,
    Client {
        /// The server's socket, if it has a place in the file system.
        socket: Option<&'a Path>,
    },
}

impl<'a> Memif<'a> {
    /// Reads the driver's arguments: `net_memif0,role=server,socket=PATH,…`; it is a client unless
    /// told otherwise.
    fn of(dpdk_args: &'a [String]) -> Option<Self> {
        let device = dpdk_args.iter().find(|arg| arg.contains("net_memif"))?;
        let value = |key: &str| device.split(',').find_map(|word| word.strip_prefix(key));
        if value("role=") == Some("server") {
            return Some(Self::Server);
        }
        let named = value("socket-abstract=") == Some("no");
        Some(Self::Client { socket: value("socket=").filter(|_| named).map(Path::new) })
    }
}

/// The driver's client gives up at once when the server is not there yet; two programs started
/// together must not depend on who is first.
fn wait_for_server(socket: &Path, patience: Duration) {
    let deadline = Instant::now() + patience;
    while !socket.exists() && Instant::now() < deadline {
        std::thread::sleep(SERVER_LOOK);
    }
}

/// A server has its socket before it is ready, and turns clients away until then; the driver's
/// client does not try again by itself.
fn attach(client: &mut Started, patience: Duration) -> Result<(), PortError> {
    let deadline = Instant::now() + patience;
    let mut attempt = FIRST_ATTEMPT;
    while !client.port.wait_for_link(attempt) && Instant::now() < deadline {
        client.restart()?;
        attempt *= 2;
    }
    Ok(())
}

/// How long the first attempt to attach may take: a handshake of a few messages, under a
/// millisecond when neither process waits for a CPU. Later ones get more, for those that do.
const FIRST_ATTEMPT: Duration = Duration::from_millis(20);

/// Short against the start of a device (over 100 ms), long against a look at the file system.
const SERVER_LOOK: Duration = Duration::from_millis(5);

/// Whether a descriptor belongs to a device, and must survive a program that closes what it does
/// not know.
#[must_use]
pub fn is_device_descriptor(fd: std::os::fd::RawFd) -> bool {
    dpdk::owns_descriptor(fd)
}

fn caps(negotiated: &Negotiated) -> LinkCaps {
    LinkCaps {
        mac: negotiated.mac,
        mtu: negotiated.mtu,
        tx_ip_checksum: negotiated.tx_ip_checksum,
        tx_tcp_checksum: negotiated.tx_tcp_checksum,
        tx_udp_checksum: negotiated.tx_udp_checksum,
        tso_max: negotiated.tso.then_some(u32::from(TSO_FRAME_ROOM) - u32::from(LINK_HEADER_MAX)),
    }
}

/// The pools of all queues. Where memory is short, what goes beyond the queues' needs goes first,
/// then segmentation by the device.
fn pools(
    eal: &Eal,
    config: &Config,
    negotiated: &mut Negotiated,
) -> Result<Vec<QueuePools>, DeviceError> {
    let sizes = PoolSizes {
        rx_descriptors: negotiated.rx_descriptors,
        tx_descriptors: negotiated.tx_descriptors,
        mtu: negotiated.mtu,
        queues: negotiated.queues,
    };
    let full = sizes.pool(config);
    let least = PoolConfig { packets: sizes.least_packets(), ..full };
    let mut pools = Vec::new();
    for _ in 0..negotiated.queues {
        let rx = match Mempool::new(eal, &full) {
            Err(PoolError::NoMemory { .. }) => Mempool::new(eal, &least)?,
            other => other?,
        };
        pools.push(QueuePools { tx: rx.clone(), rx });
    }
    if negotiated.tso {
        let large = sizes.segmenting_pool();
        let made: Result<Vec<_>, _> = pools.iter().map(|_| Mempool::new(eal, &large)).collect();
        match made {
            Ok(made) => pools.iter_mut().zip(made).for_each(|(pools, large)| pools.tx = large),
            Err(error) => {
                log::info!("the device does not segment TCP for us: {error}");
                negotiated.tso = false;
            }
        }
    }
    Ok(pools)
}

/// What decides how many packets a queue pair needs.
#[derive(Clone, Copy, Debug)]
struct PoolSizes {
    rx_descriptors: u16,
    tx_descriptors: u16,
    mtu: u16,
    queues: u16,
}

impl PoolSizes {
    /// Packets that can be held at the same moment by rings, caches and bursts.
    fn least_packets(&self) -> u32 {
        // DPDK lets a cache grow to one and a half of its size.
        let cached = PoolConfig::CACHE * 3 / 2;
        let in_hand = u32::try_from(PENDING_MAX + STOCK + RX_BURST).expect("small constants");
        u32::from(self.rx_descriptors) + u32::from(self.tx_descriptors) + cached + in_hand
    }

    fn pool(&self, config: &Config) -> PoolConfig {
        let wanted = config.tcp_conn_count.saturating_mul(config.mbuf_count_per_conn);
        let share = wanted / usize::from(self.queues.max(1));
        let spare = u32::try_from(share).unwrap_or(u32::MAX).min(SPARE_MAX);
        PoolConfig { packets: self.least_packets() + spare, frame_room: frame_room(self.mtu) }
    }

    fn segmenting_pool(&self) -> PoolConfig {
        let in_hand = self.least_packets() - u32::from(self.rx_descriptors);
        PoolConfig { packets: in_hand, frame_room: TSO_FRAME_ROOM }
    }
}

/// Memory for DPDK before the device can be asked. It is only reserved, and taken when touched: the
/// estimate is generous.
fn memory_megabytes(config: &Config, stacks: u16) -> u64 {
    let sizes = PoolSizes {
        rx_descriptors: config.nic_rxqueue_size,
        tx_descriptors: config.nic_txqueue_size,
        mtu: config.mtu.unwrap_or(MTU_GUESS),
        queues: stacks,
    };
    let pools = sizes.pool(config).memory() + sizes.segmenting_pool().memory();
    (pools * u64::from(stacks)).div_ceil(1 << 20) + OTHER_MEGABYTES
}

fn frame_room(mtu: u16) -> u16 {
    mtu.saturating_add(LINK_HEADER_MAX).max(FRAME_ROOM_MIN)
}

pub(crate) fn hardware_address(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// What drivers assume a packet's memory to hold at least.
const FRAME_ROOM_MIN: u16 = 2048;

/// Ethernet header with two tags, and the checksum some devices leave in place.
const LINK_HEADER_MAX: u16 = 26;

/// One descriptor of common cards describes at most 16 KiB - 1.
const TSO_FRAME_ROOM: u16 = 16_000;

/// A device may have a larger MTU than Ethernet's (a card never by default, `net_af_xdp` up to
/// 3.4 kB); the memory is sized for it.
const MTU_GUESS: u16 = 3500;

/// Packets beyond what queues and caches hold. Data is copied out of packets at once, so more would
/// stay unused: 4096 are four receive rings of the default size.
const SPARE_MAX: u32 = 4096;

/// What DPDK takes besides packets: rings, device data, its own heap.
const OTHER_MEGABYTES: u64 = 48;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lstack_config::Config;

    use super::{DeviceError, PoolSizes, classify, memory_megabytes};

    #[test]
    fn the_default_needs_tens_of_megabytes_not_hundreds() {
        let config = Config::default_for_tests(Ipv4Addr::new(10, 0, 0, 1), 24);
        let sizes = PoolSizes {
            rx_descriptors: config.nic_rxqueue_size,
            tx_descriptors: config.nic_txqueue_size,
            mtu: 1500,
            queues: 1,
        };
        let used = sizes.pool(&config).memory() >> 20;
        assert!((5..40).contains(&used), "{used} MB");
        assert!(memory_megabytes(&config, 1) > used);
        assert!(memory_megabytes(&config, 2) < 256);
    }

    #[test]
    fn a_pool_is_never_smaller_than_what_the_queues_hold() {
        let mut config = Config::default_for_tests(Ipv4Addr::new(10, 0, 0, 1), 24);
        config.tcp_conn_count = 1;
        config.mbuf_count_per_conn = 1;
        let sizes = PoolSizes { rx_descriptors: 8192, tx_descriptors: 8192, mtu: 9000, queues: 4 };
        let pool = sizes.pool(&config);
        assert!(pool.packets > 16_384);
        assert!(pool.frame_room > 9000);
    }

    #[test]
    fn causes_are_told_apart() {
        let of = |words: &str| classify(words.to_owned());
        let denied = of("net_tap: Unable to open /dev/net/tun interface: Operation not permitted");
        assert!(matches!(denied, Some(DeviceError::Permission(_))));
        let missing = of("net_af_packet0: ioctl failed (SIOCGIFINDEX):No such device");
        assert!(matches!(missing, Some(DeviceError::Missing(_))));
        assert!(matches!(of("Device or resource busy"), Some(DeviceError::Busy(_))));
        assert!(matches!(of("Cannot get hugepage information."), Some(DeviceError::HugePages(_))));
        assert!(of("something new").is_none());
    }
}
