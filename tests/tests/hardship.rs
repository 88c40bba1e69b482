//! Links that lose, double, delay, reorder, damage and cut off: every byte arrives, in both
//! directions, whichever end is on lstack.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lstack_tests::middle::{Middle, Relay, Toward, Trouble};
use lstack_tests::program::Running;
use lstack_tests::rig::{Pairing, Plan, Rig};
use lstack_tests::stack_conf::Mode;
use lstack_tests::{suite, wait};

/// Four transfers at once from the client, then four from the server; all complete.
fn transfers_both_ways(rig: &Rig, bytes: &str) -> Result<()> {
    let address = rig.server.at(PORT);
    let mut server = rig.server.peer(&["receive", &address, bytes, SEED, COUNT])?.start()?;
    server.wait_for_output("listening", LIMIT)?;
    rig.client.peer(&["send", &address, bytes, SEED, COUNT])?.run(LIMIT)?.success()?;
    all_complete(&server_output(server).context("client to server")?)?;

    let mut server = rig.server.peer(&["give", &address, bytes, SEED, COUNT])?.start()?;
    server.wait_for_output("listening", LIMIT)?;
    let client = rig.client.peer(&["take", &address, bytes, SEED, COUNT])?.run(LIMIT)?.success()?;
    all_complete(&client.output).context("server to client")?;
    server_output(server)?;
    Ok(())
}

fn server_output(server: Running) -> Result<String> {
    Ok(server.wait(LIMIT)?.success()?.output)
}

fn all_complete(output: &str) -> Result<()> {
    let complete = output.lines().filter(|line| *line == "complete").count();
    ensure!(complete.to_string() == COUNT, "{complete} of {COUNT}:\n{output}");
    Ok(())
}

/// On both kinds of ends; the trouble is the same in both directions.
fn survives(trouble: Trouble) -> Result<()> {
    let _turn = suite::turn();
    for plan in plans() {
        let rig = plan.middle(Middle::Relay).build()?;
        let relay = relay(&rig)?;
        for toward in Toward::BOTH {
            relay.set(toward, trouble);
        }
        for _ in 0..suite::repeat(1) {
            transfers_both_ways(&rig, BYTES)?;
        }
        for toward in Toward::BOTH {
            ensure!(relay.troubled(toward) > 10, "there was no trouble toward the {toward:?}");
        }
    }
    Ok(())
}

fn plans() -> [Plan; 4] {
    let two = |pairing| Plan::new(pairing).mode(Mode::RunToWakeup);
    [
        Plan::new(Pairing::StackServer),
        Plan::new(Pairing::StackClient),
        two(Pairing::StackServer),
        two(Pairing::StackClient),
    ]
}

fn relay(rig: &Rig) -> Result<&Relay> {
    rig.relay.as_ref().context("the plan has a relay")
}

#[test]
fn one_percent_lost() -> Result<()> {
    survives(Trouble { lost: 10, ..Trouble::default() })
}

#[test]
fn ten_percent_lost() -> Result<()> {
    survives(Trouble { lost: 100, ..Trouble::default() })
}

#[test]
fn a_quarter_out_of_order() -> Result<()> {
    survives(Trouble { late: 250, ..Trouble::default() })
}

#[test]
fn five_percent_doubled() -> Result<()> {
    survives(Trouble { doubled: 50, ..Trouble::default() })
}

#[test]
fn one_in_a_hundred_damaged() -> Result<()> {
    survives(Trouble { corrupted: 10, ..Trouble::default() })
}

#[test]
fn everything_at_once() -> Result<()> {
    survives(Trouble { lost: 10, doubled: 20, late: 100, corrupted: 5, black_out: false })
}

/// Loss in one direction only: of data, or of acknowledgements.
#[test]
fn a_router_that_drops_in_one_direction() -> Result<()> {
    let _turn = suite::turn();
    for pairing in [Pairing::StackServer, Pairing::StackClient] {
        for toward in Toward::BOTH {
            let rig = Plan::new(pairing).middle(Middle::Router).build()?;
            rig.router.as_ref().context("the plan has a router")?.lose(toward, 0.05)?;
            transfers_both_ways(&rig, BYTES)
                .with_context(|| format!("{pairing:?}, loss toward the {toward:?}"))?;
        }
    }
    Ok(())
}

/// Full segments of the stack vanish, and no router says why.
#[test]
fn a_path_that_swallows_large_packets() -> Result<()> {
    let _turn = suite::turn();
    for (pairing, toward) in
        [(Pairing::StackServer, Toward::Client), (Pairing::StackClient, Toward::Server)]
    {
        let rig = Plan::new(pairing).middle(Middle::Router).build()?;
        rig.router.as_ref().context("the plan has a router")?.swallow_longer(toward, 1_300)?;
        let address = rig.server.at(PORT);
        let (serve, ask) = match toward {
            Toward::Server => ("receive", "send"),
            Toward::Client => ("give", "take"),
        };
        let mut server = rig.server.peer(&[serve, &address, BYTES, SEED, "1"])?.start()?;
        server.wait_for_output("listening", LIMIT)?;
        let client = rig.client.peer(&[ask, &address, BYTES, SEED, "1"])?.run(LIMIT)?.success()?;
        let output = server_output(server)? + &client.output;
        ensure!(output.contains("complete\n"), "{pairing:?}: {output}");
    }
    Ok(())
}

/// Nothing comes through for a while, in the middle of a transfer.
#[test]
fn a_black_out_is_survived() -> Result<()> {
    let _turn = suite::turn();
    let dark = Duration::from_secs(suite::seconds(3).into());
    for pairing in [Pairing::StackServer, Pairing::StackClient] {
        let rig = Plan::new(pairing).middle(Middle::Relay).build()?;
        let relay = relay(&rig)?;
        let address = rig.server.at(PORT);
        let mut server = rig.server.peer(&["receive", &address, LONG, SEED, "1"])?.start()?;
        server.wait_for_output("listening", LIMIT)?;
        let client = rig.client.peer(&["send", &address, LONG, SEED, "1"])?.start()?;
        let under_way = relay.frames(Toward::Server) + 1_000;
        wait::until("the transfer to be under way", LIMIT, || {
            Ok((relay.frames(Toward::Server) > under_way).then_some(()))
        })?;
        set_both(relay, Trouble { black_out: true, ..Trouble::default() });
        // The length of the black-out is what is tested; nothing is waited for.
        std::thread::sleep(dark);
        set_both(relay, Trouble::default());
        client.wait(LIMIT)?.success()?;
        let output = server_output(server)?;
        ensure!(output.contains("\ncomplete\n"), "{pairing:?}: {output}");
    }
    Ok(())
}

/// A receiver that does not read for a while, and loses window updates when it does.
#[test]
fn a_window_that_stays_closed_is_survived() -> Result<()> {
    let _turn = suite::turn();
    let pause = suite::seconds(3).to_string();
    for pairing in [Pairing::StackServer, Pairing::StackClient] {
        let rig = Plan::new(pairing).middle(Middle::Relay).build()?;
        let relay = relay(&rig)?;
        let address = rig.server.at(PORT);
        let mut server = rig.server.peer(&["pause", &address, LONG, SEED, &pause])?.start()?;
        server.wait_for_output("listening", LIMIT)?;
        let client = rig.client.peer(&["send", &address, LONG, SEED, "1"])?.start()?;
        server.wait_for_output("accepted", LIMIT)?;
        relay.set(Toward::Client, Trouble { lost: 300, ..Trouble::default() });
        client.wait(LIMIT)?.success()?;
        let output = server_output(server)?;
        ensure!(output.ends_with("complete\n"), "{pairing:?}: {output}");
    }
    Ok(())
}

fn set_both(relay: &Relay, trouble: Trouble) {
    for toward in Toward::BOTH {
        relay.set(toward, trouble);
    }
}

const PORT: u16 = 4_242;
const SEED: &str = "7";
const COUNT: &str = "4";

/// Of each transfer: enough for some thousand segments.
const BYTES: &str = "2000000";

/// More than all buffers on the way hold.
const LONG: &str = "60000000";

/// For four transfers through a relay at a loss of ten percent, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
