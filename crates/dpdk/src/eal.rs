//! DPDK in this process.

use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

use crate::args::Arguments;
use crate::caller::{allowed_cpus, preserved};
use crate::eal_log;

/// The proof that DPDK runs. Clones are the same proof; it runs until the process ends.
#[derive(Clone, Debug)]
pub struct Eal {
    /// What DPDK complained about while it started all the same.
    complaints: Arc<[String]>,
}

/// DPDK did not start.
#[derive(Debug, thiserror::Error)]
pub enum EalError {
    /// DPDK can be started once in a process, also if that fails.
    #[error("DPDK was already started in this process")]
    AlreadyStarted,
    /// A word of the arguments has a zero byte.
    #[error("dpdk_args: {0:?} has a zero byte")]
    ZeroByte(String),
    /// It refused; in its own words.
    #[error("DPDK did not start ({reason}): {}", complaints.join("; "))]
    Refused {
        /// The error number's text.
        reason: String,
        /// What its log said.
        complaints: Vec<String>,
    },
}

impl Eal {
    /// Starts DPDK with the caller's `words`, completed as [`Arguments::complete`] says.
    ///
    /// `memory_megabytes` is what pools and queues will need. Takes some tens of milliseconds.
    /// The calling thread keeps its affinity and signal mask, and is no thread of DPDK's afterwards.
    ///
    /// # Errors
    ///
    /// See [`EalError`].
    pub fn init(
        words: &[String],
        memory_megabytes: u64,
    ) -> Result<(Self, Vec<crate::Notice>), EalError> {
        let arguments =
            Arguments::complete(words, memory_megabytes, &allowed_cpus(), std::process::id());
        let mut argv = vec![CString::from(c"lstack").into_raw()];
        for word in arguments.words() {
            let word = CString::new(word.as_str()).map_err(|_| EalError::ZeroByte(word.clone()))?;
            argv.push(word.into_raw());
        }
        if STARTED.swap(true, Ordering::AcqRel) {
            return Err(EalError::AlreadyStarted);
        }
        eal_log::redirect();
        log::debug!(target: "dpdk", "starting with {}", arguments.words().join(" "));
        let (result, complaints) = eal_log::with_complaints(|| preserved(|| start(argv)));
        match result {
            Ok(()) => {
                let eal = Self { complaints: complaints.into() };
                Ok((eal, arguments.notices().to_vec()))
            }
            Err(errno) => Err(EalError::Refused { reason: strerror(errno), complaints }),
        }
    }

    /// What DPDK complained about while it started all the same: a device that cannot be used does
    /// not keep it from starting.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// DPDK's version, as it says it.
    #[must_use]
    pub fn version(&self) -> String {
        // SAFETY: no conditions.
        let version = unsafe { sys::rte_version() };
        // SAFETY: a static string.
        let version = unsafe { CStr::from_ptr(version) };
        version.to_string_lossy().into_owned()
    }
}

/// Whether a descriptor is one that DPDK opened. A program must not close it, though it may try:
/// daemons close everything they do not know.
#[must_use]
pub fn owns_descriptor(fd: std::os::fd::RawFd) -> bool {
    // SAFETY: reads a table; any number is allowed.
    unsafe { sys::ls_owns_descriptor(fd) == 1 }
}

/// The words are never freed: DPDK keeps pointers to some.
fn start(mut argv: Vec<*mut std::ffi::c_char>) -> Result<(), i32> {
    let count = i32::try_from(argv.len()).expect("a configuration file has fewer words");
    argv.push(std::ptr::null_mut());
    let argv = argv.leak();
    // SAFETY: `argv` is an array of `count` writable C strings and a null pointer, alive for ever;
    // called once in the process (`STARTED`).
    let parsed = unsafe { sys::rte_eal_init(count, argv.as_mut_ptr()) };
    // SAFETY: reads a thread-local number.
    let errno = unsafe { sys::ls_errno() };
    // SAFETY: writes a thread-local number.
    unsafe { sys::ls_forget_lcore() };
    remove_runtime_dir();
    if parsed < 0 { Err(errno) } else { Ok(()) }
}

/// DPDK makes a directory for files to share with other processes, also when it shares none.
fn remove_runtime_dir() {
    // SAFETY: no conditions.
    let dir = unsafe { sys::rte_eal_get_runtime_dir() };
    // SAFETY: a static string, empty before it is known.
    let dir = unsafe { CStr::from_ptr(dir) };
    let dir = dir.to_string_lossy();
    if !dir.is_empty() {
        // Fails, as it should, when something is in it.
        let _ = std::fs::remove_dir(&*dir);
    }
}

/// DPDK's text for an error number.
pub(crate) fn strerror(errno: i32) -> String {
    // SAFETY: no conditions.
    let text = unsafe { sys::rte_strerror(errno.abs()) };
    // SAFETY: a string of the calling thread, valid until the next call.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

static STARTED: AtomicBool = AtomicBool::new(false);
