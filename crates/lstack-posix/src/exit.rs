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
