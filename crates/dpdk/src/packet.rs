//! What a packet and a pair of queues are, whether real or mock.

use std::os::fd::BorrowedFd;

use crate::batch::Batch;

/// What the device found about a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// It did not look.
    #[default]
    Unknown,
    /// Right, or not needed.
    Good,
    /// Wrong.
    Bad,
}

/// What the device says about a received packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxFlags {
    /// IPv4 header checksum.
    pub ip: Checksum,
    /// TCP or UDP checksum.
    pub l4: Checksum,
    /// VLAN tag (TCI) it has stripped.
    pub vlan: Option<u16>,
}

/// Transport header of a packet whose checksum the device finishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4Offload {
    /// TCP with a header of this many bytes.
    Tcp {
        /// Header with options, bytes.
        header_len: u8,
    },
    /// UDP.
    Udp,
}

/// What the device does to a packet it sends.
///
/// Where `l4` is set, the checksum field holds the sum over the pseudo header: with the length of
/// the segment in it, or without when `segment_size` is set, as the device adds those itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// Link header with tags, bytes.
    pub l2_len: u8,
    /// IP header, bytes.
    pub l3_len: u16,
    /// IP version 6.
    pub ipv6: bool,
    /// Compute the IPv4 header checksum.
    pub ip_checksum: bool,
    /// Finish the transport checksum.
    pub l4: Option<L4Offload>,
    /// Cut the TCP payload into segments of this size.
    pub segment_size: Option<u16>,
}

/// One packet, owned.
pub trait Packet: Sized + Send {
    /// Length over all segments, bytes.
    fn packet_len(&self) -> usize;

    /// The bytes of a packet that is one segment; `None` for one that is several.
    fn contiguous(&self) -> Option<&[u8]>;

    /// Copies the packet into `out`, as much as fits; returns how much that was. What several
    /// segments hold is joined.
    fn copy_to(&self, out: &mut [u8]) -> usize;

    /// What the device said about it.
    fn rx_flags(&self) -> RxFlags;

    /// Makes it one segment of exactly `len` bytes, contents unspecified. `None` when its memory
    /// is smaller or it has several segments.
    fn resize(&mut self, len: usize) -> Option<&mut [u8]>;

    /// What the device is to do when it sends the packet.
    fn set_offload(&mut self, offload: &TxOffload);

    /// Drops all of `packets`, faster than one by one where the memory allows.
    fn free_all(packets: &mut Batch<Self>) {
        packets.clear();
    }
}

/// One receive and one transmit queue with the memory of their packets. One user at a time.
pub trait Queues: Send {
    /// What they carry.
    type Packet: Packet;

    /// Takes at most `max` received packets, as many as there is room for in `into`. Returns how
    /// many it took.
    fn receive(&mut self, into: &mut Batch<Self::Packet>, max: usize) -> usize;

    /// Gives packets to the device, first to last; what it does not take stays in `from`. Returns
    /// how many it took.
    fn transmit(&mut self, from: &mut Batch<Self::Packet>) -> usize;

    /// Adds `count` fresh packets for sending to `into`, all or none. Returns whether it did.
    fn allocate(&mut self, into: &mut Batch<Self::Packet>, count: usize) -> bool;

    /// Gives packets back.
    fn free(&mut self, packets: &mut Batch<Self::Packet>);

    /// Packets so far that the device could never send, dropped by [`Self::transmit`].
    fn refused(&self) -> u64 {
        0
    }

    /// A descriptor that is readable while received packets wait, where the device has one.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// To be called before a sleep on [`Self::wake_fd`]: takes away what would keep it readable
    /// though no packet waits.
    fn settle_wake_fd(&mut self) {}
}
