//! UDP and TCP between two runtimes in one process, in both modes, with one and two stacks.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use lstack_config::StackThreadMode;
use support::{CLIENT, Hosts, MODES, SERVER, Socket, pattern};

const STACKS: [u32; 2] = [1, 2];

fn server(port: u16) -> SocketAddr {
    (SERVER, port).into()
}

fn client(port: u16) -> SocketAddr {
    (CLIENT, port).into()
}

/// One echoing thread per server port, one asking thread per client port; every round both sleep.
fn udp_ping_pong(mode: StackThreadMode, stacks: u32, pairs: u16, rounds: u32, spins: u32) {
    let hosts = Hosts::new(mode, stacks);
    let threads: Vec<_> = (0..pairs)
        .flat_map(|pair| {
            // UDP's owner is the port modulo the number of stacks.
            let cell = usize::from(pair) % hosts.client.cells().len();
            let (ask, answer) = (4000 + pair, 5000 + pair);
            let mut echo = Socket::udp(&hosts.server.cells()[cell], server(answer));
            let mut asker = Socket::udp(&hosts.client.cells()[cell], client(ask));
            (echo.spins, asker.spins) = (spins, spins);
            let echo = thread::spawn(move || {
                let mut buffer = [0; 2048];
                for _ in 0..rounds {
                    let (len, from) = echo.recv_from(&mut buffer);
                    echo.send_to(from, &buffer[..len]);
                }
            });
            let asker = thread::spawn(move || {
                let mut buffer = [0; 2048];
                for round in 0..rounds {
                    let question = pattern(64 + round as usize % 1000, u64::from(round));
                    asker.send_to(server(answer), &question);
                    let (len, from) = asker.recv_from(&mut buffer);
                    assert_eq!(from, server(answer));
                    assert_eq!(buffer[..len], question);
                }
            });
            [echo, asker]
        })
        .collect();
    for thread in threads {
        thread.join().expect("neither side panics");
    }
    hosts.stop();
}

#[test]
fn udp_answers_come_back_in_both_modes() {
    for mode in MODES {
        udp_ping_pong(mode, 1, 1, 300, 0);
    }
}

#[test]
fn udp_answers_come_back_with_two_stacks_on_one_queue() {
    for mode in MODES {
        udp_ping_pong(mode, 2, 2, 300, 0);
    }
}

#[test]
fn no_wake_up_is_lost_however_long_threads_spin() {
    for mode in MODES {
        for stacks in STACKS {
            for spins in [0, 1, 20, 400] {
                udp_ping_pong(mode, stacks, 6, 150, spins);
            }
        }
    }
}

#[test]
fn tcp_stream_arrives_complete_in_both_modes() {
    for mode in MODES {
        for stacks in STACKS {
            let hosts = Hosts::new(mode, stacks);
            let listeners: Vec<_> = listen_everywhere(&hosts, 80);
            let sent = Arc::new(pattern(3_000_000, u64::from(stacks)));
            let sender = thread::spawn({
                let (cell, sent) = (Arc::clone(&hosts.client.cells()[0]), Arc::clone(&sent));
                move || {
                    let socket = Socket::connect(&cell, server(80));
                    socket.send_all(&sent);
                    socket.close();
                }
            });
            let received = accept_any(listeners);
            let mut data = vec![0; sent.len()];
            received.recv_exact(&mut data);
            assert!(data == *sent, "the stream differs");
            assert_eq!(received.recv(&mut [0; 16]), 0);
            sender.join().expect("the sender does not panic");
            hosts.stop();
        }
    }
}

#[test]
fn many_connections_talk_at_once() {
    const CLIENTS: u64 = 8;
    const ROUNDS: u64 = 50;
    for mode in MODES {
        for stacks in STACKS {
            let hosts = Hosts::new(mode, stacks);
            let acceptors: Vec<_> = listen_everywhere(&hosts, 7)
                .into_iter()
                .map(|listener| thread::spawn(move || echo_connections(&listener)))
                .collect();
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let cells = hosts.client.cells();
                    let cell = Arc::clone(&cells[number as usize % cells.len()]);
                    thread::spawn(move || {
                        let socket = Socket::connect(&cell, server(7));
                        for round in 0..ROUNDS {
                            let question = pattern(1 + (round * 997 % 20_000) as usize, number);
                            let mut answer = vec![0; question.len()];
                            socket.send_all(&question);
                            socket.recv_exact(&mut answer);
                            assert!(answer == question, "round {round} of client {number}");
                        }
                        socket.close();
                    })
                })
                .collect();
            for client in clients {
                client.join().expect("no client panics");
            }
            // They wait for more connections, which do not come, until the process ends.
            drop(acceptors);
            hosts.stop();
        }
    }
}

fn listen_everywhere(hosts: &Hosts, port: u16) -> Vec<Socket> {
    hosts.server.cells().iter().map(|cell| Socket::listen(cell, server(port))).collect()
}

/// The first connection that comes to any of the listeners.
fn accept_any(listeners: Vec<Socket>) -> Socket {
    let (first, accepted) = std::sync::mpsc::channel();
    for listener in listeners {
        let first = first.clone();
        // A listener that nobody connects to leaves its thread waiting until its patience ends;
        // nobody listens to that any more.
        thread::spawn(move || first.send(listener.accept()));
    }
    accepted.recv().expect("one listener accepts")
}

fn echo_connections(listener: &Socket) {
    loop {
        let connection = listener.accept();
        thread::spawn(move || {
            let mut buffer = [0; 16_384];
            loop {
                match connection.recv(&mut buffer) {
                    0 => break,
                    count => connection.send_all(&buffer[..count]),
                }
            }
            connection.close();
        });
    }
}
