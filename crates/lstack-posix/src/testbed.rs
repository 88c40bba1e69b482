//! What the unit tests of this crate run on: a stack whose only traffic is to itself, and the real
//! kernel, confined to the loopback interface, behind the [`Kernel`] trait.

mod options;

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lstack_config::Config;
use lstack_runtime::{Runtime, memory_pair};
use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::event::{EventfdFlags, PollFlags, Timespec, eventfd};
use rustix::io::Errno as Error;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::futex;

use self::options::Options;
use crate::address;
use crate::description::Family;
use crate::errno::Errno;
use crate::kernel::{EpollEvent, Kernel, PollFd, SigSet};
use crate::posix::{Outcome, Posix};

/// The stack's address.
pub(crate) const STACK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// No test waits longer for anything; in a correct run none waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A process: its calls and its kernel.
pub(crate) struct Testbed {
    pub(crate) posix: Posix,
    pub(crate) kernel: Arc<Model>,
}

impl Testbed {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// With a configuration of its own.
    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default_for_tests(STACK, 24);
        change(&mut config);
        let (link, _) = memory_pair(1500);
        let runtime = Runtime::with_links(&config, vec![Box::new(link)]).expect("it starts");
        let kernel = Arc::new(Model::default());
        let posix = Posix::new(&config, runtime, Arc::clone(&kernel) as Arc<dyn Kernel>);
        Self { posix, kernel }
    }

    /// A non-blocking socket; `kind` is `SOCK_STREAM` or `SOCK_DGRAM`.
    pub(crate) fn socket(&self, kind: i32) -> RawFd {
        done(self.posix.socket(libc::AF_INET, kind | libc::SOCK_NONBLOCK, 0))
    }

    /// A stream socket that listens on `ip`, and its port.
    pub(crate) fn listener(&self, ip: Ipv4Addr) -> (RawFd, u16) {
        let fd = self.socket(libc::SOCK_STREAM);
        done(self.posix.bind(fd, &raw(ip, 0)));
        done(self.posix.listen(fd, 16));
        (fd, self.port(fd))
    }

    /// A bound datagram socket, and its port.
    pub(crate) fn datagram(&self, ip: Ipv4Addr) -> (RawFd, u16) {
        let fd = self.socket(libc::SOCK_DGRAM);
        done(self.posix.bind(fd, &raw(ip, 0)));
        (fd, self.port(fd))
    }

    pub(crate) fn port(&self, fd: RawFd) -> u16 {
        let mut bytes = [0; 28];
        match self.posix.getsockname(fd, &mut bytes) {
            Outcome::Done(len) => len.expect("it is bound"),
            Outcome::Kernel => self.kernel.getsockname(fd, &mut bytes).expect("it is open"),
        };
        address::decode(&bytes, Family::V4).expect("it is an address").port()
    }

    /// Starts to connect; in a stack to itself that is done when it returns.
    pub(crate) fn connect(&self, fd: RawFd, port: u16) {
        let result = self.posix.connect(fd, &raw(STACK, port));
        assert!(matches!(result, Outcome::Done(Ok(()) | Err(Errno(libc::EINPROGRESS)))));
    }

    /// Both ends of a connection in the stack, non-blocking.
    pub(crate) fn pair(&self) -> (RawFd, RawFd) {
        let (listener, port) = self.listener(STACK);
        let client = self.socket(libc::SOCK_STREAM);
        self.connect(client, port);
        let mut wanted = [poll_fd(listener, libc::POLLIN)];
        assert_eq!(self.posix.poll(&mut wanted, Some(PATIENCE), None), Outcome::Done(Ok(1)));
        let server = self.accept(listener);
        done(self.posix.close(listener));
        (client, server)
    }

    pub(crate) fn accept(&self, listener: RawFd) -> RawFd {
        done(self.posix.accept4(listener, &mut [], libc::SOCK_NONBLOCK)).0
    }

    pub(crate) fn send(&self, fd: RawFd, bytes: &[u8]) -> usize {
        done(self.posix.write(fd, &[IoSlice::new(bytes)]))
    }

    /// Takes at most `room` bytes.
    pub(crate) fn recv(&self, fd: RawFd, room: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; room];
        let Outcome::Done(result) = self.posix.read(fd, &mut [IoSliceMut::new(&mut bytes)]) else {
            panic!("{fd} is not ours")
        };
        bytes.truncate(result?);
        Ok(bytes)
    }

    /// Returns once `poll` says so.
    pub(crate) fn wait_for(&self, fd: RawFd, events: i16) {
        let mut fds = [poll_fd(fd, events)];
        assert_eq!(self.posix.poll(&mut fds, Some(PATIENCE), None), Outcome::Done(Ok(1)));
        assert_ne!(fds[0].revents & events, 0);
    }

    /// Returns once another thread is in a call of the kernel's that sleeps.
    pub(crate) fn wait_inside(&self) {
        while self.kernel.asleep.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }

    pub(crate) fn wait_readable(&self, fd: RawFd) {
        self.wait_for(fd, libc::POLLIN);
    }

    pub(crate) fn close(&self, fd: RawFd) {
        match self.posix.close(fd) {
            Outcome::Done(result) => result.expect("it is open"),
            Outcome::Kernel => self.kernel.close(fd).expect("it is open"),
        }
    }

    /// The kernel's answer where the call is the kernel's.
    pub(crate) fn epoll_ctl(
        &self,
        epfd: RawFd,
        op: i32,
        fd: RawFd,
        events: i32,
        data: u64,
    ) -> Result<(), i32> {
        let event = EpollEvent { events: events.cast_unsigned(), data };
        let given = (op != libc::EPOLL_CTL_DEL).then_some(event);
        let result = match self.posix.epoll_ctl(epfd, op, fd, given) {
            Outcome::Done(result) => result,
            Outcome::Kernel => {
                if op == libc::EPOLL_CTL_ADD {
                    self.kernel.watched.lock().push(fd);
                }
                self.kernel.epoll_ctl(epfd, op, fd, event)
            }
        };
        result.map_err(|error| error.0)
    }

    /// Adds with the descriptor as data.
    pub(crate) fn add(&self, epfd: RawFd, fd: RawFd, events: i32) {
        let data = u64::from(fd.cast_unsigned());
        assert_eq!(self.epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, events, data), Ok(()));
    }

    pub(crate) fn modify(&self, epfd: RawFd, fd: RawFd, events: i32) {
        let data = u64::from(fd.cast_unsigned());
        assert_eq!(self.epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, events, data), Ok(()));
    }

    pub(crate) fn delete(&self, epfd: RawFd, fd: RawFd) {
        assert_eq!(self.epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0), Ok(()));
    }

    /// What the preload library's `epoll_wait` does.
    pub(crate) fn try_wait(
        &self,
        epfd: RawFd,
        room: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<(u32, u64)>, i32> {
        let mut events = vec![EpollEvent { events: 0, data: 0 }; room];
        let count = loop {
            match self.posix.epoll_wait(epfd, &mut events, timeout, None) {
                Outcome::Done(result) => break result.map_err(|error| error.0)?,
                Outcome::Kernel => {}
            }
            self.kernel.sleepers.lock().push(epfd);
            let slept = (!self.posix.knows_epoll(epfd))
                .then(|| self.kernel.epoll_wait(epfd, &mut events, timeout, None));
            let mut sleepers = self.kernel.sleepers.lock();
            let place = sleepers.iter().position(|fd| *fd == epfd).expect("it was put there");
            sleepers.swap_remove(place);
            drop(sleepers);
            let Some(slept) = slept else { continue };
            let count = slept.map_err(|error| error.0)?;
            let left = self.posix.sift(epfd, &mut events[..count]);
            if left > 0 || count == 0 {
                break left;
            }
        };
        Ok(events[..count].iter().map(|event| (event.events, event.data)).collect())
    }

    /// Waits for at least one event.
    pub(crate) fn wait(&self, epfd: RawFd) -> Vec<(u32, u64)> {
        let events = self.try_wait(epfd, 64, Some(PATIENCE)).expect("nothing interrupts it");
        assert_ne!(events, [], "something was to happen");
        events
    }

    /// What is ready now; descriptors and bits, in order.
    pub(crate) fn now(&self, epfd: RawFd) -> Vec<(i32, RawFd)> {
        let events = self.try_wait(epfd, 64, Some(Duration::ZERO)).expect("nothing interrupts it");
        let mut events: Vec<_> = events
            .into_iter()
            .map(|(events, data)| (events.cast_signed(), RawFd::try_from(data).unwrap_or(-1)))
            .collect();
        events.sort_by_key(|(_, fd)| *fd);
        events
    }
}

impl<T> Outcome<T> {
    /// The error that must have come.
    pub(crate) fn error(self) -> i32 {
        match self {
            Self::Done(Err(error)) => error.0,
            Self::Done(Ok(_)) => panic!("succeeded"),
            Self::Kernel => panic!("left to the kernel"),
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.posix.runtime.stop(Duration::ZERO);
    }
}

/// The result of a call that must be ours and succeed.
pub(crate) fn done<T>(outcome: Outcome<T>) -> T {
    match outcome {
        Outcome::Done(Ok(value)) => value,
        Outcome::Done(Err(error)) => panic!("failed: {error:?}"),
        Outcome::Kernel => panic!("left to the kernel"),
    }
}

/// An address as the program passes it.
pub(crate) fn raw(ip: Ipv4Addr, port: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    address::encode(SocketAddr::new(ip.into(), port), Family::V4, &mut bytes);
    bytes
}

pub(crate) fn poll_fd(fd: RawFd, events: i16) -> PollFd {
    PollFd { fd, events, revents: 0 }
}

/// The kernel, with the descriptors this process made.
#[derive(Default)]
pub(crate) struct Model {
    fds: Mutex<HashMap<RawFd, Arc<OwnedFd>>>,
    options: Options,
    /// A signal is pending; its handler runs at the next safe point.
    pub(crate) signal: AtomicBool,
    handled: AtomicU64,
    /// System calls that could have been saved: sleeps, looks and wake-ups.
    pub(crate) calls: AtomicU64,
    /// Threads in a call that may sleep.
    asleep: AtomicU32,
    pub(crate) sleepers: Mutex<Vec<RawFd>>,
    pub(crate) watched: Mutex<Vec<RawFd>>,
    /// Dropped last: its numbers are free again by then.
    numbers: Numbers,
}

/// Descriptor numbers that belong to one test: others that run at the same time take none of
/// them, so a number that was closed is the next one to be used.
struct Numbers {
    range: usize,
}

static TAKEN: Mutex<[bool; RANGES]> = Mutex::new([false; RANGES]);

impl Default for Numbers {
    fn default() -> Self {
        loop {
            let mut taken = TAKEN.lock();
            if let Some(range) = taken.iter().position(|taken| !taken) {
                taken[range] = true;
                return Self { range };
            }
            drop(taken);
            std::thread::yield_now();
        }
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        TAKEN.lock()[self.range] = false;
    }
}

impl Numbers {
    fn first(&self) -> RawFd {
        RawFd::try_from(FIRST_NUMBER + self.range * NUMBERS).expect("few and small")
    }
}

/// Ranges that fit under a limit of 1024 descriptors.
const FIRST_NUMBER: usize = 256;
const NUMBERS: usize = 96;
const RANGES: usize = 8;

impl Model {
    fn keep(&self, fd: OwnedFd) -> RawFd {
        let first = self.numbers.first();
        let fd = if fd.as_raw_fd() < first {
            rustix::io::fcntl_dupfd_cloexec(fd, first).expect("there are descriptors left")
        } else {
            fd
        };
        let number = fd.as_raw_fd();
        self.fds.lock().insert(number, Arc::new(fd));
        number
    }

    fn get(&self, fd: RawFd) -> Result<Arc<OwnedFd>, Errno> {
        self.fds.lock().get(&fd).cloned().ok_or(Errno(libc::EBADF))
    }

    /// A pipe: its reading and its writing end.
    pub(crate) fn pipe(&self) -> (RawFd, RawFd) {
        let (reader, writer) = rustix::pipe::pipe().expect("there are descriptors left");
        (self.keep(reader), self.keep(writer))
    }

    /// A file with this content, its position at the start.
    pub(crate) fn file(&self, content: &[u8]) -> RawFd {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("file", flags).expect("there is memory left");
        let written = rustix::io::pwrite(&file, content, 0);
        assert_eq!(written, Ok(content.len()));
        self.keep(file)
    }

    /// What tells a socket from all others, and whether it is a stream.
    fn identity(&self, fd: RawFd) -> Result<(u64, bool), Errno> {
        let fd = self.get(fd)?;
        let inode = rustix::fs::fstat(&fd).map_err(errno)?.st_ino;
        let kind = rustix::net::sockopt::socket_type(&fd).map_err(errno)?;
        Ok((inode, kind == SocketType::STREAM))
    }

    pub(crate) fn epoll(&self) -> RawFd {
        self.epoll_create1(0).expect("there are descriptors left")
    }

    /// How many descriptors are open.
    pub(crate) fn open(&self) -> usize {
        self.fds.lock().len()
    }
}

/// Counts a thread for as long as it sleeps.
struct Asleep<'a>(Option<&'a AtomicU32>);

impl<'a> Asleep<'a> {
    fn new(count: &'a AtomicU32, timeout: Option<Duration>) -> Self {
        let sleeps = timeout != Some(Duration::ZERO);
        if sleeps {
            count.fetch_add(1, Ordering::SeqCst);
        }
        Self(sleeps.then_some(count))
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Kernel for Model {
    fn socket(&self, domain: i32, kind: i32, _protocol: i32) -> Result<RawFd, Errno> {
        assert_eq!(domain, libc::AF_INET, "the tests need no other");
        let stream = kind & 0xf == libc::SOCK_STREAM;
        let which = if stream { SocketType::STREAM } else { SocketType::DGRAM };
        let flags = SocketFlags::from_bits_retain((kind & !0xf).cast_unsigned());
        let socket = rustix::net::socket_with(AddressFamily::INET, which, flags, None);
        Ok(self.keep(socket.map_err(errno)?))
    }

    fn bind(&self, fd: RawFd, addr: &[u8]) -> Result<(), Errno> {
        rustix::net::bind(self.get(fd)?, &on_loopback(addr)?).map_err(errno)
    }

    fn listen(&self, fd: RawFd, backlog: i32) -> Result<(), Errno> {
        rustix::net::listen(self.get(fd)?, backlog).map_err(errno)
    }

    fn accept4(&self, fd: RawFd, _addr: &mut [u8], flags: i32) -> Result<(RawFd, usize), Errno> {
        let flags = SocketFlags::from_bits_retain(flags.cast_unsigned());
        let accepted = rustix::net::accept_with(self.get(fd)?, flags).map_err(errno)?;
        Ok((self.keep(accepted), 16))
    }

    fn connect(&self, fd: RawFd, addr: &[u8]) -> Result<(), Errno> {
        rustix::net::connect(self.get(fd)?, &on_loopback(addr)?).map_err(errno)
    }

    fn shutdown(&self, _fd: RawFd, _how: i32) -> Result<(), Errno> {
        Ok(())
    }

    fn getsockname(&self, fd: RawFd, addr: &mut [u8]) -> Result<usize, Errno> {
        let local = rustix::net::getsockname(self.get(fd)?).map_err(errno)?;
        let local = SocketAddr::try_from(local).map_err(errno)?;
        Ok(address::encode(local, Family::V4, addr))
    }

    fn getpeername(&self, _fd: RawFd, _addr: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno(libc::ENOTCONN))
    }

    fn getsockopt(&self, fd: RawFd, level: i32, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
        self.options.get(self.identity(fd)?, (level, name), out)
    }

    fn setsockopt(&self, fd: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.options.set(self.identity(fd)?, (level, name), value)
    }

    fn close(&self, fd: RawFd) -> Result<(), Errno> {
        self.fds.lock().remove(&fd).map(drop).ok_or(Errno(libc::EBADF))
    }

    fn dup(&self, fd: RawFd) -> Result<RawFd, Errno> {
        rustix::io::dup(self.get(fd)?).map(|fd| self.keep(fd)).map_err(errno)
    }

    fn dup3(&self, old: RawFd, new: RawFd, _flags: i32) -> Result<RawFd, Errno> {
        let source = self.get(old)?;
        let target = self.fds.lock().remove(&new).ok_or(Errno(libc::EBADF))?;
        let mut target = Arc::into_inner(target).expect("nobody uses it");
        rustix::io::dup2(source, &mut target).map_err(errno)?;
        Ok(self.keep(target))
    }

    fn fcntl(&self, fd: RawFd, command: i32, arg: usize) -> Result<i32, Errno> {
        let from = RawFd::try_from(arg).map_err(|_| Errno(libc::EINVAL))?;
        let fd = self.get(fd)?;
        match command {
            // Nothing is executed here.
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => rustix::io::fcntl_dupfd_cloexec(fd, from),
            libc::F_GETFL => {
                let flags = rustix::fs::fcntl_getfl(fd).map_err(errno)?;
                return Ok(flags.bits().cast_signed());
            }
            libc::F_SETFL => {
                let flags = rustix::fs::OFlags::from_bits_retain(from.cast_unsigned());
                return rustix::fs::fcntl_setfl(fd, flags).map(|()| 0).map_err(errno);
            }
            libc::F_GETPIPE_SZ => {
                let size = rustix::pipe::fcntl_getpipe_size(fd).map_err(errno)?;
                return Ok(i32::try_from(size).expect("pipes are small"));
            }
            _ => return Ok(0),
        }
        .map(|fd| self.keep(fd))
        .map_err(errno)
    }

    fn read(&self, fd: RawFd, buf: &mut [u8]) -> Result<usize, Errno> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        rustix::io::read(self.get(fd)?, buf).map_err(errno)
    }

    fn pread(&self, fd: RawFd, buf: &mut [u8], offset: i64) -> Result<usize, Errno> {
        rustix::io::pread(self.get(fd)?, buf, offset.cast_unsigned()).map_err(errno)
    }

    fn write(&self, fd: RawFd, buf: &[u8]) -> Result<usize, Errno> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        rustix::io::write(self.get(fd)?, buf).map_err(errno)
    }

    fn lseek(&self, fd: RawFd, offset: i64, whence: i32) -> Result<i64, Errno> {
        let to = match whence {
            libc::SEEK_SET => rustix::fs::SeekFrom::Start(offset.cast_unsigned()),
            _ => rustix::fs::SeekFrom::Current(offset),
        };
        let position = rustix::fs::seek(self.get(fd)?, to).map_err(errno)?;
        Ok(position.cast_signed())
    }

    fn recvmsg(
        &self,
        fd: RawFd,
        bufs: &mut [IoSliceMut<'_>],
        _addr: &mut [u8],
        flags: i32,
    ) -> Result<(usize, usize, i32), Errno> {
        let flags = RecvFlags::from_bits_retain(flags.cast_unsigned());
        let buf = bufs.first_mut().ok_or(Errno(libc::EINVAL))?;
        let (taken, _) = rustix::net::recv(self.get(fd)?, &mut **buf, flags).map_err(errno)?;
        Ok((taken, 0, 0))
    }

    fn sendmsg(
        &self,
        fd: RawFd,
        bufs: &[IoSlice<'_>],
        addr: &[u8],
        flags: i32,
    ) -> Result<usize, Errno> {
        let flags = SendFlags::from_bits_retain(flags.cast_unsigned());
        let buf = bufs.first().ok_or(Errno(libc::EINVAL))?;
        let fd = self.get(fd)?;
        if addr.is_empty() {
            rustix::net::send(fd, buf, flags).map_err(errno)
        } else {
            rustix::net::sendto(fd, buf, flags, &on_loopback(addr)?).map_err(errno)
        }
    }

    fn poll(
        &self,
        fds: &mut [PollFd],
        timeout: Option<Duration>,
        _mask: Option<&SigSet>,
    ) -> Result<usize, Errno> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let held: Vec<_> = fds.iter().map(|entry| self.get(entry.fd).ok()).collect();
        let mut asked: Vec<_> = fds
            .iter()
            .zip(&held)
            .filter_map(|(entry, held)| {
                let flags = PollFlags::from_bits_retain(entry.events.cast_unsigned());
                Some(rustix::event::PollFd::from_borrowed_fd(held.as_ref()?.as_fd(), flags))
            })
            .collect();
        let closed = |entry: &PollFd, held: &Option<_>| entry.fd >= 0 && held.is_none();
        let any_closed = fds.iter().zip(&held).any(|(entry, held)| closed(entry, held));
        let timeout = if any_closed { Some(Duration::ZERO) } else { timeout };
        let _asleep = Asleep::new(&self.asleep, timeout);
        rustix::event::poll(&mut asked, timeout.map(timespec).as_ref()).map_err(errno)?;
        let mut answers = asked.iter();
        for (entry, held) in fds.iter_mut().zip(&held) {
            entry.revents = match held {
                Some(_) => answers.next().map_or(0, |answer| answer.revents().bits().cast_signed()),
                None if entry.fd >= 0 => libc::POLLNVAL,
                None => 0,
            };
        }
        Ok(fds.iter().filter(|entry| entry.revents != 0).count())
    }

    fn epoll_create1(&self, _flags: i32) -> Result<RawFd, Errno> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(|fd| self.keep(fd)).map_err(errno)
    }

    fn epoll_ctl(&self, epfd: RawFd, op: i32, fd: RawFd, event: EpollEvent) -> Result<(), Errno> {
        let (instance, fd) = (self.get(epfd)?, self.get(fd)?);
        let data = epoll::EventData::new_u64(event.data);
        let flags = epoll::EventFlags::from_bits_retain(event.events);
        match op {
            libc::EPOLL_CTL_ADD => epoll::add(instance, fd, data, flags),
            libc::EPOLL_CTL_MOD => epoll::modify(instance, fd, data, flags),
            libc::EPOLL_CTL_DEL => epoll::delete(instance, fd),
            _ => return Err(Errno(libc::EINVAL)),
        }
        .map_err(errno)
    }

    fn epoll_wait(
        &self,
        epfd: RawFd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
        _mask: Option<&SigSet>,
    ) -> Result<usize, Errno> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let _asleep = Asleep::new(&self.asleep, timeout);
        let mut found: Vec<epoll::Event> = Vec::with_capacity(events.len());
        let room = rustix::buffer::spare_capacity(&mut found);
        epoll::wait(self.get(epfd)?, room, timeout.map(timespec).as_ref()).map_err(errno)?;
        for (event, found) in events.iter_mut().zip(&found) {
            let (flags, data) = (found.flags, found.data);
            *event = EpollEvent { events: flags.bits(), data: data.u64() };
        }
        Ok(found.len())
    }

    fn eventfd(&self) -> Result<RawFd, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(|fd| self.keep(fd)).map_err(errno)
    }

    fn hidden_socket(&self) -> Result<RawFd, Errno> {
        self.socket(libc::AF_INET, libc::SOCK_STREAM, 0)
    }

    fn hidden_socket_of(&self, domain: i32) -> Result<RawFd, Errno> {
        self.socket(domain, libc::SOCK_STREAM, 0)
    }

    fn close_hidden(&self, fd: RawFd) {
        self.close(fd).expect("it is ours and open");
    }

    fn epoll_sleepers(&self, name: &mut dyn FnMut(RawFd)) {
        for fd in self.sleepers.lock().iter() {
            name(*fd);
        }
    }

    fn is_watched(&self, fd: RawFd) -> bool {
        self.watched.lock().contains(&fd)
    }

    fn futex_wait(
        &self,
        word: &AtomicU32,
        expected: u32,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let _asleep = Asleep::new(&self.asleep, timeout);
        let timeout = timeout.map(timespec);
        futex::wait(word, futex::Flags::PRIVATE, expected, timeout.as_ref()).map_err(errno)
    }

    fn futex_wake(&self, word: &AtomicU32, waiters: u32) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        futex::wake(word, futex::Flags::PRIVATE, waiters).expect("the word is valid");
    }

    fn interfaces(&self) -> Vec<(IpAddr, u8)> {
        vec![(Ipv4Addr::LOCALHOST.into(), 8)]
    }

    fn raise_sigpipe(&self) {}

    fn signals_seen(&self) -> (u64, u64) {
        let handled = self.handled.load(Ordering::SeqCst);
        (handled, handled)
    }

    fn safe_point(&self) {
        if self.signal.swap(false, Ordering::SeqCst) {
            self.handled.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn errno(error: Error) -> Errno {
    Errno(error.raw_os_error())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).expect("no test waits that long")
}

/// The wildcard means the loopback address here, so that tests serve nobody else.
fn on_loopback(addr: &[u8]) -> Result<SocketAddr, Errno> {
    let mut addr = address::decode(addr, Family::V4)?;
    if addr.ip().is_unspecified() {
        addr.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    Ok(addr)
}
