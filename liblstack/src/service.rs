//! The library's own thread: what must not be done on the program's.
//!
//! It sleeps until somebody wants one of three things. **The end**: threads that exit, also from
//! signal handlers, hold who knows which locks; so they only ask (by a write, async-signal-safe)
//! and wait, for a bounded time, while this thread closes the connections. **Statistics**: see
//! `stats.rs`. **The last thread**: see `last_thread.rs`. It runs only beside a running stack.

use std::os::fd::RawFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread as threads;
use std::time::{Duration, Instant};

use lstack_config::Config;
use lstack_posix::Posix;

use crate::last_thread::{self, OwnThreads};
use crate::stats::StatsFile;
use crate::{cancel, hidden, raw, start, thread};

/// An eventfd: a write ends the thread's sleep.
static WAKE: AtomicI32 = AtomicI32::new(-1);
static END_WANTED: AtomicBool = AtomicBool::new(false);
/// 1 when everything is closed and written; a futex word.
static ENDED: AtomicU32 = AtomicU32::new(0);
/// How long an orderly exit may wait, microseconds.
static PATIENCE: AtomicU64 = AtomicU64::new(0);

/// Starts the thread. Without it (no thread to be had) the program still runs; its last bytes are
/// then not waited for.
pub fn start(posix: &'static Posix, config: &Config, threads_before: Vec<u32>) {
    let patience = config.exit_linger.saturating_add(SLACK).as_micros();
    PATIENCE.store(u64::try_from(patience).unwrap_or(u64::MAX), Ordering::Relaxed);
    let flags = raw::int(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
    // SAFETY: no memory is involved.
    let wake = match unsafe { raw::syscall(libc::SYS_eventfd2, [0, flags]) } {
        Ok(fd) => hidden::move_up(fd as RawFd),
        Err(error) => {
            return ::log::warn!(target: "lstack", "no descriptor for the service thread: {}", error.0);
        }
    };
    let stats = config.stats_file.as_deref().map(StatsFile::new);
    let distance = cancel::learn(None);
    let spawned = threads::Builder::new().name("lstack-service".into()).spawn(move || {
        cancel::learn(Some(distance));
        let own = OwnThreads::since(&threads_before);
        serve(posix, wake, stats.as_ref(), &own);
    });
    match spawned {
        Ok(_) => WAKE.store(wake, Ordering::Release),
        Err(error) => {
            hidden::close(wake);
            ::log::warn!(target: "lstack", "no service thread: {error}");
        }
    }
}

fn serve(posix: &Posix, wake: RawFd, stats: Option<&StatsFile>, own: &OwnThreads) {
    thread::mark_own();
    let requests = stats.and_then(StatsFile::requests);
    let mut fds = [wake, requests.unwrap_or(-1)].map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    while !END_WANTED.load(Ordering::Acquire) {
        let pause = last_thread::is_awaited().then(|| raw::timespec(LOOK_INTERVAL));
        let pause_at = pause.as_ref().map_or(0, |pause| std::ptr::from_ref(pause) as usize);
        let args = [fds.as_mut_ptr() as usize, fds.len(), pause_at, 0, 0];
        // SAFETY: `fds` and the timeout are valid; no mask.
        let polled = unsafe { raw::syscall(libc::SYS_ppoll, args) };
        if polled.is_ok()
            && fds[1].revents != 0
            && let Some(stats) = stats
        {
            contained(|| stats.answer(posix, fds[1].fd));
        }
        if last_thread::is_awaited() {
            discard(wake);
            contained(|| own.end_if_alone());
        }
    }
    contained(|| posix.finish());
    contained(|| {
        if let Some(stats) = stats {
            stats.write(posix);
        }
    });
    ENDED.store(1, Ordering::Release);
    raw::futex_wake(&ENDED, u32::MAX);
}

/// Empties the eventfd.
fn discard(wake: RawFd) {
    let mut count = 0_u64;
    let args = [raw::int(wake), (&raw mut count) as usize, size_of::<u64>()];
    // SAFETY: the buffer lives across the call.
    let _ = unsafe { raw::syscall(libc::SYS_read, args) };
}

/// Ends the thread's sleep.
pub fn wake() {
    let wake = WAKE.load(Ordering::Acquire);
    if wake >= 0 {
        raw::write_all(wake, &1_u64.to_ne_bytes());
    }
}

/// A panic has been logged by the panic hook; the thread goes on.
fn contained(work: impl FnOnce()) {
    let _ = panic::catch_unwind(AssertUnwindSafe(work));
}

/// Closes all connections and writes the statistics, as far as it can be done within `limit`.
/// Async-signal-safe.
pub fn finish_and_wait(limit: Duration) {
    if WAKE.load(Ordering::Acquire) < 0 || start::posix().is_none() || !start::is_own_process() {
        return;
    }
    END_WANTED.store(true, Ordering::Release);
    wake();
    let begun = Instant::now();
    while ENDED.load(Ordering::Acquire) == 0 {
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return;
        }
        // Any way to return leads to another look.
        let _ = raw::futex_wait(&ENDED, 0, Some(left));
    }
}

/// How long an orderly exit waits at most: the configured linger, and time to hear of its end.
pub fn patience() -> Duration {
    Duration::from_micros(PATIENCE.load(Ordering::Relaxed))
}

/// A machine under load may run a thread this late.
const SLACK: Duration = Duration::from_millis(500);

/// How often a process whose first thread has left is looked at: soon for a person, seldom for a
/// processor.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
