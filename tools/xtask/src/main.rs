//! Developer commands: `cargo xtask setup`, `demo`, `test`, `bench`.
//!
//! Nothing here is part of the product. All network traffic stays inside the namespaces of
//! `lstack-tests`' rigs, which end with this process however it ends.

#![forbid(unsafe_code)]

mod apt_sources;
mod bench;
mod crowd;
mod demo;
mod loss;
mod pairings;
mod setup;
mod step;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands of lstack.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Installs the Debian packages that building and testing need; does nothing when all are there.
    Setup,
    /// Runs netperf on the kernel and on lstack, and prints one table. Needs root.
    Demo,
    /// Checks and tests everything, or the part named. Needs root for the rigs.
    Test(test::Options),
    /// Compares lstack with the kernel: medians of interleaved runs. Needs root.
    Bench(bench::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Setup => setup::run(),
        Command::Demo => demo::run(),
        Command::Test(options) => test::run(&options),
        Command::Bench(options) => bench::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In one line: a backtrace of ours would tell a user nothing.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
