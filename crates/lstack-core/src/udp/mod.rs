//! UDP sockets, RFC 768.

use core::net::{IpAddr, SocketAddr};
use std::io::{IoSlice, IoSliceMut};

use crate::config::{Secret, Steering, UdpConfig};
use crate::counters::counters;
use crate::event::Event;
use crate::ip::{Egress, IcmpError, PacketMeta};
use crate::socket::{Readiness, SocketError, SocketId};
use crate::tcp::{BindError, OpenError, Reuse};

/// All UDP sockets of a stack.
#[derive(Debug)]
pub(crate) struct Udp {
    counters: UdpCounters,
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
    /// UDP's counters.
    pub struct UdpCounters {
        /// Datagrams delivered to a socket.
        udp_datagrams_rx,
        /// Datagrams sent.
        udp_datagrams_tx,
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

impl Udp {
    pub(crate) fn new(_config: UdpConfig, _steering: Steering, _secret: &Secret) -> Self {
        todo!()
    }

    pub(crate) fn open(&mut self) -> Result<SocketId, OpenError> {
        todo!()
    }

    /// As [`crate::tcp::Tcp::bind`]. A port chosen for port 0 belongs to this stack
    /// (see [`crate::stack::steer`]).
    pub(crate) fn bind(
        &mut self,
        _id: SocketId,
        _local: SocketAddr,
        _reuse: Reuse,
    ) -> Result<SocketAddr, BindError> {
        todo!()
    }

    /// Connects, `None` dissolves. `source` as for TCP.
    pub(crate) fn connect(
        &mut self,
        _id: SocketId,
        _source: IpAddr,
        _remote: Option<SocketAddr>,
    ) -> Result<(), UdpSendError> {
        todo!()
    }

    /// Sends one datagram at once, in fragments if need be.
    pub(crate) fn send(
        &mut self,
        _id: SocketId,
        _to: Option<SocketAddr>,
        _data: &[IoSlice<'_>],
        _out: &mut Egress<'_>,
    ) -> Result<usize, UdpSendError> {
        todo!()
    }

    /// Takes (or with `peek` copies) the next datagram.
    pub(crate) fn recv(
        &mut self,
        _id: SocketId,
        _bufs: &mut [IoSliceMut<'_>],
        _peek: bool,
    ) -> Result<Datagram, UdpRecvError> {
        todo!()
    }

    pub(crate) fn close(&mut self, _id: SocketId) {
        todo!()
    }

    pub(crate) fn readiness(&self, _id: SocketId) -> Readiness {
        todo!()
    }

    pub(crate) fn take_error(&mut self, _id: SocketId) -> Option<SocketError> {
        todo!()
    }

    pub(crate) fn local_addr(&self, _id: SocketId) -> Option<SocketAddr> {
        todo!()
    }

    pub(crate) fn remote_addr(&self, _id: SocketId) -> Option<SocketAddr> {
        todo!()
    }

    /// Size of the next datagram (`FIONREAD`), `None` when there is none.
    pub(crate) fn next_len(&self, _id: SocketId) -> Option<usize> {
        todo!()
    }

    pub(crate) fn set_option(&mut self, _id: SocketId, _option: UdpOption) {
        todo!()
    }

    pub(crate) fn counters(&self) -> &UdpCounters {
        &self.counters
    }

    /// A datagram for one of our addresses: header and all that follows it in the IP packet.
    pub(crate) fn handle_datagram(&mut self, _meta: &PacketMeta, _datagram: &[u8]) -> UdpVerdict {
        todo!()
    }

    /// As [`crate::tcp::Tcp::handle_icmp`].
    pub(crate) fn handle_icmp(
        &mut self,
        _src: IpAddr,
        _dst: IpAddr,
        _quoted: &[u8],
        _error: IcmpError,
    ) {
        todo!()
    }

    pub(crate) fn take_event(&mut self) -> Option<Event> {
        todo!()
    }
}
