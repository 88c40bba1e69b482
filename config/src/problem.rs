//! What can be wrong with a configuration, and how it is told.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::OnInitFailure;

/// A message has at most so many entries; a file with more is not a configuration.
const SHOWN_ENTRIES: usize = 40;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No file in any of the places.
    #[error(
        "no lstack.conf: LSTACK_CONF_PATH is not set, and neither of these exists: {}",
        join(searched)
    )]
    NotFound {
        /// The files looked for, in order.
        searched: Vec<PathBuf>,
    },
    /// The file is there (or was asked for by name) and cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is neither TOML nor what `dialect` turns into TOML.
    #[error("{}", lines(path, errors))]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser found, at most one per line.
        errors: Vec<SyntaxError>,
        /// `on_init_failure`, as far as the file could be read.
        on_init_failure: OnInitFailure,
    },
    /// It can be read, and says things that are not allowed.
    #[error("{}", lines(path, problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All of them, by line.
        problems: Vec<Problem>,
        /// `on_init_failure`, if that one is right.
        on_init_failure: OnInitFailure,
    },
}

impl LoadError {
    /// What the file, bad as it is, wants to happen now.
    #[must_use]
    pub fn on_init_failure(&self) -> OnInitFailure {
        match self {
            Self::NotFound { .. } | Self::Unreadable { .. } => OnInitFailure::default(),
            Self::Syntax { on_init_failure, .. } | Self::Invalid { on_init_failure, .. } => {
                *on_init_failure
            }
        }
    }
}

/// A place where the file is not TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Line, from 1.
    pub line: usize,
    /// What the parser says.
    pub message: String,
}

/// A key that is wrong or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, from 1; `None` for a key that is not in the file.
    pub line: Option<usize>,
    /// The key.
    pub key: String,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no such key.
    Unknown {
        /// A known name that is spelt alike.
        nearest: Option<&'static str>,
    },
    /// Its value has the wrong type, is out of range, or contradicts another key.
    Value {
        /// What the file says.
        found: String,
        /// What it may say.
        allowed: String,
    },
    /// It must be given.
    Missing {
        /// What to write.
        allowed: String,
    },
}

/// A setting that is understood but has no effect here, or another one than in Gazelle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Line, from 1.
    pub line: usize,
    /// The key.
    pub key: &'static str,
    /// What happens, and what to write instead.
    pub text: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: syntax: {}", self.line, self.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "{line}: ")?;
        } else {
            f.write_str(" ")?;
        }
        let key = &self.key;
        match &self.fault {
            Fault::Unknown { nearest: Some(nearest) } => {
                write!(f, "{key}: unknown key, did you mean {nearest}?")
            }
            Fault::Unknown { nearest: None } => write!(f, "{key}: unknown key"),
            Fault::Value { found, allowed } => {
                write!(f, "{key}: found {found}, allowed is {allowed}")
            }
            Fault::Missing { allowed } => write!(f, "{key}: missing, needed is {allowed}"),
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: {}", self.line, self.key, self.text)
    }
}

fn join(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    shown.join(", ")
}

/// One line per entry, each starting with the file.
fn lines(path: &Path, entries: &[impl fmt::Display]) -> String {
    let mut shown: Vec<String> = entries
        .iter()
        .take(SHOWN_ENTRIES)
        .map(|entry| format!("{}:{entry}", path.display()))
        .collect();
    if entries.len() > SHOWN_ENTRIES {
        shown.push(format!("{}: and {} more", path.display(), entries.len() - SHOWN_ENTRIES));
    }
    shown.join("\n")
}
