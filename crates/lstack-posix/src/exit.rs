//! The end of the process.

use crate::posix::Posix;

impl Posix {
    /// Closes what is open, lets orphans finish within `exit_linger`.
    pub fn finish(&self) {
        self.runtime.stop(self.exit_linger);
    }
}
