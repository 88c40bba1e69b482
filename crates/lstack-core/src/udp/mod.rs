//! UDP sockets, RFC 768.

use core::net::{IpAddr, SocketAddr};
use std::io::{IoSlice, IoSliceMut};

use crate::bound::{Binding, BoundTo};
use crate::config::{Secret, Steering, UdpConfig};
use crate::counters::counters;
use crate::event::{Event, EventQueue};
use crate::ip::wire::PROTOCOL_UDP;
use crate::ip::{Egress, EgressError, IcmpReport, Outgoing, PacketMeta, Severity};
use crate::link::L4;
use crate::socket::{Protocol, Readiness, SocketError, SocketId};
use crate::tcp::{BindError, NotConnected, OpenError, Reuse, Shutdown};

use self::demux::{Claim, Demux, Slot};
use self::queue::{Record, Spares};
use self::socket::{Connection, Settings, Socket};

mod demux;
mod queue;
mod socket;

/// All UDP sockets of a stack.
#[derive(Debug)]
pub(crate) struct Udp {
    config: UdpConfig,
    sockets: Vec<Entry>,
    free: Vec<Slot>,
    demux: Demux,
    spares: Spares,
    events: EventQueue,
    /// Sockets whose last datagram the device had no room for.
    blocked: Vec<SocketId>,
    counters: UdpCounters,
}

/// A place in the table of sockets.
#[derive(Debug)]
struct Entry {
    /// How often the place has been used before.
    generation: u32,
    socket: Option<Socket>,
}

/// A datagram as `recv` gives it.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// Bytes copied to the caller.
    pub copied: usize,
    /// Bytes the datagram had; more than `copied` when the buffer was too small.
    pub len: usize,
    /// Sender.
    pub from: SocketAddr,
    /// Our address it was sent to.
    pub to: IpAddr,
    /// Time to live it arrived with.
    pub ttl: u8,
    /// Traffic class it arrived with.
    pub tos: u8,
}

/// Sending a datagram failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UdpSendError {
    /// No such socket.
    #[error("no such socket")]
    NoSocket,
    /// The device takes no more now (`EAGAIN`, or wait).
    #[error("no room")]
    WouldBlock,
    /// Neither an address in the call nor a connected peer (`EDESTADDRREQ`).
    #[error("destination address required")]
    NoDestination,
    /// Longer than 65,507 bytes, or than the path when it must not be fragmented (`EMSGSIZE`).
    #[error("message too long")]
    TooLong,
    /// No route (`ENETUNREACH`).
    #[error("network is unreachable")]
    Unreachable,
    /// Broadcast without `SO_BROADCAST` (`EACCES`).
    #[error("broadcast not allowed")]
    BroadcastDenied,
    /// Shut down for sending (`EPIPE`).
    #[error("broken pipe")]
    BrokenPipe,
    /// No port is free (`EAGAIN` on Linux).
    #[error("no free port")]
    NoFreePort,
    /// A pending error, which is now taken.
    #[error(transparent)]
    Failed(SocketError),
}

/// Receiving a datagram failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UdpRecvError {
    /// Nothing there (`EAGAIN`, or wait).
    #[error("no data")]
    WouldBlock,
    /// Shut down for receiving: end of file.
    #[error("shut down")]
    Shutdown,
    /// A pending error, which is now taken.
    #[error(transparent)]
    Failed(SocketError),
}

/// A setting of one UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpOption {
    /// `SO_BROADCAST`.
    Broadcast(bool),
    /// Receive queue, bytes of payload (`SO_RCVBUF` without Linux's doubling).
    RecvBuffer(usize),
    /// `IP_TOS`.
    Tos(u8),
    /// `IP_TTL`.
    Ttl(u8),
    /// `IP_MTU_DISCOVER` = `IP_PMTUDISC_DO`: never fragment.
    DontFragment(bool),
    /// `IP_RECVERR`: also unconnected sockets get ICMP errors.
    RecvErr(bool),
}

counters! {
    /// UDP's counters. Every datagram received is in `udp_datagrams_rx` or in one `udp_drop_*`.
    pub struct UdpCounters {
        /// Datagrams delivered to a socket, or to several (broadcast).
        udp_datagrams_rx,
        /// Datagrams sent.
        udp_datagrams_tx,
        /// Shorter than a header, or than its length field says.
        udp_drop_malformed,
        /// Wrong checksum.
        udp_drop_bad_checksum,
        /// No socket has the port; answered with port unreachable.
        udp_drop_no_port,
        /// The socket's queue was full.
        udp_drop_queue_full,
        /// Errors reported to sockets.
        udp_errors_delivered,
        /// Sends that the device had no room for.
        udp_sends_blocked,
    }
}

/// Whether the datagram found a socket; if not, the IP layer answers with port unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UdpVerdict {
    /// Delivered, or dropped with a counter.
    Handled,
    /// No socket has the port.
    NoPort,
}

/// Whether an ICMP error was about a socket of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matched {
    Yes,
    No,
}

impl Udp {
    pub(crate) fn new(config: UdpConfig, steering: Steering, secret: &Secret) -> Self {
        Self {
            config,
            sockets: Vec::new(),
            free: Vec::new(),
            demux: Demux::new(steering, secret),
            spares: Spares::default(),
            events: EventQueue::default(),
            blocked: Vec::new(),
            counters: UdpCounters::default(),
        }
    }

    pub(crate) fn open(&mut self) -> Result<SocketId, OpenError> {
        if self.sockets.len() - self.free.len() >= self.config.max_sockets {
            return Err(OpenError::LimitReached);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot =
                    Slot::try_from(self.sockets.len()).map_err(|_| OpenError::LimitReached)?;
                self.sockets.push(Entry { generation: 0, socket: None });
                slot
            }
        };
        let entry = &mut self.sockets[slot as usize];
        entry.socket = Some(Socket::new(self.config.recv_buffer));
        Ok(SocketId::new(Protocol::Udp, slot, entry.generation))
    }

    /// As [`crate::tcp::Tcp::bind`]. A port chosen for port 0 belongs to this stack
    /// (see [`crate::stack::steer`]).
    pub(crate) fn bind(
        &mut self,
        id: SocketId,
        local: Binding,
        reuse: Reuse,
    ) -> Result<SocketAddr, BindError> {
        let socket = self.socket(id).ok_or(BindError::NoSocket)?;
        if socket.claim.is_some() {
            return Err(BindError::AlreadyBound);
        }
        let port = match local.address.port() {
            0 => self.demux.free_port().ok_or(BindError::NoFreePort)?,
            port => port,
        };
        let claim = Claim { slot: slot_of(id), address: local.into(), port, reuse };
        if !self.demux.claim(claim) {
            return Err(BindError::InUse);
        }
        let socket = self.socket_mut(id).ok_or(BindError::NoSocket)?;
        socket.claim = Some(claim);
        socket.port_is_chosen = true;
        Ok(SocketAddr::new(local.address.ip(), port))
    }

    /// Connects to `remote` from `source` (used where the socket is not bound to an address).
    /// Datagrams in the queue stay, as in Linux.
    pub(crate) fn connect(
        &mut self,
        id: SocketId,
        source: IpAddr,
        remote: SocketAddr,
        remote_is_broadcast: bool,
    ) -> Result<(), UdpSendError> {
        let socket = self.socket(id).ok_or(UdpSendError::NoSocket)?;
        if remote_is_broadcast && !socket.settings.broadcast {
            return Err(UdpSendError::BroadcastDenied);
        }
        let claim = self.claim_any_port(id)?;
        self.dissolve(id);
        let local = claim.address.address().unwrap_or(source);
        self.demux.connect(claim, local, remote);
        if let Some(socket) = self.socket_mut(id) {
            socket.connection = Some(Connection { local, remote });
        }
        Ok(())
    }

    /// Undoes [`Self::connect`]. A port that nobody asked for by name is free again, as in Linux.
    pub(crate) fn disconnect(&mut self, id: SocketId) -> Result<(), UdpSendError> {
        self.socket(id).ok_or(UdpSendError::NoSocket)?;
        self.dissolve(id);
        if let Some(socket) = self.socket_mut(id)
            && !socket.port_is_chosen
            && let Some(claim) = socket.claim.take()
        {
            self.demux.release(claim);
        }
        Ok(())
    }

    /// Sends one datagram at once, in fragments if need be.
    pub(crate) fn send(
        &mut self,
        id: SocketId,
        to: Option<SocketAddr>,
        data: &[IoSlice<'_>],
        out: &mut Egress<'_>,
    ) -> Result<usize, UdpSendError> {
        let socket = self.socket_mut(id).ok_or(UdpSendError::NoSocket)?;
        if let Some(error) = socket.error.take() {
            return Err(UdpSendError::Failed(error));
        }
        if socket.write_shut {
            return Err(UdpSendError::BrokenPipe);
        }
        let (connection, settings) = (socket.connection, socket.settings);
        let remote = to.or(connection.map(|c| c.remote)).ok_or(UdpSendError::NoDestination)?;
        let len: usize = data.iter().map(|slice| slice.len()).sum();
        if len > PAYLOAD_MAX {
            return Err(UdpSendError::TooLong);
        }
        if !settings.broadcast && out.is_broadcast(remote.ip()) {
            return Err(UdpSendError::BroadcastDenied);
        }
        let claim = match socket.claim {
            Some(claim) => claim,
            None => self.claim_any_port(id)?,
        };
        let bound = connection.map(|c| c.local).or(claim.address.address());
        // A socket bound to a broadcast address or a group still sends as this host.
        let bound = bound.filter(|&bound| out.is_local(bound));
        let src = bound.or_else(|| out.source_for(remote.ip()));
        let packet = settings.packet(src.ok_or(UdpSendError::Unreachable)?, remote.ip());
        let sent = out.send(&packet, HEADER_LEN + len, |datagram| {
            write_datagram(datagram, claim.port, remote.port(), data);
        });
        match sent {
            Ok(()) => {
                self.counters.udp_datagrams_tx += 1;
                Ok(len)
            }
            Err(EgressError::NoRoute) => Err(UdpSendError::Unreachable),
            Err(EgressError::TooLong) => Err(UdpSendError::TooLong),
            Err(EgressError::NoRoom) => {
                self.counters.udp_sends_blocked += 1;
                self.block(id);
                Err(UdpSendError::WouldBlock)
            }
        }
    }

    /// Takes (or with `peek` copies) the next datagram.
    pub(crate) fn recv(
        &mut self,
        id: SocketId,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> Result<Datagram, UdpRecvError> {
        let Self { sockets, spares, .. } = self;
        let Some(socket) = find_mut(sockets, id) else { return Err(UdpRecvError::Shutdown) };
        if let Some(error) = socket.error.take() {
            return Err(UdpRecvError::Failed(error));
        }
        let Some(&record) = socket.queue.front() else {
            let shut = socket.read_shut;
            return Err(if shut { UdpRecvError::Shutdown } else { UdpRecvError::WouldBlock });
        };
        let copied = socket.queue.copy_front(bufs);
        if !peek {
            socket.queue.pop(spares);
        }
        let Record { len, from, to, ttl, tos } = record;
        Ok(Datagram { copied, len, from, to, ttl, tos })
    }

    /// Ends one or both directions, also where the socket is not connected (Linux then complains
    /// and does it all the same). As on Linux, datagrams still come in afterwards; only an empty
    /// queue reads as the end.
    pub(crate) fn shutdown(&mut self, id: SocketId, how: Shutdown) -> Result<(), NotConnected> {
        let Self { sockets, events, .. } = self;
        let socket = find_mut(sockets, id).ok_or(NotConnected)?;
        socket.read_shut |= matches!(how, Shutdown::Read | Shutdown::Both);
        socket.write_shut |= matches!(how, Shutdown::Write | Shutdown::Both);
        let level = socket.readiness();
        events.post(id, &mut socket.mark, level);
        socket.connection.map(|_| ()).ok_or(NotConnected)
    }

    pub(crate) fn close(&mut self, id: SocketId) {
        self.dissolve(id);
        let Some(entry) = self.sockets.get_mut(id.slot()) else { return };
        if entry.generation != id.generation() {
            return;
        }
        let Some(mut socket) = entry.socket.take() else { return };
        entry.generation = entry.generation.wrapping_add(1);
        socket.queue.clear(&mut self.spares);
        if let Some(claim) = socket.claim {
            self.demux.release(claim);
        }
        self.free.push(slot_of(id));
    }

    pub(crate) fn readiness(&self, id: SocketId) -> Readiness {
        self.socket(id).map_or(Readiness::empty(), Socket::readiness)
    }

    pub(crate) fn take_error(&mut self, id: SocketId) -> Option<SocketError> {
        self.socket_mut(id)?.error.take()
    }

    pub(crate) fn local_addr(&self, id: SocketId) -> Option<SocketAddr> {
        self.socket(id).map(Socket::local_addr)
    }

    pub(crate) fn remote_addr(&self, id: SocketId) -> Option<SocketAddr> {
        self.socket(id)?.connection.map(|connection| connection.remote)
    }

    /// Size of the next datagram (`FIONREAD`), `None` when there is none.
    pub(crate) fn next_len(&self, id: SocketId) -> Option<usize> {
        self.socket(id)?.queue.front().map(|record| record.len)
    }

    pub(crate) fn set_option(&mut self, id: SocketId, option: UdpOption) {
        let limit_max = self.config.recv_buffer_max;
        let Some(socket) = self.socket_mut(id) else { return };
        let settings = &mut socket.settings;
        match option {
            UdpOption::Broadcast(on) => settings.broadcast = on,
            UdpOption::RecvBuffer(bytes) => socket.queue.set_limit(bytes.min(limit_max)),
            UdpOption::Tos(tos) => settings.tos = tos,
            UdpOption::Ttl(ttl) => settings.ttl = ttl,
            UdpOption::DontFragment(on) => settings.dont_fragment = on,
            UdpOption::RecvErr(on) => settings.recv_err = on,
        }
    }

    /// Every socket, for statistics: id, local, remote.
    pub(crate) fn sockets(
        &self,
    ) -> impl Iterator<Item = (SocketId, Option<SocketAddr>, Option<SocketAddr>)> + '_ {
        self.sockets.iter().enumerate().filter_map(|(slot, entry)| {
            let socket = entry.socket.as_ref()?;
            let id = SocketId::new(Protocol::Udp, Slot::try_from(slot).ok()?, entry.generation);
            Some((id, Some(socket.local_addr()), socket.connection.map(|c| c.remote)))
        })
    }

    pub(crate) fn counters(&self) -> &UdpCounters {
        &self.counters
    }

    /// A datagram for one of our addresses: header and all that follows it in the IP packet.
    pub(crate) fn handle_datagram(&mut self, meta: &PacketMeta, packet: &[u8]) -> UdpVerdict {
        let Some(datagram) = ReceivedDatagram::parse(meta, packet) else {
            self.counters.udp_drop_malformed += 1;
            return UdpVerdict::Handled;
        };
        // A sender that computed no checksum says so with zero (RFC 768).
        if datagram.checksum != 0 && !meta.is_intact(PROTOCOL_UDP, datagram.bytes) {
            self.counters.udp_drop_bad_checksum += 1;
            return UdpVerdict::Handled;
        }
        let delivery = if meta.unicast {
            match self.demux.find(datagram.to, datagram.record.from) {
                Some(slot) => self.deliver(slot, &datagram),
                None => Delivery::NoSocket,
            }
        } else {
            self.deliver_to_all(&datagram)
        };
        self.count(delivery);
        match delivery {
            Delivery::NoSocket => UdpVerdict::NoPort,
            _ => UdpVerdict::Handled,
        }
    }

    /// An ICMP error about a datagram we sent.
    pub(crate) fn handle_icmp(&mut self, report: &IcmpReport<'_>) -> Matched {
        let &[s0, s1, d0, d1, ..] = report.quoted else { return Matched::No };
        let local = SocketAddr::new(report.src, u16::from_be_bytes([s0, s1]));
        let remote = SocketAddr::new(report.dst, u16::from_be_bytes([d0, d1]));
        let Some(slot) = self.demux.find(local, remote) else { return Matched::No };
        let Self { sockets, events, counters, .. } = self;
        let entry = &mut sockets[slot as usize];
        let Some(socket) = &mut entry.socket else { return Matched::No };
        // Linux's `__udp4_lib_err`.
        let hears = socket.settings.recv_err
            || report.severity == Severity::Hard && socket.connection.is_some();
        if hears {
            socket.error = Some(socket::error_for(report.error));
            counters.udp_errors_delivered += 1;
            let id = SocketId::new(Protocol::Udp, slot, entry.generation);
            events.post(id, &mut socket.mark, Readiness::ERROR | Readiness::WRITABLE);
        }
        Matched::Yes
    }

    /// Whether sockets wait for room in the device.
    pub(crate) fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// The device has room again.
    pub(crate) fn unblock(&mut self) {
        let Self { sockets, events, blocked, .. } = self;
        for id in blocked.drain(..) {
            if let Some(socket) = find_mut(sockets, id) {
                socket.blocked = false;
                events.post(id, &mut socket.mark, Readiness::WRITABLE);
            }
        }
    }

    pub(crate) fn take_event(&mut self) -> Option<Event> {
        while let Some(id) = self.events.pop() {
            if let Some(socket) = self.socket_mut(id) {
                let edges = socket.mark.take();
                return Some(Event { socket: id, level: socket.readiness(), edges });
            }
        }
        None
    }

    fn deliver(&mut self, slot: Slot, datagram: &ReceivedDatagram<'_>) -> Delivery {
        let Self { sockets, events, spares, .. } = self;
        let entry = &mut sockets[slot as usize];
        let Some(socket) = &mut entry.socket else { return Delivery::NoSocket };
        if !socket.queue.push(datagram.record, datagram.payload(), spares) {
            return Delivery::QueueFull;
        }
        let id = SocketId::new(Protocol::Udp, slot, entry.generation);
        events.post(id, &mut socket.mark, Readiness::READABLE);
        Delivery::Queued
    }

    /// Gives a copy to each socket of the port. The datagram counts once, by its best outcome.
    fn deliver_to_all(&mut self, datagram: &ReceivedDatagram<'_>) -> Delivery {
        let slots = self.demux.find_all(datagram.to, datagram.record.from);
        let outcomes = slots.into_iter().map(|slot| self.deliver(slot, datagram));
        outcomes.max().unwrap_or(Delivery::NoSocket)
    }

    fn count(&mut self, delivery: Delivery) {
        let counter = match delivery {
            Delivery::Queued => &mut self.counters.udp_datagrams_rx,
            Delivery::QueueFull => &mut self.counters.udp_drop_queue_full,
            Delivery::NoSocket => &mut self.counters.udp_drop_no_port,
        };
        *counter += 1;
    }

    /// The socket's port, or a free one.
    fn claim_any_port(&mut self, id: SocketId) -> Result<Claim, UdpSendError> {
        let socket = self.socket(id).ok_or(UdpSendError::NoSocket)?;
        if let Some(claim) = socket.claim {
            return Ok(claim);
        }
        let port = self.demux.free_port().ok_or(UdpSendError::NoFreePort)?;
        let address = BoundTo::Any;
        let claim = Claim { slot: slot_of(id), address, port, reuse: Reuse::default() };
        if !self.demux.claim(claim) {
            return Err(UdpSendError::NoFreePort);
        }
        if let Some(socket) = self.socket_mut(id) {
            socket.claim = Some(claim);
        }
        Ok(claim)
    }

    fn dissolve(&mut self, id: SocketId) {
        let Self { sockets, demux, .. } = self;
        let Some(socket) = find_mut(sockets, id) else { return };
        if let (Some(claim), Some(connection)) = (socket.claim, socket.connection.take()) {
            demux.dissolve(claim, connection.local, connection.remote);
        }
    }

    fn block(&mut self, id: SocketId) {
        let Self { sockets, blocked, .. } = self;
        if let Some(socket) = find_mut(sockets, id)
            && !core::mem::replace(&mut socket.blocked, true)
        {
            blocked.push(id);
        }
    }

    fn socket(&self, id: SocketId) -> Option<&Socket> {
        let entry = self.sockets.get(id.slot())?;
        entry.socket.as_ref().filter(|_| entry.generation == id.generation())
    }

    fn socket_mut(&mut self, id: SocketId) -> Option<&mut Socket> {
        find_mut(&mut self.sockets, id)
    }
}

/// What became of a datagram, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Delivery {
    NoSocket,
    QueueFull,
    Queued,
}

/// A datagram on its way to sockets.
struct ReceivedDatagram<'p> {
    /// Header and payload.
    bytes: &'p [u8],
    checksum: u16,
    to: SocketAddr,
    record: Record,
}

impl<'p> ReceivedDatagram<'p> {
    fn parse(meta: &PacketMeta, packet: &'p [u8]) -> Option<Self> {
        let &[s0, s1, d0, d1, l0, l1, c0, c1, ..] = packet else { return None };
        // What follows the datagram in its packet is nobody's.
        let bytes = packet.get(..usize::from(u16::from_be_bytes([l0, l1])))?;
        let len = bytes.len().checked_sub(HEADER_LEN)?;
        let from = SocketAddr::new(meta.src, u16::from_be_bytes([s0, s1]));
        Some(Self {
            bytes,
            checksum: u16::from_be_bytes([c0, c1]),
            to: SocketAddr::new(meta.dst, u16::from_be_bytes([d0, d1])),
            record: Record { len, from, to: meta.dst, ttl: meta.ttl, tos: meta.tos },
        })
    }

    fn payload(&self) -> &'p [u8] {
        &self.bytes[HEADER_LEN..]
    }
}

fn write_datagram(datagram: &mut [u8], src: u16, dst: u16, data: &[IoSlice<'_>]) {
    let len = u16::try_from(datagram.len()).expect("PAYLOAD_MAX limits the datagram");
    let (header, mut payload) = datagram.split_at_mut(HEADER_LEN);
    header[0..2].copy_from_slice(&src.to_be_bytes());
    header[2..4].copy_from_slice(&dst.to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6..8].fill(0);
    for slice in data {
        let (room, rest) = payload.split_at_mut(slice.len());
        room.copy_from_slice(slice);
        payload = rest;
    }
}

fn find_mut(sockets: &mut [Entry], id: SocketId) -> Option<&mut Socket> {
    let entry = sockets.get_mut(id.slot())?;
    entry.socket.as_mut().filter(|_| entry.generation == id.generation())
}

fn slot_of(id: SocketId) -> Slot {
    Slot::try_from(id.slot()).expect("an id is made from a slot")
}

impl Settings {
    fn packet(&self, src: IpAddr, dst: IpAddr) -> Outgoing {
        Outgoing {
            src,
            dst,
            protocol: PROTOCOL_UDP,
            tos: self.tos,
            ttl: if dst.is_multicast() { MULTICAST_TTL } else { self.ttl },
            dont_fragment: self.dont_fragment,
            l4: L4::Udp,
            segment_size: None,
        }
    }
}

/// Header, bytes.
const HEADER_LEN: usize = 8;

/// Largest payload in an IPv4 packet.
const PAYLOAD_MAX: usize = 65_507;

/// RFC 1112 section 6.1: groups are local unless the program says otherwise.
const MULTICAST_TTL: u8 = 1;
