//! `cargo xtask bench crowd`: what a connection costs when there are many.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use lstack_tests::build;
use lstack_tests::program::{Launch, Running};
use lstack_tests::rig::{Pairing, Plan, Rig, Side};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// How many.
#[derive(Args, Debug)]
pub struct Options {
    /// Connections open at once.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 1_000, 15_000, 100_000])]
    connections: Vec<u32>,
    /// Requests on them, each on another.
    #[arg(long, default_value_t = 200_000)]
    requests: u32,
    /// Connections opened and closed in turn; 0 to leave that out.
    #[arg(long, default_value_t = 1_000_000)]
    short: u32,
}

/// What one crowd cost.
struct Cost {
    /// Connections a second.
    opened: f64,
    /// Microseconds.
    request: f64,
    /// Memory of the server's process for a connection, bytes.
    server: f64,
}

const COMPARED: [(&str, Pairing); 2] = [("kernel", Pairing::Kernel), ("M", Pairing::BothStack)];

/// Runs everything and prints the result. The release build is there.
pub fn run(options: &Options) -> Result<()> {
    // The programs inherit it.
    let (_, most) =
        getrlimit(Resource::RLIMIT_NOFILE).context("reading the limit of descriptors")?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("raising the limit of descriptors")?;
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header([
        "rig",
        "connections",
        "opened/s",
        "us/request",
        "to the first",
        "server bytes/connection",
    ]);
    for (name, pairing) in COMPARED {
        let mut first = None;
        for &count in &options.connections {
            if u64::from(count) + DESCRIPTORS_SPARE > most {
                eprintln!("{count} connections need more descriptors than the {most} allowed here");
                continue;
            }
            let cost = crowd(pairing, count, options.requests)
                .with_context(|| format!("{count} connections on rig {name}"))?;
            let ratio = cost.request / *first.get_or_insert(cost.request);
            let row = [
                name.to_owned(),
                count.to_string(),
                format!("{:.0}", cost.opened),
                format!("{:.2}", cost.request),
                format!("{ratio:.2}x"),
                format!("{:.0}", cost.server),
            ];
            eprintln!("{}", row.join("  "));
            table.add_row(row);
        }
    }
    println!("{table}");
    println!("The memory is the growth of the server's process, without the kernel's own.");
    if options.short > 0 {
        for (name, pairing) in COMPARED {
            println!("{name}: {}", short(pairing, options.short)?);
        }
    }
    Ok(())
}

fn crowd(pairing: Pairing, count: u32, requests: u32) -> Result<Cost> {
    let rig = plan(pairing).build()?;
    let server = serve(&rig)?;
    let before = resident(&server)?;
    let (count_text, requests) = (count.to_string(), requests.to_string());
    let address = rig.server.at(PORT);
    let mut client =
        helper(&rig.client, &["visit", &address, PORTS, &count_text, &requests])?.start()?;
    client.wait_for_output("holding\n", LIMIT)?;
    let grown = resident(&server)?.saturating_sub(before);
    let output = client.output()?;
    Ok(Cost {
        opened: figure(&output, " opened a second")?,
        request: figure(&output, " us a request")?,
        server: grown as f64 / f64::from(count),
    })
}

/// In one line: how many a second, and what is left of them.
fn short(pairing: Pairing, count: u32) -> Result<String> {
    let rig = plan(pairing).build()?;
    let mut server = serve(&rig)?;
    let address = rig.server.at(PORT);
    // The first ones fill what is filled once: tables, pools, TIME_WAIT records.
    let warm = (count / 2).to_string();
    let first = helper(&rig.client, &["pass", &address, PORTS, &warm])?.run(LIMIT)?.success()?;
    let before = resident(&server)?;
    let second = helper(&rig.client, &["pass", &address, PORTS, &warm])?.run(LIMIT)?.success()?;
    server.wait_for_output(&format!("{} ended", count / 10_000 * 10_000), LIMIT)?;
    let after = resident(&server)?;
    let sockets = if pairing == Pairing::Kernel {
        String::new()
    } else {
        let stats = server.stats()?;
        ensure!(stats.listening() == PORTS.parse::<usize>()?, "listeners: {}", stats.summary());
        format!(", {} sockets left of them", stats.sockets() - stats.listening())
    };
    Ok(format!(
        "{count} short connections, {:.0} a second in the first half and {:.0} in the second; the \
         server grew by {} KiB in the second half{sockets}",
        figure(&first.output, " passed a second")?,
        figure(&second.output, " passed a second")?,
        after.saturating_sub(before) / 1_024,
    ))
}

fn plan(pairing: Pairing) -> Plan {
    Plan::new(pairing).set("tcp_conn_count", "200000")
}

fn serve(rig: &Rig) -> Result<Running> {
    let mut server = helper(&rig.server, &["serve", &rig.server.at(PORT), PORTS])?.start()?;
    server.wait_for_output("listening\n", LIMIT)?;
    Ok(server)
}

fn helper<'rig>(side: &'rig Side, arguments: &[&str]) -> Result<Launch<'rig>> {
    Ok(side.program(&build::helper("rig-crowd")?.to_string_lossy()).args(arguments))
}

fn figure(output: &str, unit: &str) -> Result<f64> {
    let figure = output.lines().find_map(|line| line.strip_suffix(unit));
    figure.with_context(|| format!("there is no{unit} in:\n{output}"))?.parse().context("a figure")
}

/// Resident memory of a program, bytes.
fn resident(program: &Running) -> Result<u64> {
    let path = format!("/proc/{}/status", program.id());
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kilobytes.context("VmRSS is missing")?.parse::<u64>()? * 1_024)
}

const PORT: u16 = 5_000;

/// Descriptors of a program beside those of its connections.
const DESCRIPTORS_SPARE: u64 = 100;

/// Enough for a hundred thousand connections from one address.
const PORTS: &str = "8";

/// A run that takes longer has got stuck.
const LIMIT: Duration = Duration::from_secs(300);
