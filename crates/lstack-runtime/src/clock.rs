//! The clock of all stacks.

use lstack_core::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Now, in microseconds of the kernel's monotonic clock, which is the same in all processes.
/// About 25 ns: no system call is made.
pub(crate) fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    // The clock starts at boot: neither part is ever negative.
    let micros = time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1_000;
    Instant::from_micros(micros)
}
