//! An open file description: what descriptors that were `dup`ed share.
//!
//! The kernel knows every description too, by a real socket (the placeholder): it gives the number,
//! `fstat`, limits, and stores and validates the options that the stack does not act upon. Until
//! `bind`, `listen`, `connect` or the first datagram decides, a socket belongs to both worlds.
//!
//! A description ends when its last descriptor is closed *and* the last call on it has returned,
//! as the kernel's do: the core sockets are closed in [`Drop`].

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use lstack_core::tcp::{Close, Reuse};
use lstack_core::{Protocol, Readiness, SocketId};
use lstack_runtime::{Guard, ReadyWord, StackCell};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::epoll::{Epoll, Membership};
use crate::route::Reason;

/// Address family of a socket, as the program opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`; serves IPv4 too, by mapped addresses, unless `IPV6_V6ONLY`.
    V6,
}

/// A core socket: which stack, which socket, where its readiness is published.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) cell: Arc<StackCell>,
    pub(crate) socket: SocketId,
    pub(crate) ready: Arc<ReadyWord>,
}

/// One endpoint for a connection, one per stack for a listener; rarely more than one.
pub(crate) type Endpoints = SmallVec<[Endpoint; 1]>;

/// Where a socket stands between the two worlds.
pub(crate) enum State {
    /// Nothing bound or connected yet, or bound in both worlds (TCP wildcard) or in the stack.
    Undecided(Bound),
    /// The kernel's: every call passes through.
    Kernel,
    /// A TCP connection, or an attempt at one.
    Connection(Endpoint),
    /// A TCP listener; in the kernel as well when it was bound to the wildcard.
    Listener {
        /// One per stack.
        endpoints: Endpoints,
        /// The placeholder listens too.
        kernel: bool,
    },
    /// A UDP socket of the stack.
    Datagram {
        /// It lives on one stack.
        endpoint: Endpoint,
        /// The placeholder is bound too and may have datagrams (wildcard socket).
        kernel: bool,
    },
}

/// What an undecided socket has already claimed.
#[derive(Default)]
pub(crate) struct Bound {
    /// Core sockets bound to `address`, one per stack; empty before `bind`.
    pub(crate) endpoints: Endpoints,
    /// The address as bound, with the port that was chosen.
    pub(crate) address: Option<SocketAddr>,
    /// The placeholder is bound to it too.
    pub(crate) kernel: bool,
}

/// Settings of a socket that this crate acts upon itself; all others live in the core socket or
/// in the placeholder. See `options.rs`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    /// `SO_RCVTIMEO`; `None` waits for ever.
    pub(crate) receive_timeout: Option<Duration>,
    /// `SO_SNDTIMEO`.
    pub(crate) send_timeout: Option<Duration>,
    /// `SO_LINGER`.
    pub(crate) linger: Option<Duration>,
    /// `SO_REUSEADDR`, `SO_REUSEPORT`.
    pub(crate) reuse: Reuse,
    /// `IPV6_V6ONLY`.
    pub(crate) v6_only: bool,
    /// `IP_PKTINFO` / `IPV6_RECVPKTINFO`.
    pub(crate) packet_info: bool,
    /// `IP_RECVTTL`.
    pub(crate) receive_ttl: bool,
    /// `IP_RECVTOS`.
    pub(crate) receive_tos: bool,
    /// `SO_TIMESTAMP` (microseconds) or `SO_TIMESTAMPNS`.
    pub(crate) timestamp: Option<TimestampUnit>,
}

/// Which timestamp control message a socket asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimestampUnit {
    /// `SO_TIMESTAMP`: `struct timeval`.
    Micros,
    /// `SO_TIMESTAMPNS`: `struct timespec`.
    Nanos,
}

/// An open file description of ours.
pub(crate) struct Description {
    /// Never reused: tells a reused descriptor number from the old one.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    /// Descriptors that refer to it.
    descriptors: AtomicUsize,
    /// `O_NONBLOCK`; the placeholder has it too, so that `F_GETFL` is the kernel's answer.
    status: AtomicU32,
}

/// What the description is.
pub(crate) enum Kind {
    /// A TCP or UDP socket.
    Socket(Box<Socket>),
    /// An epoll instance with at least one socket of ours.
    Epoll(Arc<Epoll>),
}

/// A TCP or UDP socket.
pub(crate) struct Socket {
    pub(crate) family: Family,
    pub(crate) protocol: Protocol,
    state: ArcSwap<State>,
    /// Held by whoever moves the socket from one [`State`] to the next.
    pub(crate) transition: Mutex<()>,
    pub(crate) settings: Mutex<Settings>,
    /// Core options set before there was a core socket, in order (`options.rs` replays them).
    pub(crate) recorded: Mutex<crate::options::Recorded>,
    /// Why it is where it is.
    pub(crate) reason: Mutex<Option<Reason>>,
    /// Epoll instances that watch it.
    pub(crate) memberships: Mutex<Vec<Membership>>,
    /// Sockets of both worlds: counts the calls that alternate between them.
    pub(crate) turn: AtomicU32,
    /// A handshake was started whose outcome `connect` has not reported yet.
    pub(crate) connecting: AtomicBool,
    /// Came from `accept`: its descriptors are names of the one hidden socket of all such.
    pub(crate) accepted: AtomicBool,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Description {
    /// A description without descriptors.
    pub(crate) fn new(kind: Kind, nonblocking: bool) -> Arc<Self> {
        Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            kind,
            descriptors: AtomicUsize::new(0),
            status: AtomicU32::new(u32::from(nonblocking)),
        })
    }

    /// The socket, unless it is an epoll instance.
    pub(crate) fn socket(&self) -> Option<&Socket> {
        match &self.kind {
            Kind::Socket(socket) => Some(socket),
            Kind::Epoll(_) => None,
        }
    }

    /// The epoll instance, if it is one.
    pub(crate) fn epoll(&self) -> Option<&Arc<Epoll>> {
        match &self.kind {
            Kind::Epoll(epoll) => Some(epoll),
            Kind::Socket(_) => None,
        }
    }

    /// `O_NONBLOCK`.
    pub(crate) fn nonblocking(&self) -> bool {
        self.status.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.status.store(u32::from(on), Ordering::Relaxed);
    }

    /// One more descriptor.
    pub(crate) fn add_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::Relaxed);
    }

    /// One descriptor fewer; true for the last.
    pub(crate) fn remove_descriptor(&self) -> bool {
        self.descriptors.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Socket {
    pub(crate) fn new(family: Family, protocol: Protocol, state: State) -> Self {
        Self {
            family,
            protocol,
            state: ArcSwap::from_pointee(state),
            transition: Mutex::new(()),
            settings: Mutex::new(Settings::default()),
            recorded: Mutex::default(),
            reason: Mutex::new(None),
            memberships: Mutex::default(),
            turn: AtomicU32::new(0),
            connecting: AtomicBool::new(false),
            accepted: AtomicBool::new(false),
        }
    }

    /// Where it stands; a snapshot that stays valid while held.
    pub(crate) fn state(&self) -> arc_swap::Guard<Arc<State>> {
        self.state.load()
    }

    /// Moves it; the caller holds [`Self::transition`].
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(Arc::new(state));
    }

    /// What the stack's side of the socket is ready for; empty for a socket without one.
    pub(crate) fn stack_level(&self) -> Readiness {
        self.state().level()
    }

    /// Gives up what it has in the stack. Later calls find nothing.
    pub(crate) fn end(&self) {
        let linger = self.settings.lock().linger;
        let how = if linger == Some(Duration::ZERO) { Close::Reset } else { Close::Graceful };
        let state = self.state();
        let endpoints = match &**state {
            State::Undecided(bound) => bound.endpoints.as_slice(),
            other => other.endpoints(),
        };
        for endpoint in endpoints {
            endpoint.close(how);
        }
    }
}

impl State {
    /// The stack's side of the socket; empty when it has none or is undecided.
    pub(crate) fn endpoints(&self) -> &[Endpoint] {
        match self {
            Self::Connection(endpoint) | Self::Datagram { endpoint, .. } => {
                std::slice::from_ref(endpoint)
            }
            Self::Listener { endpoints, .. } => endpoints,
            Self::Undecided(_) | Self::Kernel => &[],
        }
    }

    /// Whether the placeholder must be watched for readiness as well.
    pub(crate) fn kernel_too(&self) -> bool {
        match self {
            Self::Undecided(_) | Self::Kernel => true,
            Self::Connection(_) => false,
            Self::Listener { kernel, .. } | Self::Datagram { kernel, .. } => *kernel,
        }
    }

    /// Readiness of the stack's side.
    pub(crate) fn level(&self) -> Readiness {
        self.endpoints().iter().fold(Readiness::empty(), |level, e| level | e.ready.level())
    }
}

impl Endpoint {
    /// Takes the stack's lock for a call on this socket, see [`StackCell::enter`]. When the guard
    /// goes, the readiness word says what the call has left: events tell of more only.
    pub(crate) fn enter(&self) -> Entered<'_> {
        Entered { guard: self.cell.enter(), socket: self.socket }
    }

    /// As [`Self::enter`], to receive: what is there already is taken before more is let in.
    pub(crate) fn enter_to_receive(&self) -> Entered<'_> {
        if !self.ready.level().contains(Readiness::READABLE) {
            return self.enter();
        }
        Entered { guard: self.cell.enter_with_data(), socket: self.socket }
    }

    /// Gives the core socket up.
    pub(crate) fn close(&self, how: Close) {
        let mut guard = self.cell.lock();
        guard.forget(self.socket);
        let now = guard.now();
        guard.stack().close(now, self.socket, how);
    }
}

/// The stack's lock, held for a call on one socket.
pub(crate) struct Entered<'a> {
    guard: Guard<'a>,
    socket: SocketId,
}

impl<'a> Deref for Entered<'a> {
    type Target = Guard<'a>;

    fn deref(&self) -> &Guard<'a> {
        &self.guard
    }
}

impl<'a> DerefMut for Entered<'a> {
    fn deref_mut(&mut self) -> &mut Guard<'a> {
        &mut self.guard
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.guard.refresh(self.socket);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        for membership in self.memberships.get_mut().drain(..) {
            membership.remove();
        }
        self.end();
    }
}

/// The descriptor a call was made on, with its description: what most functions pass around.
pub(crate) struct Handle {
    pub(crate) fd: RawFd,
    pub(crate) description: Arc<Description>,
}
