//! What the stack asks of a network device, and tells it about each frame.

/// Verdict of the device over a checksum of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumVerdict {
    /// The device did not look: the stack computes it.
    #[default]
    Unknown,
    /// Verified, or the frame never left this host.
    Good,
    /// Wrong: the frame is dropped and counted.
    Bad,
}

/// What the device says about a received frame besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RxMeta {
    /// IPv4 header checksum.
    pub ip_checksum: ChecksumVerdict,
    /// TCP or UDP checksum.
    pub l4_checksum: ChecksumVerdict,
    /// VLAN tag (TCI) that the device has stripped.
    pub vlan: Option<u16>,
}

/// Which transport header follows, for a device that finishes checksums or segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L4 {
    /// Neither TCP nor UDP, or a fragment: the device leaves it alone.
    #[default]
    Other,
    /// TCP with a header of this many bytes.
    Tcp {
        /// Header with options, bytes.
        header_len: u8,
    },
    /// UDP.
    Udp,
}

/// What the stack says about a frame to send besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxMeta {
    /// Length of the link header with tags, bytes.
    pub l2_len: u8,
    /// Length of the IP header, bytes.
    pub l3_len: u16,
    /// Whether the IP header is version 6.
    pub ipv6: bool,
    /// Transport.
    pub l4: L4,
    /// The device must compute the IPv4 header checksum.
    pub offload_ip_checksum: bool,
    /// The device must finish the transport checksum; its field holds the pseudo-header sum.
    pub offload_l4_checksum: bool,
    /// The device must cut the payload into segments of this size (TSO).
    pub segment_size: Option<u16>,
}

/// What a device offers. All false and `None` is a valid device.
#[derive(Clone, Copy, Debug)]
pub struct LinkCaps {
    /// Our hardware address.
    pub mac: [u8; 6],
    /// Largest IP packet, bytes (Ethernet header and FCS not counted).
    pub mtu: u16,
    /// Computes IPv4 header checksums on transmit.
    pub tx_ip_checksum: bool,
    /// Computes TCP checksums on transmit.
    pub tx_tcp_checksum: bool,
    /// Computes UDP checksums on transmit.
    pub tx_udp_checksum: bool,
    /// Segments TCP: largest IP packet it takes, bytes.
    pub tso_max: Option<u32>,
}

/// Takes frames to send.
///
/// The driver of a device implements it over its own buffers, so that a payload is copied once,
/// from the socket's buffer into the frame that leaves.
pub trait FrameSink {
    /// Room for one frame of exactly `len` bytes, contents unspecified.
    ///
    /// `None`: the device takes no more now. The caller keeps what it wanted to send and tries
    /// again at its next poll; nothing is lost. A second `reserve` without a `commit` replaces the
    /// first.
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Queues the frame last reserved.
    fn commit(&mut self, meta: TxMeta);
}
