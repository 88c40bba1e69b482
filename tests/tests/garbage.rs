//! Frames no stack should believe: they are counted, and nothing else happens.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, ensure};
use lstack_tests::frames::{self, IPV4, Injector, Ipv4, TCP, UDP};
use lstack_tests::netperf::{self, Test};
use lstack_tests::pattern::Pattern;
use lstack_tests::program::Running;
use lstack_tests::rig::{Pairing, Plan, Rig};
use lstack_tests::stack_conf::Mode;
use lstack_tests::{suite, wait};

/// One server, one kind of garbage after the other, and real work in between.
fn garbage_is_counted_and_nothing_else(plan: &Plan) -> Result<()> {
    let _turn = suite::turn();
    let rig = plan.build()?;
    // Its start has taught the client's kernel the stack's hardware address.
    let mut server = netperf::start_server(&rig)?;
    let stack = frames::neighbour(&rig.client, rig.server.address)?;
    let before = listening(&mut server)?;
    for (name, verdict, packets) in kinds(rig.server.address) {
        let frames: Vec<Vec<u8>> = match packets {
            Kind::Frames(payloads) => payloads
                .into_iter()
                .map(|(kind, payload)| frames::ethernet(stack, kind, &payload))
                .collect(),
            Kind::Raw(frames) => frames,
        };
        let dropped = inject(&rig, &mut server, &frames)?;
        println!("{name}: {} frames, {dropped} dropped", frames.len());
        if verdict == Verdict::AllDropped {
            ensure!(dropped >= frames.len() as u64, "{name}: only {dropped} of {}", frames.len());
        }
    }
    Test::TCP_RR.run_client(&rig, 1)?;
    server.must_run()?;
    let after = listening(&mut server)?;
    ensure!(before == after, "{before} sockets became {after}");
    ensure!(server.errors()?.is_empty(), "it wrote:\n{}", server.errors()?);
    Ok(())
}

#[test]
fn garbage_is_counted_and_nothing_else_happens() -> Result<()> {
    garbage_is_counted_and_nothing_else(&Plan::new(Pairing::StackServer))
}

#[test]
fn garbage_is_counted_by_several_stacks_with_drivers() -> Result<()> {
    let plan = Plan::new(Pairing::StackServer).mode(Mode::RunToWakeup).cpus("0,1");
    garbage_is_counted_and_nothing_else(&plan)
}

/// What must become of the frames of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    AllDropped,
    /// Some are answered, or held for a time.
    Survived,
}

enum Kind {
    /// EtherTypes and what follows them, to the stack's hardware address.
    Frames(Vec<(u16, Vec<u8>)>),
    /// Whole frames.
    Raw(Vec<Vec<u8>>),
}

/// Sends the frames in portions the device can hold, and returns how many more drops were counted.
fn inject(rig: &Rig, server: &mut Running, frames: &[Vec<u8>]) -> Result<u64> {
    let mut injector = Injector::new(&rig.client)?;
    let before = server.stats()?;
    let mut sent = 0;
    for portion in frames.chunks(PORTION) {
        for frame in portion {
            // The kernel may accept what is shorter than a header, but no link carries it.
            sent += u64::from(injector.send(frame) && frame.len() >= HEADER);
        }
        wait::until("all frames of a portion to arrive", LIMIT, || {
            let arrived = server.stats()?.counter("frames_rx") - before.counter("frames_rx");
            Ok((arrived >= sent).then_some(()))
        })?;
    }
    Ok(server.stats()?.dropped() - before.dropped())
}

/// How many sockets listen, once the connections of the start or of a test have ended and nothing
/// else is left.
fn listening(server: &mut Running) -> Result<usize> {
    wait::until("all connections to end", LIMIT, || {
        let stats = server.stats()?;
        Ok((stats.sockets() == stats.listening()).then_some(stats.listening()))
    })
}

fn kinds(stack: Ipv4Addr) -> Vec<(&'static str, Verdict, Kind)> {
    vec![
        ("random bytes of every length", Verdict::Survived, random_frames()),
        ("random bytes as IPv4", Verdict::AllDropped, random_payloads(IPV4)),
        ("random bytes as ARP", Verdict::AllDropped, random_payloads(0x0806)),
        ("random bytes as IPv6", Verdict::AllDropped, random_payloads(0x86dd)),
        ("truncated segments", Verdict::AllDropped, truncated(stack)),
        ("damaged headers", Verdict::AllDropped, damaged_headers(stack)),
        ("bad TCP checksums", Verdict::AllDropped, bad_checksums(stack, TCP)),
        ("bad UDP checksums", Verdict::AllDropped, bad_checksums(stack, UDP)),
        ("every combination of TCP flags", Verdict::Survived, every_flag(stack)),
        ("overlapping fragments", Verdict::Survived, overlapping_fragments(stack)),
    ]
}

/// To random hardware addresses, with random types.
fn random_frames() -> Kind {
    let mut random = Pattern::new(1);
    Kind::Raw((0..=LONGEST).map(|length| random_bytes(&mut random, length)).collect())
}

/// Behind a right Ethernet header. Zero length is the header alone.
fn random_payloads(kind: u16) -> Kind {
    let mut random = Pattern::new(kind.into());
    Kind::Frames(
        (0..=LONGEST - HEADER).map(|length| (kind, random_bytes(&mut random, length))).collect(),
    )
}

/// A connection request cut off at every length but its own.
fn truncated(stack: Ipv4Addr) -> Kind {
    let whole = Ipv4::new(STRANGER, stack, TCP, request(stack)).bytes();
    Kind::Frames((0..whole.len()).map(|length| (IPV4, whole[..length].to_vec())).collect())
}

/// A connection request with every bit of its IPv4 header wrong in turn.
fn damaged_headers(stack: Ipv4Addr) -> Kind {
    let whole = Ipv4::new(STRANGER, stack, TCP, request(stack)).bytes();
    let flipped = |bit: usize| {
        let mut packet = whole.clone();
        packet[bit / 8] ^= 1 << (bit % 8);
        (IPV4, packet)
    };
    Kind::Frames((0..20 * 8).map(flipped).collect())
}

fn bad_checksums(stack: Ipv4Addr, protocol: u8) -> Kind {
    let (payload, at) = match protocol {
        TCP => (request(stack), 16),
        _ => (frames::udp((STRANGER, 9), (stack, netperf::PORT), b"hello"), 6),
    };
    let packets = (0..256).map(|round: u16| {
        // Never zero, which would mean "no checksum" in UDP, and never the right one.
        let wrong =
            u16::from_be_bytes([payload[at], payload[at + 1]]).wrapping_add(round + 1).max(1);
        let mut spoilt = payload.clone();
        spoilt[at..at + 2].copy_from_slice(&wrong.to_be_bytes());
        (IPV4, Ipv4::new(STRANGER, stack, protocol, spoilt).bytes())
    });
    Kind::Frames(packets.collect())
}

/// To a port that listens and to one that does not. The senders are different strangers, whom
/// nobody answers.
fn every_flag(stack: Ipv4Addr) -> Kind {
    let segments = (0..=u8::MAX).flat_map(|flags| {
        [netperf::PORT, 9].map(|port| {
            let segment =
                frames::tcp((STRANGER, 1024 + u16::from(flags)), (stack, port), flags, b"x");
            (IPV4, Ipv4::new(STRANGER, stack, TCP, segment).bytes())
        })
    });
    Kind::Frames(segments.collect())
}

/// Datagrams whose fragments overlap, repeat, or reach beyond the longest datagram.
fn overlapping_fragments(stack: Ipv4Addr) -> Kind {
    let datagram = frames::udp((STRANGER, 9), (stack, 9), &[7; 1200]);
    let mut packets = Vec::new();
    for id in 0..64 {
        let mut fragment = |offset: u16, length: usize, more: bool| {
            let mut packet = Ipv4::new(STRANGER, stack, UDP, datagram[..length].to_vec());
            (packet.id, packet.offset, packet.more) = (id, offset, more);
            packets.push((IPV4, packet.bytes()));
        };
        fragment(0, 800, true);
        fragment(400, 800, true);
        fragment(0, 800, true);
        fragment(8, 8, false);
        fragment(65_528, 800, false);
    }
    Kind::Frames(packets)
}

fn request(stack: Ipv4Addr) -> Vec<u8> {
    const SYN: u8 = 2;
    frames::tcp((STRANGER, 1024), (stack, netperf::PORT), SYN, &[])
}

fn random_bytes(random: &mut Pattern, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// An address of the subnet that nobody has.
const STRANGER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 66);

/// The longest frame of an Ethernet with an MTU of 1500.
const LONGEST: usize = 1514;

/// An Ethernet header.
const HEADER: usize = 14;

/// Few enough for the smallest receive ring.
const PORTION: usize = 128;

/// For a portion to arrive on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);
