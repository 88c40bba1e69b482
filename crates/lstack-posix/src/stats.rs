//! The state of a process as JSON: for people, for tools, for tests.
//!
//! Field names are an interface. Counters keep the names the stack gives them; those of frames
//! and segments that went no further have `_drop_` in theirs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use lstack_config::StackThreadMode;
use lstack_core::Protocol;
use lstack_core::stack::SocketSummary;
use lstack_core::tcp::State as TcpState;
use lstack_runtime::StackCell;
use serde::Serialize;

use crate::description::{Description, Endpoint, Socket, State};
use crate::posix::Posix;

impl Posix {
    /// Counters of every stack, sockets, and the path decision of every descriptor with its
    /// reason, as JSON.
    #[must_use]
    pub fn stats_json(&self) -> String {
        let report = Report {
            version: env!("CARGO_PKG_VERSION"),
            stacks: self.runtime.cells().iter().map(|cell| StackReport::of(cell)).collect(),
            decisions: self.router.counts().filter(|&(_, count)| count > 0).collect(),
            descriptors: self.descriptors(),
        };
        serde_json::to_string_pretty(&report).expect("strings and numbers only")
    }

    fn descriptors(&self) -> Vec<DescriptorReport> {
        let numbers = self.table.numbers(0, usize::MAX);
        let known = numbers.into_iter().filter_map(|fd| Some((fd, self.table.get(fd)?)));
        known.map(|(fd, description)| DescriptorReport::of(fd, &description)).collect()
    }
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    stacks: Vec<StackReport>,
    /// How many sockets went where for which reason; reasons that never occurred are left out.
    decisions: BTreeMap<&'static str, u64>,
    descriptors: Vec<DescriptorReport>,
}

#[derive(Serialize)]
struct StackReport {
    index: usize,
    mode: &'static str,
    /// It stopped after breaking an invariant.
    failed: bool,
    counters: BTreeMap<&'static str, u64>,
    sockets: Vec<SocketReport>,
}

impl StackReport {
    fn of(cell: &StackCell) -> Self {
        // First, and in a statement of its own: asking for the counters takes the lock as well.
        let sockets = cell.lock().stack().sockets();
        Self {
            index: cell.index(),
            mode: match cell.mode() {
                StackThreadMode::RunToWakeup => "run-to-wakeup",
                StackThreadMode::RunToCompletion => "run-to-completion",
            },
            failed: cell.failed(),
            counters: cell.stats().into_iter().collect(),
            sockets: sockets.iter().map(SocketReport::of).collect(),
        }
    }
}

/// A socket of a stack, also those that the program has closed.
#[derive(Serialize)]
struct SocketReport {
    protocol: &'static str,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
}

impl SocketReport {
    fn of(summary: &SocketSummary) -> Self {
        let &SocketSummary { socket: _, protocol, local, remote, state } = summary;
        Self { protocol: protocol_name(protocol), local, remote, state: state.map(state_name) }
    }
}

/// A descriptor of the program that was, or is, one of ours.
#[derive(Serialize)]
struct DescriptorReport {
    fd: RawFd,
    protocol: &'static str,
    /// Who moves its data.
    path: &'static str,
    /// Why.
    reason: Option<&'static str>,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    state: Option<&'static str>,
}

impl DescriptorReport {
    fn of(fd: RawFd, description: &Description) -> Self {
        match description.socket() {
            Some(socket) => Self::of_socket(fd, socket),
            None => Self {
                fd,
                protocol: "epoll",
                path: "both",
                reason: None,
                local: None,
                remote: None,
                state: None,
            },
        }
    }

    fn of_socket(fd: RawFd, socket: &Socket) -> Self {
        let state = socket.state();
        let first = match &**state {
            State::Undecided(bound) => bound.endpoints.first(),
            other => other.endpoints().first(),
        };
        let tcp_state = |endpoint: &Endpoint| {
            let tcp = socket.protocol == Protocol::Tcp;
            tcp.then(|| state_name(endpoint.cell.lock().stack().tcp_state(endpoint.socket)))
        };
        Self {
            fd,
            protocol: protocol_name(socket.protocol),
            path: match &**state {
                State::Undecided(_) => "undecided",
                State::Kernel => "kernel",
                State::Connection(_)
                | State::Listener { kernel: false, .. }
                | State::Datagram { kernel: false, .. } => "stack",
                State::Listener { kernel: true, .. } | State::Datagram { kernel: true, .. } => {
                    "both"
                }
            },
            reason: socket.reason.lock().map(crate::route::Reason::name),
            local: first.and_then(Endpoint::local_addr),
            remote: first
                .and_then(|endpoint| endpoint.cell.lock().stack().remote_addr(endpoint.socket)),
            state: first.and_then(tcp_state),
        }
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

/// As `ss` has them.
fn state_name(state: TcpState) -> &'static str {
    match state {
        TcpState::Established => "established",
        TcpState::SynSent => "syn-sent",
        TcpState::SynReceived => "syn-recv",
        TcpState::FinWait1 => "fin-wait-1",
        TcpState::FinWait2 => "fin-wait-2",
        TcpState::TimeWait => "time-wait",
        TcpState::Closed => "closed",
        TcpState::CloseWait => "close-wait",
        TcpState::LastAck => "last-ack",
        TcpState::Listen => "listening",
        TcpState::Closing => "closing",
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::RawFd;

    use serde_json::Value;

    use crate::testbed::Testbed;

    fn stats(bed: &Testbed) -> Value {
        serde_json::from_str(&bed.posix.stats_json()).expect("it is JSON")
    }

    fn descriptor(stats: &Value, fd: RawFd) -> &Value {
        let all = stats["descriptors"].as_array().expect("it is a list");
        all.iter().find(|entry| entry["fd"] == fd).expect("it is listed")
    }

    #[test]
    fn every_descriptor_shows_its_path_and_why() {
        let bed = Testbed::new();
        let (both, port) = bed.listener(Ipv4Addr::UNSPECIFIED);
        let (client, server) = bed.pair();
        let undecided = bed.socket(libc::SOCK_DGRAM);
        let stats = stats(&bed);
        let listener = descriptor(&stats, both);
        assert_eq!((&listener["path"], &listener["reason"]), (&"both".into(), &"wildcard".into()));
        assert_eq!(listener["local"], format!("0.0.0.0:{port}"));
        assert_eq!(listener["state"], "listening");
        let accepted = descriptor(&stats, server);
        assert_eq!((&accepted["path"], &accepted["reason"]), (&"stack".into(), &"accepted".into()));
        assert_eq!(accepted["state"], "established");
        assert_eq!(accepted["remote"], descriptor(&stats, client)["local"]);
        assert_eq!(descriptor(&stats, client)["reason"], "own_address");
        assert_eq!(descriptor(&stats, undecided)["path"], "undecided");
        assert_eq!(stats["decisions"]["accepted"], 1);
    }

    #[test]
    fn a_stack_shows_its_counters_and_its_sockets() {
        let bed = Testbed::new();
        let (_client, _server) = bed.pair();
        let stats = stats(&bed);
        let stack = &stats["stacks"][0];
        assert_eq!((&stack["index"], &stack["failed"]), (&0.into(), &false.into()));
        assert!(stack["counters"]["tcp_segments_rx"].as_u64().is_some_and(|count| count > 0));
        let sockets = stack["sockets"].as_array().expect("it is a list");
        let established = sockets.iter().filter(|socket| socket["state"] == "established");
        assert_eq!(established.count(), 2);
        assert!(sockets.iter().all(|socket| socket["protocol"] == "tcp"));
    }
}
