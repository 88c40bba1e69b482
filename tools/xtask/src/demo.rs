//! `cargo xtask demo`: unmodified netperf on the kernel and on lstack, in one table.

use std::time::Instant;

use anyhow::{Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use lstack_tests::netperf::{Report, Test, Unit};

use crate::pairings::COMPARED;
use crate::{setup, step};

/// Prepares what is missing, runs the tests, prints the table.
pub fn run() -> Result<()> {
    step::need_root("the demo makes network namespaces")?;
    if !setup::missing().is_empty() {
        setup::run()?;
    }
    step::run("build", step::release_build())?;

    let start = Instant::now();
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    for compared in COMPARED {
        println!("== {}: {}", compared.name, compared.explanation);
        let rig = compared.plan().build()?;
        for test in Test::FOUR {
            let result = test.run(&rig, SECONDS);
            match &result {
                Ok(report) => println!("   {:20} {}", test.title(), rate(report)),
                Err(_) => println!("   {:20} failed", test.title()),
            }
            let report =
                result.map_err(|error| failures.push(format!("{}: {error:#}", compared.name)));
            rows.push((test, compared.name, report.ok()));
        }
    }
    println!("== tests: {:.1} s\n", start.elapsed().as_secs_f64());
    println!("{}", table(&rows));
    println!("Latencies are round trips in microseconds. UDP_STREAM shows what arrived.");
    for compared in COMPARED {
        println!("{:6} {}", compared.name, compared.explanation);
    }
    if failures.is_empty() {
        return Ok(());
    }
    bail!("{} of {} runs failed:\n{}", failures.len(), rows.len(), failures.join("\n"));
}

type Row = (Test, &'static str, Option<Report>);

/// One line for each test and rig, the same tests together.
fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header([
        "test",
        "rig",
        "Mbit/s",
        "transactions/s",
        "min",
        "mean",
        "p99",
        "max",
        "stddev",
        "to kernel",
    ]);
    for test in Test::FOUR {
        let same: Vec<&Row> = rows.iter().filter(|row| row.0 == test).collect();
        // COMPARED begins with the kernel.
        let reference = same.first().and_then(|row| row.2.as_ref()).map(|report| report.rate);
        for (_, name, report) in same {
            table.add_row(cells(&test, name, report.as_ref(), reference));
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn cells(test: &Test, name: &str, report: Option<&Report>, reference: Option<f64>) -> Vec<String> {
    let mut cells = vec![test.title(), name.to_owned()];
    let Some(report) = report else {
        cells.push("failed".to_owned());
        return cells;
    };
    let rate = format!("{:.0}", report.rate);
    cells.extend(match report.unit {
        Unit::Megabits => [rate, String::new()],
        Unit::Transactions => [String::new(), rate],
    });
    cells.extend(report.latency.map_or_else(Default::default, |latency| {
        [latency.min, latency.mean, latency.p99, latency.max, latency.deviation]
            .map(|microseconds| format!("{microseconds:.1}"))
    }));
    cells.push(
        reference.map_or_else(String::new, |reference| format!("{:.2}x", report.rate / reference)),
    );
    cells
}

fn rate(report: &Report) -> String {
    match report.unit {
        Unit::Megabits => format!("{:10.0} Mbit/s", report.rate),
        Unit::Transactions => format!("{:10.0} transactions/s", report.rate),
    }
}

/// Measuring time of one run: twelve runs then take half a minute.
const SECONDS: u32 = 2;
