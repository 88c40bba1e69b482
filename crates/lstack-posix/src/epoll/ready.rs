//! The ready list of one epoll instance.
//!
//! Events arrive here under a stack's lock ([`Watcher::on_event`]); threads in `epoll_wait` take
//! them out. The list's own mutex is the innermost lock: nothing is called while it is held.
//!
//! An item is in the queue at most once. Level-triggered items go back to its end when they are
//! told and leave it when they are found not ready, so everybody gets a turn whatever `maxevents`
//! is. What is told is always the socket's readiness at that moment, not at the time of the event.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use lstack_core::{Event, Protocol, Readiness};
use lstack_runtime::{ReadyWord, Watcher};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::errno::Errno;
use crate::kernel::{EpollEvent, Kernel};
use crate::poll::linux_bits;

/// The list, and what wakes those who wait for it.
pub(super) struct Ready {
    kernel: Arc<dyn Kernel>,
    /// Hides [`Token`]s in the 64 bits that the kernel returns, see [`super`].
    key: u64,
    /// Written to wake one thread that sleeps in the kernel's `epoll_wait`. Registered there
    /// edge-triggered: a write wakes one thread, and nobody has to read.
    wake: RawFd,
    /// Readable while the list is not empty, for those who watch the epoll descriptor from
    /// outside; registered level-triggered, made when there is somebody.
    level: OnceLock<RawFd>,
    /// Length of the queue, for a look without the lock.
    queued: AtomicUsize,
    /// Threads in `epoll_wait` that have found nothing yet.
    waiting: AtomicU32,
    list: Mutex<List>,
}

/// Names one registration; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token(u64);

/// What a registration is told of, and with which words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interest {
    /// `EPOLL*` bits, as the program gave them.
    pub(super) events: u32,
    /// The program's 64 bits.
    pub(super) data: u64,
}

/// Shared by the exclusive registrations of one socket: the last event that one of them took.
pub(super) type Claim = Arc<AtomicU64>;

/// The words of a socket's endpoints, in order.
pub(super) type Words = SmallVec<[Arc<ReadyWord>; 1]>;

#[derive(Default)]
struct List {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slot and stamp; an entry whose stamp is not its item's is void.
    queue: VecDeque<(u32, u64)>,
    last_stamp: u64,
    /// Counts gatherings: an item is told at most once in each.
    round: u64,
    /// Threads asleep in the kernel's `epoll_wait`.
    sleeping: u32,
    /// One of them has been woken and has not looked yet.
    signalled: bool,
    /// `wake` is to be written once the stack's lock is free.
    wake_due: bool,
    /// `level` is readable, or about to be.
    lit: bool,
    /// `level` is to be written once the stack's lock is free.
    light_due: bool,
    /// Somebody watches the epoll descriptor by epoll, poll or select.
    nested: bool,
    /// Descriptors of this instance on which threads have slept since before it was ours.
    outside: SmallVec<[RawFd; 1]>,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    item: Option<Item>,
}

struct Item {
    interest: Interest,
    protocol: Protocol,
    /// False once a one-shot registration has been told.
    armed: bool,
    /// Stamp of its entry in the queue; 0 when it is not in it.
    stamp: u64,
    /// The last round in which it was told.
    told: u64,
    words: Words,
    claim: Option<Claim>,
}

impl Ready {
    pub(super) fn new(kernel: Arc<dyn Kernel>, key: u64) -> Result<Arc<Self>, Errno> {
        let wake = kernel.eventfd()?;
        Ok(Arc::new(Self {
            kernel,
            key,
            wake,
            level: OnceLock::new(),
            queued: AtomicUsize::new(0),
            waiting: AtomicU32::new(0),
            list: Mutex::default(),
        }))
    }

    /// The descriptor that wakes sleepers, with how it is to be registered.
    pub(super) fn wake_entry(&self) -> (RawFd, EpollEvent) {
        let events = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
        (self.wake, EpollEvent { events, data: self.key ^ Token::WAKE.0 })
    }

    /// The bits under which a descriptor of this registration is known to the kernel.
    pub(super) fn kernel_data(&self, token: Token) -> u64 {
        self.key ^ token.0
    }

    /// Somebody watches the descriptor itself from now on, or sleeps on it unknown to us. Returns
    /// what is to be registered first, if it is not yet.
    pub(super) fn level_entry(&self) -> Result<Option<(RawFd, EpollEvent)>, Errno> {
        if self.level.get().is_some() {
            return Ok(None);
        }
        let fd = self.kernel.eventfd()?;
        // Made under the instance's control lock: there is no second one.
        let fd = *self.level.get_or_init(|| fd);
        let events = libc::EPOLLIN.cast_unsigned();
        Ok(Some((fd, EpollEvent { events, data: self.key ^ Token::LEVEL.0 })))
    }

    /// Keeps the descriptor readable while there is something, for outer epoll, poll and select.
    pub(super) fn watched_from_outside(&self) {
        let mut list = self.list.lock();
        list.nested = true;
        self.tell_and_unlock(list);
    }

    /// As [`Self::watched_from_outside`] until no thread sleeps on `fd` unknown to us.
    pub(super) fn slept_on_outside(&self, fd: RawFd) {
        self.list.lock().outside.push(fd);
    }

    pub(super) fn insert(
        &self,
        interest: Interest,
        protocol: Protocol,
        claim: Option<Claim>,
    ) -> Result<Token, Errno> {
        let mut list = self.list.lock();
        let slot = match list.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(list.slots.len()).ok().filter(|slot| *slot < Token::SLOTS);
                let slot = slot.ok_or(Errno(libc::ENOSPC))?;
                list.slots.push(Slot::default());
                slot
            }
        };
        let entry = &mut list.slots[slot as usize];
        let words = Words::new();
        let item = Item { interest, protocol, armed: true, stamp: 0, told: 0, words, claim };
        entry.item = Some(item);
        Ok(Token::new(slot, entry.generation))
    }

    pub(super) fn remove(&self, token: Token) {
        let mut list = self.list.lock();
        if list.item(token).is_some() {
            let slot = &mut list.slots[token.slot() as usize];
            slot.item = None;
            slot.generation = slot.generation.wrapping_add(1);
            list.free.push(token.slot());
        }
    }

    /// Where the readiness of the registration's socket is from now on.
    pub(super) fn set_words(&self, token: Token, words: Words) {
        if let Some(item) = self.list.lock().item(token) {
            item.words = words;
        }
    }

    /// `EPOLL_CTL_MOD`: arms it again.
    pub(super) fn modify(&self, token: Token, interest: Interest) {
        if let Some(item) = self.list.lock().item(token) {
            item.interest = interest;
            item.armed = true;
        }
    }

    /// Queues the registration if its socket is ready now; no lock of a stack is held.
    pub(super) fn reconsider(&self, token: Token) {
        let mut list = self.list.lock();
        if list.item(token).is_some_and(|item| item.armed && item.found() != 0) {
            list.enqueue(token.slot());
            self.tell_and_unlock(list);
        }
    }

    /// Whether the queue may hold something.
    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }

    /// The calling thread waits until the guard goes.
    pub(super) fn waiting(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    /// Puts what is ready behind the first `from_kernel` of `out`, which came from the kernel and
    /// are translated. Returns how many there are now.
    pub(super) fn gather(&self, out: &mut [EpollEvent], from_kernel: usize) -> usize {
        let mut list = self.list.lock();
        let count = list.gather(self.key, out, from_kernel);
        self.settle(list);
        count
    }

    /// The last look before a sleep: if it gives nothing, whatever comes later wakes the sleeper.
    pub(super) fn announce(&self, out: &mut [EpollEvent]) -> usize {
        let mut list = self.list.lock();
        let count = list.gather(self.key, out, 0);
        if count == 0 {
            list.sleeping += 1;
        }
        self.settle(list);
        count
    }

    /// After a sleep that [`Self::announce`] began: as [`Self::gather`].
    pub(super) fn awake(&self, out: &mut [EpollEvent], from_kernel: usize) -> usize {
        let mut list = self.list.lock();
        list.sleeping -= 1;
        list.signalled = false;
        let count = list.gather(self.key, out, from_kernel);
        self.settle(list);
        count
    }

    /// Removes our own wake-ups from what the kernel gave; returns how many events are left.
    pub(super) fn strip(&self, events: &mut [EpollEvent]) -> usize {
        let mut kept = 0;
        for index in 0..events.len() {
            let event = events[index];
            let token = Token(event.data ^ self.key);
            if token == Token::LEVEL {
                // Whatever we thought: a writer may have been late.
                self.list.lock().lit = true;
            }
            if !token.is_wake_up() {
                events[kept] = event;
                kept += 1;
            }
        }
        kept
    }

    /// After the queue was looked through: wakes the next sleeper if there is more (as the kernel
    /// does, one thread takes what it can and wakes the next), or lets `level` go dark.
    fn settle(&self, mut list: MutexGuard<'_, List>) {
        if !list.queue.is_empty() {
            return self.tell_and_unlock(list);
        }
        self.queued.store(0, Ordering::Release);
        if !list.lit {
            return;
        }
        list.lit = false;
        list.light_due = false;
        drop(list);
        if let Some(&fd) = self.level.get() {
            let mut count = [0; 8];
            let _ = self.kernel.read(fd, &mut count);
            // An event that came in between may have lit it before the read.
            let mut list = self.list.lock();
            if !list.queue.is_empty() {
                list.lit = false;
                self.tell_and_unlock(list);
            }
        }
    }

    fn tell_and_unlock(&self, mut list: MutexGuard<'_, List>) {
        self.queued.store(list.queue.len(), Ordering::Release);
        let due = self.must_tell(&mut list);
        drop(list);
        if due {
            self.wake();
        }
    }

    /// Notes whom to tell that the queue is not empty.
    fn must_tell(&self, list: &mut List) -> bool {
        if list.queue.is_empty() {
            return false;
        }
        if list.sleeping > 0 && !list.signalled {
            list.signalled = true;
            list.wake_due = true;
        }
        if !list.lit && self.level.get().is_some() && self.has_outside(list) {
            list.lit = true;
            list.light_due = true;
        }
        list.wake_due || list.light_due
    }

    fn has_outside(&self, list: &mut List) -> bool {
        if !list.nested && !list.outside.is_empty() {
            let mut still = SmallVec::new();
            self.kernel.epoll_sleepers(&mut |fd| {
                if list.outside.contains(&fd) && !still.contains(&fd) {
                    still.push(fd);
                }
            });
            list.outside = still;
        }
        list.nested || !list.outside.is_empty()
    }

    /// How many threads sleep.
    #[cfg(test)]
    pub(super) fn sleeping(&self) -> u32 {
        self.list.lock().sleeping
    }

    fn signal(&self, fd: RawFd) {
        // An eventfd write of 1 fails only when the counter is full, and then it is readable.
        let _ = self.kernel.write(fd, &1_u64.to_ne_bytes());
    }
}

impl Watcher for Ready {
    fn on_event(&self, token: u64, event: &Event) -> bool {
        let mut list = self.list.lock();
        let waited_for = self.waiting.load(Ordering::SeqCst) > 0;
        list.note(Token(token), event, waited_for);
        self.queued.store(list.queue.len(), Ordering::Release);
        self.must_tell(&mut list)
    }

    fn wake(&self) {
        let mut list = self.list.lock();
        let wake = std::mem::take(&mut list.wake_due);
        let light = std::mem::take(&mut list.light_due);
        drop(list);
        if wake {
            self.signal(self.wake);
        }
        if light && let Some(&fd) = self.level.get() {
            self.signal(fd);
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.kernel.close_hidden(self.wake);
        if let Some(&fd) = self.level.get() {
            self.kernel.close_hidden(fd);
        }
    }
}

/// A thread that waits.
pub(super) struct Waiting<'a>(&'a Ready);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl List {
    fn item(&mut self, token: Token) -> Option<&mut Item> {
        let slot = self.slots.get_mut(token.slot() as usize)?;
        if slot.generation != token.generation() {
            return None;
        }
        slot.item.as_mut()
    }

    fn enqueue(&mut self, slot: u32) {
        let stamp = self.last_stamp + 1;
        if let Some(item) = &mut self.slots[slot as usize].item
            && item.stamp == 0
        {
            item.stamp = stamp;
            self.last_stamp = stamp;
            self.queue.push_back((slot, stamp));
        }
    }

    fn note(&mut self, token: Token, event: &Event, waited_for: bool) {
        let Some(item) = self.item(token) else { return };
        if !item.armed || item.wanted(event.edges) == 0 && item.ignores(event.level) {
            return;
        }
        if let Some(claim) = &item.claim
            && let Some(word) = item.words.get(token.endpoint())
        {
            // The sequence number tells one event of this endpoint from all others, and the stack's
            // lock keeps the instances that watch it in line.
            let this = (token.endpoint() as u64) << 32 | u64::from(word.sequence());
            if claim.load(Ordering::Relaxed) == this {
                return;
            }
            if waited_for {
                claim.store(this, Ordering::Relaxed);
            }
        }
        self.enqueue(token.slot());
    }

    fn gather(&mut self, key: u64, out: &mut [EpollEvent], from_kernel: usize) -> usize {
        self.round += 1;
        let mut count = 0;
        for index in 0..from_kernel {
            if let Some(event) = self.translate(key, out[index]) {
                out[count] = event;
                count += 1;
            }
        }
        for _ in 0..self.queue.len() {
            if count == out.len() {
                break;
            }
            let Some((slot, stamp)) = self.queue.pop_front() else { break };
            if let Some(event) = self.take(slot, stamp) {
                out[count] = event;
                count += 1;
            }
        }
        count
    }

    /// What an event of the kernel's is for the program. One of a placeholder takes the stack's
    /// side of the same socket along.
    fn translate(&mut self, key: u64, event: EpollEvent) -> Option<EpollEvent> {
        let token = Token(event.data ^ key);
        if token.is_wake_up() {
            return None;
        }
        let round = self.round;
        let known = self.slots.get(token.slot() as usize);
        let ours = known.is_some_and(|slot| {
            token.endpoint() == 0 && slot.generation.wrapping_sub(token.generation()) <= STALE
        });
        if !ours {
            return Some(event);
        }
        // A registration that ended a moment ago is nobody's.
        let item = self.item(token)?;
        if !item.armed {
            return None;
        }
        let events = event.events | item.found();
        item.told = round;
        if item.one_shot() {
            item.armed = false;
        }
        if !item.stays() {
            item.stamp = 0;
        }
        Some(EpollEvent { events, data: item.interest.data })
    }

    fn take(&mut self, slot: u32, stamp: u64) -> Option<EpollEvent> {
        let round = self.round;
        let item = self.slots.get_mut(slot as usize)?.item.as_mut()?;
        if item.stamp != stamp {
            return None;
        }
        item.stamp = 0;
        let events = if item.armed { item.found() } else { 0 };
        if events == 0 {
            return None;
        }
        let told = item.told == round;
        item.told = round;
        let data = item.interest.data;
        if item.one_shot() {
            item.armed = false;
        }
        if item.stays() {
            self.enqueue(slot);
        }
        (!told).then_some(EpollEvent { events, data })
    }
}

impl Item {
    /// What of `readiness` it asked for; errors and hang-ups are always asked for.
    fn wanted(&self, readiness: Readiness) -> u32 {
        linux_bits(readiness, self.protocol) & (self.interest.events | ALWAYS)
    }

    /// What holds now and was asked for.
    fn found(&self) -> u32 {
        let level = self.words.iter().fold(Readiness::empty(), |level, word| level | word.level());
        self.wanted(level)
    }

    /// Whether a level without a matching edge is nothing to it.
    fn ignores(&self, level: Readiness) -> bool {
        self.edge_triggered() || self.wanted(level) == 0
    }

    fn edge_triggered(&self) -> bool {
        self.interest.events & libc::EPOLLET.cast_unsigned() != 0
    }

    fn one_shot(&self) -> bool {
        self.interest.events & libc::EPOLLONESHOT.cast_unsigned() != 0
    }

    /// Whether it is told again without a new event.
    fn stays(&self) -> bool {
        self.armed && !self.edge_triggered()
    }
}

impl Token {
    /// Slots are numbered below this: 24 bits.
    const SLOTS: u32 = (1 << 24) - 1;
    const WAKE: Self = Self(0xffff_ffff);
    const LEVEL: Self = Self(0x1_ffff_ffff);

    fn new(slot: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(slot))
    }

    fn slot(self) -> u32 {
        (self.0 & u64::from(Self::SLOTS)) as u32
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn endpoint(self) -> usize {
        (self.0 >> 24 & 0xff) as usize
    }

    /// What the socket's endpoint `index` calls back with. There are fewer stacks than 256.
    pub(super) fn of_endpoint(self, index: usize) -> u64 {
        self.0 | (index as u64 & 0xff) << 24
    }

    fn is_wake_up(self) -> bool {
        self == Self::WAKE || self == Self::LEVEL
    }
}

/// `EPOLLERR` and `EPOLLHUP` need not be asked for.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP).cast_unsigned();

/// An event of a slot's last few registrations may still be on its way out of the kernel.
const STALE: u32 = 1 << 16;
