//! The IPv4 header, RFC 791.

use core::net::Ipv4Addr;

use super::checksum::Sum;
use super::counters::DropReason;
use super::wire;
use crate::link::ChecksumVerdict;

/// A received header. Options are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv4Header {
    pub header_len: usize,
    pub total_len: usize,
    pub tos: u8,
    pub id: u16,
    /// Flags and offset as on the wire.
    pub fragment: u16,
    pub ttl: u8,
    pub protocol: u8,
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
}

/// The fields of a header we send; it has no options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ipv4Fields {
    pub total_len: u16,
    pub tos: u8,
    pub id: u16,
    /// Flags and offset as on the wire.
    pub fragment: u16,
    pub ttl: u8,
    pub protocol: u8,
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
}

impl Ipv4Header {
    /// Reads the header at the start of `packet`, which may be longer than the packet (Ethernet
    /// pads short frames).
    pub(crate) fn parse(packet: &[u8], verdict: ChecksumVerdict) -> Result<Self, DropReason> {
        let header = Self::parse_start(packet).ok_or(DropReason::BadIpHeader)?;
        if header.total_len < header.header_len || header.total_len > packet.len() {
            return Err(DropReason::BadIpHeader);
        }
        let intact = match verdict {
            ChecksumVerdict::Good => true,
            ChecksumVerdict::Bad => false,
            ChecksumVerdict::Unknown => {
                Sum::default().add_bytes(&packet[..header.header_len]).is_valid()
            }
        };
        if intact { Ok(header) } else { Err(DropReason::BadIpChecksum) }
    }

    /// Reads a header of which the packet may be cut off, as ICMP quotes it. Lengths and checksum
    /// are not looked at; routers change and break them.
    pub(crate) fn parse_start(packet: &[u8]) -> Option<Self> {
        let fixed = packet.first_chunk::<{ wire::IPV4_LEN }>()?;
        let header_len = usize::from(fixed[0] & 0x0f) * 4;
        if fixed[0] >> 4 != 4 || header_len < wire::IPV4_LEN || header_len > packet.len() {
            return None;
        }
        Some(Self {
            header_len,
            total_len: usize::from(u16::from_be_bytes([fixed[2], fixed[3]])),
            tos: fixed[1],
            id: u16::from_be_bytes([fixed[4], fixed[5]]),
            fragment: u16::from_be_bytes([fixed[6], fixed[7]]),
            ttl: fixed[8],
            protocol: fixed[9],
            src: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]),
            dst: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]),
        })
    }

    /// Whether this is part of a datagram, not all of it.
    pub(crate) fn is_fragment(&self) -> bool {
        self.fragment & (wire::MORE_FRAGMENTS | wire::OFFSET_MASK) != 0
    }

    /// Whether fragments follow this one.
    pub(crate) fn more_fragments(&self) -> bool {
        self.fragment & wire::MORE_FRAGMENTS != 0
    }

    /// Where this fragment's payload belongs in the datagram, bytes.
    pub(crate) fn fragment_offset(&self) -> usize {
        usize::from(self.fragment & wire::OFFSET_MASK) * 8
    }
}

impl Ipv4Fields {
    /// The header's bytes. With `checksum` false the field stays zero for the device.
    pub(crate) fn to_bytes(self, checksum: bool) -> [u8; wire::IPV4_LEN] {
        let [len_high, len_low] = self.total_len.to_be_bytes();
        let [id_high, id_low] = self.id.to_be_bytes();
        let [fragment_high, fragment_low] = self.fragment.to_be_bytes();
        let [s0, s1, s2, s3] = self.src.octets();
        let [d0, d1, d2, d3] = self.dst.octets();
        let mut bytes = [
            0x45,
            self.tos,
            len_high,
            len_low,
            id_high,
            id_low,
            fragment_high,
            fragment_low,
            self.ttl,
            self.protocol,
            0,
            0,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
        ];
        if checksum {
            let value = Sum::default().add_bytes(&bytes).finish();
            bytes[10..12].copy_from_slice(&value.to_be_bytes());
        }
        bytes
    }
}

/// Rewrites a header in place so that it describes the whole datagram of `total_len` bytes.
pub(crate) fn make_whole(header: &mut [u8], total_len: u16) {
    header[2..4].copy_from_slice(&total_len.to_be_bytes());
    header[6..8].fill(0);
    header[10..12].fill(0);
    let value = Sum::default().add_bytes(header).finish();
    header[10..12].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use smoltcp::wire::{IpProtocol, Ipv4Packet};

    use super::{Ipv4Fields, Ipv4Header};
    use crate::ip::counters::DropReason;
    use crate::link::ChecksumVerdict;

    fn fields() -> Ipv4Fields {
        Ipv4Fields {
            total_len: 28,
            tos: 0x2e,
            id: 0xbeef,
            fragment: 0x4000,
            ttl: 64,
            protocol: 17,
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
        }
    }

    fn packet() -> Vec<u8> {
        let mut packet = fields().to_bytes(true).to_vec();
        packet.resize(46, 0xaa);
        packet
    }

    #[test]
    fn smoltcp_reads_what_we_write() {
        let bytes = packet();
        let parsed = Ipv4Packet::new_checked(&bytes[..]).unwrap();
        assert!(parsed.verify_checksum());
        assert_eq!(parsed.total_len(), 28);
        assert_eq!(parsed.next_header(), IpProtocol::Udp);
        assert_eq!(parsed.src_addr(), fields().src);
        assert_eq!(parsed.dst_addr(), fields().dst);
        assert!(parsed.dont_frag() && !parsed.more_frags());
        assert_eq!((parsed.ident(), parsed.hop_limit(), parsed.dscp()), (0xbeef, 64, 0x2e >> 2));
    }

    #[test]
    fn padding_is_no_part_of_the_packet() {
        let header = Ipv4Header::parse(&packet(), ChecksumVerdict::Unknown).unwrap();
        assert_eq!((header.header_len, header.total_len, header.id), (20, 28, 0xbeef));
        assert!(!header.is_fragment());
    }

    #[test]
    fn wrong_lengths_and_versions_are_refused() {
        let parse = |bytes: &[u8]| Ipv4Header::parse(bytes, ChecksumVerdict::Good);
        for len in 0..28 {
            assert_eq!(parse(&packet()[..len]), Err(DropReason::BadIpHeader), "{len}");
        }
        for (at, value) in [(0, 0x55), (0, 0x44), (0, 0x4f), (3, 19)] {
            let mut bytes = packet()[..28].to_vec();
            bytes[at] = value;
            assert_eq!(parse(&bytes), Err(DropReason::BadIpHeader), "{at}");
        }
    }

    #[test]
    fn checksum_is_computed_unless_the_device_did() {
        let mut bytes = packet();
        bytes[8] ^= 1;
        let parse = |verdict| Ipv4Header::parse(&bytes, verdict);
        assert_eq!(parse(ChecksumVerdict::Unknown), Err(DropReason::BadIpChecksum));
        assert_eq!(parse(ChecksumVerdict::Bad), Err(DropReason::BadIpChecksum));
        assert!(parse(ChecksumVerdict::Good).is_ok());
    }
}
