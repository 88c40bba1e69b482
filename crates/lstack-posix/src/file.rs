//! `sendfile` and `splice`: between sockets of the stack and files or pipes of the kernel.
//!
//! Bytes pass through a buffer of bounded size. Nothing is taken from its source before its place is
//! certain: a file's position moves by what the socket took, a socket's bytes are consumed once the
//! pipe has them, and a pipe is read only as far as the socket has room.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lstack_core::{Protocol, Readiness};
use parking_lot::Mutex;

use crate::description::{Endpoint, Handle, State};
use crate::errno::Errno;
use crate::kernel::PollFd;
use crate::posix::{Outcome, Posix};
use crate::socket::OUTPUT;
use crate::wait::{Ask, Patience, Restart};

impl Posix {
    /// `sendfile`. `offset`: in and out; `None` uses and moves the file's own position.
    pub fn sendfile(
        &self,
        out: RawFd,
        input: RawFd,
        offset: Option<&mut i64>,
        count: usize,
    ) -> Outcome<usize> {
        let count = count.min(COUNT_MAX);
        match (self.carrier(input), self.carrier(out), offset) {
            (None, None, _) => Outcome::Kernel,
            (None, Some(to), offset) => Outcome::Done(self.send_file(&to, input, offset, count)),
            // A socket has no position.
            (Some(_), _, Some(_)) => Outcome::Done(Err(Errno(libc::ESPIPE))),
            (Some(_), Some(_), None) => Outcome::Done(Err(Errno(libc::EINVAL))),
            // Linux sends from anything to a pipe.
            (Some(from), None, None) => Outcome::Done(
                self.expect_pipe(out).and_then(|()| self.drain_to_pipe(&from, out, count, 0)),
            ),
        }
    }

    /// `splice`.
    #[allow(clippy::needless_pass_by_value, reason = "as `sendfile`, which writes to its offset")]
    pub fn splice(
        &self,
        input: RawFd,
        in_offset: Option<&mut i64>,
        out: RawFd,
        out_offset: Option<&mut i64>,
        count: usize,
        flags: u32,
    ) -> Outcome<usize> {
        let (from, to) = (self.carrier(input), self.carrier(out));
        if from.is_none() && to.is_none() {
            return Outcome::Kernel;
        }
        if count == 0 {
            return Outcome::Done(Ok(0));
        }
        if flags & !SPLICE_FLAGS != 0 {
            return Outcome::Done(Err(Errno(libc::EINVAL)));
        }
        let count = count.min(COUNT_MAX);
        // Neither end has a position; Linux names the two mistakes differently.
        let misplaced = |socket: bool, pipe: bool| match (socket, pipe) {
            (_, true) => Err(Errno(libc::ESPIPE)),
            (true, false) => Err(Errno(libc::EINVAL)),
            (false, false) => Ok(()),
        };
        Outcome::Done(match (from, to) {
            (Some(from), None) => self
                .expect_pipe(out)
                .and_then(|()| misplaced(in_offset.is_some(), out_offset.is_some()))
                .and_then(|()| self.drain_to_pipe(&from, out, count, flags)),
            (None, Some(to)) => self
                .expect_pipe(input)
                .and_then(|()| misplaced(out_offset.is_some(), in_offset.is_some()))
                .and_then(|()| self.fill_from_pipe(input, &to, count, flags)),
            _ => Err(Errno(libc::EINVAL)),
        })
    }

    /// The socket behind `fd`, if data goes through the stack. The placeholder of any other has
    /// the right errors.
    fn carrier(&self, fd: RawFd) -> Option<Handle> {
        let handle = self.socket_handle(fd)?;
        let carries =
            matches!(&**handle.socket().state(), State::Connection(_) | State::Datagram { .. });
        carries.then_some(handle)
    }

    fn send_file(
        &self,
        to: &Handle,
        file: RawFd,
        offset: Option<&mut i64>,
        count: usize,
    ) -> Result<usize, Errno> {
        let start = match &offset {
            Some(offset) if **offset < 0 => return Err(Errno(libc::EINVAL)),
            Some(offset) => **offset,
            None => self.kernel.lseek(file, 0, libc::SEEK_CUR).map_err(no_position)?,
        };
        let sent = self.send_from(to, file, start, count)?;
        let end = start + i64::try_from(sent).expect("COUNT_MAX has 31 bits");
        match offset {
            Some(offset) => *offset = end,
            None => {
                self.kernel.lseek(file, end, libc::SEEK_SET)?;
            }
        }
        Ok(sent)
    }

    /// Sends up to `count` bytes of `file` from `start` on, until its end.
    fn send_from(
        &self,
        to: &Handle,
        file: RawFd,
        start: i64,
        count: usize,
    ) -> Result<usize, Errno> {
        let mut chunk = self.chunks.take();
        let mut sent = 0;
        while sent < count {
            let position = start + i64::try_from(sent).expect("COUNT_MAX has 31 bits");
            let room = chunk.bytes.len().min(count - sent);
            let read = match self.kernel.pread(file, &mut chunk.bytes[..room], position) {
                Ok(0) => break,
                Ok(read) => read,
                Err(_) if sent > 0 => break,
                Err(errno) => return Err(not_a_file(errno)),
            };
            // A part of a segment must not be held back for more than will come.
            let more = read == room && sent + read < count && self.goes_on(file, position, read);
            let flags = if more { libc::MSG_MORE } else { 0 };
            match self.send_piece(to, &chunk.bytes[..read], flags) {
                Ok(taken) => {
                    sent += taken;
                    if taken < read {
                        break;
                    }
                }
                Err(_) if sent > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(sent)
    }

    /// Whether the file has a byte after the `read` bytes at `position`.
    fn goes_on(&self, file: RawFd, position: i64, read: usize) -> bool {
        let next = position + i64::try_from(read).expect("a chunk is small");
        self.kernel.pread(file, &mut [0], next) == Ok(1)
    }

    fn send_piece(&self, to: &Handle, piece: &[u8], flags: i32) -> Result<usize, Errno> {
        let piece = [IoSlice::new(piece)];
        match to.socket().protocol {
            Protocol::Tcp => self.send_bytes(to, &piece, flags),
            Protocol::Udp => match self.sendmsg(to.fd, &piece, &[], &[], flags) {
                Outcome::Done(result) => result,
                Outcome::Kernel => self.kernel.sendmsg(to.fd, &piece, &[], flags),
            },
        }
    }

    /// Socket to pipe: waits for the first bytes only, as Linux does.
    fn drain_to_pipe(
        &self,
        from: &Handle,
        pipe: RawFd,
        count: usize,
        flags: u32,
    ) -> Result<usize, Errno> {
        let pipe = self.pipe(pipe, libc::O_RDONLY, flags)?;
        let mut chunk = self.chunks.take();
        // A pipe that may block is given no more than one page at a time: as much as it has room
        // for whenever it says that it is writable.
        let step = if pipe.may_block { PAGE } else { chunk.bytes.len() };
        let mut moved = 0;
        while moved < count {
            let first = moved == 0;
            let wanted = step.min(count - moved);
            let piece = match self.await_pipe(&pipe, libc::POLLOUT, first) {
                Ok(()) => self.move_piece(from, &pipe, &mut chunk.bytes[..wanted], first),
                Err(errno) => Err(errno),
            };
            match piece {
                Ok(0) => break,
                Ok(taken) => moved += taken,
                Err(_) if !first => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(moved)
    }

    /// Writes what the socket has to the pipe, and consumes what the pipe took.
    fn move_piece(
        &self,
        from: &Handle,
        pipe: &Pipe,
        room: &mut [u8],
        may_wait: bool,
    ) -> Result<usize, Errno> {
        let wait = if may_wait { 0 } else { libc::MSG_DONTWAIT };
        let seen = self.recv_bytes(from, &mut [IoSliceMut::new(room)], libc::MSG_PEEK | wait)?;
        if seen == 0 {
            return Ok(0);
        }
        let taken = self.kernel.write(pipe.fd, &room[..seen])?;
        let consume = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        self.recv_bytes(from, &mut [IoSliceMut::new(&mut room[..taken])], consume)?;
        Ok(taken)
    }

    /// Pipe to socket, until the pipe is empty.
    fn fill_from_pipe(
        &self,
        pipe: RawFd,
        to: &Handle,
        count: usize,
        flags: u32,
    ) -> Result<usize, Errno> {
        let pipe = self.pipe(pipe, libc::O_WRONLY, flags)?;
        let more = if flags & libc::SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
        let mut chunk = self.chunks.take();
        let mut moved = 0;
        while moved < count {
            let wanted = chunk.bytes.len().min(count - moved);
            let piece = self.await_pipe(&pipe, libc::POLLIN, moved == 0).and_then(|()| {
                let room = self.await_room(to)?.min(wanted);
                let read = self.kernel.read(pipe.fd, &mut chunk.bytes[..room])?;
                self.send_whole(to, &chunk.bytes[..read], more)?;
                Ok(read)
            });
            match piece {
                Ok(0) => break,
                Ok(read) => moved += read,
                Err(_) if moved > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(moved)
    }

    /// How many bytes the connection takes at once, at least 1; waits if the socket may block.
    fn await_room(&self, to: &Handle) -> Result<usize, Errno> {
        let state = to.socket().state();
        let State::Connection(endpoint) = &**state else { return Err(Errno(libc::EINVAL)) };
        let room = |_: Ask| room(endpoint);
        let room = match room(Ask::Stack) {
            Some(room) => room,
            None if to.nonblocking(0) => return Err(Errno(libc::EAGAIN)),
            None => {
                let endpoints = std::slice::from_ref(endpoint);
                let patience = self.send_patience(to.socket());
                self.wait_until(endpoints, OUTPUT, &[], patience, room)
                    .map_err(|ended| ended.errno(libc::EAGAIN))?
            }
        };
        // A connection that is over says so here, before anything is taken from the pipe.
        self.send_bytes(to, &[], 0)?;
        Ok(room.max(1))
    }

    /// Sends what has been taken from a pipe. There was room for it; if another thread was faster,
    /// the bytes wait, on a non-blocking socket too: there is no way back into the pipe.
    fn send_whole(&self, to: &Handle, bytes: &[u8], flags: i32) -> Result<(), Errno> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.send_bytes(to, &[IoSlice::new(&bytes[sent..])], flags) {
                Ok(taken) => sent += taken,
                Err(Errno(libc::EAGAIN | libc::EINTR)) => {
                    let state = to.socket().state();
                    let State::Connection(endpoint) = &**state else { return Ok(()) };
                    let patience =
                        Patience { deadline: None, restart: Restart::IfAsked, mask: None };
                    let endpoints = std::slice::from_ref(endpoint);
                    // Interrupted or not, the next round looks again.
                    let _ = self.wait_until(endpoints, OUTPUT, &[], patience, |_| room(endpoint));
                }
                Err(errno) => return Err(errno),
            }
            if self.finishing.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// `EINVAL` for what is open and no pipe.
    fn expect_pipe(&self, fd: RawFd) -> Result<(), Errno> {
        self.kernel.fcntl(fd, libc::F_GETFD, 0)?;
        match self.kernel.fcntl(fd, libc::F_GETPIPE_SZ, 0) {
            Ok(_) => Ok(()),
            Err(_) => Err(Errno(libc::EINVAL)),
        }
    }

    /// The end of a pipe; `wrong_end` is what it is opened for if it is the other one.
    fn pipe(&self, fd: RawFd, wrong_end: i32, flags: u32) -> Result<Pipe, Errno> {
        let status = self.kernel.fcntl(fd, libc::F_GETFL, 0)?;
        if status & libc::O_ACCMODE == wrong_end {
            return Err(Errno(libc::EBADF));
        }
        let may_block = status & libc::O_NONBLOCK == 0;
        Ok(Pipe { fd, may_block, may_wait: may_block && flags & libc::SPLICE_F_NONBLOCK == 0 })
    }

    /// Returns once the pipe is ready. A pipe that does not block finds out by itself.
    fn await_pipe(&self, pipe: &Pipe, events: i16, first: bool) -> Result<(), Errno> {
        if !pipe.may_block {
            return Ok(());
        }
        let watched = PollFd { fd: pipe.fd, events, revents: 0 };
        let ready = |_: Ask| {
            let polled = self.kernel.poll(&mut [watched], Some(Duration::ZERO), None);
            matches!(polled, Ok(1)).then_some(())
        };
        if ready(Ask::Both).is_some() {
            return Ok(());
        }
        if !first || !pipe.may_wait {
            return Err(Errno(libc::EAGAIN));
        }
        let patience = Patience { deadline: None, restart: Restart::IfAsked, mask: None };
        self.wait_until(&[], Readiness::empty(), &[watched], patience, ready)
            .map_err(|ended| ended.errno(libc::EAGAIN))
    }
}

/// One end of a pipe of the kernel.
struct Pipe {
    fd: RawFd,
    /// It has no `O_NONBLOCK`.
    may_block: bool,
    /// The call may wait for it.
    may_wait: bool,
}

/// Room in the send buffer, or zero if sending would fail; `None` while there is none.
fn room(endpoint: &Endpoint) -> Option<usize> {
    let mut guard = endpoint.enter();
    let now = guard.now();
    let writable = guard.stack().readiness(endpoint.socket).intersects(OUTPUT);
    if !writable && !endpoint.cell.failed() {
        return None;
    }
    let queued = guard.stack().unacked(endpoint.socket);
    let info = guard.stack().tcp_info(now, endpoint.socket);
    Some(info.map_or(0, |info| info.send_buffer.saturating_sub(queued)))
}

/// `sendfile` says `EINVAL` of what it cannot read at a position.
fn no_position(errno: Errno) -> Errno {
    match errno {
        Errno(libc::ESPIPE) => Errno(libc::EINVAL),
        other => other,
    }
}

fn not_a_file(errno: Errno) -> Errno {
    match errno {
        Errno(libc::EISDIR) => Errno(libc::EINVAL),
        other => other,
    }
}

/// A pool of buffers. Few calls need one at a time; they are too big for the program's stack.
#[derive(Default)]
pub(crate) struct Chunks {
    spare: Mutex<Vec<Box<[u8]>>>,
}

/// A buffer, on loan.
struct Chunk<'a> {
    pool: &'a Chunks,
    bytes: Box<[u8]>,
}

impl Chunks {
    fn take(&self) -> Chunk<'_> {
        let spare = self.spare.lock().pop();
        Chunk { pool: self, bytes: spare.unwrap_or_else(|| vec![0; CHUNK].into()) }
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        let mut spare = self.pool.spare.lock();
        if spare.len() < CHUNKS_KEPT {
            spare.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// A pipe's default capacity, and enough that the cost of a call does not show.
const CHUNK: usize = 64 * 1024;

/// Buffers kept for later calls.
const CHUNKS_KEPT: usize = 8;

/// `MAX_RW_COUNT` of the kernel, with pages of 4 KiB.
const COUNT_MAX: usize = 0x7fff_f000;

/// The smallest page, and what `poll` promises when a pipe is writable.
const PAGE: usize = 4096;

const SPLICE_FLAGS: u32 =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

#[cfg(test)]
mod tests;
