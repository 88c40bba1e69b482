//! Which processes and threads use the stack at all.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::load::Environment;

/// The filters of the environment. Without a variable everything passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    process: Option<OsString>,
    thread: Option<OsString>,
}

impl Filter {
    /// Reads `LSTACK_BIND_PROCNAME` (or, without it, `GAZELLE_BIND_PROCNAME`) and
    /// `GAZELLE_THREAD_NAME`. An empty variable counts as absent.
    #[must_use]
    pub fn from_environment(environment: Environment<'_>) -> Self {
        let read = |name| environment(name).filter(|value| !value.is_empty());
        Self {
            process: read("LSTACK_BIND_PROCNAME").or_else(|| read("GAZELLE_BIND_PROCNAME")),
            thread: read("GAZELLE_THREAD_NAME"),
        }
    }

    /// Whether a process may use the stack whose executable file (the last component of what
    /// `/proc/self/exe` points to) has this name.
    #[must_use]
    pub fn accepts_process(&self, executable: &OsStr) -> bool {
        self.process.as_deref().is_none_or(|wanted| wanted == executable)
    }

    /// Whether a thread of this name (`/proc/self/task/<tid>/comm`) may use the stack: the wanted
    /// text is somewhere in it.
    #[must_use]
    pub fn accepts_thread(&self, name: &[u8]) -> bool {
        self.thread.as_deref().is_none_or(|wanted| {
            let wanted = wanted.as_bytes();
            name.windows(wanted.len()).any(|part| part == wanted)
        })
    }

    /// Whether thread names matter; when not, a caller need not ask for them.
    #[must_use]
    pub fn looks_at_threads(&self) -> bool {
        self.thread.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::Filter;
    use std::ffi::{OsStr, OsString};

    fn filter(variables: &[(&str, &str)]) -> Filter {
        Filter::from_environment(&|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn without_variables_everything_passes() {
        for filter in [filter(&[]), filter(&[("LSTACK_BIND_PROCNAME", "")])] {
            assert!(filter.accepts_process(OsStr::new("netserver")));
            assert!(filter.accepts_thread(b"anything"));
            assert!(!filter.looks_at_threads());
        }
    }

    #[test]
    fn process_names_are_compared_whole() {
        let filter = filter(&[("GAZELLE_BIND_PROCNAME", "redis-server")]);
        assert!(filter.accepts_process(OsStr::new("redis-server")));
        assert!(!filter.accepts_process(OsStr::new("redis")));
        assert!(!filter.accepts_process(OsStr::new("redis-server2")));
    }

    #[test]
    fn own_variable_wins_over_gazelle_s() {
        let filter =
            filter(&[("GAZELLE_BIND_PROCNAME", "redis"), ("LSTACK_BIND_PROCNAME", "nginx")]);
        assert!(filter.accepts_process(OsStr::new("nginx")));
        assert!(!filter.accepts_process(OsStr::new("redis")));
    }

    #[test]
    fn thread_names_are_searched_for_the_text() {
        let filter = filter(&[("GAZELLE_THREAD_NAME", "work")]);
        assert!(filter.looks_at_threads());
        assert!(filter.accepts_thread(b"my_worker_3"));
        assert!(filter.accepts_thread(b"work"));
        assert!(!filter.accepts_thread(b"main"));
        assert!(!filter.accepts_thread(b""));
    }
}
