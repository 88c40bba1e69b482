//! An ordinary program on sockets, for rigs: it knows nothing of lstack.
//!
//! ```text
//! rig-peer probe ADDRESS SECONDS             connects, trying again until it succeeds
//! rig-peer send ADDRESS BYTES SEED COUNT     on COUNT connections: sends, and exits at once
//! rig-peer give ADDRESS BYTES SEED COUNT     accepts COUNT connections, sends, and exits at once
//! rig-peer receive ADDRESS BYTES SEED COUNT  checks what each of COUNT connections brings, and
//!                                            says how long it took from the first of them on
//! rig-peer take ADDRESS BYTES SEED COUNT     the same on COUNT connections of its own
//! rig-peer pause ADDRESS BYTES SEED SECONDS  as receive, but first lets one connection wait
//! rig-peer sink ADDRESS COUNT                says how each connection ended, until COUNT have
//! rig-peer source ADDRESS                    sends until the connection ends; says how it ended
//! rig-peer loopback                          talks to itself on 127.0.0.1
//! rig-peer self                              lists its own descriptors and counts its threads
//! ```

#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lstack_tests::pattern::Pattern;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["probe", address, seconds] => {
            probe(address, Duration::from_secs(seconds.parse().context("SECONDS")?))
        }
        ["send", address, bytes, seed, count] => {
            let load = Load::new(bytes, seed)?;
            at_once(count, || write_pattern(connect(address)?, load))
        }
        ["give", address, bytes, seed, count] => {
            let (load, listener) = (Load::new(bytes, seed)?, listen(address)?);
            at_once(count, || write_pattern(listener.accept()?.0, load))
        }
        ["receive", address, bytes, seed, count] => {
            let load = Load::new(bytes, seed)?;
            serve(address, count, move |stream| load.check(stream), took)
        }
        ["take", address, bytes, seed, count] => {
            let load = Load::new(bytes, seed)?;
            let start = OnceLock::new();
            at_once(count, || {
                let stream = connect(address)?;
                start.get_or_init(Instant::now);
                println!("{}", load.check(stream));
                Ok(())
            })?;
            took(*start.get().context("COUNT is 0")?);
            Ok(())
        }
        ["pause", address, bytes, seed, seconds] => {
            let (load, listener) = (Load::new(bytes, seed)?, listen(address)?);
            let (stream, _) = listener.accept().context("accepting")?;
            println!("accepted");
            thread::sleep(Duration::from_secs(seconds.parse().context("SECONDS")?));
            println!("{}", load.check(stream));
            Ok(())
        }
        ["sink", address, count] => serve(address, count, drain, |_| ()),
        ["source", address] => source(address),
        ["loopback"] => loopback(),
        ["self"] => describe_self(),
        _ => bail!("usage: see the head of rig_peer.rs"),
    }
}

/// The data a connection carries.
#[derive(Clone, Copy)]
struct Load {
    bytes: u64,
    seed: u64,
}

impl Load {
    fn new(bytes: &str, seed: &str) -> Result<Self> {
        Ok(Self { bytes: bytes.parse().context("BYTES")?, seed: seed.parse().context("SEED")? })
    }

    /// Reads to the end, and says whether it was this load.
    fn check(self, mut stream: TcpStream) -> String {
        let mut pattern = Pattern::new(self.seed);
        let mut chunk = vec![0; CHUNK];
        let mut received = 0;
        loop {
            match stream.read(&mut chunk) {
                Ok(0) if received == self.bytes => return "complete".to_owned(),
                Ok(0) => return format!("short, {received} bytes"),
                Ok(count) => {
                    if let Some(at) = pattern.mismatch(&chunk[..count]) {
                        return format!("wrong at byte {}", received + at as u64);
                    }
                    received += count as u64;
                }
                Err(error) => return format!("failed after {received} bytes: {error}"),
            }
        }
    }
}

fn connect(address: &str) -> Result<TcpStream> {
    TcpStream::connect(address).with_context(|| format!("connecting to {address}"))
}

fn listen(address: &str) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
    println!("listening");
    Ok(listener)
}

/// Does `work` on as many threads.
fn at_once(count: &str, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let count: u32 = count.parse().context("COUNT")?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })
}

fn probe(address: &str, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        match TcpStream::connect(address) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => {
                return Err(error).with_context(|| format!("connecting to {address}"));
            }
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// The last bytes are still in the send buffer when this returns and the process ends.
fn write_pattern(mut stream: TcpStream, load: Load) -> Result<()> {
    let mut pattern = Pattern::new(load.seed);
    let mut chunk = vec![0; CHUNK];
    let mut left = load.bytes;
    while left > 0 {
        let count = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        pattern.fill(&mut chunk[..count]);
        stream.write_all(&chunk[..count]).context("sending")?;
        left -= count as u64;
    }
    Ok(())
}

fn source(address: &str) -> Result<()> {
    let mut stream = connect(address)?;
    let chunk = vec![0; CHUNK];
    let error = loop {
        if let Err(error) = stream.write_all(&chunk) {
            break error;
        }
    };
    println!("{}", word_for(error.kind()));
    Ok(())
}

/// Reads until the connection ends, and says how it did.
fn drain(mut stream: TcpStream) -> String {
    let mut chunk = vec![0; CHUNK];
    let mut received: u64 = 0;
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return format!("end after {received}"),
            Ok(count) => {
                if received == 0 {
                    println!("first bytes");
                }
                received += count as u64;
            }
            Err(error) => return format!("{} after {received}", word_for(error.kind())),
        }
    }
}

fn took(start: Instant) {
    println!("{:.3} seconds", start.elapsed().as_secs_f64());
}

/// Serves until `count` connections have ended; prints what `handle` says of each. `at_end` is
/// told when the first one came.
fn serve(
    address: &str,
    count: &str,
    handle: impl Fn(TcpStream) -> String + Copy + Send + 'static,
    at_end: fn(Instant),
) -> Result<()> {
    let count: u32 = count.parse().context("COUNT")?;
    let listener = listen(address)?;
    let ended = Arc::new(AtomicU32::new(0));
    let mut start = None;
    for stream in listener.incoming() {
        let stream = stream.context("accepting")?;
        let start = *start.get_or_insert_with(Instant::now);
        let ended = Arc::clone(&ended);
        thread::spawn(move || {
            println!("{}", handle(stream));
            if ended.fetch_add(1, Ordering::Relaxed) + 1 == count {
                at_end(start);
                process::exit(0);
            }
        });
    }
    Ok(())
}

fn loopback() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listening on 127.0.0.1")?;
    let mut near = TcpStream::connect(listener.local_addr()?).context("connecting to ourselves")?;
    let (mut far, _) = listener.accept().context("accepting")?;
    near.write_all(b"hello").context("sending")?;
    let mut received = [0; 5];
    far.read_exact(&mut received).context("receiving")?;
    println!("{}", String::from_utf8_lossy(&received));
    Ok(())
}

/// What a library loaded into this process would show by: its descriptors and its threads.
fn describe_self() -> Result<()> {
    let mut descriptors: Vec<String> = fs::read_dir("/proc/self/fd")?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    descriptors.sort();
    let threads = fs::read_dir("/proc/self/task")?.count();
    println!("descriptors {}, threads {threads}", descriptors.join(" "));
    Ok(())
}

/// The ways a connection ends by its peer's death, as Linux tells them apart.
fn word_for(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ConnectionReset => "reset",
        ErrorKind::BrokenPipe => "broken-pipe",
        ErrorKind::TimedOut => "timed-out",
        ErrorKind::HostUnreachable => "unreachable",
        _ => "other-error",
    }
}

/// Not a multiple of any segment size, so that boundaries wander.
const CHUNK: usize = 50_021;

/// Between attempts to reach a server that is still starting.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
