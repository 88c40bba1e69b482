//! The lazy start: idle until the program's first internet socket.
//!
//! Owns the state of the library and the one [`Posix`]. The start runs once, on a thread of its own
//! (the caller's stack may be small, and device code changes affinities and signal masks); every
//! thread that opens an internet socket meanwhile waits for its end. It may fail for many reasons:
//! then it says so once and the program runs on the kernel, or ends if the file asks for that.

use std::fmt::Display;
use std::os::fd::RawFd;
use std::panic;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::{ptr, thread as threads};

use lstack_config::{Config, Filter, OnInitFailure, process_environment};
use lstack_posix::Posix;
use lstack_runtime::Runtime;

use crate::real::Real;
use crate::{exit, hidden, last_thread, log, raw, service, signal, thread};

/// [`IDLE`], [`STARTING`] or [`SETTLED`]; a futex word.
static STATE: AtomicU32 = AtomicU32::new(IDLE);

/// The running stack; null before and without.
static POSIX: AtomicPtr<Posix> = AtomicPtr::new(ptr::null_mut());

/// The process the stack belongs to: children of `vfork` share this memory and are others.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The descriptor by which the process holds its address.
static CLAIM: AtomicI32 = AtomicI32::new(-1);

/// The stack, if it runs. One load: this is what every hooked call asks first.
#[inline]
pub fn posix() -> Option<&'static Posix> {
    let posix = POSIX.load(Ordering::Acquire);
    // SAFETY: null, or leaked by `run` and never freed.
    unsafe { posix.as_ref() }
}

/// Whether the caller is in the process that started the stack.
pub fn is_own_process() -> bool {
    raw::process_id() == PROCESS.load(Ordering::Relaxed) as usize
}

/// The program opens an internet socket: returns once it is decided whether there is a stack.
pub fn ensure() {
    loop {
        match STATE.load(Ordering::Acquire) {
            IDLE => {
                let claimed =
                    STATE.compare_exchange(IDLE, STARTING, Ordering::AcqRel, Ordering::Acquire);
                if claimed.is_ok() {
                    begin();
                }
            }
            STARTING if is_own_thread() => return,
            STARTING => {
                // Any way to return leads to another look.
                let _ = raw::futex_wait(&STATE, STARTING, None);
            }
            _ => return,
        }
    }
}

/// Whether the calling thread may use the stack.
pub fn accepts_this_thread() -> bool {
    let filter = filter();
    if !filter.looks_at_threads() {
        return true;
    }
    let mut name = [0_u8; 16];
    // SAFETY: `name` has the 16 bytes this request writes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    filter.accepts_thread(&name[..end])
}

/// The start itself calls hooks, from this thread and from those it makes. They have all signals
/// blocked, which no thread of a program has that could be starting up at this moment.
fn is_own_thread() -> bool {
    thread::with(thread::Thread::is_inside) || raw::signal_mask() & ALL == ALL
}

/// What is left to the caller's thread: little, and nothing that can fail half-way.
fn begin() {
    thread::with(thread::Thread::enter);
    if accepts_this_process() {
        PROCESS.store(raw::process_id() as u32, Ordering::Relaxed);
        exit::register();
        // Threads inherit the mask: signals are for the program's threads.
        let mask = raw::replace_signal_mask(ALL);
        let started = threads::Builder::new().name("lstack-start".into()).spawn(run);
        raw::replace_signal_mask(mask);
        if let Err(error) = started {
            give_up(&format_args!("no thread for the start: {error}"), OnInitFailure::Kernel);
            settle();
        }
    } else {
        settle();
    }
    thread::with(thread::Thread::leave);
}

fn accepts_this_process() -> bool {
    let executable = std::env::current_exe().unwrap_or_default();
    filter().accepts_process(executable.file_name().unwrap_or_default())
}

/// Of the environment at the start.
fn filter() -> &'static Filter {
    static FILTER: OnceLock<Filter> = OnceLock::new();
    FILTER.get_or_init(|| Filter::from_environment(&process_environment))
}

/// The start, on its own thread.
fn run() {
    thread::mark_own();
    log::install();
    let started = panic::catch_unwind(|| match lstack_config::load() {
        Ok(loaded) => {
            if let Some(notice) = loaded.notice() {
                ::log::warn!(target: "lstack", "{notice}");
            }
            start(&loaded.config);
        }
        Err(error) => give_up(&error, error.on_init_failure()),
    });
    if started.is_err() {
        // The panic hook has said where.
        give_up(&"internal error during the start", OnInitFailure::Kernel);
    }
    settle();
}

fn start(config: &Config) {
    log::configure(config.log_level, config.log_file.as_deref());
    let threads_before = last_thread::list();
    let fence = Fence::raise();
    let runtime = match Runtime::start(config) {
        Ok(runtime) => runtime,
        Err(error) => {
            drop(fence);
            return give_up(&error, config.on_init_failure);
        }
    };
    CLAIM.store(runtime.claim_fd().unwrap_or(-1), Ordering::Release);
    let posix = Posix::new(config, runtime, Arc::new(Real));
    fence.hide_what_came();
    let posix: &'static Posix = Box::leak(Box::new(posix));
    service::start(posix, config, threads_before);
    signal::adopt();
    POSIX.store(ptr::from_ref(posix).cast_mut(), Ordering::Release);
    ::log::info!(target: "lstack", "the stack runs");
}

fn settle() {
    STATE.store(SETTLED, Ordering::Release);
    raw::futex_wake(&STATE, u32::MAX);
}

/// In a child of `fork`: threads and devices stayed with the parent, the child is the kernel's.
/// Called between `fork` and its return, so only async-signal-safe things.
pub fn abandon() {
    // Or the address would stay taken for as long as the child lives.
    let claim = CLAIM.swap(-1, Ordering::AcqRel);
    if claim >= 0 {
        hidden::close(claim);
    }
    POSIX.store(ptr::null_mut(), Ordering::Release);
    STATE.store(SETTLED, Ordering::Release);
    signal::disown();
}

/// One message: each line of the reason, and what becomes of the program.
fn give_up(reason: &dyn Display, policy: OnInitFailure) {
    let fate = match policy {
        OnInitFailure::Kernel => "the program runs on the kernel",
        OnInitFailure::Abort => "the program ends (on_init_failure)",
    };
    let reason = reason.to_string();
    if reason.contains('\n') {
        let reason = reason.replace('\n', "\nlstack: ");
        log::tell(format_args!("{reason}\nlstack: the stack cannot start; {fate}"));
    } else {
        log::tell(format_args!("{reason}; {fate}"));
    }
    if policy == OnInitFailure::Abort {
        // SAFETY: ends the process; no destructor of the program may run on this thread.
        let _ = unsafe { raw::syscall(libc::SYS_exit_group, [1]) };
    }
}

/// Occupies the low descriptor numbers while devices open theirs, so that the program's next
/// descriptor has the number it would have without us. Gone, the numbers are free again.
struct Fence {
    posts: Vec<RawFd>,
    before: Vec<RawFd>,
}

impl Fence {
    fn raise() -> Self {
        let before = open_descriptors();
        let mut posts = Vec::new();
        let flags = raw::int(libc::EFD_CLOEXEC);
        // SAFETY: no memory is involved.
        let first = unsafe { raw::syscall(libc::SYS_eventfd2, [0, flags]) };
        let mut next = first.map(|fd| fd as RawFd);
        while let Ok(fd) = next {
            posts.push(fd);
            if fd >= hidden::first_number() {
                break;
            }
            let args = [raw::int(fd), raw::int(libc::F_DUPFD_CLOEXEC), 0];
            // SAFETY: no memory is involved.
            next = unsafe { raw::syscall(libc::SYS_fcntl, args) }.map(|fd| fd as RawFd);
        }
        // A number at or above the fence is for the devices.
        if posts.last().is_some_and(|last| *last >= hidden::first_number()) {
            posts.pop().into_iter().for_each(raw::close);
        }
        Self { posts, before }
    }

    /// Hides the descriptors that were opened meanwhile, and keeps them from programs this one
    /// executes.
    fn hide_what_came(self) {
        for fd in open_descriptors() {
            let is_new = fd >= hidden::first_number() && !self.before.contains(&fd);
            if is_new && !self.posts.contains(&fd) && is_of_a_device(fd) {
                hidden::insert(fd);
                let args = [raw::int(fd), raw::int(libc::F_SETFD), raw::int(libc::FD_CLOEXEC)];
                // SAFETY: no memory is involved.
                let _ = unsafe { raw::syscall(libc::SYS_fcntl, args) };
            }
        }
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        let Self { posts, before: _ } = self;
        posts.drain(..).for_each(raw::close);
    }
}

/// Files are not: another thread of the program may have opened one at the wrong moment.
fn is_of_a_device(fd: RawFd) -> bool {
    let Ok(target) = std::fs::read_link(format!("/proc/self/fd/{fd}")) else { return false };
    let target = target.to_string_lossy();
    ["socket:", "pipe:", "anon_inode:", "/dev/", "/memfd:"]
        .iter()
        .any(|kind| target.starts_with(kind))
}

fn open_descriptors() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.collect()
}

/// Nothing has happened.
const IDLE: u32 = 0;
/// One thread starts the stack.
const STARTING: u32 = 1;
/// It runs, or it never will.
const SETTLED: u32 = 2;

/// All signals a thread can block.
const ALL: u64 = signal::ASYNCHRONOUS;
