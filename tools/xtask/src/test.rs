//! `cargo xtask test`: everything that must hold before a change goes in, cheapest first.

use std::io::{BufRead, BufReader};
use std::process::{self, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{setup, step};

/// Which part to run.
#[derive(Args, Debug)]
pub struct Options {
    /// `all`; `lint` (format, clippy, documentation); `unit` (every crate without a rig); `rigs`
    /// (real programs in namespaces); or one test file of the rigs, such as `netperf`.
    #[arg(default_value = "all")]
    part: String,
    /// Only tests whose name contains this.
    #[arg(default_value = "")]
    name: String,
}

/// Runs the steps of the chosen part, and ends with a line that counts the tests.
pub fn run(options: &Options) -> Result<()> {
    let rigs = !matches!(options.part.as_str(), "lint" | "unit");
    if rigs {
        step::need_root("the rigs make network namespaces")?;
    }
    if !setup::missing().is_empty() {
        setup::run()?;
    }
    let mut tally = Tally::default();
    for step in steps(options)? {
        let is_build = step.name == BUILD;
        let succeeded = tally.run(step)?;
        if is_build && !succeeded {
            break;
        }
    }
    for name in &tally.broken {
        println!("failed: {name}");
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    // The line above is the last one: an error value would be printed below it.
    process::exit(i32::from(tally.failed > 0));
}

/// One step: a name and a command.
struct Step {
    name: &'static str,
    command: Command,
}

fn steps(options: &Options) -> Result<Vec<Step>> {
    let name = options.name.as_str();
    Ok(match options.part.as_str() {
        "all" => {
            let mut steps = lint();
            steps.extend([build(), unit(name), rigs(None, name)]);
            steps
        }
        "lint" => lint(),
        "unit" => vec![unit(name)],
        "rigs" => vec![build(), rigs(None, name)],
        file => {
            let path = format!("tests/tests/{file}.rs");
            if !workspace()?.join(&path).is_file() {
                bail!("there is no part {file:?}: all, lint, unit, rigs, or a file of tests/tests");
            }
            vec![build(), rigs(Some(file), name)]
        }
    })
}

fn lint() -> Vec<Step> {
    let mut documentation = step::cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    let clippy = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    vec![
        Step { name: "format", command: step::cargo(&["fmt", "--all", "--check"]) },
        Step { name: "clippy", command: step::cargo(&clippy) },
        Step { name: "documentation", command: documentation },
    ]
}

fn build() -> Step {
    Step { name: BUILD, command: step::release_build() }
}

fn unit(name: &str) -> Step {
    let test = ["test", "--workspace", "--exclude", "lstack-tests", "--no-fail-fast", "--", name];
    Step { name: "unit", command: step::cargo(&test) }
}

/// One at a time: the programs under test share the machine's few CPUs.
fn rigs(file: Option<&str>, name: &str) -> Step {
    let mut arguments = vec!["test", "--package", "lstack-tests", "--no-fail-fast"];
    if let Some(file) = file {
        arguments.extend(["--test", file]);
    }
    arguments.extend(["--", "--test-threads=1", name]);
    Step { name: "rigs", command: step::cargo(&arguments) }
}

/// The folder of the workspace: cargo runs us with ours as the manifest folder.
fn workspace() -> Result<std::path::PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("run this as `cargo xtask`")?;
    let folder = std::path::PathBuf::from(manifest);
    let workspace = folder.ancestors().nth(2).context("xtask lies in tools/ of the workspace")?;
    Ok(workspace.to_owned())
}

/// What the steps have shown so far.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    broken: Vec<String>,
}

impl Tally {
    /// Runs a step, shows its output, counts the tests in it, and says whether it succeeded. A step
    /// that fails without a failed test counts as one.
    fn run(&mut self, mut step: Step) -> Result<bool> {
        let line = step::command_line(&step.command);
        println!("== {}: {line}", step.name);
        let start = Instant::now();
        let mut child = step
            .command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {line}"))?;
        let output = child.stdout.take().context("the output is a pipe")?;
        let failed_before = self.failed;
        for line in BufReader::new(output).lines() {
            let line = line.context("reading the step's output")?;
            println!("{line}");
            self.count(&line);
        }
        let status = child.wait()?;
        if !status.success() && self.failed == failed_before {
            self.failed += 1;
            self.broken.push(format!("step {}", step.name));
        }
        let verdict = if status.success() { "ok" } else { "FAILED" };
        println!("== {}: {verdict}, {:.1} s", step.name, start.elapsed().as_secs_f64());
        Ok(status.success())
    }

    /// Reads the lines by which Rust's test runner reports.
    fn count(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
            self.broken.push(name.to_owned());
        }
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        let number_before = |word: &str| {
            let before = counts.split(word).next()?.split_whitespace().last()?;
            before.parse::<u64>().ok()
        };
        self.passed += number_before(" passed").unwrap_or(0);
        self.failed += number_before(" failed").unwrap_or(0);
    }
}

/// The step without which nothing after it makes sense.
const BUILD: &str = "build";

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn the_runners_lines_are_counted() {
        let mut tally = Tally::default();
        tally.count("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        tally.count("test a::b ... FAILED");
        tally.count("test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured");
        assert_eq!((tally.passed, tally.failed), (15, 1));
        assert_eq!(tally.broken, ["a::b"]);
    }
}
