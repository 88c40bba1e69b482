//! One signal number per test: handlers belong to the process, and tests run on threads of one.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread as threads;
use std::time::Duration;

use libc::siginfo_t;
use lstack_posix::{Errno, Kernel};

use super::{adopt, asleep_on_word, sigaction};
use crate::real::Real;
use crate::thread::{self, Restart, Thread};
use crate::{errno, raw};

const INTERRUPTED: Errno = Errno(libc::EINTR);

thread_local! {
    static RUNS: Cell<u32> = const { Cell::new(0) };
    static VALUE: Cell<c_int> = const { Cell::new(0) };
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn handler(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    RUNS.set(RUNS.get() + 1);
    INSIDE.set(thread::with(Thread::is_inside));
    // SAFETY: the kernel passes a valid `siginfo`.
    let info = unsafe { &*info };
    // SAFETY: signals of these tests have a value, or one nobody looks at.
    VALUE.set(unsafe { info.si_value() }.sival_ptr as c_int);
}

fn adopt_once() {
    static ADOPTED: Once = Once::new();
    ADOPTED.call_once(|| {
        // What a test runner was started with may ignore some of them, as `nohup` does.
        super::ENDING.into_iter().for_each(super::set_default);
        adopt();
    });
}

fn action(address: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: all zero is an action without flags and with an empty mask.
    let mut action = unsafe { std::mem::zeroed::<libc::sigaction>() };
    action.sa_sigaction = address;
    action.sa_flags = flags;
    action
}

fn install(signal: c_int, flags: c_int) {
    adopt_once();
    let action = action(handler as *const () as usize, flags | libc::SA_SIGINFO);
    // SAFETY: null asks for nothing.
    assert_eq!(unsafe { sigaction(signal, Some(&action), ptr::null_mut()) }, 0);
}

fn view(signal: c_int) -> libc::sigaction {
    let mut action = MaybeUninit::uninit();
    // SAFETY: `action` is valid for writing.
    assert_eq!(unsafe { sigaction(signal, None, action.as_mut_ptr()) }, 0);
    // SAFETY: filled, since the call succeeded.
    unsafe { action.assume_init() }
}

/// Sends the calling thread a signal with a value.
fn send_self(signal: c_int, value: usize) {
    let value = libc::sigval { sival_ptr: value as *mut c_void };
    // SAFETY: no conditions.
    let own = unsafe { libc::pthread_self() };
    // SAFETY: the calling thread is there.
    assert_eq!(unsafe { libc::pthread_sigqueue(own, signal, value) }, 0);
}

#[test]
fn handlers_wait_while_the_thread_is_inside() {
    install(libc::SIGUSR1, 0);
    install(libc::SIGUSR2, 0);
    let mask = raw::signal_mask();
    thread::with(Thread::enter);
    errno::set(777);
    send_self(libc::SIGUSR1, 5);
    assert_eq!(errno::get(), 777);
    send_self(libc::SIGUSR2, 6);
    assert_eq!(RUNS.get(), 0);
    thread::with(Thread::safe_point);
    assert_eq!((RUNS.get(), INSIDE.get()), (2, false));
    assert!(thread::with(Thread::is_inside));
    send_self(libc::SIGUSR1, 7);
    assert_eq!(RUNS.get(), 2);
    thread::with(Thread::leave);
    assert_eq!((RUNS.get(), VALUE.get()), (3, 7));
    assert_eq!(raw::signal_mask(), mask);
    send_self(libc::SIGUSR1, 8);
    assert_eq!((RUNS.get(), VALUE.get()), (4, 8));
}

#[test]
fn the_program_sees_its_own_actions() {
    let signal = libc::SIGWINCH;
    install(signal, libc::SA_RESTART | libc::SA_NODEFER);
    let seen = view(signal);
    assert_eq!(seen.sa_sigaction, handler as *const () as usize);
    let flags = libc::SA_RESTART | libc::SA_NODEFER | libc::SA_SIGINFO;
    assert_eq!(seen.sa_flags & (flags | libc::SA_RESETHAND), flags);
    install(signal, libc::SA_RESETHAND);
    assert_ne!(view(signal).sa_flags & libc::SA_RESETHAND, 0);
    send_self(signal, 0);
    assert_eq!(RUNS.get(), 1);
    assert_eq!(view(signal).sa_sigaction, libc::SIG_DFL);
    // SAFETY: null asks for nothing.
    unsafe { sigaction(signal, Some(&action(libc::SIG_IGN, 0)), ptr::null_mut()) };
    assert_eq!(view(signal).sa_sigaction, libc::SIG_IGN);
}

#[test]
fn default_endings_look_like_defaults() {
    adopt_once();
    for signal in super::ENDING {
        assert_eq!(view(signal).sa_sigaction, libc::SIG_DFL);
        assert_eq!(view(signal).sa_flags & libc::SA_SIGINFO, 0);
    }
}

#[test]
fn a_handler_before_the_sleep_ends_it() {
    let signal = libc::SIGURG;
    install(signal, libc::SA_RESTART);
    let word = AtomicU32::new(0);
    Real.signals_seen();
    send_self(signal, 0);
    assert_eq!(RUNS.get(), 1);
    assert_eq!(asleep_on_word(&word, 0, None), Err(INTERRUPTED));
    assert_eq!(Real.poll(&mut [], None, None), Err(INTERRUPTED));
    let epoll = Real.epoll_create1(libc::EPOLL_CLOEXEC).unwrap();
    let mut events = [lstack_posix::EpollEvent { events: 0, data: 0 }];
    assert_eq!(Real.epoll_wait(epoll, &mut events, None, None), Err(INTERRUPTED));
    Real.signals_seen();
    assert_eq!(Real.poll(&mut [], Some(Duration::ZERO), None), Ok(0));
    let timed_out = Real.epoll_wait(epoll, &mut events, Some(Duration::ZERO), None);
    assert_eq!(timed_out, Ok(0));
    Real.close(epoll).unwrap();
}

#[test]
fn a_signal_kept_back_ends_the_next_sleep() {
    let signal = libc::SIGPROF;
    install(signal, libc::SA_RESTART);
    let word = AtomicU32::new(0);
    thread::with(Thread::enter);
    Real.signals_seen();
    send_self(signal, 0);
    assert_eq!(asleep_on_word(&word, 0, None), Err(INTERRUPTED));
    assert_eq!((RUNS.get(), INSIDE.get()), (1, false));
    assert!(thread::with(Thread::is_inside));
    Real.signals_seen();
    send_self(signal, 0);
    assert_eq!(Real.poll(&mut [], None, None), Err(INTERRUPTED));
    assert_eq!(RUNS.get(), 2);
    thread::with(Thread::leave);
}

#[test]
fn handlers_are_counted_by_their_restart_flag() {
    let signal = libc::SIGVTALRM;
    let (all, without) = Real.signals_seen();
    install(signal, libc::SA_RESTART);
    send_self(signal, 0);
    assert_eq!(Real.signals_seen(), (all + 1, without));
    install(signal, 0);
    send_self(signal, 0);
    assert_eq!(Real.signals_seen(), (all + 2, without + 1));
}

#[test]
fn a_changed_word_or_the_time_ends_the_sleep() {
    let word = AtomicU32::new(1);
    Real.signals_seen();
    assert_eq!(Real.futex_wait(&word, 0, None), Ok(()));
    let short = Some(Duration::from_millis(1));
    assert_eq!(Real.futex_wait(&word, 1, short), Err(Errno(libc::ETIMEDOUT)));
    threads::scope(|scope| {
        let sleeper = scope.spawn(|| {
            Real.signals_seen();
            while word.load(Ordering::Acquire) == 1 {
                assert_eq!(Real.futex_wait(&word, 1, None), Ok(()));
            }
        });
        word.store(2, Ordering::Release);
        while !sleeper.is_finished() {
            Real.futex_wake(&word, 1);
        }
    });
}

#[test]
fn no_signal_between_the_last_look_and_the_sleep_is_lost() {
    install(libc::SIGIO, libc::SA_RESTART);
    for sleep in [sleep_on_word, sleep_in_poll] {
        let round = AtomicU32::new(0);
        threads::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let round = &round;
            scope.spawn(move || {
                // SAFETY: no conditions.
                sender.send(unsafe { libc::pthread_self() }).unwrap();
                for number in 1..=ROUNDS {
                    let (before, _) = Real.signals_seen();
                    round.store(number, Ordering::Release);
                    assert_eq!(sleep(), Err(INTERRUPTED));
                    assert_eq!(Real.signals_seen().0, before + 1);
                }
            });
            let sleeper = receiver.recv().unwrap();
            for number in 1..=ROUNDS {
                while round.load(Ordering::Acquire) != number {
                    std::hint::spin_loop();
                }
                // SAFETY: the thread is not joined before the scope ends.
                assert_eq!(unsafe { libc::pthread_kill(sleeper, libc::SIGIO) }, 0);
            }
        });
    }
}

/// Enough to hit every place between look and sleep; some 10 µs each.
const ROUNDS: u32 = 5000;

fn sleep_on_word() -> Result<(), Errno> {
    asleep_on_word(&AtomicU32::new(0), 0, None)
}

fn sleep_in_poll() -> Result<(), Errno> {
    Real.poll(&mut [], None, None).map(drop)
}

#[test]
fn a_request_to_cancel_ends_a_sleep_on_a_word() {
    let asked = AtomicBool::new(false);
    threads::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let asked = &asked;
        scope.spawn(move || {
            Real.signals_seen();
            thread::with(|thread| sender.send(ptr::from_ref(thread) as usize).unwrap());
            assert_eq!(sleep_on_word(), Err(INTERRUPTED));
            assert!(thread::with(Thread::take_cancel));
            assert!(!thread::with(Thread::take_cancel));
            while !asked.load(Ordering::Acquire) {
                threads::yield_now();
            }
        });
        let place = receiver.recv().unwrap() as *const Thread;
        // SAFETY: the thread waits for `asked`.
        assert_eq!(unsafe { &*place }.cancel(), None);
        asked.store(true, Ordering::Release);
    });
}

#[test]
fn counting_needs_no_signal() {
    let (all, without) = Real.signals_seen();
    thread::with(|thread| thread.count_handler(Restart::No));
    assert_eq!(Real.signals_seen(), (all + 1, without + 1));
}
