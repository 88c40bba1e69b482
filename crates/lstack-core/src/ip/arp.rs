//! ARP (RFC 826), address announcements and conflicts (RFC 5227). The slow path: formats are
//! smoltcp's.

use core::net::Ipv4Addr;
use core::time::Duration;

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};

use super::Interface;
use super::counters::DropReason;
use super::ethernet::{BROADCAST, Mac};
use super::neighbor::{Request, Source};
use super::wire;
use crate::link::{FrameSink, TxMeta};
use crate::time::Instant;

/// Announcements still to be made after the stack's start, RFC 5227 section 2.3: a peer that held
/// our address under another hardware address learns the new one.
#[derive(Debug)]
pub(crate) struct Announcements {
    left: u8,
    due: Instant,
}

impl Announcements {
    pub(crate) fn starting(now: Instant) -> Self {
        Self { left: ANNOUNCEMENTS, due: now }
    }

    /// For a stack that leaves it to another one.
    pub(crate) fn none() -> Self {
        Self { left: 0, due: Instant::ZERO }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        (self.left > 0).then_some(self.due)
    }

    fn made(&mut self, now: Instant) {
        self.left -= 1;
        self.due = now + ANNOUNCEMENT_INTERVAL;
    }
}

impl Interface {
    /// Learns from an ARP packet and answers it if it asks for us.
    pub(super) fn handle_arp(&mut self, now: Instant, payload: &[u8]) -> Result<(), DropReason> {
        let own = self.routes.address_v4().ok_or(DropReason::Ipv4Off)?;
        let arp = ArpPacket::new_checked(payload)
            .and_then(|packet| ArpRepr::parse(&packet))
            .map_err(|_| DropReason::BadArp)?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: EthernetAddress(mac),
            source_protocol_addr: sender,
            target_protocol_addr: target,
            ..
        } = arp
        else {
            return Err(DropReason::BadArp);
        };
        // A hardware address that stands for many, or for none, must never enter the table.
        if mac[0] & 1 != 0 || mac == [0; 6] || mac == self.ethernet.mac() {
            return Err(DropReason::BadArp);
        }
        self.counters.rx_arp += 1;
        if sender == own {
            self.counters.arp_conflicts += 1;
            return Ok(());
        }
        let asks_us = operation == ArpOperation::Request && target == own;
        // An unspecified sender only tests whether an address is free (RFC 5227 section 2.1.1).
        if self.routes.is_on_link(sender) {
            let source = if asks_us { Source::Asker } else { Source::Announcement };
            let Self { neighbors, outbox, counters, .. } = self;
            neighbors.learn(now, sender, mac, source, outbox, counters);
        }
        if asks_us && self.steering.index == 0 {
            self.answer_arp(mac, sender, own);
        }
        Ok(())
    }

    fn answer_arp(&mut self, asker: Mac, asker_address: Ipv4Addr, own: Ipv4Addr) {
        if self.outbox.len() >= OUTBOX_FOR_CONTROL {
            // Counted as an answer that failed; the asker will ask again.
            self.counters.arp_replies_dropped += 1;
            return;
        }
        let mut frame = self.pool.take_frame(self.arp_frame_len(), self.arp_meta());
        let reply = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: EthernetAddress(self.ethernet.mac()),
            source_protocol_addr: own,
            target_hardware_addr: EthernetAddress(asker),
            target_protocol_addr: asker_address,
        };
        self.write_arp(frame.bytes_mut(), asker, reply);
        self.outbox.push_back(frame);
        self.counters.arp_replies_tx += 1;
    }

    /// Sends what the neighbour table wants to know and what is to be announced. `false`: the
    /// device took no more.
    pub(super) fn send_arp(&mut self, now: Instant, sink: &mut dyn FrameSink) -> bool {
        let Some(own) = self.routes.address_v4() else { return true };
        while let Some(request) = self.neighbors.take_request() {
            if !self.send_arp_request(own, request, sink) {
                self.neighbors.untake_request(request);
                return false;
            }
        }
        if self.announcements.next_deadline().is_some_and(|due| due <= now) {
            if !self.send_arp_request(own, Request { target: own, mac: None }, sink) {
                return false;
            }
            self.announcements.made(now);
        }
        true
    }

    fn send_arp_request(
        &mut self,
        own: Ipv4Addr,
        request: Request,
        sink: &mut dyn FrameSink,
    ) -> bool {
        let Some(frame) = sink.reserve(self.arp_frame_len()) else { return false };
        let repr = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: EthernetAddress(self.ethernet.mac()),
            source_protocol_addr: own,
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: request.target,
        };
        self.write_arp(frame, request.mac.unwrap_or(BROADCAST), repr);
        sink.commit(self.arp_meta());
        self.counters.frames_tx += 1;
        self.counters.arp_requests_tx += 1;
        true
    }

    fn write_arp(&self, frame: &mut [u8], dst: Mac, repr: ArpRepr) {
        self.ethernet.write(frame, dst, wire::ETHERTYPE_ARP);
        let body = &mut frame[self.ethernet.header_len()..];
        repr.emit(&mut ArpPacket::new_unchecked(body));
    }

    fn arp_frame_len(&self) -> usize {
        self.ethernet.header_len() + ARP_LEN
    }

    fn arp_meta(&self) -> TxMeta {
        TxMeta { l2_len: self.l2_len(), ..TxMeta::default() }
    }
}

/// ARP for Ethernet and IPv4, bytes.
pub(super) const ARP_LEN: usize = 28;

/// RFC 5227's ANNOUNCE_NUM and ANNOUNCE_INTERVAL.
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCEMENT_INTERVAL: Duration = Duration::from_secs(2);

/// Answers that may wait for the device: several receive bursts' worth, so that a flood of
/// requests between two polls is answered in full.
pub(super) const OUTBOX_FOR_CONTROL: usize = 1_024;
