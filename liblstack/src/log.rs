//! The one sink of the `log` facade, and the library's few messages to the user.
//!
//! Writes by system call, never through a hook. Usable from the first moment and on any thread;
//! silent by default but for warnings, so that a program's own output stays its own. What the user
//! must know (the stack did not start) goes through [`tell`] whatever the level.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::os::fd::{IntoRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};

use ::log::{LevelFilter, Log, Metadata, Record};
use lstack_config::LogLevel;

use crate::{hidden, raw, start};

/// Where lines go.
static TARGET: AtomicI32 = AtomicI32::new(libc::STDERR_FILENO);

struct Sink;

static SINK: Sink = Sink;

impl Log for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= ::log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = record.level().as_str().to_ascii_lowercase();
            line(format_args!("{level}: {}: {}", record.target(), record.args()));
        }
    }

    fn flush(&self) {}
}

/// Makes the sink the target of all log lines of this library. The `log` crate inside it is its
/// own: a Rust program's logger is another.
pub fn install() {
    let level = std::env::var_os(LEVEL_VARIABLE).as_deref().and_then(level_of);
    // Fails when it was installed before, which is as good.
    let _ = ::log::set_logger(&SINK);
    ::log::set_max_level(level.unwrap_or(LevelFilter::Warn));
    // The standard library's own hook writes to standard error, which may be anything by now.
    std::panic::set_hook(Box::new(
        |panic| ::log::error!(target: "lstack", "internal error: {panic}"),
    ));
}

/// Follows the configuration. The environment's level goes before the file's.
pub fn configure(level: LogLevel, file: Option<&Path>) {
    if std::env::var_os(LEVEL_VARIABLE).as_deref().and_then(level_of).is_none() {
        ::log::set_max_level(match level {
            LogLevel::Off => LevelFilter::Off,
            LogLevel::Error => LevelFilter::Error,
            LogLevel::Warn => LevelFilter::Warn,
            LogLevel::Info => LevelFilter::Info,
            LogLevel::Debug => LevelFilter::Debug,
            LogLevel::Trace => LevelFilter::Trace,
        });
    }
    let Some(path) = file else { return };
    match OpenOptions::new().create(true).append(true).open(path) {
        Ok(file) => TARGET.store(hidden::move_up(file.into_raw_fd()), Ordering::Relaxed),
        Err(error) => ::log::warn!(target: "lstack", "log_file {}: {error}", path.display()),
    }
}

/// Tells the user, on standard error.
pub fn tell(message: fmt::Arguments<'_>) {
    write(libc::STDERR_FILENO, message);
}

fn line(message: fmt::Arguments<'_>) {
    write(TARGET.load(Ordering::Relaxed), message);
}

/// One write, so that lines of several threads don't mix.
fn write(fd: RawFd, message: fmt::Arguments<'_>) {
    if fd == libc::STDERR_FILENO && is_connection(fd) {
        return;
    }
    let mut text = String::with_capacity(128);
    // Writing to a string fails only if a value's own formatting does.
    let _ = writeln!(text, "lstack: {message}");
    raw::write_all(fd, text.as_bytes());
}

/// Whether the number of standard error is an internet socket: then it is a connection of the
/// program, and not for us to write to.
fn is_connection(fd: RawFd) -> bool {
    if start::posix().is_some_and(|posix| posix.knows(fd)) {
        return true;
    }
    let mut domain: i32 = 0;
    let mut size: libc::socklen_t = 4;
    let args = [
        raw::int(fd),
        raw::int(libc::SOL_SOCKET),
        raw::int(libc::SO_DOMAIN),
        (&raw mut domain) as usize,
        (&raw mut size) as usize,
    ];
    // SAFETY: both pointers are valid for what the size says.
    let asked = unsafe { raw::syscall(libc::SYS_getsockopt, args) };
    asked.is_ok() && matches!(domain, libc::AF_INET | libc::AF_INET6)
}

fn level_of(value: &OsStr) -> Option<LevelFilter> {
    value.to_str()?.parse().ok()
}

/// Level of the log: off, error, warn, info, debug or trace.
const LEVEL_VARIABLE: &str = "LSTACK_LOG";
