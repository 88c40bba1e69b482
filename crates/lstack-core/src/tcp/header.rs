//! The TCP header and its options as they are on the wire, RFC 9293 3.1, 7323, 2018.

use bitflags::bitflags;

use super::ecn;
use super::seq::Seq;

/// Bytes of a header without options.
pub(super) const HEADER_LEN: usize = 20;

/// Bytes that timestamps take, padded.
pub(super) const TIMESTAMPS_LEN: usize = 12;

/// Bytes of a SACK option: padding, kind and length; and per block.
pub(super) const SACK_LEAD_LEN: usize = 4;
pub(super) const SACK_BLOCK_LEN: usize = 8;

/// Largest shift RFC 7323 2.3 allows.
const WINDOW_SCALE_MAX: u8 = 14;

bitflags! {
    /// Control bits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Flags: u8 {
        const FIN = 0x01;
        const SYN = 0x02;
        const RST = 0x04;
        const PSH = 0x08;
        const ACK = 0x10;
        const URG = 0x20;
        /// Congestion was experienced (RFC 3168); in a SYN: ECN is wanted.
        const ECE = 0x40;
        /// The congestion window was reduced.
        const CWR = 0x80;
    }
}

/// A range of sequence numbers, the end excluded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SackBlock {
    pub start: Seq,
    pub end: Seq,
}

/// Up to four ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SackBlocks {
    blocks: [SackBlock; 4],
    len: u8,
}

impl SackBlocks {
    pub(super) fn push(&mut self, block: SackBlock) {
        if let Some(slot) = self.blocks.get_mut(usize::from(self.len)) {
            *slot = block;
            self.len += 1;
        }
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &SackBlock> {
        self.blocks[..self.len()].iter()
    }

    pub(super) fn contains(&self, block: SackBlock) -> bool {
        self.iter().any(|other| *other == block)
    }
}

/// Sender's clock and the echo of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Timestamps {
    pub value: u32,
    pub echo: u32,
}

/// Options of a segment, received or to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack_permitted: bool,
    pub timestamps: Option<Timestamps>,
    pub sack: SackBlocks,
}

/// A header to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub src_port: u16,
    pub dst_port: u16,
    pub seq: Seq,
    pub ack: Seq,
    pub flags: Flags,
    pub window: u16,
    pub options: Options,
}

/// A reset to send, without the ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reset {
    pub seq: Seq,
    /// `None`: it acknowledges nothing.
    pub ack: Option<Seq>,
}

/// A received segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub src_port: u16,
    pub dst_port: u16,
    pub seq: Seq,
    pub ack: Seq,
    pub flags: Flags,
    /// As on the wire, not scaled.
    pub window: u16,
    pub options: Options,
    pub payload: &'a [u8],
    /// A router has marked its packet.
    pub congested: bool,
}

impl<'a> Segment<'a> {
    /// Reads a segment of a packet with this type of service; `None` when it is cut short or its header length is impossible. Options
    /// that make no sense end the list, as every stack does.
    pub(super) fn parse(bytes: &'a [u8], tos: u8) -> Option<Self> {
        let (header, _) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let header_len = usize::from(header[12] >> 4) * 4;
        if header_len < HEADER_LEN {
            return None;
        }
        let options = bytes.get(HEADER_LEN..header_len)?;
        Some(Self {
            src_port: u16::from_be_bytes([header[0], header[1]]),
            dst_port: u16::from_be_bytes([header[2], header[3]]),
            seq: Seq(u32_at(header, 4)),
            ack: Seq(u32_at(header, 8)),
            flags: Flags::from_bits_truncate(header[13]),
            window: u16::from_be_bytes([header[14], header[15]]),
            options: Options::parse(options),
            payload: &bytes[header_len..],
            congested: ecn::is_congested(tos),
        })
    }

    /// The reset that answers a segment nobody expects, RFC 9293 3.10.7.1.
    pub(super) fn reset(&self) -> Reset {
        if self.flags.contains(Flags::ACK) {
            Reset { seq: self.ack, ack: None }
        } else {
            Reset { seq: Seq(0), ack: Some(self.seq + self.sequence_len()) }
        }
    }

    /// Sequence numbers it takes: payload, SYN and FIN.
    pub(super) fn sequence_len(&self) -> u32 {
        self.payload.len() as u32
            + u32::from(self.flags.contains(Flags::SYN))
            + u32::from(self.flags.contains(Flags::FIN))
    }
}

impl Options {
    fn parse(bytes: &[u8]) -> Self {
        let mut options = Self::default();
        // The layout RFC 7323 appendix A recommends, and nearly every segment has.
        if let [1, 1, 8, 10, rest @ ..] = bytes
            && rest.len() == 8
        {
            options.timestamps = Some(Timestamps { value: u32_at(rest, 0), echo: u32_at(rest, 4) });
            return options;
        }
        let mut rest = bytes;
        loop {
            match rest {
                [] | [0, ..] => return options,
                [1, tail @ ..] => rest = tail,
                [kind, len, ..] => {
                    let len = usize::from(*len);
                    if len < 2 || len > rest.len() {
                        return options;
                    }
                    options.take(*kind, &rest[2..len]);
                    rest = &rest[len..];
                }
                [_] => return options,
            }
        }
    }

    fn take(&mut self, kind: u8, body: &[u8]) {
        match (kind, body.len()) {
            (2, 2) => self.mss = Some(u16::from_be_bytes([body[0], body[1]])),
            (3, 1) => self.window_scale = Some(body[0].min(WINDOW_SCALE_MAX)),
            (4, 0) => self.sack_permitted = true,
            (5, len) if len > 0 && len % 8 == 0 => {
                for block in body.chunks_exact(8) {
                    self.sack.push(SackBlock {
                        start: Seq(u32_at(block, 0)),
                        end: Seq(u32_at(block, 4)),
                    });
                }
            }
            (8, 8) => {
                self.timestamps =
                    Some(Timestamps { value: u32_at(body, 0), echo: u32_at(body, 4) });
            }
            _ => {}
        }
    }

    /// Bytes they take, a multiple of 4.
    pub(super) fn len(&self) -> usize {
        let mut len = 0;
        if self.mss.is_some() {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 4;
        }
        if self.timestamps.is_some() {
            len += TIMESTAMPS_LEN;
        } else if self.sack_permitted {
            len += 4;
        }
        if self.sack.len() > 0 {
            len += SACK_LEAD_LEN + SACK_BLOCK_LEN * self.sack.len();
        }
        len
    }

    fn write(&self, mut to: &mut [u8]) {
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            to = put(to, [2, 4, a, b]);
        }
        if let Some(shift) = self.window_scale {
            to = put(to, [1, 3, 3, shift]);
        }
        // SACK-permitted takes the place of the padding before timestamps, as Linux does.
        if let Some(Timestamps { value, echo }) = self.timestamps {
            let lead = if self.sack_permitted { [4, 2, 8, 10] } else { [1, 1, 8, 10] };
            to = put(put(put(to, lead), value.to_be_bytes()), echo.to_be_bytes());
        } else if self.sack_permitted {
            to = put(to, [1, 1, 4, 2]);
        }
        if self.sack.len() > 0 {
            to = put(to, [1, 1, 5, 2 + 8 * self.sack.len]);
            for block in self.sack.iter() {
                to = put(put(to, block.start.0.to_be_bytes()), block.end.0.to_be_bytes());
            }
        }
    }
}

impl Reset {
    pub(super) fn header(&self, src_port: u16, dst_port: u16) -> Header {
        let flags = if self.ack.is_some() { Flags::RST | Flags::ACK } else { Flags::RST };
        Header {
            src_port,
            dst_port,
            seq: self.seq,
            ack: self.ack.unwrap_or_default(),
            flags,
            window: 0,
            options: Options::default(),
        }
    }
}

impl Header {
    /// Bytes of the header with its options.
    pub(super) fn len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Writes the header with a zero checksum to the start of `to`, which is at least
    /// [`Self::len`] long.
    pub(super) fn write(&self, to: &mut [u8]) {
        let len = self.len();
        let mut fixed = [0; HEADER_LEN];
        fixed[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        fixed[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        fixed[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        fixed[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        fixed[12] = (len as u8 / 4) << 4;
        fixed[13] = self.flags.bits();
        fixed[14..16].copy_from_slice(&self.window.to_be_bytes());
        to[..HEADER_LEN].copy_from_slice(&fixed);
        self.options.write(&mut to[HEADER_LEN..len]);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes four bytes and gives the rest.
fn put(to: &mut [u8], bytes: [u8; 4]) -> &mut [u8] {
    let (now, later) = to.split_at_mut(4);
    now.copy_from_slice(&bytes);
    later
}

#[cfg(test)]
mod tests {
    use super::{Flags, HEADER_LEN, Header, Options, SackBlock, SackBlocks, Segment, Timestamps};
    use crate::tcp::seq::Seq;

    fn header(options: Options) -> Header {
        Header {
            src_port: 1,
            dst_port: 65_535,
            seq: Seq(0xdead_beef),
            ack: Seq(7),
            flags: Flags::ACK | Flags::PSH,
            window: 512,
            options,
        }
    }

    fn round_trip(options: Options) {
        let header = header(options);
        let mut bytes = vec![0xff; header.len() + 3];
        header.write(&mut bytes);
        assert_eq!(header.len() % 4, 0);
        let segment = Segment::parse(&bytes, 0).expect("what we write we can read");
        assert_eq!(segment.options, options);
        assert_eq!((segment.src_port, segment.dst_port), (1, 65_535));
        assert_eq!((segment.seq, segment.ack, segment.window), (header.seq, header.ack, 512));
        assert_eq!((segment.flags, segment.payload), (header.flags, &[0xff; 3][..]));
    }

    #[test]
    fn every_combination_of_options_survives_the_wire() {
        let timestamps = Some(Timestamps { value: 1, echo: 0xffff_fffe });
        let mut sack = SackBlocks::default();
        for mask in 0..16 {
            round_trip(Options {
                mss: (mask & 1 != 0).then_some(1460),
                window_scale: (mask & 2 != 0).then_some(7),
                sack_permitted: mask & 4 != 0,
                timestamps: timestamps.filter(|_| mask & 8 != 0),
                sack: SackBlocks::default(),
            });
        }
        for start in [10, 30, 50] {
            sack.push(SackBlock { start: Seq(start), end: Seq(start + 10) });
            round_trip(Options { sack, timestamps, ..Options::default() });
            round_trip(Options { sack, ..Options::default() });
        }
    }

    #[test]
    fn malformed_headers_and_options_never_panic() {
        let mut bytes = [0_u8; 60];
        for len in 0..bytes.len() {
            for fill in [0_u8, 1, 2, 3, 5, 8, 255] {
                for words in 0..16 {
                    bytes[HEADER_LEN..].fill(fill);
                    bytes[12] = words << 4;
                    let parsed = Segment::parse(&bytes[..len], 0);
                    let header_len = usize::from(words) * 4;
                    assert_eq!(parsed.is_some(), header_len >= HEADER_LEN && header_len <= len);
                }
            }
        }
    }
}
