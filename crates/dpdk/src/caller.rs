//! Keeps the calling thread as it is.
//!
//! DPDK pins the thread that starts it, starts threads of its own and may lower limits. A program
//! under the preload library must see none of that, and none of its signals may be handled on a
//! thread it does not know.

use std::mem::MaybeUninit;

/// Runs `call` with all signals blocked, so that the threads it makes never handle any, and puts
/// the thread's signal mask, its CPU affinity and the process's limits of descriptors and locked
/// memory back.
pub(crate) fn preserved<R>(call: impl FnOnce() -> R) -> R {
    let _state = Preserved::take();
    call()
}

struct Preserved {
    signals: libc::sigset_t,
    /// `None` when it could not be read (more CPUs than the type holds): then it is left alone.
    affinity: Option<libc::cpu_set_t>,
    limits: [Option<libc::rlimit>; LIMITS.len()],
}

impl Preserved {
    fn take() -> Self {
        let mut signals = MaybeUninit::zeroed();
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: fills the set, which is plain bits.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: both sets are valid; the call cannot fail with SIG_SETMASK.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), signals.as_mut_ptr()) };

        let mut affinity = MaybeUninit::<libc::cpu_set_t>::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        // SAFETY: the set has `size` bytes.
        let error = unsafe { libc::sched_getaffinity(0, size, affinity.as_mut_ptr()) };
        // SAFETY: all zero is a valid set, and the call only writes bits.
        let affinity = (error == 0).then(|| unsafe { affinity.assume_init() });

        Self {
            // SAFETY: all zero is a valid set, and the call only writes bits.
            signals: unsafe { signals.assume_init() },
            affinity,
            limits: LIMITS.map(limit),
        }
    }
}

impl Drop for Preserved {
    fn drop(&mut self) {
        let Self { signals, affinity, limits } = self;
        for (resource, limit) in LIMITS.into_iter().zip(limits) {
            if let Some(limit) = limit {
                // SAFETY: a valid limit, read before.
                unsafe { libc::setrlimit(resource, limit) };
            }
        }
        if let Some(set) = affinity {
            // SAFETY: a valid set of that size, read before.
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) };
        }
        // SAFETY: a valid set, read before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, signals, std::ptr::null_mut()) };
    }
}

fn limit(resource: libc::__rlimit_resource_t) -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place to write to.
    let error = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (error == 0).then_some(limit)
}

/// DPDK raises the first when it shares huge pages, libbpf the second.
const LIMITS: [libc::__rlimit_resource_t; 2] = [libc::RLIMIT_NOFILE, libc::RLIMIT_MEMLOCK];

/// CPUs the calling thread may run on, ascending; empty when that cannot be told.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the set has `size` bytes.
    if unsafe { libc::sched_getaffinity(0, size, set.as_mut_ptr()) } != 0 {
        return Vec::new();
    }
    // SAFETY: all zero is a valid set, and the call only writes bits.
    let set = unsafe { set.assume_init() };
    // SAFETY: the index is below the number of bits of the set.
    (0..size * 8).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}
