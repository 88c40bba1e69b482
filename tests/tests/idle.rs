//! A stack without traffic leaves the CPU to others.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lstack_tests::netperf;
use lstack_tests::rig::{Pairing, Plan};
use lstack_tests::stack_conf::Mode;
use lstack_tests::suite;

fn idle_server_uses_little(plan: &Plan) -> Result<()> {
    let _turn = suite::turn();
    let rig = plan.build()?;
    let server = netperf::start_server(&rig)?;
    let before = ticks(server.id())?;
    // Not a wait for something to happen: this is the time over which is measured.
    thread::sleep(MEASURED);
    let used = ticks(server.id())? - before;
    println!("{:?} {:?}: {used} ticks in {MEASURED:?}", plan.pairing, plan.mode);
    ensure!(used <= ALLOWED_TICKS, "an idle server used {used} ticks in {MEASURED:?}");
    Ok(())
}

#[test]
fn idle_stack_sleeps() -> Result<()> {
    idle_server_uses_little(&Plan::new(Pairing::StackServer))
}

#[test]
fn idle_stack_sleeps_on_memif() -> Result<()> {
    idle_server_uses_little(&Plan::new(Pairing::BothStack))
}

#[test]
fn idle_stack_sleeps_when_woken_by_its_driver() -> Result<()> {
    idle_server_uses_little(&Plan::new(Pairing::StackServer).mode(Mode::RunToWakeup))
}

/// Processor time a process has used, in ticks of a hundredth of a second.
fn ticks(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    // The name, in brackets, may contain anything; user and system time are fields 14 and 15.
    let (_, fields) = text.rsplit_once(')').context("a process has a name")?;
    fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().with_context(|| format!("{field:?} in {path}")))
        .sum()
}

const MEASURED: Duration = Duration::from_secs(3);

/// A tenth of a core: ten times the aim, for busy machines, and a tenth of what spinning takes.
const ALLOWED_TICKS: u64 = 30;
