//! Moving data.

use std::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::time::Instant;

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use lstack_posix::{Outcome, Posix};

use super::hooks;
use crate::abi::{self, Room};
use crate::entry::{self, Answer};

hooks! {
    /// `read(2)`.
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t, waits {
        // SAFETY: the caller's buffer.
        entry::on(fd, |posix| unsafe { read_into(posix, fd, buf, len) })
    }

    /// `read`, from a program built with `_FORTIFY_SOURCE`: the real one reports an overrun.
    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t, waits {
        fitting(len, room)
            // SAFETY: the caller's buffer.
            .and_then(|()| entry::on(fd, |posix| unsafe { read_into(posix, fd, buf, len) }))
    }

    /// `readv(2)`.
    fn readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t, waits {
        entry::on(fd, |posix| {
            // SAFETY: the caller's buffers.
            let mut bufs = unsafe { abi::scatter(vectors, abi::vector_count(count)?) }?;
            Ok(posix.read(fd, &mut bufs))
        })
    }

    /// `recv(2)`.
    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t, waits {
        // SAFETY: the caller's buffer.
        entry::on(fd, |posix| unsafe { receive_into(posix, fd, buf, len, flags) })
    }

    /// `recv`, checked.
    fn __recv_chk(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
    ) -> ssize_t, waits {
        fitting(len, room).and_then(|()| {
            // SAFETY: the caller's buffer.
            entry::on(fd, |posix| unsafe { receive_into(posix, fd, buf, len, flags) })
        })
    }

    /// `recvfrom(2)`.
    fn recvfrom(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        addr_len: *mut socklen_t,
    ) -> ssize_t, waits {
        entry::on(fd, |posix| {
            // SAFETY: the caller's buffer and room.
            unsafe { receive_from(posix, fd, (buf, len), flags, (addr, addr_len)) }
        })
    }

    /// `recvfrom`, checked.
    fn __recvfrom_chk(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        addr_len: *mut socklen_t,
    ) -> ssize_t, waits {
        fitting(len, room).and_then(|()| {
            entry::on(fd, |posix| {
                // SAFETY: the caller's buffer and room.
                unsafe { receive_from(posix, fd, (buf, len), flags, (addr, addr_len)) }
            })
        })
    }

    /// `recvmsg(2)`.
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, waits {
        entry::on(fd, |posix| {
            // SAFETY: the caller's message.
            let message = unsafe { abi::in_out(message) }?;
            // SAFETY: what the caller's message says is valid.
            unsafe { receive_message(posix, fd, message, flags) }
        })
    }

    /// `recvmmsg(2)`.
    fn recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int, waits {
        entry::on(fd, |posix| {
            // SAFETY: the caller's messages.
            unsafe { receive_messages(posix, fd, messages, count, flags, timeout) }
        })
    }

    /// `write(2)`.
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t, waits {
        entry::on(fd, |posix| {
            // SAFETY: the caller's buffer.
            let buf = IoSlice::new(unsafe { abi::bytes(buf, len) }?);
            Ok(posix.write(fd, &[buf]))
        })
    }

    /// `writev(2)`.
    fn writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t, waits {
        entry::on(fd, |posix| {
            // SAFETY: the caller's buffers.
            let bufs = unsafe { abi::gather(vectors, abi::vector_count(count)?) }?;
            Ok(posix.write(fd, &bufs))
        })
    }

    /// `send(2)`.
    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t, waits {
        entry::on(fd, |posix| {
            // SAFETY: the caller's buffer.
            let buf = IoSlice::new(unsafe { abi::bytes(buf, len) }?);
            Ok(posix.sendmsg(fd, &[buf], &[], &[], flags))
        })
    }

    /// `sendto(2)`.
    fn sendto(
        fd: c_int,
        buf: *const c_void,
        len: size_t,
        flags: c_int,
        addr: *const sockaddr,
        addr_len: socklen_t,
    ) -> ssize_t, waits {
        entry::on(fd, |posix| {
            // SAFETY: the caller's buffer.
            let buf = IoSlice::new(unsafe { abi::bytes(buf, len) }?);
            let addr_len = if addr.is_null() { 0 } else { addr_len };
            // SAFETY: the caller's address.
            let addr = unsafe { abi::address(addr, addr_len) }?;
            Ok(posix.sendmsg(fd, &[buf], addr, &[], flags))
        })
    }

    /// `sendmsg(2)`.
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t, waits {
        entry::on(fd, |posix| {
            // SAFETY: the caller's message.
            let message = unsafe { abi::input(message) }?;
            // SAFETY: what the caller's message says is valid.
            unsafe { send_message(posix, fd, message, flags) }
        })
    }

    /// `sendmmsg(2)`.
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int, waits {
        entry::on(fd, |posix| {
            in_turn(messages, count, |message, _| {
                // SAFETY: what the caller's message says is valid.
                unsafe { send_message(posix, fd, &message.msg_hdr, flags) }
            })
        })
    }

    /// `sendfile(2)`.
    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        entry::on_either([out, input], |posix| {
            // SAFETY: the caller's offset.
            let offset = unsafe { abi::optional(offset) }?;
            Ok(posix.sendfile(out, input, offset, count))
        })
    }

    /// `sendfile`, from a program built for large files: the same where `off_t` has 64 bits.
    fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        entry::on_either([out, input], |posix| {
            // SAFETY: the caller's offset.
            let offset = unsafe { abi::optional(offset) }?;
            Ok(posix.sendfile(out, input, offset, count))
        })
    }

    /// `splice(2)`.
    fn splice(
        input: c_int,
        in_offset: *mut off_t,
        out: c_int,
        out_offset: *mut off_t,
        count: size_t,
        flags: c_uint,
    ) -> ssize_t, waits {
        entry::on_either([input, out], |posix| {
            // SAFETY: the caller's offset.
            let in_offset = unsafe { abi::optional(in_offset) }?;
            // SAFETY: the caller's offset.
            let out_offset = unsafe { abi::optional(out_offset) }?;
            Ok(posix.splice(input, in_offset, out, out_offset, count, flags))
        })
    }
}

/// A checked call whose buffer is too small goes to the real function, which ends the program.
fn fitting(len: usize, room: usize) -> Option<()> {
    (len <= room).then_some(())
}

/// # Safety
///
/// `buf` is null or valid for writing `len` bytes.
unsafe fn read_into(posix: &Posix, fd: c_int, buf: *mut c_void, len: usize) -> Answer<usize> {
    // SAFETY: as the caller vouches.
    let buf = IoSliceMut::new(unsafe { abi::bytes_mut(buf, len) }?);
    Ok(posix.read(fd, &mut [buf]))
}

/// # Safety
///
/// `buf` is null or valid for writing `len` bytes.
unsafe fn receive_into(
    posix: &Posix,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> Answer<usize> {
    // SAFETY: as the caller vouches.
    let buf = IoSliceMut::new(unsafe { abi::bytes_mut(buf, len) }?);
    let received = posix.recvmsg(fd, &mut [buf], &mut [], &mut [], flags);
    Ok(then(received, |received| received.len))
}

/// # Safety
///
/// The buffer is null or valid for writing, address and length as for [`Room::optional`].
unsafe fn receive_from(
    posix: &Posix,
    fd: c_int,
    (buf, len): (*mut c_void, usize),
    flags: c_int,
    (addr, addr_len): (*mut sockaddr, *mut socklen_t),
) -> Answer<usize> {
    // SAFETY: as the caller vouches.
    let buf = IoSliceMut::new(unsafe { abi::bytes_mut(buf, len) }?);
    // SAFETY: as the caller vouches.
    let room = unsafe { Room::optional(addr, addr_len) }?;
    let received = posix.recvmsg(fd, &mut [buf], room.bytes, &mut [], flags);
    Ok(then(received, |received| {
        room.set_len(received.name_len);
        received.len
    }))
}

/// # Safety
///
/// What `message` says is valid.
unsafe fn receive_message(
    posix: &Posix,
    fd: c_int,
    message: &mut msghdr,
    flags: c_int,
) -> Answer<usize> {
    // SAFETY: as the caller vouches.
    let mut bufs = unsafe { abi::scatter(message.msg_iov, message.msg_iovlen) }?;
    // SAFETY: as the caller vouches.
    let name = unsafe { Room::optional(message.msg_name.cast(), &raw mut message.msg_namelen) }?;
    // SAFETY: as the caller vouches.
    let control = unsafe { abi::bytes_mut(message.msg_control, message.msg_controllen) }?;
    let received = posix.recvmsg(fd, &mut bufs, name.bytes, control, flags);
    Ok(then(received, |received| {
        name.set_len(received.name_len);
        message.msg_controllen = received.control_len;
        message.msg_flags = received.flags;
        received.len
    }))
}

/// # Safety
///
/// `messages` is null or valid for `count` messages, `timeout` null or valid.
unsafe fn receive_messages(
    posix: &Posix,
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Answer<c_int> {
    // SAFETY: as the caller vouches.
    let limit = unsafe { abi::duration(timeout) }?;
    let begun = Instant::now();
    let received = in_turn(messages, count, |message, index| {
        // As in Linux the time is looked at between messages only.
        if index > 0 && limit.is_some_and(|limit| begun.elapsed() >= limit) {
            return Ok(Outcome::Kernel);
        }
        let wait_for_one = flags & libc::MSG_WAITFORONE != 0 && index > 0;
        let wait = if wait_for_one { libc::MSG_DONTWAIT } else { 0 };
        let flags = (flags & !libc::MSG_WAITFORONE) | wait;
        // SAFETY: as the caller vouches.
        unsafe { receive_message(posix, fd, &mut message.msg_hdr, flags) }
    });
    if let Some(limit) = limit {
        // SAFETY: not null, else there were no limit; the caller vouches for the rest.
        unsafe { *timeout = crate::raw::timespec(limit.saturating_sub(begun.elapsed())) };
    }
    received
}

/// # Safety
///
/// What `message` says is valid.
unsafe fn send_message(posix: &Posix, fd: c_int, message: &msghdr, flags: c_int) -> Answer<usize> {
    // SAFETY: as the caller vouches.
    let bufs = unsafe { abi::gather(message.msg_iov, message.msg_iovlen) }?;
    let name_len = if message.msg_name.is_null() { 0 } else { message.msg_namelen };
    // SAFETY: as the caller vouches.
    let name = unsafe { abi::address(message.msg_name.cast(), name_len) }?;
    // SAFETY: as the caller vouches.
    let control = unsafe { abi::bytes(message.msg_control, message.msg_controllen) }?;
    Ok(posix.sendmsg(fd, &bufs, name, control, flags))
}

/// One message after the other. The first decides whether the call is the kernel's; anything but
/// success later ends the row with the number done so far.
fn in_turn(
    messages: *mut mmsghdr,
    count: c_uint,
    mut one: impl FnMut(&mut mmsghdr, usize) -> Answer<usize>,
) -> Answer<c_int> {
    // More are left out, as in Linux.
    let count = count.min(MAX_MESSAGES) as usize;
    for index in 0..count {
        // SAFETY: within the caller's array.
        let message = unsafe { abi::in_out(messages.wrapping_add(index)) };
        match message.and_then(|message| Ok((one(message, index)?, message))) {
            Ok((Outcome::Done(Ok(len)), message)) => message.msg_len = len as c_uint,
            Ok((Outcome::Kernel, _)) if index == 0 => return Ok(Outcome::Kernel),
            Ok((Outcome::Done(Err(error)), _)) | Err(error) if index == 0 => return Err(error),
            _ => return Ok(Outcome::Done(Ok(index as c_int))),
        }
    }
    Ok(Outcome::Done(Ok(count as c_int)))
}

fn then<T, U>(outcome: Outcome<T>, map: impl FnOnce(T) -> U) -> Outcome<U> {
    match outcome {
        Outcome::Done(result) => Outcome::Done(result.map(map)),
        Outcome::Kernel => Outcome::Kernel,
    }
}

/// `UIO_MAXIOV`: the most messages in one call.
const MAX_MESSAGES: c_uint = 1024;
