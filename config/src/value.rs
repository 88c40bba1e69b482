//! From a TOML value to a checked Rust value, one function per type.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use toml::de::DeValue;

use crate::config::Ipv4Net;

/// Most words in `dpdk_args`; far above what any port needs, far below what a stack frame of DPDK's
/// argument copies would mind.
pub(crate) const MAX_ARGUMENTS: usize = 128;
/// Most stacks of a process, as in Gazelle.
pub(crate) const MAX_STACKS: usize = 32;
/// Largest CPU number that an affinity mask of the C library holds (`CPU_SETSIZE` - 1).
pub(crate) const MAX_CPU: u32 = 1023;
/// Most ranges in an address list: it is searched linearly at each `connect`.
pub(crate) const MAX_NETWORKS: usize = 256;
/// Longest path that Linux takes (`PATH_MAX` - 1).
const MAX_PATH: usize = 4095;
/// A found value is shown up to here.
const SHOWN_CHARS: usize = 60;

/// A value that its key does not take: what was found, for the message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong(pub(crate) String);

/// The type is right, the value is not.
pub(crate) fn wrong_value(value: &DeValue<'_>) -> Wrong {
    Wrong(show(value))
}

/// The type is not right.
fn wrong_type(value: &DeValue<'_>) -> Wrong {
    Wrong(match value {
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
        DeValue::String(_) => format!("{} (a string)", show(value)),
        DeValue::Integer(_) => format!("{} (an integer)", show(value)),
        DeValue::Float(_) => format!("{} (a float)", show(value)),
        DeValue::Boolean(_) => format!("{} (a boolean)", show(value)),
        DeValue::Datetime(_) => format!("{} (a date or time)", show(value)),
    })
}

/// The type is right, and a part of the value is wrong.
fn wrong_part(value: &DeValue<'_>, why: &str) -> Wrong {
    Wrong(format!("{} ({why})", show(value)))
}

fn show(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{}\"", shorten(text)),
        DeValue::Integer(number) => match number.radix() {
            16 => format!("0x{}", shorten(number.as_str())),
            8 => format!("0o{}", shorten(number.as_str())),
            2 => format!("0b{}", shorten(number.as_str())),
            _ => shorten(number.as_str()),
        },
        DeValue::Float(number) => shorten(number.as_str()),
        DeValue::Boolean(switch) => switch.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(items) => format!("an array of {}", items.len()),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// Control characters escaped, and cut to [`SHOWN_CHARS`].
pub(crate) fn shorten(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        shown.push_str("...");
    }
    shown
}

pub(crate) fn text<'v>(value: &'v DeValue<'_>) -> Result<&'v str, Wrong> {
    value.as_str().ok_or_else(|| wrong_type(value))
}

pub(crate) fn integer(value: &DeValue<'_>, min: i64, max: i64) -> Result<i64, Wrong> {
    let number = value.as_integer().ok_or_else(|| wrong_type(value))?;
    i64::from_str_radix(number.as_str(), number.radix())
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| wrong_value(value))
}

pub(crate) fn check_power_of_two(number: i64) -> Result<(), Wrong> {
    if number.count_ones() == 1 { Ok(()) } else { Err(Wrong(number.to_string())) }
}

pub(crate) fn switch(value: &DeValue<'_>) -> Result<bool, Wrong> {
    match value {
        DeValue::Boolean(switch) => Ok(*switch),
        _ => Ok(integer(value, 0, 1)? == 1),
    }
}

pub(crate) fn arguments(value: &DeValue<'_>) -> Result<Vec<String>, Wrong> {
    let words = strings(value)?;
    if words.is_empty() || words.len() > MAX_ARGUMENTS {
        return Err(wrong_value(value));
    }
    if let Some(index) = words.iter().position(|word| word.trim().is_empty() || word.contains('\0'))
    {
        return Err(wrong_part(value, &format!("element {} is empty or has a NUL", index + 1)));
    }
    Ok(words.into_iter().map(str::to_owned).collect())
}

/// An array of strings.
fn strings<'v>(value: &'v DeValue<'_>) -> Result<Vec<&'v str>, Wrong> {
    let items = value.as_array().ok_or_else(|| wrong_type(value))?;
    items
        .iter()
        .enumerate()
        .map(|(index, item)| {
            text(item.get_ref()).map_err(|Wrong(found)| {
                wrong_part(value, &format!("element {}: {found}", index + 1))
            })
        })
        .collect()
}

/// `None` for 0.0.0.0, which files use for "none".
pub(crate) fn ipv4_host(value: &DeValue<'_>) -> Result<Option<Ipv4Addr>, Wrong> {
    let address: Ipv4Addr = text(value)?.trim().parse().map_err(|_| wrong_value(value))?;
    if address.is_unspecified() {
        return Ok(None);
    }
    // Class E and the limited broadcast address start at 240.
    let [first, ..] = address.octets();
    if first == 0 || first >= 240 {
        Err(wrong_part(value, "not an address of a host"))
    } else if address.is_loopback() {
        Err(wrong_part(value, "a loopback address"))
    } else if address.is_multicast() {
        Err(wrong_part(value, "a multicast address"))
    } else {
        Ok(Some(address))
    }
}

pub(crate) fn ipv6_host(value: &DeValue<'_>) -> Result<Ipv6Addr, Wrong> {
    let address: Ipv6Addr = text(value)?.trim().parse().map_err(|_| wrong_value(value))?;
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
        return Err(wrong_part(value, "not an address of a host"));
    }
    Ok(address)
}

pub(crate) fn mask(value: &DeValue<'_>) -> Result<u8, Wrong> {
    let mask: Ipv4Addr = text(value)?.trim().parse().map_err(|_| wrong_value(value))?;
    let ones = mask.to_bits().leading_ones();
    if mask.to_bits().count_ones() != ones {
        return Err(wrong_part(value, "its one bits are not together"));
    }
    if ones == 0 {
        return Err(wrong_part(value, "has no one bit"));
    }
    u8::try_from(ones).map_err(|_| wrong_value(value))
}

pub(crate) fn mac(value: &DeValue<'_>) -> Result<[u8; 6], Wrong> {
    let text = text(value)?.trim();
    let mut address = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut address {
        let part = parts
            .next()
            // `from_str_radix` alone would take a sign.
            .filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
            .ok_or_else(|| wrong_value(value))?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| wrong_value(value))?;
    }
    if parts.next().is_some() {
        return Err(wrong_value(value));
    }
    if address[0] & 1 == 1 || address == [0; 6] {
        return Err(wrong_part(value, "not a unicast address"));
    }
    Ok(address)
}

pub(crate) fn cpus(value: &DeValue<'_>) -> Result<Vec<u32>, Wrong> {
    let mut seen = BTreeSet::new();
    let mut cpus = Vec::new();
    for part in text(value)?.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range =
            cpu(first).zip(cpu(last)).filter(|(first, last)| first <= last).ok_or_else(|| {
                wrong_part(value, &format!("\"{}\" is no CPU or range", shorten(part.trim())))
            })?;
        for cpu in range.0..=range.1 {
            if !seen.insert(cpu) {
                return Err(wrong_part(value, &format!("CPU {cpu} twice")));
            }
            cpus.push(cpu);
        }
    }
    if cpus.len() > MAX_STACKS {
        return Err(wrong_part(value, &format!("{} CPUs", cpus.len())));
    }
    Ok(cpus)
}

fn cpu(text: &str) -> Option<u32> {
    let text = text.trim();
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hexadecimal) => (hexadecimal, 16),
        None => (text, 10),
    };
    // `from_str_radix` alone would take a sign.
    if digits.starts_with('+') {
        return None;
    }
    u32::from_str_radix(digits, radix).ok().filter(|cpu| *cpu <= MAX_CPU)
}

pub(crate) fn networks(value: &DeValue<'_>) -> Result<Vec<Ipv4Net>, Wrong> {
    let words = strings(value)?;
    if words.len() > MAX_NETWORKS {
        return Err(wrong_value(value));
    }
    words
        .into_iter()
        .map(|word| {
            network(word.trim()).ok_or_else(|| {
                wrong_part(value, &format!("\"{}\" is no address or range", shorten(word)))
            })
        })
        .collect()
}

fn network(text: &str) -> Option<Ipv4Net> {
    let (address, prefix_len) = match text.split_once('/') {
        Some((address, prefix_len)) => {
            // `parse` alone would take a sign.
            let digits = !prefix_len.is_empty() && prefix_len.bytes().all(|b| b.is_ascii_digit());
            (address, prefix_len.parse().ok().filter(|len| digits && *len <= 32)?)
        }
        None => (text, 32),
    };
    Some(Ipv4Net { address: address.parse().ok()?, prefix_len })
}

pub(crate) fn file(value: &DeValue<'_>) -> Result<PathBuf, Wrong> {
    let path = text(value)?;
    if path.is_empty() || path.len() > MAX_PATH || path.contains('\0') || path.ends_with('/') {
        return Err(wrong_value(value));
    }
    Ok(PathBuf::from(path))
}
