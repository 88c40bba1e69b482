//! DPDK's log, as lines of the crate `log` under the target `dpdk`.
//!
//! Called on whichever thread DPDK logs from.

use std::ffi::c_char;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::PoisonError;

use dpdk_sys as sys;
use log::Level;

/// Sends DPDK's log to the crate `log` from now on.
pub(crate) fn redirect() {
    // SAFETY: `sink` is a function for the life of the process.
    let error = unsafe { sys::ls_log_open(Some(sink)) };
    if error != 0 {
        log::warn!(target: TARGET, "DPDK's log cannot be redirected");
    }
}

/// Runs `call` and returns what DPDK complained about meanwhile.
pub(crate) fn with_complaints<R>(call: impl FnOnce() -> R) -> (R, Vec<String>) {
    *complaints() = Some(Vec::new());
    let result = call();
    let lines = complaints().take().unwrap_or_default();
    (result, lines)
}

fn complaints() -> std::sync::MutexGuard<'static, Option<Vec<String>>> {
    COMPLAINTS.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn sink(level: u32, text: *const c_char, len: usize) {
    // SAFETY: the C side passes `len` readable bytes.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    // A panic of a log sink must not unwind into C; the line is lost then.
    let _ = catch_unwind(|| {
        for line in text.split(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(line);
            let line = line.trim();
            if !line.is_empty() {
                forward(level, line);
            }
        }
    });
}

fn forward(level: u32, line: &str) {
    let level = if EXPECTED.iter().any(|expected| line.contains(expected)) {
        Level::Trace
    } else {
        match level {
            ..=ERROR => Level::Error,
            WARNING => Level::Warn,
            NOTICE => Level::Info,
            INFO => Level::Debug,
            _ => Level::Trace,
        }
    };
    let mut level = level;
    if level <= Level::Warn
        && let Some(lines) = complaints().as_mut()
    {
        if lines.len() < COMPLAINTS_MAX && lines.iter().all(|known| known != line) {
            lines.push(line.to_owned());
        }
        // Whoever collects them tells the operator, in one sentence.
        level = Level::Debug;
    }
    log::log!(target: TARGET, level, "{line}");
}

const TARGET: &str = "dpdk";

/// Complaints that are the consequence of what we do on purpose.
const EXPECTED: &[&str] = &[
    // The tap driver is told so: see dpdk-sys/c/os.c.
    "rt-signals are in use",
    "No Rx trigger signal available",
    // It can do without traffic classes of the kernel, and there are no secondary processes.
    "Specified qdisc kind is unknown",
    "multiq qdisc",
    "Disabling rte flow support",
    "Failed to send start req to secondary",
    "Failed to register mp action callback",
    // --no-huge and --no-telemetry are what we asked for.
    "Telemetry disabled",
];

/// DPDK's levels.
const ERROR: u32 = 4;
const WARNING: u32 = 5;
const NOTICE: u32 = 6;
const INFO: u32 = 7;

/// Enough for the chain from a driver's complaint to the last caller's.
const COMPLAINTS_MAX: usize = 16;

static COMPLAINTS: Mutex<Option<Vec<String>>> = Mutex::new(None);
