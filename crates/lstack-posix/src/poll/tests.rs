//! `poll` and `select` over both worlds, as measured on Linux.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP};
use lstack_core::{Protocol, Readiness};

use super::linux_bits;
use crate::errno::Errno;
use crate::kernel::{Kernel, PollFd};
use crate::posix::Outcome;
use crate::testbed::{PATIENCE, STACK, Testbed, done, poll_fd, raw};

const NOW: Option<Duration> = Some(Duration::ZERO);

impl Testbed {
    /// What `poll` says of descriptors, without waiting.
    fn poll_now<const N: usize>(&self, wanted: [(RawFd, i16); N]) -> [i16; N] {
        let mut fds = wanted.map(|(fd, events)| poll_fd(fd, events));
        let count = done(self.posix.poll(&mut fds, NOW, None));
        assert_eq!(count, fds.iter().filter(|entry| entry.revents != 0).count());
        fds.map(|entry| entry.revents)
    }

    /// What `select` leaves in its sets.
    fn select(
        &self,
        sets: [&[RawFd]; 3],
        timeout: Option<Duration>,
    ) -> Outcome<(usize, [Vec<RawFd>; 3])> {
        let mut words = sets.map(|set| {
            let mut words = [0_u64; 16];
            for fd in set {
                words[fd.unsigned_abs() as usize / 64] |= 1 << (fd % 64);
            }
            words
        });
        let before = words;
        let [read, write, except] = words.each_mut().map(|words| Some(&mut words[..]));
        match self.posix.select(1024, read, write, except, timeout, None) {
            Outcome::Done(Ok(count)) => {
                let members = |words: [u64; 16]| {
                    (0..1024).filter(|fd| words[*fd as usize / 64] >> (fd % 64) & 1 != 0).collect()
                };
                Outcome::Done(Ok((count, words.map(members))))
            }
            Outcome::Done(Err(error)) => {
                assert_eq!(words, before, "a failing call changes nothing");
                Outcome::Done(Err(error))
            }
            Outcome::Kernel => Outcome::Kernel,
        }
    }
}

/// An answer of `select`.
fn chosen(sets: [&[RawFd]; 3]) -> Outcome<(usize, [Vec<RawFd>; 3])> {
    let count = sets.iter().map(|set| set.len()).sum();
    let sorted = |set: &[RawFd]| {
        let mut set = set.to_vec();
        set.sort_unstable();
        set
    };
    Outcome::Done(Ok((count, sets.map(sorted))))
}

#[test]
fn readiness_has_the_names_of_system_v_too() {
    let both = Readiness::READABLE | Readiness::WRITABLE;
    let stream = POLLIN | POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;
    assert_eq!(linux_bits(both, Protocol::Tcp), u32::from(stream.cast_unsigned()));
    let datagram = stream | libc::POLLWRBAND;
    assert_eq!(linux_bits(both, Protocol::Udp), u32::from(datagram.cast_unsigned()));
    let all = linux_bits(Readiness::all(), Protocol::Udp);
    let expected = datagram | POLLERR | POLLHUP | POLLPRI | POLLRDHUP;
    assert_eq!(i16::try_from(all), Ok(expected));
}

#[test]
fn sets_without_a_socket_of_ours_are_the_kernels() {
    let bed = Testbed::new();
    let (reader, _writer) = bed.kernel.pipe();
    let mut fds = [poll_fd(reader, POLLIN), poll_fd(-1, POLLIN)];
    assert_eq!(bed.posix.poll(&mut fds, NOW, None), Outcome::Kernel);
    assert_eq!(bed.select([&[reader], &[], &[]], NOW), Outcome::Kernel);
    assert_eq!(bed.posix.select(0, None, None, None, NOW, None), Outcome::Kernel);
}

#[test]
fn a_mixed_set_is_answered_entry_by_entry() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let (reader, writer) = bed.kernel.pipe();
    let fresh = bed.socket(libc::SOCK_STREAM);
    let ask = || {
        bed.poll_now([
            (near, POLLIN | POLLOUT),
            (reader, POLLIN),
            (-1, POLLIN),
            (fresh, POLLIN),
            (4000, POLLIN),
            (near, POLLIN),
            (near, libc::POLLWRNORM),
        ])
    };
    let norm = libc::POLLWRNORM;
    assert_eq!(ask(), [POLLOUT, 0, 0, POLLHUP, POLLNVAL, 0, norm]);
    bed.send(far, b"x");
    bed.wait_readable(near);
    bed.kernel.write(writer, b"x").unwrap();
    assert_eq!(ask(), [POLLIN | POLLOUT, POLLIN, 0, POLLHUP, POLLNVAL, POLLIN, norm]);
}

#[test]
fn the_ends_of_a_connection_are_told_as_linux_does() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let all = POLLIN | POLLOUT | POLLRDHUP | POLLPRI;
    done(bed.posix.shutdown(far, libc::SHUT_WR));
    bed.wait_for(near, POLLRDHUP);
    assert_eq!(bed.poll_now([(near, all)]), [POLLIN | POLLOUT | POLLRDHUP]);
    assert_eq!(bed.poll_now([(near, POLLIN)]), [POLLIN]);
    done(bed.posix.shutdown(near, libc::SHUT_WR));
    bed.wait_for(near, POLLHUP);
    assert_eq!(bed.poll_now([(near, 0)]), [POLLHUP]);
}

#[test]
fn a_datagram_socket_of_both_worlds_is_polled_in_both() {
    let bed = Testbed::new();
    let (socket, port) = bed.datagram(Ipv4Addr::UNSPECIFIED);
    assert_eq!(bed.poll_now([(socket, POLLIN | POLLOUT)]), [POLLOUT]);
    let theirs = bed.kernel.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
    let hello = [std::io::IoSlice::new(b"hello")];
    bed.kernel.sendmsg(theirs, &hello, &raw(Ipv4Addr::LOCALHOST, port), 0).unwrap();
    bed.wait_readable(socket);
    assert_eq!(bed.recv(socket, 8), Ok(b"hello".to_vec()));
    assert_eq!(bed.poll_now([(socket, POLLIN)]), [0]);
    let (ours, _) = bed.datagram(STACK);
    done(bed.posix.sendmsg(ours, &hello, &raw(STACK, port), &[], 0));
    bed.wait_readable(socket);
    assert_eq!(bed.poll_now([(socket, POLLIN)]), [POLLIN]);
}

#[test]
fn a_sleeping_poll_is_woken_from_both_worlds() {
    for spin in [Duration::ZERO, Duration::from_micros(50)] {
        let bed = Testbed::with(|config| config.app_spin = spin);
        let (near, far) = bed.pair();
        let (reader, writer) = bed.kernel.pipe();
        let woken_by = |mut fds: [PollFd; 2], action: &dyn Fn()| {
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    assert_eq!(
                        bed.posix.poll(&mut fds, Some(PATIENCE), None),
                        Outcome::Done(Ok(1))
                    );
                    fds.map(|entry| entry.revents)
                });
                bed.wait_inside();
                action();
                waiter.join().unwrap()
            })
        };
        let both = [poll_fd(near, POLLIN), poll_fd(reader, POLLIN)];
        let alone = [poll_fd(near, POLLIN), poll_fd(-1, 0)];
        for fds in [both, alone] {
            let send = || assert_eq!(bed.send(far, b"x"), 1);
            assert_eq!(woken_by(fds, &send), [POLLIN, 0]);
            bed.recv(near, 1).unwrap();
        }
        let write = || assert_eq!(bed.kernel.write(writer, b"x"), Ok(1));
        assert_eq!(woken_by(both, &write), [0, POLLIN]);
    }
}

#[test]
fn a_sleeping_poll_follows_a_socket_that_moves() {
    let bed = Testbed::new();
    let socket = bed.socket(libc::SOCK_DGRAM);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| bed.wait_readable(socket));
        bed.wait_inside();
        done(bed.posix.bind(socket, &raw(STACK, 0)));
        let (other, _) = bed.datagram(STACK);
        let hello = [std::io::IoSlice::new(b"hello")];
        done(bed.posix.sendmsg(other, &hello, &raw(STACK, bed.port(socket)), &[], 0));
        waiter.join().unwrap();
    });
}

#[test]
fn waiting_ends_with_the_time_given() {
    for spin in [Duration::ZERO, Duration::from_micros(50)] {
        let bed = Testbed::with(|config| config.app_spin = spin);
        let (near, _far) = bed.pair();
        for wait in [1, 20, 5000].map(Duration::from_micros) {
            let begun = std::time::Instant::now();
            let mut fds = [poll_fd(near, POLLIN)];
            assert_eq!(bed.posix.poll(&mut fds, Some(wait), None), Outcome::Done(Ok(0)));
            assert!(begun.elapsed() >= wait);
        }
        assert_eq!(
            bed.select([&[near], &[], &[]], Some(Duration::from_millis(1))),
            chosen([&[]; 3])
        );
    }
}

#[test]
fn a_signal_handler_ends_poll_and_select() {
    let bed = Testbed::new();
    let (near, _far) = bed.pair();
    let mut fds = [poll_fd(near, POLLIN)];
    bed.kernel.signal.store(true, Ordering::SeqCst);
    assert_eq!(bed.posix.poll(&mut fds, Some(PATIENCE), None).error(), libc::EINTR);
    bed.kernel.signal.store(true, Ordering::SeqCst);
    let interrupted = bed.select([&[near], &[], &[]], Some(PATIENCE));
    assert_eq!(interrupted, Outcome::Done(Err(Errno(libc::EINTR))));
    bed.kernel.signal.store(true, Ordering::SeqCst);
    assert_eq!(bed.poll_now([(near, POLLIN)]), [0], "a look without waiting is not interrupted");
}

#[test]
fn select_counts_each_set_and_knows_what_belongs_in_it() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let (reader, writer) = bed.kernel.pipe();
    let fresh = bed.socket(libc::SOCK_STREAM);
    let all = [near, reader, writer, fresh];
    // A fresh stream socket has hung up, which `select` takes for readable.
    let writable = [near, writer, fresh];
    assert_eq!(bed.select([&[], &all, &all], NOW), chosen([&[], &writable, &[]]));
    bed.send(far, b"x");
    bed.wait_readable(near);
    let ready = bed.select([&all, &all, &all], NOW);
    assert_eq!(ready, chosen([&[near, fresh], &writable, &[]]));
    bed.kernel.write(writer, b"x").unwrap();
    let readable = [near, reader, fresh];
    assert_eq!(bed.select([&all, &[], &[]], NOW), chosen([&readable, &[], &[]]));
}

#[test]
fn select_shows_a_reset_as_readable_and_writable() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let linger: Vec<u8> = [1_i32, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    done(bed.posix.setsockopt(far, libc::SOL_SOCKET, libc::SO_LINGER, &linger));
    bed.close(far);
    bed.wait_for(near, POLLERR);
    let all: &[RawFd] = &[near];
    assert_eq!(bed.select([all; 3], NOW), chosen([all, all, &[]]));
}

#[test]
fn select_refuses_a_closed_descriptor_and_leaves_the_sets() {
    let bed = Testbed::new();
    let (near, _far) = bed.pair();
    let failed = bed.select([&[near, 1000], &[near], &[]], Some(PATIENCE));
    assert_eq!(failed, Outcome::Done(Err(Errno(libc::EBADF))));
}

#[test]
fn select_sleeps_although_the_kernel_tells_of_what_was_not_asked() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let (reader, writer) = bed.kernel.pipe();
    bed.close(writer);
    let limit = Duration::from_millis(50);
    let before = bed.kernel.calls.load(Ordering::Relaxed);
    assert_eq!(bed.select([&[near], &[reader], &[]], Some(limit)), chosen([&[]; 3]));
    let made = bed.kernel.calls.load(Ordering::Relaxed) - before;
    assert!(made < 100, "{made} calls in 50 ms");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| bed.select([&[near], &[reader], &[]], Some(PATIENCE)));
        bed.wait_inside();
        bed.send(far, b"x");
        assert_eq!(waiter.join().unwrap(), chosen([&[near], &[], &[]]));
    });
}

#[test]
fn thousands_of_entries_are_no_trouble() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let mut fds = vec![poll_fd(near, POLLIN); 5000];
    assert_eq!(
        bed.posix.poll(&mut fds, Some(Duration::from_millis(1)), None),
        Outcome::Done(Ok(0))
    );
    bed.send(far, b"x");
    assert_eq!(bed.posix.poll(&mut fds, Some(PATIENCE), None), Outcome::Done(Ok(5000)));
}

#[test]
fn readers_and_pollers_of_one_socket_share_what_comes() {
    const BYTES: usize = 2000;
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, libc::EPOLLIN);
    let taken = std::sync::atomic::AtomicUsize::new(0);
    let open = || taken.load(Ordering::SeqCst) < BYTES;
    let take = || {
        if let Ok(bytes) = bed.recv(near, 1) {
            taken.fetch_add(bytes.len(), Ordering::SeqCst);
        }
    };
    // Somebody else may have taken the last byte: nothing more comes then.
    let brief = Some(Duration::from_millis(100));
    thread::scope(|scope| {
        scope.spawn(|| {
            while open() {
                let _ = bed.posix.poll(&mut [poll_fd(near, POLLIN)], brief, None);
                take();
            }
        });
        scope.spawn(|| {
            while open() {
                let _ = bed.select([&[near], &[], &[]], brief);
                take();
            }
        });
        scope.spawn(|| {
            while open() {
                let _ = bed.try_wait(epfd, 8, brief);
                take();
            }
        });
        for _ in 0..BYTES {
            bed.send(far, b"x");
        }
    });
    assert_eq!(taken.into_inner(), BYTES);
}
