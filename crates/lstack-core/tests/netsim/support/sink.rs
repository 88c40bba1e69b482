//! A device that keeps frames, and finishes what the stack left to it as hardware would.

use lstack_core::link::L4;
use lstack_core::{FrameSink, LinkCaps, TxMeta};
use smoltcp::wire::checksum;

/// Keeps frames until they are taken. What it has no room for it refuses.
pub struct VecSink {
    caps: LinkCaps,
    frames: Vec<Vec<u8>>,
    reserved: Option<Vec<u8>>,
    room: usize,
}

impl VecSink {
    pub fn new(caps: LinkCaps) -> Self {
        Self { caps, frames: Vec::new(), reserved: None, room: usize::MAX }
    }

    /// Takes at most `frames` until they are taken away.
    pub fn set_room(&mut self, frames: usize) {
        self.room = frames;
    }

    pub fn has_room(&self) -> bool {
        self.frames.len() < self.room
    }

    pub fn take(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.frames)
    }
}

impl FrameSink for VecSink {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if !self.has_room() {
            return None;
        }
        // Rubbish, so that a byte the stack forgets to write shows.
        Some(self.reserved.insert(vec![0xa5; len]))
    }

    fn commit(&mut self, meta: TxMeta) {
        let mut frame = self.reserved.take().expect("committed without a reservation");
        let l3 = usize::from(meta.l2_len);
        let l4 = l3 + usize::from(meta.l3_len);
        if let Some(size) = meta.segment_size {
            assert!(self.caps.tso_max.is_some(), "segments left to a device that cuts none");
            self.frames.extend(cut(&frame, l3, l4, meta.l4, usize::from(size)));
            return;
        }
        let limit = l3 + usize::from(self.caps.mtu);
        assert!(frame.len() <= limit, "{} bytes do not fit the link", frame.len());
        if meta.offload_ip_checksum {
            assert!(self.caps.tx_ip_checksum);
            finish_ip(&mut frame[l3..l4]);
        }
        if meta.offload_l4_checksum {
            match meta.l4 {
                L4::Tcp { .. } => assert!(self.caps.tx_tcp_checksum),
                L4::Udp => assert!(self.caps.tx_udp_checksum),
                L4::Other => panic!("no transport to compute a checksum for"),
            }
            finish_l4(&mut frame[l4..], meta.l4);
        }
        self.frames.push(frame);
    }
}

fn finish_ip(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = !checksum::data(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// The field holds the sum of the pseudo header.
fn finish_l4(segment: &mut [u8], l4: L4) {
    let at = if l4 == L4::Udp { 6 } else { 16 };
    let sum = match (l4, !checksum::data(segment)) {
        (L4::Udp, 0) => 0xffff,
        (_, sum) => sum,
    };
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

fn cut(frame: &[u8], l3: usize, l4: usize, kind: L4, size: usize) -> Vec<Vec<u8>> {
    let L4::Tcp { header_len } = kind else { panic!("only TCP is cut into segments") };
    let payload_at = l4 + usize::from(header_len);
    let sequence = u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().unwrap());
    let count = (frame.len() - payload_at).div_ceil(size);
    let pieces = frame[payload_at..].chunks(size).enumerate();
    pieces
        .map(|(i, piece)| {
            let mut segment = frame[..payload_at].to_vec();
            segment.extend(piece);
            let total = (segment.len() - l3) as u16;
            segment[l3 + 2..l3 + 4].copy_from_slice(&total.to_be_bytes());
            let id = u16::from_be_bytes([frame[l3 + 4], frame[l3 + 5]]).wrapping_add(i as u16);
            segment[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
            let sequence = sequence.wrapping_add((i * size) as u32);
            segment[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
            if i + 1 < count {
                // FIN and PSH belong to the last one.
                segment[l4 + 13] &= !0x09;
            }
            // The device adds the length of this segment to the sum it was given.
            let partial = u16::from_be_bytes([frame[l4 + 16], frame[l4 + 17]]);
            let len = (segment.len() - l4) as u16;
            let pseudo = checksum::combine(&[partial, len]);
            segment[l4 + 16..l4 + 18].copy_from_slice(&pseudo.to_be_bytes());
            finish_ip(&mut segment[l3..l4]);
            finish_l4(&mut segment[l4..], kind);
            segment
        })
        .collect()
}
