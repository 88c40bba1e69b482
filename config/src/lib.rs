//! `lstack.conf`: types, parsing, validation.

use std::net::{Ipv4Addr, Ipv6Addr};
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

/// An address range, `address/prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Net {
    /// Any address inside.
    pub address: Ipv4Addr,
    /// Prefix length, 0-32.
    pub prefix_len: u8,
}

/// The validated configuration. Fields are named after their keys.
#[derive(Clone, Debug)]
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
    /// Driver thread: spins this long without work before it sleeps.
    pub idle_spin: Duration,
    /// Application threads: spin this long in a blocking call before they sleep.
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
    /// Smallest retransmission timeout.
    pub min_rto: Duration,
    /// Largest IP packet of the port, bytes; `None`: what the device has.
    pub mtu: Option<u16>,
    /// Destinations that always use the kernel.
    pub kernel_addresses: Vec<Ipv4Net>,
    /// Destinations that always use the stack.
    pub stack_addresses: Vec<Ipv4Net>,
    /// `on_init_failure`.
    pub on_init_failure: OnInitFailure,
    /// At exit, longest wait for closed connections to deliver their data.
    pub exit_linger: Duration,
    /// Link-up is waited for at most this long.
    pub link_up_timeout: Duration,
    /// File to capture all frames to (pcapng).
    pub capture: Option<std::path::PathBuf>,
    /// File for counters and sockets (JSON); `LSTACK_STATS_FILE` overrides.
    pub stats_file: Option<std::path::PathBuf>,
}
