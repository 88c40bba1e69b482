//! Many connections between ordinary programs on sockets, for rigs and benchmarks.
//!
//! ```text
//! rig-crowd serve ADDRESS PORTS                   echoes on PORTS ports from that of ADDRESS on
//! rig-crowd visit ADDRESS PORTS COUNT REQUESTS    opens COUNT connections, and asks REQUESTS
//!                                                 times on one of them, each time another
//! rig-crowd pass ADDRESS PORTS COUNT              opens and closes COUNT connections in turn
//! ```

#![forbid(unsafe_code)]

use std::env;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use lstack_tests::pattern::Pattern;
use mio::net::{TcpListener as Listener, TcpStream as Stream};
use mio::{Events, Interest, Poll, Token};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["serve", address, ports] => serve(&addresses(address, ports)?),
        ["visit", address, ports, count, requests] => visit(
            &addresses(address, ports)?,
            count.parse().context("COUNT")?,
            requests.parse().context("REQUESTS")?,
        ),
        ["pass", address, ports, count] => {
            pass(&addresses(address, ports)?, count.parse().context("COUNT")?)
        }
        _ => bail!("usage: see the head of rig_crowd.rs"),
    }
}

/// A client has fewer than 30,000 ports of its own for each of a server's.
fn addresses(first: &str, ports: &str) -> Result<Vec<SocketAddr>> {
    let first: SocketAddr = first.parse().context("ADDRESS")?;
    let ports: u16 = ports.parse().context("PORTS")?;
    Ok((0..ports).map(|n| SocketAddr::new(first.ip(), first.port() + n)).collect())
}

/// One thread and one epoll for all.
fn serve(addresses: &[SocketAddr]) -> Result<()> {
    let mut poll = Poll::new().context("making an epoll")?;
    let mut listeners = Vec::new();
    for (index, address) in addresses.iter().enumerate() {
        let mut listener = Listener::bind(*address).with_context(|| address.to_string())?;
        poll.registry().register(&mut listener, Token(index), Interest::READABLE)?;
        listeners.push(listener);
    }
    println!("listening");
    let mut streams: Vec<Option<Stream>> = Vec::new();
    let mut free = Vec::new();
    let mut events = Events::with_capacity(1_024);
    let mut ended = 0_u64;
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            let Token(token) = event.token();
            if let Some(listener) = listeners.get(token) {
                while let Some(mut stream) = accept(listener)? {
                    let slot = free.pop().unwrap_or_else(|| {
                        streams.push(None);
                        streams.len() - 1
                    });
                    let token = Token(listeners.len() + slot);
                    poll.registry().register(&mut stream, token, Interest::READABLE)?;
                    streams[slot] = Some(stream);
                }
                continue;
            }
            let slot = token - listeners.len();
            if let Some(stream) = &mut streams[slot]
                && !echo(stream)?
            {
                streams[slot] = None;
                free.push(slot);
                ended += 1;
                if ended.is_multiple_of(REPORT) {
                    println!("{ended} ended");
                }
            }
        }
    }
}

fn accept(listener: &Listener) -> Result<Option<Stream>> {
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error).context("accepting"),
    }
}

/// Sends back what there is; `false` when the peer has ended.
fn echo(stream: &mut Stream) -> Result<bool> {
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => stream.write_all(&buffer[..count]).context("sending")?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error).context("receiving"),
        }
    }
}

fn visit(addresses: &[SocketAddr], count: usize, requests: u32) -> Result<()> {
    let start = Instant::now();
    let mut streams = Vec::with_capacity(count);
    for index in 0..count {
        let address = addresses[index % addresses.len()];
        let stream = TcpStream::connect(address)
            .with_context(|| format!("connection {index} to {address}"))?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let opened = start.elapsed();
    println!("{:.0} opened a second", count as f64 / opened.as_secs_f64());

    let mut random = Pattern::new(1);
    let start = Instant::now();
    for request in 0..requests {
        let question = request.to_le_bytes();
        let stream = &mut streams[random.below(count)];
        stream.write_all(&question).context("asking")?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).context("reading the answer")?;
        ensure!(answer == question, "it is the answer to another question");
    }
    println!("{:.2} us a request", start.elapsed().as_secs_f64() * 1e6 / f64::from(requests));
    println!("holding");
    // Whoever started us looks at the server now, and ends us.
    loop {
        std::thread::park();
    }
}

fn pass(addresses: &[SocketAddr], count: usize) -> Result<()> {
    let start = Instant::now();
    for index in 0..count {
        let address = addresses[index % addresses.len()];
        TcpStream::connect(address).with_context(|| format!("connection {index} to {address}"))?;
    }
    println!("{:.0} passed a second", count as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// How often a server says how many connections have ended.
const REPORT: u64 = 10_000;
