//! The state of one UDP socket.

use core::net::{IpAddr, SocketAddr};

use super::demux::Claim;
use super::queue::ReceiveQueue;
use crate::bound::BoundTo;
use crate::event::EventMark;
use crate::ip::IcmpError;
use crate::socket::{Readiness, SocketError};

/// A UDP socket.
#[derive(Debug)]
pub(super) struct Socket {
    /// Its port, once it has one.
    pub claim: Option<Claim>,
    /// The program chose the port (or asked for any) with `bind`; it keeps it when it disconnects.
    pub port_is_chosen: bool,
    pub connection: Option<Connection>,
    pub settings: Settings,
    pub queue: ReceiveQueue,
    pub error: Option<SocketError>,
    pub read_shut: bool,
    pub write_shut: bool,
    /// The device had no room for its last datagram.
    pub blocked: bool,
    pub mark: EventMark,
}

/// Both ends of a connected socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub local: IpAddr,
    pub remote: SocketAddr,
}

/// What options change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub broadcast: bool,
    pub tos: u8,
    pub ttl: u8,
    pub dont_fragment: bool,
    pub recv_err: bool,
}

impl Socket {
    pub(super) fn new(recv_buffer: usize) -> Self {
        Self {
            claim: None,
            port_is_chosen: false,
            connection: None,
            settings: Settings {
                broadcast: false,
                tos: 0,
                ttl: DEFAULT_TTL,
                dont_fragment: false,
                recv_err: false,
            },
            queue: ReceiveQueue::new(recv_buffer),
            error: None,
            read_shut: false,
            write_shut: false,
            blocked: false,
            mark: EventMark::default(),
        }
    }

    /// Our end; unspecified with port 0 while there is none.
    pub(super) fn local_addr(&self) -> SocketAddr {
        let (address, port) =
            self.claim.map_or((BoundTo::Any, 0), |claim| (claim.address, claim.port));
        let local = self.connection.map_or(address.shown(), |connection| connection.local);
        SocketAddr::new(local, port)
    }

    /// As Linux's `datagram_poll`: an error shows as an error alone.
    pub(super) fn readiness(&self) -> Readiness {
        let mut level = Readiness::empty();
        level.set(Readiness::READABLE, !self.queue.is_empty() || self.read_shut);
        level.set(Readiness::READ_HANGUP, self.read_shut);
        level.set(Readiness::HANGUP, self.read_shut && self.write_shut);
        level.set(Readiness::WRITABLE, !self.blocked);
        level.set(Readiness::ERROR, self.error.is_some());
        level
    }
}

/// What a socket reports of an ICMP error.
pub(super) fn error_for(error: IcmpError) -> SocketError {
    match error {
        IcmpError::NetworkUnreachable => SocketError::NetworkUnreachable,
        // Linux reports all of these as EHOSTUNREACH.
        IcmpError::HostUnreachable | IcmpError::TimeExceeded | IcmpError::NeighborFailed => {
            SocketError::HostUnreachable
        }
        IcmpError::ProtocolUnreachable => SocketError::ProtocolUnreachable,
        IcmpError::PortUnreachable => SocketError::ConnectionRefused,
        IcmpError::PacketTooBig { .. } => SocketError::MessageTooLong,
    }
}

/// RFC 1700 and Linux.
const DEFAULT_TTL: u8 = 64;
