//! The stack: one value that holds the interface and all sockets.
//!
//! # Order of calls
//!
//! A driver repeats: [`Stack::handle_frame`] for each received frame, [`Stack::poll`] once, then
//! [`Stack::take_event`] until it gives nothing. Socket calls come in between in any order; a
//! [`Stack::poll`] after them sends what they queued. [`Stack::next_deadline`] says when to poll
//! although nothing came.

use core::net::{IpAddr, SocketAddr};

use crate::bound::Binding;
use crate::config::{Secret, StackConfig, Steering};
use crate::event::Event;
use crate::ip::wire::{PROTOCOL_ICMP, PROTOCOL_TCP, PROTOCOL_UDP};
use crate::ip::{DropReason, IcmpError, IcmpReport, Interface, Origin, Packet, Received, Refusal};
use crate::link::{FrameSink, RxMeta};
use crate::socket::{Protocol, Readiness, SocketError, SocketId};
use crate::tcp::{BindError, Close, Reuse, State, Tcp};
use crate::time::Instant;
use crate::udp::{Matched, Udp, UdpVerdict};

pub use crate::steering::{flow_owner, steer, udp_owner};

mod tcp_calls;
mod udp_calls;

/// A TCP/IP stack.
#[derive(Debug)]
pub struct Stack {
    ip: Interface,
    tcp: Tcp,
    udp: Udp,
    steering: Steering,
}

/// What [`Stack::poll`] left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitStatus {
    /// All that could be sent was.
    Done,
    /// The device took no more: poll again soon.
    Blocked,
}

impl Stack {
    /// A stack with no sockets. It announces its address with the first poll.
    #[must_use]
    pub fn new(config: StackConfig, secret: &Secret, now: Instant) -> Self {
        let ip = Interface::new(&config, secret, now);
        let StackConfig { link, steering, tcp, udp, .. } = config;
        let tcp = Tcp::new(tcp, steering, link.mtu, secret);
        let udp = Udp::new(udp, steering, secret);
        Self { ip, tcp, udp, steering }
    }

    /// Takes one received frame (Ethernet header first, no FCS). What is wrong with it is counted.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8], meta: RxMeta) {
        self.handle(now, frame, meta, Origin::Wire);
    }

    /// Runs due timers and sends everything that is to be sent.
    pub fn poll(&mut self, now: Instant, sink: &mut dyn FrameSink) -> TransmitStatus {
        self.tcp.end_of_burst(now);
        self.ip.poll_timers(now);
        self.report_failed_neighbors(now);
        self.tcp.poll_timers(now);
        let mut room = self.transmit(now, sink);
        // What we send ourselves makes more to send. Bounded, so that two sockets that talk to
        // each other do not keep the device waiting.
        for _ in 0..LOOPBACK_ROUNDS {
            if !self.handle_looped(now) {
                break;
            }
            self.tcp.end_of_burst(now);
            room = self.transmit(now, sink);
        }
        if self.udp.has_blocked() && room && self.ip.egress(now, sink).has_room() {
            self.udp.unblock();
        }
        if room && self.ip.looped_len() == 0 && !self.udp.has_blocked() {
            TransmitStatus::Done
        } else {
            TransmitStatus::Blocked
        }
    }

    /// When to poll next although nothing happened.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.ip.next_deadline(), self.tcp.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Whether a poll would send something now.
    #[must_use]
    pub fn wants_poll(&self) -> bool {
        self.ip.wants_transmit() || self.tcp.wants_transmit() || self.udp.has_blocked()
    }

    /// Whether packets that count as sent wait for the hardware address of a neighbour: a driver
    /// that is about to stop waits for them, as they would be lost.
    #[must_use]
    pub fn awaits_neighbors(&self) -> bool {
        self.ip.awaits_neighbors()
    }

    /// The next readiness event, each socket at most once per change.
    pub fn take_event(&mut self) -> Option<Event> {
        self.tcp.take_event().or_else(|| self.udp.take_event())
    }

    /// A frame that turned out to be another stack's (a reassembled datagram, a packet to the own
    /// address): the driver hands it to [`Self::handle_frame`] of stack `.0`.
    pub fn take_misdirected(&mut self) -> Option<(u16, Vec<u8>)> {
        self.ip.take_misdirected()
    }

    /// Every counter with its name.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let ip = self.ip.counters.named();
        ip.chain(self.tcp.counters().named()).chain(self.udp.counters().named()).collect()
    }

    /// Every socket, for statistics.
    #[must_use]
    pub fn sockets(&self) -> Vec<SocketSummary> {
        let tcp = self.tcp.sockets().map(|(socket, local, remote, state)| SocketSummary {
            socket,
            protocol: Protocol::Tcp,
            local,
            remote,
            state: Some(state),
        });
        let udp = self.udp.sockets().map(|(socket, local, remote)| SocketSummary {
            socket,
            protocol: Protocol::Udp,
            local,
            remote,
            state: None,
        });
        tcp.chain(udp).collect()
    }

    /// The address packets to `remote` leave from, `None` without a route.
    #[must_use]
    pub fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        self.ip.routes().source_for(remote)
    }

    /// Which of the process's stacks a TCP flow from `local` to `remote` belongs to.
    #[must_use]
    pub fn owner_of(&self, local: SocketAddr, remote: SocketAddr) -> u16 {
        let Steering { key, count, .. } = self.steering;
        flow_owner(local, remote, key, count)
    }

    /// The largest IP packet that reaches `remote` whole, as far as is known.
    #[must_use]
    pub fn path_mtu(&self, now: Instant, remote: IpAddr) -> u16 {
        self.ip.path_mtu(now, remote)
    }

    /// Whether `address` is this stack's.
    #[must_use]
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.ip.routes().is_local(address)
    }

    /// What `poll` would say of the socket.
    #[must_use]
    pub fn readiness(&self, id: SocketId) -> Readiness {
        match id.protocol() {
            Protocol::Tcp => self.tcp.readiness(id),
            Protocol::Udp => self.udp.readiness(id),
        }
    }

    /// Takes the pending error (`SO_ERROR`).
    pub fn take_error(&mut self, id: SocketId) -> Option<SocketError> {
        match id.protocol() {
            Protocol::Tcp => self.tcp.take_error(id),
            Protocol::Udp => self.udp.take_error(id),
        }
    }

    /// Our end; port 0 when not bound.
    #[must_use]
    pub fn local_addr(&self, id: SocketId) -> Option<SocketAddr> {
        match id.protocol() {
            Protocol::Tcp => self.tcp.local_addr(id),
            Protocol::Udp => self.udp.local_addr(id),
        }
    }

    /// The peer's end, `None` when not connected.
    #[must_use]
    pub fn remote_addr(&self, id: SocketId) -> Option<SocketAddr> {
        match id.protocol() {
            Protocol::Tcp => self.tcp.remote_addr(id),
            Protocol::Udp => self.udp.remote_addr(id),
        }
    }

    /// Binds a TCP or UDP socket; port 0 picks a free one at random.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn bind(
        &mut self,
        id: SocketId,
        local: SocketAddr,
        reuse: Reuse,
    ) -> Result<SocketAddr, BindError> {
        self.bind_as(id, local.into(), reuse)
    }

    /// As [`Self::bind`], for a socket that may want one family alone.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn bind_as(
        &mut self,
        id: SocketId,
        local: Binding,
        reuse: Reuse,
    ) -> Result<SocketAddr, BindError> {
        let address = local.address.ip();
        let own = address.is_unspecified() || self.is_local(address);
        match id.protocol() {
            Protocol::Tcp if own => self.tcp.bind(id, local, reuse),
            // Binding to a broadcast address or a group selects what a UDP socket hears.
            Protocol::Udp
                if own || address.is_multicast() || self.ip.routes().is_broadcast(address) =>
            {
                self.udp.bind(id, local, reuse)
            }
            Protocol::Tcp | Protocol::Udp => Err(BindError::NotLocal),
        }
    }

    /// The program is done with the socket, TCP or UDP. The id is dead afterwards; what a TCP
    /// connection still has to send goes on as an orphan.
    pub fn close(&mut self, now: Instant, id: SocketId, how: Close) {
        match id.protocol() {
            Protocol::Tcp => self.tcp.close(now, id, how),
            Protocol::Udp => self.udp.close(id),
        }
    }

    /// Bytes `recv` would give now (TCP), or the size of the next datagram (UDP).
    #[must_use]
    pub fn unread(&self, id: SocketId) -> usize {
        match id.protocol() {
            Protocol::Tcp => self.tcp.unread(id),
            Protocol::Udp => self.udp.next_len(id).unwrap_or(0),
        }
    }

    fn handle(&mut self, now: Instant, frame: &[u8], meta: RxMeta, origin: Origin) {
        match self.ip.receive(now, frame, meta, origin) {
            Received::Nothing => {}
            Received::Packet(packet) => self.deliver(now, &packet),
            Received::Whole(whole) => {
                if let Some(packet) = self.ip.packet_of(&whole) {
                    self.deliver(now, &packet);
                }
                self.ip.recycle(whole);
            }
        }
    }

    fn deliver(&mut self, now: Instant, packet: &Packet<'_>) {
        match packet.protocol {
            // RFC 9293 section 3.9.2.3: TCP is between two hosts.
            PROTOCOL_TCP if !packet.meta.unicast => {
                self.ip.counters.drop_frame(DropReason::TcpNotUnicast);
            }
            PROTOCOL_TCP => {
                self.ip.counters.rx_tcp += 1;
                self.tcp.handle_segment(now, &packet.meta, packet.payload());
            }
            PROTOCOL_UDP => {
                self.ip.counters.rx_udp += 1;
                let verdict = self.udp.handle_datagram(&packet.meta, packet.payload());
                if verdict == UdpVerdict::NoPort {
                    self.ip.refuse(now, packet, Refusal::Port);
                }
            }
            PROTOCOL_ICMP => {
                if let Some(report) = self.ip.handle_icmp(packet) {
                    self.report(now, &report);
                }
            }
            _ => {
                self.ip.counters.drop_frame(DropReason::UnknownProtocol);
                self.ip.refuse(now, packet, Refusal::Protocol);
            }
        }
    }

    /// Tells a transport what became of a packet it sent.
    fn report(&mut self, now: Instant, report: &IcmpReport<'_>) {
        let &IcmpReport { src, dst, quoted, error, .. } = report;
        match report.protocol {
            PROTOCOL_TCP => self.tcp.handle_icmp(now, src, dst, quoted, error),
            PROTOCOL_UDP => {
                // Only a report about a datagram we may have sent changes the path.
                if self.udp.handle_icmp(report) == Matched::Yes
                    && let IcmpError::PacketTooBig { mtu } = error
                {
                    self.ip.note_path_mtu(now, dst, mtu);
                }
            }
            _ => {}
        }
    }

    fn report_failed_neighbors(&mut self, now: Instant) {
        while let Some(frame) = self.ip.take_failed() {
            if let Some(report) = self.ip.report_of(&frame) {
                self.report(now, &report);
            }
            self.ip.recycle_frame(frame);
        }
    }

    /// One pass of sending. `false`: the device took no more.
    fn transmit(&mut self, now: Instant, sink: &mut dyn FrameSink) -> bool {
        let mut out = self.ip.egress(now, sink);
        // The second time for questions to neighbours that TCP's packets raised.
        out.send_control() && self.tcp.poll_transmit(&mut out) && out.send_control()
    }

    /// Receives what we sent ourselves; whether there was anything.
    fn handle_looped(&mut self, now: Instant) -> bool {
        let meta = self.ip.loopback_meta();
        let mut any = false;
        // Only what is here now: answers wait for the next round.
        for _ in 0..self.ip.looped_len() {
            let Some(frame) = self.ip.take_looped() else { break };
            self.handle(now, frame.bytes(), meta, Origin::Loopback);
            self.ip.recycle_frame(frame);
            any = true;
        }
        any
    }
}

/// A line of the socket table.
#[derive(Clone, Copy, Debug)]
pub struct SocketSummary {
    /// The socket; for a `TIME_WAIT` record or an orphan one the program no longer has.
    pub socket: SocketId,
    /// Transport.
    pub protocol: Protocol,
    /// Our end.
    pub local: Option<SocketAddr>,
    /// The peer's end.
    pub remote: Option<SocketAddr>,
    /// TCP state.
    pub state: Option<State>,
}

/// Rounds of loopback in one poll: enough for a request and its answer through both sockets, with
/// acknowledgements.
const LOOPBACK_ROUNDS: usize = 8;
