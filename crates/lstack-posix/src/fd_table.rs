//! Descriptor numbers to descriptions.
//!
//! Only descriptors of ours are in it; any other number is the kernel's. Looking up takes no lock:
//! a bit says "not ours" with one load, and the slot gives the description without touching a
//! shared counter. A description found stays valid while held, whatever other threads close.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;

use crate::description::Description;

/// The table of one process.
pub(crate) struct FdTable {
    known: Box<[AtomicU64]>,
    pages: Box<[OnceLock<Page>]>,
}

type Page = Box<[ArcSwapOption<Description>]>;

impl FdTable {
    pub(crate) fn new() -> Self {
        Self {
            known: (0..CAPACITY / 64).map(|_| AtomicU64::new(0)).collect(),
            pages: (0..CAPACITY / PAGE).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Whether `fd` is ours.
    pub(crate) fn knows(&self, fd: RawFd) -> bool {
        let Ok(index) = usize::try_from(fd) else { return false };
        self.known
            .get(index / 64)
            .is_some_and(|word| word.load(Ordering::Acquire) & (1 << (index % 64)) != 0)
    }

    /// Whether the table has room for the number.
    pub(crate) fn can_hold(fd: RawFd) -> bool {
        usize::try_from(fd).is_ok_and(|index| index < CAPACITY)
    }

    /// The description of `fd`.
    pub(crate) fn get(&self, fd: RawFd) -> Option<Arc<Description>> {
        if !self.knows(fd) {
            return None;
        }
        self.slot(fd)?.load_full()
    }

    /// Makes `fd` refer to `description`; returns what it referred to before.
    pub(crate) fn insert(
        &self,
        fd: RawFd,
        description: Arc<Description>,
    ) -> Option<Arc<Description>> {
        let index = usize::try_from(fd).ok().filter(|&index| index < CAPACITY)?;
        description.add_descriptor();
        let page = self.pages[index / PAGE]
            .get_or_init(|| (0..PAGE).map(|_| ArcSwapOption::empty()).collect());
        let old = page[index % PAGE].swap(Some(description));
        self.known[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
        old
    }

    /// Makes `fd` the kernel's.
    pub(crate) fn remove(&self, fd: RawFd) -> Option<Arc<Description>> {
        let slot = self.slot(fd)?;
        let index = usize::try_from(fd).ok()?;
        self.known[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
        slot.swap(None)
    }

    /// The numbers in `first..=last` that are ours, ascending.
    pub(crate) fn numbers(&self, first: usize, last: usize) -> Vec<RawFd> {
        let mut numbers = Vec::new();
        for (position, word) in self.known.iter().enumerate() {
            let mut bits = word.load(Ordering::Acquire);
            while bits != 0 {
                let index = position * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if (first..=last).contains(&index) {
                    numbers.extend(RawFd::try_from(index));
                }
            }
        }
        numbers
    }

    fn slot(&self, fd: RawFd) -> Option<&ArcSwapOption<Description>> {
        let index = usize::try_from(fd).ok()?;
        self.pages.get(index / PAGE)?.get()?.get(index % PAGE)
    }
}

/// Numbers above stay with the kernel. One million is the kernel's own usual ceiling
/// (`fs.nr_open`); the bits cost 128 KiB, touched as numbers are used.
const CAPACITY: usize = 1 << 20;

/// Slots per page: 8 KiB at a time.
const PAGE: usize = 1024;
