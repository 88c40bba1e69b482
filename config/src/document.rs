//! The texts made from the table of keys: the sample `lstack.conf` and the reference page.
//!
//! `cargo run -p lstack-config --example regenerate` writes them; a test compares.

use std::fmt::Write as _;

use crate::key::{Default, Group, Key, Rule};
use crate::keys::KEYS;

/// Width of the prose in the sample file.
const LINE_CHARS: usize = 80;

/// Each line is a paragraph.
const SAMPLE_INTRODUCTION: &str = "\
lstack.conf: every key, with what it means, what it may be, and what holds without it. A line \
starting with \"#\" and a key shows the default, or an example where there is none; remove the \
\"#\" and change the value.

The file is looked for as $LSTACK_CONF_PATH, /etc/lstack.conf, /etc/gazelle/lstack.conf. It is \
TOML; the syntax of libconfig, in which files for Gazelle are written, is understood too.

As it stands it uses a TAP interface, lstack0, which needs no huge pages and no network card. Make \
it first, as root, so that this machine has its address there before a program starts:

ip tuntap add dev lstack0 mode tap multi_queue
ip address add 198.18.0.1/24 dev lstack0
ip link set lstack0 up

A program that runs on the stack is then 198.18.0.10 for this machine.";

const PAGE_INTRODUCTION: &str = "\
# Configuration

<!-- Made from the table of keys in config/src/keys.rs by
     `cargo run -p lstack-config --example regenerate`. Do not edit. -->

The file is looked for as `$LSTACK_CONF_PATH`, `/etc/lstack.conf`, `/etc/gazelle/lstack.conf`; the
first that exists is used. It is TOML: lines of `key = value`. Files written for Gazelle, in the
syntax of libconfig, are read as they are (see [decision 6](decisions/0006-config-dialect.md)).
[`config/lstack.conf`](../config/lstack.conf) is a complete file to start from.

Every problem of a file is reported at once, with file, line, key, what was found and what is
allowed. A key that is understood but has no effect here is named in one notice, with what to write
instead. Nothing is ignored silently. With a problem in the file the program runs on the kernel's
sockets.

Variables of the environment:

| Variable | Meaning |
|---|---|
| `LSTACK_CONF_PATH` | The file. |
| `LSTACK_BIND_PROCNAME`, `GAZELLE_BIND_PROCNAME` | Only the process whose executable has this name uses the stack. |
| `GAZELLE_THREAD_NAME` | Only threads with this text in their name use the stack. |
| `LSTACK_STATS_FILE` | Comes before `stats_file`. |
";

/// The sample file, `config/lstack.conf`.
#[must_use]
pub fn sample_file() -> String {
    let mut file = String::new();
    for paragraph in SAMPLE_INTRODUCTION.lines() {
        comment(&mut file, paragraph);
    }
    for group in Group::ALL {
        file.push_str("\n\n");
        comment(&mut file, &format!("[ {group} ]"));
        for key in keys_of(group) {
            file.push('\n');
            sample_entry(&mut file, key);
        }
    }
    file
}

fn sample_entry(file: &mut String, key: &Key) {
    comment(file, &sentence(key.about));
    match key.rule {
        Rule::Retired(_) => {}
        Rule::Fixed { same, .. } => {
            let same: Vec<String> = same.iter().map(ToString::to_string).collect();
            comment(
                file,
                &format!("Allowed: {}; without notice: {}.", key.rule.allowed(), same.join(", ")),
            );
        }
        _ => comment(file, &format!("Allowed: {}.", key.rule.allowed())),
    }
    let name = key.name;
    // Writing to a string cannot fail.
    let _ = match key.default {
        Default::Value(value) => writeln!(file, "#{name} = {value}"),
        Default::Absent { meaning: "", example } => writeln!(file, "#{name} = {example}"),
        Default::Absent { meaning, example } => {
            comment(file, &format!("Without it: {meaning}. Example:"));
            writeln!(file, "#{name} = {example}")
        }
        Default::Required(value) => writeln!(file, "{name} = {value}"),
    };
}

/// Writes `text` as comment lines of at most [`LINE_CHARS`].
fn comment(file: &mut String, text: &str) {
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.len() > 1 && line.len() + 1 + word.len() > LINE_CHARS {
            file.push_str(&line);
            file.push('\n');
            line.truncate(1);
        }
        line.push(' ');
        line.push_str(word);
    }
    file.push_str(&line);
    file.push('\n');
}

/// The reference page, `docs/configuration.md`.
#[must_use]
pub fn reference_page() -> String {
    let mut page = String::from(PAGE_INTRODUCTION);
    for group in Group::ALL {
        let _ = write!(page, "\n## {group}\n\n");
        if group == Group::Compatibility {
            page.push_str(
                "Accepted so that files for Gazelle need no change. A value other than those that \
                 ask for\nwhat happens anyway is named in the notice.\n\n\
                 | Key | No notice for | What happens |\n|---|---|---|\n",
            );
        } else {
            page.push_str("| Key | Default | Allowed | Meaning |\n|---|---|---|---|\n");
        }
        for key in keys_of(group) {
            page_row(&mut page, key);
        }
    }
    page
}

fn page_row(page: &mut String, key: &Key) {
    let name = key.name;
    let about = cell(&sentence(key.about));
    let _ = match key.rule {
        Rule::Fixed { same, .. } => {
            let same: Vec<String> = same.iter().map(|value| format!("`{value}`")).collect();
            writeln!(page, "| `{name}` | {} | {about} |", same.join(", "))
        }
        Rule::Retired(_) => writeln!(page, "| `{name}` | - | {about} |"),
        _ => {
            let default = match key.default {
                Default::Value(value) => format!("`{value}`"),
                Default::Absent { meaning, .. } => meaning.to_owned(),
                Default::Required(_) => "must be given".to_owned(),
            };
            let allowed = cell(&key.rule.allowed());
            writeln!(page, "| `{name}` | {} | {allowed} | {about} |", cell(&default))
        }
    };
}

fn keys_of(group: Group) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.group == group)
}

/// With a capital letter and a full stop: notices are written without.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    let stop = if text.ends_with(['.', ')']) { "" } else { "." };
    format!("{first}{}{stop}", chars.as_str())
}

/// Safe inside a cell of a table: no column mark, and nothing that looks like HTML.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('>', "&gt;")
}
