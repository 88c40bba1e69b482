//! Programs in rigs: started, waited for with a limit, ended by number.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::build;
use crate::rig::{Rig, Side};
use crate::stats::Stats;
use crate::wait;

/// A program about to be started on one side of a rig.
#[derive(Debug)]
pub struct Launch<'rig> {
    side: &'rig Side,
    name: String,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    preload: bool,
    conf: Conf,
}

/// Where the configuration of a preloaded program comes from.
#[derive(Debug)]
enum Conf {
    /// What the rig says.
    OfTheRig,
    /// This text.
    Text(String),
    /// This file, which need not exist.
    At(PathBuf),
}

impl<'rig> Launch<'rig> {
    pub(crate) fn new(side: &'rig Side, name: &str) -> Self {
        Self {
            side,
            name: name.to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            preload: side.stack.is_some(),
            conf: Conf::OfTheRig,
        }
    }

    /// Appends arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets a variable of the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Without the library, whatever the side.
    #[must_use]
    pub fn without_library(mut self) -> Self {
        self.preload = false;
        self
    }

    /// With this text as configuration instead of the rig's.
    #[must_use]
    pub fn conf_text(mut self, text: &str) -> Self {
        self.conf = Conf::Text(text.to_owned());
        self
    }

    /// With this file as configuration, whether or not it exists.
    #[must_use]
    pub fn conf_at(mut self, path: &Path) -> Self {
        self.conf = Conf::At(path.to_owned());
        self
    }

    /// Starts the program.
    ///
    /// # Errors
    ///
    /// When it cannot be started, or the library is not there to preload.
    pub fn start(self) -> Result<Running> {
        let stem = self.side.next_file_stem(&self.name);
        let output = stem.with_extension("out");
        let errors = stem.with_extension("err");
        let mut command = Command::new(&self.name);
        command
            .args(&self.arguments)
            // What a program of ours says of a failure is for a reader of test results.
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .stdout(File::create(&output).context("making a file for the output")?)
            .stderr(File::create(&errors).context("making a file for the errors")?);
        let stats = stem.with_extension("stats.json");
        if self.preload {
            self.side.tidy();
            let conf = self.write_conf(&stem.with_extension("conf"))?;
            command
                .env("LD_PRELOAD", build::library()?)
                .env("LSTACK_CONF_PATH", conf)
                .env("LSTACK_STATS_FILE", &stats);
        }
        command.envs(self.environment);
        let child = self.side.namespace.spawn(&mut command)?;
        Ok(Running { child, name: self.name, output, errors, stats, preloaded: self.preload })
    }

    /// Starts the program and waits for its end.
    ///
    /// # Errors
    ///
    /// When it cannot be started or takes longer than `limit`. A bad exit status is no error here.
    pub fn run(self, limit: Duration) -> Result<Finished> {
        self.start()?.wait(limit)
    }

    fn write_conf(&self, path: &Path) -> Result<PathBuf> {
        let text = match &self.conf {
            Conf::At(elsewhere) => return Ok(elsewhere.clone()),
            Conf::Text(text) => text.clone(),
            Conf::OfTheRig => match &self.side.stack {
                Some(conf) => conf.text(),
                None => bail!("the {} side of this rig is on the kernel", self.side.name),
            },
        };
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path.to_owned())
    }
}

/// A program that runs. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    output: PathBuf,
    errors: PathBuf,
    stats: PathBuf,
    preloaded: bool,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub output: String,
    /// What it wrote to standard error.
    pub errors: String,
    stats_file: PathBuf,
    name: String,
}

impl Running {
    /// The program's process number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What the program has written to standard output so far.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn output(&self) -> Result<String> {
        read_text(&self.output)
    }

    /// What the program has written to standard error so far.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn errors(&self) -> Result<String> {
        read_text(&self.errors)
    }

    /// The counters lstack has now: asks for them and waits for the answer.
    ///
    /// # Errors
    ///
    /// When no answer comes.
    pub fn stats(&mut self) -> Result<Stats> {
        let mut request = self.stats.clone().into_os_string();
        request.push(".request");
        let request = PathBuf::from(request);
        File::create(&request).with_context(|| format!("making {}", request.display()))?;
        let what = format!("{} to write its counters", self.name);
        wait::until(&what, STATS_LIMIT, || {
            self.must_run()?;
            Ok((!request.exists()).then_some(()))
        })?;
        Stats::read(&self.stats)
    }

    /// Waits for a text in the output.
    ///
    /// # Errors
    ///
    /// When the program ends first, or `limit` passes.
    pub fn wait_for_output(&mut self, text: &str, limit: Duration) -> Result<()> {
        let what = format!("{} to write {text:?}", self.name);
        wait::until(&what, limit, || {
            if self.output()?.contains(text) {
                return Ok(Some(()));
            }
            self.must_run().map(|()| None)
        })
    }

    /// Waits until the program, started on the server side, accepts TCP connections on `port`.
    ///
    /// On the kernel the listener is looked up; on lstack a client connects and hangs up.
    ///
    /// # Errors
    ///
    /// When the program ends first, or `limit` passes.
    pub fn wait_until_listening(&mut self, rig: &Rig, port: u16, limit: Duration) -> Result<()> {
        let address = SocketAddr::from((rig.server.address, port));
        let what = format!("{} to listen on {address}", self.name);
        if rig.server.stack.is_none() {
            return wait::until(&what, limit, || {
                self.must_run()?;
                Ok(kernel_listens(&rig.server, port)?.then_some(()))
            });
        }
        if rig.client.stack.is_none() {
            return wait::until(&what, limit, || {
                self.must_run()?;
                let attempt = rig
                    .client
                    .namespace
                    .enter(|| Ok(TcpStream::connect_timeout(&address, CONNECT_LIMIT).is_ok()))?;
                Ok(attempt.then_some(()))
            });
        }
        let seconds = limit.as_secs().to_string();
        rig.client
            .peer(&["probe", &address.to_string(), &seconds])?
            .run(limit + PROCESS_LIMIT)?
            .success()
            .with_context(|| format!("waiting for {what}"))?;
        self.must_run()
    }

    /// Fails when the program has ended.
    ///
    /// # Errors
    ///
    /// With its status and what it wrote.
    pub fn must_run(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!(
                "{} has ended early, {status}; it wrote:\n{}{}",
                self.name,
                self.output()?,
                self.errors()?
            ),
        }
    }

    /// What a reader needs who looks into a failure: what the program wrote, and lstack's counters.
    pub fn evidence(&mut self) -> String {
        let written = format!(
            "{} wrote:\n{}{}",
            self.name,
            self.output().unwrap_or_default(),
            self.errors().unwrap_or_default()
        );
        if !self.preloaded {
            return written;
        }
        match self.stats() {
            Ok(stats) => format!("{written}counters:\n{}", stats.summary()),
            Err(error) => format!("{written}{error:#}"),
        }
    }

    /// Sends a signal.
    ///
    /// # Errors
    ///
    /// When the program has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = i32::try_from(self.child.id()).context("process numbers fit")?;
        signal::kill(Pid::from_raw(id), signal)
            .with_context(|| format!("sending {signal} to {}", self.name))
    }

    /// Waits for the program's end.
    ///
    /// # Errors
    ///
    /// When `limit` passes; the program is killed then.
    pub fn wait(mut self, limit: Duration) -> Result<Finished> {
        let what = format!("the end of {}", self.name);
        let status =
            wait::until(&what, limit, || Ok(self.child.try_wait()?)).with_context(|| {
                format!(
                    "so far it wrote:\n{}{}",
                    self.output().unwrap_or_default(),
                    self.errors().unwrap_or_default()
                )
            })?;
        Ok(Finished {
            status,
            output: self.output()?,
            errors: self.errors()?,
            stats_file: self.stats.clone(),
            name: self.name.clone(),
        })
    }

    /// Asks the program to end (SIGTERM) and waits for it.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub fn terminate(self) -> Result<Finished> {
        self.signal(Signal::SIGTERM)?;
        self.wait(PROCESS_LIMIT)
    }

    /// Ends the program at once (SIGKILL) and waits for it.
    ///
    /// # Errors
    ///
    /// When it had ended by itself.
    pub fn kill(mut self) -> Result<Finished> {
        self.must_run()?;
        self.signal(Signal::SIGKILL)?;
        self.wait(PROCESS_LIMIT)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has already ended, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Itself, if the program ended with status 0.
    ///
    /// # Errors
    ///
    /// With the status and what the program wrote.
    pub fn success(self) -> Result<Self> {
        if self.status.success() {
            return Ok(self);
        }
        let how = self
            .status
            .signal()
            .map_or_else(|| self.status.to_string(), |number| format!("killed by signal {number}"));
        bail!("{} failed, {how}; it wrote:\n{}{}", self.name, self.output, self.errors)
    }

    /// Whether lstack wrote counters: it does when it has run.
    #[must_use]
    pub fn has_stats(&self) -> bool {
        self.stats_file.exists()
    }

    /// The counters lstack wrote when the program ended.
    ///
    /// # Errors
    ///
    /// When it wrote none.
    pub fn stats(&self) -> Result<Stats> {
        Stats::read(&self.stats_file)
    }
}

fn kernel_listens(side: &Side, port: u16) -> Result<bool> {
    // Columns: slot, local address:port, remote address:port, state; 0A is LISTEN.
    let port = format!(":{port:04X}");
    let table = side.namespace.enter(|| {
        fs::read_to_string("/proc/thread-self/net/tcp").context("reading the kernel's sockets")
    })?;
    Ok(table.lines().any(|line| {
        let mut columns = line.split_whitespace();
        columns.nth(1).is_some_and(|local| local.ends_with(&port))
            && columns.nth(1).is_some_and(|state| state == "0A")
    }))
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// For a stack to write its counters, also while it is busy.
const STATS_LIMIT: Duration = Duration::from_secs(3);

/// For one attempt to connect inside a rig, where a round trip takes microseconds.
const CONNECT_LIMIT: Duration = Duration::from_millis(200);

/// For a program that has nothing left to do but end; generous for a busy machine.
const PROCESS_LIMIT: Duration = Duration::from_secs(10);
