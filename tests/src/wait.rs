//! Waiting for a condition, with a limit.
//!
//! Rigs never sleep and hope: they look at the thing they wait for until it holds or the limit
//! has passed.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Calls `probe` until it returns something.
///
/// # Errors
///
/// When `limit` has passed, or when `probe` fails; `what` names the condition in the message.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = probe()? {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            bail!("waited {:.1} s in vain for {what}", limit.as_secs_f64());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Short against everything a rig waits for (a process start takes a few milliseconds), long
/// enough that waiting does not take a CPU away from the programs under test.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
