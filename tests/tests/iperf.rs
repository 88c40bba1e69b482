//! Unmodified iperf and iperf3, in every pairing.

use anyhow::{Context, Result};
use lstack_tests::iperf::Version;
use lstack_tests::rig::{Pairing, Plan};
use lstack_tests::stack_conf::Mode;
use lstack_tests::suite;

/// What both versions understand.
const BOTH: &[&[&str]] = &[&[], &["-R"], &["-P", "4"], &["-u", "-b", "100M"]];

/// iperf3 alone reports both directions of one run.
const THREE_ONLY: &[&[&str]] = &[&["--bidir"], &["-u", "-b", "100M", "-R"]];

fn run(version: Version, plan: &Plan) -> Result<()> {
    let _turn = suite::turn();
    let seconds = suite::seconds(1);
    let mut all = BOTH.to_vec();
    if version == Version::Three {
        all.extend(THREE_ONLY);
    }
    for options in all {
        let rig = plan.build()?;
        for round in 1..=suite::repeat(1) {
            let report = version
                .run(&rig, options, seconds)
                .with_context(|| format!("{options:?}, round {round}, {plan:?}"))?;
            println!("{:?} {version:?} {options:?}: {report:?}", plan.pairing);
        }
    }
    Ok(())
}

#[test]
fn iperf_runs_on_the_kernel() -> Result<()> {
    run(Version::Two, &Plan::new(Pairing::Kernel))
}

#[test]
fn iperf3_runs_on_the_kernel() -> Result<()> {
    run(Version::Three, &Plan::new(Pairing::Kernel))
}

#[test]
fn iperf_runs_with_a_stack_server() -> Result<()> {
    run(Version::Two, &Plan::new(Pairing::StackServer))
}

#[test]
fn iperf_runs_with_a_stack_client() -> Result<()> {
    run(Version::Two, &Plan::new(Pairing::StackClient))
}

#[test]
fn iperf_runs_between_stacks() -> Result<()> {
    run(Version::Two, &Plan::new(Pairing::BothStack))
}

#[test]
fn iperf3_runs_with_a_stack_server() -> Result<()> {
    run(Version::Three, &Plan::new(Pairing::StackServer))
}

#[test]
fn iperf3_runs_with_a_stack_client() -> Result<()> {
    run(Version::Three, &Plan::new(Pairing::StackClient))
}

#[test]
fn iperf3_runs_between_stacks() -> Result<()> {
    run(Version::Three, &Plan::new(Pairing::BothStack))
}

#[test]
fn both_versions_run_between_stacks_woken_by_their_drivers() -> Result<()> {
    for version in [Version::Two, Version::Three] {
        run(version, &Plan::new(Pairing::BothStack).mode(Mode::RunToWakeup))?;
    }
    Ok(())
}
