//! Readiness events on their way out of the stack.

use std::collections::VecDeque;

use crate::socket::{Readiness, SocketId};

/// A socket's readiness changed, or something new came for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The socket.
    pub socket: SocketId,
    /// What holds now (level).
    pub level: Readiness,
    /// What something new happened to since the last event (edge). Bits may be set here although
    /// they were set in the level before: more data came for a socket that still had some.
    pub edges: Readiness,
}

/// Sockets with an undelivered event, each at most once.
///
/// The owner keeps the edges and a "queued" mark inside the socket, so that posting is O(1) and
/// nothing is lost or doubled however many things happen to a socket in one burst.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    pending: VecDeque<SocketId>,
}

/// The part of the event state that lives inside each socket.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct EventMark {
    edges: Readiness,
    queued: bool,
}

impl EventQueue {
    /// Notes `edges` for the socket that owns `mark`.
    pub(crate) fn post(&mut self, socket: SocketId, mark: &mut EventMark, edges: Readiness) {
        mark.edges |= edges;
        if !mark.queued {
            mark.queued = true;
            self.pending.push_back(socket);
        }
    }

    /// The next socket with something to tell. The owner then calls [`EventMark::take`]; a socket
    /// that is gone by now is skipped by the owner.
    pub(crate) fn pop(&mut self) -> Option<SocketId> {
        self.pending.pop_front()
    }
}

impl EventMark {
    /// The edges gathered since the last event.
    pub(crate) fn take(&mut self) -> Readiness {
        self.queued = false;
        core::mem::take(&mut self.edges)
    }
}
