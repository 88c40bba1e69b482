//! Steps of a command: cargo and other programs, run with progress and time.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use nix::unistd::Uid;

/// Fails unless we are root; `purpose` says what root is needed for.
pub fn need_root(purpose: &str) -> Result<()> {
    if Uid::effective().is_root() {
        return Ok(());
    }
    bail!("{purpose}, which only root can do: run this command as root");
}

/// The command that builds what the rigs run: the release library and the helper program.
pub fn release_build() -> Command {
    cargo(&["build", "--release", "--package", "liblstack", "--package", "lstack-tests"])
}

/// A cargo command line.
pub fn cargo(arguments: &[&str]) -> Command {
    // Cargo tells its children where it is, so that the same toolchain serves them.
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Runs a program, says that and how long, and fails when it fails.
pub fn run(name: &str, mut command: Command) -> Result<()> {
    let line = command_line(&command);
    println!("== {name}: {line}");
    let start = Instant::now();
    let status = command.status().with_context(|| format!("starting {line}"))?;
    if !status.success() {
        bail!("{name} failed, {status}: {line}");
    }
    println!("== {name}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// A command as a person would type it.
pub fn command_line(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let program = program.rsplit('/').next().unwrap_or(&program);
    let arguments = command.get_args().map(|argument| argument.to_string_lossy());
    std::iter::once(program.into()).chain(arguments).collect::<Vec<_>>().join(" ")
}
