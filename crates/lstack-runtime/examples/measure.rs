//! Prints what a runtime costs: processor time while idle, an empty call, a UDP round trip.
//!
//! `cargo run --release -p lstack-runtime --example measure`

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use lstack_config::Config;
use lstack_config::StackThreadMode::{self, RunToCompletion, RunToWakeup};
use lstack_core::tcp::Reuse;
use lstack_core::{Event, SocketId};
use lstack_runtime::{Progress, Runtime, StackCell, Watcher, memory_pair};
use rustix::time::{ClockId, clock_gettime};

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];

fn main() {
    for mode in [RunToCompletion, RunToWakeup] {
        println!("{mode:?}");
        let hosts = hosts(mode);
        idle(&hosts);
        empty_call(&hosts[0].cells()[0]);
        round_trips(&hosts);
        for host in hosts {
            host.stop(Duration::ZERO);
        }
    }
}

fn hosts(mode: StackThreadMode) -> [Runtime; 2] {
    let (one, other) = memory_pair(1500);
    let mut links = [Some(one), Some(other)];
    std::array::from_fn(|index| {
        let mut config = Config::default_for_tests(ADDRESSES[index], 24);
        config.stack_thread_mode = mode;
        let link = links[index].take().expect("each end is used once");
        Runtime::with_links(&config, vec![Box::new(link)]).expect("a memory link starts")
    })
}

/// Processor time of the whole process while nothing happens.
fn idle(hosts: &[Runtime; 2]) {
    const WINDOW: Duration = Duration::from_secs(3);
    let naps = || -> u64 {
        let cells = hosts.iter().map(|host| &host.cells()[0]);
        let stats = cells.flat_map(|cell| cell.stats());
        stats.filter(|(name, _)| *name == "runtime_naps").map(|(_, value)| value).sum()
    };
    // The first second counts as a pause, see the idle policy.
    for label in ["idle, first seconds", "idle, later"] {
        let (used, slept) = (processor_time(), naps());
        thread::sleep(WINDOW);
        let share = (processor_time() - used).as_secs_f64() / WINDOW.as_secs_f64();
        println!(
            "  {label}: {:.3} % of a processor per stack, {} naps in {WINDOW:?}",
            share * 100.0 / 2.0,
            (naps() - slept) / 2,
        );
    }
}

fn empty_call(cell: &Arc<StackCell>) {
    const CALLS: u32 = 1_000_000;
    let start = Instant::now();
    for _ in 0..CALLS {
        drop(cell.enter());
    }
    println!("  enter and leave: {:.1} ns", per(start.elapsed(), CALLS));
}

fn round_trips(hosts: &[Runtime; 2]) {
    const ROUNDS: u32 = 200_000;
    let cells = [&hosts[0].cells()[0], &hosts[1].cells()[0]];
    let sockets = [udp(cells[0], 0), udp(cells[1], 1)];
    let echo = Arc::clone(cells[1]);
    cells[0].lock().watch(sockets[0], Arc::new(Parked(thread::current())), 0);
    let echo = thread::spawn(move || {
        echo.lock().watch(sockets[1], Arc::new(Parked(thread::current())), 0);
        for _ in 0..ROUNDS {
            let from = receive(&echo, sockets[1]);
            send(&echo, sockets[1], from);
        }
    });
    let start = Instant::now();
    for _ in 0..ROUNDS {
        send(cells[0], sockets[0], (ADDRESSES[1], 7).into());
        receive(cells[0], sockets[0]);
    }
    println!("  UDP round trip: {:.0} ns", per(start.elapsed(), ROUNDS));
    echo.join().expect("the echo does not panic");
}

fn udp(cell: &Arc<StackCell>, index: usize) -> SocketId {
    let mut guard = cell.lock();
    let id = guard.stack().udp_open().expect("within the limit");
    guard.stack().bind(id, (ADDRESSES[index], 7).into(), Reuse::default()).expect("free");
    id
}

fn send(cell: &Arc<StackCell>, id: SocketId, to: SocketAddr) {
    cell.enter().udp_send(id, Some(to), &[IoSlice::new(&[1; 64])]).expect("the link has room");
}

fn receive(cell: &Arc<StackCell>, id: SocketId) -> SocketAddr {
    let mut buffer = [0; 64];
    loop {
        let received =
            cell.enter().stack().udp_recv(id, &mut [IoSliceMut::new(&mut buffer)], false);
        match received {
            Ok(datagram) => return datagram.from,
            // Application threads spin in run-to-completion mode and sleep in the other.
            Err(_) if cell.drive() == Progress::Busy && cell.mode() == RunToWakeup => {
                thread::park();
            }
            Err(_) => {}
        }
    }
}

/// A sleeping thread.
struct Parked(Thread);

impl Watcher for Parked {
    fn on_event(&self, _token: u64, _event: &Event) -> bool {
        true
    }

    fn wake(&self) {
        self.0.unpark();
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn per(time: Duration, count: u32) -> f64 {
    time.as_nanos() as f64 / f64::from(count)
}
