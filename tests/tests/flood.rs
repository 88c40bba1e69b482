//! A flood of connection requests keeps no honest client out.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lstack_tests::frames::{self, IPV4, Injector, Ipv4, TCP};
use lstack_tests::pattern::Pattern;
use lstack_tests::rig::{Pairing, Plan, Rig};
use lstack_tests::stack_conf::Mode;
use lstack_tests::{suite, wait};

/// Requests come from everywhere, by way of the client's side, and are never completed.
fn honest_clients_get_in(plan: Plan) -> Result<()> {
    let _turn = suite::turn();
    let rig = plan.set("gateway_addr", "\"198.18.0.2\"").build()?;
    let mut server = rig
        .server
        .peer(&["receive", &rig.server.at(PORT), BYTES, SEED, &CLIENTS.to_string()])?
        .start()?;
    server.wait_for_output("listening", LIMIT)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let flood = scope.spawn(|| flood(&rig, &over));
        // Also when a check fails, or the scope would wait for ever.
        let _end = End(&over);
        wait::until("SYN cookies", LIMIT, || {
            Ok((server.stats()?.counter("tcp_syn_cookies_tx") > 0).then_some(()))
        })?;
        for _ in 0..CLIENTS - 1 {
            send(&rig)?;
        }
        let stats = server.stats()?;
        ensure!(stats.counter("tcp_syn_cookies_rx") > 0, "cookies: {}", stats.summary());
        ensure!(stats.sockets() < 10, "{} sockets", stats.sockets());
        over.store(true, Ordering::Relaxed);
        let (sent, time) = flood.join().expect("the flood does not panic")?;
        println!("flood: {sent} requests, {:.0} a second", sent as f64 / time.as_secs_f64());
        send(&rig)
    })?;
    let finished = server.wait(LIMIT)?.success()?;
    let complete = finished.output.lines().filter(|line| *line == "complete").count();
    ensure!(complete == CLIENTS, "{complete} of {CLIENTS}:\n{}", finished.output);
    Ok(())
}

#[test]
fn honest_clients_get_in_during_a_flood() -> Result<()> {
    honest_clients_get_in(Plan::new(Pairing::StackServer))
}

#[test]
fn honest_clients_get_in_during_a_flood_of_two_stacks_with_drivers() -> Result<()> {
    honest_clients_get_in(Plan::new(Pairing::StackServer).mode(Mode::RunToWakeup).cpus("0,1"))
}

/// Connects on the client's side, says how long that took, and has data sent and checked.
fn send(rig: &Rig) -> Result<()> {
    let address = SocketAddr::from((rig.server.address, PORT));
    let began = Instant::now();
    rig.client
        .peer(&["send", &address.to_string(), BYTES, SEED, "1"])?
        .run(LIMIT)?
        .success()
        .context("an honest client")?;
    println!("connected, sent and closed in {:?}", began.elapsed());
    Ok(())
}

/// Sends requests from addresses and ports of no meaning until it is over.
fn flood(rig: &Rig, over: &AtomicBool) -> Result<(u64, Duration)> {
    let connected = rig.client.namespace.enter(|| {
        // Teaches the kernel the hardware address; a port nobody listens on.
        Ok(TcpStream::connect(SocketAddr::from((rig.server.address, 1))).is_err())
    })?;
    ensure!(connected, "nobody listens there");
    let stack = frames::neighbour(&rig.client, rig.server.address)?;
    let mut random = Pattern::new(1);
    let requests: Vec<Vec<u8>> = (0..REQUESTS)
        .map(|_| {
            let from = Ipv4Addr::new(203, 0, 113, 1 + random.below(254) as u8);
            let port = 1_024 + random.below(60_000) as u16;
            let segment = frames::tcp((from, port), (rig.server.address, PORT), SYN, &[]);
            frames::ethernet(
                stack,
                IPV4,
                &Ipv4::new(from, rig.server.address, TCP, segment).bytes(),
            )
        })
        .collect();
    let mut injector = Injector::new(&rig.client)?;
    let began = Instant::now();
    let mut sent = 0;
    while !over.load(Ordering::Relaxed) && began.elapsed() < LIMIT {
        for request in &requests {
            sent += u64::from(injector.send(request));
        }
    }
    Ok((sent, began.elapsed()))
}

/// Ends the flood.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const SYN: u8 = 2;

/// Different requests; they repeat, as long as their handshakes are unfinished.
const REQUESTS: usize = 20_000;

/// Clients one after the other, the last of them after the flood.
const CLIENTS: usize = 4;

const PORT: u16 = 7000;

const BYTES: &str = "100000";

const SEED: &str = "1";

/// For anything on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
