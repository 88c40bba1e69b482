//! Descriptors: flags, `ioctl`, copies, and closing many at once.
//!
//! A copy is made by the kernel first; the table then follows it with the same description.
//! `O_NONBLOCK` belongs to the description. The placeholder has it too, for the calls that reach it,
//! with two exceptions: a listener of both worlds never blocks in the kernel (see `socket.rs`),
//! and accepted connections share one placeholder that says nothing of any of them.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lstack_core::SocketId;
use lstack_runtime::Guard;

use crate::description::{Description, Endpoint, Handle, State};
use crate::errno::Errno;
use crate::fd_table::FdTable;
use crate::posix::{Outcome, Posix, ours};

impl Posix {
    /// `fcntl`. What concerns the descriptor alone, or signals, is the kernel's.
    pub fn fcntl(&self, fd: RawFd, command: i32, arg: usize) -> Outcome<i32> {
        let Some(description) = self.table.get(fd) else { return Outcome::Kernel };
        if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
            return Outcome::Done(self.copy(description, || self.kernel.fcntl(fd, command, arg)));
        }
        if description.socket().is_none() {
            return Outcome::Kernel;
        }
        let handle = Handle { fd, description };
        match command {
            libc::F_GETFL => Outcome::Done(self.flags(&handle)),
            // The flags are an int; the rest of the register is no part of them.
            libc::F_SETFL => Outcome::Done(self.set_flags(&handle, arg as i32)),
            _ => Outcome::Kernel,
        }
    }

    /// `ioctl`. `value`: the caller's int for requests that read or write one.
    pub fn ioctl(&self, fd: RawFd, request: u64, value: Option<&mut i32>) -> Outcome<i32> {
        let handle = ours!(self.socket_handle(fd));
        let Some(value) = value else { return Outcome::Kernel };
        let state = handle.socket().state();
        let answer = match request {
            libc::FIONBIO => {
                let on = *value != 0;
                let changed = self.flags(&handle).and_then(|flags| {
                    let rest = flags & !libc::O_NONBLOCK;
                    self.set_flags(&handle, if on { rest | libc::O_NONBLOCK } else { rest })
                });
                return Outcome::Done(changed);
            }
            // A signal for one would be a signal for all that share the placeholder.
            libc::FIOASYNC if shares_placeholder(&handle) => return Outcome::Done(Ok(0)),
            libc::FIONREAD => unread(&state),
            libc::TIOCOUTQ => of_stream(&state, |guard, socket| guard.stack().unacked(socket)),
            SIOCOUTQNSD => of_stream(&state, unsent),
            // The stack keeps urgent data in the stream, without a mark.
            SIOCATMARK => of_stream(&state, |_, _| 0),
            _ => return Outcome::Kernel,
        };
        match answer {
            None => Outcome::Kernel,
            Some(Ok(bytes)) => {
                *value = i32::try_from(bytes).unwrap_or(i32::MAX);
                Outcome::Done(Ok(0))
            }
            Some(Err(errno)) => Outcome::Done(Err(errno)),
        }
    }

    /// `dup`.
    pub fn dup(&self, fd: RawFd) -> Outcome<RawFd> {
        let Some(description) = self.table.get(fd) else { return Outcome::Kernel };
        Outcome::Done(self.copy(description, || self.kernel.dup(fd)))
    }

    /// `dup3`, and `dup2` (`flags` 0) unless both numbers are the same. What `new` was is closed.
    pub fn dup3(&self, old: RawFd, new: RawFd, flags: i32) -> Outcome<RawFd> {
        let description = self.table.get(old);
        if description.is_none() && !self.table.knows(new) {
            return Outcome::Kernel;
        }
        if description.is_some() && new >= 0 && !FdTable::can_hold(new) {
            // As if the limit of descriptors were there.
            return Outcome::Done(Err(Errno(libc::EBADF)));
        }
        let fd = match self.kernel.dup3(old, new, flags) {
            Ok(fd) => fd,
            Err(errno) => return Outcome::Done(Err(errno)),
        };
        // The number was taken all the time, so nobody else can have got it in between.
        let displaced = match description {
            Some(description) => self.table.insert(fd, description),
            None => self.table.remove(fd),
        };
        if let Some(displaced) = displaced {
            self.let_go(displaced);
        }
        Outcome::Done(Ok(fd))
    }

    /// Before the kernel closes `first..=last`: ours among them are given back. The real call
    /// is still to be made.
    pub fn close_range(&self, first: u32, last: u32, flags: i32) -> Outcome<()> {
        let known = libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC;
        let flags = flags.cast_unsigned();
        // Invalid, or only marks descriptors.
        if first > last || flags & !known != 0 || flags & libc::CLOSE_RANGE_CLOEXEC != 0 {
            return Outcome::Kernel;
        }
        for fd in self.table.numbers(first as usize, last as usize) {
            if let Some(description) = self.table.remove(fd) {
                self.let_go(description);
            }
        }
        Outcome::Kernel
    }

    /// One more number for `description`, which `copy` makes.
    fn copy(
        &self,
        description: Arc<Description>,
        copy: impl FnOnce() -> Result<RawFd, Errno>,
    ) -> Result<RawFd, Errno> {
        let fd = copy()?;
        if !FdTable::can_hold(fd) {
            let _ = self.kernel.close(fd);
            return Err(Errno(libc::EMFILE));
        }
        // A leftover means that somebody closed the number behind our back: its turn is over.
        if let Some(leftover) = self.table.insert(fd, description) {
            self.let_go(leftover);
        }
        Ok(fd)
    }

    fn flags(&self, handle: &Handle) -> Result<i32, Errno> {
        let flags = self.kernel.fcntl(handle.fd, libc::F_GETFL, 0)? & !libc::O_NONBLOCK;
        Ok(if handle.description.nonblocking() { flags | libc::O_NONBLOCK } else { flags })
    }

    fn set_flags(&self, handle: &Handle, flags: i32) -> Result<i32, Errno> {
        let socket = handle.socket();
        // A listener that comes into being sets the placeholder's flags as well.
        let _moving = socket.transition.lock();
        if !shares_placeholder(handle) {
            let must_not_block = matches!(&**socket.state(), State::Listener { kernel: true, .. });
            let for_kernel = if must_not_block { flags | libc::O_NONBLOCK } else { flags };
            let for_kernel = for_kernel.cast_unsigned() as usize;
            self.kernel.fcntl(handle.fd, libc::F_SETFL, for_kernel)?;
        }
        handle.description.set_nonblocking(flags & libc::O_NONBLOCK != 0);
        Ok(0)
    }
}

/// Whether the placeholder belongs to other connections as well.
fn shares_placeholder(handle: &Handle) -> bool {
    handle.socket().accepted.load(Ordering::Relaxed)
}

/// Bytes that can be read; of datagrams, those of the next. `None`: the kernel has the answer.
fn unread(state: &State) -> Option<Result<usize, Errno>> {
    let count = |endpoint: &Endpoint| endpoint.enter().stack().unread(endpoint.socket);
    match state {
        State::Undecided(_) | State::Kernel => None,
        State::Listener { .. } => Some(Err(Errno(libc::EINVAL))),
        State::Connection(endpoint) => Some(Ok(count(endpoint))),
        State::Datagram { endpoint, kernel } => {
            let bytes = count(endpoint);
            (bytes > 0 || !kernel).then_some(Ok(bytes))
        }
    }
}

/// A number that only streams have.
fn of_stream(
    state: &State,
    count: impl FnOnce(&mut Guard<'_>, SocketId) -> usize,
) -> Option<Result<usize, Errno>> {
    match state {
        State::Undecided(_) | State::Kernel | State::Datagram { .. } => None,
        State::Listener { .. } => Some(Err(Errno(libc::EINVAL))),
        State::Connection(endpoint) => Some(Ok(count(&mut endpoint.enter(), endpoint.socket))),
    }
}

/// Bytes of the send buffer that have not been sent once.
fn unsent(guard: &mut Guard<'_>, socket: SocketId) -> usize {
    let now = guard.now();
    let queued = guard.stack().unacked(socket);
    let sent = guard.stack().tcp_info(now, socket).map_or(0, |info| info.in_flight as usize);
    queued.saturating_sub(sent)
}

// Not in the `libc` crate: asm-generic/sockios.h, linux/sockios.h.
const SIOCATMARK: u64 = 0x8905;
const SIOCOUTQNSD: u64 = 0x894b;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::RawFd;
    use std::sync::Arc;

    use crate::errno::Errno;
    use crate::kernel::Kernel;
    use crate::posix::Outcome;
    use crate::testbed::{STACK, Testbed, done};

    fn flags(bed: &Testbed, fd: RawFd) -> i32 {
        done(bed.posix.fcntl(fd, libc::F_GETFL, 0))
    }

    fn set_flags(bed: &Testbed, fd: RawFd, flags: i32) {
        done(bed.posix.fcntl(fd, libc::F_SETFL, flags.cast_unsigned() as usize));
    }

    fn kernel_blocks(bed: &Testbed, fd: RawFd) -> bool {
        let flags = bed.kernel.fcntl(fd, libc::F_GETFL, 0).expect("it is open");
        flags & libc::O_NONBLOCK == 0
    }

    #[test]
    fn non_blocking_mode_is_the_descriptions_whichever_way_it_was_set() {
        let bed = Testbed::new();
        let (client, server) = bed.pair();
        for fd in [client, server] {
            assert_eq!(flags(&bed, fd), libc::O_RDWR | libc::O_NONBLOCK);
            let copy = done(bed.posix.dup(fd));
            done(bed.posix.ioctl(copy, libc::FIONBIO, Some(&mut 0)));
            assert_eq!(flags(&bed, fd), libc::O_RDWR);
            set_flags(&bed, fd, libc::O_RDWR | libc::O_NONBLOCK);
            assert_eq!(flags(&bed, copy), libc::O_RDWR | libc::O_NONBLOCK);
        }
    }

    #[test]
    fn accepted_connections_do_not_share_their_flags_with_their_placeholder() {
        let bed = Testbed::new();
        let (_, first) = bed.pair();
        let (_, second) = bed.pair();
        set_flags(&bed, first, libc::O_RDWR);
        assert_eq!(flags(&bed, second), libc::O_RDWR | libc::O_NONBLOCK);
    }

    #[test]
    fn a_listener_of_both_worlds_never_blocks_in_the_kernel() {
        let bed = Testbed::new();
        let (both, _) = bed.listener(Ipv4Addr::UNSPECIFIED);
        set_flags(&bed, both, libc::O_RDWR);
        assert_eq!(flags(&bed, both), libc::O_RDWR);
        assert!(!kernel_blocks(&bed, both));
        let undecided = bed.socket(libc::SOCK_STREAM);
        set_flags(&bed, undecided, libc::O_RDWR);
        assert!(kernel_blocks(&bed, undecided));
    }

    #[test]
    fn a_connection_ends_with_its_last_descriptor() {
        let bed = Testbed::new();
        let (client, server) = bed.pair();
        let copy = done(bed.posix.fcntl(client, libc::F_DUPFD_CLOEXEC, 100));
        assert!(copy >= 100);
        bed.close(client);
        assert_eq!(bed.send(copy, b"still here"), 10);
        assert_eq!(bed.recv(server, 20), Ok(b"still here".to_vec()));
        assert_eq!(bed.recv(server, 20), Err(Errno(libc::EAGAIN)));
        bed.close(copy);
        assert_eq!(bed.recv(server, 20), Ok(Vec::new()));
    }

    #[test]
    fn a_number_that_is_given_to_another_file_closes_the_socket() {
        let bed = Testbed::new();
        let (client, server) = bed.pair();
        let (reader, _) = bed.kernel.pipe();
        assert_eq!(done(bed.posix.dup3(reader, client, 0)), client);
        assert!(!bed.posix.knows(client));
        assert_eq!(bed.recv(server, 1), Ok(Vec::new()));
    }

    #[test]
    fn a_number_of_the_kernel_becomes_ours_with_the_copy() {
        let bed = Testbed::new();
        let (client, server) = bed.pair();
        let (reader, _) = bed.kernel.pipe();
        assert_eq!(bed.posix.dup3(reader, reader, 0), Outcome::Kernel);
        assert_eq!(done(bed.posix.dup3(client, reader, 0)), reader);
        bed.close(client);
        bed.send(reader, b"x");
        assert_eq!(bed.recv(server, 1), Ok(b"x".to_vec()));
    }

    #[test]
    fn a_copy_that_failed_changes_nothing() {
        let bed = Testbed::new();
        let (client, server) = bed.pair();
        let failed = bed.posix.dup3(900, client, 0);
        assert_eq!(failed, Outcome::Done(Err(Errno(libc::EBADF))));
        bed.send(client, b"x");
        assert_eq!(bed.recv(server, 1), Ok(b"x".to_vec()));
    }

    #[test]
    fn closing_a_range_closes_ours_and_leaves_the_call_to_the_kernel() {
        let bed = Testbed::new();
        let (client, server) = bed.pair();
        let number = client.cast_unsigned();
        let marked = bed.posix.close_range(number, number, libc::CLOSE_RANGE_CLOEXEC as i32);
        assert_eq!((marked, bed.posix.knows(client)), (Outcome::Kernel, true));
        assert_eq!(bed.posix.close_range(number, number, 0), Outcome::Kernel);
        assert!(!bed.posix.knows(client));
        assert_eq!(bed.recv(server, 1), Ok(Vec::new()));
    }

    #[test]
    fn an_epoll_instance_follows_its_copies() {
        let bed = Testbed::new();
        let (client, server) = bed.pair();
        let epfd = bed.kernel.epoll();
        bed.add(epfd, server, libc::EPOLLIN);
        let copy = done(bed.posix.dup(epfd));
        bed.close(epfd);
        bed.send(client, b"x");
        assert_eq!(bed.now(copy), [(libc::EPOLLIN, server)]);
    }

    #[test]
    fn queues_are_counted() {
        let bed = Testbed::new();
        let (client, server) = bed.pair();
        bed.send(client, b"seven!!");
        let mut count = -1;
        done(bed.posix.ioctl(server, libc::FIONREAD, Some(&mut count)));
        assert_eq!(count, 7);
        for (request, expected) in [(super::SIOCATMARK, 0), (super::SIOCOUTQNSD, 0)] {
            done(bed.posix.ioctl(server, request, Some(&mut count)));
            assert_eq!(count, expected);
        }
        let (listener, _) = bed.listener(STACK);
        let refused = bed.posix.ioctl(listener, libc::FIONREAD, Some(&mut count));
        assert_eq!(refused, Outcome::Done(Err(Errno(libc::EINVAL))));
        assert_eq!(bed.posix.ioctl(server, libc::TCGETS, Some(&mut count)), Outcome::Kernel);
    }

    #[test]
    fn a_call_in_progress_keeps_the_socket_of_a_closed_number() {
        let bed = Testbed::new();
        let (client, server) = bed.pair();
        let held = bed.posix.table.get(client).expect("it is ours");
        bed.close(client);
        assert_eq!(bed.recv(server, 1), Err(Errno(libc::EAGAIN)));
        assert_eq!(Arc::strong_count(&held), 1);
        drop(held);
        assert_eq!(bed.recv(server, 1), Ok(Vec::new()));
    }
}
