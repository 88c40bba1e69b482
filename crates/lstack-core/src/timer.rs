//! One timer per id, armed and cancelled in constant time.
//!
//! A hierarchical wheel: level `n` has 64 slots of 64^n microseconds, a timer sits in the level of
//! the highest digit (base 64) in which its deadline differs from the present, and moves down as
//! the present reaches its slot. Eleven levels cover every 64-bit deadline, so there is no overflow
//! list. Deadlines are exact to the microsecond; [`TimerWheel::next_deadline`] may come early by
//! the width of a slot, which costs at most one empty poll per level.
//!
//! A heap would cost O(log n) per re-arm; with 100,000 connections that re-arm on every ACK this
//! is what shows. Owners also re-arm lazily: a deadline that moves later stays where it is, and the
//! owner looks again when it fires.

const LEVELS: usize = 11;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const NONE: u32 = u32::MAX;
const UNARMED: u16 = u16::MAX;

/// Timers named by dense ids.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    now: u64,
    occupied: [u64; LEVELS],
    heads: Box<[u32; LEVELS * SLOTS]>,
    nodes: Vec<Node>,
    armed: usize,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    deadline: u64,
    next: u32,
    previous: u32,
    /// Index into `heads`, or `UNARMED`.
    bucket: u16,
}

/// Memory of one timer.
#[cfg(test)]
pub(crate) const NODE_LEN: usize = size_of::<Node>();

const IDLE: Node = Node { deadline: 0, next: NONE, previous: NONE, bucket: UNARMED };

impl TimerWheel {
    pub(crate) fn new() -> Self {
        Self {
            now: 0,
            occupied: [0; LEVELS],
            heads: Box::new([NONE; LEVELS * SLOTS]),
            nodes: Vec::new(),
            armed: 0,
        }
    }

    /// Arms the timer, or moves it. A deadline that has passed fires with the next microsecond.
    pub(crate) fn arm(&mut self, id: u32, deadline: u64) {
        if self.nodes.len() <= id as usize {
            self.nodes.resize(id as usize + 1, IDLE);
        }
        self.cancel(id);
        // Not at the present: a timer re-armed by its own expiry must not fire twice in one poll.
        self.nodes[id as usize].deadline = deadline.max(self.now + 1);
        self.insert(id);
        self.armed += 1;
    }

    /// Disarms the timer; harmless when it is not armed.
    pub(crate) fn cancel(&mut self, id: u32) {
        let Some(node) = self.nodes.get(id as usize).copied() else { return };
        if node.bucket == UNARMED {
            return;
        }
        self.armed -= 1;
        self.unlink(id, node);
    }

    /// The next timer due at `now`, which is then unarmed.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<u32> {
        while let Some((level, slot, start)) = self.earliest() {
            if start > now {
                break;
            }
            self.now = self.now.max(start);
            let bucket = level * SLOTS + slot;
            if level == 0 {
                self.armed -= 1;
                return Some(self.take_head(bucket));
            }
            // All of the slot at once: one left behind would no longer come after the timers of the
            // levels below, and be overtaken by the present.
            while self.heads[bucket] != NONE {
                let id = self.take_head(bucket);
                self.insert(id);
            }
        }
        self.now = self.now.max(now);
        None
    }

    /// When to call [`Self::pop_due`] next: never later than the earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.earliest().map(|(_, _, start)| start)
    }

    /// How many timers are armed.
    #[cfg(test)]
    pub(crate) fn armed(&self) -> usize {
        self.armed
    }

    /// Level, slot and start time of the first occupied slot. All timers of a lower level come
    /// before all timers of a higher one, because they agree with the present in more digits.
    fn earliest(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|&bits| bits != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let shift = SLOT_BITS * level as u32;
        let above = shift + SLOT_BITS;
        let base = if above >= u64::BITS { 0 } else { self.now >> above << above };
        Some((level, slot, base | (slot as u64) << shift))
    }

    fn insert(&mut self, id: u32) {
        let deadline = self.nodes[id as usize].deadline;
        let differing = (deadline ^ self.now) | (SLOTS as u64 - 1);
        let level = ((u64::BITS - 1 - differing.leading_zeros()) / SLOT_BITS) as usize;
        let slot = (deadline >> (SLOT_BITS * level as u32)) as usize & (SLOTS - 1);
        let bucket = level * SLOTS + slot;
        let head = self.heads[bucket];
        if head != NONE {
            self.nodes[head as usize].previous = id;
        }
        let node = &mut self.nodes[id as usize];
        node.next = head;
        node.previous = NONE;
        node.bucket = bucket as u16;
        self.heads[bucket] = id;
        self.occupied[level] |= 1 << slot;
    }

    fn take_head(&mut self, bucket: usize) -> u32 {
        let id = self.heads[bucket];
        let node = self.nodes[id as usize];
        self.unlink(id, node);
        id
    }

    fn unlink(&mut self, id: u32, node: Node) {
        let bucket = usize::from(node.bucket);
        if node.previous == NONE {
            self.heads[bucket] = node.next;
            if node.next == NONE {
                self.occupied[bucket / SLOTS] &= !(1 << (bucket % SLOTS));
            }
        } else {
            self.nodes[node.previous as usize].next = node.next;
        }
        if node.next != NONE {
            self.nodes[node.next as usize].previous = node.previous;
        }
        self.nodes[id as usize].bucket = UNARMED;
    }
}

#[cfg(test)]
mod tests {
    use super::TimerWheel;

    fn drain(wheel: &mut TimerWheel, now: u64) -> Vec<u32> {
        let mut due: Vec<u32> = core::iter::from_fn(|| wheel.pop_due(now)).collect();
        due.sort_unstable();
        due
    }

    #[test]
    fn timers_fire_at_their_microsecond_and_not_before() {
        let mut wheel = TimerWheel::new();
        for (id, deadline) in [1, 63, 64, 65, 4095, 4096, 200_000, 7_200_000_000].iter().enumerate()
        {
            wheel.arm(id as u32, *deadline);
        }
        assert_eq!(drain(&mut wheel, 62), [0]);
        assert_eq!(drain(&mut wheel, 64), [1, 2]);
        assert_eq!(drain(&mut wheel, 4095), [3, 4]);
        assert_eq!(drain(&mut wheel, 199_999), [5]);
        assert_eq!(drain(&mut wheel, 7_199_999_999), [6]);
        assert_eq!(drain(&mut wheel, 7_200_000_000), [7]);
        assert_eq!(wheel.next_deadline(), None);
    }

    #[test]
    fn a_cancelled_or_moved_timer_does_not_fire_at_its_old_time() {
        let mut wheel = TimerWheel::new();
        wheel.arm(0, 100);
        wheel.arm(1, 100);
        wheel.arm(2, 100);
        wheel.cancel(1);
        wheel.cancel(1);
        wheel.arm(2, 5_000);
        assert_eq!(drain(&mut wheel, 200), [0]);
        assert_eq!(wheel.armed(), 1);
        assert_eq!(drain(&mut wheel, 5_000), [2]);
    }

    #[test]
    fn a_timer_armed_in_the_past_fires_once_at_the_next_microsecond() {
        let mut wheel = TimerWheel::new();
        assert_eq!(drain(&mut wheel, 1_000), [] as [u32; 0]);
        wheel.arm(3, 10);
        assert_eq!(wheel.pop_due(1_000), None);
        assert_eq!(drain(&mut wheel, 1_001), [3]);
    }

    #[test]
    fn timers_that_share_a_slot_all_fire_however_far_time_jumps() {
        let mut wheel = TimerWheel::new();
        // One slot of level 2; the last one armed is its head.
        for (id, deadline) in [4_200, 4_300, 8_000].iter().enumerate() {
            wheel.arm(id as u32, *deadline);
        }
        assert_eq!(drain(&mut wheel, 8_100), [0, 1, 2]);
        assert_eq!(wheel.next_deadline(), None);
    }

    #[test]
    fn jumps_of_any_length_fire_what_is_due_and_nothing_else() {
        let mut wheel = TimerWheel::new();
        let mut armed = std::collections::BTreeMap::new();
        let mut state = 99_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        let mut now = 4_294_960_000;
        for round in 0..20_000 {
            let id = (random() % 64) as u32;
            let deadline = now + 1 + (random() >> (random() % 31));
            wheel.arm(id, deadline);
            armed.insert(id, deadline);
            if round % 3 == 0 {
                now += random() >> (random() % 31);
                let fired = drain(&mut wheel, now);
                let due: Vec<u32> =
                    armed.iter().filter(|(_, at)| **at <= now).map(|(&id, _)| id).collect();
                armed.retain(|_, at| *at > now);
                assert_eq!(fired, due, "at {now}");
            }
        }
    }

    #[test]
    fn following_next_deadline_meets_every_timer_exactly() {
        let mut wheel = TimerWheel::new();
        let mut state = 12_345_u64;
        let mut expected = Vec::new();
        for id in 0..500 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let deadline = 1 + (state >> 33) % 100_000_000;
            wheel.arm(id, deadline);
            expected.push((deadline, id));
        }
        expected.sort_unstable();
        let mut fired = Vec::new();
        while let Some(now) = wheel.next_deadline() {
            while let Some(id) = wheel.pop_due(now) {
                fired.push((now, id));
            }
        }
        fired.sort_unstable();
        assert_eq!(fired, expected);
    }
}
