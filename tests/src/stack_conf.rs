//! The `lstack.conf` a rig writes for each program that runs on lstack.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

/// Who drives the stack (`stack_thread_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The program's own threads, inside their socket calls.
    RunToCompletion,
    /// A driver thread.
    RunToWakeup,
}

impl Mode {
    /// Both modes, for tests that must pass in either.
    pub const ALL: [Self; 2] = [Self::RunToCompletion, Self::RunToWakeup];

    /// The word of the configuration file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::RunToCompletion => "run-to-completion",
            Self::RunToWakeup => "run-to-wakeup",
        }
    }
}

/// One configuration file, as it will be written.
#[derive(Clone, Debug)]
pub struct StackConf {
    /// The virtual device, as EAL's `--vdev` takes it.
    pub device: String,
    /// `host_addr`.
    pub address: Ipv4Addr,
    /// `stack_thread_mode`.
    pub mode: Mode,
    /// `num_cpus`; one stack per entry.
    pub cpus: Option<String>,
    /// Further lines: a key, and its value as TOML.
    pub more: Vec<(String, String)>,
}

impl StackConf {
    /// The text of the file.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "dpdk_args = [\"--no-huge\", \"--no-pci\", \"--vdev={}\"]\n\
             host_addr = \"{}\"\n\
             mask_addr = \"255.255.255.0\"\n\
             stack_thread_mode = \"{}\"\n",
            self.device,
            self.address,
            self.mode.word(),
        );
        if let Some(cpus) = &self.cpus {
            writeln!(text, "num_cpus = \"{cpus}\"").expect("writing to a string succeeds");
        }
        for (key, value) in &self.more {
            writeln!(text, "{key} = {value}").expect("writing to a string succeeds");
        }
        text
    }
}
