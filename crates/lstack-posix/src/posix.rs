//! The descriptors of a process, and what all calls share.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use lstack_config::Config;
use lstack_runtime::Runtime;
use parking_lot::Mutex;

use crate::description::{Handle, Socket};
use crate::epoll::Epolls;
use crate::errno::Errno;
use crate::fd_table::FdTable;
use crate::file::Chunks;
use crate::kernel::Kernel;
use crate::options::Scratch;
use crate::poll::Polls;
use crate::route::Router;
use crate::wait::Waiter;

/// Who answers a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The descriptor is none of ours: make the real call with the caller's own arguments.
    Kernel,
    /// Answered.
    Done(Result<T, Errno>),
}

/// How long a call may wait: `None` for ever.
pub type Timeout = Option<Duration>;

/// A `fd_set` of `select`, as words of 64 descriptors; as long as `nfds` needs.
pub type FdSet<'a> = Option<&'a mut [u64]>;

/// What `recvmsg` returns besides the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvMsg {
    /// Bytes received (with `MSG_TRUNC`, the datagram's length).
    pub len: usize,
    /// Full length of the sender's address; the buffer may have been shorter.
    pub name_len: usize,
    /// Bytes of control messages written.
    pub control_len: usize,
    /// `msg_flags`.
    pub flags: i32,
}

/// The descriptors of a process and its stacks.
///
/// Methods are named after the calls; each subject has a file: `socket.rs`, `accept.rs`, `connect.rs`, `transfer.rs`,
/// `poll.rs`, `epoll.rs`, `options.rs`, `fcntl.rs`, `file.rs`, `stats.rs`.
pub struct Posix {
    pub(crate) table: FdTable,
    pub(crate) runtime: Runtime,
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) router: Router,
    pub(crate) udp_enable: bool,
    /// Longest spin of a blocking call before it sleeps.
    pub(crate) app_spin: Duration,
    pub(crate) exit_linger: Duration,
    pub(crate) waiters: Mutex<Vec<Arc<Waiter>>>,
    pub(crate) epolls: Epolls,
    pub(crate) polls: Polls,
    /// Round-robin over the stacks for sockets that may live on any.
    pub(crate) next_cell: AtomicUsize,
    /// The socket whose duplicates are the descriptors of accepted connections.
    pub(crate) placeholder: Mutex<Option<RawFd>>,
    /// What options of accepted connections are checked on.
    pub(crate) scratch: Scratch,
    /// Buffers between files, pipes and sockets.
    pub(crate) chunks: Chunks,
    /// The process is about to end: [`Self::finish`] has been called.
    pub(crate) finishing: AtomicBool,
}

impl Posix {
    /// Over running stacks.
    #[must_use]
    pub fn new(config: &Config, runtime: Runtime, kernel: Arc<dyn Kernel>) -> Self {
        Self {
            table: FdTable::new(),
            runtime,
            kernel,
            router: Router::new(config),
            udp_enable: config.udp_enable,
            app_spin: config.app_spin,
            exit_linger: config.exit_linger,
            waiters: Mutex::default(),
            epolls: Epolls::default(),
            polls: Polls::default(),
            next_cell: AtomicUsize::new(0),
            placeholder: Mutex::new(None),
            scratch: Scratch::default(),
            chunks: Chunks::default(),
            finishing: AtomicBool::new(false),
        }
    }

    /// Whether `fd` is one of ours in any way; one atomic load, safe in signal handlers.
    #[must_use]
    pub fn knows(&self, fd: RawFd) -> bool {
        self.table.knows(fd)
    }

    /// The socket behind `fd`, if it is one of ours.
    pub(crate) fn socket_handle(&self, fd: RawFd) -> Option<Handle> {
        let description = self.table.get(fd)?;
        description.socket()?;
        Some(Handle { fd, description })
    }
}

impl Handle {
    /// The socket.
    pub(crate) fn socket(&self) -> &Socket {
        self.description.socket().expect("socket_handle gives sockets only")
    }

    /// Whether a call with `flags` may not wait.
    pub(crate) fn nonblocking(&self, flags: i32) -> bool {
        flags & libc::MSG_DONTWAIT != 0 || self.description.nonblocking()
    }
}

/// Unwraps a handle or lets the kernel answer.
macro_rules! ours {
    ($lookup:expr) => {
        match $lookup {
            Some(handle) => handle,
            None => return $crate::posix::Outcome::Kernel,
        }
    };
}
pub(crate) use ours;
