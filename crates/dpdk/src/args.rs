//! The words DPDK is started with.
//!
//! Pure functions from what the configuration says to what [`crate::Eal::init`] passes on.

use std::fmt;

/// Words for DPDK: the caller's, and what was missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    words: Vec<String>,
    notices: Vec<Notice>,
}

/// A word of the caller that was not passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The word.
    pub word: String,
    /// Why.
    pub reason: &'static str,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dpdk_args: {} is ignored: {}", self.word, self.reason)
    }
}

impl Arguments {
    /// Completes the caller's words.
    ///
    /// `memory_megabytes` is what the pools will need; it counts when the caller says nothing
    /// about memory, or asks for no huge pages without a size. `cpus` are the CPUs the caller may
    /// run on.
    #[must_use]
    pub fn complete(given: &[String], memory_megabytes: u64, cpus: &[usize], pid: u32) -> Self {
        let (mut words, notices) = drop_unsupported(given);
        let has = |names: &[&str]| given.iter().any(|word| is_one_of(word, names));
        let mut add = |word: &str| words.push(word.to_owned());

        if !has(&["-l", "-c", "--lcores", "-s", "-S"]) {
            add(&lcores(cpus));
        }
        if !has(MEMORY) {
            add("--no-huge");
            add(&format!("-m{memory_megabytes}"));
        } else if has(&["--no-huge"]) && !has(&["-m"]) {
            add(&format!("-m{memory_megabytes}"));
        }
        if !has(&["--no-shconf", "--in-memory"]) {
            add("--no-shconf");
        }
        if !has(&["--file-prefix", "--in-memory"]) {
            add(&format!("--file-prefix=lstack_{pid}"));
        }
        if !has(&["--telemetry", "--no-telemetry"]) {
            add("--no-telemetry");
        }
        // Who names a virtual device does not want the host's cards touched.
        let wants_pci = has(&["-a", "--allow", "-b", "--block", "--no-pci", "-w"]);
        if has(&["--vdev"]) && !wants_pci {
            add("--no-pci");
        }
        Self { words, notices }
    }

    /// The words, without a program name.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// What was dropped.
    #[must_use]
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }
}

fn drop_unsupported(given: &[String]) -> (Vec<String>, Vec<Notice>) {
    let mut words = Vec::new();
    let mut notices = Vec::new();
    let mut skip_value = false;
    for word in given {
        if std::mem::take(&mut skip_value) {
            continue;
        }
        let found = UNSUPPORTED.iter().find(|(name, _, _)| is_one_of(word, &[name]));
        let Some(&(name, value, reason)) = found else {
            words.push(word.clone());
            continue;
        };
        skip_value = value == Value::Follows && word == name;
        notices.push(Notice { word: word.clone(), reason });
    }
    (words, notices)
}

/// Whether `word` is one of the options `names`, alone or with its value attached.
fn is_one_of(word: &str, names: &[&str]) -> bool {
    names.iter().any(|name| match word.strip_prefix(name) {
        Some("") => true,
        Some(rest) => rest.starts_with('=') || !name.starts_with("--"),
        None => false,
    })
}

/// One lcore, the calling thread, that may run wherever the thread may run: being DPDK's main lcore
/// then changes nothing for it.
fn lcores(cpus: &[usize]) -> String {
    let cpus: Vec<_> = cpus.iter().filter(|&&cpu| cpu < LCORES_MAX).map(usize::to_string).collect();
    if cpus.is_empty() {
        "--lcores=0".to_owned()
    } else {
        format!("--lcores=0@({})", cpus.join(","))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    None,
    Follows,
}

/// Options that cannot mean anything here.
const UNSUPPORTED: &[(&str, Value, &str)] = &[
    ("--map-perfect", Value::None, "only openEuler's DPDK has it, and nothing here needs it"),
    ("-d", Value::Follows, "drivers are part of the library, none can be loaded"),
    ("-h", Value::None, "it would end the program"),
    ("--help", Value::None, "it would end the program"),
];

/// Options by which the caller says where memory comes from.
const MEMORY: &[&str] = &[
    "--no-huge",
    "-m",
    "--socket-mem",
    "--huge-dir",
    "--in-memory",
    "--legacy-mem",
    "--single-file-segments",
    "--huge-unlink",
];

/// CPUs above DPDK's limit of lcores cannot be named.
const LCORES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::Arguments;

    fn complete(given: &[&str]) -> Arguments {
        let given: Vec<_> = given.iter().map(|word| (*word).to_owned()).collect();
        Arguments::complete(&given, 48, &[0, 1], 77)
    }

    #[test]
    fn no_words_mean_no_huge_pages_and_no_traces() {
        assert_eq!(
            complete(&[]).words(),
            [
                "--lcores=0@(0,1)",
                "--no-huge",
                "-m48",
                "--no-shconf",
                "--file-prefix=lstack_77",
                "--no-telemetry"
            ]
        );
    }

    #[test]
    fn what_the_caller_says_is_not_said_again() {
        let given = [
            "-l",
            "1",
            "--socket-mem",
            "1024",
            "--no-shconf",
            "--file-prefix=x",
            "--telemetry",
            "--vdev=net_null0",
            "-a0000:00:04.0",
        ];
        assert_eq!(complete(&given).words(), given);
    }

    #[test]
    fn no_huge_pages_without_a_size_get_one() {
        let arguments = complete(&["--no-huge"]);
        assert!(arguments.words().contains(&"-m48".to_owned()));
    }

    #[test]
    fn a_virtual_device_leaves_the_cards_alone() {
        let arguments = complete(&["--vdev", "net_tap0"]);
        assert!(arguments.words().contains(&"--no-pci".to_owned()));
    }

    #[test]
    fn words_of_other_dpdks_are_dropped_and_named() {
        let arguments = complete(&["--map-perfect", "-d", "/usr/lib/x.so", "--legacy-mem"]);
        assert_eq!(arguments.words()[0], "--legacy-mem");
        let dropped: Vec<_> = arguments.notices().iter().map(|n| n.word.as_str()).collect();
        assert_eq!(dropped, ["--map-perfect", "-d"]);
    }

    #[test]
    fn a_word_that_only_begins_alike_is_another_word() {
        let arguments = complete(&["--vdevice"]);
        assert!(!arguments.words().contains(&"--no-pci".to_owned()));
    }
}
