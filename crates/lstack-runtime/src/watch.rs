//! Who is told when a socket's readiness changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lstack_core::{Event, Protocol, Readiness, SocketId};
use smallvec::SmallVec;

/// A socket's readiness where anybody can read it without the stack's lock. Plain words, written
/// under the lock only.
#[derive(Debug, Default)]
pub struct ReadyWord {
    level: AtomicU32,
    sequence: AtomicU32,
}

impl ReadyWord {
    /// What holds now.
    #[must_use]
    pub fn level(&self) -> Readiness {
        Readiness::from_bits_truncate(self.level.load(Ordering::Acquire))
    }

    /// Changes with every event.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Changes the level without an event.
    fn set_level(&self, level: Readiness) {
        self.level.store(level.bits(), Ordering::Release);
    }

    fn publish(&self, level: Readiness) {
        self.set_level(level);
        let next = self.sequence.load(Ordering::Relaxed).wrapping_add(1);
        self.sequence.store(next, Ordering::Release);
    }
}

/// Somebody who waits: a blocked thread, an epoll instance.
pub trait Watcher: Send + Sync {
    /// Told of an event, with the stack's lock held: notes it, quickly, and never calls back into
    /// a stack. Returns whether [`Self::wake`] is to be called once the lock is released.
    fn on_event(&self, token: u64, event: &Event) -> bool;

    /// Wakes the sleeper, with no lock held. Several events may have become one call.
    fn wake(&self);
}

/// Watchers to wake once the lock is released: rarely more than a few, so on the caller's stack.
pub(crate) type Wakes = SmallVec<[Arc<dyn Watcher>; 8]>;

/// What every socket reports once its stack has failed.
pub(crate) const FAILED: Readiness = Readiness::READABLE
    .union(Readiness::WRITABLE)
    .union(Readiness::ERROR)
    .union(Readiness::HANGUP)
    .union(Readiness::READ_HANGUP);

/// The words and watchers of a stack's sockets. Lives behind the stack's lock.
#[derive(Default)]
pub(crate) struct Watches {
    /// Indexed by the socket's slot.
    tcp: Vec<Option<Entry>>,
    udp: Vec<Option<Entry>>,
}

struct Entry {
    socket: SocketId,
    word: Arc<ReadyWord>,
    watchers: SmallVec<[(Arc<dyn Watcher>, u64); 1]>,
}

impl Watches {
    /// The socket's word; made with `level` if there is none.
    pub(crate) fn word(&mut self, socket: SocketId, level: Readiness) -> Arc<ReadyWord> {
        Arc::clone(&self.entry(socket, level).word)
    }

    /// Changes the level of the socket's word, if it has one, without an event.
    pub(crate) fn set_level(&mut self, socket: SocketId, level: Readiness) {
        if let Some(entry) = self.find(socket) {
            entry.word.set_level(level);
        }
    }

    pub(crate) fn add(
        &mut self,
        socket: SocketId,
        level: Readiness,
        watcher: Arc<dyn Watcher>,
        token: u64,
    ) {
        self.entry(socket, level).watchers.push((watcher, token));
    }

    pub(crate) fn remove(&mut self, socket: SocketId, watcher: &Arc<dyn Watcher>, token: u64) {
        if let Some(entry) = self.find(socket) {
            let position = entry
                .watchers
                .iter()
                .position(|(other, other_token)| same(other, watcher) && *other_token == token);
            if let Some(position) = position {
                entry.watchers.swap_remove(position);
            }
        }
    }

    pub(crate) fn forget(&mut self, socket: SocketId) {
        if self.find(socket).is_some() {
            self.table(socket.protocol())[socket.slot()] = None;
        }
    }

    /// Publishes an event; who asks to be woken for it joins `wakes`. An event of a socket that
    /// nobody knows, or no longer, concerns nobody.
    pub(crate) fn publish(&mut self, event: &Event, wakes: &mut Wakes) {
        if let Some(entry) = self.find(event.socket) {
            entry.publish(event, wakes);
        }
    }

    /// Tells everybody that the stack has failed.
    pub(crate) fn fail_all(&mut self, wakes: &mut Wakes) {
        for entry in self.tcp.iter().chain(&self.udp).flatten() {
            entry.publish(&Event { socket: entry.socket, level: FAILED, edges: FAILED }, wakes);
        }
    }

    fn entry(&mut self, socket: SocketId, level: Readiness) -> &mut Entry {
        let table = self.table(socket.protocol());
        let slot = socket.slot();
        if table.len() <= slot {
            table.resize_with(slot + 1, || None);
        }
        let entry = &mut table[slot];
        // Whoever closed the socket that had the slot before did not call `forget`.
        if entry.as_ref().is_some_and(|entry| entry.socket != socket) {
            *entry = None;
        }
        entry.get_or_insert_with(|| {
            let word = ReadyWord::default();
            word.set_level(level);
            Entry { socket, word: Arc::new(word), watchers: SmallVec::new() }
        })
    }

    fn find(&mut self, socket: SocketId) -> Option<&mut Entry> {
        let entry = self.table(socket.protocol()).get_mut(socket.slot())?.as_mut()?;
        (entry.socket == socket).then_some(entry)
    }

    fn table(&mut self, protocol: Protocol) -> &mut Vec<Option<Entry>> {
        match protocol {
            Protocol::Tcp => &mut self.tcp,
            Protocol::Udp => &mut self.udp,
        }
    }
}

impl Entry {
    fn publish(&self, event: &Event, wakes: &mut Wakes) {
        // The word first: a watcher that looks at it sees what it is told of.
        self.word.publish(event.level);
        for (watcher, token) in &self.watchers {
            if watcher.on_event(*token, event) && !wakes.iter().any(|other| same(other, watcher)) {
                wakes.push(Arc::clone(watcher));
            }
        }
    }
}

/// Whether both are the same object. The address alone decides: the same type may have several
/// vtables.
fn same(one: &Arc<dyn Watcher>, other: &Arc<dyn Watcher>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}
