//! The validated configuration: plain values that other crates read.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

/// How stacks are driven (`stack_thread_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackThreadMode {
    /// Application threads drive the stack inside their socket calls.
    #[default]
    RunToCompletion,
    /// A pinned thread drives the stack.
    RunToWakeup,
}

/// What happens to the program when the stack cannot start (`on_init_failure`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInitFailure {
    /// It runs on the kernel.
    #[default]
    Kernel,
    /// It ends with status 1.
    Abort,
}

/// When TCP uses explicit congestion notification (`tcp_ecn`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Never.
    Off,
    /// Asked for, and agreed to.
    On,
    /// Agreed to when the peer asks.
    #[default]
    Accept,
}

/// How much is logged (`log_level`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What an operator must act on.
    Error,
    /// Also what works only in part.
    #[default]
    Warn,
    /// Also the life cycle: a dozen lines per run.
    Info,
    /// Also each connection.
    Debug,
    /// Also each segment, in builds that have it.
    Trace,
}

/// An address range, `address/prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Net {
    /// Any address inside.
    pub address: Ipv4Addr,
    /// Prefix length, 0-32.
    pub prefix_len: u8,
}

impl Ipv4Net {
    /// Whether `address` lies in the range.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        let mask = self.mask();
        self.address.to_bits() & mask == address.to_bits() & mask
    }

    /// The lowest address of the range: all host bits 0.
    #[must_use]
    pub fn network(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() & self.mask())
    }

    /// The highest address of the range: all host bits 1.
    #[must_use]
    pub fn broadcast(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() | !self.mask())
    }

    fn mask(&self) -> u32 {
        // A shift by 32, for prefix length 0, is "no bit left".
        u32::MAX.checked_shl(32 - u32::from(self.prefix_len.min(32))).unwrap_or(0)
    }
}

/// The validated configuration. Fields are named after their keys.
///
/// Outside this crate it comes from [`crate::load()`] or [`Config::default_for_tests`]; fields may be
/// changed one by one after that.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// `dpdk_args`, as given; the program name is not among them.
    pub dpdk_args: Vec<String>,
    /// `stack_thread_mode`.
    pub stack_thread_mode: StackThreadMode,
    /// `num_cpus`: one stack per entry; `None`: one unpinned stack.
    pub num_cpus: Option<Vec<u32>>,
    /// `host_addr`.
    pub host_addr: Option<Ipv4Addr>,
    /// `mask_addr`, as a prefix length.
    pub prefix_len: u8,
    /// `gateway_addr`.
    pub gateway_addr: Option<Ipv4Addr>,
    /// `host_addr6`.
    pub host_addr6: Option<Ipv6Addr>,
    /// `devices`: hardware address of the port; `None`: the only port.
    pub devices: Option<[u8; 6]>,
    /// `tcp_conn_count`.
    pub tcp_conn_count: usize,
    /// `mbuf_count_per_conn`.
    pub mbuf_count_per_conn: usize,
    /// `nic_rxqueue_size`, descriptors.
    pub nic_rxqueue_size: u16,
    /// `nic_txqueue_size`, descriptors.
    pub nic_txqueue_size: u16,
    /// `nic_read_number`: most frames per burst.
    pub nic_read_number: usize,
    /// `nic_vlan_mode`.
    pub vlan: Option<u16>,
    /// `udp_enable`.
    pub udp_enable: bool,
    /// `stack_interrupt`: sleep on the device's interrupt when it has one.
    pub stack_interrupt: bool,
    /// `low_power_mode`: sleep longer when idle.
    pub low_power_mode: bool,
    /// `idle_spin_us`. Driver thread: spins this long without work before it sleeps.
    pub idle_spin: Duration,
    /// `app_spin_us`. Application threads: spin this long in a blocking call before they sleep.
    pub app_spin: Duration,
    /// Send buffer of a new TCP socket, bytes.
    pub send_buffer: usize,
    /// Largest send buffer, bytes.
    pub send_buffer_max: usize,
    /// Receive buffer of a new TCP socket, bytes.
    pub recv_buffer: usize,
    /// Largest receive buffer, bytes.
    pub recv_buffer_max: usize,
    /// All socket buffers together, bytes.
    pub buffer_memory_max: usize,
    /// Receive queue of a new UDP socket, bytes.
    pub udp_recv_buffer: usize,
    /// `tcp_min_rto_ms`: smallest retransmission timeout.
    pub min_rto: Duration,
    /// `tcp_ecn`: explicit congestion notification.
    pub ecn: Ecn,
    /// Largest IP packet of the port, bytes; `None`: what the device has.
    pub mtu: Option<u16>,
    /// Destinations that always use the kernel.
    pub kernel_addresses: Vec<Ipv4Net>,
    /// Destinations that always use the stack.
    pub stack_addresses: Vec<Ipv4Net>,
    /// `on_init_failure`.
    pub on_init_failure: OnInitFailure,
    /// `exit_linger_ms`. At exit, longest wait for closed connections to deliver their data.
    pub exit_linger: Duration,
    /// `link_up_timeout_ms`: link-up is waited for at most this long.
    pub link_up_timeout: Duration,
    /// File to capture all frames to (pcapng).
    pub capture: Option<PathBuf>,
    /// File for counters and sockets (JSON); `LSTACK_STATS_FILE` overrides.
    pub stats_file: Option<PathBuf>,
    /// `log_level`.
    pub log_level: LogLevel,
    /// `log_file`: where the log goes; `None`: standard error.
    pub log_file: Option<PathBuf>,
}

impl Config {
    /// What a file that sets nothing would mean. Not usable as it is: there is no device and no
    /// address.
    pub(crate) fn defaults() -> Self {
        Self {
            dpdk_args: Vec::new(),
            stack_thread_mode: StackThreadMode::RunToCompletion,
            num_cpus: None,
            host_addr: None,
            prefix_len: 0,
            gateway_addr: None,
            host_addr6: None,
            devices: None,
            tcp_conn_count: 20_000,
            mbuf_count_per_conn: 170,
            nic_rxqueue_size: 1024,
            nic_txqueue_size: 1024,
            nic_read_number: 128,
            vlan: None,
            udp_enable: true,
            stack_interrupt: false,
            low_power_mode: false,
            idle_spin: Duration::from_micros(50),
            // Two cores, memif, netperf TCP_RR, two runs each: the 99th percentile was 21 and 83 µs
            // at 50 µs, 21 and 20 at 200, 9 and 7 at 1000. At 50 µs about one request in a hundred
            // fell asleep (counted); the share at 200 was not counted. A program that waits a hundred
            // times a second pays 2 % of a core.
            app_spin: Duration::from_micros(200),
            send_buffer: 256 << 10,
            send_buffer_max: 4 << 20,
            recv_buffer: 256 << 10,
            recv_buffer_max: 6 << 20,
            buffer_memory_max: 512 << 20,
            udp_recv_buffer: 1 << 20,
            min_rto: Duration::from_millis(200),
            ecn: Ecn::default(),
            mtu: None,
            kernel_addresses: Vec::new(),
            stack_addresses: Vec::new(),
            on_init_failure: OnInitFailure::Kernel,
            exit_linger: Duration::from_secs(5),
            link_up_timeout: Duration::from_secs(3),
            capture: None,
            stats_file: None,
            log_level: LogLevel::Warn,
            log_file: None,
        }
    }

    /// A configuration with this address and every default, for tests that bring their own device:
    /// `dpdk_args` is empty. Change what the test is about:
    ///
    /// ```
    /// use lstack_config::Config;
    ///
    /// let mut config = Config::default_for_tests("198.18.0.1".parse().unwrap(), 24);
    /// config.tcp_conn_count = 2;
    /// ```
    #[must_use]
    pub fn default_for_tests(host_addr: Ipv4Addr, prefix_len: u8) -> Self {
        Self { host_addr: Some(host_addr), prefix_len, ..Self::defaults() }
    }

    /// The subnet of `host_addr`.
    #[must_use]
    pub fn subnet(&self) -> Option<Ipv4Net> {
        self.host_addr.map(|address| Ipv4Net { address, prefix_len: self.prefix_len })
    }

    /// How many stacks `num_cpus` asks for.
    #[must_use]
    pub fn stack_count(&self) -> usize {
        self.num_cpus.as_ref().map_or(1, Vec::len)
    }
}
