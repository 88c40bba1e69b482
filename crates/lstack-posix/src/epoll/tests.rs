//! The readiness of `epoll`, as measured on Linux, over a stack that talks to itself and the real
//! kernel on the loopback interface.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP,
    EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP,
};
use lstack_config::StackThreadMode;

use crate::errno::Errno;
use crate::kernel::{EpollEvent, Kernel};
use crate::posix::Outcome;
use crate::testbed::{PATIENCE, STACK, Testbed, done, poll_fd, raw};

const ANYWHERE: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

impl Testbed {
    /// Returns once so many threads sleep on the instance.
    fn wait_asleep_times(&self, epfd: RawFd, count: u32) {
        let sleeping = || {
            let description = self.posix.table.get(epfd).expect("it is ours");
            description.epoll().expect("it is an instance").ready.sleeping()
        };
        while sleeping() < count {
            thread::yield_now();
        }
    }

    /// Level-triggered events of both worlds: while the stack has something, the kernel is looked
    /// at every 50 µs, so its part may come a call later.
    fn expect_soon(&self, epfd: RawFd, expected: &[(i32, RawFd)]) {
        let end = Instant::now() + PATIENCE;
        let mut events = self.now(epfd);
        while events != expected && Instant::now() < end {
            events = self.now(epfd);
        }
        assert_eq!(events, expected);
    }

    /// Returns once a thread sleeps on each.
    fn wait_asleep(&self, instances: &[RawFd]) {
        for epfd in instances {
            self.wait_asleep_times(*epfd, 1);
        }
    }
}

#[test]
fn data_that_came_before_the_registration_is_told_at_once() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.send(far, b"hello");
    bed.wait_readable(near);
    bed.add(epfd, near, EPOLLIN);
    assert_eq!(bed.now(epfd), [(EPOLLIN, near)]);
}

#[test]
fn level_triggered_data_is_told_until_it_is_read() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLIN);
    bed.send(far, b"abc");
    for _ in 0..3 {
        assert_eq!(bed.wait(epfd), [(0x1, near as u64)]);
        assert_eq!(bed.recv(near, 1).map(|bytes| bytes.len()), Ok(1));
    }
    assert_eq!(bed.now(epfd), []);
}

#[test]
fn level_triggered_connections_are_told_until_they_are_accepted() {
    let bed = Testbed::new();
    let (listener, port) = bed.listener(STACK);
    let epfd = bed.kernel.epoll();
    bed.add(epfd, listener, EPOLLIN);
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let client = bed.socket(libc::SOCK_STREAM);
            bed.connect(client, port);
            client
        })
        .collect();
    for _ in clients {
        assert_eq!(bed.wait(epfd), [(0x1, listener as u64)]);
        bed.accept(listener);
    }
    assert_eq!(bed.now(epfd), []);
}

#[test]
fn a_listener_on_several_stacks_is_told_for_each() {
    let bed = Testbed::with(|config| config.num_cpus = Some(vec![0, 1]));
    let (listener, port) = bed.listener(STACK);
    let epfd = bed.kernel.epoll();
    bed.add(epfd, listener, EPOLLIN | EPOLLEXCLUSIVE);
    for _ in 0..12 {
        // New sockets take turns over the stacks.
        bed.connect(bed.socket(libc::SOCK_STREAM), port);
    }
    for _ in 0..12 {
        assert_eq!(bed.wait(epfd), [(0x1, listener as u64)]);
        bed.accept(listener);
    }
    assert_eq!(bed.now(epfd), []);
}

#[test]
fn edge_triggered_data_is_told_once_per_arrival() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.send(far, b"abc");
    bed.wait_readable(near);
    bed.add(epfd, near, EPOLLIN | EPOLLET);
    assert_eq!(bed.now(epfd), [(EPOLLIN, near)]);
    assert_eq!(bed.now(epfd), []);
    bed.recv(near, 1).unwrap();
    assert_eq!(bed.now(epfd), [], "what is left is no news");
    bed.send(far, b"d");
    assert_eq!(bed.wait(epfd), [(0x1, near as u64)]);
    assert_eq!(bed.now(epfd), []);
    bed.modify(epfd, near, EPOLLIN | EPOLLET);
    assert_eq!(bed.now(epfd), [(EPOLLIN, near)], "MOD arms it again");
    assert_eq!(bed.now(epfd), []);
}

#[test]
fn an_edge_triggered_event_tells_all_that_holds() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLIN | EPOLLOUT | EPOLLET);
    assert_eq!(bed.now(epfd), [(EPOLLOUT, near)]);
    assert_eq!(bed.now(epfd), []);
    bed.send(far, b"x");
    assert_eq!(bed.wait(epfd), [(0x5, near as u64)]);
}

#[test]
fn an_edge_triggered_listener_is_told_of_each_further_connection() {
    let bed = Testbed::new();
    let (listener, port) = bed.listener(STACK);
    let epfd = bed.kernel.epoll();
    for _ in 0..3 {
        bed.connect(bed.socket(libc::SOCK_STREAM), port);
    }
    bed.wait_readable(listener);
    bed.add(epfd, listener, EPOLLIN | EPOLLET);
    assert_eq!(bed.now(epfd), [(EPOLLIN, listener)]);
    bed.accept(listener);
    assert_eq!(bed.now(epfd), []);
    bed.connect(bed.socket(libc::SOCK_STREAM), port);
    assert_eq!(bed.wait(epfd), [(0x1, listener as u64)]);
}

#[test]
fn room_to_send_comes_once_after_a_full_buffer() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLOUT | EPOLLET);
    assert_eq!(bed.now(epfd), [(EPOLLOUT, near)]);
    let chunk = [0; 16384];
    let mut sent = 0;
    while let Outcome::Done(Ok(count)) = bed.posix.write(near, &[std::io::IoSlice::new(&chunk)]) {
        sent += count;
    }
    assert_eq!(bed.now(epfd), []);
    let mut taken = 0;
    while taken < sent {
        bed.wait_readable(far);
        taken += bed.recv(far, 1 << 20).unwrap().len();
    }
    assert_eq!(bed.wait(epfd), [(0x4, near as u64)]);
    assert_eq!(bed.now(epfd), []);
}

#[test]
fn interest_in_writing_added_later_is_told_at_once() {
    let bed = Testbed::new();
    let (near, _far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLIN);
    assert_eq!(bed.now(epfd), []);
    bed.modify(epfd, near, EPOLLIN | EPOLLOUT);
    assert_eq!(bed.now(epfd), [(EPOLLOUT, near)]);
}

#[test]
fn a_one_shot_registration_is_silent_until_it_is_armed_again() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
    bed.send(far, b"x");
    assert_eq!(bed.wait(epfd), [(0x1, near as u64)]);
    bed.send(far, b"y");
    done(bed.posix.shutdown(far, libc::SHUT_WR));
    bed.wait_for(near, libc::POLLRDHUP);
    assert_eq!(bed.now(epfd), []);
    bed.modify(epfd, near, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
    assert_eq!(bed.now(epfd), [(EPOLLIN | EPOLLRDHUP, near)]);
    assert_eq!(bed.now(epfd), []);
}

#[test]
fn half_close_and_full_close_are_told_as_linux_does() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let all = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, all);
    done(bed.posix.shutdown(far, libc::SHUT_WR));
    bed.wait_for(near, libc::POLLRDHUP);
    assert_eq!(bed.now(epfd), [(0x2005, near)]);
    bed.modify(epfd, near, EPOLLIN | EPOLLOUT);
    assert_eq!(bed.now(epfd), [(0x5, near)]);
    bed.modify(epfd, near, all);
    done(bed.posix.shutdown(near, libc::SHUT_WR));
    bed.wait_for(near, libc::POLLHUP);
    assert_eq!(bed.now(epfd), [(0x2015, near)]);
}

#[test]
fn errors_and_hang_ups_are_told_without_being_asked_for() {
    let bed = Testbed::new();
    let epfd = bed.kernel.epoll();
    let (socket, far) = bed.pair();
    let linger: Vec<u8> = [1_i32, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    done(bed.posix.setsockopt(far, libc::SOL_SOCKET, libc::SO_LINGER, &linger));
    bed.close(far);
    bed.wait_for(socket, libc::POLLERR);
    bed.add(epfd, socket, 0);
    assert_eq!(bed.now(epfd), [(EPOLLERR | EPOLLHUP, socket)]);
    bed.modify(epfd, socket, EPOLLIN);
    assert_eq!(bed.now(epfd), [(0x19, socket)]);
    bed.modify(epfd, socket, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    assert_eq!(bed.now(epfd), [(0x201d, socket)]);
    assert_eq!(bed.recv(socket, 1), Err(Errno(libc::ECONNRESET)));
    assert_eq!(bed.now(epfd), [(0x2015, socket)], "the error has been taken");
}

#[test]
fn a_fresh_socket_is_told_as_the_kernel_tells_it() {
    let bed = Testbed::new();
    let epfd = bed.kernel.epoll();
    let stream = bed.socket(libc::SOCK_STREAM);
    let datagram = bed.socket(libc::SOCK_DGRAM);
    bed.add(epfd, stream, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    bed.add(epfd, datagram, EPOLLIN | EPOLLOUT);
    assert_eq!(bed.now(epfd), [(EPOLLOUT | EPOLLHUP, stream), (EPOLLOUT, datagram)]);
}

#[test]
fn data_comes_back_bit_for_bit_whatever_it_is() {
    let bed = Testbed::new();
    let epfd = bed.kernel.epoll();
    let (near, _far) = bed.pair();
    let fresh = bed.socket(libc::SOCK_STREAM);
    let (_reader, writer) = bed.kernel.pipe();
    let data = [u64::MAX, 0x8000_0000_0000_0001, 0];
    for (fd, data) in [near, fresh, writer].into_iter().zip(data) {
        assert_eq!(bed.epoll_ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLOUT, data), Ok(()));
    }
    let end = Instant::now() + PATIENCE;
    let mut events = bed.wait(epfd);
    while events.len() < 3 && Instant::now() < end {
        events = bed.wait(epfd);
    }
    events.sort_unstable();
    assert_eq!(events, [(0x4, 0), (0x4, u64::MAX), (0x14, 0x8000_0000_0000_0001)]);
}

#[test]
fn a_registration_follows_its_socket_into_the_stack() {
    let bed = Testbed::new();
    let (listener, port) = bed.listener(STACK);
    let epfd = bed.kernel.epoll();
    let client = bed.socket(libc::SOCK_STREAM);
    bed.add(epfd, client, EPOLLIN | EPOLLOUT | EPOLLET);
    assert_eq!(bed.now(epfd), [(EPOLLOUT | EPOLLHUP, client)]);
    bed.connect(client, port);
    assert_eq!(bed.wait(epfd), [(0x4, client as u64)]);
    bed.wait_readable(listener);
    let server = bed.accept(listener);
    bed.send(server, b"x");
    assert_eq!(bed.wait(epfd), [(0x5, client as u64)]);
    assert_eq!(bed.now(epfd), []);
}

#[test]
fn a_one_shot_registration_spent_before_connect_stays_spent() {
    let bed = Testbed::new();
    let (_listener, port) = bed.listener(STACK);
    let epfd = bed.kernel.epoll();
    let client = bed.socket(libc::SOCK_STREAM);
    bed.add(epfd, client, EPOLLOUT | EPOLLONESHOT);
    assert_eq!(bed.now(epfd), [(EPOLLOUT | EPOLLHUP, client)]);
    bed.connect(client, port);
    bed.wait_for(client, libc::POLLOUT);
    assert_eq!(bed.now(epfd), []);
    bed.modify(epfd, client, EPOLLOUT | EPOLLONESHOT);
    assert_eq!(bed.now(epfd), [(EPOLLOUT, client)]);
}

#[test]
fn a_registration_stays_when_its_socket_goes_to_the_kernel() {
    let bed = Testbed::new();
    let epfd = bed.kernel.epoll();
    let server = bed.socket(libc::SOCK_STREAM);
    let data = 0xfeed_0000_0000_0001;
    assert_eq!(bed.epoll_ctl(epfd, EPOLL_CTL_ADD, server, EPOLLIN, data), Ok(()));
    done(bed.posix.bind(server, &raw(Ipv4Addr::LOCALHOST, 0)));
    assert!(matches!(bed.posix.listen(server, 4), Outcome::Kernel));
    bed.kernel.listen(server, 4).unwrap();
    assert_eq!(bed.now(epfd), []);
    let client = bed.kernel.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    bed.kernel.connect(client, &raw(Ipv4Addr::LOCALHOST, bed.port(server))).unwrap();
    assert_eq!(bed.wait(epfd), [(0x1, data)]);
}

#[test]
fn a_listener_of_both_worlds_is_told_once_for_both() {
    let bed = Testbed::new();
    let (listener, port) = bed.listener(ANYWHERE);
    let epfd = bed.kernel.epoll();
    let data = 0xabcd_ef01_2345_6789;
    assert_eq!(bed.epoll_ctl(epfd, EPOLL_CTL_ADD, listener, EPOLLIN, data), Ok(()));
    let theirs = bed.kernel.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    bed.kernel.connect(theirs, &raw(Ipv4Addr::LOCALHOST, port)).unwrap();
    assert_eq!(bed.wait(epfd), [(0x1, data)]);
    let ours = bed.socket(libc::SOCK_STREAM);
    bed.connect(ours, port);
    bed.wait_for(ours, libc::POLLOUT);
    for _ in 0..2 {
        assert_eq!(bed.wait(epfd), [(0x1, data)]);
        bed.accept(listener);
    }
    assert_eq!(bed.now(epfd), []);
}

#[test]
fn a_datagram_socket_of_both_worlds_is_told_once_for_both() {
    let bed = Testbed::new();
    let (socket, port) = bed.datagram(ANYWHERE);
    let epfd = bed.kernel.epoll();
    bed.add(epfd, socket, EPOLLIN | EPOLLOUT);
    assert_eq!(bed.now(epfd), [(EPOLLOUT, socket)]);
    let theirs = bed.kernel.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
    let hello = [std::io::IoSlice::new(b"hello")];
    bed.kernel.sendmsg(theirs, &hello, &raw(Ipv4Addr::LOCALHOST, port), 0).unwrap();
    bed.wait_readable(socket);
    bed.expect_soon(epfd, &[(EPOLLIN | EPOLLOUT, socket)]);
}

#[test]
fn all_kinds_are_told_in_one_call() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let (reader, writer) = bed.kernel.pipe();
    let fresh = bed.socket(libc::SOCK_STREAM);
    let epfd = bed.kernel.epoll();
    for fd in [near, reader] {
        bed.add(epfd, fd, EPOLLIN);
    }
    bed.add(epfd, fresh, EPOLLIN);
    bed.send(far, b"x");
    bed.wait_readable(near);
    bed.kernel.write(writer, b"x").unwrap();
    let mut expected = [(EPOLLIN, near), (EPOLLIN, reader), (EPOLLHUP, fresh)];
    expected.sort_by_key(|(_, fd)| *fd);
    bed.expect_soon(epfd, &expected);
}

#[test]
fn neither_world_starves_when_there_is_room_for_one_event() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let (reader, writer) = bed.kernel.pipe();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLIN);
    bed.add(epfd, reader, EPOLLIN);
    bed.send(far, b"x");
    bed.wait_readable(near);
    bed.kernel.write(writer, b"x").unwrap();
    let mut told = [0, 0];
    let end = Instant::now() + PATIENCE;
    while told.contains(&0) {
        assert!(Instant::now() < end, "{told:?}");
        let events = bed.try_wait(epfd, 1, Some(PATIENCE)).unwrap();
        assert_eq!(events.len(), 1);
        told[usize::from(events[0].1 == reader as u64)] += 1;
    }
}

#[test]
fn many_ready_sockets_take_turns_and_none_is_told_twice_in_a_call() {
    let bed = Testbed::new();
    let epfd = bed.kernel.epoll();
    let pairs: Vec<_> = (0..6).map(|_| bed.pair()).collect();
    for (near, _) in &pairs {
        bed.add(epfd, *near, EPOLLOUT);
    }
    let mut told = std::collections::HashMap::new();
    for _ in 0..3 {
        let events = bed.try_wait(epfd, 4, Some(PATIENCE)).unwrap();
        assert_eq!(events.len(), 4);
        for (_, data) in events {
            *told.entry(data).or_insert(0) += 1;
        }
    }
    assert_eq!(told.into_values().collect::<Vec<_>>(), [2; 6]);
}

#[test]
fn a_closed_socket_is_not_told_and_its_number_starts_afresh() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLIN | EPOLLOUT);
    bed.send(far, b"x");
    bed.close(near);
    assert_eq!(bed.now(epfd), []);
    // The lowest number is used first: the same one again.
    let again = bed.socket(libc::SOCK_STREAM);
    assert_eq!(again, near);
    assert_eq!(bed.epoll_ctl(epfd, EPOLL_CTL_MOD, again, EPOLLIN, 1), Err(libc::ENOENT));
    assert_eq!(bed.epoll_ctl(epfd, EPOLL_CTL_ADD, again, EPOLLIN, 2), Ok(()));
    assert_eq!(bed.wait(epfd), [(0x10, 2)]);
}

#[test]
fn a_registration_lasts_as_long_as_a_duplicate_of_its_socket() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLIN);
    let copy = done(bed.posix.dup(near));
    bed.add(epfd, copy, EPOLLIN);
    bed.send(far, b"x");
    bed.wait_readable(copy);
    assert_eq!(bed.now(epfd).len(), 2);
    bed.delete(epfd, copy);
    bed.close(near);
    assert_eq!(bed.now(epfd), [(EPOLLIN, near)]);
    assert_eq!(bed.epoll_ctl(epfd, EPOLL_CTL_DEL, near, 0, 0), Err(libc::EBADF));
    bed.close(copy);
    assert_eq!(bed.now(epfd), []);
}

#[test]
fn a_registration_whose_number_was_closed_follows_its_socket_too() {
    let bed = Testbed::new();
    let (_listener, port) = bed.listener(STACK);
    let epfd = bed.kernel.epoll();
    let client = bed.socket(libc::SOCK_STREAM);
    bed.add(epfd, client, EPOLLIN | EPOLLRDHUP);
    let copy = done(bed.posix.dup(client));
    bed.close(client);
    assert_eq!(bed.now(epfd), [(EPOLLHUP, client)]);
    bed.connect(copy, port);
    bed.wait_for(copy, libc::POLLOUT);
    assert_eq!(bed.now(epfd), [], "the placeholder has left the kernel's side");
    let open = bed.kernel.open();
    bed.close(copy);
    assert_eq!(bed.kernel.open(), open - 1);
}

#[test]
fn a_socket_in_several_instances_is_told_in_each() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let instances = [(); 3].map(|()| bed.kernel.epoll());
    bed.add(instances[0], near, EPOLLIN);
    bed.add(instances[1], near, EPOLLIN | EPOLLET);
    bed.add(instances[2], near, EPOLLIN);
    bed.send(far, b"x");
    bed.wait_readable(near);
    for epfd in instances {
        assert_eq!(bed.now(epfd), [(EPOLLIN, near)]);
    }
    bed.delete(instances[0], near);
    assert_eq!(bed.now(instances[0]), []);
    assert_eq!(bed.now(instances[2]), [(EPOLLIN, near)]);
    bed.close(near);
    assert_eq!(bed.now(instances[2]), []);
}

#[test]
fn wrong_calls_fail_as_linux_fails_them() {
    let bed = Testbed::new();
    let (near, _far) = bed.pair();
    let fresh = bed.socket(libc::SOCK_STREAM);
    let epfd = bed.kernel.epoll();
    let (reader, _writer) = bed.kernel.pipe();
    let ctl = |epfd, op, fd, events| bed.epoll_ctl(epfd, op, fd, events, 0);
    for fd in [near, fresh] {
        assert_eq!(ctl(epfd, EPOLL_CTL_MOD, fd, EPOLLIN), Err(libc::ENOENT));
        assert_eq!(ctl(epfd, EPOLL_CTL_DEL, fd, 0), Err(libc::ENOENT));
        assert_eq!(ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN), Ok(()));
        assert_eq!(ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLIN), Err(libc::EEXIST));
        assert_eq!(ctl(epfd, EPOLL_CTL_DEL, fd, 0), Ok(()));
        assert_eq!(ctl(epfd, EPOLL_CTL_MOD, fd, EPOLLIN), Err(libc::ENOENT));
        assert_eq!(ctl(epfd, 77, fd, EPOLLIN), Err(libc::EINVAL));
        assert_eq!(ctl(reader, EPOLL_CTL_ADD, fd, EPOLLIN), Err(libc::EINVAL));
        assert_eq!(ctl(4000, EPOLL_CTL_ADD, fd, EPOLLIN), Err(libc::EBADF));
    }
    assert_eq!(ctl(near, EPOLL_CTL_ADD, fresh, EPOLLIN), Err(libc::EINVAL));
    assert_eq!(ctl(epfd, EPOLL_CTL_ADD, 4000, EPOLLIN), Err(libc::EBADF));
    assert_eq!(ctl(epfd, EPOLL_CTL_ADD, epfd, EPOLLIN), Err(libc::EINVAL));
    assert_eq!(bed.posix.epoll_ctl(epfd, EPOLL_CTL_ADD, near, None).error(), libc::EFAULT);
    assert_eq!(bed.posix.epoll_wait(epfd, &mut [], None, None).error(), libc::EINVAL);
    let mut room = [EpollEvent { events: 0, data: 0 }];
    assert_eq!(bed.posix.epoll_wait(near, &mut room, None, None).error(), libc::EINVAL);
}

#[test]
fn exclusive_registrations_obey_their_rules() {
    let bed = Testbed::new();
    let (near, _far) = bed.pair();
    let epfd = bed.kernel.epoll();
    let ctl = |op, events| bed.epoll_ctl(epfd, op, near, events, 0);
    assert_eq!(ctl(EPOLL_CTL_ADD, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT), Err(libc::EINVAL));
    assert_eq!(ctl(EPOLL_CTL_ADD, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP), Err(libc::EINVAL));
    assert_eq!(ctl(EPOLL_CTL_ADD, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET), Ok(()));
    assert_eq!(ctl(EPOLL_CTL_MOD, EPOLLIN), Err(libc::EINVAL));
    assert_eq!(ctl(EPOLL_CTL_MOD, EPOLLIN | EPOLLEXCLUSIVE), Err(libc::EINVAL));
    assert_eq!(ctl(EPOLL_CTL_DEL, 0), Ok(()));
    assert_eq!(ctl(EPOLL_CTL_MOD, EPOLLIN), Err(libc::ENOENT));
}

#[test]
fn an_event_wakes_one_of_the_exclusive_instances_that_wait() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let instances = [(); 4].map(|()| bed.kernel.epoll());
    for epfd in instances {
        bed.add(epfd, near, EPOLLIN | EPOLLEXCLUSIVE);
    }
    let (told, woken) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        for epfd in instances {
            let (bed, told) = (&bed, told.clone());
            scope.spawn(move || told.send((epfd, bed.wait(epfd))));
        }
        bed.wait_asleep(&instances);
        bed.send(far, b"x");
        let (first, events) = woken.recv_timeout(PATIENCE).unwrap();
        assert_eq!(events, [(0x1, near as u64)]);
        // Nobody else was queued for it, so nobody else can be told.
        for epfd in instances.into_iter().filter(|epfd| *epfd != first) {
            assert_eq!(bed.now(epfd), []);
        }
        assert!(woken.try_recv().is_err());
        // One after the other for one more byte each.
        for _ in 1..instances.len() {
            bed.send(far, b"x");
            woken.recv_timeout(PATIENCE).unwrap();
        }
    });
}

#[test]
fn a_sleeping_thread_is_woken_from_every_side() {
    for spin in [Duration::ZERO, Duration::from_micros(50)] {
        let bed = Testbed::with(|config| config.app_spin = spin);
        let (near, far) = bed.pair();
        let (other, other_far) = bed.pair();
        let (reader, writer) = bed.kernel.pipe();
        let fresh = bed.socket(libc::SOCK_STREAM);
        let epfd = bed.kernel.epoll();
        bed.add(epfd, near, EPOLLIN);
        bed.add(epfd, reader, EPOLLIN);
        let woken_by = |action: &dyn Fn()| {
            thread::scope(|scope| {
                let waiter = scope.spawn(|| bed.wait(epfd));
                bed.wait_asleep(&[epfd]);
                action();
                waiter.join().unwrap()
            })
        };
        let told = woken_by(&|| assert_eq!(bed.send(far, b"x"), 1));
        assert_eq!(told, [(0x1, near as u64)]);
        bed.recv(near, 1).unwrap();
        let told = woken_by(&|| assert_eq!(bed.kernel.write(writer, b"x"), Ok(1)));
        assert_eq!(told, [(0x1, reader as u64)]);
        bed.kernel.read(reader, &mut [0]).unwrap();
        bed.send(other_far, b"x");
        bed.wait_readable(other);
        assert_eq!(woken_by(&|| bed.add(epfd, other, EPOLLIN)), [(0x1, other as u64)]);
        bed.delete(epfd, other);
        assert_eq!(woken_by(&|| bed.add(epfd, fresh, EPOLLIN)), [(0x10, fresh as u64)]);
        bed.delete(epfd, fresh);
        assert_eq!(woken_by(&|| bed.modify(epfd, near, EPOLLOUT)), [(0x4, near as u64)]);
    }
}

#[test]
fn one_of_four_threads_takes_an_edge() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLIN | EPOLLET);
    let (told, woken) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..4 {
            let (bed, told) = (&bed, told.clone());
            scope.spawn(move || told.send(bed.wait(epfd)));
        }
        bed.wait_asleep_times(epfd, 4);
        for _ in 0..4 {
            bed.send(far, b"x");
            assert_eq!(woken.recv_timeout(PATIENCE).unwrap(), [(0x1, near as u64)]);
            assert!(woken.try_recv().is_err());
        }
    });
}

#[test]
fn all_threads_that_sleep_get_something_when_there_is_enough() {
    let bed = Testbed::new();
    let pairs: Vec<_> = (0..4).map(|_| bed.pair()).collect();
    let epfd = bed.kernel.epoll();
    thread::scope(|scope| {
        let take = || bed.try_wait(epfd, 1, Some(PATIENCE)).unwrap()[0].1;
        bed.add(epfd, pairs[0].0, EPOLLIN | EPOLLET);
        let waiters: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
        bed.wait_asleep_times(epfd, 4);
        for (near, far) in &pairs {
            if *near != pairs[0].0 {
                bed.add(epfd, *near, EPOLLIN | EPOLLET);
            }
            bed.send(*far, b"x");
        }
        let mut told: Vec<_> = waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect();
        told.sort_unstable();
        let mut all: Vec<_> = pairs.iter().map(|(near, _)| *near as u64).collect();
        all.sort_unstable();
        assert_eq!(told, all);
    });
}

#[test]
fn an_instance_inside_another_makes_it_ready() {
    for late in [false, true] {
        let bed = Testbed::new();
        let (near, far) = bed.pair();
        let (inner, outer) = (bed.kernel.epoll(), bed.kernel.epoll());
        if late {
            // Watched before the first socket of ours joins.
            bed.add(outer, inner, EPOLLIN);
            bed.add(inner, near, EPOLLIN);
        } else {
            bed.add(inner, near, EPOLLIN);
            bed.add(outer, inner, EPOLLIN);
        }
        assert_eq!(bed.now(outer), []);
        for _ in 0..2 {
            bed.send(far, b"x");
            assert_eq!(bed.wait(outer), [(0x1, inner as u64)]);
            assert_eq!(bed.now(outer), [(EPOLLIN, inner)], "level-triggered");
            assert_eq!(bed.now(inner), [(EPOLLIN, near)]);
            bed.recv(near, 1).unwrap();
            assert_eq!(bed.now(inner), []);
            assert_eq!(bed.now(outer), []);
        }
    }
}

#[test]
fn an_instance_can_be_polled() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLIN);
    let mut fds = [poll_fd(epfd, libc::POLLIN)];
    assert_eq!(bed.posix.poll(&mut fds, Some(Duration::ZERO), None), Outcome::Done(Ok(0)));
    bed.send(far, b"x");
    assert_eq!(bed.posix.poll(&mut fds, Some(PATIENCE), None), Outcome::Done(Ok(1)));
    assert_eq!(fds[0].revents, libc::POLLIN);
    bed.recv(near, 1).unwrap();
    assert_eq!(bed.now(epfd), []);
    assert_eq!(bed.posix.poll(&mut fds, Some(Duration::ZERO), None), Outcome::Done(Ok(0)));
}

#[test]
fn a_duplicate_made_before_the_instance_became_ours_is_the_same_instance() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    let copy = bed.kernel.dup(epfd).unwrap();
    let stranger = bed.kernel.epoll();
    bed.add(copy, near, EPOLLIN);
    bed.send(far, b"x");
    assert_eq!(bed.wait(epfd), [(0x1, near as u64)]);
    assert_eq!(bed.epoll_ctl(epfd, EPOLL_CTL_ADD, near, EPOLLIN, 0), Err(libc::EEXIST));
    assert!(!bed.posix.knows_epoll(stranger));
    bed.close(copy);
    assert_eq!(bed.now(epfd), [(EPOLLIN, near)]);
}

#[test]
fn an_instance_lasts_as_long_as_one_of_its_descriptors() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLIN);
    let copy = done(bed.posix.dup(epfd));
    bed.close(epfd);
    bed.send(far, b"x");
    assert_eq!(bed.wait(copy), [(0x1, near as u64)]);
    bed.close(copy);
    assert_eq!(bed.posix.epoll_wait(copy, &mut [], None, None), Outcome::Kernel);
    let again = bed.kernel.epoll();
    assert_eq!(again, epfd);
    assert_eq!(bed.now(again), []);
    bed.add(again, near, EPOLLIN);
    assert_eq!(bed.now(again), [(EPOLLIN, near)]);
}

#[test]
fn a_set_of_the_kernels_sockets_costs_one_system_call_a_wait() {
    let bed = Testbed::new();
    let epfd = bed.kernel.epoll();
    let fresh = bed.socket(libc::SOCK_STREAM);
    bed.add(epfd, fresh, EPOLLIN);
    let before = bed.kernel.calls.load(Ordering::Relaxed);
    for _ in 0..100 {
        assert_eq!(bed.wait(epfd), [(0x10, fresh as u64)]);
    }
    assert_eq!(bed.kernel.calls.load(Ordering::Relaxed) - before, 100);
}

#[test]
fn a_thread_that_slept_before_the_instance_became_ours_is_woken_and_sees_nothing_strange() {
    for through_copy in [false, true] {
        let bed = Testbed::new();
        let (near, far) = bed.pair();
        let epfd = bed.kernel.epoll();
        let copy = bed.kernel.dup(epfd).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| bed.wait(epfd));
            while bed.kernel.sleepers.lock().is_empty() {
                thread::yield_now();
            }
            bed.add(if through_copy { copy } else { epfd }, near, EPOLLIN);
            bed.send(far, b"x");
            assert_eq!(waiter.join().unwrap(), [(0x1, near as u64)]);
        });
    }
}

#[test]
fn a_signal_handler_ends_the_wait() {
    for spin in [Duration::ZERO, Duration::from_micros(50)] {
        let bed = Testbed::with(|config| config.app_spin = spin);
        let (near, _far) = bed.pair();
        let epfd = bed.kernel.epoll();
        bed.add(epfd, near, EPOLLIN);
        bed.kernel.signal.store(true, Ordering::SeqCst);
        assert_eq!(bed.try_wait(epfd, 8, Some(PATIENCE)), Err(libc::EINTR));
        bed.modify(epfd, near, EPOLLOUT);
        bed.kernel.signal.store(true, Ordering::SeqCst);
        assert_eq!(bed.wait(epfd), [(0x4, near as u64)], "what is ready comes first");
    }
}

#[test]
fn a_busy_instance_makes_hardly_any_system_calls() {
    let bed = Testbed::new();
    let (near, far) = bed.pair();
    let epfd = bed.kernel.epoll();
    bed.add(epfd, near, EPOLLIN);
    let before = bed.kernel.calls.load(Ordering::Relaxed);
    let begun = Instant::now();
    for _ in 0..2000 {
        bed.send(far, b"x");
        bed.wait(epfd);
        bed.recv(near, 1).unwrap();
    }
    let looks = u64::try_from(begun.elapsed().as_micros()).unwrap() / 50;
    let made = bed.kernel.calls.load(Ordering::Relaxed) - before;
    assert!(made <= looks + 2, "{made} calls, {looks} looks were due");
}

#[test]
fn nothing_is_left_when_all_is_closed() {
    let bed = Testbed::new();
    // What the process keeps for later exists now.
    let (one, other) = bed.pair();
    bed.close(one);
    bed.close(other);
    let open = bed.kernel.open();
    let (near, far) = bed.pair();
    let fresh = bed.socket(libc::SOCK_STREAM);
    let (inner, outer) = (bed.kernel.epoll(), bed.kernel.epoll());
    bed.add(inner, near, EPOLLIN);
    bed.add(inner, fresh, EPOLLIN);
    bed.add(outer, inner, EPOLLIN);
    bed.add(outer, far, EPOLLIN);
    for fd in [inner, near, outer, far, fresh] {
        bed.close(fd);
    }
    assert_eq!(bed.kernel.open(), open);
}

#[test]
fn no_byte_goes_unnoticed_between_threads() {
    const BYTES: usize = 20_000;
    let modes = [StackThreadMode::RunToCompletion, StackThreadMode::RunToWakeup];
    let spins = [(0, 0), (0, EPOLLET), (50, 0), (50, EPOLLET)];
    for (mode, (spin, extra)) in modes.iter().flat_map(|mode| spins.map(|spin| (*mode, spin))) {
        let bed = Testbed::with(|config| {
            config.stack_thread_mode = mode;
            config.app_spin = Duration::from_micros(spin);
        });
        let (near, far) = bed.pair();
        let epfd = bed.kernel.epoll();
        bed.add(epfd, near, EPOLLIN | extra);
        thread::scope(|scope| {
            scope.spawn(|| {
                for count in 0..BYTES {
                    bed.send(far, b"x");
                    // Uneven gaps: the reader is caught spinning, falling asleep and asleep.
                    for _ in 0..count % 97 * 20 {
                        std::hint::spin_loop();
                    }
                }
            });
            let mut taken = 0;
            while taken < BYTES {
                bed.wait(epfd);
                if extra == 0 {
                    assert_eq!(bed.recv(near, 1).map(|bytes| bytes.len()), Ok(1));
                    taken += 1;
                } else {
                    while let Ok(bytes) = bed.recv(near, 64) {
                        taken += bytes.len();
                    }
                }
            }
        });
    }
}
