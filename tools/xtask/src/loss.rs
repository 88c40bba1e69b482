//! `cargo xtask bench loss`: what arrives through a router that loses segments, against the kernel
//! in the same run.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use lstack_tests::middle::{Middle, Toward};
use lstack_tests::rig::{Pairing, Plan, Rig};

/// How much, and under which losses.
#[derive(Args, Debug)]
pub struct Options {
    /// Transfers, one after the other; the median is shown.
    #[arg(long, default_value_t = 8)]
    transfers: u32,
    /// Connections side by side in a transfer.
    #[arg(long, default_value_t = 1)]
    streams: u32,
    /// Megabytes of each transfer.
    #[arg(long, default_value_t = 200)]
    megabytes: u64,
    /// Shares of lost segments, in per cent.
    #[arg(long, value_delimiter = ',', default_values_t = [0.1, 1.0, 5.0])]
    loss: Vec<f64>,
}

/// Which end sends.
#[derive(Clone, Copy, Debug)]
enum Way {
    Upload,
    Download,
}

/// Who is compared; the kernel comes first.
const COMPARED: [Pairing; 3] = [Pairing::Kernel, Pairing::StackServer, Pairing::StackClient];

/// Runs everything and prints the result. The release build is there.
pub fn run(options: &Options) -> Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header([
        "loss",
        "of segments to the",
        "sender",
        "kernel Mbit/s",
        "stack server",
        "ratio",
        "stack client",
        "ratio",
    ]);
    for &percent in &options.loss {
        for toward in Toward::BOTH {
            for way in [Way::Upload, Way::Download] {
                let [kernel, server, client] = compare(options, percent, toward, way)?;
                let row = [
                    format!("{percent} %"),
                    format!("{toward:?}").to_lowercase(),
                    match way {
                        Way::Upload => "client".to_owned(),
                        Way::Download => "server".to_owned(),
                    },
                    format!("{kernel:.0}"),
                    format!("{server:.0}"),
                    format!("{:.2}x", server / kernel),
                    format!("{client:.0}"),
                    format!("{:.2}x", client / kernel),
                ];
                eprintln!("{}", row.join("  "));
                table.add_row(row);
            }
        }
    }
    println!("{table}");
    println!("Every byte was checked. All pairings go through the same kind of router.");
    Ok(())
}

/// Medians of interleaved transfers, megabits per second.
fn compare(options: &Options, percent: f64, toward: Toward, way: Way) -> Result<[f64; 3]> {
    let mut rates = [(); 3].map(|()| Vec::new());
    for _ in 0..options.transfers {
        for (pairing, rates) in COMPARED.iter().zip(&mut rates) {
            let rig = Plan::new(*pairing).middle(Middle::Router).build()?;
            let router = rig.router.as_ref().context("the plan has a router")?;
            router.lose(toward, percent / 100.0)?;
            let rate = transfer(&rig, options, way)
                .with_context(|| format!("{pairing:?}, {percent} % toward the {toward:?}"))?;
            rates.push(rate);
        }
    }
    Ok(rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }))
}

/// One transfer; megabits per second as its receiver sees it, from the first connection on.
fn transfer(rig: &Rig, options: &Options, way: Way) -> Result<f64> {
    let address = rig.server.at(PORT);
    let (bytes, count) = (options.megabytes * 1_000_000, options.streams.to_string());
    let text = bytes.to_string();
    let (serve, ask) = match way {
        Way::Upload => ("receive", "send"),
        Way::Download => ("give", "take"),
    };
    let mut server = rig.server.peer(&[serve, &address, &text, SEED, &count])?.start()?;
    server.wait_for_output("listening", LIMIT)?;
    let client = rig.client.peer(&[ask, &address, &text, SEED, &count])?.run(LIMIT)?.success()?;
    let server = server.wait(LIMIT)?.success()?;
    let checked = match way {
        Way::Upload => server.output,
        Way::Download => client.output,
    };
    let complete = checked.lines().filter(|line| *line == "complete").count();
    ensure!(complete.to_string() == count, "{complete} of {count}:\n{checked}");
    let seconds = checked.lines().find_map(|line| line.strip_suffix(" seconds"));
    let seconds: f64 = seconds.context("the receiver says how long it took")?.parse()?;
    Ok((bytes * u64::from(options.streams)) as f64 * 8.0 / seconds / 1e6)
}

const PORT: u16 = 4_242;
const SEED: &str = "7";

/// A run that takes longer has got stuck.
const LIMIT: Duration = Duration::from_secs(600);
