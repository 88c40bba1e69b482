//! Two processes with a real DPDK each, connected by memif.
//!
//! The test runs itself again as the other end.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;
#[path = "support/traffic.rs"]
mod traffic;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dpdk::PortRequest;
use support::{REQUEST, eal, start};
use traffic::{packet, receive, send};

const PEER: &str = "LSTACK_TEST_MEMIF_PEER";
const ROUNDS: usize = 200;

#[test]
fn packets_of_all_sizes_go_there_and_back_between_two_processes() {
    if let Some(socket) = std::env::var_os(PEER) {
        return echo(Path::new(&socket));
    }
    let dir = std::env::temp_dir().join(format!("lstack-memif-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let socket = dir.join("memif.sock");
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .arg("--exact")
        .arg("packets_of_all_sizes_go_there_and_back_between_two_processes")
        .env(PEER, &socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();

    let eal = eal(&vdev("server", &socket));
    // Larger than Ethernet and than a buffer of the ring: it travels in several slots.
    let request = PortRequest { mtu: Some(1600), ..REQUEST };
    let (started, negotiated, pool) = start(&eal, &request);
    assert_eq!(negotiated.mtu, 1600);
    assert!(started.port.wait_for_link(Duration::from_secs(20)), "the peer connects");
    let mut queues = started.queues.into_iter().next().unwrap();
    for round in 0..ROUNDS {
        let len = 1 + round * 1613 / ROUNDS;
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
        let sent = packet(&mut queues, &bytes);
        send(&mut queues, sent);
        assert_eq!(receive(&mut queues), bytes, "round {round}");
    }
    let mut large = packet(&mut queues, &[1; 2000]);
    large.chain(packet(&mut queues, &[2; 2000])).unwrap();
    send(&mut queues, large);
    assert_eq!(receive(&mut queues), [[1; 2000], [2; 2000]].concat());

    drop((queues, started.port));
    assert_eq!(pool.available(), pool.capacity());
    assert!(peer.wait().unwrap().success());
    std::fs::remove_dir_all(dir).unwrap();
}

fn echo(socket: &Path) {
    let eal = eal(&vdev("client", socket));
    let (started, _, pool) = start(&eal, &REQUEST);
    assert!(started.port.wait_for_link(Duration::from_secs(20)), "the server is there");
    let mut queues = started.queues.into_iter().next().unwrap();
    for _ in 0..ROUNDS {
        let bytes = receive(&mut queues);
        let back = packet(&mut queues, &bytes);
        send(&mut queues, back);
    }
    let bytes = receive(&mut queues);
    let (first, second) = bytes.split_at(2000);
    let mut back = packet(&mut queues, first);
    back.chain(packet(&mut queues, second)).unwrap();
    send(&mut queues, back);
    // The server closes when it has all; until then the ring must stay.
    let deadline = Instant::now() + Duration::from_secs(20);
    while started.port.link_is_up() {
        assert!(Instant::now() < deadline, "the server closes");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((queues, started.port));
    assert_eq!(pool.available(), pool.capacity());
}

fn vdev(role: &str, socket: &Path) -> String {
    format!("net_memif0,role={role},socket={},socket-abstract=no", socket.display())
}
