//! Puts datagrams together from fragments: RFC 791 section 3.2, RFC 1122 section 3.3.2, and against
//! overlapping fragments RFC 5722, whose rule holds for IPv4 as well.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};

use smallvec::SmallVec;

use super::buffer::{Buffer, BufferPool};
use super::counters::{DropReason, IpCounters};
use super::ipv4::{self, Ipv4Header};
use super::wire;
use crate::config::Secret;
use crate::random::KeyedHash;
use crate::time::Instant;

/// Datagrams of which some fragments are missing. Bounded in number, in memory and in time.
#[derive(Debug)]
pub(crate) struct Reassembly {
    partial: HashMap<Key, Partial, KeyedHash>,
    /// Oldest first, for time and eviction; entries of datagrams gone by now are void.
    order: VecDeque<Age>,
    next_serial: u64,
    bytes: usize,
}

/// A datagram put together, in memory taken from the pool.
#[derive(Debug)]
pub(crate) struct Whole {
    buffer: Buffer,
    start: usize,
    end: usize,
}

/// What names a datagram, RFC 791.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    src: Ipv4Addr,
    dst: Ipv4Addr,
    id: u16,
    protocol: u8,
}

#[derive(Clone, Copy, Debug)]
struct Age {
    key: Key,
    serial: u64,
    expires: Instant,
}

#[derive(Debug)]
struct Partial {
    serial: u64,
    /// Payload from [`PAYLOAD_AT`] on, headers in front once the first fragment is here. `None`:
    /// given up; what still comes is dropped until the time is over (RFC 5722 section 3).
    buffer: Option<Buffer>,
    /// Received parts of the payload, in order, never touching.
    parts: SmallVec<[Part; 4]>,
    /// Length of the payload, known with the last fragment.
    len: Option<usize>,
    /// Length of the header, known with the first fragment.
    header_len: Option<usize>,
    /// Some fragment met congestion (RFC 3168 section 5.3).
    congested: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    start: usize,
    end: usize,
}

impl Reassembly {
    pub(crate) fn new(secret: &Secret) -> Self {
        Self {
            partial: HashMap::with_hasher(KeyedHash::new(secret, "reassembly")),
            order: VecDeque::new(),
            next_serial: 0,
            bytes: 0,
        }
    }

    /// Takes a fragment: `packet` is cut to the length its header says. Gives the datagram if this
    /// was its last missing piece.
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        header: &Ipv4Header,
        packet: &[u8],
        pool: &mut BufferPool,
        counters: &mut IpCounters,
    ) -> Result<Option<Whole>, DropReason> {
        let (head, payload) = packet.split_at(header.header_len);
        let part = Part::of(header, payload.len())?;
        let key =
            Key { src: header.src, dst: header.dst, id: header.id, protocol: header.protocol };
        self.make_room(now, key, pool, counters);
        let partial = self.partial.get_mut(&key).expect("make_room has inserted the key");
        let held = partial.buffer_len();
        let result = partial.insert(header, head, part, payload, pool);
        self.bytes = self.bytes - held + partial.buffer_len();
        if result? != Completeness::Complete {
            return Ok(None);
        }
        self.bytes -= partial.buffer_len();
        let whole = self.partial.remove(&key).and_then(Partial::into_whole);
        counters.reassembled_rx += 1;
        self.forget_void_ages();
        Ok(whole)
    }

    /// Gives up datagrams whose time is over.
    pub(crate) fn poll(&mut self, now: Instant, pool: &mut BufferPool, counters: &mut IpCounters) {
        while let Some(&age) = self.order.front()
            && (age.expires <= now || !self.is_current(&age))
        {
            if self.remove_oldest(pool) {
                counters.reassembly_timeouts += 1;
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.order.front().map(|age| age.expires)
    }

    /// Makes sure `key` is in the table, and that the table stays small enough.
    fn make_room(
        &mut self,
        now: Instant,
        key: Key,
        pool: &mut BufferPool,
        counters: &mut IpCounters,
    ) {
        if self.partial.contains_key(&key) && self.bytes <= BYTES_MAX {
            return;
        }
        while !self.order.is_empty()
            && (self.partial.len() >= DATAGRAMS_MAX || self.bytes > BYTES_MAX)
        {
            if self.remove_oldest(pool) {
                counters.reassembly_evictions += 1;
            }
        }
        let serial = self.next_serial;
        self.partial.entry(key).or_insert_with(|| {
            self.next_serial += 1;
            self.order.push_back(Age { key, serial, expires: now + TIMEOUT });
            Partial::new(serial)
        });
    }

    /// Takes the front of `order` off; whether that ended a datagram not given up before.
    fn remove_oldest(&mut self, pool: &mut BufferPool) -> bool {
        let Some(age) = self.order.pop_front() else { return false };
        if !self.is_current(&age) {
            return false;
        }
        let buffer = self.partial.remove(&age.key).and_then(|partial| partial.buffer);
        let Some(buffer) = buffer else { return false };
        self.bytes -= buffer.len();
        pool.put(buffer);
        true
    }

    fn is_current(&self, age: &Age) -> bool {
        self.partial.get(&age.key).is_some_and(|partial| partial.serial == age.serial)
    }

    /// Datagrams complete out of order; without this their marks would pile up behind the oldest
    /// one that waits. Amortised O(1): half of what is looked at goes.
    fn forget_void_ages(&mut self) {
        if self.order.len() > 2 * self.partial.len() + VOID_AGES_MAX {
            let partial = &self.partial;
            self.order.retain(|age| {
                partial.get(&age.key).is_some_and(|partial| partial.serial == age.serial)
            });
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completeness {
    Complete,
    Missing,
}

impl Partial {
    fn new(serial: u64) -> Self {
        Self {
            serial,
            buffer: Some(Buffer::default()),
            parts: SmallVec::new(),
            len: None,
            header_len: None,
            congested: false,
        }
    }

    fn buffer_len(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    fn insert(
        &mut self,
        header: &Ipv4Header,
        head: &[u8],
        part: Part,
        payload: &[u8],
        pool: &mut BufferPool,
    ) -> Result<Completeness, DropReason> {
        let buffer = self.buffer.as_mut().ok_or(DropReason::FragmentLate)?;
        match self.parts.iter().find(|known| known.overlaps(part)) {
            None => {}
            Some(known) if known.contains(part) && buffer[part.in_buffer()] == *payload => {
                return Err(DropReason::FragmentDuplicate);
            }
            Some(_) => return Err(self.give_up(DropReason::FragmentOverlap, pool)),
        }
        let received_to = self.parts.last().map_or(0, |last| last.end);
        let len_is_wrong = match self.len {
            Some(len) => part.end > len || !header.more_fragments(),
            None => !header.more_fragments() && part.end < received_to,
        };
        if len_is_wrong {
            return Err(self.give_up(DropReason::FragmentOverlap, pool));
        }
        if self.parts.len() >= PARTS_MAX {
            return Err(self.give_up(DropReason::FragmentLimit, pool));
        }
        if PAYLOAD_AT + part.end > buffer.len() {
            grow(buffer, PAYLOAD_AT + part.end, PAYLOAD_AT + received_to, pool);
        }
        buffer[part.in_buffer()].copy_from_slice(payload);
        if part.start == 0 {
            buffer[PAYLOAD_AT - head.len()..PAYLOAD_AT].copy_from_slice(head);
            self.header_len = Some(head.len());
        }
        if !header.more_fragments() {
            self.len = Some(part.end);
        }
        self.congested |= header.tos & ECN_MASK == ECN_MASK;
        self.add_part(part);
        Ok(self.completeness())
    }

    fn add_part(&mut self, part: Part) {
        let at = self.parts.partition_point(|known| known.start < part.start);
        let joins_next = self.parts.get(at).is_some_and(|next| next.start == part.end);
        let joins_previous = at > 0 && self.parts[at - 1].end == part.start;
        match (joins_previous, joins_next) {
            (true, true) => self.parts[at - 1].end = self.parts.remove(at).end,
            (true, false) => self.parts[at - 1].end = part.end,
            (false, true) => self.parts[at].start = part.start,
            (false, false) => self.parts.insert(at, part),
        }
    }

    fn completeness(&self) -> Completeness {
        match (self.len, self.parts.as_slice()) {
            (Some(len), [Part { start: 0, end }]) if *end == len => Completeness::Complete,
            _ => Completeness::Missing,
        }
    }

    fn give_up(&mut self, reason: DropReason, pool: &mut BufferPool) -> DropReason {
        if let Some(buffer) = self.buffer.take() {
            pool.put(buffer);
        }
        self.parts = SmallVec::new();
        reason
    }

    fn into_whole(self) -> Option<Whole> {
        let (mut buffer, header_len, len) = (self.buffer?, self.header_len?, self.len?);
        let start = PAYLOAD_AT - header_len;
        let total_len = u16::try_from(header_len + len).ok()?;
        if self.congested {
            buffer[start + 1] |= ECN_MASK;
        }
        ipv4::make_whole(&mut buffer[start..PAYLOAD_AT], total_len);
        Some(Whole { buffer, start, end: PAYLOAD_AT + len })
    }
}

impl Whole {
    /// The packet, IP header first.
    pub(crate) fn packet(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(crate) fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl Part {
    /// The place of a fragment in its datagram.
    fn of(header: &Ipv4Header, len: usize) -> Result<Self, DropReason> {
        let start = header.fragment_offset();
        let end = start + len;
        let breaks_grid = header.more_fragments() && !len.is_multiple_of(8);
        if len == 0 || breaks_grid || end + header.header_len > wire::IPV4_TOTAL_MAX {
            return Err(DropReason::BadFragment);
        }
        Ok(Self { start, end })
    }

    fn overlaps(self, other: Part) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn contains(self, other: Part) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    fn in_buffer(self) -> core::ops::Range<usize> {
        PAYLOAD_AT + self.start..PAYLOAD_AT + self.end
    }
}

fn grow(buffer: &mut Buffer, len: usize, used: usize, pool: &mut BufferPool) {
    let mut larger = pool.take(len);
    let used = used.min(buffer.len());
    larger[..used].copy_from_slice(&buffer[..used]);
    let old = core::mem::replace(buffer, larger);
    pool.put(old);
}

/// Both ECN bits: congestion experienced.
const ECN_MASK: u8 = 0b11;

/// Room in front of the payload for the longest IP header.
const PAYLOAD_AT: usize = wire::IPV4_LEN_MAX;

/// RFC 1122 asks for 60 to 120 s, Linux waits 30 s (`ipfrag_time`). At today's rates ids come
/// round in seconds and a longer wait mixes datagrams.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Linux's `ipfrag_high_thresh`.
const BYTES_MAX: usize = 4 << 20;

/// Datagrams under way, those given up included.
const DATAGRAMS_MAX: usize = 1_024;

/// Holes a datagram may have: 65,507 bytes at the smallest MTU that is used (576) are 119
/// fragments, so every second one may be missing. Bounds the work per fragment.
const PARTS_MAX: usize = 64;

/// Slack before void entries are swept out.
const VOID_AGES_MAX: usize = 64;
