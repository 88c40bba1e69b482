//! One stack and a peer that a test plays by hand, segment by segment.
//!
//! Segments are written as `FLAGS SEQ ACK LEN` with optional words behind: `win 100`,
//! `mss 1460`, `ws 7`, `sackok`, `ts 10 20`, `sack 5-9 20-30`, `ce` (a router has marked it). Flags
//! are letters of `SAFRPEC`.
//! Sequence numbers are relative: a SYN has 0, the first byte 1. What the stack sends is written
//! the same way, without its window and timestamps, which few tests look at.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use lstack_core::tcp::{
    Close, ConnectError, More, RecvError, RecvMode, Reuse, SendError, Shutdown, State, TcpInfo,
    TcpOption,
};
use lstack_core::{Readiness, SocketError, SocketId, Stack, StackConfig};
use smoltcp::wire::{
    ArpOperation, EthernetFrame, IpProtocol, Ipv4Packet, TcpOption as WireOption, TcpPacket,
    TcpSeqNumber,
};

use crate::support::frames::{
    BROADCAST, STRANGER, STRANGER_MAC, arp, arp_reply, ipv4, read_arp, to_a,
};
use crate::support::{Lone, Side};

pub const OUR_PORT: u16 = 80;
pub const PEER_PORT: u16 = 4_000;

/// The peer's first sequence number; near the wrap, so that every test crosses it.
const PEER_ISS: u32 = u32::MAX - 1_500;

pub struct Script {
    pub lone: Lone,
    /// The connection, or the listener before there is one.
    pub id: SocketId,
    our_port: u16,
    peer_port: u16,
    /// Our first sequence numbers, by the peer's port.
    our_iss: HashMap<u16, u32>,
    /// Frames nobody has looked at.
    frames: Vec<Vec<u8>>,
    /// The last frame's window, as on the wire.
    pub window: u16,
    /// The last frame's ECN field.
    pub tos: u8,
    /// The last frame's timestamps.
    pub timestamps: Option<(u32, u32)>,
}

/// A segment that the stack has sent.
pub struct Sent {
    /// In words.
    pub text: String,
    /// As on the wire.
    pub window: u16,
    /// ECN field of its packet.
    pub ecn: u8,
    /// The rest of the packet's type of service.
    pub dscp: u8,
    pub ttl: u8,
    pub timestamps: Option<(u32, u32)>,
    /// From the IP header on.
    pub packet: Vec<u8>,
}

/// Words of a segment.
#[derive(Default)]
struct Words<'t> {
    flags: &'t str,
    seq: u32,
    ack: u32,
    len: usize,
    window: Option<u16>,
    options: Vec<u8>,
    tos: u8,
    /// Ranges of our sequence numbers.
    sack: Vec<u32>,
}

impl Script {
    /// A stack with a fresh socket.
    pub fn with(change: impl Fn(&mut StackConfig)) -> Self {
        let mut lone = Lone::new(change);
        let id = lone.host.stack.tcp_open().unwrap();
        let question =
            arp(ArpOperation::Request, (STRANGER_MAC, STRANGER), Side::A.ip(), BROADCAST);
        lone.put(&question);
        lone.sent();
        Self {
            lone,
            id,
            our_port: OUR_PORT,
            peer_port: PEER_PORT,
            our_iss: HashMap::new(),
            frames: Vec::new(),
            window: 0,
            tos: 0,
            timestamps: None,
        }
    }

    /// A stack with room for more sockets than there are ports.
    pub fn with_many_sockets() -> Self {
        Self::with(|config| config.tcp.max_sockets = 100_000)
    }

    /// A stack that connects to the peer; its SYN waits to be read.
    pub fn connecting() -> Self {
        Self::connecting_with(|_| {}, &[])
    }

    pub fn connecting_with(change: impl Fn(&mut StackConfig), options: &[TcpOption]) -> Self {
        let mut script = Self::with(change);
        let (now, id) = (script.lone.now, script.id);
        for option in options {
            script.stack().tcp_set_option(now, id, *option);
        }
        script.connect().unwrap();
        script
    }

    /// Connects the socket to the peer.
    pub fn connect(&mut self) -> Result<(), ConnectError> {
        let (now, id) = (self.lone.now, self.id);
        let remote = SocketAddr::new(STRANGER.into(), self.peer_port);
        let result = self.stack().tcp_connect(now, id, remote);
        if result.is_ok() {
            self.our_port = self.stack().local_addr(id).unwrap().port();
        }
        self.poll();
        result
    }

    /// A stack that listens on port 80.
    pub fn listening(backlog: u32) -> Self {
        Self::listening_with(|_| {}, backlog)
    }

    pub fn listening_with(change: impl Fn(&mut StackConfig), backlog: u32) -> Self {
        let mut script = Self::with(change);
        script.listen(backlog);
        script
    }

    /// Makes the socket a listener on port 80.
    pub fn listen(&mut self, backlog: u32) {
        let any = ([0, 0, 0, 0], OUR_PORT).into();
        let id = self.id;
        self.our_port = OUR_PORT;
        self.stack().bind(id, any, Reuse { address: true, port: false }).unwrap();
        self.stack().tcp_listen(id, backlog).unwrap();
    }

    /// An established connection that we opened; the peer's SYN+ACK had these further words.
    pub fn established(words: &str) -> Self {
        Self::established_with(words, |_| {}, &[])
    }

    pub fn established_with(
        words: &str,
        change: impl Fn(&mut StackConfig),
        options: &[TcpOption],
    ) -> Self {
        let mut script = Self::connecting_with(change, options);
        script.sent();
        script.put(&format!("SA 0 1 0 {words}"));
        assert_eq!(script.sent(), ["A 1 1 0"]);
        assert_eq!(script.state(), State::Established);
        script.events();
        script
    }

    /// An established connection that a listener has accepted.
    pub fn accepted(words: &str) -> Self {
        let mut script = Self::listening(4);
        script.put(&format!("S 0 0 0 {words}"));
        script.sent();
        script.put("A 1 1 0");
        script.accept();
        script.events();
        script
    }

    pub fn accept(&mut self) -> SocketId {
        let (now, id) = (self.lone.now, self.id);
        self.id = self.stack().tcp_accept(now, id).unwrap().socket;
        id
    }

    /// Plays another peer from now on.
    pub fn play_port(&mut self, port: u16) {
        self.peer_port = port;
    }

    pub fn stack(&mut self) -> &mut Stack {
        &mut self.lone.host.stack
    }

    pub fn poll(&mut self) {
        let now = self.lone.now;
        self.lone.host.poll(now);
    }

    pub fn counter(&self, name: &str) -> u64 {
        self.lone.host.counter(name)
    }

    pub fn find_counter(&self, name: &str) -> Option<u64> {
        self.lone.host.counters().get(name).copied()
    }

    pub fn state(&mut self) -> State {
        let id = self.id;
        self.stack().tcp_state(id)
    }

    pub fn info(&mut self) -> TcpInfo {
        let (now, id) = (self.lone.now, self.id);
        self.stack().tcp_info(now, id).unwrap()
    }

    /// What `poll` would say, as Linux's number.
    pub fn mask(&mut self) -> u32 {
        let id = self.id;
        self.stack().readiness(id).bits()
    }

    /// The edges since the last call.
    pub fn events(&mut self) -> Readiness {
        let id = self.id;
        let events = self.lone.host.events.drain(..);
        events.filter(|event| event.socket == id).map(|event| event.edges).collect()
    }

    pub fn error(&mut self) -> Option<SocketError> {
        let id = self.id;
        self.stack().take_error(id)
    }

    pub fn option(&mut self, option: TcpOption) {
        let (now, id) = (self.lone.now, self.id);
        self.stack().tcp_set_option(now, id, option);
        self.poll();
    }

    /// Sends `len` bytes and polls.
    pub fn write(&mut self, len: usize) -> Result<usize, SendError> {
        self.write_more(len, More::No)
    }

    pub fn write_more(&mut self, len: usize, more: More) -> Result<usize, SendError> {
        let (now, id) = (self.lone.now, self.id);
        let data = vec![b'x'; len];
        let result = self.stack().tcp_send(now, id, &[IoSlice::new(&data)], 0, more);
        self.poll();
        result
    }

    /// Reads at most `len` bytes and polls.
    pub fn read(&mut self, len: usize) -> Result<usize, RecvError> {
        self.receive(len, RecvMode::Take)
    }

    pub fn receive(&mut self, len: usize, mode: RecvMode) -> Result<usize, RecvError> {
        let (now, id) = (self.lone.now, self.id);
        let mut data = vec![0; len];
        let bufs = &mut [IoSliceMut::new(&mut data)];
        let result = self.stack().tcp_recv(now, id, bufs, 0, mode);
        self.poll();
        result
    }

    pub fn shutdown(&mut self, how: Shutdown) {
        let (now, id) = (self.lone.now, self.id);
        self.stack().tcp_shutdown(now, id, how).unwrap();
        self.poll();
    }

    pub fn close(&mut self, how: Close) {
        let (now, id) = (self.lone.now, self.id);
        self.stack().close(now, id, how);
        self.poll();
    }

    /// Lets time pass. The peer answers questions for its hardware address.
    pub fn pass(&mut self, time: Duration) {
        let end = self.lone.now + time;
        loop {
            self.collect();
            let due = self.stack().next_deadline().filter(|&due| due <= end);
            let next = due.unwrap_or(end).max(self.lone.now);
            self.lone.now = next;
            self.poll();
            if due.is_none() {
                break;
            }
        }
        self.collect();
    }

    fn collect(&mut self) {
        for frame in self.lone.sent() {
            match read_arp(&frame) {
                Some((ArpOperation::Request, _, STRANGER)) => {
                    self.lone.put(&arp_reply((STRANGER_MAC, STRANGER)));
                }
                Some(_) => {}
                None => self.frames.push(frame),
            }
        }
    }

    pub fn pass_millis(&mut self, millis: u64) {
        self.pass(Duration::from_millis(millis));
    }

    /// The peer sends a segment.
    pub fn put(&mut self, text: &str) {
        let frame = self.frame(text);
        self.lone.put(&frame);
    }

    /// The peer sends several segments, which arrive in one burst.
    pub fn put_burst(&mut self, texts: &[&str]) {
        for text in texts {
            let frame = self.frame(text);
            let now = self.lone.now;
            self.lone.host.stack.handle_frame(now, &frame, Default::default());
        }
        self.poll();
    }

    fn frame(&self, text: &str) -> Vec<u8> {
        let mut words = Words::read(text);
        let our_iss = self.our_iss.get(&self.peer_port).copied().unwrap_or(0);
        if !words.sack.is_empty() {
            words.options.extend([1, 1, 5, 2 + 4 * words.sack.len() as u8]);
            for number in &words.sack {
                words.options.extend(our_iss.wrapping_add(*number).to_be_bytes());
            }
        }
        let mut segment = vec![0; 20 + words.options.len() + words.len];
        let mut packet = TcpPacket::new_unchecked(&mut segment);
        packet.set_src_port(self.peer_port);
        packet.set_dst_port(self.our_port);
        packet.set_seq_number(TcpSeqNumber(PEER_ISS.wrapping_add(words.seq) as i32));
        let ack = our_iss.wrapping_add(words.ack);
        packet.set_ack_number(TcpSeqNumber(if words.flags.contains('A') { ack as i32 } else { 0 }));
        packet.set_header_len(20 + words.options.len() as u8);
        packet.set_syn(words.flags.contains('S'));
        packet.set_ack(words.flags.contains('A'));
        packet.set_fin(words.flags.contains('F'));
        packet.set_rst(words.flags.contains('R'));
        packet.set_psh(words.flags.contains('P'));
        packet.set_ece(words.flags.contains('E'));
        packet.set_cwr(words.flags.contains('C'));
        packet.set_window_len(words.window.unwrap_or(60_000));
        packet.options_mut().copy_from_slice(&words.options);
        packet.payload_mut().fill(b'y');
        packet.fill_checksum(&STRANGER.into(), &Side::A.ip().into());
        let mut packet = ipv4(STRANGER, Side::A.ip(), 6, &segment);
        let mut header = Ipv4Packet::new_unchecked(&mut packet[..]);
        header.set_ecn(words.tos);
        header.fill_checksum();
        to_a(&packet)
    }

    /// What the stack has sent since the last call.
    pub fn sent(&mut self) -> Vec<String> {
        let sent = self.sent_segments();
        if let Some(last) = sent.last() {
            (self.window, self.tos, self.timestamps) = (last.window, last.ecn, last.timestamps);
        }
        sent.into_iter().map(|segment| segment.text).collect()
    }

    /// As [`Self::sent`], with all that the words leave out.
    pub fn sent_segments(&mut self) -> Vec<Sent> {
        self.collect();
        let frames = std::mem::take(&mut self.frames);
        frames.iter().filter_map(|frame| self.read_segment(frame)).collect()
    }

    fn read_segment(&mut self, frame: &[u8]) -> Option<Sent> {
        let frame = EthernetFrame::new_checked(frame).ok()?;
        let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
        if packet.next_header() != IpProtocol::Tcp {
            return None;
        }
        let tcp = TcpPacket::new_checked(packet.payload()).unwrap();
        assert!(tcp.verify_checksum(&packet.src_addr().into(), &packet.dst_addr().into()));
        let seq = tcp.seq_number().0 as u32;
        if tcp.syn() {
            self.our_iss.insert(tcp.dst_port(), seq);
        }
        let set = [
            (tcp.syn(), 'S'),
            (tcp.fin(), 'F'),
            (tcp.rst(), 'R'),
            (tcp.psh(), 'P'),
            (tcp.ack(), 'A'),
            (tcp.ece(), 'E'),
            (tcp.cwr(), 'C'),
        ];
        let flags: String = set.iter().filter(|(on, _)| *on).map(|(_, flag)| flag).collect();
        let iss = self.our_iss.get(&tcp.dst_port()).copied().unwrap_or(0);
        let our = |number: u32| number.wrapping_sub(iss);
        let peers = |number: u32| number.wrapping_sub(PEER_ISS);
        let ack = if tcp.ack() { peers(tcp.ack_number().0 as u32) } else { 0 };
        let mut text = format!("{flags} {} {ack} {}", our(seq), tcp.payload().len());
        let mut timestamps = None;
        let mut rest = tcp.options();
        while !rest.is_empty() {
            let (after, option) = WireOption::parse(rest).unwrap();
            rest = after;
            match option {
                WireOption::EndOfList => break,
                WireOption::MaxSegmentSize(mss) => text += &format!(" mss {mss}"),
                WireOption::WindowScale(scale) => text += &format!(" ws {scale}"),
                WireOption::SackPermitted => text += " sackok",
                WireOption::SackRange(ranges) => {
                    text += " sack";
                    for (start, end) in ranges.into_iter().flatten() {
                        text += &format!(" {}-{}", peers(start), peers(end));
                    }
                }
                WireOption::TimeStamp { tsval, tsecr } => timestamps = Some((tsval, tsecr)),
                _ => {}
            }
        }
        Some(Sent {
            text,
            window: tcp.window_len(),
            ecn: packet.ecn(),
            dscp: packet.dscp(),
            ttl: packet.hop_limit(),
            timestamps,
            packet: frame.payload().to_vec(),
        })
    }
}

impl<'t> Words<'t> {
    fn read(text: &'t str) -> Self {
        let mut words = text.split_whitespace().peekable();
        let flags = words.next().unwrap();
        let [seq, ack, len] = [(); 3].map(|()| words.next().unwrap().parse().unwrap());
        let mut read = Self { flags, seq, ack, len: len as usize, ..Self::default() };
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap().parse::<u32>().unwrap();
            match word {
                "win" => read.window = Some(value() as u16),
                "mss" => {
                    let [a, b] = (value() as u16).to_be_bytes();
                    read.options.extend([2, 4, a, b]);
                }
                "ce" => read.tos = 3,
                "ws" => read.options.extend([1, 3, 3, value() as u8]),
                "sackok" => read.options.extend([1, 1, 4, 2]),
                "ts" => {
                    read.options.extend([1, 1, 8, 10]);
                    read.options.extend(value().to_be_bytes());
                    read.options.extend(value().to_be_bytes());
                }
                "sack" => {
                    while let Some(range) = words.next_if(|word| word.contains('-')) {
                        let (start, end) = range.split_once('-').unwrap();
                        read.sack.extend([start, end].map(|word| word.parse::<u32>().unwrap()));
                    }
                }
                _ => panic!("unknown word {word}"),
            }
        }
        read
    }
}
