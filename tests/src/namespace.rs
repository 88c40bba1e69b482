//! Anonymous network namespaces.
//!
//! A namespace has no name under `/run/netns`: only our file descriptor and the processes inside
//! hold it. It therefore disappears, with its links, when they do.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{self, Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns, unshare};

use crate::lifeline::Lifeline;

/// A network namespace that only this process and the programs it starts inside hold.
#[derive(Debug)]
pub struct Namespace {
    handle: File,
    lifeline: &'static Lifeline,
}

impl Namespace {
    /// Makes a namespace whose loopback link is up.
    ///
    /// # Errors
    ///
    /// When we are not root.
    pub fn new() -> Result<Self> {
        let lifeline = Lifeline::of_this_process()?;
        let handle = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
            File::open("/proc/thread-self/ns/net").context("opening the new network namespace")
        })?;
        let namespace = Self { handle, lifeline };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Runs `work` on a thread inside the namespace: sockets it opens belong there.
    ///
    /// # Errors
    ///
    /// When the namespace cannot be entered, or `work` fails.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_a_thread(|| {
            setns(&self.handle, CloneFlags::CLONE_NEWNET)
                .context("entering a network namespace")?;
            work()
        })
    }

    /// Starts a program inside. It dies with us.
    ///
    /// # Errors
    ///
    /// When the program cannot be started.
    pub fn spawn(&self, command: &mut Command) -> Result<Child> {
        let name = command.get_program().to_string_lossy().into_owned();
        // A group of its own: Ctrl-C ends us, and the lifeline then ends the program.
        command.process_group(0);
        self.enter(|| {
            self.lifeline.adopt_children_of_this_thread()?;
            command.spawn().with_context(|| format!("starting {name}"))
        })
    }

    /// A path by which other programs of ours can name the namespace.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", process::id(), self.handle.as_raw_fd())
    }

    /// Runs `ip` inside.
    ///
    /// # Errors
    ///
    /// With what `ip` wrote, when it fails.
    pub fn ip(&self, arguments: &[&str]) -> Result<()> {
        self.tool("ip", arguments)
    }

    /// Runs a set-up tool inside and waits for it.
    ///
    /// # Errors
    ///
    /// With what the tool wrote, when it fails.
    pub fn tool(&self, name: &str, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(name);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = self
            .spawn(&mut command)?
            .wait_with_output()
            .with_context(|| format!("waiting for {name}"))?;
        if !output.status.success() {
            bail!(
                "{name} {}: {}{}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stdout).trim(),
                String::from_utf8_lossy(&output.stderr).trim(),
            );
        }
        Ok(())
    }

    /// Writes a setting below `/proc/sys/net`, which every namespace has its own of.
    ///
    /// # Errors
    ///
    /// When there is no such setting.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        self.enter(|| {
            let path = format!("/proc/sys/net/{name}");
            fs::write(&path, value).with_context(|| format!("writing {value} to {path}"))
        })
    }
}

/// Runs `work` on a thread of its own, so that a changed namespace ends with it.
fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
