//! What TCP and UDP sockets have in common: identity, readiness, pending errors.

use core::fmt;

use bitflags::bitflags;

/// Which transport a socket speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// A stream socket.
    Tcp,
    /// A datagram socket.
    Udp,
}

/// Names one socket of one stack for as long as that socket lives.
///
/// The slot is reused after the socket is gone, the generation is not: an id kept too long finds
/// nothing instead of a stranger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId {
    protocol: Protocol,
    slot: u32,
    generation: u32,
}

impl SocketId {
    pub(crate) const fn new(protocol: Protocol, slot: u32, generation: u32) -> Self {
        Self { protocol, slot, generation }
    }

    /// The socket's transport.
    #[must_use]
    pub const fn protocol(self) -> Protocol {
        self.protocol
    }

    /// Index into a table of this protocol's sockets; dense, starts at 0, reused.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    /// How often the slot had been used before.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Debug for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}#{}.{}", self.protocol, self.slot, self.generation)
    }
}

bitflags! {
    /// What `poll` and `epoll` would say of a socket. Bit values are Linux's `EPOLL*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Readiness: u32 {
        /// Data, end of stream, or a connection to accept (`EPOLLIN`). A pending error sets it on
        /// TCP, where it ends the stream; on UDP it shows as `ERROR` alone, as on Linux.
        const READABLE = 0x1;
        /// Urgent data (`EPOLLPRI`).
        const PRIORITY = 0x2;
        /// Room to send, or sending would fail at once (`EPOLLOUT`).
        const WRITABLE = 0x4;
        /// A pending error (`EPOLLERR`).
        const ERROR = 0x8;
        /// Both directions are shut (`EPOLLHUP`).
        const HANGUP = 0x10;
        /// The peer will send no more (`EPOLLRDHUP`).
        const READ_HANGUP = 0x2000;
    }
}

/// An error that waits on a socket until somebody takes it (`SO_ERROR`, or the next call).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SocketError {
    /// The peer refused: RST to our SYN, or ICMP port unreachable.
    #[error("connection refused")]
    ConnectionRefused,
    /// The peer reset an established connection.
    #[error("connection reset by peer")]
    ConnectionReset,
    /// The peer reset while we were in `CLOSE_WAIT` (Linux reports `EPIPE` there).
    #[error("broken pipe")]
    BrokenPipe,
    /// No answer within the protocol's patience.
    #[error("timed out")]
    TimedOut,
    /// ARP found nobody, or ICMP host unreachable.
    #[error("no route to host")]
    HostUnreachable,
    /// No route, or ICMP network unreachable.
    #[error("network is unreachable")]
    NetworkUnreachable,
    /// ICMP protocol unreachable.
    #[error("protocol not available")]
    ProtocolUnreachable,
    /// The datagram does not fit the path and may not be fragmented.
    #[error("message too long")]
    MessageTooLong,
    /// The stack broke an invariant of its own and was stopped.
    #[error("the stack has failed")]
    StackFailed,
}
