//! Ethernet, ARP, IP, ICMP, fragments and routing: everything below the transports.
//!
//! [`Interface`] holds the state, [`Interface::receive`] is the way in, [`Egress`] the way out. It
//! is owned and called by [`crate::Stack`] only. Files: `wire` and `checksum` (formats and
//! arithmetic), `ethernet`, `arp`, `neighbor` (the link), `route`, `path_mtu`, `id` (what is known
//! of destinations), `ipv4`, `icmp`, `reassembly`, `egress` (packets), `buffer` (their memory).
//! IPv6 has a type for its addresses everywhere and no packets yet.

mod arp;
mod buffer;
pub(crate) mod checksum;
mod counters;
mod egress;
mod ethernet;
mod icmp;
mod id;
mod ipv4;
mod neighbor;
mod path_mtu;
pub(crate) mod probe;
mod reassembly;
mod route;
pub(crate) mod wire;

use core::net::IpAddr;
use std::collections::VecDeque;

use crate::config::{Secret, StackConfig, Steering};
use crate::link::{ChecksumVerdict, FrameSink, L4, LinkCaps, RxMeta};
use crate::steering::steer_ipv4;
use crate::time::Instant;

pub(crate) use self::counters::DropReason;
pub use self::counters::IpCounters;
pub(crate) use self::egress::Egress;
pub(crate) use self::icmp::{IcmpReport, Refusal, Severity};
pub(crate) use self::reassembly::Whole;

use self::arp::Announcements;
use self::buffer::{Buffer, BufferPool, Frame};
use self::ethernet::Ethernet;
use self::icmp::RateLimit;
use self::id::PacketIds;
use self::ipv4::Ipv4Header;
use self::neighbor::Neighbors;
use self::path_mtu::PathMtus;
use self::reassembly::Reassembly;
use self::route::{Destination, Routes};

/// What the IP layer tells a transport about a received packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketMeta {
    pub src: IpAddr,
    pub dst: IpAddr,
    /// Traffic class: DSCP and ECN.
    pub tos: u8,
    pub ttl: u8,
    /// Whether the transport must verify its checksum itself.
    pub l4_checksum: ChecksumVerdict,
    /// Sent to us alone, by its IP and by its hardware address.
    pub unicast: bool,
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

/// A received packet for one of our addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'f> {
    pub meta: PacketMeta,
    pub protocol: u8,
    /// The IP packet without the link's padding.
    bytes: &'f [u8],
    header_len: usize,
}

/// What [`Interface::receive`] made of a frame.
#[derive(Debug)]
pub(crate) enum Received<'f> {
    /// Answered, kept, or dropped and counted.
    Nothing,
    /// A packet, in the frame.
    Packet(Packet<'f>),
    /// A packet put together from fragments; its memory goes back with [`Interface::recycle`].
    Whole(Whole),
}

/// Where a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Wire,
    /// This stack sent it to itself, or another one of the process to it.
    Loopback,
}

/// Addresses, neighbours, routes, fragments and what waits to be sent.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) counters: IpCounters,
    caps: LinkCaps,
    steering: Steering,
    ethernet: Ethernet,
    routes: Routes,
    neighbors: Neighbors,
    announcements: Announcements,
    path_mtus: PathMtus,
    ids: PacketIds,
    reassembly: Reassembly,
    icmp_limit: RateLimit,
    pool: BufferPool,
    /// Frames that wait for the device: answers to ARP, packets whose neighbour has answered, the
    /// rest of a datagram in fragments.
    outbox: VecDeque<Frame>,
    /// ICMP messages to be routed at the next poll.
    replies: VecDeque<Reply>,
    reply_bytes: usize,
    /// Packets to ourselves.
    loopback: VecDeque<Frame>,
    loopback_bytes: usize,
    /// Frames that another stack of the process owns.
    misdirected: VecDeque<(u16, Vec<u8>)>,
}

#[derive(Debug)]
struct Reply {
    outgoing: Outgoing,
    buffer: Buffer,
    len: usize,
}

impl Interface {
    pub(crate) fn new(config: &StackConfig, secret: &Secret, now: Instant) -> Self {
        let announces = config.ipv4.is_some() && config.steering.index == 0;
        Self {
            counters: IpCounters::default(),
            caps: config.link,
            steering: config.steering,
            ethernet: Ethernet::new(config.link.mac, config.vlan),
            routes: Routes::new(config.ipv4),
            neighbors: Neighbors::new(config.neighbors_max, secret),
            announcements: if announces {
                Announcements::starting(now)
            } else {
                Announcements::none()
            },
            path_mtus: PathMtus::default(),
            ids: PacketIds::new(secret, config.steering),
            reassembly: Reassembly::new(secret),
            icmp_limit: RateLimit::new(now),
            pool: BufferPool::default(),
            outbox: VecDeque::new(),
            replies: VecDeque::new(),
            reply_bytes: 0,
            loopback: VecDeque::new(),
            loopback_bytes: 0,
            misdirected: VecDeque::new(),
        }
    }

    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// The way out until the end of the borrow.
    pub(crate) fn egress<'a>(
        &'a mut self,
        now: Instant,
        sink: &'a mut dyn FrameSink,
    ) -> Egress<'a> {
        Egress { now, interface: self, sink }
    }

    /// Largest IP packet towards `dst` that needs no fragmentation.
    pub(crate) fn path_mtu(&self, now: Instant, dst: IpAddr) -> u16 {
        match dst {
            IpAddr::V4(_) if self.routes.is_local(dst) => u16::MAX,
            IpAddr::V4(dst) => self.path_mtu_v4(now, dst),
            IpAddr::V6(_) => self.caps.mtu,
        }
    }

    /// A router says that packets of ours to `dst` may be no larger than `mtu`.
    pub(crate) fn note_path_mtu(&mut self, now: Instant, dst: IpAddr, mtu: u16) {
        if let IpAddr::V4(dst) = dst {
            self.path_mtus.note(now, dst, mtu);
        }
    }

    /// Takes a frame as far as the transports.
    pub(crate) fn receive<'f>(
        &mut self,
        now: Instant,
        frame: &'f [u8],
        rx: RxMeta,
        origin: Origin,
    ) -> Received<'f> {
        self.counters.frames_rx += 1;
        self.try_receive(now, frame, rx, origin).unwrap_or_else(|reason| {
            self.counters.drop_frame(reason);
            Received::Nothing
        })
    }

    fn try_receive<'f>(
        &mut self,
        now: Instant,
        frame: &'f [u8],
        rx: RxMeta,
        origin: Origin,
    ) -> Result<Received<'f>, DropReason> {
        let link = self.ethernet.parse(frame, rx.vlan)?;
        match link.ethertype {
            wire::ETHERTYPE_IPV4 => {
                // A frame from ourselves that did not come from the device was handed on by
                // another stack of the process.
                let handed_on = self.steering.count > 1 && link.unicast && link.from_us;
                let origin = if handed_on { Origin::Loopback } else { origin };
                self.receive_ipv4(now, link.payload, rx, link.unicast, origin)
            }
            wire::ETHERTYPE_ARP => {
                self.handle_arp(now, link.payload)?;
                Ok(Received::Nothing)
            }
            wire::ETHERTYPE_IPV6 => Err(DropReason::Ipv6),
            _ => Err(DropReason::UnknownEthertype),
        }
    }

    fn receive_ipv4<'f>(
        &mut self,
        now: Instant,
        padded: &'f [u8],
        rx: RxMeta,
        link_unicast: bool,
        origin: Origin,
    ) -> Result<Received<'f>, DropReason> {
        if self.routes.address_v4().is_none() {
            return Err(DropReason::Ipv4Off);
        }
        let header = Ipv4Header::parse(padded, rx.ip_checksum)?;
        let destination = self.routes.classify_v4(header.dst);
        match destination {
            Destination::Own | Destination::Broadcast | Destination::AllHosts => {}
            Destination::OtherGroup => return Err(DropReason::NotJoined),
            Destination::Other => return Err(DropReason::OtherAddress),
        }
        if origin == Origin::Wire && !self.routes.is_valid_source_v4(header.src, destination) {
            return Err(DropReason::BadSource);
        }
        let bytes = &padded[..header.total_len];
        if header.is_fragment() {
            return self.receive_fragment(now, &header, bytes);
        }
        let unicast = link_unicast && destination == Destination::Own;
        Ok(Received::Packet(Packet::new(&header, bytes, rx.l4_checksum, unicast)))
    }

    fn receive_fragment<'f>(
        &mut self,
        now: Instant,
        header: &Ipv4Header,
        bytes: &[u8],
    ) -> Result<Received<'f>, DropReason> {
        let Self { reassembly, pool, counters, .. } = self;
        let Some(whole) = reassembly.insert(now, header, bytes, pool, counters)? else {
            self.counters.rx_fragments_held += 1;
            return Ok(Received::Nothing);
        };
        if self.hand_on(whole.packet()) {
            self.recycle(whole);
            return Ok(Received::Nothing);
        }
        Ok(Received::Whole(whole))
    }

    /// The packet of a reassembled datagram.
    pub(crate) fn packet_of<'w>(&self, whole: &'w Whole) -> Option<Packet<'w>> {
        let bytes = whole.packet();
        let header = Ipv4Header::parse(bytes, ChecksumVerdict::Good).ok()?;
        let unicast = self.routes.classify_v4(header.dst) == Destination::Own;
        // Devices do not verify the checksum of a datagram in pieces.
        Some(Packet::new(&header, bytes, ChecksumVerdict::Unknown, unicast))
    }

    pub(crate) fn recycle(&mut self, whole: Whole) {
        self.pool.put(whole.into_buffer());
    }

    /// Gives a packet to the stack that owns it. `false`: it is this one.
    fn hand_on(&mut self, packet: &[u8]) -> bool {
        let owner = steer_ipv4(packet, self.steering.key, self.steering.count);
        if owner == self.steering.index {
            return false;
        }
        self.counters.rx_misdirected += 1;
        if self.misdirected.len() < MISDIRECTED_MAX {
            let l2_len = self.ethernet.header_len();
            let mut frame = vec![0; l2_len + packet.len()];
            self.ethernet.write(&mut frame, self.ethernet.mac(), wire::ETHERTYPE_IPV4);
            frame[l2_len..].copy_from_slice(packet);
            self.misdirected.push_back((owner, frame));
        } else {
            self.counters.misdirected_overflow += 1;
        }
        true
    }

    pub(crate) fn take_misdirected(&mut self) -> Option<(u16, Vec<u8>)> {
        self.misdirected.pop_front()
    }

    /// Whether packets wait for the hardware address of a neighbour.
    pub(crate) fn awaits_neighbors(&self) -> bool {
        self.neighbors.has_pending()
    }

    /// How many packets to ourselves wait.
    pub(crate) fn looped_len(&self) -> usize {
        self.loopback.len()
    }

    /// The next packet to ourselves; the caller gives it to [`Self::receive`] and back with
    /// [`Self::recycle_frame`]. Those of other stacks are handed on here.
    pub(crate) fn take_looped(&mut self) -> Option<Frame> {
        while let Some(frame) = self.loopback.pop_front() {
            self.loopback_bytes -= frame.bytes().len();
            if !self.hand_on(&frame.bytes()[self.ethernet.header_len()..]) {
                return Some(frame);
            }
            // It does not come to `receive`, which counts all others.
            self.counters.frames_rx += 1;
            self.pool.put_frame(frame);
        }
        None
    }

    pub(crate) fn recycle_frame(&mut self, frame: Frame) {
        self.pool.put_frame(frame);
    }

    /// What the device would say about a frame that never left the stack.
    pub(crate) fn loopback_meta(&self) -> RxMeta {
        RxMeta {
            ip_checksum: ChecksumVerdict::Good,
            l4_checksum: ChecksumVerdict::Good,
            vlan: None,
        }
    }

    /// Runs the timers that are due.
    pub(crate) fn poll_timers(&mut self, now: Instant) {
        self.neighbors.poll(now, &mut self.counters);
        self.reassembly.poll(now, &mut self.pool, &mut self.counters);
    }

    /// The next packet of ours whose neighbour did not answer; its frame is in `frame`.
    pub(crate) fn take_failed(&mut self) -> Option<Frame> {
        self.neighbors.take_failed()
    }

    /// Reads a frame of our own as if ICMP had quoted it.
    pub(crate) fn report_of<'p>(&self, frame: &'p Frame) -> Option<IcmpReport<'p>> {
        let packet = &frame.bytes()[self.ethernet.header_len()..];
        let header = Ipv4Header::parse_start(packet)?;
        (header.fragment_offset() == 0).then(|| IcmpReport {
            protocol: header.protocol,
            src: header.src.into(),
            dst: header.dst.into(),
            quoted: &packet[header.header_len..],
            error: IcmpError::NeighborFailed,
            severity: Severity::Soft,
        })
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        [
            self.neighbors.next_deadline(),
            self.reassembly.next_deadline(),
            self.announcements.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether a poll would send something.
    pub(crate) fn wants_transmit(&self) -> bool {
        !self.outbox.is_empty()
            || !self.replies.is_empty()
            || !self.loopback.is_empty()
            || self.neighbors.wants_transmit()
    }

    /// Whether there is nothing to send beside what the transports have.
    fn has_no_control(&self, now: Instant) -> bool {
        self.outbox.is_empty()
            && self.replies.is_empty()
            && !self.neighbors.wants_transmit()
            && self.announcements.next_deadline().is_none_or(|due| due > now)
    }

    fn path_mtu_v4(&self, now: Instant, dst: core::net::Ipv4Addr) -> u16 {
        self.path_mtus.get(now, dst, self.caps.mtu)
    }

    fn l2_len(&self) -> u8 {
        u8::try_from(self.ethernet.header_len()).expect("14 or 18")
    }
}

impl<'f> Packet<'f> {
    fn new(
        header: &Ipv4Header,
        bytes: &'f [u8],
        l4_checksum: ChecksumVerdict,
        unicast: bool,
    ) -> Self {
        let meta = PacketMeta {
            src: header.src.into(),
            dst: header.dst.into(),
            tos: header.tos,
            ttl: header.ttl,
            l4_checksum,
            unicast,
        };
        Self { meta, protocol: header.protocol, bytes, header_len: header.header_len }
    }

    /// What follows the IP header.
    pub(crate) fn payload(&self) -> &'f [u8] {
        &self.bytes[self.header_len..]
    }
}

impl PacketMeta {
    /// Whether the checksum of a TCP or UDP packet is right, by the device's word or by our own
    /// computation. UDP's "not computed" is the caller's business.
    pub(crate) fn is_intact(&self, protocol: u8, packet: &[u8]) -> bool {
        match self.l4_checksum {
            ChecksumVerdict::Good => true,
            ChecksumVerdict::Bad => false,
            ChecksumVerdict::Unknown => {
                checksum::pseudo_header(self.src, self.dst, protocol, packet.len())
                    .add_bytes(packet)
                    .is_valid()
            }
        }
    }
}

/// Frames for other stacks that wait to be collected: a few bursts.
const MISDIRECTED_MAX: usize = 1_024;
