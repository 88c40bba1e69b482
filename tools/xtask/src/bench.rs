//! `cargo xtask bench`: lstack against the kernel, as medians of interleaved runs.
//!
//! Machines are noisy, and their noise drifts: the rigs take turns within each round, so that a
//! slow minute is slow for all of them.

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use lstack_tests::netperf::{Report, Test, Unit};
use lstack_tests::rig::{Plan, Rig};
use lstack_tests::stack_conf::Mode;
use serde::Serialize;

use crate::pairings::COMPARED;
use crate::{crowd, loss, step};

/// What to measure, and how thoroughly.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    what: Option<What>,
    /// Runs of each test on each rig.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 1)]
    seconds: u32,
    /// Only tests whose name begins so, such as TCP or UDP_RR.
    #[arg(long, default_value = "")]
    test: String,
    /// Stacks driven by a thread of their own (run-to-wakeup).
    #[arg(long)]
    driver_thread: bool,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Benchmarks other than netperf's.
#[derive(Debug, Subcommand)]
enum What {
    /// Transfers through a router that loses segments.
    Loss(loss::Options),
    /// Many connections: memory, requests, and opening and closing.
    Crowd(crowd::Options),
}

/// What was measured of one test on one rig.
#[derive(Debug, Serialize)]
struct Figures {
    test: String,
    rig: &'static str,
    unit: &'static str,
    median: f64,
    min: f64,
    max: f64,
    /// Median of the mean round-trip times, microseconds.
    latency_mean_us: Option<f64>,
    /// Median of the 99th percentiles, microseconds.
    latency_p99_us: Option<f64>,
    to_kernel: f64,
}

/// Runs everything and prints the result.
pub fn run(options: &Options) -> Result<()> {
    step::need_root("benchmarks run in network namespaces")?;
    step::run("build", step::release_build())?;
    match &options.what {
        None => netperf(options),
        Some(What::Loss(options)) => loss::run(options),
        Some(What::Crowd(options)) => crowd::run(options),
    }
}

fn netperf(options: &Options) -> Result<()> {
    let mode = if options.driver_thread { Mode::RunToWakeup } else { Mode::RunToCompletion };
    let mut figures = Vec::new();
    for test in TESTS.iter().filter(|test| test.name.starts_with(&options.test)) {
        figures.extend(measure(test, options, mode)?);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&figures).context("figures are JSON")?);
    } else {
        println!("{}", table(&figures));
    }
    Ok(())
}

fn measure(test: &Test, options: &Options, mode: Mode) -> Result<Vec<Figures>> {
    let rigs: Vec<Rig> = COMPARED
        .iter()
        .map(|compared| Plan::build(&compared.plan().mode(mode)))
        .collect::<Result<_>>()?;
    let mut reports: Vec<Vec<Report>> = rigs.iter().map(|_| Vec::new()).collect();
    for round in 1..=options.rounds {
        eprintln!("{}: round {round} of {}", test.title(), options.rounds);
        for (rig, reports) in rigs.iter().zip(&mut reports) {
            reports.push(test.run(rig, options.seconds)?);
        }
    }
    let mut reference = None;
    let figures = COMPARED.iter().zip(&reports).map(|(compared, reports)| {
        let rates = Sorted::new(reports.iter().map(|report| report.rate));
        let latency = |field: fn(&lstack_tests::netperf::Latency) -> f64| {
            let values: Vec<f64> =
                reports.iter().filter_map(|report| report.latency.as_ref().map(field)).collect();
            (!values.is_empty()).then(|| Sorted::new(values).median())
        };
        Figures {
            test: test.title(),
            rig: compared.name,
            unit: match reports[0].unit {
                Unit::Megabits => "Mbit/s",
                Unit::Transactions => "transactions/s",
            },
            median: rates.median(),
            min: rates.0[0],
            max: rates.0[rates.0.len() - 1],
            latency_mean_us: latency(|latency| latency.mean),
            latency_p99_us: latency(|latency| latency.p99),
            // COMPARED begins with the kernel.
            to_kernel: rates.median() / *reference.get_or_insert(rates.median()),
        }
    });
    Ok(figures.collect())
}

fn table(figures: &[Figures]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header([
        "test",
        "rig",
        "median",
        "min",
        "max",
        "unit",
        "mean us",
        "p99 us",
        "to kernel",
    ]);
    let optional =
        |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.1}"));
    for figures in figures {
        table.add_row([
            figures.test.clone(),
            figures.rig.to_owned(),
            format!("{:.0}", figures.median),
            format!("{:.0}", figures.min),
            format!("{:.0}", figures.max),
            figures.unit.to_owned(),
            optional(figures.latency_mean_us),
            optional(figures.latency_p99_us),
            format!("{:.2}x", figures.to_kernel),
        ]);
    }
    for column in [2, 3, 4, 6, 7, 8] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Values in order.
struct Sorted(Vec<f64>);

impl Sorted {
    fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

const TESTS: [Test; 6] = [
    Test::TCP_STREAM,
    Test::TCP_MAERTS,
    Test::TCP_RR,
    Test::TCP_CRR,
    Test::UDP_STREAM,
    Test::UDP_RR,
];

#[cfg(test)]
mod tests {
    use super::Sorted;

    #[test]
    fn one_wild_run_does_not_move_the_median() {
        assert_eq!(Sorted::new([3.0, 1.0, 1000.0, 2.0, 4.0]).median(), 3.0);
    }
}
