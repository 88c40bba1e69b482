//! Error numbers, and the only place where the stack's errors become them.
//!
//! The matches have no catch-all: a new variant in the core does not compile until somebody has
//! chosen its number.

use lstack_core::SocketError;
use lstack_core::tcp::{
    AcceptError, BindError, ConnectError, ListenError, NotConnected, OpenError, RecvError,
    SendError,
};
use lstack_core::udp::{UdpRecvError, UdpSendError};

/// An error number of `errno(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<SocketError> for Errno {
    fn from(error: SocketError) -> Self {
        Self(match error {
            SocketError::ConnectionRefused => libc::ECONNREFUSED,
            SocketError::ConnectionReset | SocketError::StackFailed => libc::ECONNRESET,
            SocketError::BrokenPipe => libc::EPIPE,
            SocketError::TimedOut => libc::ETIMEDOUT,
            SocketError::HostUnreachable => libc::EHOSTUNREACH,
            SocketError::NetworkUnreachable => libc::ENETUNREACH,
            SocketError::ProtocolUnreachable => libc::ENOPROTOOPT,
            SocketError::MessageTooLong => libc::EMSGSIZE,
        })
    }
}

impl From<OpenError> for Errno {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::LimitReached => Self(libc::ENOBUFS),
        }
    }
}

impl From<BindError> for Errno {
    fn from(error: BindError) -> Self {
        Self(match error {
            BindError::NoSocket => libc::EBADF,
            BindError::AlreadyBound => libc::EINVAL,
            BindError::InUse | BindError::NoFreePort => libc::EADDRINUSE,
            BindError::NotLocal => libc::EADDRNOTAVAIL,
        })
    }
}

impl From<ListenError> for Errno {
    fn from(error: ListenError) -> Self {
        Self(match error {
            ListenError::NoSocket => libc::EBADF,
            ListenError::Connected => libc::EINVAL,
            ListenError::InUse => libc::EADDRINUSE,
        })
    }
}

impl From<AcceptError> for Errno {
    fn from(error: AcceptError) -> Self {
        Self(match error {
            AcceptError::NotListening => libc::EINVAL,
            AcceptError::WouldBlock => libc::EAGAIN,
        })
    }
}

impl From<ConnectError> for Errno {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::NoSocket => Self(libc::EBADF),
            ConnectError::Connected => Self(libc::EISCONN),
            ConnectError::InProgress => Self(libc::EALREADY),
            ConnectError::Unreachable => Self(libc::ENETUNREACH),
            ConnectError::NoFreeAddress => Self(libc::EADDRNOTAVAIL),
            ConnectError::Aborted => Self(libc::ECONNABORTED),
            ConnectError::Failed(error) => error.into(),
        }
    }
}

impl From<SendError> for Errno {
    fn from(error: SendError) -> Self {
        match error {
            SendError::WouldBlock => Self(libc::EAGAIN),
            SendError::BrokenPipe => Self(libc::EPIPE),
            SendError::Failed(error) => error.into(),
        }
    }
}

impl From<RecvError> for Errno {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::WouldBlock => Self(libc::EAGAIN),
            RecvError::NotConnected => Self(libc::ENOTCONN),
            RecvError::Failed(error) => error.into(),
        }
    }
}

impl From<NotConnected> for Errno {
    fn from(NotConnected: NotConnected) -> Self {
        Self(libc::ENOTCONN)
    }
}

impl From<UdpSendError> for Errno {
    fn from(error: UdpSendError) -> Self {
        match error {
            UdpSendError::NoSocket => Self(libc::EBADF),
            UdpSendError::WouldBlock | UdpSendError::NoFreePort => Self(libc::EAGAIN),
            UdpSendError::NoDestination => Self(libc::EDESTADDRREQ),
            UdpSendError::TooLong => Self(libc::EMSGSIZE),
            UdpSendError::Unreachable => Self(libc::ENETUNREACH),
            UdpSendError::BroadcastDenied => Self(libc::EACCES),
            UdpSendError::BrokenPipe => Self(libc::EPIPE),
            UdpSendError::Failed(error) => error.into(),
        }
    }
}

impl From<UdpRecvError> for Errno {
    fn from(error: UdpRecvError) -> Self {
        match error {
            UdpRecvError::WouldBlock => Self(libc::EAGAIN),
            // Callers turn this one into "end of file" before it becomes a number.
            UdpRecvError::Shutdown => Self(libc::ESHUTDOWN),
            UdpRecvError::Failed(error) => error.into(),
        }
    }
}
