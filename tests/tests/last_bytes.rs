//! A program that writes, closes and exits at once loses nothing.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lstack_tests::rig::{Pairing, Plan};
use lstack_tests::suite;

/// The client sends and exits; the server checks.
fn client_exits_at_once(pairing: Pairing) -> Result<()> {
    let _turn = suite::turn();
    let rig = Plan::new(pairing).build()?;
    let rounds = suite::repeat(5);
    let mut server = rig
        .server
        .peer(&["receive", &rig.server.at(PORT), BYTES, SEED, &rounds.to_string()])?
        .start()?;
    server.wait_for_output("listening", LIMIT)?;
    for round in 1..=rounds {
        rig.client
            .peer(&["send", &rig.server.at(PORT), BYTES, SEED, "1"])?
            .run(LIMIT)?
            .success()
            .with_context(|| format!("round {round}"))?;
    }
    let finished = server.wait(LIMIT)?.success()?;
    let complete = finished.output.lines().filter(|line| *line == "complete").count();
    ensure!(complete == rounds as usize, "{complete} of {rounds}:\n{}", finished.output);
    Ok(())
}

/// The server sends and exits; the client checks.
fn server_exits_at_once(pairing: Pairing) -> Result<()> {
    let _turn = suite::turn();
    let rig = Plan::new(pairing).build()?;
    for round in 1..=suite::repeat(5) {
        let mut server =
            rig.server.peer(&["give", &rig.server.at(PORT), BYTES, SEED, "1"])?.start()?;
        server.wait_for_output("listening", LIMIT)?;
        let client = rig
            .client
            .peer(&["take", &rig.server.at(PORT), BYTES, SEED, "1"])?
            .run(LIMIT)?
            .success()
            .with_context(|| format!("round {round}"))?;
        ensure!(client.output.starts_with("complete\n"), "round {round}: {}", client.output);
        server.wait(LIMIT)?.success()?;
    }
    Ok(())
}

#[test]
fn kernel_client_that_exits_at_once_loses_nothing() -> Result<()> {
    client_exits_at_once(Pairing::Kernel)
}

#[test]
fn stack_client_that_exits_at_once_loses_nothing_to_a_kernel_server() -> Result<()> {
    client_exits_at_once(Pairing::StackClient)
}

#[test]
fn stack_client_that_exits_at_once_loses_nothing_to_a_stack_server() -> Result<()> {
    client_exits_at_once(Pairing::BothStack)
}

#[test]
fn kernel_server_that_exits_at_once_loses_nothing() -> Result<()> {
    server_exits_at_once(Pairing::Kernel)
}

#[test]
fn stack_server_that_exits_at_once_loses_nothing_to_a_kernel_client() -> Result<()> {
    server_exits_at_once(Pairing::StackServer)
}

#[test]
fn stack_server_that_exits_at_once_loses_nothing_to_a_stack_client() -> Result<()> {
    server_exits_at_once(Pairing::BothStack)
}

/// Ten megabytes: more than both socket buffers together.
const BYTES: &str = "10000000";

const PORT: u16 = 7000;

const SEED: &str = "1";

/// For ten megabytes on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
