//! TCP sockets. RFCs to read first: 9293, 7323, 2018, 6298, 8985, 9438, 5961.
//!
//! `Tcp` holds every TCP socket of a stack: connections, listeners, `TIME_WAIT` records, timers
//! and buffers. It is called by [`crate::Stack`] only.
//!
//! The way of a segment: `receive` (which flow?) → `input`, `ack_input`, `recovery` (what does it
//! change in the connection?) → `Tcp::settle` (what follows for tables, timers, events, the list
//! of flows with something to send) → `output`, once per burst. Calls of the program are in
//! `calls`, life and death of sockets in `life`.

mod ack_input;
mod black_hole;
mod calls;
mod congestion;
mod connection;
mod ecn;
mod expiry;
mod flow;
mod half_open;
mod header;
mod input;
mod life;
mod listener;
mod output;
mod ports;
mod rack;
mod receive;
mod recovery;
mod recv_buffer;
mod rtt;
mod scoreboard;
mod send_buffer;
mod seq;
mod settings;
mod slab;
mod syn_cookie;
mod time_wait;
mod types;

use std::collections::VecDeque;

pub use types::{
    AcceptError, Accepted, BindError, Close, Congestion, ConnectError, ListenError, More,
    NotConnected, OpenError, RecvError, RecvMode, Reuse, SendError, Shutdown, State, TcpCounters,
    TcpInfo, TcpOption,
};

use connection::{Connection, Env, NEVER};
use flow::{FlowKey, FlowSecrets, FlowTable};
use half_open::HalfOpen;
use header::Header;
use listener::Listener;
use output::{BareConfig, Progress};
use ports::{PortHold, Ports};
use settings::{Settings, micros};
use slab::Slab;
use syn_cookie::SynCookies;
use time_wait::TimeWaits;

use crate::buffer::BlockPool;
use crate::config::{Secret, Steering, TcpConfig};
use crate::event::{Event, EventMark, EventQueue};
use crate::ip::Egress;
use crate::socket::{Protocol, SocketId};
use crate::time::Instant;
use crate::timer::TimerWheel;

/// All TCP sockets of a stack.
#[derive(Debug)]
pub(crate) struct Tcp {
    shared: Shared,
    steering: Steering,
    link_mtu: u16,
    /// Latest time we were told.
    now: u64,
    sockets: Slab<Socket>,
    /// How often each slot of `sockets` was used before.
    generations: Vec<u32>,
    half_open: Slab<HalfOpen>,
    time_waits: TimeWaits,
    flows: FlowTable,
    secrets: FlowSecrets,
    cookies: SynCookies,
    ports: Ports,
    /// One timer per socket slot.
    timers: TimerWheel,
    /// One timer per half-open slot.
    half_open_timers: TimerWheel,
    events: EventQueue,
    /// Connections with something to send, each once.
    dirty: VecDeque<u32>,
    /// Segments of no connection that wait to be sent.
    replies: VecDeque<Reply>,
    /// The connection of the last segment: bursts are mostly of one flow.
    last_flow: Option<u32>,
    orphans: usize,
    /// Those among them that only wait for the peer's end.
    delivered_orphans: usize,
    /// Connections that found no memory: for data to send, or to offer a window.
    starved: Vec<u32>,
}

/// What connections work with.
#[derive(Debug)]
struct Shared {
    config: TcpConfig,
    pool: BlockPool,
    counters: TcpCounters,
}

impl Shared {
    fn env(&mut self, now: u64) -> Env<'_> {
        Env { now, config: &self.config, pool: &mut self.pool, counters: &mut self.counters }
    }
}

/// A slot of the socket table.
#[derive(Debug)]
struct Socket {
    mark: EventMark,
    /// The claim on the local port.
    port: Option<PortHold>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Neither connected nor listening; perhaps bound.
    Idle(Box<Settings>),
    Listener(Box<Listener>),
    Connection(Box<Connection>),
}

/// A segment of no connection.
#[derive(Clone, Copy, Debug)]
enum Reply {
    /// A reset, or an acknowledgement of a `TIME_WAIT` record.
    Bare { key: FlowKey, header: Header, ip: BareConfig },
    /// The SYN+ACK of a half-open connection.
    SynAck(u32),
}

/// Replies that may wait. More only pile up when somebody floods us, and then fewer are better.
const REPLIES_MAX: usize = 1_024;

impl Tcp {
    /// `link_mtu` is the largest packet the device takes.
    pub(crate) fn new(
        config: TcpConfig,
        steering: Steering,
        link_mtu: u16,
        secret: &Secret,
    ) -> Self {
        Self {
            steering,
            link_mtu,
            now: 0,
            sockets: Slab::new(),
            generations: Vec::new(),
            half_open: Slab::new(),
            time_waits: TimeWaits::new(micros(config.time_wait)),
            flows: FlowTable::new(secret),
            secrets: FlowSecrets::new(secret),
            cookies: SynCookies::new(secret),
            ports: Ports::new(secret),
            timers: TimerWheel::new(),
            half_open_timers: TimerWheel::new(),
            events: EventQueue::default(),
            dirty: VecDeque::new(),
            replies: VecDeque::new(),
            last_flow: None,
            orphans: 0,
            delivered_orphans: 0,
            starved: Vec::new(),
            shared: Shared {
                pool: BlockPool::new(config.memory_max),
                config,
                counters: TcpCounters::default(),
            },
        }
    }

    pub(crate) fn counters(&self) -> &TcpCounters {
        &self.shared.counters
    }

    /// Runs the timers that are due.
    pub(crate) fn poll_timers(&mut self, now: Instant) {
        let now = self.advance_clock(now);
        while let Some(slot) = self.timers.pop_due(now) {
            if let Some(Socket { kind: Kind::Connection(connection), .. }) =
                self.sockets.get_mut(slot)
            {
                connection.armed = NEVER;
                connection.on_timer(&mut self.shared.env(now));
                self.settle(slot);
            }
        }
        while let Some(index) = self.half_open_timers.pop_due(now) {
            self.on_half_open_timer(index);
        }
        while let Some(index) = self.time_waits.due(now) {
            self.end_time_wait(index);
        }
    }

    /// Sends what is to be sent. `false`: the device took no more, call again.
    pub(crate) fn poll_transmit(&mut self, out: &mut Egress<'_>) -> bool {
        let now = self.advance_clock(out.now);
        loop {
            if !self.transmit_replies(out) {
                return false;
            }
            let Some(slot) = self.dirty.pop_front() else { return true };
            let Some(Socket { kind: Kind::Connection(connection), .. }) =
                self.sockets.get_mut(slot)
            else {
                continue;
            };
            connection.queued = false;
            connection.wants_output = false;
            let progress = connection.transmit(&mut self.shared.env(now), out);
            connection.wants_output |= progress != Progress::Done;
            self.settle(slot);
            if progress == Progress::Blocked {
                // First again when the device has room.
                self.dirty.rotate_right(1);
                return false;
            }
        }
    }

    fn transmit_replies(&mut self, out: &mut Egress<'_>) -> bool {
        while let Some(reply) = self.replies.front().copied() {
            let sent = match reply {
                Reply::Bare { key, header, ip } => output::send_bare(out, &key, &header, ip),
                Reply::SynAck(index) => self.send_syn_ack(index, out),
            };
            if !sent {
                return false;
            }
            self.shared.counters.tcp_segments_tx += 1;
            self.replies.pop_front();
        }
        true
    }

    /// When [`Self::poll_timers`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        [
            self.timers.next_deadline(),
            self.half_open_timers.next_deadline(),
            self.time_waits.next_deadline(self.now),
        ]
        .into_iter()
        .flatten()
        .min()
        .map(Instant::from_micros)
    }

    /// Whether [`Self::poll_transmit`] has something to do.
    pub(crate) fn wants_transmit(&self) -> bool {
        !self.dirty.is_empty() || !self.replies.is_empty()
    }

    pub(crate) fn take_event(&mut self) -> Option<Event> {
        while let Some(id) = self.events.pop() {
            let Some(slot) = self.slot_of(id) else { continue };
            let Some(socket) = self.sockets.get_mut(slot) else { continue };
            let edges = socket.mark.take();
            return Some(Event { socket: id, level: socket.readiness(), edges });
        }
        None
    }

    /// Called once after each burst of frames. Acknowledgements of a burst need nothing here: they
    /// leave with the next [`Self::poll_transmit`], one for all segments of a flow.
    pub(crate) fn end_of_burst(&mut self, now: Instant) {
        self.advance_clock(now);
        self.last_flow = None;
        self.wake_starved();
    }

    /// Memory was given back: those that had none may try again.
    fn wake_starved(&mut self) {
        if self.starved.is_empty() || !self.shared.pool.is_relaxed() {
            return;
        }
        for slot in core::mem::take(&mut self.starved) {
            if let Some(Socket { kind: Kind::Connection(connection), .. }) =
                self.sockets.get_mut(slot)
            {
                connection.on_memory();
                self.settle(slot);
            }
        }
    }

    /// Connections that the program has closed and that still have something to send.
    pub(crate) fn orphans(&self) -> usize {
        self.orphans
    }

    /// Those whose data or end the peer has not acknowledged yet.
    pub(crate) fn undelivered(&self) -> usize {
        self.orphans - self.delivered_orphans
    }

    /// Bytes of memory that buffers hold.
    pub(crate) fn memory(&self) -> usize {
        self.shared.pool.used_bytes()
    }

    fn advance_clock(&mut self, now: Instant) -> u64 {
        self.now = self.now.max(now.as_micros());
        self.now
    }

    /// The slot an id names, if its socket still lives and the program still has it.
    fn slot_of(&self, id: SocketId) -> Option<u32> {
        let slot = id.slot() as u32;
        let known = *self.generations.get(id.slot())? == id.generation();
        let owned = match &self.sockets.get(slot)?.kind {
            Kind::Connection(connection) => !connection.orphan,
            _ => true,
        };
        (known && owned && id.protocol() == Protocol::Tcp).then_some(slot)
    }

    fn id_of(&self, slot: u32) -> SocketId {
        SocketId::new(Protocol::Tcp, slot, self.generations[slot as usize])
    }
}
