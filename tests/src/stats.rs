//! What a stack says of itself: the file named by `LSTACK_STATS_FILE`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// The counters and sockets of one process.
#[derive(Clone, Debug)]
pub struct Stats {
    root: Value,
}

impl Stats {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it is missing or no JSON.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("no counters were written to {}", path.display()))?;
        let root = serde_json::from_str(&text)
            .with_context(|| format!("{} is not JSON", path.display()))?;
        Ok(Self { root })
    }

    /// The sum of a counter over all stacks of the process; absent counters are zero.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        sum(&self.root, &|key| key == name)
    }

    /// The sum of all counters of frames, packets and segments that went no further.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        sum(&self.root, &|key| key.contains("_drop_"))
    }

    /// How many sockets there are.
    #[must_use]
    pub fn sockets(&self) -> usize {
        count_sockets(&self.root, &|_| true)
    }

    /// How many of the sockets listen. A stack of a process has a listener of its own.
    #[must_use]
    pub fn listening(&self) -> usize {
        count_sockets(&self.root, &|socket| socket["state"] == "listening")
    }

    /// All counters that are not zero, for a reader who looks into a failure.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut lines = Vec::new();
        list_numbers(&self.root, "", &mut lines);
        lines.join("\n")
    }
}

fn sum(value: &Value, wanted: &dyn Fn(&str) -> bool) -> u64 {
    match value {
        Value::Object(members) => members
            .iter()
            .map(|(key, member)| match member.as_u64() {
                Some(number) if wanted(key) => number,
                Some(_) => 0,
                None => sum(member, wanted),
            })
            .sum(),
        Value::Array(members) => members.iter().map(|member| sum(member, wanted)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn list_numbers(value: &Value, path: &str, lines: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                list_numbers(member, &format!("{path} {key}"), lines);
            }
        }
        Value::Array(members) => {
            for (index, member) in members.iter().enumerate() {
                list_numbers(member, &format!("{path} {index}"), lines);
            }
        }
        Value::Number(number) if number.as_u64() != Some(0) => {
            lines.push(format!("   {path}: {number}"));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn count_sockets(value: &Value, wanted: &dyn Fn(&Value) -> bool) -> usize {
    match value {
        Value::Object(members) => members
            .iter()
            .map(|(key, member)| match member {
                Value::Array(sockets) if key == "sockets" => {
                    sockets.iter().filter(|socket| wanted(socket)).count()
                }
                _ => count_sockets(member, wanted),
            })
            .sum(),
        Value::Array(members) => members.iter().map(|member| count_sockets(member, wanted)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Stats;

    #[test]
    fn counters_of_all_stacks_are_added() {
        let root = json!({"stacks": [
            {"counters": {"frames_rx": 2, "rx_drop_a": 1}},
            {"counters": {"frames_rx": 3, "rx_drop_b": 4}},
        ]});
        let stats = Stats { root };
        assert_eq!(stats.counter("frames_rx"), 5);
        assert_eq!(stats.dropped(), 5);
        assert_eq!(stats.counter("absent"), 0);
    }
}
