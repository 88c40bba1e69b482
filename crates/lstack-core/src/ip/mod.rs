//! Ethernet, ARP, IP, ICMP, fragments and routing: everything below the transports.

use core::net::IpAddr;

use crate::link::{ChecksumVerdict, L4};

/// What the IP layer tells a transport about a received packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketMeta {
    pub src: IpAddr,
    pub dst: IpAddr,
    /// ECN bits of the traffic class.
    pub ecn: u8,
    pub ttl: u8,
    /// Whether the transport must verify its checksum itself.
    pub l4_checksum: ChecksumVerdict,
}

/// What a transport tells the IP layer about a packet to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub src: IpAddr,
    pub dst: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// DSCP and ECN.
    pub tos: u8,
    pub ttl: u8,
    /// Must not be fragmented on the way (path MTU discovery).
    pub dont_fragment: bool,
    pub l4: L4,
    /// TCP only: the payload is to be cut into segments of this size by the device.
    pub segment_size: Option<u16>,
}

/// Why a packet could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EgressError {
    /// The device takes no more now; try again at the next poll.
    NoRoom,
    /// No route to the destination.
    NoRoute,
    /// Larger than the path and not to be fragmented.
    TooLong,
}

/// An ICMP error about one of our packets, already matched to a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpError {
    NetworkUnreachable,
    HostUnreachable,
    ProtocolUnreachable,
    PortUnreachable,
    /// Fragmentation needed: next-hop MTU (0 when the router did not say).
    PacketTooBig {
        mtu: u16,
    },
    TimeExceeded,
    /// The neighbour did not answer ARP (not from the wire).
    NeighborFailed,
}

/// The way out for a transport: the interface, the device and the time, for one poll.
pub(crate) struct Egress<'a> {
    pub now: crate::time::Instant,
    interface: &'a mut Interface,
    sink: &'a mut dyn crate::link::FrameSink,
}

impl Egress<'_> {
    /// Largest IP packet towards `dst` that needs no fragmentation.
    pub(crate) fn path_mtu(&self, _dst: IpAddr) -> u16 {
        todo!()
    }

    /// Sends one packet of `len` bytes of transport header and payload, which `fill` writes.
    ///
    /// `fill` gets exactly `len` bytes with unspecified contents and leaves the transport's
    /// checksum field zero: the IP layer computes it, or leaves it to the device. A packet for a
    /// neighbour whose hardware address is not known yet is kept and goes out when it answers;
    /// that counts as sent. A packet longer than the path MTU is cut into fragments unless
    /// `dont_fragment` is set. Packets to our own addresses come back to this stack.
    ///
    /// # Errors
    ///
    /// `fill` was not called. `NoRoom`: keep the packet and come again.
    pub(crate) fn send(
        &mut self,
        _packet: &Outgoing,
        _len: usize,
        _fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), EgressError> {
        let _ = (&self.interface, &mut self.sink);
        todo!()
    }
}

/// Addresses, neighbours, routes, fragments and what waits to be sent.
#[derive(Debug)]
pub(crate) struct Interface {}
