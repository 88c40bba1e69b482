//! Options whose truth is in the stack: the placeholder would lie.

use lstack_core::Protocol;
use lstack_core::tcp::{State as TcpState, TcpInfo};

use super::store::{Bytes, has_placeholder};
use super::tcp_info;
use crate::address;
use crate::description::{Endpoint, Family, Handle, State, TimestampUnit};
use crate::errno::Errno;
use crate::posix::Posix;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Error,
    Type,
    Domain,
    Protocol,
    AcceptsConnections,
    PeerName,
    Cookie,
    TimestampMicros,
    TimestampNanos,
    ReceiveBuffer,
    SendBuffer,
    MaxSegment,
    TcpInfo,
    Congestion,
    Mtu,
    /// An option that can be set only; the kernel has the right error.
    Unreadable,
}

/// The answer.
pub(super) enum Reply {
    Value(Bytes),
    Failed(Errno),
    /// There is nothing that the stack knows better.
    Store,
}

impl Posix {
    /// Answers for a socket that is not the kernel's alone.
    pub(super) fn reply(&self, handle: &Handle, question: Question) -> Reply {
        let socket = handle.socket();
        let state = socket.state();
        let stream = socket.protocol == Protocol::Tcp;
        match question {
            Question::Error => pending_error(&state),
            Question::Type if stream => int(libc::SOCK_STREAM),
            Question::Type => int(libc::SOCK_DGRAM),
            Question::Domain => int(match socket.family {
                Family::V4 => libc::AF_INET,
                Family::V6 => libc::AF_INET6,
            }),
            Question::Protocol if stream => int(libc::IPPROTO_TCP),
            Question::Protocol => int(libc::IPPROTO_UDP),
            Question::AcceptsConnections => {
                int(i32::from(matches!(&**state, State::Listener { .. })))
            }
            Question::PeerName => peer_name(handle, &state),
            // The top bit keeps it apart from the kernel's own.
            Question::Cookie if !has_placeholder(handle) => {
                value(&(handle.description.id | 1 << 63).to_ne_bytes())
            }
            Question::TimestampMicros | Question::TimestampNanos => {
                let unit = match question {
                    Question::TimestampMicros => TimestampUnit::Micros,
                    _ => TimestampUnit::Nanos,
                };
                int(i32::from(socket.settings.lock().timestamp == Some(unit)))
            }
            Question::ReceiveBuffer => {
                buffer_size(handle, &state, libc::SO_RCVBUF, |info| info.recv_buffer)
            }
            Question::SendBuffer => {
                buffer_size(handle, &state, libc::SO_SNDBUF, |info| info.send_buffer)
            }
            Question::MaxSegment => match connection(&state).and_then(numbers) {
                Some(info) if info.state != TcpState::Closed => int(i32::from(info.send_mss)),
                _ => Reply::Store,
            },
            Question::TcpInfo => match &**state {
                State::Connection(endpoint) => value(&match numbers(endpoint) {
                    Some(info) => tcp_info::encode(&info),
                    None => tcp_info::idle(TcpState::Closed),
                }),
                State::Listener { .. } => value(&tcp_info::idle(TcpState::Listen)),
                _ => Reply::Store,
            },
            Question::Congestion => match &**state {
                State::Connection(_) | State::Listener { .. } => {
                    let mut name = [0; CONGESTION_NAME_LEN];
                    name[..CONGESTION.len()].copy_from_slice(CONGESTION);
                    value(&name)
                }
                _ => Reply::Store,
            },
            Question::Mtu => path_mtu(&state),
            Question::Cookie | Question::Unreadable => Reply::Store,
        }
    }
}

fn int(number: i32) -> Reply {
    value(&number.to_ne_bytes())
}

fn value(bytes: &[u8]) -> Reply {
    Reply::Value(Bytes::from_slice(bytes))
}

fn connection(state: &State) -> Option<&Endpoint> {
    match state {
        State::Connection(endpoint) => Some(endpoint),
        _ => None,
    }
}

fn numbers(endpoint: &Endpoint) -> Option<TcpInfo> {
    let mut guard = endpoint.enter();
    let now = guard.now();
    guard.stack().tcp_info(now, endpoint.socket)
}

/// Takes the error of the stack's half; a kernel half is asked when there is none.
fn pending_error(state: &State) -> Reply {
    for endpoint in state.endpoints() {
        if endpoint.cell.failed() {
            return int(Errno::from(lstack_core::SocketError::StackFailed).0);
        }
        let mut guard = endpoint.enter();
        if let Some(error) = guard.stack().take_error(endpoint.socket) {
            return int(Errno::from(error).0);
        }
    }
    if state.kernel_too() { Reply::Store } else { int(0) }
}

fn peer_name(handle: &Handle, state: &State) -> Reply {
    let remote = match state {
        State::Connection(endpoint) | State::Datagram { endpoint, .. } => endpoint.connected_addr(),
        State::Undecided(_) | State::Kernel | State::Listener { .. } => None,
    };
    match remote {
        Some(remote) => {
            let (bytes, len) = address::encoded(remote, handle.socket().family);
            value(&bytes[..len])
        }
        None => Reply::Failed(Errno(libc::ENOTCONN)),
    }
}

/// What the program set reads back as on Linux; a size that tunes itself is the stack's.
fn buffer_size(handle: &Handle, state: &State, name: i32, size: fn(&TcpInfo) -> usize) -> Reply {
    if handle.socket().recorded.lock().get(libc::SOL_SOCKET, name).is_some() {
        return Reply::Store;
    }
    match connection(state).and_then(numbers) {
        Some(info) => int(i32::try_from(size(&info)).unwrap_or(i32::MAX)),
        None => Reply::Store,
    }
}

/// `IP_MTU`: for connected sockets only (ip(7)).
fn path_mtu(state: &State) -> Reply {
    let endpoint = match state {
        State::Connection(endpoint) | State::Datagram { endpoint, .. } => endpoint,
        State::Undecided(_) | State::Kernel | State::Listener { .. } => return Reply::Store,
    };
    let Some(remote) = endpoint.connected_addr() else {
        return Reply::Failed(Errno(libc::ENOTCONN));
    };
    let mut guard = endpoint.cell.lock();
    let now = guard.now();
    int(i32::from(guard.stack().path_mtu(now, remote.ip())))
}

/// The congestion control that the stack runs.
pub(super) const CONGESTION: &[u8] = b"cubic";

/// `TCP_CA_NAME_MAX`.
const CONGESTION_NAME_LEN: usize = 16;
