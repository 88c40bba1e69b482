//! Devices: finding, asking what they can do, starting.
//!
//! Called by the thread that starts the stacks, once; nothing here is on the packet path.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dpdk_sys as sys;

use crate::caller::preserved;
use crate::eal::{Eal, strerror};
use crate::mempool::Mempool;
use crate::queue::QueuePair;
use crate::stats::{self, PortStats, Xstat};
use crate::wake;

/// A device nobody has started yet.
#[derive(Debug)]
pub struct Port {
    id: u16,
    info: PortInfo,
    device: sys::rte_eth_dev_info,
    eal: Eal,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// DPDK's name: a PCI address or the name of a virtual device.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Hardware address.
    pub mac: [u8; 6],
    /// The kernel's interface behind it, for devices that have one.
    pub interface: Option<String>,
}

/// What is wanted of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRequest {
    /// Queue pairs.
    pub queues: u16,
    /// Descriptors of a receive queue.
    pub rx_descriptors: u16,
    /// Descriptors of a transmit queue.
    pub tx_descriptors: u16,
    /// Largest IP packet, bytes; `None`: what the device has.
    pub mtu: Option<u16>,
    /// Take VLAN tags off received packets, where the device can.
    pub vlan_strip: bool,
}

/// What a device will do: the request cut down to what it offers. All false is a valid device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Hardware address to send from and to listen to.
    pub mac: [u8; 6],
    /// Queue pairs; fewer than asked for if the device has fewer.
    pub queues: u16,
    /// Descriptors of a receive queue.
    pub rx_descriptors: u16,
    /// Descriptors of a transmit queue.
    pub tx_descriptors: u16,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Verifies IPv4 header checksums.
    pub rx_ip_checksum: bool,
    /// Verifies TCP checksums.
    pub rx_tcp_checksum: bool,
    /// Verifies UDP checksums.
    pub rx_udp_checksum: bool,
    /// Computes IPv4 header checksums.
    pub tx_ip_checksum: bool,
    /// Computes TCP checksums.
    pub tx_tcp_checksum: bool,
    /// Computes UDP checksums.
    pub tx_udp_checksum: bool,
    /// Segments TCP.
    pub tso: bool,
    /// Sends packets of several segments.
    pub multi_segment: bool,
    /// Receives packets larger than one segment.
    pub scatter: bool,
    /// Spreads flows over its queues.
    pub rss: bool,
    /// Takes VLAN tags off.
    pub vlan_strip: bool,
    /// Whether the device is told the MTU; some check it against a limit they do not have.
    device_mtu: Option<u16>,
}

/// Memory of one queue pair.
#[derive(Clone, Debug)]
pub struct QueuePools {
    /// Received packets.
    pub rx: Mempool,
    /// Packets to send; may be the same.
    pub tx: Mempool,
}

/// A device at work.
#[derive(Debug)]
pub struct Started {
    /// Its queue pairs.
    pub queues: Vec<QueuePair>,
    /// The device itself: counters and link state.
    pub port: Arc<StartedPort>,
}

/// A started port. It stops when the last holder goes.
#[derive(Debug)]
pub struct StartedPort {
    id: u16,
    name: String,
    /// The device returns packets to them until it is closed, so they go after it.
    pools: Vec<QueuePools>,
    _eal: Eal,
}

/// A device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// There is none at all.
    #[error(
        "DPDK has no device{}: dpdk_args must name one that can be used (--vdev=..., or -a <PCI \
         address> of a card bound to vfio-pci)", because(.complaints)
    )]
    None {
        /// What DPDK said when it started.
        complaints: Vec<String>,
    },
    /// None has the address asked for.
    #[error("no device has the address {}; there are {}", Mac(*.wanted), list(.present))]
    NotFound {
        /// The address asked for.
        wanted: [u8; 6],
        /// The devices there are.
        present: Vec<PortInfo>,
    },
    /// There are several and none was asked for.
    #[error("there are several devices, name one by its address (devices): {}", list(.present))]
    Several {
        /// The devices there are.
        present: Vec<PortInfo>,
    },
    /// It refused a step.
    #[error("device {device}: {step} failed: {reason}")]
    Refused {
        /// Its name.
        device: String,
        /// What was tried.
        step: &'static str,
        /// DPDK's text.
        reason: String,
    },
    /// The MTU is outside what the device takes.
    #[error("device {device}: MTU {wanted} is not possible, it takes {min} to {max}")]
    Mtu {
        /// Its name.
        device: String,
        /// What was asked for.
        wanted: u16,
        /// Smallest.
        min: u16,
        /// Largest.
        max: u16,
    },
}

impl Port {
    /// All devices DPDK has.
    #[must_use]
    pub fn list(eal: &Eal) -> Vec<Self> {
        let mut ports = Vec::new();
        let mut id = 0;
        loop {
            // SAFETY: DPDK runs (`eal`).
            let found = unsafe { sys::rte_eth_find_next(id) };
            if u32::from(found) >= sys::RTE_MAX_ETHPORTS {
                return ports;
            }
            ports.extend(Self::open(eal, found));
            id = found + 1;
        }
    }

    /// The device with the hardware address `mac`, or the only one.
    ///
    /// # Errors
    ///
    /// See [`PortError`].
    pub fn find(eal: &Eal, mac: Option<[u8; 6]>) -> Result<Self, PortError> {
        let mut ports = Self::list(eal);
        let present = |ports: &[Self]| ports.iter().map(|port| port.info.clone()).collect();
        if ports.is_empty() {
            return Err(PortError::None { complaints: eal.complaints().to_vec() });
        }
        if let Some(wanted) = mac {
            return match ports.iter().position(|port| port.info.mac == wanted) {
                Some(at) => Ok(ports.swap_remove(at)),
                None => Err(PortError::NotFound { wanted, present: present(&ports) }),
            };
        }
        if ports.len() > 1 {
            return Err(PortError::Several { present: present(&ports) });
        }
        Ok(ports.swap_remove(0))
    }

    /// What it is.
    #[must_use]
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    fn open(eal: &Eal, id: u16) -> Option<Self> {
        let mut device = sys::rte_eth_dev_info::default();
        // SAFETY: a valid place to write to.
        if unsafe { sys::rte_eth_dev_info_get(id, &raw mut device) } != 0 {
            return None;
        }
        let mut mac = sys::rte_ether_addr::default();
        // SAFETY: a valid place to write to.
        if unsafe { sys::rte_eth_macaddr_get(id, &raw mut mac) } != 0 {
            return None;
        }
        let mut name: [c_char; NAME_MAX] = [0; NAME_MAX];
        // SAFETY: there is room for the longest name.
        unsafe { sys::rte_eth_dev_get_name_by_port(id, name.as_mut_ptr()) };
        // SAFETY: the array ends with a zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let driver = if device.driver_name.is_null() {
            String::new()
        } else {
            // SAFETY: a driver's name is a static string.
            unsafe { CStr::from_ptr(device.driver_name) }.to_string_lossy().into_owned()
        };
        let interface = match device.if_index {
            0 => None,
            index => wake::interface_name(index),
        };
        let info = PortInfo { name, driver, mac: mac.addr_bytes, interface };
        Some(Self { id, info, device, eal: eal.clone() })
    }

    /// What the device will do of what is wanted.
    ///
    /// # Errors
    ///
    /// [`PortError::Mtu`].
    pub fn negotiate(&self, request: &PortRequest) -> Result<Negotiated, PortError> {
        let device = &self.device;
        let queues = request.queues.min(device.max_rx_queues).min(device.max_tx_queues).max(1);
        let (mtu, device_mtu) = self.mtu(request.mtu)?;
        // What a driver does in software is better done by the stack, with the bytes at hand.
        let (rx_capable, tx_capable) = match self.info.driver.as_str() {
            "net_tap" => (0, device.tx_offload_capa & sys::LS_TX_MULTI_SEGS),
            _ => (device.rx_offload_capa, device.tx_offload_capa),
        };
        let rx = |capability| rx_capable & capability != 0;
        let tx = |capability| tx_capable & capability != 0;
        Ok(Negotiated {
            mac: self.own_address(),
            queues,
            rx_descriptors: clamp(request.rx_descriptors, &device.rx_desc_lim),
            tx_descriptors: clamp(request.tx_descriptors, &device.tx_desc_lim),
            mtu,
            rx_ip_checksum: rx(sys::LS_RX_IP_CHECKSUM),
            rx_tcp_checksum: rx(sys::LS_RX_TCP_CHECKSUM),
            rx_udp_checksum: rx(sys::LS_RX_UDP_CHECKSUM),
            tx_ip_checksum: tx(sys::LS_TX_IP_CHECKSUM),
            tx_tcp_checksum: tx(sys::LS_TX_TCP_CHECKSUM),
            tx_udp_checksum: tx(sys::LS_TX_UDP_CHECKSUM),
            tso: tx(sys::LS_TX_TCP_TSO) && tx(sys::LS_TX_TCP_CHECKSUM),
            multi_segment: tx(sys::LS_TX_MULTI_SEGS),
            scatter: rx(sys::LS_RX_SCATTER),
            rss: queues > 1 && device.flow_type_rss_offloads & sys::LS_RSS_TYPES != 0,
            vlan_strip: request.vlan_strip && rx(sys::LS_RX_VLAN_STRIP),
            device_mtu,
        })
    }

    /// A tap device reports the address of the kernel's end of the cable. Two hosts with one address
    /// on a cable do not hear each other, and a bridge the kernel's end belongs to would keep every
    /// frame for itself: this end gets an address next to it.
    fn own_address(&self) -> [u8; 6] {
        let mut mac = self.info.mac;
        if self.info.driver == "net_tap" {
            mac[0] |= LOCALLY_ADMINISTERED;
            mac[5] ^= 1;
        }
        mac
    }

    /// The MTU, and what of it the device is told.
    fn mtu(&self, wanted: Option<u16>) -> Result<(u16, Option<u16>), PortError> {
        let device = &self.device;
        // memif's rings carry packets of any size, but the driver reports the Ethernet limit.
        if self.info.driver == "net_memif" {
            return Ok((wanted.unwrap_or(ETHERNET_MTU), None));
        }
        let frame_limit = device.max_rx_pktlen.saturating_sub(FRAME_OVERHEAD);
        let frame_limit = u16::try_from(frame_limit).unwrap_or(u16::MAX);
        let max = device.max_mtu.min(frame_limit);
        let min = device.min_mtu;
        let Some(wanted) = wanted else {
            let kernel = self.info.interface.as_deref().and_then(wake::interface_mtu);
            let mtu = kernel.unwrap_or(ETHERNET_MTU).min(max);
            return Ok((mtu, Some(mtu)));
        };
        if wanted < min || wanted > max {
            return Err(PortError::Mtu { device: self.info.name.clone(), wanted, min, max });
        }
        Ok((wanted, Some(wanted)))
    }

    /// Starts the device with one queue pair per entry of `pools`, of which there must be
    /// `negotiated.queues`.
    ///
    /// # Errors
    ///
    /// [`PortError::Refused`].
    pub fn start(
        self,
        negotiated: &Negotiated,
        pools: Vec<QueuePools>,
    ) -> Result<Started, PortError> {
        let Self { id, info, device, eal } = self;
        assert_eq!(usize::from(negotiated.queues), pools.len(), "one entry per queue");
        let configuration = configuration(negotiated, &device, &info.driver);
        // From here on dropping `port` closes the device, also after an error.
        let port = Arc::new(StartedPort { id, name: info.name.clone(), pools, _eal: eal });
        preserved(|| configure_and_start(id, negotiated, &configuration, &port.pools)).map_err(
            |(step, error)| PortError::Refused {
                device: info.name.clone(),
                step,
                reason: strerror(error),
            },
        )?;
        let queues = (0..negotiated.queues)
            .zip(&port.pools)
            .map(|(queue, pools)| {
                let wake = wake::of_queue(id, queue, &info.driver, device.if_index);
                QueuePair::new(Arc::clone(&port), queue, pools.tx.clone(), wake)
            })
            .collect();
        Ok(Started { queues, port })
    }
}

impl Started {
    /// Stops the device and starts it again: the only way to make a memif client connect anew.
    /// What it has received and not handed over is lost.
    ///
    /// # Errors
    ///
    /// [`PortError::Refused`].
    pub fn restart(&mut self) -> Result<(), PortError> {
        let id = self.port.id;
        preserved(|| {
            let mut started = 0;
            // SAFETY: the port is configured; nobody uses the queues meanwhile, `self` has them
            // exclusively, and handlers are kept out.
            let error = unsafe { sys::ls_restart_port(id, &raw mut started) };
            done(if started == 0 { "stopping" } else { "starting" }, error)
        })
        .map_err(|(step, error)| PortError::Refused {
            device: self.port.name.clone(),
            step,
            reason: strerror(error),
        })
    }
}

impl StartedPort {
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// DPDK's name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the link is up.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        let mut link = sys::rte_eth_link::default();
        // SAFETY: a valid place to write to.
        let error = unsafe { sys::rte_eth_link_get_nowait(self.id, &raw mut link) };
        error == 0 && link.link_status() == 1
    }

    /// Waits until the link is up, at most `timeout`; returns whether it is.
    #[must_use]
    pub fn wait_for_link(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut pause = LINK_POLL_MIN;
        while !self.link_is_up() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return false;
            };
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(LINK_POLL_MAX);
        }
        true
    }

    /// Counters every device has.
    #[must_use]
    pub fn stats(&self) -> PortStats {
        stats::of_port(self.id)
    }

    /// Counters of this kind of device.
    #[must_use]
    pub fn xstats(&self) -> Vec<Xstat> {
        stats::xstats_of_port(self.id)
    }
}

impl Drop for StartedPort {
    fn drop(&mut self) {
        preserved(|| {
            // SAFETY: nobody has a queue of the port any more; a port that was never started is
            // refused; the pools outlive the call.
            unsafe { sys::ls_close_port(self.id) };
        });
    }
}

fn configuration(
    negotiated: &Negotiated,
    device: &sys::rte_eth_dev_info,
    driver: &str,
) -> sys::rte_eth_conf {
    let mut configuration = sys::rte_eth_conf::default();
    let either = |on: bool, flag: u64| if on { flag } else { 0 };
    let larger_than_segment = negotiated.scatter;
    configuration.rxmode.mtu = u32::from(negotiated.device_mtu.unwrap_or(0));
    configuration.rxmode.offloads = either(negotiated.rx_ip_checksum, sys::LS_RX_IP_CHECKSUM)
        | either(negotiated.rx_tcp_checksum, sys::LS_RX_TCP_CHECKSUM)
        | either(negotiated.rx_udp_checksum, sys::LS_RX_UDP_CHECKSUM)
        | either(larger_than_segment, sys::LS_RX_SCATTER)
        | either(negotiated.vlan_strip, sys::LS_RX_VLAN_STRIP);
    configuration.txmode.offloads = either(negotiated.tx_ip_checksum, sys::LS_TX_IP_CHECKSUM)
        | either(negotiated.tx_tcp_checksum, sys::LS_TX_TCP_CHECKSUM)
        | either(negotiated.tx_udp_checksum, sys::LS_TX_UDP_CHECKSUM)
        | either(negotiated.tso, sys::LS_TX_TCP_TSO)
        | either(negotiated.multi_segment, sys::LS_TX_MULTI_SEGS);
    if negotiated.rss {
        configuration.rxmode.mq_mode = sys::LS_MQ_RSS;
        configuration.rx_adv_conf.rss_conf.rss_hf =
            device.flow_type_rss_offloads & sys::LS_RSS_TYPES;
    }
    if wake::needs_interrupts(driver) {
        configuration.intr_conf.set_rxq(1);
    }
    configuration
}

/// The steps in DPDK's order; the failing one with its error number.
fn configure_and_start(
    id: u16,
    negotiated: &Negotiated,
    configuration: &sys::rte_eth_conf,
    pools: &[QueuePools],
) -> Result<(), (&'static str, i32)> {
    let Negotiated { queues, rx_descriptors, tx_descriptors, .. } = *negotiated;

    // SAFETY: the configuration is valid for the call.
    let result = unsafe { sys::rte_eth_dev_configure(id, queues, queues, configuration) };
    done("configuring", result)?;
    let (mut rx, mut tx) = (rx_descriptors, tx_descriptors);
    // SAFETY: valid places to read and write.
    let result = unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(id, &raw mut rx, &raw mut tx) };
    done("adjusting its queue sizes", result)?;
    // SAFETY: DPDK checks the port.
    let socket = unsafe { sys::rte_eth_dev_socket_id(id) };
    // Unknown (-1) means any, as DPDK's own type has it.
    let socket = socket.cast_unsigned();

    for (queue, pools) in (0..queues).zip(pools) {
        // SAFETY: the pool outlives the port (`StartedPort`); no configuration means the default.
        let result = unsafe {
            let default = std::ptr::null();
            sys::rte_eth_rx_queue_setup(id, queue, rx, socket, default, pools.rx.as_ptr())
        };
        done("making a receive queue", result)?;
        // SAFETY: no configuration means the default.
        let result =
            unsafe { sys::rte_eth_tx_queue_setup(id, queue, tx, socket, std::ptr::null()) };
        done("making a transmit queue", result)?;
    }
    // SAFETY: the port is configured.
    done("starting", unsafe { sys::rte_eth_dev_start(id) })
}

/// The result of a step that reports an error as a negative number.
fn done(step: &'static str, result: i32) -> Result<(), (&'static str, i32)> {
    if result < 0 { Err((step, -result)) } else { Ok(()) }
}

fn clamp(wanted: u16, limit: &sys::rte_eth_desc_lim) -> u16 {
    let align = limit.nb_align.max(1);
    let max = if limit.nb_max == 0 { u16::MAX } else { limit.nb_max };
    let aligned = wanted.div_ceil(align).saturating_mul(align);
    aligned.min(max).max(limit.nb_min)
}

struct Mac([u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let colon = if at == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

fn list(ports: &[PortInfo]) -> String {
    let one = |port: &PortInfo| format!("{} ({}, {})", Mac(port.mac), port.name, port.driver);
    ports.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn because(complaints: &[String]) -> String {
    if complaints.is_empty() { String::new() } else { format!(" ({})", complaints.join("; ")) }
}

/// What an Ethernet device has unless it says otherwise.
const ETHERNET_MTU: u16 = 1500;

/// The bit of an address's first byte that says no manufacturer gave it.
const LOCALLY_ADMINISTERED: u8 = 2;

/// Ethernet header and checksum, which DPDK's frame limits count.
const FRAME_OVERHEAD: u32 = 18;

/// DPDK's limit for names, with room for the zero.
const NAME_MAX: usize = 64;

/// A memif pair needs some milliseconds, a card seconds.
const LINK_POLL_MIN: Duration = Duration::from_millis(1);
const LINK_POLL_MAX: Duration = Duration::from_millis(50);
