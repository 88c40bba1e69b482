//! netperf: command lines, and what it prints.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::program::Running;
use crate::rig::Rig;

/// A netperf test, with the arguments of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// What `-t` takes.
    pub name: &'static str,
    /// What follows `--`.
    pub options: &'static [&'static str],
    form: Form,
}

/// How a test reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One row: socket sizes, message size, time, throughput.
    Stream,
    /// Two rows: the sender's and the receiver's.
    Datagrams,
    /// Socket sizes, request and response size, time, rate.
    Transactions,
    /// The columns `-O` asked for.
    Chosen,
}

impl Test {
    /// A stream of small messages.
    pub const TCP_STREAM: Self = Self::new("TCP_STREAM", &["-m", "1024"], Form::Stream);
    /// Requests and responses on one connection.
    pub const TCP_RR: Self = Self::new("TCP_RR", ROUND_TRIPS, Form::Chosen);
    /// Datagrams of one frame each.
    pub const UDP_STREAM: Self = Self::new("UDP_STREAM", &["-m", "1024"], Form::Datagrams);
    /// Requests and responses by datagram.
    pub const UDP_RR: Self = Self::new("UDP_RR", ROUND_TRIPS, Form::Chosen);
    /// A stream towards the client.
    pub const TCP_MAERTS: Self = Self::new("TCP_MAERTS", &[], Form::Stream);
    /// A stream sent by `sendfile`.
    pub const TCP_SENDFILE: Self = Self::new("TCP_SENDFILE", &[], Form::Stream);
    /// A connection for each request.
    pub const TCP_CRR: Self = Self::new("TCP_CRR", &[], Form::Transactions);
    /// Connections that carry nothing.
    pub const TCP_CC: Self = Self::new("TCP_CC", &[], Form::Transactions);
    /// The largest datagrams there are: 65,507 bytes, 45 fragments.
    pub const UDP_STREAM_LARGE: Self = Self::new("UDP_STREAM", &[], Form::Datagrams);

    /// The four tests by which such stacks are usually compared.
    pub const FOUR: [Self; 4] = [Self::TCP_STREAM, Self::TCP_RR, Self::UDP_STREAM, Self::UDP_RR];

    /// All tests that must work.
    pub const ALL: [Self; 9] = [
        Self::TCP_STREAM,
        Self::TCP_RR,
        Self::UDP_STREAM,
        Self::UDP_RR,
        Self::TCP_MAERTS,
        Self::TCP_SENDFILE,
        Self::TCP_CRR,
        Self::TCP_CC,
        Self::UDP_STREAM_LARGE,
    ];

    const fn new(name: &'static str, options: &'static [&'static str], form: Form) -> Self {
        Self { name, options, form }
    }

    /// The test as a person would type it, without addresses.
    #[must_use]
    pub fn title(&self) -> String {
        // The long list of columns says nothing to a reader.
        let shown = self.options.split(|option| *option == "-O").next().unwrap_or_default();
        [&[self.name], shown].concat().join(" ")
    }

    /// Starts a server, runs the test against it for `seconds`, and ends the server.
    ///
    /// The server is new for each run: netserver in the foreground (`-f`) keeps timers of one test
    /// into the next and then stops by itself, on any stack.
    ///
    /// # Errors
    ///
    /// When either program fails, nothing arrives, or the client's report is not what this test prints.
    pub fn run(&self, rig: &Rig, seconds: u32) -> Result<Report> {
        let mut server = start_server(rig)?;
        let report = self
            .run_client(rig, seconds)
            .with_context(|| format!("{}; {}", self.title(), server.evidence()))?;
        server.must_run()?;
        Ok(report)
    }

    /// Runs the test against a server that runs already.
    ///
    /// # Errors
    ///
    /// When netperf fails, nothing arrives, or its report is not what this test prints.
    pub fn run_client(&self, rig: &Rig, seconds: u32) -> Result<Report> {
        let mut arguments = vec![
            "-H".to_owned(),
            rig.server.address.to_string(),
            "-L".to_owned(),
            rig.client.address.to_string(),
            "-t".to_owned(),
            self.name.to_owned(),
            "-l".to_owned(),
            seconds.to_string(),
        ];
        if !self.options.is_empty() {
            arguments.push("--".to_owned());
            arguments.extend(self.options.iter().map(|option| (*option).to_owned()));
        }
        let limit = Duration::from_secs(seconds.into()) + CLIENT_SLACK;
        let finished = rig.client.program("netperf").args(&arguments).run(limit)?.success()?;
        self.parse(&finished.output)
            .and_then(Report::must_have_moved_data)
            .with_context(|| format!("netperf wrote:\n{}{}", finished.output, finished.errors))
    }

    fn parse(&self, output: &str) -> Result<Report> {
        // The rows of figures are the lines of which every word but a unit is a number.
        let mut rows = output.lines().filter_map(figures);
        let first = rows.next().context("there are no figures")?;
        let at = |row: &[f64], column: usize| {
            row.get(column).copied().ok_or_else(|| anyhow!("column {column} is missing"))
        };
        match self.form {
            Form::Stream => Ok(Report::megabits(at(&first, 4)?)),
            Form::Transactions => Ok(Report::transactions(at(&first, 5)?)),
            Form::Datagrams => {
                let second = rows.next().context("the receiver's row is missing")?;
                let mut report = Report::megabits(at(&second, 3)?);
                report.sent = Some(at(&first, 5)?);
                Ok(report)
            }
            Form::Chosen => {
                let mut report = Report::transactions(at(&first, 5)?);
                report.latency = Some(Latency {
                    min: at(&first, 0)?,
                    max: at(&first, 1)?,
                    mean: at(&first, 2)?,
                    p99: at(&first, 3)?,
                    deviation: at(&first, 4)?,
                });
                Ok(report)
            }
        }
    }
}

/// Starts netserver on the rig's server side and waits until it listens.
///
/// # Errors
///
/// When it does not come to listen.
pub fn start_server(rig: &Rig) -> Result<Running> {
    let address = rig.server.address.to_string();
    let mut server =
        rig.server.program("netserver").args(["-D", "-4", "-f", "-L", &address]).start()?;
    server.wait_until_listening(rig, PORT, START_LIMIT)?;
    Ok(server)
}

/// What a test found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What arrived: megabits or transactions per second.
    pub rate: f64,
    /// What `rate` counts.
    pub unit: Unit,
    /// What was sent, where that may be more than arrived.
    pub sent: Option<f64>,
    /// Round-trip times, where they were asked for.
    pub latency: Option<Latency>,
}

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Megabits per second.
    Megabits,
    /// Transactions per second.
    Transactions,
}

/// Round-trip times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Shortest.
    pub min: f64,
    /// Longest.
    pub max: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// 99 of 100 are not longer.
    pub p99: f64,
    /// Standard deviation.
    pub deviation: f64,
}

impl Report {
    fn megabits(rate: f64) -> Self {
        Self { rate, unit: Unit::Megabits, sent: None, latency: None }
    }

    fn transactions(rate: f64) -> Self {
        Self { rate, unit: Unit::Transactions, sent: None, latency: None }
    }

    fn must_have_moved_data(self) -> Result<Self> {
        if self.rate > 0.0 { Ok(self) } else { bail!("nothing arrived") }
    }
}

/// The numbers of a line that holds numbers and at most a trailing unit.
fn figures(line: &str) -> Option<Vec<f64>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let numbers: Vec<f64> = words.iter().map_while(|word| word.parse().ok()).collect();
    let unit_or_nothing = words.len() - numbers.len() <= 1;
    (!numbers.is_empty() && unit_or_nothing).then_some(numbers)
}

/// The control port netserver listens on.
pub const PORT: u16 = 12865;

/// Options of the request/response tests.
const ROUND_TRIPS: &[&str] = &[
    "-r",
    "1024",
    "-O",
    "MIN_LATENCY,MAX_LATENCY,MEAN_LATENCY,P99_LATENCY,STDDEV_LATENCY,THROUGHPUT,THROUGHPUT_UNITS",
];

/// For a server to start: EAL takes a fifth of a second, a busy machine several times that.
pub const START_LIMIT: Duration = Duration::from_secs(10);

/// What a netperf run may take beyond its measuring time: start, connect, final exchange.
const CLIENT_SLACK: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::{Test, Unit};

    #[test]
    fn a_stream_report_gives_its_throughput() {
        let output = "MIGRATED TCP STREAM TEST from 198.18.0.2 () port 0 AF_INET to 198.18.0.1\n\
            Recv   Send    Send\nSocket Socket  Message  Elapsed\n\
            Size   Size    Size     Time     Throughput\n\
            bytes  bytes   bytes    secs.    10^6bits/sec\n\n\
            131072  16384   1024    1.00     5649.27\n";
        let report = Test::TCP_STREAM.parse(output).unwrap();
        assert_eq!((report.rate, report.unit), (5649.27, Unit::Megabits));
    }

    #[test]
    fn a_round_trip_report_gives_latencies_and_rate() {
        let output = "Minimum      Maximum      Mean         99th\n\
            Microseconds Microseconds Microseconds Latency\n\
            18           3334         109.39       172          54.03        9125.23    Trans/s\n";
        let report = Test::TCP_RR.parse(output).unwrap();
        assert_eq!((report.rate, report.unit), (9125.23, Unit::Transactions));
        let latency = report.latency.unwrap();
        assert_eq!((latency.min, latency.p99, latency.deviation), (18.0, 172.0, 54.03));
    }

    #[test]
    fn a_datagram_report_tells_sent_from_arrived() {
        let output = "212992   65507   1.00       131383      0    68847.16\n\
                      212992           1.00        31346           16425.89\n";
        let report = Test::UDP_STREAM_LARGE.parse(output).unwrap();
        assert_eq!((report.rate, report.sent), (16425.89, Some(68847.16)));
    }

    #[test]
    fn a_transaction_report_gives_its_rate_with_or_without_cpu_columns() {
        for output in [
            "16384  131072 1        1       1.00     6471.07\n16384  131072\n",
            "16384  131072 1       1      1.00    11808.51   -1.00  0.00   -1.000  0.000\n",
        ] {
            assert!(Test::TCP_CC.parse(output).unwrap().rate > 6000.0);
        }
    }
}
