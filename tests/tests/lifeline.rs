//! A killed test leaves nothing behind: no process, no folder.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lstack_tests::rig::{Pairing, Plan};
use lstack_tests::{netperf, wait};

/// In the environment of the process that is going to be killed.
const VICTIM: &str = "LSTACK_TEST_VICTIM";

#[test]
fn a_killed_test_leaves_no_process_and_no_folder() -> Result<()> {
    let mut victim = Command::new(env::current_exe()?)
        .args(["--exact", "victim", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .context("starting this test again")?;
    let output = victim.stdout.take().context("its output is a pipe")?;
    let line = BufReader::new(output)
        .lines()
        .map_while(Result::ok)
        .find(|line| line.contains("runs in "))
        .context("the victim has not built its rig")?;
    let (server, folder) = line
        .split_once(" runs in ")
        .map(|(before, folder)| (before.rsplit(' ').next().unwrap_or(before), folder))
        .context("two words")?;
    let process = format!("/proc/{server}");
    ensure!(Path::new(&process).exists() && Path::new(folder).exists(), "nothing runs: {line}");

    victim.kill()?;
    victim.wait()?;
    wait::until("the server and the folder to go", Duration::from_secs(5), || {
        // A dead process may stay listed until whoever inherits it asks for its status.
        let dead = std::fs::read_to_string(format!("{process}/stat"))
            .map_or(true, |text| text.contains(") Z "));
        Ok((dead && !Path::new(folder).exists()).then_some(()))
    })
}

/// Does nothing by itself; run by the test above.
#[test]
fn victim() -> Result<()> {
    if env::var_os(VICTIM).is_none() {
        return Ok(());
    }
    let rig = Plan::new(Pairing::Kernel).build()?;
    let server = netperf::start_server(&rig)?;
    println!("{} runs in {}", server.id(), rig.folder().display());
    loop {
        thread::park();
    }
}
