//! Control messages (`cmsg`), as `recvmsg` hands them out.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use lstack_core::udp::Datagram;

use crate::description::{Family, Settings, TimestampUnit};

/// Writes control messages into the caller's buffer. What does not fit is left out and noted.
pub(crate) struct Writer<'a> {
    buf: &'a mut [u8],
    len: usize,
    truncated: bool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, len: 0, truncated: false }
    }

    /// Bytes written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether a message did not fit (`MSG_CTRUNC`).
    pub(crate) fn truncated(&self) -> bool {
        self.truncated
    }

    /// All that `settings` asks to know about a datagram.
    pub(crate) fn datagram(&mut self, settings: &Settings, family: Family, datagram: &Datagram) {
        if let Some(unit) = settings.timestamp {
            self.timestamp(unit);
        }
        if settings.packet_info
            && let (Family::V4, IpAddr::V4(to)) = (family, datagram.to)
        {
            // struct in_pktinfo: index, local address, destination of the header.
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&to.octets());
            info[8..12].copy_from_slice(&to.octets());
            self.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        if settings.receive_ttl {
            self.put(libc::IPPROTO_IP, libc::IP_TTL, &i32::from(datagram.ttl).to_ne_bytes());
        }
        if settings.receive_tos {
            self.put(libc::IPPROTO_IP, libc::IP_TOS, &[datagram.tos]);
        }
    }

    fn timestamp(&mut self, unit: TimestampUnit) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (kind, fraction) = match unit {
            TimestampUnit::Micros => (libc::SO_TIMESTAMP, u64::from(since.subsec_micros())),
            TimestampUnit::Nanos => (libc::SO_TIMESTAMPNS, u64::from(since.subsec_nanos())),
        };
        let mut data = [0; 16];
        data[..8].copy_from_slice(&since.as_secs().to_ne_bytes());
        data[8..].copy_from_slice(&fraction.to_ne_bytes());
        self.put(libc::SOL_SOCKET, kind, &data);
    }

    /// One message: `struct cmsghdr`, data, padding to a word.
    fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let len = HEADER + data.len();
        let Some(room) = self.buf.get_mut(self.len..).filter(|room| room.len() >= len) else {
            self.truncated = true;
            return;
        };
        room[..8].copy_from_slice(&len.to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..16].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..len].copy_from_slice(data);
        let padded = len.next_multiple_of(size_of::<usize>()).min(room.len());
        room[len..padded].fill(0);
        self.len += padded;
    }
}

/// `sizeof(struct cmsghdr)` on 64-bit Linux: length, level, type.
const HEADER: usize = 16;

#[cfg(test)]
mod tests {
    use lstack_core::udp::Datagram;

    use super::Writer;
    use crate::description::{Family, Settings};

    fn datagram() -> Datagram {
        Datagram {
            copied: 1,
            len: 1,
            from: "192.0.2.1:9".parse().unwrap(),
            to: "192.0.2.2".parse().unwrap(),
            ttl: 64,
            tos: 0x10,
        }
    }

    #[test]
    fn packet_info_has_the_layout_of_the_kernel() {
        let mut buf = [0xff; 64];
        let mut writer = Writer::new(&mut buf);
        let settings = Settings { packet_info: true, ..Settings::default() };
        writer.datagram(&settings, Family::V4, &datagram());
        assert_eq!((writer.len(), writer.truncated()), (32, false));
        assert_eq!(buf[..8], 28_u64.to_ne_bytes());
        assert_eq!(buf[20..24], [192, 0, 2, 2]);
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_noted() {
        let mut buf = [0; 8];
        let mut writer = Writer::new(&mut buf);
        let settings = Settings { receive_ttl: true, ..Settings::default() };
        writer.datagram(&settings, Family::V4, &datagram());
        assert_eq!((writer.len(), writer.truncated()), (0, true));
    }
}
