//! Handshakes that listeners have answered and peers have not completed.
//!
//! A record per SYN, not a connection: a flood must not cost buffers. A listener that has as many
//! records as it keeps answers further SYNs without making one, see [`super::syn_cookie`].

use super::connection::PeerSyn;
use super::flow::FlowKey;
use super::header::{Flags, Header, Options, SackBlocks, Timestamps};
use super::seq::Seq;
use super::slab::Slab;
use super::syn_cookie::timestamp_with_options;

/// Repetitions of a SYN+ACK, Linux's `tcp_synack_retries`: 63 s in all.
pub(super) const SYN_ACK_RETRIES: u8 = 5;

/// First wait for an answer to a SYN+ACK; doubles.
pub(super) const SYN_ACK_TIMEOUT: u64 = 1_000_000;

/// No record.
pub(super) const NONE: u32 = u32::MAX;

/// A handshake under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct HalfOpen {
    pub key: FlowKey,
    pub hash: u32,
    /// Socket slot of the listener, which outlives its records.
    pub listener: u32,
    pub iss: Seq,
    pub peer: PeerSyn,
    pub timestamp_offset: u32,
    /// What we offer.
    pub window: u16,
    pub scale: u8,
    /// Largest segment the program wants, 0 for no limit.
    pub mss_limit: u16,
    /// Largest packet for the path; the link's until the SYN+ACK was sent.
    pub mtu: u16,
    pub retries: u8,
    /// The SYN+ACK waits to be sent.
    pub queued: bool,
    pub started_at: u64,
    /// When the SYN+ACK was last sent.
    pub sent_at: u64,
    older: u32,
    newer: u32,
}

/// What a new record is made of.
pub(super) struct Opening {
    pub key: FlowKey,
    pub hash: u32,
    pub listener: u32,
    pub iss: Seq,
    pub peer: PeerSyn,
    pub timestamp_offset: u32,
    pub window: u16,
    pub scale: u8,
    pub mss_limit: u16,
    pub mtu: u16,
    pub now: u64,
}

/// One listener's records by age.
#[derive(Clone, Copy, Debug)]
pub(super) struct SynQueue {
    oldest: u32,
    newest: u32,
    len: u32,
}

impl HalfOpen {
    pub(super) fn new(opening: &Opening) -> Self {
        let Opening {
            key,
            hash,
            listener,
            iss,
            peer,
            timestamp_offset,
            window,
            scale,
            mss_limit,
            mtu,
            now,
        } = *opening;
        Self {
            key,
            hash,
            listener,
            iss,
            peer,
            timestamp_offset,
            window,
            scale,
            mss_limit,
            mtu,
            retries: 0,
            queued: false,
            started_at: now,
            sent_at: now,
            older: NONE,
            newer: NONE,
        }
    }

    /// The SYN+ACK of a handshake that nothing remembers but its sequence number.
    pub(super) fn cookie_answer(&self, now: u64) -> Header {
        let mut answer = self.answer(now);
        if let Some(timestamps) = &mut answer.options.timestamps {
            timestamps.value = timestamp_with_options(timestamps.value, &self.peer);
        } else {
            // Nothing would bring them back.
            answer.options.window_scale = None;
            answer.options.sack_permitted = false;
            answer.flags.remove(Flags::ECE);
        }
        answer
    }

    /// The SYN+ACK, with the options that the SYN offered.
    pub(super) fn answer(&self, now: u64) -> Header {
        let ip_len = if self.key.remote.is_ipv4() { 40 } else { 60 };
        let mut mss = self.mtu.saturating_sub(ip_len);
        if self.mss_limit != 0 {
            mss = mss.min(self.mss_limit);
        }
        Header {
            src_port: self.key.local_port,
            dst_port: self.key.remote_port,
            seq: self.iss,
            ack: self.peer.irs + 1,
            flags: if self.peer.ecn {
                Flags::SYN | Flags::ACK | Flags::ECE
            } else {
                Flags::SYN | Flags::ACK
            },
            window: self.window,
            options: Options {
                mss: Some(mss),
                window_scale: self.peer.scale.map(|_| self.scale),
                sack_permitted: self.peer.sack,
                timestamps: self.peer.timestamp.map(|echo| Timestamps {
                    value: ((now / 1_000) as u32).wrapping_add(self.timestamp_offset),
                    echo,
                }),
                sack: SackBlocks::default(),
            },
        }
    }
}

impl SynQueue {
    pub(super) const fn new() -> Self {
        Self { oldest: NONE, newest: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub(super) fn push(&mut self, records: &mut Slab<HalfOpen>, mut record: HalfOpen) -> u32 {
        record.older = self.newest;
        let index = records.insert(record);
        match records.get_mut(self.newest) {
            Some(newest) => newest.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
        self.len += 1;
        index
    }

    pub(super) fn remove(&mut self, records: &mut Slab<HalfOpen>, index: u32) -> Option<HalfOpen> {
        let record = records.remove(index)?;
        match records.get_mut(record.older) {
            Some(older) => older.newer = record.newer,
            None => self.oldest = record.newer,
        }
        match records.get_mut(record.newer) {
            Some(newer) => newer.older = record.older,
            None => self.newest = record.older,
        }
        self.len -= 1;
        Some(record)
    }
}
