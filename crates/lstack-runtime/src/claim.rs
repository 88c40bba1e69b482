//! One stack per address on this machine: a name that the first process holds while it lives.
//!
//! Two processes on one TAP interface would each get a part of the other's frames, and no ARP probe
//! tells them, since the kernel does not pass frames from one queue of a TAP to another. The name is
//! an abstract socket's: it belongs to the network namespace, as the device does, and goes with the
//! process however it ends.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// Holds `address` for this process until the descriptor is closed. `None`: another process has
/// it.
///
/// # Errors
///
/// The system gives no socket.
pub(crate) fn hold(address: Ipv4Addr) -> std::io::Result<Option<OwnedFd>> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let name = SocketAddrUnix::new_abstract_name(format!("lstack/{address}").as_bytes())?;
    match bind(&socket, &name) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::hold;

    #[test]
    fn an_address_is_held_once_and_free_again_after() {
        let address = "192.0.2.77".parse().unwrap();
        let first = hold(address).unwrap();
        assert!(first.is_some());
        assert!(hold(address).unwrap().is_none());
        drop(first);
        assert!(hold(address).unwrap().is_some());
    }
}
