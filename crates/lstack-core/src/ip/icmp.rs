//! ICMP, RFC 792 and RFC 1122 section 3.2.2: echo is answered, errors about our packets go to the
//! transports, errors about packets of others are sent at a bounded rate.

use core::net::{IpAddr, Ipv4Addr};

use super::checksum;
use super::counters::DropReason;
use super::ipv4::Ipv4Header;
use super::route::Destination;
use super::wire;
use super::{IcmpError, Interface, Outgoing, Packet, Reply};
use crate::link::L4;
use crate::time::Instant;

/// An ICMP error about a packet we sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IcmpReport<'p> {
    /// Protocol, ends and first bytes of our packet.
    pub protocol: u8,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub quoted: &'p [u8],
    pub error: IcmpError,
    /// Linux's `icmp_err_convert`: whether a connected datagram socket hears of it.
    pub severity: Severity,
}

/// Whether an ICMP error is likely to pass by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// It may (a route is down).
    Soft,
    /// It will not.
    Hard,
}

/// Why a packet to us was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Protocol,
    Port,
}

/// Allows so many events per second, and a burst.
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// Time credit in microseconds; an event costs `COST_MICROS`.
    credit_micros: u64,
    last: Instant,
}

impl Interface {
    /// Answers an ICMP message to us, or says what it reports.
    pub(crate) fn handle_icmp<'p>(&mut self, packet: &Packet<'p>) -> Option<IcmpReport<'p>> {
        let outcome = self.try_handle_icmp(packet);
        outcome.unwrap_or_else(|reason| {
            self.counters.drop_frame(reason);
            None
        })
    }

    fn try_handle_icmp<'p>(
        &mut self,
        packet: &Packet<'p>,
    ) -> Result<Option<IcmpReport<'p>>, DropReason> {
        let message = packet.payload();
        if message.len() < wire::ICMP_LEN {
            return Err(DropReason::BadIcmp);
        }
        if !checksum::sum(message).is_valid() {
            return Err(DropReason::BadIcmpChecksum);
        }
        match message[0] {
            wire::ICMP_ECHO_REQUEST => self.answer_echo(packet, message).map(|()| None),
            kind if wire::is_icmp_error(kind) => {
                let report = self.read_report(message)?;
                self.counters.rx_icmp_errors += 1;
                Ok(Some(report))
            }
            _ => Err(DropReason::IcmpIgnored),
        }
    }

    fn answer_echo(&mut self, packet: &Packet<'_>, message: &[u8]) -> Result<(), DropReason> {
        // RFC 1122 section 3.2.2.6 lets us ignore echo to many; Linux does.
        if !packet.meta.unicast {
            return Err(DropReason::IcmpIgnored);
        }
        let outgoing = Outgoing {
            src: packet.meta.dst,
            dst: packet.meta.src,
            protocol: wire::PROTOCOL_ICMP,
            tos: packet.meta.tos,
            ttl: DEFAULT_TTL,
            dont_fragment: false,
            l4: L4::Other,
            segment_size: None,
        };
        let queued = self.queue_reply(outgoing, message.len(), |reply| {
            reply.copy_from_slice(message);
            reply[0] = wire::ICMP_ECHO_REPLY;
            write_checksum(reply);
        });
        if !queued {
            return Err(DropReason::ControlFull);
        }
        self.counters.rx_icmp_echo += 1;
        Ok(())
    }

    fn read_report<'p>(&self, message: &'p [u8]) -> Result<IcmpReport<'p>, DropReason> {
        let (error, severity) = classify(message).ok_or(DropReason::IcmpIgnored)?;
        let packet = &message[wire::ICMP_LEN..];
        let header = Ipv4Header::parse_start(packet).ok_or(DropReason::BadIcmp)?;
        let quoted = &packet[header.header_len..];
        // Only what we may have sent, and only where the ports can be seen.
        let ours = self.routes.classify_v4(header.src) == Destination::Own;
        if !ours || header.fragment_offset() != 0 || quoted.len() < QUOTED_MIN {
            return Err(DropReason::BadIcmp);
        }
        Ok(IcmpReport {
            protocol: header.protocol,
            src: header.src.into(),
            dst: header.dst.into(),
            quoted,
            error,
            severity,
        })
    }

    /// Tells the sender of `packet` that nobody here takes it, where RFC 1122 section 3.2.2 and
    /// the rate limit allow it.
    pub(crate) fn refuse(&mut self, now: Instant, packet: &Packet<'_>, refusal: Refusal) {
        if !packet.meta.unicast || !is_host(packet.meta.src) {
            return;
        }
        if !self.icmp_limit.allow(now) {
            self.counters.icmp_errors_suppressed += 1;
            return;
        }
        let code = match refusal {
            Refusal::Protocol => CODE_PROTOCOL,
            Refusal::Port => CODE_PORT,
        };
        let quote = &packet.bytes[..packet.bytes.len().min(QUOTE_MAX)];
        let outgoing = Outgoing {
            src: packet.meta.dst,
            dst: packet.meta.src,
            protocol: wire::PROTOCOL_ICMP,
            tos: TOS_INTERNETWORK_CONTROL,
            ttl: DEFAULT_TTL,
            dont_fragment: false,
            l4: L4::Other,
            segment_size: None,
        };
        let queued = self.queue_reply(outgoing, wire::ICMP_LEN + quote.len(), |message| {
            message[..wire::ICMP_LEN].fill(0);
            message[0] = wire::ICMP_UNREACHABLE;
            message[1] = code;
            message[wire::ICMP_LEN..].copy_from_slice(quote);
            write_checksum(message);
        });
        if queued {
            self.counters.icmp_errors_tx += 1;
        } else {
            self.counters.icmp_errors_suppressed += 1;
        }
    }

    /// Keeps a message of `len` bytes for the next poll. `false`: too many wait.
    fn queue_reply(
        &mut self,
        outgoing: Outgoing,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.replies.len() >= REPLIES_MAX || self.reply_bytes + len > REPLY_BYTES_MAX {
            return false;
        }
        let mut buffer = self.pool.take(len);
        write(&mut buffer[..len]);
        self.reply_bytes += len;
        self.replies.push_back(Reply { outgoing, buffer, len });
        true
    }
}

/// What an ICMP error says, `None` where it asks nothing of us.
fn classify(message: &[u8]) -> Option<(IcmpError, Severity)> {
    let next_hop_mtu = u16::from_be_bytes([message[6], message[7]]);
    let verdict = match (message[0], message[1]) {
        (wire::ICMP_TIME_EXCEEDED, _) => (IcmpError::TimeExceeded, Severity::Soft),
        (wire::ICMP_UNREACHABLE, CODE_PROTOCOL) => (IcmpError::ProtocolUnreachable, Severity::Hard),
        (wire::ICMP_UNREACHABLE, CODE_PORT) => (IcmpError::PortUnreachable, Severity::Hard),
        (wire::ICMP_UNREACHABLE, CODE_TOO_BIG) => {
            (IcmpError::PacketTooBig { mtu: next_hop_mtu }, Severity::Hard)
        }
        // Network and host unreachable, for a route or for a type of service; source route failed.
        (wire::ICMP_UNREACHABLE, 0 | 11) => (IcmpError::NetworkUnreachable, Severity::Soft),
        (wire::ICMP_UNREACHABLE, 1 | 5 | 12) => (IcmpError::HostUnreachable, Severity::Soft),
        // Unknown, isolated or prohibited.
        (wire::ICMP_UNREACHABLE, 6 | 9) => (IcmpError::NetworkUnreachable, Severity::Hard),
        (wire::ICMP_UNREACHABLE, 7 | 8 | 10 | 13..=15) => {
            (IcmpError::HostUnreachable, Severity::Hard)
        }
        // RFC 6633 and common sense: quenches and redirects are not followed.
        _ => return None,
    };
    Some(verdict)
}

fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_unspecified() && address != Ipv4Addr::BROADCAST,
        IpAddr::V6(address) => !address.is_unspecified() && !address.is_multicast(),
    }
}

fn write_checksum(message: &mut [u8]) {
    message[2..4].fill(0);
    let value = checksum::sum(message).finish();
    message[2..4].copy_from_slice(&value.to_be_bytes());
}

impl RateLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self { credit_micros: BURST * COST_MICROS, last: now }
    }

    fn allow(&mut self, now: Instant) -> bool {
        let passed = now.as_micros().saturating_sub(self.last.as_micros());
        self.last = now;
        self.credit_micros = (self.credit_micros + passed).min(BURST * COST_MICROS);
        match self.credit_micros.checked_sub(COST_MICROS) {
            Some(rest) => {
                self.credit_micros = rest;
                true
            }
            None => false,
        }
    }
}

const CODE_PROTOCOL: u8 = 2;
const CODE_PORT: u8 = 3;
const CODE_TOO_BIG: u8 = 4;

/// RFC 1700 and Linux.
pub(crate) const DEFAULT_TTL: u8 = 64;

/// Precedence of routing traffic; Linux's choice for ICMP errors.
const TOS_INTERNETWORK_CONTROL: u8 = 0xc0;

/// RFC 792: eight bytes of the transport header are always quoted.
const QUOTED_MIN: usize = 8;

/// RFC 1812 section 4.3.2.3: the whole message is at most 576 bytes.
const QUOTE_MAX: usize = 576 - wire::IPV4_LEN - wire::ICMP_LEN;

/// Answers that wait for the device, in number and in bytes of message: several receive bursts.
const REPLIES_MAX: usize = 1_024;
const REPLY_BYTES_MAX: usize = 4 << 20;

/// Linux's `icmp_msgs_per_sec` (1,000) and `icmp_msgs_burst`.
const COST_MICROS: u64 = 1_000;
const BURST: u64 = 50;

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::RateLimit;
    use crate::time::Instant;

    #[test]
    fn bursts_pass_and_floods_are_cut_to_the_rate() {
        let start = Instant::from_millis(10);
        let mut limit = RateLimit::new(start);
        assert_eq!((0..1_000).filter(|_| limit.allow(start)).count(), 50);
        let mut now = start;
        let mut passed = 0;
        for _ in 0..100_000 {
            now += Duration::from_micros(10);
            passed += u32::from(limit.allow(now));
        }
        assert_eq!(passed, 1_000);
        assert_eq!((0..1_000).filter(|_| limit.allow(now + Duration::from_secs(9))).count(), 50);
    }
}
