//! `lstack.conf`: where it is, what it may say, and what it means.
//!
//! One table, [`KEYS`], names every key with its type, range, default and meaning. The parser, the
//! sample file and the reference page are all made from it, so they cannot disagree.
//!
//! The steps: [`load()`] finds the file; `dialect` turns libconfig spellings into TOML; the `toml`
//! crate parses; every key's [`Rule`] checks its value and writes it into a [`Config`]; `check`
//! compares keys with one another. All problems of a file are reported together, each with its
//! line. Called once per process, on the thread that opens the first internet socket; nothing here
//! logs, starts or changes anything.
#![forbid(unsafe_code)]

mod check;
mod config;
mod dialect;
pub mod document;
mod filter;
mod key;
mod keys;
mod load;
mod problem;
mod value;

pub use config::{Config, Ecn, Ipv4Net, LogLevel, OnInitFailure, StackThreadMode};
pub use filter::Filter;
pub use key::{Default, Group, Key, Rule, Unit, Word};
pub use keys::KEYS;
pub use load::{Environment, Loaded, load, load_file, load_with, parse, process_environment};
pub use problem::{Fault, LoadError, Notice, Problem, SyntaxError};
