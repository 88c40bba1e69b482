//! Segments and calls at random: nothing panics, no memory stays, and a connection that the noise
//! has not ended still works.

use std::time::Duration;

use lstack_core::tcp::{Close, More, Shutdown, TcpOption};

use super::script::{PEER_PORT, Script};
use crate::support::SplitMix;

const FLAGS: [&str; 12] = ["A", "A", "A", "PA", "PA", "FA", "S", "SA", "R", "RA", "F", "P"];

/// A segment that is close enough to the truth to get somewhere.
fn segment(random: &mut SplitMix) -> String {
    let flags = FLAGS[random.below(FLAGS.len() as u64) as usize];
    let near = |random: &mut SplitMix, spread: u64| random.below(spread) as u32;
    let seq = match random.below(8) {
        0 => random.next_u64() as u32,
        1 => 0,
        _ => near(random, 40_000),
    };
    let ack = match random.below(8) {
        0 => random.next_u64() as u32,
        1 => 0,
        _ => near(random, 30_000),
    };
    let len = [0, 0, 1, 100, 1_000, 1_400][random.below(6) as usize];
    let mut text =
        format!("{flags} {seq} {ack} {len} win {}", [0, 1, 500, 60_000][seq as usize % 4]);
    match random.below(10) {
        0 => text += " mss 0 ws 200",
        1 => text += &format!(" ts {} {}", random.next_u64() as u32, near(random, 100)),
        2..5 => {
            text += " sack";
            for _ in 0..=random.below(3) {
                text += &format!(" {}-{}", near(random, 30_000), near(random, 30_000));
            }
        }
        _ => {}
    }
    text
}

fn call(script: &mut Script, random: &mut SplitMix) {
    let len = random.below(5_000) as usize;
    match random.below(12) {
        0..4 => _ = script.write(len),
        4 => _ = script.write_more(len, More::Yes),
        5..8 => _ = script.read(len),
        8 => script.option(TcpOption::Cork(len.is_multiple_of(2))),
        9 => script.option(TcpOption::RecvBuffer(len)),
        10 => script.option(TcpOption::SendBuffer(len)),
        _ if random.below(40) == 0 => {
            let (now, id) = (script.lone.now, script.id);
            let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both][len % 3];
            let _ = script.stack().tcp_shutdown(now, id, how);
            script.poll();
        }
        _ => {}
    }
}

#[test]
fn noise_breaks_nothing() {
    for seed in 0..300 {
        let mut random = SplitMix::new(seed);
        let words = ["mss 1460 sackok ws 7", "mss 1000", "mss 1460 sackok ts 1 0"];
        let mut script = if seed % 2 == 0 {
            Script::established(words[seed as usize % 3])
        } else {
            Script::accepted(words[seed as usize % 3])
        };
        for _ in 0..300 {
            match random.below(10) {
                0..6 => script.put(&segment(&mut random)),
                6 => {
                    let texts: Vec<String> = (0..5).map(|_| segment(&mut random)).collect();
                    script.put_burst(&texts.iter().map(String::as_str).collect::<Vec<_>>());
                }
                7..9 => call(&mut script, &mut random),
                _ => script.pass(Duration::from_micros(random.below(400_000))),
            }
            script.mask();
        }
        script.sent();
        let now = script.lone.now;
        let ids: Vec<_> = script.stack().sockets().into_iter().map(|line| line.socket).collect();
        for id in ids {
            script.stack().close(now, id, Close::Graceful);
        }
        script.pass(Duration::from_secs(2_000));
        let left = script.stack().sockets();
        assert!(left.is_empty(), "seed {seed}: {left:?}");
        assert_eq!(script.stack().tcp_memory(), 0, "seed {seed}");
        assert_eq!(script.stack().tcp_orphans(), 0, "seed {seed}");
    }
}

#[test]
fn noise_at_a_listener_breaks_nothing() {
    for seed in 0..50 {
        let mut random = SplitMix::new(seed);
        let mut script = Script::listening(3);
        for _ in 0..1_000 {
            script.play_port(PEER_PORT + random.below(20) as u16);
            script.put(&segment(&mut random));
            if random.below(20) == 0 {
                let (now, id) = (script.lone.now, script.id);
                if let Ok(accepted) = script.stack().tcp_accept(now, id) {
                    script.stack().close(now, accepted.socket, Close::Graceful);
                }
                script.pass_millis(random.below(3_000));
            }
            script.sent();
        }
        script.close(Close::Graceful);
        script.pass(Duration::from_secs(2_000));
        let left = script.stack().sockets();
        assert!(left.is_empty(), "seed {seed}: {left:?}");
        assert_eq!(script.stack().tcp_memory(), 0);
    }
}
