//! A listening socket: its backlog and the connections that wait in it. The rules are Linux's
//! (`listen(2)`): a backlog of `n` admits `n + 1`, what comes beyond is dropped without a word and
//! comes again.

use std::collections::VecDeque;

use super::half_open::SynQueue;
use super::settings::Settings;

/// Linux's `net.core.somaxconn`.
const BACKLOG_MAX: u32 = 4_096;

/// Half-open connections a listener keeps at least: bursts must fit a small backlog too, and a
/// record costs little.
const HALF_OPEN_MIN: u32 = 256;

/// A listener.
#[derive(Debug)]
pub(super) struct Listener {
    pub settings: Settings,
    pub half_open: SynQueue,
    /// Until when acknowledgements may bring back a SYN cookie.
    pub cookies_until: u64,
    pub accept: AcceptQueue,
}

/// Established connections that nobody has accepted, oldest first, by socket slot.
#[derive(Debug)]
pub(super) struct AcceptQueue {
    waiting: VecDeque<u32>,
    backlog: u32,
}

impl Listener {
    pub(super) fn new(settings: Settings, backlog: u32) -> Self {
        Self {
            settings,
            half_open: SynQueue::new(),
            cookies_until: 0,
            accept: AcceptQueue::new(backlog),
        }
    }

    /// Whether it keeps no more half-open connections: SYN cookies must do.
    pub(super) fn is_half_open_full(&self) -> bool {
        self.half_open.len() > self.accept.backlog.max(HALF_OPEN_MIN)
    }
}

impl AcceptQueue {
    fn new(backlog: u32) -> Self {
        Self { waiting: VecDeque::new(), backlog: backlog.min(BACKLOG_MAX) }
    }

    /// `listen` was called again.
    pub(super) fn set_backlog(&mut self, backlog: u32) {
        self.backlog = backlog.min(BACKLOG_MAX);
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() > self.backlog as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, slot: u32) {
        self.waiting.push_back(slot);
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::AcceptQueue;

    #[test]
    fn a_backlog_of_n_admits_one_more() {
        for (backlog, admitted) in [(0, 1), (1, 2), (511, 512), (u32::MAX, 4_097)] {
            let mut queue = AcceptQueue::new(backlog);
            let mut count = 0;
            while !queue.is_full() {
                queue.push(count);
                count += 1;
            }
            assert_eq!(count, admitted);
            assert_eq!(queue.pop(), Some(0));
            assert!(!queue.is_full());
        }
    }
}
