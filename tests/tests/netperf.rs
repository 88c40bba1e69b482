//! Unmodified netperf and netserver: every test, in every pairing, in both modes, with several
//! stacks. The kernel runs the same lines, so that a failure here is lstack's.

use anyhow::{Context, Result};
use lstack_tests::netperf::Test;
use lstack_tests::rig::{Pairing, Plan, Wire};
use lstack_tests::stack_conf::Mode;
use lstack_tests::suite;

/// Runs each test a number of times in a fresh rig.
fn run(plan: &Plan, tests: &[Test]) -> Result<()> {
    let _turn = suite::turn();
    let seconds = suite::seconds(1);
    for test in tests {
        let rig = plan.build()?;
        for round in 1..=suite::repeat(1) {
            let report = test
                .run(&rig, seconds)
                .with_context(|| format!("{}, round {round}, {plan:?}", test.title()))?;
            println!("{:?} {:?} {}: {report:?}", plan.pairing, plan.mode, test.title());
        }
    }
    Ok(())
}

#[test]
fn every_test_runs_on_the_kernel() -> Result<()> {
    run(&Plan::new(Pairing::Kernel), &Test::ALL)
}

#[test]
fn every_test_runs_with_a_stack_server() -> Result<()> {
    run(&Plan::new(Pairing::StackServer), &Test::ALL)
}

#[test]
fn every_test_runs_with_a_stack_client() -> Result<()> {
    run(&Plan::new(Pairing::StackClient), &Test::ALL)
}

#[test]
fn every_test_runs_between_stacks() -> Result<()> {
    run(&Plan::new(Pairing::BothStack), &Test::ALL)
}

#[test]
fn every_test_runs_with_a_stack_server_woken_by_its_driver() -> Result<()> {
    run(&Plan::new(Pairing::StackServer).mode(Mode::RunToWakeup), &Test::ALL)
}

#[test]
fn every_test_runs_with_a_stack_client_woken_by_its_driver() -> Result<()> {
    run(&Plan::new(Pairing::StackClient).mode(Mode::RunToWakeup), &Test::ALL)
}

#[test]
fn every_test_runs_between_stacks_woken_by_their_drivers() -> Result<()> {
    run(&Plan::new(Pairing::BothStack).mode(Mode::RunToWakeup), &Test::ALL)
}

#[test]
fn every_test_runs_with_two_stacks_in_the_server() -> Result<()> {
    run(&Plan::new(Pairing::StackServer).cpus("0,1"), &Test::ALL)
}

#[test]
fn every_test_runs_with_two_stacks_in_the_client() -> Result<()> {
    run(&Plan::new(Pairing::StackClient).cpus("0,1"), &Test::ALL)
}

#[test]
fn every_test_runs_between_programs_of_two_stacks() -> Result<()> {
    run(&Plan::new(Pairing::BothStack).cpus("0,1"), &Test::ALL)
}

#[test]
fn the_four_tests_run_with_two_stacks_woken_by_their_drivers() -> Result<()> {
    for pairing in Pairing::WITH_STACK {
        run(&Plan::new(pairing).mode(Mode::RunToWakeup).cpus("0,1"), &Test::FOUR)?;
    }
    Ok(())
}

#[test]
fn the_four_tests_run_over_a_tap() -> Result<()> {
    run(&Plan::new(Pairing::StackServer).wire(Wire::Tap), &Test::FOUR)
}

#[test]
fn the_four_tests_run_over_af_xdp() -> Result<()> {
    run(&Plan::new(Pairing::StackServer).wire(Wire::AfXdp), &Test::FOUR)
}

#[test]
fn the_four_tests_run_with_an_mtu_of_9000() -> Result<()> {
    run(&Plan::new(Pairing::StackServer).mtu(9000), &Test::FOUR)
}
