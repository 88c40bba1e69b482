//! iperf and iperf3: command lines, and what they print.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::program::Finished;
use crate::rig::Rig;

/// Which of the two programs; they share no protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// iperf 2.
    Two,
    /// iperf 3.
    Three,
}

/// What arrived in a run, in bits per second; one figure for each direction used.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Bits per second that arrived, all streams of a direction together.
    pub rates: Vec<f64>,
    /// Datagrams lost, where the run counts them.
    pub lost: Option<u64>,
}

impl Version {
    /// Runs a server and a client with these options for `seconds`.
    ///
    /// # Errors
    ///
    /// When either program fails, or a direction carried nothing.
    pub fn run(self, rig: &Rig, options: &[&str], seconds: u32) -> Result<Report> {
        let datagrams = options.contains(&"-u");
        let address = rig.server.address.to_string();
        let mut server_options = vec!["-s", "-B", &address];
        let (program, port, client_only) = match self {
            Self::Two => ("iperf", 5001, ["-y", "C"].as_slice()),
            Self::Three => ("iperf3", 5201, ["--json"].as_slice()),
        };
        match self {
            // Datagrams need a server that was told so.
            Self::Two if datagrams => server_options.push("-u"),
            Self::Two => {}
            Self::Three => server_options.push("--forceflush"),
        }
        let mut server = rig.server.program(program).args(&server_options).start()?;
        match self {
            Self::Two if datagrams => server.wait_for_output("UDP port", START_LIMIT)?,
            // Its own line: a connection only to look would count as a test that failed.
            Self::Three => server.wait_for_output("Server listening", START_LIMIT)?,
            Self::Two => server.wait_until_listening(rig, port, START_LIMIT)?,
        }
        let seconds_text = seconds.to_string();
        let limit = Duration::from_secs(seconds.into()) + CLIENT_SLACK;
        let report = rig
            .client
            .program(program)
            .args(["-c", &address, "-t", &seconds_text])
            .args(client_only)
            .args(options)
            .run(limit)
            .and_then(Finished::success)
            .and_then(|finished| match self {
                Self::Two => parse_two(&finished.output),
                Self::Three => parse_three(&finished.output, options.contains(&"--bidir")),
            })
            .and_then(Report::must_have_moved_data)
            .with_context(|| format!("{program} {}; {}", options.join(" "), server.evidence()))?;
        server.must_run()?;
        Ok(report)
    }
}

impl Report {
    fn must_have_moved_data(self) -> Result<Self> {
        if self.rates.iter().all(|rate| *rate > 0.0) {
            return Ok(self);
        }
        bail!("a direction carried nothing: {self:?}")
    }
}

/// Lines of comma-separated values, one for each stream; a line of stream -1 repeats their sum.
fn parse_two(output: &str) -> Result<Report> {
    let rows: Vec<Vec<&str>> = output
        .lines()
        .map(|line| line.split(',').collect::<Vec<_>>())
        .filter(|row| row.len() > RATE_COLUMN && row[STREAM_COLUMN] != "-1")
        .collect();
    if rows.is_empty() {
        bail!("iperf reported nothing:\n{output}");
    }
    let mut sum = 0.0;
    for row in &rows {
        sum += row[RATE_COLUMN].parse::<f64>().with_context(|| format!("a rate in {row:?}"))?;
    }
    let lost = rows.iter().find_map(|row| row.get(LOST_COLUMN)?.parse().ok());
    Ok(Report { rates: vec![sum], lost })
}

fn parse_three(output: &str, both_directions: bool) -> Result<Report> {
    let document: Value = serde_json::from_str(output).context("iperf3 wrote no JSON")?;
    if let Some(error) = document.get("error") {
        bail!("iperf3: {error}");
    }
    let end = &document["end"];
    let sums: &[&str] = match (both_directions, end.get("sum_received")) {
        (true, _) => &["sum_received", "sum_received_bidir_reverse"],
        (false, Some(_)) => &["sum_received"],
        // Datagram runs of iperf3 before 3.13 have one sum only.
        (false, None) => &["sum"],
    };
    let rates = sums
        .iter()
        .map(|name| {
            end[name]["bits_per_second"].as_f64().with_context(|| format!("{name} has no rate"))
        })
        .collect::<Result<_>>()?;
    Ok(Report { rates, lost: end["sum"]["lost_packets"].as_u64() })
}

/// Columns of iperf's comma-separated reports.
const STREAM_COLUMN: usize = 5;
const RATE_COLUMN: usize = 8;
const LOST_COLUMN: usize = 10;

/// For a server to start; see [`crate::netperf::START_LIMIT`].
const START_LIMIT: Duration = crate::netperf::START_LIMIT;

/// What a run may take beyond its measuring time.
const CLIENT_SLACK: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::{parse_three, parse_two};

    #[test]
    fn parallel_streams_are_reported_by_their_sum() {
        let output = "20261130201408,198.18.0.2,1,198.18.0.1,5001,1,0.0-1.0,100,800\n\
                      20261130201408,198.18.0.2,2,198.18.0.1,5001,2,0.0-1.0,100,900\n\
                      20261130201408,198.18.0.2,0,198.18.0.1,5001,-1,0.0-1.0,200,1700\n";
        assert_eq!(parse_two(output).unwrap().rates, [1700.0]);
    }

    #[test]
    fn both_directions_are_reported() {
        let output = r#"{"end": {"sum_received": {"bits_per_second": 5.0},
            "sum_received_bidir_reverse": {"bits_per_second": 6.0}}}"#;
        assert_eq!(parse_three(output, true).unwrap().rates, [5.0, 6.0]);
    }

    #[test]
    fn an_error_in_the_report_is_an_error() {
        assert!(parse_three(r#"{"error": "unable to connect"}"#, false).is_err());
    }
}
