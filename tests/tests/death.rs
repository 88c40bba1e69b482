//! One end is killed in mid-transfer: the other sees what Linux would show, and serves the next.

use std::time::Duration;

use anyhow::{Result, ensure};
use lstack_tests::program::Running;
use lstack_tests::rig::{Pairing, Plan, Rig};
use lstack_tests::{suite, wait};

/// A killed process' connections end with it when the kernel owns them. A stack dies with its
/// process, as a machine that loses power: the other end hears nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Seen,
    Silent,
}

/// The client is killed; the server must serve the next one.
fn server_survives_its_client(pairing: Pairing, ending: Ending) -> Result<()> {
    let _turn = suite::turn();
    let rig = Plan::new(pairing).build()?;
    let count = if ending == Ending::Seen { "2" } else { "1" };
    let mut server = rig.server.peer(&["sink", &rig.server.at(PORT), count])?.start()?;
    server.wait_for_output("listening", LIMIT)?;

    let client = rig.client.peer(&["source", &rig.server.at(PORT)])?.start()?;
    server.wait_for_output("first bytes\n", LIMIT)?;
    client.kill()?;
    if ending == Ending::Seen {
        server.wait_for_output(" after ", LIMIT)?;
    }

    rig.client.peer(&["send", &rig.server.at(PORT), BYTES, "1", "1"])?.run(LIMIT)?.success()?;
    let finished = server.wait(LIMIT)?.success()?;
    let served = finished.output.contains(&format!("end after {BYTES}\n"));
    ensure!(served, "the next client was not served:\n{}", finished.output);
    Ok(())
}

#[test]
fn kernel_server_survives_a_kernel_client() -> Result<()> {
    server_survives_its_client(Pairing::Kernel, Ending::Seen)
}

#[test]
fn stack_server_survives_a_kernel_client() -> Result<()> {
    server_survives_its_client(Pairing::StackServer, Ending::Seen)
}

#[test]
fn kernel_server_survives_a_stack_client() -> Result<()> {
    server_survives_its_client(Pairing::StackClient, Ending::Silent)
}

#[test]
fn stack_server_survives_a_stack_client() -> Result<()> {
    server_survives_its_client(Pairing::BothStack, Ending::Silent)
}

/// Shared memory goes away with its owner while the server may be reading it.
#[test]
fn stack_server_survives_many_stack_clients() -> Result<()> {
    let _turn = suite::turn();
    let rig = Plan::new(Pairing::BothStack).build()?;
    let mut server = rig.server.peer(&["sink", &rig.server.at(PORT), "1"])?.start()?;
    server.wait_for_output("listening", LIMIT)?;
    for round in 1..=suite::repeat(5) as usize {
        let client = rig.client.peer(&["source", &rig.server.at(PORT)])?.start()?;
        wait::until("the next client's data", LIMIT, || {
            server.must_run()?;
            Ok((server.output()?.matches("first bytes").count() == round).then_some(()))
        })?;
        client.kill()?;
    }
    rig.client.peer(&["send", &rig.server.at(PORT), BYTES, "1", "1"])?.run(LIMIT)?.success()?;
    server.wait(LIMIT)?.success()?;
    Ok(())
}

/// The server is killed and started again; the client's next segment finds a stranger.
fn client_sees_a_reset_by_the_next_server(pairing: Pairing) -> Result<()> {
    let _turn = suite::turn();
    let rig = Plan::new(pairing).build()?;
    let (server, client) = start_transfer(&rig)?;
    server.kill()?;
    let mut next = rig.server.peer(&["sink", &rig.server.at(PORT), "1"])?.start()?;
    next.wait_for_output("listening", LIMIT)?;
    let ended = client.wait(LIMIT)?.success()?;
    ensure!(["reset\n", "broken-pipe\n"].contains(&ended.output.as_str()), "{}", ended.output);

    rig.client.peer(&["send", &rig.server.at(PORT), BYTES, "1", "1"])?.run(LIMIT)?.success()?;
    next.wait(LIMIT)?.success()?;
    Ok(())
}

#[test]
fn kernel_client_sees_a_killed_kernel_server_reset() -> Result<()> {
    client_sees_a_reset_by_the_next_server(Pairing::Kernel)
}

#[test]
fn kernel_client_sees_a_restarted_stack_server_reset() -> Result<()> {
    client_sees_a_reset_by_the_next_server(Pairing::StackServer)
}

#[test]
fn stack_client_sees_a_killed_kernel_server_reset() -> Result<()> {
    client_sees_a_reset_by_the_next_server(Pairing::StackClient)
}

/// Nobody answers any more: the client gives up by itself.
#[test]
fn kernel_client_of_a_killed_stack_server_times_out() -> Result<()> {
    let _turn = suite::turn();
    let rig = Plan::new(Pairing::StackServer).build()?;
    // Otherwise the kernel tries for a quarter of an hour.
    rig.client.namespace.sysctl("ipv4/tcp_retries2", "3")?;
    let (server, client) = start_transfer(&rig)?;
    server.kill()?;
    let ended = client.wait(LIMIT)?.success()?;
    // Which of the two depends on whether the neighbour entry expires first.
    ensure!(["timed-out\n", "unreachable\n"].contains(&ended.output.as_str()), "{}", ended.output);
    Ok(())
}

/// What a dead client's connections held comes back.
#[test]
fn connections_of_dead_clients_leave_nothing_behind() -> Result<()> {
    let _turn = suite::turn();
    let rig = Plan::new(Pairing::StackServer).build()?;
    let mut server = rig.server.peer(&["sink", &rig.server.at(PORT), "1000"])?.start()?;
    server.wait_for_output("listening", LIMIT)?;
    let before = server.stats()?.sockets();
    for round in 1..=suite::repeat(3) as usize {
        let client = rig.client.peer(&["source", &rig.server.at(PORT)])?.start()?;
        wait::until("the next connection's data", LIMIT, || {
            Ok((server.output()?.matches("first bytes").count() == round).then_some(()))
        })?;
        client.kill()?;
        wait::until("the next connection's end", LIMIT, || {
            Ok((server.output()?.matches(" after ").count() == round).then_some(()))
        })?;
    }
    wait::until("the sockets of dead clients to go", LIMIT, || {
        Ok((server.stats()?.sockets() == before).then_some(()))
    })
}

/// A server that drains and a client that sends, with data under way.
fn start_transfer(rig: &Rig) -> Result<(Running, Running)> {
    let mut server = rig.server.peer(&["sink", &rig.server.at(PORT), "1"])?.start()?;
    server.wait_for_output("listening", LIMIT)?;
    let client = rig.client.peer(&["source", &rig.server.at(PORT)])?.start()?;
    server.wait_for_output("first bytes", LIMIT)?;
    Ok((server, client))
}

const PORT: u16 = 7000;

/// What the next client sends.
const BYTES: &str = "1000000";

/// For anything here, including a few retransmission timeouts.
const LIMIT: Duration = Duration::from_secs(30);
