//! Prints how sockets answer, right calls and wrong ones alike: one line for each question.
//!
//! Run on the kernel and on lstack, it must print the same. `socket-answers OWN PEER`: the address
//! of this side, and the address of a peer that has no socket at all.

#![forbid(unsafe_code)]

use std::env;
use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [own, peer] = arguments.as_slice() else { bail!("usage: socket-answers OWN PEER") };
    let own: Ipv4Addr = own.parse().context("OWN")?;
    let peer: Ipv4Addr = peer.parse().context("PEER")?;
    names(own)?;
    connecting(own, peer)?;
    streams(own)?;
    ends(own)?;
    waiting(own)?;
    datagrams(own, peer)?;
    options(own)
}

/// Binding, and what sockets say of themselves.
fn names(own: Ipv4Addr) -> Result<()> {
    let listener = TcpListener::bind((own, 0))?;
    let address = listener.local_addr()?;
    say("a listener has the address it was bound to", Ok(address.ip()));
    say("port 0 becomes a port", Ok(address.port() != 0));
    say("the same address again", TcpListener::bind(address));
    say("an address of somebody else", TcpListener::bind((STRANGER, 0)));
    drop(listener);
    say("the same address after the listener closed", TcpListener::bind(address));

    let socket = UdpSocket::bind((own, 0))?;
    say("a datagram socket twice", UdpSocket::bind(socket.local_addr()?));
    say("the peer of an unconnected socket", socket.peer_addr());
    let any = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    say("a wildcard address", any.local_addr().map(|address| address.ip()));
    Ok(())
}

/// Attempts that fail, each in its own way.
fn connecting(own: Ipv4Addr, peer: Ipv4Addr) -> Result<()> {
    say("a port of the peer where nobody listens", TcpStream::connect((peer, CLOSED_PORT)));
    say("a port of our own where nobody listens", TcpStream::connect((own, CLOSED_PORT)));
    say("a neighbour that does not exist", TcpStream::connect((ABSENT, CLOSED_PORT)));
    say("a host without a route", TcpStream::connect((STRANGER, CLOSED_PORT)));
    let absent = SocketAddr::from((ABSENT, CLOSED_PORT));
    let limit = Duration::from_millis(100);
    say("a neighbour that does not exist, in a hurry", TcpStream::connect_timeout(&absent, limit));
    let refused = SocketAddr::from((peer, CLOSED_PORT));
    say("a closed port, without blocking", TcpStream::connect_timeout(&refused, SOON));
    Ok(())
}

/// A connection that does what connections do.
fn streams(own: Ipv4Addr) -> Result<()> {
    let (mut near, mut far) = pair(own)?;
    say("our address", near.local_addr().map(|address| address.ip()));
    say("their address is ours", Ok(near.peer_addr()? == far.local_addr()?));
    say("and the other way round", Ok(far.peer_addr()? == near.local_addr()?));

    near.write_all(b"hello")?;
    let mut buffer = [0; 16];
    say("peeking", far.peek(&mut buffer));
    say("peeking again", far.peek(&mut buffer[..2]));
    say("reading into nothing", far.read(&mut []));
    say("reading a part", far.read(&mut buffer[..2]));
    say("reading the rest", far.read(&mut buffer));
    say("what was read", Ok(String::from_utf8_lossy(&buffer[..3]).into_owned()));
    say("writing nothing", near.write(&[]));

    let many = vec![7; 3_000_000];
    let sum = thread::scope(|scope| -> Result<usize> {
        let reader = scope.spawn(|| -> io::Result<usize> {
            let mut received = vec![0; many.len()];
            far.read_exact(&mut received)?;
            Ok(received.iter().filter(|byte| **byte == 7).count())
        });
        near.write_all(&many)?;
        Ok(reader.join().expect("the reader only reads")?)
    })?;
    say("many bytes", Ok(sum));
    Ok(())
}

/// How connections end.
fn ends(own: Ipv4Addr) -> Result<()> {
    let mut buffer = [0; 16];

    let (mut near, mut far) = pair(own)?;
    near.shutdown(Shutdown::Write)?;
    say("reading after their end", far.read(&mut buffer));
    say("and once more", far.read(&mut buffer));
    say("writing after our end", near.write(b"x"));
    say("writing the other way", far.write(b"back"));
    say("reading it", near.read(&mut buffer));
    say("ending twice", near.shutdown(Shutdown::Write));
    say("ending the other direction", near.shutdown(Shutdown::Read));
    say("reading after ending it", near.read(&mut buffer));

    let (mut near, far) = pair(own)?;
    near.write_all(b"unread")?;
    far.peek(&mut buffer)?;
    drop(far);
    say("reading when they closed with data unread", near.read(&mut buffer));

    let (mut near, far) = pair(own)?;
    drop(far);
    say("reading when they closed", near.read(&mut buffer));
    say("the first write after they closed", near.write(b"x"));
    near.set_read_timeout(Some(SOON))?;
    say("reading then", near.read(&mut buffer));
    say("writing then", near.write(b"x"));
    say("ending then", near.shutdown(Shutdown::Both));
    say("the pending error", near.take_error());

    let listener = TcpListener::bind((own, 0))?;
    let mut waiting = TcpStream::connect(listener.local_addr()?)?;
    drop(listener);
    say("reading when the listener closed before accepting", waiting.read(&mut buffer));
    Ok(())
}

/// Calls that would wait.
fn waiting(own: Ipv4Addr) -> Result<()> {
    let mut buffer = [0; 16];
    let listener = TcpListener::bind((own, 0))?;
    listener.set_nonblocking(true)?;
    say("accepting nobody", listener.accept().map(|_| ()));

    let (mut near, mut far) = pair(own)?;
    near.set_nonblocking(true)?;
    say("reading nothing", near.read(&mut buffer));
    let chunk = vec![0; 1 << 20];
    let error = loop {
        if let Err(error) = near.write(&chunk) {
            break error;
        }
    };
    say::<()>("writing until full", Err(error));
    near.set_nonblocking(false)?;
    near.set_write_timeout(Some(SHORT))?;
    say("writing when full, with a time limit", near.write(&chunk));
    far.read_exact(&mut buffer)?;
    near.set_read_timeout(Some(SHORT))?;
    say("reading with a time limit", near.read(&mut buffer));

    let socket = UdpSocket::bind((own, 0))?;
    socket.set_read_timeout(Some(SHORT))?;
    say("a datagram with a time limit", socket.recv(&mut buffer));
    socket.set_nonblocking(true)?;
    say("a datagram without waiting", socket.recv(&mut buffer));
    Ok(())
}

/// Datagrams and their edges.
fn datagrams(own: Ipv4Addr, peer: Ipv4Addr) -> Result<()> {
    let mut buffer = vec![0; 70_000];
    let near = UdpSocket::bind((own, 0))?;
    let far = UdpSocket::bind((own, 0))?;
    near.set_read_timeout(Some(SOON))?;
    far.set_read_timeout(Some(SOON))?;

    say("an empty datagram", near.send_to(&[], far.local_addr()?));
    let (length, from) = far.recv_from(&mut buffer)?;
    say("received", Ok((length, from == near.local_addr()?)));
    say("ten bytes", near.send_to(&[1; 10], far.local_addr()?));
    say("peeking at them", far.peek(&mut buffer));
    say("into a buffer of four", far.recv(&mut buffer[..4]));
    say("the largest", near.send_to(&buffer[..65_507], far.local_addr()?));
    say("received", far.recv(&mut buffer));
    say("one byte more", near.send_to(&buffer[..65_508], far.local_addr()?));

    say("sending without a destination", near.send(b"x"));
    near.connect(far.local_addr()?)?;
    say("sending to the peer", near.send(b"x"));
    say("received", far.recv(&mut buffer));
    let stranger = UdpSocket::bind((own, 0))?;
    stranger.send_to(b"stranger", near.local_addr()?)?;
    far.send_to(b"friend", near.local_addr()?)?;
    say("a connected socket hears its peer only", near.recv(&mut buffer));

    for closed in [own, peer] {
        let socket = UdpSocket::bind((own, 0))?;
        socket.set_read_timeout(Some(SOON))?;
        socket.connect((closed, CLOSED_PORT))?;
        say("a datagram to a closed port", socket.send(b"x"));
        say("its answer", socket.recv(&mut buffer));
        say("the socket afterwards", socket.send(b"x"));
    }
    say("broadcast without permission", far.send_to(b"x", ("198.18.0.255", CLOSED_PORT)));
    Ok(())
}

/// Options that can be read back.
fn options(own: Ipv4Addr) -> Result<()> {
    let (near, _far) = pair(own)?;
    say("Nagle's algorithm is on", near.nodelay());
    near.set_nodelay(true)?;
    say("and off when asked", near.nodelay());
    say("time to live", near.ttl());
    near.set_ttl(9)?;
    say("another time to live", near.ttl());
    say("no time to live", near.set_ttl(256));
    say("no pending error", near.take_error());
    say("no time limit", near.read_timeout());
    let socket = UdpSocket::bind((own, 0))?;
    say("no broadcast", socket.broadcast());
    socket.set_broadcast(true)?;
    say("broadcast when asked", socket.broadcast());
    Ok(())
}

/// Two ends of a connection on our own address.
fn pair(own: Ipv4Addr) -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((own, 0))?;
    let near = TcpStream::connect(listener.local_addr()?).context("connecting to ourselves")?;
    let (far, _) = listener.accept().context("accepting ourselves")?;
    Ok((near, far))
}

/// One line: the question, and the answer or its error number.
fn say<T: Debug + Answer>(question: &str, answer: io::Result<T>) {
    match answer {
        Ok(answer) => println!("{question}: {}", answer.text()),
        Err(error) => match error.raw_os_error() {
            Some(number) => println!("{question}: errno {number}"),
            None => println!("{question}: {:?}", error.kind()),
        },
    }
}

/// What is comparable about an answer: of a socket only that there is one.
trait Answer {
    fn text(&self) -> String;
}

macro_rules! answers {
    ($($type:ty: $text:expr;)*) => {
        $(impl Answer for $type {
            fn text(&self) -> String {
                let text: fn(&Self) -> String = $text;
                text(self)
            }
        })*
    };
}

answers! {
    (): |_| "done".to_owned();
    bool: |value| value.to_string();
    u32: |value| value.to_string();
    usize: |value| value.to_string();
    String: String::clone;
    (usize, bool): |value| format!("{value:?}");
    std::net::IpAddr: ToString::to_string;
    SocketAddr: ToString::to_string;
    Option<Duration>: |value| format!("{value:?}");
    Option<io::Error>: |value| format!("{:?}", value.as_ref().map(io::Error::raw_os_error));
    TcpListener: |_| "a listener".to_owned();
    TcpStream: |_| "a connection".to_owned();
    UdpSocket: |_| "a socket".to_owned();
}

/// A port nobody listens on.
const CLOSED_PORT: u16 = 9;

/// An address of the subnet nobody has.
const ABSENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 99);

/// An address in no subnet of a rig (TEST-NET-1).
const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// A limit that is meant to pass.
const SHORT: Duration = Duration::from_millis(50);

/// A limit that is not, on any machine.
const SOON: Duration = Duration::from_secs(5);
