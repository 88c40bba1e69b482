//! What the rig tests have in common: they run one at a time, and repeat what must work often.

use std::env;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test of this process runs.
///
/// Rigs are independent, but their programs share the machine's few CPUs: side by side, stacks
/// that poll would starve one another, and a test's time limit would measure its neighbours.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A failed test leaves nothing behind that the next one could trip over.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often to do what must work many times in a row: `REPEAT` from the environment, otherwise
/// `usual`.
///
/// The usual numbers are small, so that the whole suite stays within its time; `REPEAT=20` runs
/// the full loops.
///
/// # Panics
///
/// When `REPEAT` is not a number.
#[must_use]
pub fn repeat(usual: u32) -> u32 {
    env::var("REPEAT").map_or(usual, |text| text.parse().expect("REPEAT must be a number"))
}

/// How long one measurement lasts: `DURATION` from the environment in seconds, otherwise `usual`.
///
/// # Panics
///
/// When `DURATION` is not a number.
#[must_use]
pub fn seconds(usual: u32) -> u32 {
    env::var("DURATION").map_or(usual, |text| text.parse().expect("DURATION must be in seconds"))
}
