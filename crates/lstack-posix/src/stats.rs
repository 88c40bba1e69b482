//! Statistics as JSON.

use crate::posix::Posix;

impl Posix {
    /// Counters of every stack, sockets and descriptors.
    #[must_use]
    pub fn stats_json(&self) -> String {
        "{}".to_owned()
    }
}
