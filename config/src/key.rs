//! What a key is: name, rule, default, meaning.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use toml::de::DeValue;

use crate::config::{Config, Ipv4Net};
use crate::value::{self, Wrong};

/// A key of `lstack.conf`.
#[derive(Debug)]
pub struct Key {
    /// As written in the file.
    pub name: &'static str,
    /// Heading under which documents list it.
    pub group: Group,
    /// Its type, its range, and where its value goes.
    pub rule: Rule,
    /// What holds when the key is absent.
    pub default: Default,
    /// What it does, for the reader of the sample file.
    pub about: &'static str,
}

/// What holds when a key is absent. Values are spelt as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// The same as this value.
    Value(&'static str),
    /// What `meaning` says; `example` shows what could be written.
    Absent {
        /// What the absence of the key means.
        meaning: &'static str,
        /// A value, spelt as in the file.
        example: &'static str,
    },
    /// The key must be there; the sample file has this value.
    Required(&'static str),
}

/// Headings of the documents, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// The network port.
    Device,
    /// Addresses of the stack and the choice between stack and kernel.
    Addresses,
    /// Who drives the stack, and how it waits.
    Threads,
    /// Sizes and limits of connections.
    Connections,
    /// Start, exit, log and insight.
    Operation,
    /// Keys of Gazelle that have one fixed meaning here.
    Compatibility,
}

impl Group {
    /// All of them, in order.
    pub const ALL: [Self; 6] = [
        Self::Device,
        Self::Addresses,
        Self::Threads,
        Self::Connections,
        Self::Operation,
        Self::Compatibility,
    ];
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "Device",
            Self::Addresses => "Addresses and path choice",
            Self::Threads => "Threads and waiting",
            Self::Connections => "Connections and memory",
            Self::Operation => "Start, exit, log and insight",
            Self::Compatibility => "Keys of Gazelle with a fixed meaning",
        })
    }
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nothing to say: the key's name does.
    None,
    /// Bytes.
    Bytes,
    /// Microseconds.
    Microseconds,
    /// Milliseconds.
    Milliseconds,
    /// Descriptors of a device queue, a power of two.
    Descriptors,
    /// Frames.
    Frames,
    /// Connections.
    Connections,
}

impl Unit {
    /// After the number, with the space before it.
    fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Bytes => " (bytes)",
            Self::Microseconds => " (microseconds)",
            Self::Milliseconds => " (milliseconds)",
            Self::Descriptors => " (descriptors), a power of two",
            Self::Frames => " (frames)",
            Self::Connections => " (connections)",
        }
    }
}

/// A word that a key takes, and its setter.
pub type Word = (&'static str, fn(&mut Config));

/// The type and range of a key's value, and what it does to the configuration.
///
/// Each variant carries the setter for its own type, so a key cannot be given a value that its
/// setter does not expect.
#[derive(Debug)]
pub enum Rule {
    /// 0 or 1.
    Switch(fn(&mut Config, bool)),
    /// An integer.
    Integer {
        /// Smallest value allowed.
        min: i64,
        /// Largest value allowed.
        max: i64,
        /// What it counts.
        unit: Unit,
        /// Writes it; `min..=max` fits the field.
        set: fn(&mut Config, i64),
    },
    /// One of some words.
    Choice(&'static [Word]),
    /// Words for DPDK.
    Arguments(fn(&mut Config, Vec<String>)),
    /// An IPv4 address of a host; `0.0.0.0` is none.
    Ipv4(fn(&mut Config, Option<Ipv4Addr>)),
    /// An IPv4 netmask, given to the setter as a prefix length.
    Mask(fn(&mut Config, u8)),
    /// An IPv6 address of a host.
    Ipv6(fn(&mut Config, Ipv6Addr)),
    /// A hardware address.
    Mac(fn(&mut Config, [u8; 6])),
    /// A list of CPUs.
    Cpus(fn(&mut Config, Vec<u32>)),
    /// A list of address ranges.
    Networks(fn(&mut Config, Vec<Ipv4Net>)),
    /// A file.
    File(fn(&mut Config, PathBuf)),
    /// An integer that is understood, but only some values ask for what happens anyway; the others
    /// get a notice.
    Fixed {
        /// Smallest value allowed.
        min: i64,
        /// Largest value allowed.
        max: i64,
        /// The values that ask for what happens anyway.
        same: &'static [i64],
        /// For the others: what happens, and what to write instead.
        instead: &'static str,
    },
    /// Anything; gets a notice that says what happens, and what to write instead.
    Retired(&'static str),
}

impl Rule {
    /// Checks `value` and writes it into `config`; gives the text of a notice if one is due.
    pub(crate) fn apply(
        &self,
        value: &DeValue<'_>,
        config: &mut Config,
    ) -> Result<Option<&'static str>, Wrong> {
        match self {
            Self::Switch(set) => set(config, value::switch(value)?),
            Self::Integer { min, max, unit, set } => {
                let number = value::integer(value, *min, *max)?;
                if *unit == Unit::Descriptors {
                    value::check_power_of_two(number)?;
                }
                set(config, number);
            }
            Self::Choice(words) => {
                let word = value::text(value)?;
                let (_, set) = words
                    .iter()
                    .find(|(name, _)| *name == word)
                    .ok_or_else(|| value::wrong_value(value))?;
                set(config);
            }
            Self::Arguments(set) => set(config, value::arguments(value)?),
            Self::Ipv4(set) => set(config, value::ipv4_host(value)?),
            Self::Mask(set) => set(config, value::mask(value)?),
            Self::Ipv6(set) => set(config, value::ipv6_host(value)?),
            Self::Mac(set) => set(config, value::mac(value)?),
            Self::Cpus(set) => set(config, value::cpus(value)?),
            Self::Networks(set) => set(config, value::networks(value)?),
            Self::File(set) => set(config, value::file(value)?),
            Self::Fixed { min, max, same, instead } => {
                let number = value::integer(value, *min, *max)?;
                return Ok((!same.contains(&number)).then_some(instead));
            }
            Self::Retired(instead) => return Ok(Some(instead)),
        }
        Ok(None)
    }

    /// The values allowed, in words.
    #[must_use]
    pub fn allowed(&self) -> String {
        match self {
            Self::Switch(_) => "0 or 1 (also false or true)".to_owned(),
            Self::Integer { min, max, unit, .. } => {
                format!("an integer from {min} to {max}{}", unit.suffix())
            }
            Self::Choice(words) => {
                let quoted: Vec<String> =
                    words.iter().map(|(name, _)| format!("\"{name}\"")).collect();
                format!("one of {}", quoted.join(", "))
            }
            Self::Arguments(_) => {
                format!("an array of 1 to {} strings, none of them empty", value::MAX_ARGUMENTS)
            }
            Self::Ipv4(_) => {
                "the IPv4 address of a host as a string, four decimal numbers with dots".to_owned()
            }
            Self::Mask(_) => {
                "an IPv4 netmask as a string, its one bits first, such as \"255.255.255.0\""
                    .to_owned()
            }
            Self::Ipv6(_) => "the IPv6 address of a host as a string".to_owned(),
            Self::Mac(_) => {
                "a unicast hardware address as a string, such as \"02:00:00:00:00:01\"".to_owned()
            }
            Self::Cpus(_) => format!(
                "a string of 1 to {} different CPU numbers and ranges from 0 to {}, decimal or \
                 hexadecimal, such as \"2,4-6\"",
                value::MAX_STACKS,
                value::MAX_CPU
            ),
            Self::Networks(_) => format!(
                "an array of at most {} IPv4 ranges or addresses as strings, such as \
                 [\"10.0.0.0/8\", \"192.0.2.1\"]",
                value::MAX_NETWORKS
            ),
            Self::File(_) => "the path of a file as a string".to_owned(),
            Self::Fixed { min, max, .. } => format!("an integer from {min} to {max}"),
            Self::Retired(_) => "anything".to_owned(),
        }
    }
}
