//! Starting: nothing for programs that need nothing, and one clear message when the stack cannot
//! start.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lstack_tests::program::{Finished, Launch};
use lstack_tests::rig::{Pairing, Plan, Rig};
use lstack_tests::stack_conf::StackConf;
use lstack_tests::{build, netperf, suite};

#[test]
fn a_program_without_sockets_does_not_notice_the_library() -> Result<()> {
    let _turn = suite::turn();
    let rig = rig()?;
    let plain = rig.server.peer(&["self"])?.without_library().run(LIMIT)?.success()?;
    let preloaded = rig.server.peer(&["self"])?.run(LIMIT)?.success()?;
    ensure!(plain.output == preloaded.output, "{} / {}", plain.output, preloaded.output);
    ensure!(preloaded.errors.is_empty(), "{}", preloaded.errors);
    ensure!(!preloaded.has_stats(), "a stats file appeared");
    Ok(())
}

#[test]
fn a_missing_configuration_does_not_matter_to_a_program_without_sockets() -> Result<()> {
    let _turn = suite::turn();
    let rig = rig()?;
    let path = rig.folder().join("nowhere.conf");
    let finished = rig.server.peer(&["self"])?.conf_at(&path).run(LIMIT)?.success()?;
    ensure!(finished.errors.is_empty(), "{}", finished.errors);
    Ok(())
}

/// The figures are for a reader; a busy machine must not fail the test.
#[test]
fn the_library_costs_true_little() -> Result<()> {
    let _turn = suite::turn();
    let rig = rig()?;
    let mut medians = Vec::new();
    for preload in [false, true] {
        let mut times = Vec::new();
        for _ in 0..RUNS_OF_TRUE {
            let launch = rig.server.program("/bin/true");
            let launch = if preload { launch } else { launch.without_library() };
            let start = Instant::now();
            let finished = launch.run(LIMIT)?.success()?;
            times.push(start.elapsed());
            ensure!(finished.output.is_empty() && finished.errors.is_empty(), "it wrote something");
        }
        times.sort();
        medians.push(times[RUNS_OF_TRUE / 2]);
    }
    println!("/bin/true: plain {:?}, preloaded {:?} (medians)", medians[0], medians[1]);
    Ok(())
}

#[test]
fn a_missing_file_is_named() -> Result<()> {
    let rig_folder_file = "nowhere.conf";
    falls_back(&[rig_folder_file], |launch, rig| {
        Ok(launch.conf_at(&rig.folder().join(rig_folder_file)))
    })
}

#[test]
fn a_syntax_error_is_located() -> Result<()> {
    falls_back(&[".conf", "2", "syntax"], |launch, _| {
        Ok(launch.conf_text("mask_addr = \"255.255.255.0\"\nhost_addr = = \"198.18.0.1\"\n"))
    })
}

#[test]
fn five_wrong_keys_are_all_named_at_once() -> Result<()> {
    let wrong = [
        ("host_adr", "\"198.18.0.1\""),
        ("tcp_conn_count", "\"many\""),
        ("nic_read_number", "-1"),
        ("stack_thread_mode", "\"run-to-the-hills\""),
        ("udp_enable", "7"),
    ];
    let names: Vec<&str> = wrong.iter().map(|(key, _)| *key).collect();
    falls_back(&names, |launch, rig| {
        let conf = conf(rig)?.text();
        let kept = conf.lines().filter(|line| !line.starts_with("stack_thread_mode"));
        let added = wrong.iter().map(|(key, value)| format!("{key} = {value}"));
        let lines: Vec<String> = kept.map(str::to_owned).chain(added).collect();
        Ok(launch.conf_text(&lines.join("\n")))
    })
}

#[test]
fn an_address_already_taken_is_reported() -> Result<()> {
    falls_back(&["198.18.0.2"], |launch, rig| {
        let mut conf = conf(rig)?;
        conf.address = rig.client.address;
        Ok(launch.conf_text(&conf.text()))
    })
}

#[test]
fn an_address_held_by_another_program_is_reported() -> Result<()> {
    let _turn = suite::turn();
    let rig = rig()?;
    let _holder = netperf::start_server(&rig)?;
    let finished = rig.server.peer(&["loopback"])?.run(LIMIT)?;
    check_fall_back(finished, &[&rig.server.address.to_string(), "another program"])
}

#[test]
fn an_absent_device_is_named() -> Result<()> {
    falls_back(&["iface=nosuch0", "does not exist"], |launch, rig| {
        let mut conf = conf(rig)?;
        conf.device = "net_af_packet0,iface=nosuch0".to_owned();
        Ok(launch.conf_text(&conf.text()))
    })
}

#[test]
fn too_little_memory_is_reported() -> Result<()> {
    falls_back(&["memory"], |launch, rig| {
        let conf = conf(rig)?.text().replace("[\"--no-huge\"", "[\"--no-huge\", \"-m\", \"1\"");
        Ok(launch.conf_text(&conf))
    })
}

/// The superuser without capabilities: he may read the library, wherever it was built, but not
/// open a packet socket.
#[test]
fn missing_permission_is_reported() -> Result<()> {
    let _turn = suite::turn();
    let rig = rig()?;
    let peer = build::helper("rig-peer")?;
    let finished = rig
        .server
        .program("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all"])
        .args([peer.as_os_str(), "loopback".as_ref()])
        .run(LIMIT)?;
    check_fall_back(finished, &["net_af_packet0", "permission"])
}

#[test]
fn the_file_may_ask_for_the_program_to_end_instead() -> Result<()> {
    let _turn = suite::turn();
    let rig = rig()?;
    let mut conf = conf(&rig)?;
    conf.device = "net_af_packet0,iface=nosuch0".to_owned();
    conf.more.push(("on_init_failure".to_owned(), "\"abort\"".to_owned()));
    let finished = rig.server.peer(&["loopback"])?.conf_text(&conf.text()).run(LIMIT)?;
    ensure!(finished.status.code() == Some(1), "{}", finished.status);
    ensure!(finished.output.is_empty(), "the program ran: {}", finished.output);
    check_message(&finished.errors, &["net_af_packet0", "on_init_failure"])
}

/// Runs a program with something wrong, and expects it to run on the kernel after one message
/// that contains `words`.
fn falls_back(
    words: &[&str],
    spoil: impl for<'rig> FnOnce(Launch<'rig>, &'rig Rig) -> Result<Launch<'rig>>,
) -> Result<()> {
    let _turn = suite::turn();
    let rig = rig()?;
    let finished = spoil(rig.server.peer(&["loopback"])?, &rig)?.run(LIMIT)?;
    check_fall_back(finished, words)
}

fn check_fall_back(finished: Finished, words: &[&str]) -> Result<()> {
    let finished = finished.success()?;
    println!("{}", finished.errors.trim_end());
    ensure!(finished.output == "hello\n", "{}", finished.output);
    check_message(&finished.errors, words)?;
    ensure!(finished.errors.contains("the program runs on the kernel"), "{}", finished.errors);
    Ok(())
}

/// One message: said once, every line marked as ours, nothing of DPDK's between.
fn check_message(errors: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(errors.contains(word), "{word:?} is missing in:\n{errors}");
    }
    ensure!(errors.lines().all(|line| line.starts_with("lstack: ")), "foreign lines in:\n{errors}");
    let ends = errors.matches("; the program ").count();
    ensure!(ends == 1, "{ends} messages instead of one:\n{errors}");
    Ok(())
}

/// Its server side is lstack's; the client side is the kernel's.
fn rig() -> Result<Rig> {
    Plan::new(Pairing::StackServer).build()
}

fn conf(rig: &Rig) -> Result<StackConf> {
    rig.server.stack.clone().context("the server side is lstack's")
}

/// Odd, so that the median is one of them.
const RUNS_OF_TRUE: usize = 21;

/// For a program that does next to nothing; an address check may take seconds.
const LIMIT: Duration = Duration::from_secs(20);
