//! One stack with everything that belongs to it, and what driving it means.
//!
//! A [`Shard`] is driven by whoever holds its lock: application threads (through
//! [`crate::StackCell`]) and its driver thread. The order is always the same: lock, receive
//! ([`Shard::receive`]), calls, then [`Shard::settle`] (timers, transmit, events) and
//! [`Shards::release`] (unlock, and what must not be done under the lock: waking people, ringing
//! drivers, moving frames of other stacks). No thread ever holds the locks of two shards.
//!
//! A panic inside a stack stops that stack and nothing else, see [`Shard::fail`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lstack_config::StackThreadMode;
use lstack_core::stack::steer;
use lstack_core::{Instant, RxMeta, Secret, Stack, StackConfig, TransmitStatus};

use crate::cell::Progress;
use crate::clock;
use crate::doorbell::{Doorbell, Sleep};
use crate::exchange::{Inbox, Outbox, Relay};
use crate::link::Link;
use crate::lock::{Mutex, MutexGuard};
use crate::watch::{Wakes, Watches};

/// All stacks of a process.
pub(crate) struct Shards {
    pub(crate) all: Box<[Shard]>,
    pub(crate) mode: StackThreadMode,
    /// Driver threads end.
    pub(crate) stopping: AtomicBool,
}

/// One stack. Apart from the lock's content everything here is an atomic word or a bounded queue.
pub(crate) struct Shard {
    pub(crate) index: usize,
    pub(crate) lock: Mutex<Inner>,
    pub(crate) bell: Doorbell,
    /// Whether its link receives. If not, its frames come through the inbox alone.
    pub(crate) has_queue: bool,
    /// Most frames per burst.
    burst: usize,
    inbox: Inbox,
    /// Relays that this stack's device serves (first stack), or the one it sends through.
    relays: Vec<Arc<Relay>>,
    steering_key: u64,
    failed: AtomicBool,
    /// When something is to be done although nothing happens; microseconds, `u64::MAX` for never.
    /// Written under the lock only.
    deadline: AtomicU64,
    /// When an application thread last received, microseconds.
    pub(crate) last_polled: AtomicU64,
    /// When an application thread last received while it waits for something; 0 once one has
    /// handed over.
    pub(crate) last_spun: AtomicU64,
    /// How often an application thread has handed over; wraps.
    pub(crate) handovers: AtomicU32,
    pub(crate) naps: AtomicU64,
    pub(crate) takeovers: AtomicU64,
}

/// What the lock protects.
pub(crate) struct Inner {
    pub(crate) stack: Stack,
    pub(crate) link: Box<dyn Link>,
    pub(crate) watches: Watches,
    outbox: Outbox,
    /// The device refused something and is to be tried again.
    retry: Option<Retry>,
    /// Makes the empty stack that takes a failed one's place.
    config: StackConfig,
    secret: Secret,
    /// The counters of the stack that failed.
    last_counters: Vec<(&'static str, u64)>,
    counters: DriveCounters,
}

/// What a stack still has to do before it may go, the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfinished {
    /// Data, or the end, of connections that the program has closed is to be delivered.
    Connections,
    /// Packets wait for a neighbour's hardware address.
    Neighbors,
    /// Frames that the device did not take yet.
    Frames,
    /// Peers have everything and have not closed their side.
    Closing,
}

/// When a device is offered again what it refused.
#[derive(Clone, Copy, Debug)]
struct Retry {
    wait: Duration,
    due: Instant,
}

/// Counted under the lock.
#[derive(Clone, Copy, Debug, Default)]
struct DriveCounters {
    bursts: u64,
    frames_rx: u64,
    frames_inbox: u64,
    frames_steered_away: u64,
    frames_rx_failed: u64,
}

/// What is to be done once the lock is free.
#[derive(Default)]
pub(crate) struct After {
    wakes: Wakes,
    /// A deadline earlier than the one published before.
    earlier: Option<Instant>,
    /// Frames went into other stacks' inboxes.
    steered: bool,
    /// The stack had something to send.
    sent: bool,
}

impl After {
    /// The stack sent something past [`Stack::poll`].
    pub(crate) fn note_sent(&mut self) {
        self.sent = true;
    }

    fn wake_all(&self) {
        // A watcher's panic must not end a driver, nor, during another panic, the process.
        let _ =
            catch_unwind(AssertUnwindSafe(|| self.wakes.iter().for_each(|watcher| watcher.wake())));
    }
}

/// Who drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// A thread of the program, in passing.
    Application,
    /// A thread of the program that waits for something and drives until it comes.
    Spinner,
    /// The stack's own thread.
    Thread,
}

/// First wait before the device is offered what it refused: a queue drains in tens of
/// microseconds.
const RETRY_MIN: Duration = Duration::from_micros(50);

/// Longest such wait, for a device that has stopped taking frames (a peer that is gone).
const RETRY_MAX: Duration = Duration::from_millis(10);

/// Polls in a row while the stack has more to send and the device takes it (traffic to itself).
const POLLS_MAX: usize = 8;

/// A neighbour whose queue nobody looked at for this long is looked at by whoever drives another
/// stack. Longer than a thread that spins there takes between two looks (0.2 µs), short beside the
/// time a frame takes through the stack.
const NEIGHBOUR_STALE: Duration = Duration::from_micros(2);

impl Shards {
    /// Drives the stack once, if nobody else does, and neighbours that may hold frames for it; the
    /// calling thread does so again and again while it waits.
    pub(crate) fn drive_spinning(&self, index: usize) -> Progress {
        let others = self.all.len() > 1 && self.drive_neighbours(index, Driver::Spinner);
        match self.drive(index, Driver::Spinner) {
            Progress::None | Progress::Busy if others => Progress::Some,
            own => own,
        }
    }

    /// With several stacks a device queue may hold any stack's frames. Whoever waits for one stack
    /// therefore looks at the queues nobody else looks after.
    pub(crate) fn drive_neighbours(&self, index: usize, driver: Driver) -> bool {
        let now = clock::now();
        let mut progress = false;
        for shard in &self.all {
            if shard.index == index || !shard.has_queue {
                continue;
            }
            let polled = Instant::from_micros(shard.last_polled.load(Ordering::Relaxed));
            if now - polled >= NEIGHBOUR_STALE {
                progress |= self.drive(shard.index, driver) == Progress::Some;
            }
        }
        progress
    }

    /// One burst of one stack.
    pub(crate) fn drive(&self, index: usize, driver: Driver) -> Progress {
        let shard = &self.all[index];
        let guard = match (driver, self.mode) {
            // Nobody else receives in this mode: the driver must get in.
            (Driver::Thread, StackThreadMode::RunToWakeup) => Some(shard.lock.lock()),
            _ => shard.lock.try_lock(),
        };
        let Some(mut inner) = guard else { return Progress::Busy };
        let now = clock::now();
        let mut after = After::default();
        let received = shard.receive(self, &mut inner, now, &mut after, usize::MAX);
        if driver != Driver::Thread {
            shard.last_polled.store(now.as_micros(), Ordering::Relaxed);
        }
        if driver == Driver::Spinner {
            shard.last_spun.store(now.as_micros(), Ordering::Relaxed);
        }
        shard.settle(self, &mut inner, now, received, &mut after);
        let progress = received > 0 || after.sent;
        self.release(index, inner, &after, driver);
        if progress { Progress::Some } else { Progress::None }
    }

    /// Unlocks, then does what was left for afterwards.
    pub(crate) fn release(
        &self,
        index: usize,
        inner: MutexGuard<'_, Inner>,
        after: &After,
        driver: Driver,
    ) {
        let shard = &self.all[index];
        match driver {
            Driver::Thread => MutexGuard::unlock_fair(inner),
            Driver::Application | Driver::Spinner => drop(inner),
        }
        after.wake_all();
        if driver != Driver::Thread {
            if let Some(deadline) = after.earlier {
                shard.bell.ring_before(deadline);
            }
            // An answer may come soon: the driver does better than at the end of its nap.
            if after.sent && self.mode == StackThreadMode::RunToWakeup && shard.bell.naps() {
                shard.bell.ring(Sleep::NAP);
            }
        }
        if after.steered {
            self.ring_owners();
        }
        if !shard.relays.is_empty() {
            self.pump_relays();
        }
    }

    /// Counters of a stack, of its device and of the way it is driven.
    pub(crate) fn stats(&self, index: usize) -> Vec<(&'static str, u64)> {
        let shard = &self.all[index];
        let mut stats = shard.own_stats();
        // Statistics are asked for at exit too, where a thread may be gone with the lock.
        let inside = self.with(index, Some(STATS_PATIENCE), |inner| inner.stats(shard.failed()));
        stats.extend(inside.unwrap_or_default());
        stats
    }

    /// Works on one stack's content outside of a drive; `None` if the lock does not come within
    /// `patience` (`None`: waits for ever). Nothing is sent and no event is told.
    pub(crate) fn with<R>(
        &self,
        index: usize,
        patience: Option<Duration>,
        work: impl FnOnce(&mut Inner) -> R,
    ) -> Option<R> {
        let lock = &self.all[index].lock;
        let mut inner = match patience {
            None => lock.lock(),
            Some(patience) => lock.try_lock_for(patience)?,
        };
        let result = work(&mut inner);
        // Also whoever only looked must move the frames that others left because of it.
        self.release(index, inner, &After::default(), Driver::Application);
        Some(result)
    }

    /// Drivers of stacks with frames in their inbox, unless application threads look after them.
    fn ring_owners(&self) {
        for shard in self.all.iter().filter(|shard| !shard.inbox.is_empty()) {
            shard.bell.ring(Sleep::NAP.or(Sleep::DEVICE));
        }
    }

    /// Moves relayed frames to the first stack's device.
    ///
    /// Called without a lock by whoever may have added frames, and by whoever had the first
    /// stack's lock, after unlocking. So a frame is not left behind: whoever added it either gets
    /// the lock here, or found it held, and that holder comes here after it unlocked.
    fn pump_relays(&self) {
        let first = &self.all[0];
        while first.relays.iter().any(|relay| !relay.is_empty()) {
            let Some(mut inner) = first.lock.try_lock() else { return };
            let now = clock::now();
            let mut after = After::default();
            first.settle(self, &mut inner, now, 0, &mut after);
            let blocked = inner.retry.is_some();
            drop(inner);
            after.wake_all();
            if let Some(deadline) = after.earlier {
                first.bell.ring_before(deadline);
            }
            if after.steered {
                self.ring_owners();
            }
            if blocked {
                // The first stack's driver tries again.
                return;
            }
        }
    }
}

/// What a [`Shard`] is made of.
pub(crate) struct ShardParts {
    pub(crate) index: usize,
    pub(crate) stacks: usize,
    pub(crate) link: Box<dyn Link>,
    pub(crate) has_queue: bool,
    pub(crate) burst: usize,
    pub(crate) config: StackConfig,
    pub(crate) secret: Secret,
    /// On the first stack all relays, on a stack that sends through one its own.
    pub(crate) relays: Vec<Arc<Relay>>,
}

impl Shard {
    pub(crate) fn new(parts: ShardParts, now: Instant) -> Self {
        let ShardParts { index, stacks, link, has_queue, burst, config, secret, relays } = parts;
        let outbox = Outbox::new(if index == 0 { relays.clone() } else { Vec::new() });
        let steering_key = config.steering.key;
        let inner = Inner {
            stack: Stack::new(config.clone(), &secret, now),
            link,
            watches: Watches::default(),
            outbox,
            retry: None,
            config,
            secret,
            last_counters: Vec::new(),
            counters: DriveCounters::default(),
        };
        Self {
            index,
            lock: Mutex::new(inner),
            bell: Doorbell::default(),
            has_queue,
            burst,
            inbox: Inbox::new(stacks),
            relays,
            steering_key,
            failed: AtomicBool::new(false),
            // The first drive announces the address.
            deadline: AtomicU64::new(now.as_micros()),
            last_polled: AtomicU64::new(0),
            last_spun: AtomicU64::new(0),
            handovers: AtomicU32::new(0),
            naps: AtomicU64::new(0),
            takeovers: AtomicU64::new(0),
        }
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// When something is to be done although nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let micros = self.deadline.load(Ordering::SeqCst);
        (micros != NEVER).then(|| Instant::from_micros(micros))
    }

    /// Handles one burst from the inbox and one from the device, at most `max` frames each; returns
    /// how many there were.
    pub(crate) fn receive(
        &self,
        shards: &Shards,
        inner: &mut Inner,
        now: Instant,
        after: &mut After,
        max: usize,
    ) -> usize {
        let max = max.min(self.burst);
        self.contain(inner, after, |inner, after| {
            inner.counters.bursts += 1;
            let mut frames = 0;
            if shards.all.len() > 1 {
                frames += self.take_inbox(inner, now, max);
            }
            if self.has_queue {
                frames += self.receive_from_device(shards, inner, now, after, max);
            }
            frames
        })
        .unwrap_or(0)
    }

    fn take_inbox(&self, inner: &mut Inner, now: Instant, max: usize) -> usize {
        let failed = self.failed();
        let Inner { stack, counters, .. } = inner;
        let frames = self.inbox.take(max, |frame, meta| {
            if failed {
                counters.frames_rx_failed += 1;
            } else {
                stack.handle_frame(now, frame, meta);
            }
        });
        counters.frames_inbox += frames as u64;
        frames
    }

    fn receive_from_device(
        &self,
        shards: &Shards,
        inner: &mut Inner,
        now: Instant,
        after: &mut After,
        max: usize,
    ) -> usize {
        let failed = self.failed();
        let Inner { stack, link, counters, .. } = inner;
        let mut own = |frame: &[u8], meta, counters: &mut DriveCounters| {
            // A failed stack still empties its queue, which may hold other stacks' frames.
            if failed {
                counters.frames_rx_failed += 1;
            } else {
                stack.handle_frame(now, frame, meta);
            }
        };
        let frames = if shards.all.len() == 1 {
            link.rx_burst(max, &mut |frame, meta| own(frame, meta, counters))
        } else {
            link.rx_burst(max, &mut |frame, meta| {
                let mine = self.spread(shards, frame, meta, |owner| {
                    owner.inbox.post(frame, meta);
                    counters.frames_steered_away += 1;
                    after.steered = true;
                });
                if mine {
                    own(frame, meta, counters);
                }
            })
        };
        counters.frames_rx += frames as u64;
        frames
    }

    /// Calls `post` for every other stack that a frame belongs to; returns whether it is (also)
    /// this one's.
    fn spread(
        &self,
        shards: &Shards,
        frame: &[u8],
        meta: RxMeta,
        mut post: impl FnMut(&Shard),
    ) -> bool {
        let count = u16::try_from(shards.all.len()).unwrap_or(u16::MAX);
        match steer(frame, meta.vlan.is_some(), self.steering_key, count) {
            Some(owner) if usize::from(owner) == self.index => true,
            Some(owner) => {
                if let Some(owner) = shards.all.get(usize::from(owner)) {
                    post(owner);
                }
                false
            }
            None => {
                shards.all.iter().filter(|other| other.index != self.index).for_each(post);
                true
            }
        }
    }

    /// After calls and frames: due timers, transmission, events, the next deadline.
    pub(crate) fn settle(
        &self,
        shards: &Shards,
        inner: &mut Inner,
        now: Instant,
        received: usize,
        after: &mut After,
    ) {
        self.contain(inner, after, |inner, after| {
            let mut deadline = None;
            if !self.failed() {
                deadline = inner.stack.next_deadline();
                let due = deadline.is_some_and(|deadline| deadline <= now);
                let wanted = after.sent || inner.stack.wants_poll();
                if wanted || received > 0 || due || inner.retry.is_some() {
                    self.transmit(shards, inner, now, after);
                    // A device that takes nothing is no work: the driver may rest.
                    after.sent = wanted && inner.retry.is_none();
                    deadline = inner.stack.next_deadline();
                }
                while let Some(event) = inner.stack.take_event() {
                    inner.watches.publish(&event, &mut after.wakes);
                }
            }
            self.forward_relayed(inner, now);
            if let Some(Retry { due, .. }) = inner.retry {
                deadline = Some(deadline.map_or(due, |deadline| deadline.min(due)));
            }
            self.publish_deadline(deadline, after);
        });
    }

    fn transmit(&self, shards: &Shards, inner: &mut Inner, now: Instant, after: &mut After) {
        let mut blocked = false;
        for _ in 0..POLLS_MAX {
            blocked = inner.stack.poll(now, &mut *inner.link) == TransmitStatus::Blocked;
            if shards.all.len() > 1 {
                while let Some((owner, frame)) = inner.stack.take_misdirected() {
                    after.steered = true;
                    if let Some(owner) = shards.all.get(usize::from(owner)) {
                        owner.inbox.post_owned(frame, RxMeta::default());
                    }
                }
            }
            if blocked || !inner.stack.wants_poll() {
                break;
            }
        }
        let flushed = inner.link.flush();
        inner.note_refusal(blocked || !flushed, now);
    }

    /// Puts the frames of stacks without a queue on this one's device.
    fn forward_relayed(&self, inner: &mut Inner, now: Instant) {
        let Inner { outbox, link, .. } = inner;
        if outbox.is_empty() {
            return;
        }
        let drained = outbox.drain(&mut **link);
        let flushed = link.flush();
        if !drained || !flushed {
            inner.note_refusal(true, now);
        }
    }

    fn publish_deadline(&self, deadline: Option<Instant>, after: &mut After) {
        let micros = deadline.map_or(NEVER, Instant::as_micros);
        let before = self.deadline.load(Ordering::Relaxed);
        if micros < before {
            // The driver may be about to sleep until the later one. It announces its sleep and
            // then reads this word; we write this word and then (see `Doorbell::ring_before`) look
            // for an announced sleep. Sequential consistency makes one of the two see the other.
            self.deadline.store(micros, Ordering::SeqCst);
            after.earlier = deadline;
        } else if micros > before {
            // A sleep that ends too early does no harm.
            self.deadline.store(micros, Ordering::Relaxed);
        }
    }

    /// Runs `work` on the stack; a panic stops the stack and ends here.
    fn contain<R>(
        &self,
        inner: &mut Inner,
        after: &mut After,
        work: impl FnOnce(&mut Inner, &mut After) -> R,
    ) -> Option<R> {
        // Nothing of `inner` is used after a panic but what `fail` puts in order.
        match catch_unwind(AssertUnwindSafe(|| work(inner, after))) {
            Ok(result) => Some(result),
            Err(_) => {
                self.fail(inner, after);
                None
            }
        }
    }

    /// Stops the stack after it broke an invariant: its sockets report errors and hang-ups, whoever
    /// waits is woken, and an empty stack takes its place so that later calls find no such socket.
    pub(crate) fn fail(&self, inner: &mut Inner, after: &mut After) {
        if self.failed.swap(true, Ordering::AcqRel) {
            return;
        }
        log::error!("stack {} has failed; its sockets report errors", self.index);
        // The broken stack may panic once more, and so may a watcher: neither must get further.
        let counters = catch_unwind(AssertUnwindSafe(|| inner.stack.counters()));
        inner.last_counters = counters.unwrap_or_default();
        let _ = catch_unwind(AssertUnwindSafe(|| {
            inner.stack = Stack::new(inner.config.clone(), &inner.secret, clock::now());
        }));
        let _ = catch_unwind(AssertUnwindSafe(|| inner.watches.fail_all(&mut after.wakes)));
        self.publish_deadline(None, after);
    }

    /// What is counted outside the lock.
    fn own_stats(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("runtime_failed", u64::from(self.failed())),
            ("runtime_handovers", u64::from(self.handovers.load(Ordering::Relaxed))),
            ("runtime_takeovers", self.takeovers.load(Ordering::Relaxed)),
            ("runtime_naps", self.naps.load(Ordering::Relaxed)),
            ("runtime_inbox_dropped", self.inbox.dropped()),
        ]
    }
}

impl Inner {
    /// What would be lost if the stack went away now.
    pub(crate) fn unfinished(&self) -> Option<Unfinished> {
        if self.stack.tcp_undelivered() > 0 {
            Some(Unfinished::Connections)
        } else if self.stack.awaits_neighbors() {
            Some(Unfinished::Neighbors)
        } else if self.retry.is_some() || self.stack.wants_poll() {
            Some(Unfinished::Frames)
        } else if self.stack.tcp_orphans() > 0 {
            Some(Unfinished::Closing)
        } else {
            None
        }
    }

    fn stats(&self, failed: bool) -> Vec<(&'static str, u64)> {
        let DriveCounters {
            bursts,
            frames_rx,
            frames_inbox,
            frames_steered_away,
            frames_rx_failed,
        } = self.counters;
        let mut stats = vec![
            ("runtime_bursts", bursts),
            ("runtime_frames_rx", frames_rx),
            ("runtime_frames_inbox", frames_inbox),
            ("runtime_frames_steered_away", frames_steered_away),
            ("runtime_frames_rx_failed", frames_rx_failed),
        ];
        stats.extend(self.link.counters());
        if failed {
            stats.extend(self.last_counters.iter().copied());
        } else {
            stats.extend(self.stack.counters());
        }
        stats
    }

    /// Notes whether the device took everything. Its patience grows with the waits that were in
    /// vain, not with how often callers tried in between.
    fn note_refusal(&mut self, refused: bool, now: Instant) {
        self.retry = match (refused, self.retry) {
            (false, _) => None,
            (true, Some(retry)) if now < retry.due => Some(retry),
            (true, before) => {
                let wait = before.map_or(RETRY_MIN, |retry| (retry.wait * 2).min(RETRY_MAX));
                Some(Retry { wait, due: now + wait })
            }
        };
    }
}

/// A deadline that never comes.
const NEVER: u64 = u64::MAX;

/// How long statistics wait for the lock.
const STATS_PATIENCE: Duration = Duration::from_millis(500);
