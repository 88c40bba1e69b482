//! The kernel is the oracle: the same program prints the same on it and on lstack.

use std::time::Duration;

use anyhow::{Result, ensure};
use lstack_tests::rig::{Pairing, Plan};
use lstack_tests::stack_conf::Mode;
use lstack_tests::{build, suite};

/// What the program prints on the client side of such a rig; the server side has no sockets.
fn answers(plan: &Plan) -> Result<String> {
    let rig = plan.build()?;
    let program = build::helper("socket-answers")?;
    let finished = rig
        .client
        .program(&program.to_string_lossy())
        .args([rig.client.address.to_string(), rig.server.address.to_string()])
        .run(LIMIT)?
        .success()?;
    ensure!(finished.errors.is_empty(), "it wrote:\n{}", finished.errors);
    Ok(finished.output)
}

fn answers_as_the_kernel(plan: &Plan) -> Result<()> {
    let _turn = suite::turn();
    let expected = answers(&Plan::new(Pairing::Kernel))?;
    let found = answers(plan)?;
    let differences: Vec<String> = expected
        .lines()
        .zip(found.lines())
        .filter(|(expected, found)| expected != found)
        .map(|(expected, found)| format!("kernel: {expected}\nlstack: {found}"))
        .collect();
    ensure!(differences.is_empty(), "different answers:\n{}", differences.join("\n"));
    ensure!(expected == found, "answers are missing:\n{found}");
    Ok(())
}

#[test]
fn sockets_answer_as_the_kernel_does() -> Result<()> {
    answers_as_the_kernel(&Plan::new(Pairing::StackClient))
}

#[test]
fn sockets_answer_as_the_kernel_does_when_woken_by_a_driver() -> Result<()> {
    answers_as_the_kernel(&Plan::new(Pairing::StackClient).mode(Mode::RunToWakeup))
}

#[test]
fn sockets_of_several_stacks_answer_as_the_kernel_does() -> Result<()> {
    answers_as_the_kernel(&Plan::new(Pairing::StackClient).cpus("0,1"))
}

/// A neighbour that does not exist takes Linux three seconds to give up on.
const LIMIT: Duration = Duration::from_secs(60);
