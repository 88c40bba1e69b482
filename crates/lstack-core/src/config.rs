//! What a stack is told when it is made.

use core::net::Ipv4Addr;
use core::time::Duration;

use crate::link::LinkCaps;

/// Everything a [`crate::Stack`] needs to know.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// The device.
    pub link: LinkCaps,
    /// IPv4 address; `None` switches IPv4 off.
    pub ipv4: Option<Ipv4Config>,
    /// VLAN id to tag every frame with and to demand on receive (1-4094).
    pub vlan: Option<u16>,
    /// Most neighbours (ARP entries) remembered; the least recently used goes first.
    pub neighbors_max: usize,
    /// Which part of the traffic is this stack's, when several share a device.
    pub steering: Steering,
    /// TCP.
    pub tcp: TcpConfig,
    /// UDP.
    pub udp: UdpConfig,
}

/// An IPv4 address and the way out.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Config {
    /// Our address.
    pub address: Ipv4Addr,
    /// Prefix length, 0-32.
    pub prefix_len: u8,
    /// Default gateway, inside the subnet.
    pub gateway: Option<Ipv4Addr>,
}

/// TCP limits and constants. Sizes are bytes of payload.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Most sockets, all states but `TIME_WAIT` counted (`tcp_conn_count`).
    pub max_sockets: usize,
    /// Send buffer of a new socket.
    pub send_buffer: usize,
    /// Largest send buffer that tuning or an option may ask for.
    pub send_buffer_max: usize,
    /// Receive buffer of a new socket.
    pub recv_buffer: usize,
    /// Largest receive buffer that tuning or an option may ask for.
    pub recv_buffer_max: usize,
    /// All buffers of the stack together; above it windows shrink.
    pub memory_max: usize,
    /// Explicit congestion notification.
    pub ecn: EcnMode,
    /// Smallest retransmission timeout.
    pub min_rto: Duration,
    /// Stay in `TIME_WAIT` (Linux: 60 s).
    pub time_wait: Duration,
    /// Stay in `FIN_WAIT2` after the program closed (Linux: 60 s).
    pub fin_wait2: Duration,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            max_sockets: 20_000,
            send_buffer: 256 * 1024,
            send_buffer_max: 4 << 20,
            recv_buffer: 256 * 1024,
            recv_buffer_max: 6 << 20,
            memory_max: 512 << 20,
            ecn: EcnMode::default(),
            // Linux peers delay ACKs by up to 40 ms; Linux's own floor is 200 ms.
            min_rto: Duration::from_millis(200),
            time_wait: Duration::from_secs(60),
            fin_wait2: Duration::from_secs(60),
        }
    }
}

/// When connections use explicit congestion notification (RFC 3168), as Linux's `tcp_ecn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnMode {
    /// Never.
    Off,
    /// When the peer asks for it or agrees to it.
    On,
    /// When the peer asks for it.
    #[default]
    Accept,
}

/// UDP limits. Sizes are bytes of payload.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Most sockets.
    pub max_sockets: usize,
    /// Receive queue of a new socket.
    pub recv_buffer: usize,
    /// Largest receive queue an option may ask for.
    pub recv_buffer_max: usize,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self { max_sockets: 20_000, recv_buffer: 1 << 20, recv_buffer_max: 16 << 20 }
    }
}

/// Divides flows among the stacks of a process.
///
/// TCP flows go by a hash of the four-tuple that is the same in both directions, UDP by the local
/// port, everything else to stack 0. See [`crate::stack::steer`].
#[derive(Clone, Copy, Debug)]
pub struct Steering {
    /// This stack, below `count`.
    pub index: u16,
    /// Number of stacks.
    pub count: u16,
    /// Same for all stacks of the process: keys the hash.
    pub key: u64,
}

impl Default for Steering {
    fn default() -> Self {
        Self { index: 0, count: 1, key: 0 }
    }
}

/// Real randomness for hash keys, sequence numbers and ports. The stack derives all its secrets
/// from it and never shows it.
#[derive(Clone)]
pub struct Secret(pub [u8; 32]);

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(..)")
    }
}
