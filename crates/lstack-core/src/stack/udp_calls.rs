//! The socket calls of UDP.

use core::net::SocketAddr;
use std::io::{IoSlice, IoSliceMut};

use super::Stack;
use crate::link::FrameSink;
use crate::socket::SocketId;
use crate::tcp::OpenError;
use crate::time::Instant;
use crate::udp::{Datagram, UdpOption, UdpRecvError, UdpSendError};

impl Stack {
    /// Opens a UDP socket.
    ///
    /// # Errors
    ///
    /// The limit of sockets is reached.
    pub fn udp_open(&mut self) -> Result<SocketId, OpenError> {
        self.udp.open()
    }

    /// Sets (`Some`) or dissolves (`None`) the peer.
    ///
    /// # Errors
    ///
    /// No route, no free port, or a broadcast address without permission.
    pub fn udp_connect(
        &mut self,
        id: SocketId,
        remote: Option<SocketAddr>,
    ) -> Result<(), UdpSendError> {
        let Some(remote) = remote else { return self.udp.disconnect(id) };
        let routes = self.ip.routes();
        let source = routes.source_for(remote.ip()).ok_or(UdpSendError::Unreachable)?;
        self.udp.connect(id, source, remote, routes.is_broadcast(remote.ip()))
    }

    /// Sends one datagram at once.
    ///
    /// # Errors
    ///
    /// See [`UdpSendError`]. After `WouldBlock` the socket becomes writable, with an event, at a
    /// later [`Self::poll`].
    pub fn udp_send(
        &mut self,
        now: Instant,
        id: SocketId,
        to: Option<SocketAddr>,
        data: &[IoSlice<'_>],
        sink: &mut dyn FrameSink,
    ) -> Result<usize, UdpSendError> {
        self.udp.send(id, to, data, &mut self.ip.egress(now, sink))
    }

    /// Takes (or with `peek` copies) the next datagram.
    ///
    /// # Errors
    ///
    /// See [`UdpRecvError`].
    pub fn udp_recv(
        &mut self,
        id: SocketId,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> Result<Datagram, UdpRecvError> {
        self.udp.recv(id, bufs, peek)
    }

    /// Changes a setting.
    pub fn udp_set_option(&mut self, id: SocketId, option: UdpOption) {
        self.udp.set_option(id, option);
    }
}
