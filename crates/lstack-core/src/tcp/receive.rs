//! From a segment to its flow: checks, lookup, listeners, half-open connections, `TIME_WAIT`, and
//! the reset for what belongs to nobody. RFC 9293 3.10.7.1 and 3.10.7.2, 5961, 6191.

use core::net::IpAddr;

use super::connection::{AckNeed, Connection, NEVER, PeerSyn, Start};
use super::flow::{FlowKey, FlowRef};
use super::half_open::{HalfOpen, Opening, SYN_ACK_RETRIES, SYN_ACK_TIMEOUT};
use super::header::{Flags, Segment};
use super::life::ANSWER_IP;
use super::listener::Listener;
use super::output::{BareConfig, PROTOCOL, listener_scale, send_bare};
use super::ports::{Claim, Class, PortHold};
use super::seq::Seq;
use super::{Kind, Reply, Socket, Tcp, syn_cookie};
use crate::config::EcnMode;
use crate::ip::{Egress, IcmpError, PacketMeta, checksum};
use crate::link::ChecksumVerdict;
use crate::socket::{Readiness, SocketError};
use crate::time::Instant;

/// Below this no router's report of a smaller path is believed (Linux's `min_pmtu`).
const PATH_MTU_MIN: u16 = 552;

impl Tcp {
    /// A segment for one of our addresses: `segment` is the TCP header and all that follows it in
    /// the IP packet.
    pub(crate) fn handle_segment(&mut self, now: Instant, meta: &PacketMeta, segment: &[u8]) {
        let now = self.advance_clock(now);
        let counters = &mut self.shared.counters;
        counters.tcp_segments_rx += 1;
        if !is_intact(meta, segment) {
            counters.tcp_drop_bad_checksum += 1;
            return;
        }
        let Some(segment) = Segment::parse(segment, meta.tos) else {
            counters.tcp_drop_malformed += 1;
            return;
        };
        if !is_plausible_peer(meta.src) || !is_plausible_peer(meta.dst) {
            counters.tcp_drop_bad_address += 1;
            return;
        }
        let key = FlowKey {
            local: meta.dst,
            remote: meta.src,
            local_port: segment.dst_port,
            remote_port: segment.src_port,
        };
        if let Some(slot) = self.last_flow
            && let Some(Socket { kind: Kind::Connection(connection), .. }) =
                self.sockets.get_mut(slot)
            && connection.key == key
        {
            connection.handle_segment(&mut self.shared.env(now), &segment);
            self.settle(slot);
            return;
        }
        let hash = self.flows.hash(&key);
        match self.find_flow(hash, &key) {
            Some(FlowRef::Connection(slot)) => {
                self.last_flow = Some(slot);
                self.deliver(slot, &segment);
            }
            Some(FlowRef::HalfOpen(index)) => self.handle_half_open(index, &key, &segment),
            Some(FlowRef::TimeWait(index)) => self.handle_time_wait(index, &key, hash, &segment),
            None => self.handle_unknown(&key, hash, &segment, None),
        }
    }

    fn deliver(&mut self, slot: u32, segment: &Segment<'_>) {
        let now = self.now;
        if let Some(Socket { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(slot)
        {
            connection.handle_segment(&mut self.shared.env(now), segment);
            self.settle(slot);
        }
    }

    pub(super) fn find_flow(&self, hash: u32, key: &FlowKey) -> Option<FlowRef> {
        self.flows.find(hash, |flow| match flow {
            FlowRef::Connection(slot) => match self.sockets.get(slot).map(|socket| &socket.kind) {
                Some(Kind::Connection(connection)) => connection.key == *key,
                _ => false,
            },
            FlowRef::HalfOpen(index) => {
                self.half_open.get(index).is_some_and(|record| record.key == *key)
            }
            FlowRef::TimeWait(index) => {
                self.time_waits.get(index).is_some_and(|record| record.is(key))
            }
        })
    }

    /// No flow has the tuple: a listener's business, or nobody's.
    fn handle_unknown(
        &mut self,
        key: &FlowKey,
        hash: u32,
        segment: &Segment<'_>,
        iss: Option<Seq>,
    ) {
        let flags = segment.flags & (Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN);
        let listener = self.ports.listener(key.local, key.local_port, hash);
        match listener {
            _ if flags.contains(Flags::RST) => self.shared.counters.tcp_drop_no_socket += 1,
            Some(slot) if flags == Flags::SYN => self.answer_syn(slot, key, hash, segment, iss),
            Some(slot)
                if flags & (Flags::SYN | Flags::ACK) == Flags::ACK
                    && self.take_cookie(slot, key, hash, segment) => {}
            Some(_) if !flags.contains(Flags::ACK) => {
                self.shared.counters.tcp_drop_bad_state += 1;
            }
            _ => {
                self.shared.counters.tcp_drop_no_socket += 1;
                self.send_reset(key, segment);
            }
        }
    }

    fn send_reset(&mut self, key: &FlowKey, segment: &Segment<'_>) {
        self.shared.counters.tcp_rst_tx += 1;
        let header = segment.reset().header(key.local_port, key.remote_port);
        self.push_reply(Reply::Bare { key: *key, header, ip: ANSWER_IP });
    }

    /// A SYN for a listener. When the accept queue is full it is dropped: the peer comes again.
    fn answer_syn(
        &mut self,
        slot: u32,
        key: &FlowKey,
        hash: u32,
        segment: &Segment<'_>,
        iss: Option<Seq>,
    ) {
        let now = self.now;
        let Some(Socket { kind: Kind::Listener(listener), .. }) = self.sockets.get(slot) else {
            return;
        };
        if listener.accept.is_full() || self.sockets.len() >= self.shared.config.max_sockets {
            self.shared.counters.tcp_listen_overflow += 1;
            return;
        }
        let mut peer = PeerSyn::of(segment);
        peer.ecn &= self.shared.config.ecn != EcnMode::Off;
        if listener.is_half_open_full() {
            self.answer_with_cookie(slot, key, hash, peer);
            return;
        }
        let iss = iss.unwrap_or_else(|| self.secrets.initial_seq(key, now));
        let record = self.opening(listener, (slot, *key, hash), iss, peer);
        let Some(Socket { kind: Kind::Listener(listener), .. }) = self.sockets.get_mut(slot) else {
            return;
        };
        let index = listener.half_open.push(&mut self.half_open, record);
        self.flows.insert(hash, FlowRef::HalfOpen(index));
        self.half_open_timers.arm(index, now + SYN_ACK_TIMEOUT);
        self.request_syn_ack(index);
    }

    /// The record of a handshake, whether it will be kept or not.
    fn opening(
        &self,
        listener: &Listener,
        (slot, key, hash): (u32, FlowKey, u32),
        iss: Seq,
        peer: PeerSyn,
    ) -> HalfOpen {
        let settings = &listener.settings;
        HalfOpen::new(&Opening {
            key,
            hash,
            listener: slot,
            iss,
            peer,
            timestamp_offset: self.secrets.timestamp_offset(&key),
            window: settings.recv_buffer.min(u32::from(u16::MAX)) as u16,
            scale: listener_scale(
                &self.shared.config,
                settings.recv_buffer,
                settings.recv_buffer_fixed,
            ),
            mss_limit: settings.mss,
            mtu: self.link_mtu,
            now: self.now,
        })
    }

    /// Answers a SYN and forgets it.
    fn answer_with_cookie(&mut self, slot: u32, key: &FlowKey, hash: u32, peer: PeerSyn) {
        let now = self.now;
        let iss = self.cookies.seal(key, &peer, now);
        let Some(Socket { kind: Kind::Listener(listener), .. }) = self.sockets.get(slot) else {
            return;
        };
        let answer = self.opening(listener, (slot, *key, hash), iss, peer).cookie_answer(now);
        let ip = BareConfig { tos: listener.settings.tos, ttl: listener.settings.ttl };
        if let Some(Socket { kind: Kind::Listener(listener), .. }) = self.sockets.get_mut(slot) {
            listener.cookies_until = now + syn_cookie::LIFETIME;
        }
        if self.push_reply(Reply::Bare { key: *key, header: answer, ip }) {
            self.shared.counters.tcp_syn_cookies_tx += 1;
        }
    }

    /// Makes a connection of an acknowledgement that brings back a SYN cookie. Returns whether it
    /// did, or would have with room in the accept queue.
    fn take_cookie(&mut self, slot: u32, key: &FlowKey, hash: u32, segment: &Segment<'_>) -> bool {
        let Some(Socket { kind: Kind::Listener(listener), .. }) = self.sockets.get(slot) else {
            return false;
        };
        if self.now > listener.cookies_until {
            return false;
        }
        let (irs, iss) = (segment.seq - 1, segment.ack - 1);
        let timestamps = segment.options.timestamps;
        let Some(peer) = self.cookies.open(key, irs, iss, timestamps, self.now) else {
            self.shared.counters.tcp_syn_cookies_failed += 1;
            return false;
        };
        if listener.accept.is_full() || self.sockets.len() >= self.shared.config.max_sockets {
            // As Linux: what the peer sends next brings the cookie again.
            self.shared.counters.tcp_listen_overflow += 1;
            return true;
        }
        let mut record = self.opening(listener, (slot, *key, hash), iss, peer);
        // Nobody knows when the SYN+ACK left: no sample of the round trip.
        record.retries = 1;
        self.shared.counters.tcp_syn_cookies_rx += 1;
        self.open_passively(&record, segment);
        true
    }

    fn request_syn_ack(&mut self, index: u32) {
        let waits = self.half_open.get(index).is_some_and(|record| record.queued);
        let queued = waits || self.push_reply(Reply::SynAck(index));
        if let Some(record) = self.half_open.get_mut(index) {
            record.queued = queued;
        }
    }

    /// Sends the SYN+ACK of a half-open connection, if that still exists.
    pub(super) fn send_syn_ack(&mut self, index: u32, out: &mut Egress<'_>) -> bool {
        let now = self.now;
        let Some(record) = self.half_open.get_mut(index) else { return true };
        record.mtu = out.path_mtu(record.key.remote);
        let ip = match self.sockets.get(record.listener).map(|socket| &socket.kind) {
            Some(Kind::Listener(listener)) => {
                BareConfig { tos: listener.settings.tos, ttl: listener.settings.ttl }
            }
            _ => ANSWER_IP,
        };
        let sent = send_bare(out, &record.key, &record.answer(now), ip);
        if sent {
            record.queued = false;
            record.sent_at = now;
        }
        sent
    }

    /// RFC 9293 3.10.7.4 in `SYN_RECEIVED`, for a connection that is not one yet.
    fn handle_half_open(&mut self, index: u32, key: &FlowKey, segment: &Segment<'_>) {
        let Some(record) = self.half_open.get(index) else { return };
        let expected = record.peer.irs + 1;
        let (iss, irs) = (record.iss, record.peer.irs);
        let flags = segment.flags;
        if flags.contains(Flags::RST) {
            if segment.seq == expected {
                self.shared.counters.tcp_rst_rx += 1;
                self.remove_half_open(index);
            } else {
                self.shared.counters.tcp_drop_out_of_window += 1;
            }
            return;
        }
        if flags.contains(Flags::SYN) {
            if segment.seq == irs && !flags.contains(Flags::ACK) {
                self.request_syn_ack(index);
            } else {
                self.shared.counters.tcp_drop_bad_state += 1;
            }
            return;
        }
        if !flags.contains(Flags::ACK) {
            self.shared.counters.tcp_drop_bad_state += 1;
            return;
        }
        if segment.ack != iss + 1 {
            self.shared.counters.tcp_drop_bad_ack += 1;
            self.send_reset(key, segment);
            return;
        }
        let end = segment.seq + segment.sequence_len();
        let window = u32::from(record.window);
        if end.before(expected) || segment.seq.after(expected + window) {
            self.shared.counters.tcp_drop_out_of_window += 1;
            self.request_syn_ack(index);
            return;
        }
        self.complete_handshake(index, segment);
    }

    /// The handshake is done: a connection is made and waits to be accepted.
    fn complete_handshake(&mut self, index: u32, segment: &Segment<'_>) {
        let now = self.now;
        let Some(record) = self.half_open.get(index).copied() else { return };
        let Some(Socket { kind: Kind::Listener(listener), .. }) = self.sockets.get(record.listener)
        else {
            return;
        };
        if listener.accept.is_full() || self.sockets.len() >= self.shared.config.max_sockets {
            // As Linux: the acknowledgement is forgotten, and our SYN+ACK asks for it again.
            self.shared.counters.tcp_listen_overflow += 1;
            return;
        }
        let deferred = listener.settings.defer_accept.micros();
        let waits_for_data = deferred != 0 && segment.sequence_len() == 0;
        if waits_for_data && now < record.started_at.saturating_add(deferred) {
            return;
        }
        self.remove_half_open(index);
        self.open_passively(&record, segment);
    }

    /// Makes the connection of a handshake that `segment` completes, and puts it into its
    /// listener's accept queue, which has room.
    fn open_passively(&mut self, record: &HalfOpen, segment: &Segment<'_>) {
        let now = self.now;
        let Some(Socket { kind: Kind::Listener(listener), port, .. }) =
            self.sockets.get(record.listener)
        else {
            return;
        };
        let settings = listener.settings;
        let hold = port
            .map(|hold| PortHold { claim: Claim { class: Class::Bound, ..hold.claim }, ..hold });
        let start = Start {
            key: record.key,
            hash: record.hash,
            iss: record.iss,
            timestamp_offset: record.timestamp_offset,
            settings,
            mtu: record.mtu,
        };
        let mut env = self.shared.env(now);
        let mut connection = Connection::new(&start, &env);
        connection.accept_from(record, segment, &mut env);
        if let Some(hold) = &hold {
            self.ports.hold(hold);
        }
        let slot = self.insert_socket(Socket::new(Kind::Connection(Box::new(connection)), hold));
        self.flows.insert(record.hash, FlowRef::Connection(slot));
        self.shared.counters.tcp_passive_opens += 1;
        let listener_id = self.id_of(record.listener);
        if let Some(Socket { kind: Kind::Listener(listener), mark, .. }) =
            self.sockets.get_mut(record.listener)
        {
            listener.accept.push(slot);
            self.events.post(listener_id, mark, Readiness::READABLE);
        }
        self.deliver(slot, segment);
    }

    pub(super) fn remove_half_open(&mut self, index: u32) {
        let Some(record) = self.half_open.get(index).copied() else { return };
        self.flows.remove(record.hash, FlowRef::HalfOpen(index));
        self.half_open_timers.cancel(index);
        if let Some(Socket { kind: Kind::Listener(listener), .. }) =
            self.sockets.get_mut(record.listener)
        {
            listener.half_open.remove(&mut self.half_open, index);
        }
        if record.queued {
            self.replies.retain(|reply| !matches!(reply, Reply::SynAck(other) if *other == index));
        }
    }

    /// The peer did not answer our SYN+ACK in time.
    pub(super) fn on_half_open_timer(&mut self, index: u32) {
        let now = self.now;
        let Some(record) = self.half_open.get_mut(index) else { return };
        if record.retries >= SYN_ACK_RETRIES {
            self.shared.counters.tcp_syn_timeouts += 1;
            self.remove_half_open(index);
            return;
        }
        record.retries += 1;
        self.half_open_timers.arm(index, now + (SYN_ACK_TIMEOUT << record.retries));
        self.request_syn_ack(index);
    }

    /// RFC 9293 3.10.7.4 in `TIME_WAIT`. Resets are ignored (RFC 1337).
    fn handle_time_wait(&mut self, index: u32, key: &FlowKey, hash: u32, segment: &Segment<'_>) {
        let Some(record) = self.time_waits.get(index) else { return };
        if segment.flags.contains(Flags::RST) {
            self.shared.counters.tcp_drop_bad_state += 1;
            return;
        }
        let is_syn = segment.flags & (Flags::SYN | Flags::ACK) == Flags::SYN;
        if is_syn && record.accepts_syn(segment) {
            if self.ports.listener(key.local, key.local_port, hash).is_some() {
                let next_life = record.next_life();
                self.shared.counters.tcp_time_wait_reused += 1;
                self.end_time_wait(index);
                self.handle_unknown(key, hash, segment, Some(next_life));
            } else {
                self.shared.counters.tcp_drop_no_socket += 1;
                self.send_reset(key, segment);
            }
            return;
        }
        // A pure acknowledgement is not answered: two ends in TIME_WAIT would never stop.
        if segment.sequence_len() > 0 {
            if segment.flags.contains(Flags::FIN) {
                self.time_waits.restart(self.now, index);
            }
            self.answer_time_wait(index, key);
        }
    }

    /// An ICMP error (or a failed neighbour) about a segment we sent: `quoted` is the start of its
    /// TCP header, at least 8 bytes (ports and sequence number).
    pub(crate) fn handle_icmp(
        &mut self,
        now: Instant,
        src: IpAddr,
        dst: IpAddr,
        quoted: &[u8],
        error: IcmpError,
    ) {
        let now = self.advance_clock(now);
        let Some((quoted, _)) = quoted.split_first_chunk::<8>() else { return };
        let [a, b, c, d, seq @ ..] = *quoted;
        let key = FlowKey {
            local: src,
            remote: dst,
            local_port: u16::from_be_bytes([a, b]),
            remote_port: u16::from_be_bytes([c, d]),
        };
        let seq = Seq(u32::from_be_bytes(seq));
        let flow = self.find_flow(self.flows.hash(&key), &key);
        if let Some(FlowRef::Connection(slot)) = flow
            && let Some(Socket { kind: Kind::Connection(connection), .. }) =
                self.sockets.get_mut(slot)
            && seq.at_or_after(connection.snd.una)
            && seq.at_or_before(connection.snd.nxt)
        {
            connection.on_icmp(&mut self.shared.env(now), error);
            self.settle(slot);
        } else {
            self.shared.counters.tcp_icmp_ignored += 1;
        }
    }
}

impl Connection {
    /// Makes a fresh connection what the handshake has agreed on. The segment that completed it
    /// is delivered afterwards.
    fn accept_from(&mut self, record: &HalfOpen, segment: &Segment<'_>, env: &mut super::Env<'_>) {
        self.visible = false;
        self.take_peer_syn(&record.peer, record.scale, env.now);
        self.rcv.edge = record.peer.irs + 1 + u32::from(record.window);
        self.snd.una = record.iss + 1;
        self.snd.nxt = record.iss + 1;
        self.snd.wl1 = segment.seq;
        self.snd.wl2 = segment.ack;
        self.snd.wnd = u32::from(segment.window) << self.snd.scale;
        self.snd.max_wnd = self.snd.wnd;
        if record.retries == 0 {
            let rtt = env.now.saturating_sub(record.sent_at);
            self.snd.rtt.sample(env.now, u32::try_from(rtt).unwrap_or(u32::MAX));
        }
        self.wants_output = false;
        self.ack.need = AckNeed::None;
        self.armed = NEVER;
        self.establish(env);
    }

    /// Errors as Linux's `tcp_v4_err`: they end a handshake, and are only remembered afterwards.
    fn on_icmp(&mut self, env: &mut super::Env<'_>, error: IcmpError) {
        let error = match error {
            IcmpError::PacketTooBig { mtu } => {
                self.on_packet_too_big(env, mtu);
                return;
            }
            IcmpError::PortUnreachable => SocketError::ConnectionRefused,
            IcmpError::ProtocolUnreachable => SocketError::ProtocolUnreachable,
            IcmpError::NetworkUnreachable => SocketError::NetworkUnreachable,
            IcmpError::HostUnreachable | IcmpError::TimeExceeded | IcmpError::NeighborFailed => {
                SocketError::HostUnreachable
            }
        };
        if matches!(self.state, super::State::SynSent | super::State::SynReceived) {
            self.die(env, Some(error));
        } else {
            self.soft_error = Some(error);
        }
    }

    /// RFC 1191: what is in flight will not arrive; it goes again in smaller pieces.
    fn on_packet_too_big(&mut self, env: &mut super::Env<'_>, mtu: u16) {
        let mtu = mtu.max(PATH_MTU_MIN);
        self.trust_report(mtu);
        if mtu >= self.snd.mtu {
            env.counters.tcp_icmp_ignored += 1;
            return;
        }
        self.lower_mtu(mtu);
        self.snd.board.lose_after_timeout(env.now, 0);
        self.request_output();
    }
}

fn is_intact(meta: &PacketMeta, segment: &[u8]) -> bool {
    match meta.l4_checksum {
        ChecksumVerdict::Good => true,
        ChecksumVerdict::Bad => false,
        ChecksumVerdict::Unknown => {
            checksum::pseudo_header(meta.src, meta.dst, PROTOCOL, segment.len())
                .add_bytes(segment)
                .is_valid()
        }
    }
}

/// Whether a connection may have this end.
fn is_plausible_peer(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !address.is_multicast() && !address.is_broadcast() && !address.is_unspecified()
        }
        IpAddr::V6(address) => !address.is_multicast() && !address.is_unspecified(),
    }
}
