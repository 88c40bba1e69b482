//! The thread that drives a stack when no application thread does.
//!
//! # Run-to-wakeup
//!
//! The driver drives always: it polls the device while there is work, spins for `idle_spin` after
//! the last work, then naps (see [`crate::idle`]) until a ring, the end of its nap or the stack's
//! next deadline. Where the device has a descriptor to sleep on, that takes the place of long naps,
//! with `stack_interrupt` of all naps.
//!
//! # Run-to-completion
//!
//! The driver is the safety net. It is on *standby* while application threads poll: it only looks,
//! some hundred times a second, at when they last did. It takes over when they have not for
//! [`STALE`] (the program computes, or sleeps in a call that is not ours), and at once when a
//! thread hands over because it goes to sleep. On duty it drives as in the other mode, idle policy
//! included. It goes back to standby as soon as a thread spins again.
//!
//! Only spinning ([`crate::StackCell::drive`]) sends a driver on duty back to standby. A call that
//! polls once and returns ([`crate::StackCell::enter`]) promises nothing about the next poll, and
//! other threads may be asleep trusting the driver.
//!
//! # When a thread goes to sleep just as the driver decides to
//!
//! The sleeper counts a hand-over and rings *after* its last poll. The driver has read the number
//! of rings before it looked at the hand-overs and the polls. So either the driver looked after the
//! hand-over was counted and takes over, or its sleep ends at once (see [`crate::doorbell`]) and it
//! looks again. If another thread spins at that moment the driver stays on standby: that thread
//! then polls for the sleeper too, and when it stops it hands over in turn, or is found stale.
//! A driver on duty sleeps until a deadline it reads *after* announcing the sleep, and whoever
//! makes that deadline earlier looks for an announced sleep after publishing it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lstack_config::StackThreadMode;
use lstack_core::Instant;
use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::cell::Progress;
use crate::clock;
use crate::doorbell::{Sleep, Woken};
use crate::idle::{Idle, Rest};
use crate::lock;
use crate::shard::{Driver, Shard, Shards};

/// A running driver.
#[derive(Debug)]
pub(crate) struct DriverThread {
    handle: JoinHandle<()>,
    /// 1 once the thread has nothing left to do.
    finished: Arc<AtomicU32>,
}

/// How a driver runs.
pub(crate) struct DriverParts {
    pub(crate) shards: Arc<Shards>,
    pub(crate) index: usize,
    pub(crate) idle: Idle,
    /// Pinned to this processor.
    pub(crate) cpu: Option<u32>,
    /// The device's wake-up descriptor.
    pub(crate) wake: Option<OwnedFd>,
    /// Naps from this length on become sleeps on the device, if it has a descriptor.
    pub(crate) device_nap: Duration,
}

impl DriverThread {
    /// Starts the driver of one stack, with all signals blocked: handlers of the program run in the
    /// program's threads.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(crate) fn start(parts: DriverParts) -> std::io::Result<Self> {
        let finished = Arc::new(AtomicU32::new(0));
        let flag = Finished(Arc::clone(&finished));
        // A thread inherits the mask, so it is set here and put back: a signal that came between
        // the start of the thread and its own call would find it unprotected.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let handle = thread::Builder::new()
            .name(format!("lstack/{}", parts.index))
            .stack_size(STACK_SIZE)
            .spawn(move || {
                let _flag = flag;
                Loop::new(parts).run();
            });
        before.thread_set_mask()?;
        Ok(Self { handle: handle?, finished })
    }

    /// Waits for the end of a driver that was told to stop, at most `patience`.
    pub(crate) fn join(self, patience: Duration) {
        let end = clock::now() + patience;
        while self.finished.load(Ordering::Acquire) == 0 {
            let left = end - clock::now();
            if left.is_zero() {
                // Stuck in the device, or gone in a fork: it is left behind.
                return;
            }
            lock::wait(&self.finished, 0, Some(left));
        }
        // It has nothing left to do, so this does not wait. It cannot have panicked either, but
        // there would be nothing to do about it.
        let _ = self.handle.join();
    }
}

/// Tells [`DriverThread::join`], whichever way the thread ends.
struct Finished(Arc<AtomicU32>);

impl Drop for Finished {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Release);
        lock::wake(&self.0, u32::MAX);
    }
}

/// Whose turn it is to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    /// Ours.
    Driving,
    /// Application threads'.
    Standby,
}

struct Loop {
    shards: Arc<Shards>,
    index: usize,
    idle: Idle,
    cpu: Option<u32>,
    wake: Option<OwnedFd>,
    device_nap: Duration,
    duty: Duty,
    handovers_seen: u32,
    /// Until the next look while on standby.
    standby: Duration,
    /// Wake-ups by the device in a row that brought nothing.
    empty_wakes: u32,
}

impl Loop {
    fn new(parts: DriverParts) -> Self {
        let DriverParts { shards, index, idle, cpu, wake, device_nap } = parts;
        Self {
            shards,
            index,
            idle,
            cpu,
            wake,
            device_nap,
            duty: Duty::Driving,
            handovers_seen: 0,
            standby: STALE,
            empty_wakes: 0,
        }
    }

    fn run(mut self) {
        self.pin();
        // Naps are as long as asked for: the default slack of 50 µs would double the short ones.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(TIMER_SLACK_NS));
        self.shards.with(self.index, None, |inner| inner.link.on_driver_start());
        while !self.shards.stopping.load(Ordering::Acquire) {
            // Before anything is looked at: see `crate::doorbell`.
            let seen = self.shard().bell.rings();
            if self.shards.mode == StackThreadMode::RunToCompletion && self.stands_by(seen) {
                continue;
            }
            self.drive(seen);
        }
    }

    fn shard(&self) -> &Shard {
        &self.shards.all[self.index]
    }

    fn pin(&self) {
        let Some(cpu) = self.cpu else { return };
        let mut set = CpuSet::new();
        let valid = usize::try_from(cpu).ok().filter(|cpu| *cpu < CpuSet::MAX_CPU);
        if let Some(cpu) = valid {
            set.set(cpu);
        }
        if let Err(error) = sched_setaffinity(None, &set) {
            log::warn!("driver {} cannot run on processor {cpu}: {error}", self.index);
        }
    }

    /// Whether application threads drive; if so, a look-out's sleep is over when it returns.
    fn stands_by(&mut self, seen: u32) -> bool {
        let now = clock::now();
        let shard = self.shard();
        let spun = Instant::from_micros(shard.last_spun.load(Ordering::Acquire));
        let polled = Instant::from_micros(shard.last_polled.load(Ordering::Acquire)).max(spun);
        let handovers = shard.handovers.load(Ordering::Acquire);
        let spinning = now - spun < STALE;
        let handed_over = handovers != self.handovers_seen;
        self.handovers_seen = handovers;
        match self.duty {
            Duty::Driving if !spinning => return false,
            Duty::Standby if !spinning && (handed_over || now - polled >= STALE) => {
                self.shard().takeovers.fetch_add(1, Ordering::Relaxed);
                self.duty = Duty::Driving;
                self.idle.restart();
                return false;
            }
            // They poll without a pause: less often is enough.
            Duty::Standby if now - polled < STEADY => {
                self.standby = (self.standby * 2).min(STANDBY_MAX);
            }
            Duty::Driving | Duty::Standby => {
                self.duty = Duty::Standby;
                self.standby = STALE;
            }
        }
        self.shard().bell.sleep(Sleep::STANDBY, seen, polled + self.standby, || true);
        true
    }

    fn drive(&mut self, seen: u32) {
        let progress = self.shards.drive(self.index, Driver::Thread);
        if progress == Progress::Some {
            self.idle.restart();
            self.empty_wakes = 0;
            return;
        }
        match self.idle.rest(clock::now()) {
            Rest::Spin => {
                // The lock stays free for a while between two looks.
                for _ in 0..SPIN_PAUSES {
                    std::hint::spin_loop();
                }
            }
            Rest::Nap(nap) => {
                self.shard().naps.fetch_add(1, Ordering::Relaxed);
                let device = self.wake.is_some() && self.empty_wakes < EMPTY_WAKES_MAX;
                if device && nap >= self.device_nap {
                    self.sleep_on_device(seen);
                } else {
                    self.nap(seen, nap);
                }
            }
        }
    }

    fn nap(&mut self, seen: u32, nap: Duration) {
        // A device that woke us in vain gets another chance after a nap.
        self.empty_wakes = 0;
        let shard = self.shard();
        let end = clock::now() + nap;
        // A stack without a queue gets frames by its inbox only, and is rung for them.
        let end = if shard.has_queue { end } else { clock::now() + QUEUELESS_NAP };
        let end = shard.deadline().map_or(end, |deadline| deadline.min(end));
        shard.bell.sleep(Sleep::NAP, seen, end, || {
            shard.deadline().is_none_or(|deadline| deadline >= end)
        });
    }

    fn sleep_on_device(&mut self, seen: u32) {
        let shards = Arc::clone(&self.shards);
        let shard = &shards.all[self.index];
        if shards.with(self.index, None, |inner| inner.link.prepare_sleep()) != Some(true) {
            return;
        }
        let Some(wake) = &self.wake else { return };
        let end = clock::now() + DEVICE_SLEEP_MAX;
        let end = shard.deadline().map_or(end, |deadline| deadline.min(end));
        let woken = shard.bell.sleep_on_device(wake.as_fd(), seen, end, || {
            shard.deadline().is_none_or(|deadline| deadline >= end)
        });
        match woken {
            Woken::Other => {}
            Woken::ByDevice => self.empty_wakes += 1,
            Woken::DeviceLost => {
                log::warn!("driver {}: the wake-up descriptor was closed", self.index);
                self.wake = None;
            }
        }
    }
}

/// Polls of application threads are recent for this long. Shorter means more needless looks of the
/// standby driver (5 to 20 µs of processor time each), longer means that frames wait longer when a
/// program stops calling; timers of TCP are far coarser.
const STALE: Duration = Duration::from_millis(1);

/// A poll this recent when the driver happens to look is one of many.
const STEADY: Duration = Duration::from_micros(100);

/// The longest pause between two looks on standby, and so the longest time that frames wait for the
/// driver when a program that polled steadily goes off to compute.
const STANDBY_MAX: Duration = Duration::from_millis(4);

/// The longest sleep on a device: bounds the harm of one that fails to signal a frame.
const DEVICE_SLEEP_MAX: Duration = Duration::from_millis(100);

/// Pauses between two looks at an idle device: about as long as a look takes.
const SPIN_PAUSES: u32 = 16;

/// After so many wake-ups in a row without a frame the device's descriptor is not trusted for one
/// nap, so that one that stays readable does not keep a processor busy.
const EMPTY_WAKES_MAX: u32 = 16;

/// A stack without a device queue sleeps until it is rung; this only bounds the sleep.
const QUEUELESS_NAP: Duration = Duration::from_secs(1);

/// Slack of a driver's naps, nanoseconds.
const TIMER_SLACK_NS: u64 = 1_000;

/// Bytes of stack of a driver. The deepest path (a frame that completes a datagram and is answered)
/// takes some 20 KiB, a panic message with its backtrace more.
const STACK_SIZE: usize = 512 * 1024;
