//! The way out: from a transport's packet to frames, or back into the stack.
//!
//! A packet that fits goes straight into the device's memory: headers in front, the transport
//! writes behind them, the checksum runs over bytes that are still in the cache. All others (to be
//! cut up, for many, for a neighbour not known yet, for ourselves) are written to a buffer first.

use core::net::{IpAddr, Ipv4Addr};

use super::buffer::Frame;
use super::checksum;
use super::ethernet::{BROADCAST, Mac, multicast_mac};
use super::ipv4::Ipv4Fields;
use super::route::NextHop;
use super::wire;
use super::{EgressError, Interface, Outgoing};
use crate::link::{FrameSink, L4, TxMeta};
use crate::time::Instant;

/// The way out for a transport: the interface, the device and the time, for one poll.
pub(crate) struct Egress<'a> {
    pub now: Instant,
    pub(super) interface: &'a mut Interface,
    pub(super) sink: &'a mut dyn FrameSink,
}

/// A packet to send with its addresses unpacked.
#[derive(Clone, Copy)]
struct Datagram<'p> {
    packet: &'p Outgoing,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    /// Of transport header and payload.
    len: usize,
}

/// Where the frames of a datagram go.
#[derive(Clone, Copy)]
enum Target {
    Wire(Mac),
    /// To wait for this neighbour.
    Held(Ipv4Addr),
}

impl Egress<'_> {
    /// Largest IP packet towards `dst` that needs no fragmentation.
    pub(crate) fn path_mtu(&self, dst: IpAddr) -> u16 {
        self.interface.path_mtu(self.now, dst)
    }

    /// Largest IP packet towards `dst` that may carry a `segment_size`; `None` where there is
    /// nobody to cut it up. Packets to ourselves need no cutting.
    pub(crate) fn segmentation_max(&self, dst: IpAddr) -> Option<usize> {
        if self.interface.routes.is_local(dst) {
            return Some(wire::IPV4_TOTAL_MAX);
        }
        let max = usize::try_from(self.interface.caps.tso_max?).unwrap_or(usize::MAX);
        Some(max.min(wire::IPV4_TOTAL_MAX))
    }

    /// The address packets to `dst` leave from.
    pub(crate) fn source_for(&self, dst: IpAddr) -> Option<IpAddr> {
        self.interface.routes.source_for(dst)
    }

    /// Whether packets to `dst` reach every host of the link.
    pub(crate) fn is_broadcast(&self, dst: IpAddr) -> bool {
        self.interface.routes.is_broadcast(dst)
    }

    /// Whether `address` is one of ours.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        self.interface.routes.is_local(address)
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
        packet: &Outgoing,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), EgressError> {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (packet.src, packet.dst) else {
            return Err(EgressError::NoRoute);
        };
        let datagram = Datagram { packet, src, dst, len };
        let hop = self.interface.routes.next_hop_v4(dst).ok_or(EgressError::NoRoute)?;
        let whole = datagram.fits(self.size_max(&datagram, hop))?;
        // What waits went first, and goes first.
        if !self.interface.flush_outbox(self.sink) {
            return Err(EgressError::NoRoom);
        }
        let target = match hop {
            NextHop::Local => return self.interface.loop_back(&datagram, fill),
            NextHop::Multicast => Target::Wire(multicast_mac(dst)),
            NextHop::Broadcast => Target::Wire(BROADCAST),
            NextHop::Neighbor(address) => match self.interface.resolve(self.now, address) {
                Some(mac) => Target::Wire(mac),
                None => Target::Held(address),
            },
        };
        match target {
            _ if hop == NextHop::Broadcast || !whole => {
                self.send_through_scratch(&datagram, hop, target, fill)
            }
            Target::Wire(mac) => self.send_in_place(&datagram, mac, fill),
            Target::Held(address) => {
                self.interface.hold(&datagram, address, fill);
                Ok(())
            }
        }
    }

    /// Largest packet that need not be cut up.
    fn size_max(&self, datagram: &Datagram<'_>, hop: NextHop) -> usize {
        if hop == NextHop::Local {
            return wire::IPV4_TOTAL_MAX;
        }
        match datagram.packet.segment_size {
            Some(_) => self.segmentation_max(datagram.dst.into()).unwrap_or(0),
            None => usize::from(self.interface.path_mtu_v4(self.now, datagram.dst)),
        }
    }

    fn send_in_place(
        &mut self,
        datagram: &Datagram<'_>,
        mac: Mac,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), EgressError> {
        let frame_len = self.interface.frame_len(datagram.len);
        let frame = self.sink.reserve(frame_len).ok_or(EgressError::NoRoom)?;
        let meta = self.interface.write_frame(frame, mac, datagram, Checksums::ByDevice, fill);
        self.sink.commit(meta);
        self.interface.counters.frames_tx += 1;
        Ok(())
    }

    /// Writes the datagram to a buffer and sends it from there, cut up if need be. What the device
    /// does not take in the middle of it waits in the outbox.
    fn send_through_scratch(
        &mut self,
        datagram: &Datagram<'_>,
        hop: NextHop,
        target: Target,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), EgressError> {
        let room_max = self.interface.ethernet.header_len() + usize::from(self.interface.caps.mtu);
        if matches!(target, Target::Wire(_)) && self.sink.reserve(room_max).is_none() {
            return Err(EgressError::NoRoom);
        }
        let mut scratch = self.interface.pool.take(datagram.len);
        let payload = &mut scratch[..datagram.len];
        fill(payload);
        datagram.write_checksum(payload);
        self.send_pieces(datagram, target, payload);
        // Broadcasts reach the sender's own sockets too.
        if hop == NextHop::Broadcast
            && self.interface.loop_back_copy(datagram, payload) == Err(EgressError::NoRoom)
        {
            self.interface.counters.tx_drop_loopback_full += 1;
        }
        self.interface.pool.put(scratch);
        Ok(())
    }

    fn send_pieces(&mut self, datagram: &Datagram<'_>, target: Target, payload: &[u8]) {
        let mtu = usize::from(self.interface.path_mtu_v4(self.now, datagram.dst));
        // Every piece but the last is a multiple of eight bytes (RFC 791).
        let piece_max = mtu.saturating_sub(wire::IPV4_LEN).max(8) & !7;
        let whole = payload.len() + wire::IPV4_LEN <= mtu;
        let mut fields = self.interface.fields(datagram, payload.len());
        if !whole {
            self.interface.counters.fragmented_tx += 1;
        }
        let mut offset = 0;
        for piece in payload.chunks(if whole { payload.len().max(1) } else { piece_max }) {
            let more = offset + piece.len() < payload.len();
            fields.total_len = wire_len(wire::IPV4_LEN + piece.len());
            fields.fragment = fragment_word(datagram.packet.dont_fragment, more, offset);
            self.send_piece(&fields, target, piece);
            offset += piece.len();
        }
    }

    fn send_piece(&mut self, fields: &Ipv4Fields, target: Target, piece: &[u8]) {
        let interface = &mut *self.interface;
        let len = interface.frame_len(piece.len());
        if let Target::Wire(mac) = target
            && interface.outbox.is_empty()
            && let Some(frame) = self.sink.reserve(len)
        {
            let meta = interface.write_piece(frame, mac, fields, piece);
            self.sink.commit(meta);
            interface.counters.frames_tx += 1;
            return;
        }
        let mut frame = interface.pool.take_frame(len, TxMeta::default());
        let mac = if let Target::Wire(mac) = target { mac } else { BROADCAST };
        frame.meta = interface.write_piece(frame.bytes_mut(), mac, fields, piece);
        match target {
            Target::Wire(_) => interface.outbox.push_back(frame),
            Target::Held(address) => interface.hold_frame(address, frame),
        }
    }

    /// Sends ARP, answers, and what waited for the device. `false`: it took no more.
    pub(crate) fn send_control(&mut self) -> bool {
        // Nearly always; a driver that spins asks millions of times a second.
        if self.interface.has_no_control(self.now) {
            return true;
        }
        if !self.interface.flush_outbox(self.sink) || !self.interface.send_arp(self.now, self.sink)
        {
            return false;
        }
        while let Some(reply) = self.interface.replies.pop_front() {
            let sent = self.send(&reply.outgoing, reply.len, |message| {
                message.copy_from_slice(&reply.buffer[..reply.len]);
            });
            match sent {
                Err(EgressError::NoRoom) => {
                    self.interface.replies.push_front(reply);
                    return false;
                }
                Err(EgressError::NoRoute | EgressError::TooLong) => {
                    self.interface.counters.tx_drop_control_unroutable += 1;
                }
                Ok(()) => {}
            }
            self.interface.reply_bytes -= reply.len;
            self.interface.pool.put(reply.buffer);
        }
        // Answers may have asked for neighbours.
        self.interface.send_arp(self.now, self.sink)
    }

    /// Whether the device takes a full-sized frame now.
    pub(crate) fn has_room(&mut self) -> bool {
        let len = self.interface.ethernet.header_len() + usize::from(self.interface.caps.mtu);
        self.interface.outbox.is_empty() && self.sink.reserve(len).is_some()
    }
}

/// Who computes the checksums of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checksums {
    /// The device, as far as it can.
    ByDevice,
    /// We do.
    Here,
    /// Nobody: the frame never leaves this stack.
    None,
}

impl Interface {
    fn frame_len(&self, payload_len: usize) -> usize {
        self.ethernet.header_len() + wire::IPV4_LEN + payload_len
    }

    fn fields(&mut self, datagram: &Datagram<'_>, payload_len: usize) -> Ipv4Fields {
        Ipv4Fields {
            total_len: wire_len(wire::IPV4_LEN + payload_len),
            tos: datagram.packet.tos,
            id: self.ids.next(datagram.dst, datagram.packet.protocol),
            fragment: fragment_word(datagram.packet.dont_fragment, false, 0),
            ttl: datagram.packet.ttl,
            protocol: datagram.packet.protocol,
            src: datagram.src,
            dst: datagram.dst,
        }
    }

    /// Writes all of a frame; `fill` writes the transport's part.
    fn write_frame(
        &mut self,
        frame: &mut [u8],
        mac: Mac,
        datagram: &Datagram<'_>,
        checksums: Checksums,
        fill: impl FnOnce(&mut [u8]),
    ) -> TxMeta {
        let segment_size =
            datagram.packet.segment_size.filter(|_| checksums == Checksums::ByDevice);
        let by_device = checksums == Checksums::ByDevice;
        // A device that cuts segments writes their IP headers.
        let offload_ip = by_device && (self.caps.tx_ip_checksum || segment_size.is_some());
        let offload_l4 = by_device
            && match datagram.packet.l4 {
                L4::Tcp { .. } => self.caps.tx_tcp_checksum || segment_size.is_some(),
                L4::Udp => self.caps.tx_udp_checksum,
                L4::Other => false,
            };
        let fields = self.fields(datagram, datagram.len);
        let l2_len = self.ethernet.header_len();
        self.ethernet.write(frame, mac, wire::ETHERTYPE_IPV4);
        let (header, payload) = frame[l2_len..].split_at_mut(wire::IPV4_LEN);
        header.copy_from_slice(&fields.to_bytes(!offload_ip && checksums != Checksums::None));
        fill(payload);
        if offload_l4 {
            datagram.write_pseudo_sum(payload, segment_size.is_some());
        } else if checksums != Checksums::None {
            datagram.write_checksum(payload);
        }
        TxMeta {
            l2_len: self.l2_len(),
            l3_len: IPV4_LEN_U16,
            ipv6: false,
            l4: datagram.packet.l4,
            offload_ip_checksum: offload_ip,
            offload_l4_checksum: offload_l4,
            segment_size,
        }
    }

    /// Writes a frame around a piece of a datagram whose checksum is complete.
    fn write_piece(&self, frame: &mut [u8], mac: Mac, fields: &Ipv4Fields, piece: &[u8]) -> TxMeta {
        let l2_len = self.ethernet.header_len();
        self.ethernet.write(frame, mac, wire::ETHERTYPE_IPV4);
        let (header, payload) = frame[l2_len..].split_at_mut(wire::IPV4_LEN);
        header.copy_from_slice(&fields.to_bytes(!self.caps.tx_ip_checksum));
        payload.copy_from_slice(piece);
        TxMeta {
            l2_len: self.l2_len(),
            l3_len: IPV4_LEN_U16,
            offload_ip_checksum: self.caps.tx_ip_checksum,
            ..TxMeta::default()
        }
    }

    fn hold(&mut self, datagram: &Datagram<'_>, address: Ipv4Addr, fill: impl FnOnce(&mut [u8])) {
        let mut frame = self.pool.take_frame(self.frame_len(datagram.len), TxMeta::default());
        let bytes = frame.bytes_mut();
        frame.meta = self.write_frame(bytes, BROADCAST, datagram, Checksums::ByDevice, fill);
        self.hold_frame(address, frame);
    }

    fn hold_frame(&mut self, address: Ipv4Addr, frame: Frame) {
        let Self { neighbors, pool, counters, .. } = self;
        neighbors.hold(address, frame, pool, counters);
    }

    fn resolve(&mut self, now: Instant, address: Ipv4Addr) -> Option<Mac> {
        let Self { neighbors, pool, counters, .. } = self;
        neighbors.resolve(now, address, pool, counters)
    }

    /// A packet to ourselves.
    fn loop_back(
        &mut self,
        datagram: &Datagram<'_>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), EgressError> {
        let len = self.frame_len(datagram.len);
        if self.loopback.len() >= LOOPBACK_FRAMES_MAX
            || self.loopback_bytes + len > LOOPBACK_BYTES_MAX
        {
            return Err(EgressError::NoRoom);
        }
        // Another stack of the process cannot know that the packet never left it.
        let checksums = if self.steering.count > 1 { Checksums::Here } else { Checksums::None };
        let mut frame = self.pool.take_frame(len, TxMeta::default());
        let mac = self.ethernet.mac();
        frame.meta = self.write_frame(frame.bytes_mut(), mac, datagram, checksums, fill);
        self.loopback_bytes += len;
        self.loopback.push_back(frame);
        self.counters.frames_looped += 1;
        Ok(())
    }

    fn loop_back_copy(
        &mut self,
        datagram: &Datagram<'_>,
        payload: &[u8],
    ) -> Result<(), EgressError> {
        self.loop_back(datagram, |copy| {
            copy.copy_from_slice(payload);
            // It is computed again if anybody needs it.
            if let Some(field) = datagram.checksum_field(copy) {
                field.fill(0);
            }
        })
    }

    /// Gives the device what waited for it. `false`: it took no more.
    pub(super) fn flush_outbox(&mut self, sink: &mut dyn FrameSink) -> bool {
        while let Some(frame) = self.outbox.pop_front() {
            let Some(room) = sink.reserve(frame.bytes().len()) else {
                self.outbox.push_front(frame);
                return false;
            };
            room.copy_from_slice(frame.bytes());
            sink.commit(frame.meta);
            self.counters.frames_tx += 1;
            self.pool.put_frame(frame);
        }
        true
    }
}

impl Datagram<'_> {
    /// Whether the datagram goes out in one packet of at most `max` bytes.
    fn fits(&self, max: usize) -> Result<bool, EgressError> {
        let total_len = wire::IPV4_LEN + self.len;
        if total_len <= max {
            return Ok(true);
        }
        let uncuttable = self.packet.dont_fragment || self.packet.segment_size.is_some();
        if uncuttable || total_len > wire::IPV4_TOTAL_MAX {
            return Err(EgressError::TooLong);
        }
        Ok(false)
    }

    fn checksum_field<'b>(&self, payload: &'b mut [u8]) -> Option<&'b mut [u8]> {
        match self.packet.l4 {
            L4::Tcp { .. } => payload.get_mut(16..18),
            L4::Udp => payload.get_mut(6..8),
            L4::Other => None,
        }
    }

    fn write_checksum(&self, payload: &mut [u8]) {
        let protocol = self.packet.protocol;
        let sum = checksum::pseudo_header_v4(self.src, self.dst, protocol, payload.len());
        let value = match (self.packet.l4, sum.add_bytes(payload).finish()) {
            // Zero would mean "not computed" (RFC 768).
            (L4::Udp, 0) => 0xffff,
            (_, value) => value,
        };
        if let Some(field) = self.checksum_field(payload) {
            field.copy_from_slice(&value.to_be_bytes());
        }
    }

    /// What a device wants to find in the checksum field. One that cuts segments adds the length
    /// of each itself.
    fn write_pseudo_sum(&self, payload: &mut [u8], segmented: bool) {
        let len = if segmented { 0 } else { payload.len() };
        let sum = checksum::pseudo_header_v4(self.src, self.dst, self.packet.protocol, len);
        if let Some(field) = self.checksum_field(payload) {
            field.copy_from_slice(&sum.fold().to_be_bytes());
        }
    }
}

/// Flags and offset as on the wire; `offset` in bytes.
fn fragment_word(dont_fragment: bool, more: bool, offset: usize) -> u16 {
    let flags = if dont_fragment { wire::DONT_FRAGMENT } else { 0 }
        | if more { wire::MORE_FRAGMENTS } else { 0 };
    flags | (wire_len(offset) / 8)
}

fn wire_len(len: usize) -> u16 {
    u16::try_from(len).expect("Datagram::fits has limited the packet to 65,535 bytes")
}

const IPV4_LEN_U16: u16 = 20;

/// Packets to ourselves that wait for the next poll. More would not make a transfer faster, less
/// than a largest datagram would stop it.
const LOOPBACK_BYTES_MAX: usize = 4 << 20;
const LOOPBACK_FRAMES_MAX: usize = 4_096;
