//! Start, stop, failure, capture, and who drives.

mod support;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lstack_config::StackThreadMode;
use lstack_core::udp::UdpSendError;
use lstack_core::{FrameSink, LinkCaps, Readiness, RxMeta, SocketError, TxMeta};
use lstack_runtime::{
    Link, MemoryLink, Runtime, StartError, Watcher, memory_pair, memory_pair_with_wake_up,
};
use support::{CLIENT, Hosts, MODES, PATIENCE, SERVER, Socket, config, pattern, start, stat};

fn server(port: u16) -> SocketAddr {
    (SERVER, port).into()
}

fn client(port: u16) -> SocketAddr {
    (CLIENT, port).into()
}

/// A memory link that panics on demand and tells of its end.
struct Fragile {
    inner: MemoryLink,
    break_now: Arc<AtomicBool>,
    gone: Arc<AtomicBool>,
}

impl Drop for Fragile {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
    }
}

impl FrameSink for Fragile {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.inner.reserve(len)
    }

    fn commit(&mut self, meta: TxMeta) {
        self.inner.commit(meta);
    }
}

impl Link for Fragile {
    fn caps(&self) -> LinkCaps {
        self.inner.caps()
    }

    fn rx_burst(&mut self, max: usize, deliver: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        assert!(!self.break_now.swap(false, Ordering::SeqCst), "the test breaks this stack");
        self.inner.rx_burst(max, deliver)
    }

    fn flush(&mut self) -> bool {
        self.inner.flush()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn panic_while_driving_stops_the_stack_and_nothing_else() {
    for mode in MODES {
        let (one, other) = memory_pair(1500);
        let (break_now, gone) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let fragile = Fragile { inner: one, break_now: Arc::clone(&break_now), gone };
        let broken = start(&config(CLIENT, mode, 1), fragile);
        let whole = start(&config(SERVER, mode, 1), other);
        let cell = &broken.cells()[0];
        let socket = Socket::udp(cell, client(1000));
        let word = cell.lock().ready_word(socket.id);
        let before = word.sequence();

        break_now.store(true, Ordering::SeqCst);
        // Somebody drives, the thread itself or the driver it hands over to, and the sleeper wakes.
        cell.hand_over();
        socket.waiter.wait();

        assert!(cell.failed());
        assert!(word.level().contains(Readiness::ERROR | Readiness::HANGUP));
        assert_ne!(word.sequence(), before);
        let sent = cell.lock().udp_send(socket.id, Some(server(1)), &[]);
        assert_eq!(sent, Err(UdpSendError::Failed(SocketError::StackFailed)));
        assert_eq!(cell.lock().stack().local_addr(socket.id), None);
        assert_eq!(stat(cell, "runtime_failed"), 1);
        assert!(!whole.cells()[0].failed());
        broken.stop(PATIENCE);
        whole.stop(Duration::ZERO);
    }
}

#[test]
fn panic_with_the_lock_held_stops_the_stack() {
    let hosts = Hosts::new(StackThreadMode::RunToCompletion, 1);
    let cell = Arc::clone(&hosts.client.cells()[0]);
    let socket = Socket::udp(&cell, client(1000));
    let panicked = thread::spawn({
        let cell = Arc::clone(&cell);
        move || {
            let _guard = cell.lock();
            panic!("the test breaks this stack");
        }
    });
    assert!(panicked.join().is_err());
    assert!(cell.failed());
    socket.waiter.wait();
    assert!(cell.lock().ready_word(socket.id).level().contains(Readiness::ERROR));
    hosts.stop();
}

#[test]
fn lock_taken_while_something_else_panics_fails_nothing() {
    struct LocksInDrop(Arc<Runtime>);
    impl Drop for LocksInDrop {
        fn drop(&mut self) {
            drop(self.0.cells()[0].lock());
        }
    }
    let hosts = Hosts::new(StackThreadMode::RunToCompletion, 1);
    let locks = LocksInDrop(Arc::clone(&hosts.client));
    let panicked = thread::spawn(move || {
        let _locks = locks;
        panic!("not the stack's fault");
    });
    assert!(panicked.join().is_err());
    assert!(!hosts.client.cells()[0].failed());
    hosts.stop();
}

#[test]
fn stop_releases_the_device_and_can_be_repeated() {
    for mode in MODES {
        let (one, _other) = memory_pair(1500);
        let gone = Arc::new(AtomicBool::new(false));
        let link = Fragile { inner: one, break_now: Arc::default(), gone: Arc::clone(&gone) };
        let runtime = start(&config(CLIENT, mode, 2), link);
        assert!(!gone.load(Ordering::SeqCst));
        runtime.stop(Duration::from_millis(10));
        assert!(gone.load(Ordering::SeqCst));
        runtime.stop(PATIENCE);
        // Calls still answer.
        assert!(runtime.cells()[0].lock().stack().udp_open().is_ok());
    }
}

#[test]
fn stop_lingers_until_closed_connections_have_sent_everything() {
    for mode in MODES {
        let hosts = Hosts::new(mode, 1);
        let listener = Socket::listen(&hosts.server.cells()[0], server(80));
        // Fits the send buffer, so that the program may close and stop at once.
        let sent = pattern(200_000, 1);
        let socket = thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept());
            let socket = Socket::connect(&hosts.client.cells()[0], server(80));
            socket.send_all(&sent);
            socket.close();
            accepting.join().expect("accepting does not panic")
        });
        let reader = thread::spawn(move || {
            let mut data = vec![0; 200_000];
            socket.recv_exact(&mut data);
            assert_eq!(socket.recv(&mut [0; 1]), 0);
            data
        });
        hosts.client.stop(PATIENCE);
        assert!(reader.join().expect("the reader does not panic") == sent);
        hosts.stop();
    }
}

#[test]
fn stop_waits_for_the_neighbour_of_a_last_datagram() {
    for mode in MODES {
        let hosts = Hosts::new(mode, 1);
        let receiver = Socket::udp(&hosts.server.cells()[0], server(514));
        let sender = Socket::udp(&hosts.client.cells()[0], client(1000));
        // The neighbour's hardware address is not known yet.
        sender.send_to(server(514), b"last words");
        hosts.client.stop(PATIENCE);
        let mut buffer = [0; 32];
        let (len, _) = receiver.recv_from(&mut buffer);
        assert_eq!(&buffer[..len], b"last words");
        hosts.stop();
    }
}

#[test]
fn stop_does_not_wait_for_a_peer_that_keeps_its_side_open() {
    let hosts = Hosts::new(StackThreadMode::RunToCompletion, 1);
    let listener = Socket::listen(&hosts.server.cells()[0], server(80));
    let socket = Socket::connect(&hosts.client.cells()[0], server(80));
    let _open = listener.accept();
    socket.close();
    let before = std::time::Instant::now();
    hosts.client.stop(PATIENCE);
    assert!(before.elapsed() < PATIENCE);
    hosts.stop();
}

#[test]
fn driver_takes_over_when_the_program_stops_polling() {
    // The server's program never calls again after binding; its driver answers the ARP request
    // and the datagram to a closed port (with an ICMP error, which becomes a socket error here).
    let hosts = Hosts::new(StackThreadMode::RunToCompletion, 1);
    let socket = Socket::udp(&hosts.client.cells()[0], client(1000));
    {
        let mut guard = socket.cell.enter();
        guard.stack().udp_connect(socket.id, Some(server(9))).expect("there is a route");
        guard.udp_send(socket.id, None, &[]).expect("the link has room");
    }
    let error = socket.until(|guard| guard.stack().take_error(socket.id));
    assert_eq!(error, SocketError::ConnectionRefused);
    hosts.stop();
}

#[test]
fn driver_sleeping_on_its_device_is_woken_by_frames() {
    for mode in MODES {
        let (one, other) = memory_pair_with_wake_up(1500).expect("descriptors are left");
        let interrupting = |address| {
            let mut config = config(address, mode, 1);
            config.stack_interrupt = true;
            config.idle_spin = Duration::ZERO;
            config
        };
        let hosts = Hosts {
            client: start(&interrupting(CLIENT), one),
            server: start(&interrupting(SERVER), other),
        };
        assert_eq!(hosts.client.hidden_fds().len(), 2);
        let echo = Socket::udp(&hosts.server.cells()[0], server(7));
        let asker = Socket::udp(&hosts.client.cells()[0], client(1000));
        let echo = thread::spawn(move || {
            for _ in 0..200 {
                let (len, from) = echo.recv_from(&mut [0; 64]);
                echo.send_to(from, &[1; 64][..len]);
            }
        });
        for _ in 0..200 {
            asker.send_to(server(7), &[0; 32]);
            assert_eq!(asker.recv_from(&mut [0; 64]).0, 32);
        }
        echo.join().expect("the echo does not panic");
        hosts.stop();
    }
}

#[test]
fn capture_holds_every_frame_of_both_directions() {
    let path = std::env::temp_dir().join(format!("lstack-capture-{}.pcapng", std::process::id()));
    let mut tapped = config(CLIENT, StackThreadMode::RunToCompletion, 1);
    tapped.capture = Some(path.clone());
    let hosts = Hosts::with(&tapped, &config(SERVER, StackThreadMode::RunToCompletion, 1));
    let echo = Socket::udp(&hosts.server.cells()[0], server(7));
    let asker = Socket::udp(&hosts.client.cells()[0], client(1000));
    let echo = thread::spawn(move || {
        let (len, from) = echo.recv_from(&mut [0; 64]);
        echo.send_to(from, &[b'a'; 64][..len]);
    });
    asker.send_to(server(7), &[b'q'; 40]);
    asker.recv_from(&mut [0; 64]);
    echo.join().expect("the echo does not panic");
    let cell = &hosts.client.cells()[0];
    let counted = stat(cell, "link_frames_rx") + stat(cell, "link_frames_tx");
    assert_eq!(stat(cell, "capture_dropped"), 0);
    hosts.stop();

    let frames = read_capture(&path);
    std::fs::remove_file(&path).expect("the capture was made");
    assert!(frames.len() as u64 >= counted, "{} frames of {counted}", frames.len());
    let holds = |direction: u32, payload: &[u8]| {
        frames.iter().any(|(flags, frame)| *flags == direction && frame.ends_with(payload))
    };
    assert!(holds(2, &[b'q'; 40]), "the question went out");
    assert!(holds(1, &[b'a'; 40]), "the answer came in");
}

/// Direction flags and bytes of every frame.
fn read_capture(path: &std::path::Path) -> Vec<(u32, Vec<u8>)> {
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    let file = std::fs::File::open(path).expect("the capture was made");
    let mut reader = pcap_file::pcapng::PcapNgReader::new(file).expect("a pcapng file");
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        let block = block.expect("a well-formed block");
        if let Some(packet) = block.into_enhanced_packet() {
            let flags = packet.options.iter().find_map(|option| match option {
                EnhancedPacketOption::Flags(flags) => Some(*flags),
                _ => None,
            });
            frames.push((flags.expect("every frame has a direction"), packet.data.into_owned()));
        }
    }
    frames
}

#[test]
fn configuration_without_an_address_is_refused() {
    let mut config = config(CLIENT, StackThreadMode::RunToCompletion, 1);
    config.host_addr = None;
    let started = Runtime::with_links(&config, vec![Box::new(memory_pair(1500).0)]);
    assert!(matches!(started, Err(StartError::NoAddress)));
}

#[test]
fn watch_ends_with_unwatch_and_forget() {
    let hosts = Hosts::new(StackThreadMode::RunToWakeup, 1);
    let cell = &hosts.client.cells()[0];
    let socket = Socket::udp(cell, client(1000));
    let watcher: Arc<dyn Watcher> = Arc::clone(&socket.waiter) as _;
    let holders = Arc::strong_count(&watcher);
    cell.lock().watch(socket.id, Arc::clone(&watcher), 5);
    assert_eq!(Arc::strong_count(&watcher), holders + 1);
    cell.lock().unwatch(socket.id, &watcher, 6);
    assert_eq!(Arc::strong_count(&watcher), holders + 1, "another token is another watch");
    cell.lock().unwatch(socket.id, &watcher, 5);
    assert_eq!(Arc::strong_count(&watcher), holders);
    cell.lock().forget(socket.id);
    assert_eq!(Arc::strong_count(&watcher), holders - 1);
    hosts.stop();
}
