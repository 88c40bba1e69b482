//! What a rig leaves behind: nothing, even when this process is killed.
//!
//! All programs of all rigs of this process live in one process-id namespace. Its first process is
//! a small shell that reads from a pipe whose other end only we hold. When we end, however we end,
//! the shell reads end-of-file, kills every process of the namespace and removes the working
//! folder; when the shell ends, the operating system kills whatever is left. Network namespaces,
//! being anonymous, go away with the last process and file descriptor that hold them, and so do
//! the virtual links in them.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::Uid;

/// The process-id namespace of all rigs of this process, and their working folder.
#[derive(Debug)]
pub struct Lifeline {
    folder: PathBuf,
    processes: File,
    _keeper: Child,
    _pipe: ChildStdin,
}

impl Lifeline {
    /// The one lifeline of this process, made at the first call.
    ///
    /// # Errors
    ///
    /// When we are not root, or the machine has no process-id namespaces.
    pub fn of_this_process() -> Result<&'static Self> {
        static LIFELINE: OnceLock<Result<Lifeline, String>> = OnceLock::new();
        LIFELINE
            .get_or_init(|| Self::new().map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|message| anyhow!("{message}"))
    }

    /// A folder for configurations, output and sockets; removed when this process ends.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the calling thread's future children members of the namespace.
    ///
    /// The thread can start no threads afterwards, so it should exist for one spawn only.
    ///
    /// # Errors
    ///
    /// When the namespace cannot be entered.
    pub fn adopt_children_of_this_thread(&self) -> Result<()> {
        setns(&self.processes, CloneFlags::CLONE_NEWPID)
            .context("entering the rigs' process-id namespace")
    }

    fn new() -> Result<Self> {
        if !Uid::effective().is_root() {
            bail!("rigs live in network namespaces, which only root can make: run this as root");
        }
        let folder = std::env::temp_dir().join(format!("lstack-rig-{}", process::id()));
        if folder.exists() {
            // Another process had our number before and was cut off by a crash of the machine.
            fs::remove_dir_all(&folder)
                .with_context(|| format!("removing {}", folder.display()))?;
        }
        fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;

        // A thread of its own: from here on its children are born in the new namespace, and the
        // first of them becomes its init.
        let keeper = thread::scope(|scope| {
            scope.spawn(|| Self::start_keeper(&folder)).join().expect("start_keeper never panics")
        });
        let mut keeper = keeper?;
        let pipe = keeper.stdin.take().context("the keeper has no pipe")?;
        let processes = File::open(format!("/proc/{}/ns/pid", keeper.id()))
            .context("opening the keeper's process-id namespace")?;
        Ok(Self { folder, processes, _keeper: keeper, _pipe: pipe })
    }

    fn start_keeper(folder: &Path) -> Result<Child> {
        unshare(CloneFlags::CLONE_NEWPID).context("making a process-id namespace")?;
        Command::new("/bin/sh")
            .args(["-c", KEEPER, "lstack-rig-keeper"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C reaches the foreground group; the keeper has work to do after it.
            .process_group(0)
            .spawn()
            .context("starting the keeper of the rigs' process-id namespace")
    }
}

/// Reads until our end of the pipe is closed, then clears up.
const KEEPER: &str = r#"read -r line; kill -9 -1; rm -rf "$1""#;
