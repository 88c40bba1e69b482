//! Epoll instances that are the kernel's alone, as far as the stack must know of them.
//!
//! An instance becomes the stack's with the first socket of the stack that joins it. Threads may
//! sleep in it at that moment, and it may be watched by another instance; neither went through the
//! stack. So whoever enters a real wait is listed here while it lasts, and numbers that were added
//! to an instance are remembered. All of it also works before the stack starts.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::thread;

/// The descriptor each listed thread waits on, plus one; 0 is a free place.
static SLEEPERS: [AtomicI32; PLACES] = [const { AtomicI32::new(0) }; PLACES];

/// Numbers that were added to an instance.
static WATCHED: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// A listed thread. Left by [`leave`] and not when it is dropped: a thread that is cancelled in the
/// real call must have nothing to drop. Its place is then lost, which costs a wake-up too many now
/// and then.
#[derive(Debug)]
pub struct Place(usize);

/// Lists the calling thread as waiting on `epfd`.
pub fn enter(epfd: RawFd) -> Place {
    // Threads start their search at different places, each at the same one every time.
    let own = thread::with(|thread| std::ptr::from_ref(thread) as usize) / size_of::<usize>();
    for step in 0..PLACES {
        let place = own.wrapping_add(step) % PLACES;
        let free = SLEEPERS[place].load(Ordering::Relaxed) == 0;
        // Sequentially consistent, as `Kernel::epoll_sleepers` demands: the list is written
        // before the stack is asked.
        if free
            && SLEEPERS[place]
                .compare_exchange(0, epfd.wrapping_add(1), Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        {
            return Place(place);
        }
    }
    Place(PLACES)
}

/// The wait is over.
pub fn leave(place: &Place) {
    if let Some(sleeper) = SLEEPERS.get(place.0) {
        sleeper.store(0, Ordering::Release);
    }
}

/// Names the descriptors that are waited on.
pub fn name_sleepers(name: &mut dyn FnMut(RawFd)) {
    for sleeper in &SLEEPERS {
        let value = sleeper.load(Ordering::SeqCst);
        if value != 0 {
            name(value.wrapping_sub(1));
        }
    }
}

/// Remembers that `fd` was added to an instance.
pub fn note_watched(fd: RawFd) {
    if let Some((word, bit)) = position(fd) {
        WATCHED[word].fetch_or(bit, Ordering::Relaxed);
    }
}

/// `fd` was closed: the number may come back as something else.
#[inline]
pub fn forget_watched(fd: RawFd) {
    if let Some((word, bit)) = position(fd)
        && WATCHED[word].load(Ordering::Relaxed) & bit != 0
    {
        WATCHED[word].fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Whether `fd` may be watched by an instance. Numbers beyond the table may always be.
pub fn is_watched(fd: RawFd) -> bool {
    position(fd).is_none_or(|(word, bit)| WATCHED[word].load(Ordering::Relaxed) & bit != 0)
}

fn position(fd: RawFd) -> Option<(usize, u64)> {
    let index = usize::try_from(fd).ok()?;
    (index / 64 < WORDS).then_some((index / 64, 1 << (index % 64)))
}

/// Threads that can be listed: 4 KiB, touched as it is used. Should more wait at once, a thread too
/// many may sleep through the first event of an instance that becomes the stack's meanwhile.
const PLACES: usize = 1024;

/// Words for 65,536 numbers: 8 KiB, touched as it is used.
const WORDS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::{enter, forget_watched, is_watched, leave, name_sleepers, note_watched};

    fn sleepers_on(fd: i32) -> usize {
        let mut count = 0;
        name_sleepers(&mut |sleeper| count += usize::from(sleeper == fd));
        count
    }

    #[test]
    fn a_thread_is_listed_for_as_long_as_it_waits() {
        let places = [enter(70_001), enter(70_001)];
        assert_eq!(sleepers_on(70_001), 2);
        leave(&places[0]);
        assert_eq!(sleepers_on(70_001), 1);
        leave(&places[1]);
        assert_eq!(sleepers_on(70_001), 0);
    }

    #[test]
    fn a_closed_number_is_forgotten() {
        assert!(!is_watched(60_000));
        note_watched(60_000);
        assert!(is_watched(60_000));
        forget_watched(60_000);
        assert!(!is_watched(60_000));
        assert!(is_watched(1 << 20), "not known, so assumed");
        note_watched(-1);
        forget_watched(-1);
    }
}
