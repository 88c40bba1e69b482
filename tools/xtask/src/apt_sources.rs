//! Debian's package sources: netperf lives in the component `non-free`.
//!
//! Only entries that are there already are changed, and only those of the release itself; no host
//! is ever added.

/// The text of a `.sources` file with `non-free` in every entry of `release` that has `main`.
/// `None`: nothing to change.
pub fn with_non_free_in_stanzas(text: &str, release: &str) -> Option<String> {
    let mut changed = false;
    let stanzas: Vec<String> = text
        .split("\n\n")
        .map(|stanza| {
            let of_release = field(stanza, "Suites").any(|suite| suite == release);
            let components: Vec<&str> = field(stanza, "Components").collect();
            if !of_release || !components.contains(&"main") || components.contains(&"non-free") {
                return stanza.to_owned();
            }
            changed = true;
            let lines = stanza.lines().map(|line| {
                if line.starts_with("Components:") {
                    format!("{} non-free", line.trim_end())
                } else {
                    line.to_owned()
                }
            });
            lines.collect::<Vec<_>>().join("\n")
        })
        .collect();
    let end = if text.ends_with('\n') && !text.ends_with("\n\n") { "\n" } else { "" };
    changed.then(|| format!("{}{end}", stanzas.join("\n\n").trim_end_matches('\n')))
}

/// The same for a file of one-line entries: `deb [options] address suite component...`.
pub fn with_non_free_in_lines(text: &str, release: &str) -> Option<String> {
    let mut changed = false;
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            let entry = line.split('#').next().unwrap_or_default();
            let mut words = entry.split_whitespace();
            let kind = words.next();
            // Options in brackets may hold spaces.
            let rest: Vec<&str> = match entry.split_once(']') {
                Some((_, rest)) => rest.split_whitespace().collect(),
                None => words.collect(),
            };
            let of_release = kind == Some("deb") && rest.get(1) == Some(&release);
            let components = rest.get(2..).unwrap_or_default();
            if !of_release || !components.contains(&"main") || components.contains(&"non-free") {
                return line.to_owned();
            }
            changed = true;
            format!("{} non-free", entry.trim_end())
        })
        .collect();
    changed.then(|| lines.join("\n") + "\n")
}

fn field<'text>(stanza: &'text str, name: &str) -> impl Iterator<Item = &'text str> {
    let value = stanza
        .lines()
        .find_map(|line| line.strip_prefix(name).and_then(|rest| rest.strip_prefix(':')));
    value.unwrap_or_default().split_whitespace()
}

#[cfg(test)]
mod tests {
    use super::{with_non_free_in_lines, with_non_free_in_stanzas};

    const STANZAS: &str = "Types: deb\n# a comment\nURIs: http://mirror.invalid/debian\n\
        Suites: bookworm bookworm-updates\nComponents: main\n\n\
        Types: deb\nURIs: http://mirror.invalid/security\nSuites: bookworm-security\n\
        Components: main\n";

    #[test]
    fn only_the_entry_of_the_release_gets_the_component() {
        let text = with_non_free_in_stanzas(STANZAS, "bookworm").unwrap();
        assert_eq!(text.matches("non-free").count(), 1);
        assert!(text.contains("bookworm-updates\nComponents: main non-free\n\nTypes"));
        assert_eq!(text.replace(" non-free", ""), STANZAS);
    }

    #[test]
    fn a_second_change_is_not_needed() {
        let text = with_non_free_in_stanzas(STANZAS, "bookworm").unwrap();
        assert_eq!(with_non_free_in_stanzas(&text, "bookworm"), None);
    }

    #[test]
    fn other_peoples_entries_stay_as_they_are() {
        let other = "deb https://mirror.invalid/apt cloud-sdk-bookworm main\n";
        assert_eq!(with_non_free_in_lines(other, "bookworm"), None);
    }

    #[test]
    fn one_line_entries_are_extended_also_behind_options() {
        let text = "deb [arch=amd64 trusted=no] http://mirror.invalid/debian trixie main\n";
        assert_eq!(
            with_non_free_in_lines(text, "trixie").unwrap(),
            "deb [arch=amd64 trusted=no] http://mirror.invalid/debian trixie main non-free\n"
        );
    }
}
