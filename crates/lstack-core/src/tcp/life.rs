//! Birth and death of sockets, and what follows from what happened inside a connection.

use super::connection::{AckNeed, Connection, NEVER};
use super::flow::{FlowKey, FlowRef};
use super::header::{Flags, Header, Options, SackBlocks, Timestamps};
use super::output::BareConfig;
use super::ports::PortHold;
use super::time_wait::{Ended, TimeWait};
use super::types::State;
use super::{Kind, REPLIES_MAX, Reply, Socket, Tcp};
use crate::event::EventMark;
use crate::socket::Readiness;

/// IP settings of answers that belong to no socket.
pub(super) const ANSWER_IP: BareConfig = BareConfig { tos: 0, ttl: 64 };

impl Socket {
    pub(super) fn new(kind: Kind, port: Option<PortHold>) -> Self {
        Self { mark: EventMark::default(), port, kind }
    }

    /// What `poll` would say.
    pub(super) fn readiness(&self) -> Readiness {
        match &self.kind {
            Kind::Idle(_) => Readiness::WRITABLE | Readiness::HANGUP,
            Kind::Listener(listener) if listener.accept.is_empty() => Readiness::empty(),
            Kind::Listener(_) => Readiness::READABLE,
            Kind::Connection(connection) => connection.readiness(),
        }
    }
}

impl Tcp {
    pub(super) fn insert_socket(&mut self, socket: Socket) -> u32 {
        let slot = self.sockets.insert(socket);
        if self.generations.len() <= slot as usize {
            self.generations.push(0);
        }
        slot
    }

    /// Frees a slot. What it held in other tables is released here and nowhere else.
    pub(super) fn remove_socket(&mut self, slot: u32) {
        let Some(socket) = self.sockets.remove(slot) else { return };
        self.generations[slot as usize] = self.generations[slot as usize].wrapping_add(1);
        if let Some(hold) = &socket.port {
            self.ports.release(hold);
        }
        if let Kind::Connection(mut connection) = socket.kind {
            if connection.in_table {
                self.flows.remove(connection.hash, FlowRef::Connection(slot));
            }
            if connection.orphan {
                self.orphans -= 1;
                self.delivered_orphans -= usize::from(connection.delivered);
            }
            connection.release(&mut self.shared.pool);
            self.timers.cancel(slot);
            if self.last_flow == Some(slot) {
                self.last_flow = None;
            }
            if connection.queued {
                // The slot may be reused before the list is worked off.
                self.dirty.retain(|&other| other != slot);
            }
        }
    }

    /// Acts on the marks a connection has left: see `connection`.
    pub(super) fn settle(&mut self, slot: u32) {
        let Some(Socket { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(slot)
        else {
            return;
        };
        if let Some(reset) = connection.reset.take() {
            self.shared.counters.tcp_rst_tx += 1;
            let ip = BareConfig { tos: connection.settings.tos, ttl: connection.settings.ttl };
            let key = connection.key;
            let header = reset.header(key.local_port, key.remote_port);
            push_reply(
                &mut self.replies,
                &mut self.shared.counters,
                Reply::Bare { key, header, ip },
            );
        }
        if matches!(connection.state, State::Closed | State::TimeWait) && connection.in_table {
            self.leave_table(slot);
        }
        let Some(Socket { kind: Kind::Connection(connection), mark, .. }) =
            self.sockets.get_mut(slot)
        else {
            return;
        };
        if connection.orphan && connection.state == State::Closed {
            self.remove_socket(slot);
            return;
        }
        if connection.orphan && connection.state == State::FinWait2 && !connection.delivered {
            connection.delivered = true;
            self.delivered_orphans += 1;
        }
        if connection.out_of_memory && !connection.awaits_memory {
            connection.awaits_memory = true;
            self.starved.push(slot);
        }
        if connection.wants_output && !connection.queued {
            connection.queued = true;
            self.dirty.push_back(slot);
        }
        let earliest = connection.timers.earliest();
        if earliest < connection.armed {
            connection.armed = earliest;
            self.timers.arm(slot, earliest);
        }
        if !connection.edges.is_empty() && connection.visible {
            let edges = core::mem::take(&mut connection.edges);
            let generation = self.generations[slot as usize];
            let id = crate::socket::SocketId::new(crate::socket::Protocol::Tcp, slot, generation);
            self.events.post(id, mark, edges);
        }
    }

    /// A connection is over: the flow table forgets it, or points to a `TIME_WAIT` record instead.
    fn leave_table(&mut self, slot: u32) {
        let Some(socket) = self.sockets.get_mut(slot) else { return };
        let Kind::Connection(connection) = &mut socket.kind else { return };
        connection.in_table = false;
        let hash = connection.hash;
        let hold = socket.port;
        // A port that nobody asked for by number is free again; `bind` lasts until `close`.
        let releases = hold.filter(|hold| {
            hold.claim.class == super::ports::Class::Auto
                || !connection.visible
                || connection.orphan
        });
        if releases.is_some() {
            socket.port = None;
        }
        if connection.state == State::TimeWait {
            connection.state = State::Closed;
            let ended = connection.ended(hold);
            let ack = (connection.ack.need == AckNeed::Now).then_some(connection.key);
            connection.ack.need = AckNeed::None;
            let index = self.enter_time_wait(&ended);
            self.flows.replace(hash, FlowRef::Connection(slot), FlowRef::TimeWait(index));
            if let Some(key) = ack {
                self.answer_time_wait(index, &key);
            }
        } else {
            self.flows.remove(hash, FlowRef::Connection(slot));
        }
        if let Some(hold) = releases {
            self.ports.release(&hold);
        }
        self.timers.cancel(slot);
        if let Some(Socket { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(slot)
        {
            connection.armed = NEVER;
        }
    }

    fn enter_time_wait(&mut self, ended: &Ended) -> u32 {
        if self.time_waits.is_full()
            && let Some(oldest) = self.time_waits.oldest()
        {
            self.shared.counters.tcp_time_wait_overflow += 1;
            self.end_time_wait(oldest);
        }
        self.shared.counters.tcp_time_wait_entered += 1;
        let index = self.time_waits.insert(self.now, ended);
        if let Some(record) = self.time_waits.get(index) {
            self.ports.hold(&record.hold());
        }
        index
    }

    /// Removes a record and all that points to it.
    pub(super) fn end_time_wait(&mut self, index: u32) -> Option<TimeWait> {
        let record = self.time_waits.remove(index)?;
        let hash = self.flows.hash(&record.key());
        self.flows.remove(hash, FlowRef::TimeWait(index));
        self.ports.release(&record.hold());
        Some(record)
    }

    /// Acknowledges a segment for a `TIME_WAIT` record.
    pub(super) fn answer_time_wait(&mut self, index: u32, key: &FlowKey) {
        let Some(record) = self.time_waits.get(index) else { return };
        let timestamps = record.timestamp().map(|echo| Timestamps {
            value: ((self.now / 1_000) as u32).wrapping_add(self.secrets.timestamp_offset(key)),
            echo,
        });
        let header = Header {
            src_port: key.local_port,
            dst_port: key.remote_port,
            seq: record.snd_nxt,
            ack: record.rcv_nxt,
            flags: Flags::ACK,
            window: record.window,
            options: Options { timestamps, sack: SackBlocks::default(), ..Options::default() },
        };
        self.push_reply(Reply::Bare { key: *key, header, ip: ANSWER_IP });
    }

    /// Queues a segment of no connection; `false`: too many wait, it is dropped.
    pub(super) fn push_reply(&mut self, reply: Reply) -> bool {
        push_reply(&mut self.replies, &mut self.shared.counters, reply)
    }
}

fn push_reply(
    replies: &mut std::collections::VecDeque<Reply>,
    counters: &mut super::TcpCounters,
    reply: Reply,
) -> bool {
    if replies.len() >= REPLIES_MAX {
        counters.tcp_drop_reply_overflow += 1;
        return false;
    }
    replies.push_back(reply);
    true
}

impl Connection {
    /// What a `TIME_WAIT` record keeps.
    fn ended(&self, hold: Option<PortHold>) -> Ended {
        Ended {
            key: self.key,
            snd_nxt: self.snd.nxt,
            rcv_nxt: self.rcv_nxt(),
            timestamp: self.use_timestamps.then_some(self.rcv.timestamp),
            window: (self.rcv_wnd() >> self.rcv.scale).min(u32::from(u16::MAX)) as u16,
            hold,
        }
    }
}
