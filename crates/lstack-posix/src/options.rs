//! `getsockopt` and `setsockopt`.
//!
//! An option is honoured (by the core socket or by this crate), stored, or refused: the table says
//! which. In all cases the kernel checks the value first, see `store.rs`, so errors and what is read
//! back are Linux's own. Values that are false for a socket of the stack are computed
//! (`answer.rs`), never taken from the placeholder.
//!
//! A socket that may still go either way has its options applied on both sides: the placeholder
//! gets them at once, the core socket when it is made ([`replay`]).

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use lstack_core::Protocol;

use crate::description::{Endpoint, Handle, Socket, State};
use crate::errno::Errno;
use crate::posix::{Outcome, Posix, ours};

mod answer;
mod store;
mod table;
mod tcp_info;
#[cfg(test)]
mod tests;

pub(crate) use store::{Recorded, Scratch};

use answer::{CONGESTION, Reply};
use store::{Value, hand_out, has_placeholder};
use table::{Acts, Answer, CoreOption, Spec};

/// Gives a new core socket what was set before it existed.
pub(crate) fn replay(socket: &Socket, endpoint: &Endpoint) {
    let recorded = socket.recorded.lock().clone();
    for option in recorded.core_options() {
        apply(endpoint, option);
    }
}

/// Gives an accepted connection what its listener had set. The core does so for its own settings.
pub(crate) fn inherit(listener: &Socket, child: &Socket) {
    *child.settings.lock() = *listener.settings.lock();
    child.recorded.lock().clone_from(&listener.recorded.lock());
    child.accepted.store(true, Ordering::Relaxed);
}

impl Posix {
    /// Writes at most `out.len()` bytes of the value; returns how many.
    pub fn getsockopt(&self, fd: RawFd, level: i32, name: i32, out: &mut [u8]) -> Outcome<usize> {
        let handle = ours!(self.socket_handle(fd));
        if matches!(&**handle.socket().state(), State::Kernel) {
            return Outcome::Kernel;
        }
        let Some(spec) = table::find(level, name) else {
            return self.unlisted_get(&handle, level, name, out);
        };
        let reply = match (spec.acts, spec.answer) {
            (Acts::Refused, _) => Reply::Failed(Errno(libc::ENOPROTOOPT)),
            (_, Answer::Store) => Reply::Store,
            (_, Answer::Computed(question)) => self.reply(&handle, question),
        };
        Outcome::Done(match reply {
            Reply::Value(value) if spec.needs_room() && out.len() < value.len() => {
                Err(Errno(libc::EINVAL))
            }
            Reply::Value(value) => Ok(hand_out(level, &value, out)),
            Reply::Failed(errno) => Err(errno),
            Reply::Store => self.stored(&handle, level, spec.name, out),
        })
    }

    /// Sets an option on both sides of the socket.
    pub fn setsockopt(&self, fd: RawFd, level: i32, name: i32, value: &[u8]) -> Outcome<()> {
        let handle = ours!(self.socket_handle(fd));
        let socket = handle.socket();
        // The option reaches a core socket that is being made, or finds it made.
        let _moving = socket.transition.lock();
        let state = socket.state();
        let Some(spec) = table::find(level, name) else {
            return if kernel_half(&handle, &state) {
                Outcome::Kernel
            } else {
                Outcome::Done(Err(unlisted_set(socket.protocol, level, value)))
            };
        };
        if matches!(spec.acts, Acts::Refused) {
            return match &**state {
                State::Kernel => Outcome::Kernel,
                _ => Outcome::Done(Err(Errno(libc::ENOPROTOOPT))),
            };
        }
        let result = self.set(&handle, &state, spec, value);
        if let Err(errno) = result {
            log::debug!("{} is refused on descriptor {fd}: error {}", spec.label, errno.0);
        }
        Outcome::Done(result)
    }

    fn set(&self, handle: &Handle, state: &State, spec: &Spec, value: &[u8]) -> Result<(), Errno> {
        let socket = handle.socket();
        let read_as = match spec.acts {
            Acts::Buffer(_, read_as) => read_as,
            _ => spec.name,
        };
        if (spec.level, spec.name) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) && is_bound(state) {
            // The placeholder may not know that it is bound.
            return Err(Errno(libc::EINVAL));
        }
        let bytes = self.store(handle, spec.level, (spec.name, read_as), value)?;
        if (spec.level, spec.name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION)
            && in_stack(state)
            && !names_congestion(value)
        {
            // A module of the kernel that the stack does not have.
            return Err(Errno(libc::ENOENT));
        }
        let core = match spec.acts {
            Acts::Core(option) => option(socket.protocol, table::number(&bytes)),
            Acts::Buffer(option, _) => option(socket.protocol, payload_size(value, &bytes)),
            Acts::Ours(change) => {
                change(&mut socket.settings.lock(), &bytes);
                None
            }
            Acts::Stored | Acts::Refused => None,
        };
        socket.recorded.lock().set(Value { level: spec.level, name: read_as, bytes, core });
        if let Some(option) = core {
            let endpoints = match state {
                State::Undecided(bound) => &bound.endpoints,
                other => other.endpoints(),
            };
            for endpoint in endpoints {
                apply(endpoint, option);
            }
        }
        Ok(())
    }

    /// An option that the table does not have: the kernel's half may have it. Of a socket of the
    /// stack alone, only the kernel's *error* is true.
    fn unlisted_get(
        &self,
        handle: &Handle,
        level: i32,
        name: i32,
        out: &mut [u8],
    ) -> Outcome<usize> {
        if kernel_half(handle, &handle.socket().state()) {
            return Outcome::Kernel;
        }
        let mut thrown_away = [0; 64];
        let room = out.len().min(thrown_away.len());
        let asked = self.stored(handle, level, name, &mut thrown_away[..room]);
        Outcome::Done(Err(asked.err().unwrap_or(Errno(libc::ENOPROTOOPT))))
    }
}

impl Spec {
    /// Whether a buffer that is too short is an error; for most options it gets a part.
    fn needs_room(&self) -> bool {
        matches!(
            self.answer,
            Answer::Computed(answer::Question::Cookie | answer::Question::PeerName)
        )
    }
}

fn apply(endpoint: &Endpoint, option: CoreOption) {
    // Some options change what the socket is ready for.
    let mut guard = endpoint.enter();
    let now = guard.now();
    match option {
        CoreOption::Tcp(option) => guard.stack().tcp_set_option(now, endpoint.socket, option),
        CoreOption::Udp(option) => guard.stack().udp_set_option(endpoint.socket, option),
    }
}

/// Whether the socket is, or may become, one of the kernel's that nobody shares.
fn kernel_half(handle: &Handle, state: &State) -> bool {
    state.kernel_too() && has_placeholder(handle)
}

fn is_bound(state: &State) -> bool {
    match state {
        State::Undecided(bound) => bound.address.is_some(),
        State::Kernel => false,
        State::Connection(_) | State::Listener { .. } | State::Datagram { .. } => true,
    }
}

fn in_stack(state: &State) -> bool {
    !state.endpoints().is_empty()
}

/// The value is a name, with or without a zero at its end.
fn names_congestion(value: &[u8]) -> bool {
    value.split(|&byte| byte == 0).next() == Some(CONGESTION)
}

/// The program's number as bytes of payload. The kernel's answer is twice its own limit at most,
/// and never below its floor; the stack has a higher limit, which it applies itself.
fn payload_size(value: &[u8], read_back: &[u8]) -> usize {
    let asked = usize::try_from(table::number(value)).unwrap_or(0);
    let granted = usize::try_from(table::number(read_back) / 2).unwrap_or(0);
    asked.max(granted)
}

/// The order of Linux's checks for an option that it does not know.
fn unlisted_set(protocol: Protocol, level: i32, value: &[u8]) -> Errno {
    let own = match protocol {
        Protocol::Tcp => libc::IPPROTO_TCP,
        Protocol::Udp => libc::IPPROTO_UDP,
    };
    let wants_int = level == libc::SOL_SOCKET || level == own;
    Errno(if wants_int && value.len() < size_of::<i32>() {
        libc::EINVAL
    } else {
        libc::ENOPROTOOPT
    })
}
