//! From a segment's four-tuple to whatever handles it, and the secrets that depend on the tuple.
//!
//! The tuple is chosen by the peer, so the hash is keyed. The table holds only a hash and a
//! reference per flow (8 bytes); the tuple itself is compared where the flow lives, in memory that
//! the segment needs anyway.

use core::hash::{BuildHasher, Hasher};
use core::net::{IpAddr, SocketAddr};

use super::seq::Seq;
use crate::config::Secret;
use crate::random::KeyedHash;

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowKey {
    pub local: IpAddr,
    pub remote: IpAddr,
    pub local_port: u16,
    pub remote_port: u16,
}

impl FlowKey {
    pub(super) fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.local, self.local_port)
    }

    pub(super) fn remote_addr(&self) -> SocketAddr {
        SocketAddr::new(self.remote, self.remote_port)
    }

    pub(super) fn feed(&self, hasher: &mut impl Hasher) {
        // Whole words: the hasher's cost is per call and per 8 bytes.
        match (self.local, self.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                hasher.write_u64(u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits()));
            }
            (local, remote) => {
                for address in [local, remote] {
                    match address {
                        IpAddr::V4(address) => hasher.write_u32(address.to_bits()),
                        IpAddr::V6(address) => hasher.write(&address.octets()),
                    }
                }
            }
        }
        hasher.write_u32(u32::from(self.local_port) << 16 | u32::from(self.remote_port));
    }
}

/// Who handles a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowRef {
    /// A connection, by socket slot.
    Connection(u32),
    /// A handshake a listener has answered, by slot.
    HalfOpen(u32),
    /// A `TIME_WAIT` record, by slot.
    TimeWait(u32),
}

/// [`FlowRef`] in 32 bits: two of kind, thirty of index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed(u32);

const KIND_SHIFT: u32 = 30;
const INDEX_MASK: u32 = (1 << KIND_SHIFT) - 1;

impl Packed {
    const EMPTY: Packed = Packed(u32::MAX);

    fn new(flow: FlowRef) -> Self {
        match flow {
            FlowRef::Connection(slot) => Self(slot),
            FlowRef::HalfOpen(slot) => Self(slot | 1 << KIND_SHIFT),
            FlowRef::TimeWait(slot) => Self(slot | 2 << KIND_SHIFT),
        }
    }

    fn flow(self) -> FlowRef {
        let index = self.0 & INDEX_MASK;
        match self.0 >> KIND_SHIFT {
            0 => FlowRef::Connection(index),
            1 => FlowRef::HalfOpen(index),
            _ => FlowRef::TimeWait(index),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    hash: u32,
    flow: Packed,
}

const EMPTY_CELL: Cell = Cell { hash: 0, flow: Packed::EMPTY };

/// Cells of an empty table; it doubles at three quarters full.
const CELLS_MIN: usize = 64;

/// All flows of a stack, with linear probing and no tombstones.
#[derive(Debug)]
pub(super) struct FlowTable {
    hash: KeyedHash,
    cells: Vec<Cell>,
    len: usize,
}

impl FlowTable {
    pub(super) fn new(secret: &Secret) -> Self {
        Self {
            hash: KeyedHash::new(secret, "tcp flow table"),
            cells: vec![EMPTY_CELL; CELLS_MIN],
            len: 0,
        }
    }

    pub(super) fn hash(&self, key: &FlowKey) -> u32 {
        let mut hasher = self.hash.build_hasher();
        key.feed(&mut hasher);
        // The lower half; all bits of the hash are equally good.
        hasher.finish() as u32
    }

    /// The flow with this hash that `is` the one sought.
    pub(super) fn find(&self, hash: u32, is: impl Fn(FlowRef) -> bool) -> Option<FlowRef> {
        let mut at = self.home(hash);
        loop {
            let cell = self.cells[at];
            if cell.flow == Packed::EMPTY {
                return None;
            }
            if cell.hash == hash && is(cell.flow.flow()) {
                return Some(cell.flow.flow());
            }
            at = self.after(at);
        }
    }

    /// Adds a flow that is not there.
    pub(super) fn insert(&mut self, hash: u32, flow: FlowRef) {
        if (self.len + 1) * 4 > self.cells.len() * 3 {
            self.grow();
        }
        self.len += 1;
        self.place(Cell { hash, flow: Packed::new(flow) });
    }

    /// Puts `new` in the place of `old`, which has the same tuple.
    pub(super) fn replace(&mut self, hash: u32, old: FlowRef, new: FlowRef) {
        if let Some(at) = self.position(hash, old) {
            self.cells[at].flow = Packed::new(new);
        }
    }

    /// Removes a flow; harmless when it is not there.
    pub(super) fn remove(&mut self, hash: u32, flow: FlowRef) {
        let Some(mut hole) = self.position(hash, flow) else { return };
        self.len -= 1;
        // Close the gap: whatever probed past the hole moves into it.
        let mut at = self.after(hole);
        while self.cells[at].flow != Packed::EMPTY {
            let home = self.home(self.cells[at].hash);
            let mask = self.cells.len() - 1;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.cells[hole] = self.cells[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.cells[hole] = EMPTY_CELL;
    }

    fn position(&self, hash: u32, flow: FlowRef) -> Option<usize> {
        let packed = Packed::new(flow);
        let mut at = self.home(hash);
        loop {
            let cell = self.cells[at];
            if cell.flow == packed {
                return Some(at);
            }
            if cell.flow == Packed::EMPTY {
                return None;
            }
            at = self.after(at);
        }
    }

    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.cells.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.cells.len() - 1)
    }

    fn place(&mut self, cell: Cell) {
        let mut at = self.home(cell.hash);
        while self.cells[at].flow != Packed::EMPTY {
            at = self.after(at);
        }
        self.cells[at] = cell;
    }

    fn grow(&mut self) {
        let doubled = vec![EMPTY_CELL; self.cells.len() * 2];
        for cell in core::mem::replace(&mut self.cells, doubled) {
            if cell.flow != Packed::EMPTY {
                self.place(cell);
            }
        }
    }
}

/// Initial sequence numbers and timestamp offsets, RFC 6528 and RFC 7323 section 5.4: a keyed hash
/// of the four-tuple, so that nobody else can guess them, plus (for the sequence number) a clock,
/// so that a new life of the same tuple starts above the old one.
#[derive(Debug)]
pub(super) struct FlowSecrets {
    isn: KeyedHash,
    timestamp: KeyedHash,
}

/// Sequence numbers per microsecond of the clock: 16 MB/s, Linux's rate. Faster old lives are told
/// apart by timestamps.
const ISN_PER_MICROSECOND: u64 = 16;

impl FlowSecrets {
    pub(super) fn new(secret: &Secret) -> Self {
        Self {
            isn: KeyedHash::new(secret, "tcp initial sequence number"),
            timestamp: KeyedHash::new(secret, "tcp timestamp offset"),
        }
    }

    /// Initial sequence number for a connection that starts at `now` (microseconds).
    pub(super) fn initial_seq(&self, key: &FlowKey, now: u64) -> Seq {
        let mut hasher = self.isn.build_hasher();
        key.feed(&mut hasher);
        Seq(hasher.finish().wrapping_add(now.wrapping_mul(ISN_PER_MICROSECOND)) as u32)
    }

    /// What to add to the clock to get the tuple's timestamps. The same for every life of the
    /// tuple, so that its timestamps keep rising.
    pub(super) fn timestamp_offset(&self, key: &FlowKey) -> u32 {
        let mut hasher = self.timestamp.build_hasher();
        key.feed(&mut hasher);
        hasher.finish() as u32
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;
    use std::collections::HashMap;

    use super::{FlowKey, FlowRef, FlowSecrets, FlowTable};
    use crate::config::Secret;

    fn key(n: u32) -> FlowKey {
        FlowKey {
            local: IpAddr::from([10, 0, 0, 1]),
            remote: IpAddr::from((0x0a00_0100 + n / 60_000).to_be_bytes()),
            local_port: 80,
            remote_port: (n % 60_000) as u16,
        }
    }

    #[test]
    fn the_table_agrees_with_a_model_through_inserts_and_removals() {
        let mut table = FlowTable::new(&Secret([3; 32]));
        let mut model = HashMap::new();
        let mut state = 1_u64;
        for round in 0..40_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = (state >> 40) as u32 % 3_000;
            let hash = table.hash(&key(n));
            if let Some(flow) = model.remove(&n) {
                table.remove(hash, flow);
            } else {
                let flow = match round % 3 {
                    0 => FlowRef::Connection(n),
                    1 => FlowRef::HalfOpen(n),
                    _ => FlowRef::TimeWait(n),
                };
                table.insert(hash, flow);
                model.insert(n, flow);
            }
        }
        for n in 0..3_000 {
            let hash = table.hash(&key(n));
            let of = |flow| match flow {
                FlowRef::Connection(n) | FlowRef::HalfOpen(n) | FlowRef::TimeWait(n) => n,
            };
            assert_eq!(table.find(hash, |flow| of(flow) == n), model.get(&n).copied());
        }
        assert_eq!(table.len, model.len());
    }

    #[test]
    fn sequence_numbers_differ_by_tuple_and_rise_with_time() {
        let secrets = FlowSecrets::new(&Secret([9; 32]));
        let first = secrets.initial_seq(&key(1), 1_000);
        assert_ne!(first, secrets.initial_seq(&key(2), 1_000));
        assert_eq!(secrets.initial_seq(&key(1), 2_000), first + 16_000);
        assert_ne!(secrets.timestamp_offset(&key(1)), secrets.timestamp_offset(&key(2)));
    }
}
