//! An ordinary program on sockets, for rigs: it knows nothing of lstack.
//!
//! ```text
//! rig-peer probe ADDRESS SECONDS            connects, trying again until it succeeds
//! rig-peer send ADDRESS BYTES SEED          connects, sends, closes and exits at once
//! rig-peer receive ADDRESS BYTES SEED       serves for ever; checks what each connection brings
//! rig-peer sink ADDRESS                     serves for ever; says how each connection ended
//! rig-peer source ADDRESS                   sends until the connection ends; says how it ended
//! rig-peer echo ADDRESS                     serves for ever; sends back what it receives
//! ```

#![forbid(unsafe_code)]

use std::env;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
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
        ["send", address, bytes, seed] => {
            send(address, bytes.parse().context("BYTES")?, seed.parse().context("SEED")?)
        }
        ["receive", address, bytes, seed] => {
            receive(address, bytes.parse().context("BYTES")?, seed.parse().context("SEED")?)
        }
        ["sink", address] => serve(address, |stream| println!("{}", drain(stream))),
        ["source", address] => source(address),
        ["echo", address] => serve(address, echo),
        _ => bail!("usage: rig-peer probe|send|receive|sink|source|echo ADDRESS ..."),
    }
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

/// The last bytes are still in the send buffer when this process ends.
fn send(address: &str, bytes: u64, seed: u64) -> Result<()> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    let mut pattern = Pattern::new(seed);
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let count = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        pattern.fill(&mut chunk[..count]);
        stream.write_all(&chunk[..count]).context("sending")?;
        left -= count as u64;
    }
    Ok(())
}

fn receive(address: &str, bytes: u64, seed: u64) -> Result<()> {
    serve(address, move |mut stream| {
        let mut pattern = Pattern::new(seed);
        let mut chunk = vec![0; CHUNK];
        let mut received = 0;
        let verdict = loop {
            match stream.read(&mut chunk) {
                Ok(0) if received == bytes => break "complete".to_owned(),
                Ok(0) => break format!("short, {received} bytes"),
                Ok(count) => {
                    if let Some(at) = pattern.mismatch(&chunk[..count]) {
                        break format!("wrong at byte {}", received + at as u64);
                    }
                    received += count as u64;
                }
                Err(error) => break format!("failed after {received} bytes: {error}"),
            }
        };
        println!("{verdict}");
    })
}

fn source(address: &str) -> Result<()> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    println!("connected");
    let chunk = vec![0; CHUNK];
    let error = loop {
        if let Err(error) = stream.write_all(&chunk) {
            break error;
        }
    };
    println!("{}", word_for(error.kind()));
    Ok(())
}

fn echo(mut stream: TcpStream) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(count) = stream.read(&mut chunk) {
        if count == 0 || stream.write_all(&chunk[..count]).is_err() {
            break;
        }
    }
    // The peer may be gone already, and then there is nothing left to say.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Reads until the connection ends, and says how it did.
fn drain(mut stream: TcpStream) -> String {
    let mut chunk = vec![0; CHUNK];
    let mut received: u64 = 0;
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return format!("end {received}"),
            Ok(count) => {
                if received == 0 {
                    println!("first bytes");
                }
                received += count as u64;
            }
            Err(error) => return format!("{} {received}", word_for(error.kind())),
        }
    }
}

fn serve(address: &str, handle: impl Fn(TcpStream) + Copy + Send + 'static) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
    println!("listening");
    for stream in listener.incoming() {
        let stream = stream.context("accepting")?;
        thread::spawn(move || handle(stream));
    }
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
