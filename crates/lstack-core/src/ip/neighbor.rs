//! Hardware addresses of the hosts on our link, and the packets that wait for one.
//!
//! An address in use is confirmed by a unicast request from time to time, so it never runs out
//! under traffic; one that stays unconfirmed is asked for by broadcast; after that its packets
//! have failed. The table says what to ask, [`super::arp`] turns it into frames.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};

use super::buffer::{BufferPool, Frame};
use super::counters::IpCounters;
use super::ethernet::{Ethernet, Mac};
use crate::config::Secret;
use crate::random::KeyedHash;
use crate::time::Instant;

/// The table. All work is O(1), whatever its size.
#[derive(Debug)]
pub(crate) struct Neighbors {
    capacity: usize,
    index: HashMap<Ipv4Addr, u32, KeyedHash>,
    slots: Vec<Neighbor>,
    free: Vec<u32>,
    /// Slot last found for the addresses that fall on each place: spares the hash. A guess that
    /// is checked against the slot, so it needs no upkeep.
    hints: Vec<u32>,
    /// Next candidate for eviction.
    clock_hand: usize,
    /// When to ask again. All are asked in the same interval, so the order of entry is the order
    /// of time. An entry whose `attempt` is not its neighbour's any more is void.
    probes: VecDeque<Probe>,
    requests: VecDeque<Request>,
    failed: VecDeque<Frame>,
    pending_bytes: usize,
}

/// A question for the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub target: Ipv4Addr,
    /// Ask this host alone; `None` asks everybody.
    pub mac: Option<Mac>,
}

/// How we came to hear of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It asked for us, so we are about to talk to it.
    Asker,
    /// It answered us, or announced itself.
    Announcement,
}

#[derive(Debug)]
struct Neighbor {
    address: Ipv4Addr,
    mac: Mac,
    state: State,
    /// Used since the clock hand passed.
    referenced: bool,
    requests_sent: u8,
    /// Changes with every change of state; tells valid probes from void ones.
    attempt: u32,
    /// When an address in use is to be confirmed.
    confirm_at: Instant,
    pending: VecDeque<Frame>,
    pending_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The slot is empty.
    Free,
    /// Asked for by broadcast; packets wait.
    Incomplete,
    /// Known.
    Reachable,
    /// Known, and being confirmed by unicast.
    Confirming,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    due: Instant,
    slot: u32,
    attempt: u32,
}

impl Neighbors {
    pub(crate) fn new(capacity: usize, secret: &Secret) -> Self {
        Self {
            capacity: capacity.max(1),
            index: HashMap::with_hasher(KeyedHash::new(secret, "neighbors")),
            slots: Vec::new(),
            free: Vec::new(),
            hints: vec![0; HINTS],
            clock_hand: 0,
            probes: VecDeque::new(),
            requests: VecDeque::new(),
            failed: VecDeque::new(),
            pending_bytes: 0,
        }
    }

    /// The hardware address of `address`. `None`: it has been asked for; a packet for it goes to
    /// [`Self::hold`].
    pub(crate) fn resolve(
        &mut self,
        now: Instant,
        address: Ipv4Addr,
        pool: &mut BufferPool,
        counters: &mut IpCounters,
    ) -> Option<Mac> {
        let Some(slot) = self.find(address) else {
            // Not marked as used: the clock hand reaches it last, and a scan over many addresses
            // does not push out those in use.
            self.insert_incomplete(now, address, pool, counters);
            return None;
        };
        let neighbor = &mut self.slots[slot as usize];
        neighbor.referenced = true;
        match neighbor.state {
            State::Reachable if now >= neighbor.confirm_at => {
                neighbor.state = State::Confirming;
                self.ask_first(now, slot);
            }
            State::Reachable | State::Confirming => {}
            State::Incomplete | State::Free => return None,
        }
        Some(self.slots[slot as usize].mac)
    }

    /// Keeps a frame for a neighbour that [`Self::resolve`] has just asked for. The oldest go when
    /// there are too many.
    pub(crate) fn hold(
        &mut self,
        address: Ipv4Addr,
        frame: Frame,
        pool: &mut BufferPool,
        counters: &mut IpCounters,
    ) {
        let Some(slot) = self.find(address) else {
            counters.tx_drop_neighbor_queue += 1;
            return pool.put_frame(frame);
        };
        let neighbor = &mut self.slots[slot as usize];
        let len = frame.bytes().len();
        while neighbor.pending_bytes + len > PENDING_PER_NEIGHBOR
            || self.pending_bytes + len > PENDING_TOTAL
        {
            counters.tx_drop_neighbor_queue += 1;
            let Some(oldest) = neighbor.pending.pop_front() else {
                return pool.put_frame(frame);
            };
            neighbor.pending_bytes -= oldest.bytes().len();
            self.pending_bytes -= oldest.bytes().len();
            pool.put_frame(oldest);
        }
        neighbor.pending_bytes += len;
        self.pending_bytes += len;
        neighbor.pending.push_back(frame);
    }

    /// An ARP packet says that `address` is at `mac`. Frames that waited for it go to `ready`.
    ///
    /// Only addresses we asked about are learnt, and those who ask for us while there is room:
    /// others could fill the table with inventions.
    pub(crate) fn learn(
        &mut self,
        now: Instant,
        address: Ipv4Addr,
        mac: Mac,
        source: Source,
        ready: &mut VecDeque<Frame>,
        counters: &mut IpCounters,
    ) {
        let slot = match self.find(address) {
            Some(slot) => slot,
            None if source == Source::Asker && self.index.len() < self.capacity => {
                self.insert(address)
            }
            None => return,
        };
        let neighbor = &mut self.slots[slot as usize];
        let known = matches!(neighbor.state, State::Reachable | State::Confirming);
        if known && neighbor.mac != mac {
            counters.neighbor_mac_changes += 1;
        }
        neighbor.mac = mac;
        neighbor.state = State::Reachable;
        neighbor.attempt = neighbor.attempt.wrapping_add(1);
        neighbor.confirm_at = now + CONFIRM_AFTER;
        self.pending_bytes -= core::mem::take(&mut neighbor.pending_bytes);
        for mut frame in neighbor.pending.drain(..) {
            Ethernet::set_destination(frame.bytes_mut(), mac);
            ready.push_back(frame);
        }
    }

    /// Asks again where an answer is overdue, and gives up where it was asked often enough.
    pub(crate) fn poll(&mut self, now: Instant, counters: &mut IpCounters) {
        while let Some(&probe) = self.probes.front()
            && probe.due <= now
        {
            self.probes.pop_front();
            let neighbor = &mut self.slots[probe.slot as usize];
            if neighbor.attempt != probe.attempt {
                continue;
            }
            if neighbor.requests_sent < REQUESTS {
                self.ask(now, probe.slot);
            } else if neighbor.state == State::Confirming {
                // It may have moved: everybody is asked, and packets wait from now on.
                neighbor.state = State::Incomplete;
                self.ask_first(now, probe.slot);
            } else {
                counters.neighbor_failures += 1;
                counters.tx_drop_neighbor_failed += neighbor.pending.len() as u64;
                self.pending_bytes -= core::mem::take(&mut neighbor.pending_bytes);
                self.failed.append(&mut neighbor.pending);
                self.remove(probe.slot);
            }
        }
    }

    /// The next question for the wire; gone with this call.
    pub(crate) fn take_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Puts back what [`Self::take_request`] gave and the device had no room for.
    pub(crate) fn untake_request(&mut self, request: Request) {
        self.requests.push_front(request);
    }

    pub(crate) fn wants_transmit(&self) -> bool {
        !self.requests.is_empty()
    }

    /// The next packet whose neighbour did not answer.
    pub(crate) fn take_failed(&mut self) -> Option<Frame> {
        self.failed.pop_front()
    }

    /// Whether packets wait for a neighbour's answer.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending_bytes > 0
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.probes.front().map(|probe| probe.due)
    }

    fn find(&mut self, address: Ipv4Addr) -> Option<u32> {
        let hint = hint_for(address);
        let guess = self.hints[hint];
        if let Some(neighbor) = self.slots.get(guess as usize)
            && neighbor.address == address
            && neighbor.state != State::Free
        {
            return Some(guess);
        }
        let slot = *self.index.get(&address)?;
        self.hints[hint] = slot;
        Some(slot)
    }

    fn insert_incomplete(
        &mut self,
        now: Instant,
        address: Ipv4Addr,
        pool: &mut BufferPool,
        counters: &mut IpCounters,
    ) {
        if self.index.len() >= self.capacity {
            self.evict(pool, counters);
        }
        let slot = self.insert(address);
        self.ask_first(now, slot);
    }

    fn insert(&mut self, address: Ipv4Addr) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Neighbor::empty());
            u32::try_from(self.slots.len() - 1).expect("capacity is far below 2^32")
        });
        let neighbor = &mut self.slots[slot as usize];
        neighbor.address = address;
        neighbor.state = State::Incomplete;
        neighbor.referenced = false;
        self.index.insert(address, slot);
        slot
    }

    /// Second chance: the hand passes over those used since its last visit.
    fn evict(&mut self, pool: &mut BufferPool, counters: &mut IpCounters) {
        // Two rounds: the first may do nothing but clear marks.
        for _ in 0..=2 * self.slots.len() {
            self.clock_hand = (self.clock_hand + 1) % self.slots.len();
            let neighbor = &mut self.slots[self.clock_hand];
            if neighbor.state == State::Free || core::mem::take(&mut neighbor.referenced) {
                continue;
            }
            counters.neighbor_evictions += 1;
            counters.tx_drop_neighbor_queue += neighbor.pending.len() as u64;
            self.pending_bytes -= core::mem::take(&mut neighbor.pending_bytes);
            for frame in neighbor.pending.drain(..) {
                pool.put_frame(frame);
            }
            let slot = u32::try_from(self.clock_hand).expect("capacity is far below 2^32");
            return self.remove(slot);
        }
    }

    fn remove(&mut self, slot: u32) {
        let neighbor = &mut self.slots[slot as usize];
        neighbor.state = State::Free;
        neighbor.attempt = neighbor.attempt.wrapping_add(1);
        self.index.remove(&neighbor.address);
        self.free.push(slot);
    }

    /// Starts asking in the state the neighbour is in now.
    fn ask_first(&mut self, now: Instant, slot: u32) {
        let neighbor = &mut self.slots[slot as usize];
        neighbor.attempt = neighbor.attempt.wrapping_add(1);
        neighbor.requests_sent = 0;
        self.ask(now, slot);
    }

    fn ask(&mut self, now: Instant, slot: u32) {
        let neighbor = &mut self.slots[slot as usize];
        neighbor.requests_sent += 1;
        let mac = (neighbor.state == State::Confirming).then_some(neighbor.mac);
        self.probes.push_back(Probe {
            due: now + REQUEST_INTERVAL,
            slot,
            attempt: neighbor.attempt,
        });
        // A device that takes nothing must not make us hoard questions; they are asked again.
        if self.requests.len() < self.capacity {
            self.requests.push_back(Request { target: neighbor.address, mac });
        }
    }
}

impl Neighbor {
    fn empty() -> Self {
        Self {
            address: Ipv4Addr::UNSPECIFIED,
            mac: [0; 6],
            state: State::Free,
            referenced: false,
            requests_sent: 0,
            attempt: 0,
            confirm_at: Instant::ZERO,
            pending: VecDeque::new(),
            pending_bytes: 0,
        }
    }
}

fn hint_for(address: Ipv4Addr) -> usize {
    usize::from(address.octets()[3])
}

/// One per value of [`hint_for`].
const HINTS: usize = 256;

/// Linux's `mcast_solicit` and `ucast_solicit`: questions before giving up.
const REQUESTS: u8 = 3;

/// Linux's `retrans_time`.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// An address in use is confirmed this often. Linux's `base_reachable_time` is 30 s, randomised
/// from half of it upwards; the lower end finds a host that moved silently sooner.
const CONFIRM_AFTER: Duration = Duration::from_secs(15);

/// Linux's `unres_qlen_bytes`: three datagrams of the largest size.
const PENDING_PER_NEIGHBOR: usize = 212_992;

/// All neighbours together; at 1,500 bytes some 2,800 packets.
const PENDING_TOTAL: usize = 4 << 20;
