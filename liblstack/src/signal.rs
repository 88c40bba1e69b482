//! The program's signal handlers, called at moments when they can do no harm.
//!
//! When the stack starts, every handler the program has installed is replaced by [`trampoline`],
//! and from then on `sigaction` does the same for new ones. The kernel keeps flags and mask, so
//! `SA_NODEFER`, `SA_ONSTACK`, `SA_NOCLDWAIT` and the masks work as ever; the table here keeps the
//! program's handler. A process that starts no stack is left alone.
//!
//! **Keeping back.** A handler may call `send` while its own thread holds a stack's lock. So when
//! an asynchronous signal finds its thread inside (see `thread.rs`), the trampoline blocks all
//! signals in the interrupted context, gives the signal back to the kernel's queue, and returns.
//! The thread unblocks at its next safe point and the kernel delivers again: with the true
//! `siginfo`, on the right stack, by the right mask. Nothing is copied and nothing can overflow.
//! One deviation: a real-time signal kept back goes behind others of its number that were already
//! queued. Faults are never kept back.
//!
//! **Sleeping.** [`asleep`] and [`asleep_on_word`] leave the inside first, so handlers run at once,
//! and end with `EINTR` when a handler ran since the thread last asked
//! ([`Thread::ask_handled`](crate::thread::Thread::ask_handled)).
//!
//! **Dying.** `SIGTERM`, `SIGINT` and `SIGHUP` with the default action would end the process
//! with its connections open and silent. The trampoline stands in for that default too: it lets
//! `service.rs` close them, for a bounded time, then lets the signal kill the process. `sigaction`
//! still shows `SIG_DFL`; `exec` resets handlers by itself. Not in process 1, which the default
//! action doesn't end.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libc::{siginfo_t, ucontext_t};
use lstack_posix::Errno;

use crate::hooks::signal::real;
use crate::thread::{self, Restart, Thread};
use crate::{cancel, errno, raw, service};

/// The program's handler and some of its flags, one word per signal so that the trampoline reads
/// both at once: addresses of user space leave the top byte free.
static HANDLERS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];

/// Whether `sigaction` is answered here: set once, when the stack starts.
static WRAPPING: AtomicBool = AtomicBool::new(false);

/// Whether any handler is wrapped: while not, sleeping needs less care.
static ANY_HANDLER: AtomicBool = AtomicBool::new(false);

/// Signals that `siginterrupt` made end slow calls, for `signal`.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// Orders changes of table and kernel; taken with all signals blocked, so that no handler can wait
/// for its own thread.
static CHANGING: AtomicU32 = AtomicU32::new(0);

/// What the trampoline has to know about a signal.
#[derive(Clone, Copy)]
struct Handler(u64);

impl Handler {
    const SIGINFO: u64 = 1 << 56;
    const RESTART: u64 = 1 << 57;
    const ONCE: u64 = 1 << 58;
    const ADDRESS: u64 = (1 << 56) - 1;

    fn of(action: &libc::sigaction) -> Self {
        let mut word = action.sa_sigaction as u64 & Self::ADDRESS;
        for (flag, bit) in Self::FLAGS {
            if action.sa_flags & flag != 0 {
                word |= bit;
            }
        }
        Self(word)
    }

    fn address(self) -> usize {
        (self.0 & Self::ADDRESS) as usize
    }

    fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    /// Turns what the kernel holds into what the program set.
    fn undo(self, action: &mut libc::sigaction) {
        action.sa_sigaction = self.address();
        for (flag, bit) in Self::FLAGS {
            action.sa_flags &= !flag;
            if self.has(bit) {
                action.sa_flags |= flag;
            }
        }
    }

    const FLAGS: [(c_int, u64); 3] = [
        (libc::SA_SIGINFO, Self::SIGINFO),
        (libc::SA_RESTART, Self::RESTART),
        (libc::SA_RESETHAND, Self::ONCE),
    ];
}

/// The stack is about to run: wraps every handler the program has.
pub fn adopt() {
    let _changing = Changing::begin();
    WRAPPING.store(true, Ordering::Release);
    for signal in 1..SIGNALS as c_int {
        if !is_wrappable(signal) {
            continue;
        }
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: a query; `action` is valid for writing.
        if unsafe { real::sigaction.get()(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
            continue;
        }
        // SAFETY: the call succeeded and filled it.
        let action = unsafe { action.assume_init() };
        if action.sa_sigaction != libc::SIG_DFL || stands_in_for_default(signal) {
            let _ = install(signal, &action, ptr::null_mut());
        }
    }
}

/// In a child of `fork`: nothing is left to close, default actions are the kernel's again.
pub fn disown() {
    for signal in ENDING {
        let default = Handler(HANDLERS[signal as usize].load(Ordering::Relaxed)).address();
        if WRAPPING.load(Ordering::Relaxed) && default == libc::SIG_DFL {
            set_default(signal);
        }
    }
}

/// Whether [`sigaction`] must be asked.
pub fn is_wrapping(signal: c_int) -> bool {
    WRAPPING.load(Ordering::Acquire) && is_wrappable(signal)
}

/// `sigaction` on a signal that [`is_wrapping`].
///
/// # Safety
///
/// `old` is null or valid for writing.
pub unsafe fn sigaction(
    signal: c_int,
    new: Option<&libc::sigaction>,
    old: *mut libc::sigaction,
) -> c_int {
    let _changing = Changing::begin();
    let before = Handler(HANDLERS[signal as usize].load(Ordering::Relaxed));
    let mut previous = MaybeUninit::<libc::sigaction>::uninit();
    let result = match new {
        Some(action) => install(signal, action, previous.as_mut_ptr()),
        // SAFETY: a query; `previous` is valid for writing.
        None => unsafe { real::sigaction.get()(signal, ptr::null(), previous.as_mut_ptr()) },
    };
    if result == 0 && !old.is_null() {
        // SAFETY: the call succeeded and filled it.
        let mut previous = unsafe { previous.assume_init() };
        // Anything else was installed behind our back, and is what the program wants to see.
        if previous.sa_sigaction == trampoline_address() {
            before.undo(&mut previous);
        }
        // SAFETY: the caller vouches for `old`.
        unsafe { *old = previous };
    }
    result
}

/// `siginterrupt`: the restart flag of a handler, and of those `signal` installs later.
pub fn interrupt(signal: c_int, interrupts: bool) {
    let bit = bit(signal);
    if interrupts {
        INTERRUPTING.fetch_or(bit, Ordering::Relaxed);
    } else {
        INTERRUPTING.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Whether `signal` installs handlers that end slow calls.
pub fn is_interrupting(signal: c_int) -> bool {
    INTERRUPTING.load(Ordering::Relaxed) & bit(signal) != 0
}

/// Tells the kernel of the program's action, and the table; `CHANGING` is held.
fn install(signal: c_int, action: &libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let slot = &HANDLERS[signal as usize];
    let handler = Handler::of(action);
    let wraps = match action.sa_sigaction {
        libc::SIG_DFL => stands_in_for_default(signal),
        libc::SIG_IGN => false,
        _ => true,
    };
    if !wraps {
        // SAFETY: `action` is valid, `old` null or valid.
        let result = unsafe { real::sigaction.get()(signal, action, old) };
        if result == 0 {
            slot.store(handler.0, Ordering::Release);
        }
        return result;
    }
    let mut wrapped = *action;
    wrapped.sa_sigaction = trampoline_address();
    // The kernel would reset the handler when it delivers to the trampoline, which may have to give
    // the signal back: the trampoline resets it when the handler really runs.
    wrapped.sa_flags = (wrapped.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
    if action.sa_sigaction == libc::SIG_DFL {
        wrapped.sa_flags |= libc::SA_RESTART | libc::SA_ONSTACK;
    } else {
        ANY_HANDLER.store(true, Ordering::SeqCst);
    }
    let before = slot.swap(handler.0, Ordering::AcqRel);
    // SAFETY: `wrapped` is valid, `old` null or valid.
    let result = unsafe { real::sigaction.get()(signal, &raw const wrapped, old) };
    if result != 0 {
        slot.store(before, Ordering::Release);
    }
    result
}

/// What the kernel calls for every wrapped signal.
///
/// `C-unwind`, and nothing here needs dropping when a handler runs: it may end the thread or jump
/// out.
unsafe extern "C-unwind" fn trampoline(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo`.
    let code = unsafe { (*info).si_code };
    let is_fault = FAULTS & bit(signal) != 0;
    if !is_fault && thread::with(Thread::is_inside) {
        let saved = errno::get();
        // SAFETY: the kernel passes the interrupted context and the signal's own `siginfo`.
        unsafe { keep_back(signal, info, context.cast()) };
        errno::set(saved);
        return;
    }
    let handler = Handler(HANDLERS[signal as usize].load(Ordering::Acquire));
    match handler.address() {
        libc::SIG_DFL if ENDING.contains(&signal) => end_by(signal),
        // The action changed while the signal was on its way.
        libc::SIG_DFL | libc::SIG_IGN => debug_assert!(code <= 0 || !is_fault),
        address => {
            if handler.has(Handler::ONCE) {
                HANDLERS[signal as usize].store(0, Ordering::Release);
                set_default(signal);
            }
            let restart = if handler.has(Handler::RESTART) { Restart::Yes } else { Restart::No };
            thread::with(|thread| thread.count_handler(restart));
            // Three arguments also for a handler of one: the kernel passes them always.
            // SAFETY: the program installed this address as a handler.
            let handler = unsafe { std::mem::transmute::<usize, HandlerFn>(address) };
            // SAFETY: called as the kernel would, with the kernel's arguments.
            unsafe { handler(signal, info, context) };
        }
    }
}

type HandlerFn = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// Gives a signal back to the kernel until the thread is outside.
///
/// # Safety
///
/// `info` and `context` are those of the running signal handler.
unsafe fn keep_back(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    // Another signal between the lines below would take the trampoline's mask for the program's.
    raw::replace_signal_mask(ASYNCHRONOUS);
    // SAFETY: valid, see above; the kernel's mask is the first word of it.
    let mask = unsafe { (&raw mut (*context).uc_sigmask).cast::<u64>() };
    // SAFETY: as above.
    let programs = unsafe { *mask };
    thread::with(|thread| thread.hold(programs));
    // SAFETY: as above. The kernel loads this mask when the trampoline returns.
    unsafe { *mask = programs | ASYNCHRONOUS };
    let args = [raw::process_id(), raw::thread_id(), raw::int(signal), info as usize];
    // SAFETY: `info` is valid. The kernel lets a process send itself any `siginfo`.
    let queued = unsafe { raw::syscall(libc::SYS_rt_tgsigqueueinfo, args) };
    if queued.is_err() {
        // A real-time signal over RLIMIT_SIGPENDING: rather without its `siginfo` than not at all.
        send_to_self(signal);
    }
}

/// The default action of a signal of [`ENDING`], after connections were closed.
fn end_by(signal: c_int) {
    service::finish_and_wait(SIGNAL_LINGER);
    set_default(signal);
    // Blocked while its handler runs: it strikes when the trampoline returns.
    send_to_self(signal);
}

fn send_to_self(signal: c_int) {
    let args = [raw::process_id(), raw::thread_id(), raw::int(signal)];
    // SAFETY: no memory is involved.
    let _ = unsafe { raw::syscall(libc::SYS_tgkill, args) };
}

fn set_default(signal: c_int) {
    // SAFETY: all zero is `SIG_DFL` with no flags and an empty mask.
    let default = unsafe { std::mem::zeroed::<libc::sigaction>() };
    // SAFETY: `default` is valid, null asks for nothing.
    unsafe { real::sigaction.get()(signal, &raw const default, ptr::null_mut()) };
}

fn trampoline_address() -> usize {
    trampoline as *const () as usize
}

/// Whether the trampoline runs for this signal's default action.
fn stands_in_for_default(signal: c_int) -> bool {
    ENDING.contains(&signal) && raw::process_id() != 1
}

/// Whether programs can have a handler for it: not the two that none can have, not libc's own two.
fn is_wrappable(signal: c_int) -> bool {
    let libcs = 32..=33;
    (1..SIGNALS as c_int).contains(&signal)
        && !libcs.contains(&signal)
        && signal != libc::SIGKILL
        && signal != libc::SIGSTOP
}

/// Sleeps in a system call that takes a signal mask, outside: handlers run at once.
///
/// All signals are blocked while the counters are compared, and the call unblocks them when it
/// sleeps: a signal either came before and ends the sleep here, or ends it there.
pub fn asleep(
    mask: Option<u64>,
    call: impl FnOnce(Option<&u64>) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    thread::with(|thread| {
        let depth = thread.step_out();
        thread.set_sleeper(cancel::own_id());
        let result = if ANY_HANDLER.load(Ordering::Acquire) {
            let blocked = raw::replace_signal_mask(ASYNCHRONOUS);
            let programs = thread.take_held_mask().unwrap_or(blocked);
            let result = if thread.handled_since_asked() {
                Err(Errno(libc::EINTR))
            } else {
                call(Some(&mask.unwrap_or(programs)))
            };
            raw::replace_signal_mask(programs);
            result
        } else {
            thread.release();
            if thread.handled_since_asked() { Err(Errno(libc::EINTR)) } else { call(mask.as_ref()) }
        };
        thread.set_sleeper(0);
        thread.step_in(depth);
        result
    })
}

/// Sleeps while `word` holds `expected`, outside.
///
/// A futex call takes no signal mask. So it waits on two words: the caller's, and one that the
/// trampoline changes. A handler between the comparison and the sleep makes the kernel find the
/// second word changed; the same makes a call that `SA_RESTART` restarts end.
pub fn asleep_on_word(
    word: &AtomicU32,
    expected: u32,
    timeout: Option<Duration>,
) -> Result<(), Errno> {
    thread::with(|thread| {
        let depth = thread.step_out();
        thread.release();
        let stir = thread.stir().load(Ordering::SeqCst);
        let mut result = Ok(());
        if !thread.handled_since_asked() {
            result = wait_for_either([(word, expected), (thread.stir(), stir)], timeout);
        }
        if thread.handled_since_asked() {
            result = Err(Errno(libc::EINTR));
        }
        thread.step_in(depth);
        match result {
            Err(Errno(libc::EAGAIN)) => Ok(()),
            result => result,
        }
    })
}

/// Sleeps while both words hold what is expected.
fn wait_for_either(words: [(&AtomicU32, u32); 2], timeout: Option<Duration>) -> Result<(), Errno> {
    #[repr(C)]
    struct Waiter {
        expected: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }
    // The kernel's FUTEX2_SIZE_U32 and FUTEX2_PRIVATE.
    let flags = 0x02 | 0x80;
    let waiters = words.map(|(word, expected)| Waiter {
        expected: expected.into(),
        address: word.as_ptr() as u64,
        flags,
        reserved: 0,
    });
    let until = timeout.map(|timeout| raw::timespec(monotonic_now().saturating_add(timeout)));
    let args = [
        waiters.as_ptr() as usize,
        waiters.len(),
        0,
        until.as_ref().map_or(0, |until| ptr::from_ref(until) as usize),
        raw::int(libc::CLOCK_MONOTONIC),
    ];
    // SAFETY: all pointers are valid across the call, the structure is the kernel's.
    match unsafe { raw::syscall(libc::SYS_futex_waitv, args) } {
        // Linux before 5.16: look after the handlers from time to time.
        Err(Errno(libc::ENOSYS)) => wait_in_slices(words, timeout),
        result => result.map(drop),
    }
}

/// As [`wait_for_either`] without `futex_waitv`: what changes the second word in the moment before
/// the sleep is seen up to [`SLICE`] later.
fn wait_in_slices(
    [(word, expected), (stir, before)]: [(&AtomicU32, u32); 2],
    timeout: Option<Duration>,
) -> Result<(), Errno> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        match raw::futex_wait(word, expected, Some(slice)) {
            Err(Errno(libc::ETIMEDOUT)) if left.is_none_or(|left| left > SLICE) => {
                if stir.load(Ordering::SeqCst) != before {
                    return Err(Errno(libc::EINTR));
                }
            }
            result => return result,
        }
    }
}

fn monotonic_now() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The right to change table and kernel together. Blocks all signals while it exists.
struct Changing {
    mask: u64,
}

impl Changing {
    fn begin() -> Self {
        let mask = raw::replace_signal_mask(ASYNCHRONOUS);
        // Held for a few system calls at most, and its holder can't be interrupted.
        while CHANGING.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
        Self { mask }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let Self { mask } = self;
        CHANGING.store(0, Ordering::Release);
        raw::replace_signal_mask(*mask);
    }
}

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Signal numbers end below this.
const SIGNALS: usize = 65;

/// Signals a thread raises by what it does; blocking them would turn them into death.
const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS);

/// What is blocked while signals are kept back, and in threads of the library: not faults, not the
/// two that can't be, and not the two that libc uses to cancel threads and to change user ids in
/// all of them.
pub const ASYNCHRONOUS: u64 =
    !(FAULTS | bit(libc::SIGKILL) | bit(libc::SIGSTOP) | bit(32) | bit(33));

/// Signals by which users end programs.
const ENDING: [c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// A program ended by a signal is gone within a second at most, whatever its peers do.
const SIGNAL_LINGER: Duration = Duration::from_secs(1);

/// Short enough to go unnoticed by a person, long enough to cost nothing.
const SLICE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
