//! Counters and sockets as JSON, in the file that `stats_file` or `LSTACK_STATS_FILE` names.
//!
//! Written at exit, and whenever a file of the same name with `.request` at its end appears
//! (`touch stats.json.request`): the request file is removed once the answer is complete. Called
//! on the service thread only.

use std::ffi::CString;
use std::fs;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use lstack_posix::Posix;

use crate::{hidden, raw};

/// The file and its neighbours.
pub struct StatsFile {
    path: PathBuf,
    request: PathBuf,
    draft: PathBuf,
}

impl StatsFile {
    /// The path may be relative: to the working directory of this moment.
    pub fn new(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let beside = |ending: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        // Several processes may have inherited the variable.
        let draft = beside(&format!(".{}.tmp", raw::process_id()));
        Self { request: beside(".request"), draft, path }
    }

    /// A descriptor that becomes readable when something happens in the file's directory.
    pub fn requests(&self) -> Option<RawFd> {
        let directory = CString::new(self.path.parent()?.as_os_str().as_bytes()).ok()?;
        let flags = raw::int(libc::IN_CLOEXEC | libc::IN_NONBLOCK);
        // SAFETY: no memory is involved.
        let made = unsafe { raw::syscall(libc::SYS_inotify_init1, [flags]) };
        let fd = hidden::move_up(made.ok()? as RawFd);
        let events = libc::IN_CREATE | libc::IN_MOVED_TO | libc::IN_CLOSE_WRITE;
        let args = [raw::int(fd), directory.as_ptr() as usize, events as usize];
        // SAFETY: `directory` is a C string that lives across the call.
        if unsafe { raw::syscall(libc::SYS_inotify_add_watch, args) }.is_err() {
            ::log::warn!(target: "lstack", "stats_file: {} can't be watched", self.path.display());
            hidden::close(fd);
            return None;
        }
        Some(fd)
    }

    /// Something happened in the directory: writes if it was a request.
    pub fn answer(&self, posix: &Posix, requests: RawFd) {
        discard_events(requests);
        if self.request.exists() {
            self.write(posix);
            if let Err(error) = fs::remove_file(&self.request) {
                ::log::warn!(target: "lstack", "{}: {error}", self.request.display());
            }
        }
    }

    /// Writes; readers see the old file or the new one, whole.
    pub fn write(&self, posix: &Posix) {
        let written = fs::write(&self.draft, posix.stats_json())
            .and_then(|()| fs::rename(&self.draft, &self.path));
        if let Err(error) = written {
            ::log::warn!(target: "lstack", "stats_file {}: {error}", self.path.display());
        }
    }
}

/// What happened is of no interest, only that something did.
fn discard_events(fd: RawFd) {
    let mut events = [0_u8; 4096];
    let args = [raw::int(fd), events.as_mut_ptr() as usize, events.len()];
    // SAFETY: `events` is valid for its length.
    while unsafe { raw::syscall(libc::SYS_read, args) }.is_ok_and(|read| read > 0) {}
}
