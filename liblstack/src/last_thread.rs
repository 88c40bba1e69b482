//! The end of a process whose first thread has left by `pthread_exit`.
//!
//! libc ends such a process when its last thread is gone. The library's own threads never go. So
//! once the first thread has left, the service thread looks from time to time whether only they
//! remain, and ends the process in their place.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread as threads;

use crate::{raw, service, signal, start};

static FIRST_LEFT: AtomicBool = AtomicBool::new(false);

/// Called by a thread that leaves.
pub fn this_one_leaves() {
    if start::posix().is_some() && raw::thread_id() == raw::process_id() {
        FIRST_LEFT.store(true, Ordering::Release);
        service::wake();
    }
}

/// Whether the last thread is to be waited for.
pub fn is_awaited() -> bool {
    FIRST_LEFT.load(Ordering::Acquire)
}

/// The library's threads.
pub struct OwnThreads(Vec<u32>);

impl OwnThreads {
    /// Those that came since the list `before` was made. All of ours have all signals blocked,
    /// which tells them from threads the program has made meanwhile.
    pub fn since(before: &[u32]) -> Self {
        let new = list().into_iter().filter(|id| !before.contains(id));
        Self(new.filter(|id| blocks_all(*id)).collect())
    }

    /// Ends the process if no other thread is left. On a thread of its own, for which the library
    /// is as for any of the program: `atexit` functions run there and may use sockets.
    pub fn end_if_alone(&self) {
        let first = raw::process_id();
        let is_left = |id: &u32| *id as usize == first || self.0.contains(id);
        if list().iter().all(is_left) {
            FIRST_LEFT.store(false, Ordering::Release);
            // SAFETY: the program has no thread that `exit` could take by surprise.
            let ended = threads::Builder::new().spawn(|| unsafe { libc::exit(0) });
            if let Err(error) = ended {
                ::log::error!(target: "lstack", "no thread to end the process: {error}");
            }
        }
    }
}

/// The threads of this process.
pub fn list() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.collect()
}

fn blocks_all(id: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/self/task/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & signal::ASYNCHRONOUS == signal::ASYNCHRONOUS)
}
