//! The link header: Ethernet II with at most one 802.1Q tag.

use super::counters::DropReason;
use super::wire;

/// A hardware address.
pub(crate) type Mac = [u8; 6];

/// Every host of the link.
pub(crate) const BROADCAST: Mac = [0xff; 6];

/// Our end of the link.
#[derive(Clone, Debug)]
pub(crate) struct Ethernet {
    mac: Mac,
    vlan: Option<u16>,
}

/// A received frame without its link header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'f> {
    pub ethertype: u16,
    /// Sent to us alone, not to a broadcast or multicast hardware address.
    pub unicast: bool,
    /// From our own hardware address.
    pub from_us: bool,
    pub payload: &'f [u8],
}

impl Ethernet {
    pub(crate) fn new(mac: Mac, vlan: Option<u16>) -> Self {
        Self { mac, vlan }
    }

    pub(crate) fn mac(&self) -> Mac {
        self.mac
    }

    /// Length of the header of a frame we send.
    pub(crate) fn header_len(&self) -> usize {
        wire::ETHERNET_LEN + if self.vlan.is_some() { wire::VLAN_TAG_LEN } else { 0 }
    }

    /// Writes the header of a frame we send, [`Self::header_len`] bytes.
    pub(crate) fn write(&self, frame: &mut [u8], dst: Mac, ethertype: u16) {
        frame[0..6].copy_from_slice(&dst);
        frame[6..12].copy_from_slice(&self.mac);
        let mut at = 12;
        if let Some(vlan) = self.vlan {
            frame[12..14].copy_from_slice(&wire::ETHERTYPE_VLAN.to_be_bytes());
            frame[14..16].copy_from_slice(&vlan.to_be_bytes());
            at = 16;
        }
        frame[at..at + 2].copy_from_slice(&ethertype.to_be_bytes());
    }

    /// Fills in the destination of a frame whose receiver was not known when it was written.
    pub(crate) fn set_destination(frame: &mut [u8], dst: Mac) {
        frame[0..6].copy_from_slice(&dst);
    }

    /// Takes the header off a received frame. `stripped` is a tag that the device took off.
    pub(crate) fn parse<'f>(
        &self,
        frame: &'f [u8],
        stripped: Option<u16>,
    ) -> Result<Received<'f>, DropReason> {
        let (header, mut payload) = frame
            .split_first_chunk::<{ wire::ETHERNET_LEN }>()
            .ok_or(DropReason::TruncatedFrame)?;
        let unicast = header[0] & 1 == 0;
        if unicast && header[..6] != self.mac {
            return Err(DropReason::OtherMac);
        }
        let mut ethertype = u16::from_be_bytes([header[12], header[13]]);
        let mut tag = stripped;
        if ethertype == wire::ETHERTYPE_VLAN && tag.is_none() {
            let (inner, rest) =
                payload.split_first_chunk::<4>().ok_or(DropReason::TruncatedFrame)?;
            tag = Some(u16::from_be_bytes([inner[0], inner[1]]));
            ethertype = u16::from_be_bytes([inner[2], inner[3]]);
            payload = rest;
        }
        // A tag with id 0 carries a priority only; the frame belongs to the untagged network.
        let vlan = tag.map(|tci| tci & VLAN_ID_MASK).filter(|&id| id != 0);
        if vlan != self.vlan {
            return Err(DropReason::OtherVlan);
        }
        Ok(Received { ethertype, unicast, from_us: header[6..12] == self.mac, payload })
    }
}

/// The hardware address of an IPv4 group, RFC 1112 section 6.4.
pub(crate) fn multicast_mac(group: core::net::Ipv4Addr) -> Mac {
    let [_, b, c, d] = group.octets();
    [0x01, 0x00, 0x5e, b & 0x7f, c, d]
}

/// Id in a tag's control word; the rest is priority.
const VLAN_ID_MASK: u16 = 0x0fff;

#[cfg(test)]
mod tests {
    use super::{BROADCAST, Ethernet, multicast_mac};
    use crate::ip::counters::DropReason;

    const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn frame(dst: [u8; 6], tags: &[u16]) -> Vec<u8> {
        let mut frame = dst.to_vec();
        frame.extend(OTHER);
        for tag in tags {
            frame.extend([0x81, 0x00]);
            frame.extend(tag.to_be_bytes());
        }
        frame.extend([0x08, 0x00, 42]);
        frame
    }

    #[test]
    fn only_frames_for_us_or_for_all_are_taken() {
        let ethernet = Ethernet::new(OURS, None);
        assert!(ethernet.parse(&frame(OURS, &[]), None).unwrap().unicast);
        assert!(!ethernet.parse(&frame(BROADCAST, &[]), None).unwrap().unicast);
        let group = multicast_mac([224, 129, 2, 3].into());
        assert_eq!(group, [1, 0, 0x5e, 1, 2, 3]);
        assert!(!ethernet.parse(&frame(group, &[]), None).unwrap().unicast);
        let other = ethernet.parse(&frame(OTHER, &[]), None).unwrap_err();
        assert_eq!(other, DropReason::OtherMac);
    }

    #[test]
    fn tags_are_checked_in_the_frame_and_from_the_device() {
        let tagged = Ethernet::new(OURS, Some(7));
        let plain = Ethernet::new(OURS, None);
        // Priority bits are ignored.
        let with_priority = 7 | 5 << 13;
        for (ethernet, tags, stripped, ok) in [
            (&tagged, &[with_priority][..], None, true),
            (&tagged, &[], Some(with_priority), true),
            (&tagged, &[], None, false),
            (&tagged, &[8], None, false),
            (&tagged, &[0], None, false),
            (&tagged, &[], Some(8), false),
            (&plain, &[], None, true),
            (&plain, &[0], None, true),
            (&plain, &[], Some(0), true),
            (&plain, &[7], None, false),
            (&plain, &[], Some(7), false),
        ] {
            let frame = frame(OURS, tags);
            let result = ethernet.parse(&frame, stripped);
            match result {
                Ok(received) => {
                    assert!(ok, "{tags:?} {stripped:?}");
                    assert_eq!((received.ethertype, received.payload), (0x0800, &[42][..]));
                }
                Err(reason) => {
                    assert!(!ok, "{tags:?} {stripped:?}");
                    assert_eq!(reason, DropReason::OtherVlan);
                }
            }
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        for vlan in [None, Some(9)] {
            let ethernet = Ethernet::new(OURS, vlan);
            let mut frame = vec![0; ethernet.header_len() + 1];
            ethernet.write(&mut frame, BROADCAST, 0x0806);
            Ethernet::set_destination(&mut frame, OURS);
            let received = ethernet.parse(&frame, None).unwrap();
            assert_eq!((received.ethertype, received.payload.len()), (0x0806, 1));
        }
    }

    #[test]
    fn truncated_headers_are_refused() {
        let tagged = Ethernet::new(OURS, Some(7));
        let whole = frame(OURS, &[7]);
        for len in 0..18 {
            let reason = tagged.parse(&whole[..len], None).unwrap_err();
            assert_eq!(reason, DropReason::TruncatedFrame, "{len}");
        }
    }
}
