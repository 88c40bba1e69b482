//! Descriptors that an idle process can sleep on until packets arrive.
//!
//! Two drivers have a kernel descriptor that is readable exactly while packets wait: `net_tap` (the
//! tap device itself, which DPDK hands out as the queue's interrupt) and `net_af_packet` (the
//! packet socket, remembered when the driver made it). Nothing has to be armed, and no wake-up can
//! be lost between the last empty poll and the sleep, because the kernel looks at its own ring when
//! the sleep begins. Duplicates are used, so that what the program does to descriptors it did not
//! open cannot redirect a sleep to something else.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use dpdk_sys as sys;

/// The descriptor of a queue of a started port.
pub(crate) fn of_queue(port: u16, queue: u16, driver: &str, interface: u32) -> Option<OwnedFd> {
    let fd = match driver {
        "net_tap" => tap_queue(port, queue)?,
        "net_af_packet" => packet_socket(queue, interface)?,
        _ => return None,
    };
    duplicate(fd)
}

/// Whether the driver's descriptors come from its receive interrupts, which must be asked for.
pub(crate) fn needs_interrupts(driver: &str) -> bool {
    driver == "net_tap"
}

fn tap_queue(port: u16, queue: u16) -> Option<RawFd> {
    // SAFETY: the port is started with this queue.
    let fd = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(port, queue) };
    (fd >= 0).then_some(fd)
}

/// The driver makes its sockets in the order of the queues, and binds each to its interface.
fn packet_socket(queue: u16, interface: u32) -> Option<RawFd> {
    let mut fds: [RawFd; SOCKETS_MAX] = [-1; SOCKETS_MAX];
    let room = u32::try_from(fds.len()).expect("a small constant");
    // SAFETY: there is room for as many as said.
    let count = unsafe { sys::ls_packet_sockets(fds.as_mut_ptr(), room) };
    let count = usize::try_from(count).expect("at most the room");
    let mut bound = fds[..count].iter().filter(|fd| bound_interface(**fd) == Some(interface));
    bound.nth(usize::from(queue)).copied()
}

/// The interface a packet socket is bound to; `None` for any other descriptor.
fn bound_interface(fd: RawFd) -> Option<u32> {
    let mut address = MaybeUninit::<libc::sockaddr_ll>::zeroed();
    let mut len = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).ok()?;
    // By its number: the library this ends up in replaces `getsockname`.
    // SAFETY: the address has `len` bytes; a wrong descriptor is refused.
    let error =
        unsafe { libc::syscall(libc::SYS_getsockname, fd, address.as_mut_ptr(), &raw mut len) };
    // SAFETY: all zero is a valid address, and the kernel writes bytes of one.
    let address = unsafe { address.assume_init() };
    let is_packet = i32::from(address.sll_family) == libc::AF_PACKET;
    (error == 0 && is_packet).then(|| u32::try_from(address.sll_ifindex).unwrap_or(0))
}

fn duplicate(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: makes a new descriptor or fails.
    let copy = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0) };
    let copy = RawFd::try_from(copy).ok().filter(|copy| *copy >= 0)?;
    // SAFETY: plain bookkeeping.
    unsafe { sys::ls_adopt_descriptor(copy) };
    // SAFETY: the descriptor was just made and nobody else knows it.
    Some(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Fetches a socket's pending error. An interface that went down leaves one, and the socket counts
/// as readable until somebody asks.
pub(crate) fn clear_error(fd: BorrowedFd<'_>) {
    let mut error: libc::c_int = 0;
    let mut len = libc::socklen_t::try_from(size_of_val(&error)).expect("four");
    // SAFETY: valid places to write to; what is no socket is refused.
    unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            &raw mut error,
            &raw mut len,
        );
    }
}

/// Closes a descriptor of [`of_queue`].
pub(crate) fn close(fd: OwnedFd) {
    let fd = fd.into_raw_fd();
    // SAFETY: plain bookkeeping; before the number can become somebody else's.
    unsafe { sys::ls_forget_descriptor(fd) };
    // By its number, as everything here.
    // SAFETY: the descriptor was owned.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// Name of a kernel interface.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size the call demands.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    let name = CStr::from_bytes_until_nul(&name).ok()?;
    Some(name.to_string_lossy().into_owned())
}

/// MTU of a kernel interface.
pub(crate) fn interface_mtu(name: &str) -> Option<u16> {
    // SAFETY: makes a new descriptor or fails.
    let fd = unsafe {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        libc::syscall(libc::SYS_socket, libc::AF_INET, kind, 0)
    };
    // SAFETY: all zero is a valid request.
    let mut request = unsafe { MaybeUninit::<libc::ifreq>::zeroed().assume_init() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IF_NAMESIZE - 1)) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: the request is a valid `ifreq`; a wrong descriptor is refused.
    let error = unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::SIOCGIFMTU, &raw mut request) };
    // SAFETY: closes the descriptor made above; -1 is refused.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    if error != 0 {
        return None;
    }
    // SAFETY: SIOCGIFMTU fills this member.
    u16::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

/// As many as dpdk-sys/c/os.c remembers.
const SOCKETS_MAX: usize = 64;
