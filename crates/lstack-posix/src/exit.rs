//! The end of the process.
//!
//! The kernel closes the sockets of a process that ends, after the last of its threads is gone.
//! Here other threads still run, and may be inside calls. So descriptors stay in the table, lest a
//! late `send` ends up on a placeholder; only the sockets behind them are closed.

use std::sync::atomic::Ordering;

use crate::posix::Posix;

impl Posix {
    /// At exit: closes every socket of the stack and lets what is queued go out within
    /// `exit_linger`. As on Linux, `SO_LINGER` does not make a process wait that ends. Calls after
    /// the first do nothing.
    pub fn finish(&self) {
        if self.finishing.swap(true, Ordering::AcqRel) {
            return;
        }
        for fd in self.table.numbers(0, usize::MAX) {
            if let Some(description) = self.table.get(fd)
                && let Some(socket) = description.socket()
            {
                socket.end();
            }
        }
        self.runtime.stop(self.exit_linger);
    }

    /// Raises `SIGPIPE`, unless the process is ending: a thread that loses its connection to
    /// [`Self::finish`] must not change the exit status.
    pub(crate) fn raise_sigpipe(&self) {
        if !self.finishing.load(Ordering::Acquire) {
            self.kernel.raise_sigpipe();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lstack_core::tcp::State;

    use crate::errno::Errno;
    use crate::testbed::{STACK, Testbed};

    #[test]
    fn the_end_closes_every_connection_also_those_in_use() {
        let bed = Testbed::new();
        let (client, server) = bed.pair();
        let (_listener, _) = bed.listener(Ipv4Addr::UNSPECIFIED);
        let (_datagram, _) = bed.datagram(STACK);
        let in_use = bed.posix.table.get(client);
        bed.posix.finish();
        bed.posix.finish();
        let sockets = bed.posix.runtime.cells()[0].lock().stack().sockets();
        let open = sockets.iter().filter(|socket| socket.state == Some(State::Established));
        assert_eq!(open.count(), 0);
        assert!(!sockets.iter().any(|socket| socket.state == Some(State::Listen)));
        // Late calls find no connection, and no placeholder either.
        assert_eq!(bed.recv(server, 1), Err(Errno(libc::ENOTCONN)));
        drop(in_use);
    }
}
