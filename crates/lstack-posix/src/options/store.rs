//! Where the values of options live.
//!
//! The kernel knows which values are valid, how it rounds them and what it answers by default, for
//! every option and every version. So a kernel socket is the store: the placeholder of a socket
//! from `socket`. Accepted connections have no kernel socket of their own. Their values are in
//! [`Recorded`], inherited from the listener, and are checked on a hidden socket which they share;
//! a second one, never written to, knows the defaults.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::table::CoreOption;
use crate::description::{Family, Handle};
use crate::errno::Errno;
use crate::kernel::Kernel;
use crate::posix::Posix;

/// What the program has set, in order. Cheap to copy: a listener hands its own to each connection.
#[derive(Clone, Default)]
pub(crate) struct Recorded(Arc<Vec<Value>>);

/// A value as the kernel understood it.
#[derive(Clone)]
pub(super) struct Value {
    pub(super) level: i32,
    pub(super) name: i32,
    pub(super) bytes: Bytes,
    /// What it means to the core socket.
    pub(super) core: Option<CoreOption>,
}

/// Most values are an `int`; the longest common one is a `timeval`.
pub(super) type Bytes = SmallVec<[u8; 16]>;

impl Recorded {
    /// The value of an option that was set.
    pub(super) fn get(&self, level: i32, name: i32) -> Option<&[u8]> {
        self.0
            .iter()
            .find(|value| value.level == level && value.name == name)
            .map(|value| &*value.bytes)
    }

    /// The last of two options with the same effect must win, also when they are replayed.
    pub(super) fn set(&mut self, value: Value) {
        let values = Arc::make_mut(&mut self.0);
        values.retain(|old| (old.level, old.name) != (value.level, value.name));
        values.push(value);
    }

    /// What a new core socket must be told.
    pub(super) fn core_options(&self) -> impl Iterator<Item = CoreOption> + '_ {
        self.0.iter().filter_map(|value| value.core)
    }
}

/// The hidden sockets on which options of accepted connections are checked, by family.
#[derive(Default)]
pub(crate) struct Scratch {
    v4: Mutex<Option<Pair>>,
    v6: Mutex<Option<Pair>>,
}

/// Two hidden TCP sockets of one family.
#[derive(Clone, Copy)]
struct Pair {
    /// Takes every value there is to be checked.
    written: RawFd,
    /// Never written to: has the defaults.
    pristine: RawFd,
}

impl Scratch {
    fn with<T>(
        &self,
        kernel: &dyn Kernel,
        family: Family,
        work: impl FnOnce(Pair) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let (slot, domain) = match family {
            Family::V4 => (&self.v4, libc::AF_INET),
            Family::V6 => (&self.v6, libc::AF_INET6),
        };
        let mut slot = slot.lock();
        let pair = match *slot {
            Some(pair) => pair,
            None => *slot.insert(Pair {
                written: kernel.hidden_socket_of(domain)?,
                pristine: kernel.hidden_socket_of(domain)?,
            }),
        };
        work(pair)
    }
}

impl Posix {
    /// Has the kernel check a value; returns it as the kernel reads it back under the name
    /// `read_as`. Options that cannot be read give no bytes.
    pub(super) fn store(
        &self,
        handle: &Handle,
        level: i32,
        (name, read_as): (i32, i32),
        value: &[u8],
    ) -> Result<Bytes, Errno> {
        let through = |fd: RawFd| {
            self.kernel.setsockopt(fd, level, name, value)?;
            let mut bytes: Bytes = SmallVec::from_elem(0, VALUE_MAX);
            let len = self.kernel.getsockopt(fd, level, read_as, &mut bytes).unwrap_or(0);
            bytes.truncate(len);
            Ok(bytes)
        };
        if has_placeholder(handle) {
            return through(handle.fd);
        }
        let family = handle.socket().family;
        self.scratch.with(&*self.kernel, family, |pair| through(pair.written))
    }

    /// The stored value of an option, or the default.
    pub(super) fn stored(
        &self,
        handle: &Handle,
        level: i32,
        name: i32,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        if has_placeholder(handle) {
            return self.kernel.getsockopt(handle.fd, level, name, out);
        }
        let socket = handle.socket();
        if let Some(value) = socket.recorded.lock().get(level, name) {
            return Ok(hand_out(level, value, out));
        }
        self.scratch.with(&*self.kernel, socket.family, |pair| {
            self.kernel.getsockopt(pair.pristine, level, name, out)
        })
    }
}

/// Whether the kernel has a socket for this one alone.
pub(super) fn has_placeholder(handle: &Handle) -> bool {
    !handle.socket().accepted.load(Ordering::Relaxed)
}

/// Copies a value as the kernel does: as much as there is room for. Options of IP become a byte in
/// a short buffer (`do_ip_getsockopt`).
pub(super) fn hand_out(level: i32, value: &[u8], out: &mut [u8]) -> usize {
    if level == libc::IPPROTO_IP
        && (1..4).contains(&out.len())
        && let Some(int) = value.first_chunk::<4>()
        && let Ok(byte) = u8::try_from(i32::from_ne_bytes(*int))
    {
        out[0] = byte;
        return 1;
    }
    let len = value.len().min(out.len());
    out[..len].copy_from_slice(&value[..len]);
    len
}

/// Longer than any value in the table.
const VALUE_MAX: usize = 64;
