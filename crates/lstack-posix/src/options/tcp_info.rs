//! `struct tcp_info` of linux/tcp.h, filled from the stack's numbers.
//!
//! Fields the stack does not keep are zero, as they are in older kernels. The struct only ever
//! grew at its end, so programs take the part they know.

use std::time::Duration;

use lstack_core::tcp::{State, TcpInfo};

/// The struct up to and with `tcpi_rehash`.
pub(super) const LEN: usize = 240;

/// The bytes for a connection.
pub(super) fn encode(info: &TcpInfo) -> [u8; LEN] {
    let mss = u32::from(info.send_mss).max(1);
    let segments = |bytes: u32| bytes.div_ceil(mss);
    let (receive_scale, send_scale) = info.window_scale.unwrap_or_default();
    let mut out = Fields::new();
    out.u8(info.state as u8);
    out.u8(0); // ca_state: open
    out.u8(info.retransmits);
    out.u8(0); // probes
    out.u8(info.retransmits); // backoff doubles with each
    out.u8(options(info));
    out.u8(send_scale & 0xf | receive_scale << 4);
    out.u8(0); // delivery_rate_app_limited, fastopen_client_fail
    out.u32(micros(info.rto));
    out.u32(0); // ato
    out.u32(u32::from(info.send_mss));
    out.u32(u32::from(info.recv_mss));
    out.u32(segments(info.in_flight)); // unacked
    out.skip(4 * 4); // sacked, lost, retrans, fackets
    out.u32(millis(info.since_data_sent));
    out.u32(0); // last_ack_sent, "not remembered" on Linux as well
    out.u32(millis(info.since_data_received));
    out.u32(millis(info.since_ack_received));
    out.u32(0); // pmtu
    out.u32(info.recv_window); // rcv_ssthresh
    out.u32(micros(info.srtt));
    out.u32(micros(info.rttvar));
    out.u32(match info.ssthresh {
        u32::MAX => INFINITE_SSTHRESH,
        bytes => bytes / mss,
    });
    out.u32((info.cwnd / mss).max(1));
    out.u32(u32::from(info.recv_mss)); // advmss
    out.u32(0); // reordering
    out.u32(0); // rcv_rtt
    out.u32(u32::try_from(info.recv_buffer).unwrap_or(u32::MAX)); // rcv_space
    out.u32(info.retransmitted_total);
    out.u64(0); // pacing_rate
    out.u64(u64::MAX); // max_pacing_rate: no limit
    out.u64(info.bytes_acked);
    out.u64(info.bytes_received);
    out.u32(wrapping(info.segments_out));
    out.u32(wrapping(info.segments_in));
    out.u32(0); // notsent_bytes
    out.u32(micros(info.min_rtt));
    out.skip(2 * 4); // data_segs_in, data_segs_out
    out.skip(4 * 8); // delivery_rate, busy_time, rwnd_limited, sndbuf_limited
    out.skip(2 * 4); // delivered, delivered_ce
    out.u64(info.bytes_acked + u64::from(info.in_flight) + info.bytes_retransmitted); // bytes_sent
    out.u64(info.bytes_retransmitted);
    out.skip(3 * 4); // dsack_dups, reord_seen, rcv_ooopack
    out.u32(info.send_window);
    out.u32(info.recv_window);
    out.u32(0); // rehash
    out.finish()
}

/// The bytes for a socket that is no connection, in `state`.
pub(super) fn idle(state: State) -> [u8; LEN] {
    let mut out = Fields::new();
    out.u8(state as u8);
    out.skip(LEN - 1);
    out.finish()
}

fn options(info: &TcpInfo) -> u8 {
    let mut bits = 0;
    if info.timestamps {
        bits |= TIMESTAMPS;
    }
    if info.sack {
        bits |= SACK;
    }
    if info.window_scale.is_some() {
        bits |= WINDOW_SCALE;
    }
    if info.ecn {
        bits |= ECN;
    }
    bits
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Linux's counters of segments have 32 bits and wrap.
fn wrapping(count: u64) -> u32 {
    (count & u64::from(u32::MAX)) as u32
}

/// Writes the fields one after the other.
struct Fields {
    bytes: [u8; LEN],
    at: usize,
}

impl Fields {
    fn new() -> Self {
        Self { bytes: [0; LEN], at: 0 }
    }

    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    fn u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }

    fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }

    fn finish(self) -> [u8; LEN] {
        debug_assert_eq!(self.at, LEN, "every field is written or skipped");
        self.bytes
    }
}

/// `TCPI_OPT_TIMESTAMPS`, `TCPI_OPT_SACK`, `TCPI_OPT_WSCALE`, `TCPI_OPT_ECN`.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALE: u8 = 4;
const ECN: u8 = 8;

/// `TCP_INFINITE_SSTHRESH` of the kernel.
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lstack_core::tcp::{State, TcpInfo};

    use super::{encode, idle};

    fn info() -> TcpInfo {
        TcpInfo {
            state: State::Established,
            retransmits: 0,
            window_scale: Some((7, 9)),
            timestamps: true,
            sack: true,
            ecn: false,
            rto: Duration::from_millis(204),
            srtt: Duration::from_micros(1234),
            rttvar: Duration::from_micros(56),
            min_rtt: Duration::from_micros(1000),
            send_mss: 1448,
            recv_mss: 1448,
            cwnd: 14480,
            ssthresh: u32::MAX,
            send_window: 65_160,
            recv_window: 64_256,
            in_flight: 2000,
            bytes_acked: 1_000_000_007,
            bytes_received: 0x1_0000_0001,
            bytes_retransmitted: 1448,
            segments_out: 5,
            segments_in: 6,
            retransmitted_total: 1,
            since_data_sent: Duration::from_millis(3),
            since_data_received: Duration::from_millis(4),
            since_ack_received: Duration::from_millis(5),
            send_buffer: 1,
            recv_buffer: 65_536,
        }
    }

    /// Offsets measured with `offsetof` on linux/tcp.h.
    #[test]
    fn fields_are_where_the_header_has_them() {
        let bytes = encode(&info());
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(bytes[0], 1, "state");
        assert_eq!(bytes[5], 7, "options");
        assert_eq!(bytes[6], 0x79, "the peer's scale in the low half, ours in the high");
        assert_eq!(word(8), 204_000, "rto");
        assert_eq!(word(16), 1448, "snd_mss");
        assert_eq!(word(24), 2, "unacked");
        assert_eq!(word(44), 3, "last_data_sent");
        assert_eq!((word(52), word(56)), (4, 5), "last_data_recv, last_ack_recv");
        assert_eq!((word(68), word(72)), (1234, 56), "rtt, rttvar");
        assert_eq!((word(76), word(80)), (0x7fff_ffff, 10), "snd_ssthresh, snd_cwnd");
        assert_eq!(word(100), 1, "total_retrans");
        assert_eq!(long(120), 1_000_000_007, "bytes_acked");
        assert_eq!(long(128), 0x1_0000_0001, "bytes_received");
        assert_eq!((word(136), word(140)), (5, 6), "segs_out, segs_in");
        assert_eq!(word(148), 1000, "min_rtt");
        assert_eq!(long(208), 1448, "bytes_retrans");
        assert_eq!((word(228), word(232)), (65_160, 64_256), "snd_wnd, rcv_wnd");
    }

    #[test]
    fn a_listener_shows_its_state_alone() {
        let bytes = idle(State::Listen);
        assert_eq!(bytes[0], 10);
        assert!(bytes[1..].iter().all(|&byte| byte == 0));
    }
}
