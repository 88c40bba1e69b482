//! Frames made by hand, valid ones and others, and their way onto a rig's wire.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use pnet_datalink::{Channel, Config, DataLinkSender, MacAddr};

use crate::rig::{LINK, Side};

/// A packet socket on one side of a rig, where the kernel owns the link.
pub struct Injector {
    sender: Box<dyn DataLinkSender>,
}

impl Injector {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// When the side has no link.
    pub fn new(side: &Side) -> Result<Self> {
        side.namespace.enter(|| {
            let link = pnet_datalink::interfaces()
                .into_iter()
                .find(|link| link.name == LINK)
                .with_context(|| format!("the {} side has no link", side.name))?;
            match pnet_datalink::channel(&link, Config::default()) {
                Ok(Channel::Ethernet(sender, _)) => Ok(Self { sender }),
                Ok(_) => bail!("{LINK} is no Ethernet"),
                Err(error) => Err(error).context("opening a packet socket"),
            }
        })
    }

    /// Sends one frame, exactly these bytes. `false`: the kernel refused, as it does for frames
    /// shorter than a header.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        self.sender.send_to(frame, None).is_some_and(|result| result.is_ok())
    }
}

/// The hardware address the kernel of `side` has learnt for `address`.
///
/// # Errors
///
/// When it has learnt none.
pub fn neighbour(side: &Side, address: Ipv4Addr) -> Result<MacAddr> {
    let table = side.namespace.enter(|| {
        std::fs::read_to_string("/proc/thread-self/net/arp").context("reading the neighbours")
    })?;
    let address = address.to_string();
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|columns| columns.first() == Some(&address.as_str()))
        .and_then(|columns| columns.get(3)?.parse().ok())
        .with_context(|| format!("{address} is not among the neighbours:\n{table}"))
}

/// An Ethernet frame.
#[must_use]
pub fn ethernet(to: MacAddr, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to.octets(), &SENDER.octets(), &kind.to_be_bytes()[..], payload].concat()
}

/// An IPv4 header and its payload. `offset` is in bytes.
#[derive(Clone, Debug)]
pub struct Ipv4 {
    /// Source.
    pub from: Ipv4Addr,
    /// Destination.
    pub to: Ipv4Addr,
    /// 6 for TCP, 17 for UDP.
    pub protocol: u8,
    /// Identification: the same in all fragments of a packet.
    pub id: u16,
    /// Position of this fragment in the packet, a multiple of eight bytes.
    pub offset: u16,
    /// Whether fragments follow.
    pub more: bool,
    /// What it carries.
    pub payload: Vec<u8>,
}

impl Ipv4 {
    /// A whole packet.
    #[must_use]
    pub fn new(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: Vec<u8>) -> Self {
        Self { from, to, protocol, id: 1, offset: 0, more: false, payload }
    }

    /// The packet's bytes, with a right checksum.
    ///
    /// # Panics
    ///
    /// When it is longer than a packet can be.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let length = u16::try_from(20 + self.payload.len()).expect("packets are below 64 KiB");
        let more: u16 = if self.more { 0x2000 } else { 0 };
        let fragment = more | (self.offset / 8);
        let mut header = vec![0x45, 0];
        header.extend(length.to_be_bytes());
        header.extend(self.id.to_be_bytes());
        header.extend(fragment.to_be_bytes());
        header.extend([64, self.protocol, 0, 0]);
        header.extend(self.from.octets());
        header.extend(self.to.octets());
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header.extend(&self.payload);
        header
    }
}

/// A TCP segment from one address and port to another, with a right checksum.
#[must_use]
pub fn tcp(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), flags: u8, data: &[u8]) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(from.1.to_be_bytes());
    segment.extend(to.1.to_be_bytes());
    // Sequence and acknowledgement numbers; header length; flags; window; checksum; urgent.
    segment.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0x10, 0, 0, 0, 0, 0]);
    segment.extend(data);
    let sum =
        checksum(&[pseudo_header(from.0, to.0, TCP, segment.len()), segment.clone()].concat());
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}

/// A UDP datagram from one address and port to another, with a right checksum.
///
/// # Panics
///
/// When it is longer than a datagram can be.
#[must_use]
pub fn udp(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + data.len()).expect("datagrams are below 64 KiB");
    let mut datagram = Vec::new();
    datagram.extend(from.1.to_be_bytes());
    datagram.extend(to.1.to_be_bytes());
    datagram.extend(length.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(data);
    let sum =
        checksum(&[pseudo_header(from.0, to.0, UDP, datagram.len()), datagram.clone()].concat());
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

fn pseudo_header(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, length: usize) -> Vec<u8> {
    let length = u16::try_from(length).expect("segments are below 64 KiB");
    [&from.octets()[..], &to.octets(), &[0, protocol], &length.to_be_bytes()].concat()
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded to 16 bits")
}

/// A locally administered address nobody in a rig has.
const SENDER: MacAddr = MacAddr(0x02, 0, 0, 0, 0, 0x66);

/// Protocol numbers.
pub const TCP: u8 = 6;
/// See [`TCP`].
pub const UDP: u8 = 17;

/// The EtherType of IPv4.
pub const IPV4: u16 = 0x0800;

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn the_checksum_of_a_known_header_is_right() {
        // A header often used as an example; its checksum is 0xb861.
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0x00,
            0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(checksum(&header), 0xb861);
    }
}
