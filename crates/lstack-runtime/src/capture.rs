//! The capture tap: a [`Link`] around another that copies every frame to a pcapng file.
//!
//! Frames go through a bounded queue to a thread that writes; the packet path never waits for the
//! file and drops (and counts) copies instead. Without `capture` in the configuration nothing of
//! this exists.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use lstack_core::{FrameSink, LinkCaps, RxMeta, TxMeta};
use nix::sys::signal::{SigSet, SigmaskHow};
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, PcapError};
use rustix::time::{ClockId, clock_gettime};

use crate::clock;
use crate::doorbell::{Doorbell, Sleep, high};
use crate::link::Link;

/// A capture file and the thread that writes it.
#[derive(Debug)]
pub(crate) struct Capture {
    queue: Arc<Queue>,
    writer: JoinHandle<()>,
}

#[derive(Debug)]
struct Queue {
    frames: ArrayQueue<Record>,
    spare: ArrayQueue<Vec<u8>>,
    dropped: AtomicU64,
    bell: Doorbell,
    stop: AtomicBool,
}

#[derive(Debug)]
struct Record {
    interface: u32,
    direction: Direction,
    /// Since 1970.
    time: Duration,
    frame: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Received,
    Sent,
}

impl Capture {
    /// Creates the file, with one interface per stack, and starts the writer.
    ///
    /// # Errors
    ///
    /// The file cannot be made or written, or the system gives no thread.
    pub(crate) fn start(path: &Path, stacks: usize) -> std::io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        let file = File::from(high(OwnedFd::from(file)));
        let output = begin(BufWriter::new(file), stacks).map_err(into_io)?;
        let queue = Arc::new(Queue {
            frames: ArrayQueue::new(QUEUE_FRAMES),
            spare: ArrayQueue::new(QUEUE_FRAMES),
            dropped: AtomicU64::new(0),
            bell: Doorbell::default(),
            stop: AtomicBool::new(false),
        });
        // As for drivers: no handler of the program runs in our thread.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let writer = thread::Builder::new().name("lstack/capture".into()).spawn({
            let queue = Arc::clone(&queue);
            move || queue.write_all(output)
        });
        before.thread_set_mask()?;
        Ok(Self { queue, writer: writer? })
    }

    /// Puts the tap around stack `index`'s device.
    pub(crate) fn tap(&self, index: usize, inner: Box<dyn Link>) -> Box<dyn Link> {
        let interface = u32::try_from(index).unwrap_or(u32::MAX);
        let queue = Arc::clone(&self.queue);
        Box::new(CaptureLink { inner, queue, interface, reserved: Vec::new() })
    }

    /// Writes what is queued and closes the file.
    pub(crate) fn stop(self) {
        self.queue.stop.store(true, Ordering::Release);
        self.queue.bell.ring(Sleep::ANY);
        // A panic there has cost the rest of the file, nothing else.
        let _ = self.writer.join();
    }
}

type Output = PcapNgWriter<BufWriter<File>>;

fn begin(file: BufWriter<File>, stacks: usize) -> Result<Output, PcapError> {
    let mut output = PcapNgWriter::new(file)?;
    for index in 0..stacks {
        let options = vec![
            InterfaceDescriptionOption::IfName(Cow::Owned(format!("lstack/{index}"))),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        let interface =
            InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
        output.write_block(&interface.into_block())?;
    }
    output.get_mut().flush().map_err(PcapError::IoError)?;
    Ok(output)
}

fn into_io(error: PcapError) -> std::io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => std::io::Error::other(other),
    }
}

impl Queue {
    fn push(&self, interface: u32, direction: Direction, bytes: &[u8]) {
        if self.frames.is_full() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.extend_from_slice(bytes);
        let record = Record { interface, direction, time: wall_clock(), frame };
        if self.frames.push(record).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.bell.ring(Sleep::ANY);
    }

    fn write_all(&self, mut output: Output) {
        let mut broken = false;
        loop {
            let seen = self.bell.rings();
            let stop = self.stop.load(Ordering::Acquire);
            while let Some(record) = self.frames.pop() {
                if broken {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                } else if let Err(error) = write(&mut output, &record) {
                    log::warn!("the capture file cannot be written, the capture ends: {error}");
                    broken = true;
                }
                drop(self.spare.push(record.frame));
            }
            // A reader of the growing file sees whole frames while nothing comes.
            if let Err(error) = output.get_mut().flush()
                && !broken
            {
                log::warn!("the capture file cannot be written, the capture ends: {error}");
                broken = true;
            }
            if stop {
                return;
            }
            self.bell.sleep(Sleep::NAP, seen, clock::now() + WRITER_NAP, || true);
        }
    }
}

fn write(output: &mut Output, record: &Record) -> Result<(), PcapError> {
    let Record { interface, direction, time, frame } = record;
    let flags = match direction {
        Direction::Received => EPB_INBOUND,
        Direction::Sent => EPB_OUTBOUND,
    };
    let block = EnhancedPacketBlock {
        interface_id: *interface,
        timestamp: *time,
        original_len: u32::try_from(frame.len()).unwrap_or(u32::MAX),
        data: Cow::Borrowed(frame),
        options: vec![EnhancedPacketOption::Flags(flags)],
    };
    output.write_block(&block.into_block()).map(drop)
}

fn wall_clock() -> Duration {
    let time = clock_gettime(ClockId::Realtime);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}

/// The tap.
struct CaptureLink {
    inner: Box<dyn Link>,
    queue: Arc<Queue>,
    interface: u32,
    /// The frame being built. The device's own buffer cannot be read once it is committed.
    reserved: Vec<u8>,
}

impl FrameSink for CaptureLink {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.inner.reserve(len)?;
        self.reserved.resize(len, 0);
        Some(&mut self.reserved)
    }

    fn commit(&mut self, meta: TxMeta) {
        // The device had room at the reserve; a second one replaces it.
        let Some(room) = self.inner.reserve(self.reserved.len()) else { return };
        room.copy_from_slice(&self.reserved);
        self.inner.commit(meta);
        self.queue.push(self.interface, Direction::Sent, &self.reserved);
    }
}

impl Link for CaptureLink {
    fn caps(&self) -> LinkCaps {
        self.inner.caps()
    }

    fn rx_burst(&mut self, max: usize, deliver: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        let Self { inner, queue, interface, .. } = self;
        inner.rx_burst(max, &mut |frame, meta| {
            queue.push(*interface, Direction::Received, frame);
            deliver(frame, meta);
        })
    }

    fn flush(&mut self) -> bool {
        self.inner.flush()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.inner.prepare_sleep()
    }

    fn on_driver_start(&mut self) {
        self.inner.on_driver_start();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        counters.push(("capture_dropped", self.queue.dropped.load(Ordering::Relaxed)));
        counters
    }
}

/// Frames in the queue: some milliseconds of a fast link.
const QUEUE_FRAMES: usize = 4096;

/// The writer is rung for every frame; this only bounds its sleep.
const WRITER_NAP: Duration = Duration::from_secs(10);

/// `if_tsresol`: timestamps count 10^-9 s, which is also what the crate writes whatever is stated.
const NANOSECONDS: u8 = 9;

/// `epb_flags`: direction.
const EPB_INBOUND: u32 = 1;
const EPB_OUTBOUND: u32 = 2;
