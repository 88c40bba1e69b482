//! What programs ask of TCP sockets. Answers are Linux's; see the `tcp(7)` page and POSIX.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io::{IoSlice, IoSliceMut};

use super::congestion::Algorithm;
use super::connection::{AckNeed, Connection, Env, QUICK_ACKS, Start, Timer};
use super::flow::{FlowKey, FlowRef};
use super::listener::Listener;
use super::ports::{Claim, Class, PortHold};
use super::settings::Settings;
use super::types::{
    AcceptError, Accepted, BindError, Close, Congestion, ConnectError, ListenError, More,
    NotConnected, OpenError, RecvError, RecvMode, Reuse, SendError, Shutdown, State, TcpInfo,
    TcpOption,
};
use super::{Kind, Socket, Tcp};
use crate::bound::{Binding, BoundTo};
use crate::socket::{Readiness, SocketError, SocketId};
use crate::steering::flow_owner;
use crate::time::Instant;

impl Tcp {
    pub(crate) fn open(&mut self) -> Result<SocketId, OpenError> {
        if self.sockets.len() >= self.shared.config.max_sockets {
            return Err(OpenError::LimitReached);
        }
        let settings = Box::new(Settings::new(&self.shared.config));
        let slot = self.insert_socket(Socket::new(Kind::Idle(settings), None));
        Ok(self.id_of(slot))
    }

    /// Binds to `local` (port 0: any free). The address is one of the stack's or unspecified; the
    /// caller has checked that.
    pub(crate) fn bind(
        &mut self,
        id: SocketId,
        local: Binding,
        reuse: Reuse,
    ) -> Result<SocketAddr, BindError> {
        let slot = self.slot_of(id).ok_or(BindError::NoSocket)?;
        let socket = self.sockets.get_mut(slot).ok_or(BindError::NoSocket)?;
        if socket.port.is_some() || !matches!(socket.kind, Kind::Idle(_)) {
            return Err(BindError::AlreadyBound);
        }
        let claim = Claim { addr: local.into(), reuse, class: Class::Bound };
        let local = local.address;
        let hold = if local.port() == 0 {
            self.ports.pick_to_bind(claim).ok_or(BindError::NoFreePort)?
        } else {
            PortHold { port: local.port(), claim }
        };
        if self.ports.is_taken(&hold) {
            return Err(BindError::InUse);
        }
        self.ports.hold(&hold);
        socket.port = Some(hold);
        Ok(SocketAddr::new(local.ip(), hold.port))
    }

    pub(crate) fn listen(&mut self, id: SocketId, backlog: u32) -> Result<(), ListenError> {
        let slot = self.slot_of(id).ok_or(ListenError::NoSocket)?;
        let socket = self.sockets.get_mut(slot).ok_or(ListenError::NoSocket)?;
        let settings = match &mut socket.kind {
            Kind::Listener(listener) => {
                listener.accept.set_backlog(backlog);
                return Ok(());
            }
            Kind::Connection(_) => return Err(ListenError::Connected),
            Kind::Idle(settings) => **settings,
        };
        let hold = match socket.port {
            Some(hold) => {
                PortHold { claim: Claim { class: Class::Listening, ..hold.claim }, ..hold }
            }
            None => {
                let claim =
                    Claim { addr: BoundTo::Any, reuse: Reuse::default(), class: Class::Listening };
                self.ports.pick_to_bind(claim).ok_or(ListenError::InUse)?
            }
        };
        if let Some(bound) = &socket.port {
            self.ports.release(bound);
        }
        if self.ports.is_taken(&hold) {
            if let Some(bound) = &socket.port {
                self.ports.hold(bound);
            }
            return Err(ListenError::InUse);
        }
        self.ports.hold(&hold);
        self.ports.add_listener(hold.port, hold.claim.addr, slot);
        socket.port = Some(hold);
        socket.kind = Kind::Listener(Box::new(Listener::new(settings, backlog)));
        Ok(())
    }

    pub(crate) fn accept(&mut self, _now: Instant, id: SocketId) -> Result<Accepted, AcceptError> {
        let listener_slot = self.slot_of(id).ok_or(AcceptError::NotListening)?;
        let Some(Socket { kind: Kind::Listener(listener), .. }) =
            self.sockets.get_mut(listener_slot)
        else {
            return Err(AcceptError::NotListening);
        };
        let slot = listener.accept.pop().ok_or(AcceptError::WouldBlock)?;
        let socket = self.id_of(slot);
        match self.sockets.get_mut(slot).map(|socket| &mut socket.kind) {
            Some(Kind::Connection(connection)) => {
                connection.visible = true;
                // Whoever accepts looks at the level.
                connection.edges = Readiness::empty();
                Ok(Accepted {
                    socket,
                    local: connection.key.local_addr(),
                    remote: connection.key.remote_addr(),
                })
            }
            _ => Err(AcceptError::WouldBlock),
        }
    }

    /// Starts a handshake. `source` is the address to use when the socket is not bound to one;
    /// `mtu` is the largest packet for the path.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        id: SocketId,
        source: IpAddr,
        remote: SocketAddr,
        mtu: u16,
    ) -> Result<(), ConnectError> {
        let now = self.advance_clock(now);
        let slot = self.slot_of(id).ok_or(ConnectError::NoSocket)?;
        let socket = self.sockets.get_mut(slot).ok_or(ConnectError::NoSocket)?;
        let settings = match &mut socket.kind {
            Kind::Idle(settings) => **settings,
            Kind::Listener(_) => return Err(ConnectError::Connected),
            Kind::Connection(connection) => {
                let outcome = connection.earlier_attempt();
                if connection.is_over() && !connection.was_established {
                    // The report ends the attempt; the next call starts another.
                    socket.kind = Kind::Idle(Box::new(connection.settings));
                }
                return Err(outcome);
            }
        };
        let bound = socket.port;
        let local = bound.and_then(|hold| hold.claim.addr.address()).unwrap_or(source);
        let key = self.choose_tuple(now, local, remote, bound)?;
        let hash = self.flows.hash(&key);
        let iss = match self.find_flow(hash, &key) {
            Some(FlowRef::TimeWait(index)) => {
                self.shared.counters.tcp_time_wait_reused += 1;
                self.end_time_wait(index).map(|record| record.next_life())
            }
            _ => None,
        };
        let start = Start {
            key,
            hash,
            iss: iss.unwrap_or_else(|| self.secrets.initial_seq(&key, now)),
            timestamp_offset: self.secrets.timestamp_offset(&key),
            settings,
            mtu,
        };
        let connection = Connection::new(&start, &self.shared.env(now));
        if bound.is_none() {
            let addr = BoundTo::Address(local);
            let claim = Claim { addr, reuse: Reuse::default(), class: Class::Auto };
            let hold = PortHold { port: key.local_port, claim };
            self.ports.hold(&hold);
            if let Some(socket) = self.sockets.get_mut(slot) {
                socket.port = Some(hold);
            }
        }
        if let Some(socket) = self.sockets.get_mut(slot) {
            socket.kind = Kind::Connection(Box::new(connection));
        }
        self.flows.insert(hash, FlowRef::Connection(slot));
        self.shared.counters.tcp_active_opens += 1;
        self.settle(slot);
        Ok(())
    }

    /// A four-tuple that is free, and whose segments come to this stack.
    fn choose_tuple(
        &mut self,
        now: u64,
        local: IpAddr,
        remote: SocketAddr,
        bound: Option<PortHold>,
    ) -> Result<FlowKey, ConnectError> {
        let key = |local_port| FlowKey {
            local,
            remote: remote.ip(),
            local_port,
            remote_port: remote.port(),
        };
        let Self { steering, flows, sockets, half_open, time_waits, ports, .. } = self;
        let is_free = |port: u16| {
            let key = key(port);
            let owner =
                flow_owner(key.local_addr(), key.remote_addr(), steering.key, steering.count);
            if owner != steering.index {
                return false;
            }
            let taken = flows.find(flows.hash(&key), |flow| match flow {
                FlowRef::Connection(slot) => {
                    matches!(sockets.get(slot).map(|socket| &socket.kind),
                        Some(Kind::Connection(connection)) if connection.key == key)
                }
                FlowRef::HalfOpen(index) => {
                    half_open.get(index).is_some_and(|record| record.key == key)
                }
                FlowRef::TimeWait(index) => time_waits.get(index).is_some_and(|record| {
                    record.is(&key) && !record.may_be_reused(now, time_waits.life())
                }),
            });
            taken.is_none()
        };
        let port = match bound {
            Some(hold) => Some(hold.port).filter(|&port| is_free(port)),
            None => ports.pick_to_connect(is_free),
        };
        port.map(key).ok_or(ConnectError::NoFreeAddress)
    }

    pub(crate) fn send(
        &mut self,
        now: Instant,
        id: SocketId,
        data: &[IoSlice<'_>],
        skip: usize,
        more: More,
    ) -> Result<usize, SendError> {
        let now = self.advance_clock(now);
        let slot = self.slot_of(id).ok_or(SendError::BrokenPipe)?;
        let Some(Socket { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(slot)
        else {
            return Err(SendError::BrokenPipe);
        };
        let mut env = self.shared.env(now);
        let result = connection.send(&mut env, data, skip, more);
        if result == Err(SendError::WouldBlock) && connection.snd.buffer.len() == 0 {
            // No acknowledgement will wake this one: memory given back by others must.
            connection.out_of_memory = true;
        }
        self.settle(slot);
        result
    }

    pub(crate) fn recv(
        &mut self,
        now: Instant,
        id: SocketId,
        bufs: &mut [IoSliceMut<'_>],
        skip: usize,
        mode: RecvMode,
    ) -> Result<usize, RecvError> {
        let now = self.advance_clock(now);
        let slot = self.slot_of(id).ok_or(RecvError::NotConnected)?;
        let Some(Socket { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(slot)
        else {
            return Err(RecvError::NotConnected);
        };
        let result = connection.recv(&mut self.shared.env(now), bufs, skip, mode);
        self.settle(slot);
        result
    }

    pub(crate) fn shutdown(
        &mut self,
        now: Instant,
        id: SocketId,
        how: Shutdown,
    ) -> Result<(), NotConnected> {
        let now = self.advance_clock(now);
        let slot = self.slot_of(id).ok_or(NotConnected)?;
        let socket = self.sockets.get_mut(slot).ok_or(NotConnected)?;
        match &mut socket.kind {
            Kind::Idle(_) => Err(NotConnected),
            Kind::Listener(_) if how == Shutdown::Write => Ok(()),
            Kind::Listener(_) => {
                self.stop_listening(slot);
                Ok(())
            }
            Kind::Connection(connection) => {
                let result = connection.shutdown(&mut self.shared.env(now), how);
                self.settle(slot);
                result
            }
        }
    }

    /// Turns a listener back into a bound socket; who waits in its queues is reset.
    fn stop_listening(&mut self, slot: u32) {
        while let Some(Socket { kind: Kind::Listener(listener), .. }) = self.sockets.get_mut(slot) {
            if let Some(half_open) = listener.half_open.oldest() {
                self.remove_half_open(half_open);
            } else if let Some(waiting) = listener.accept.pop() {
                self.abort(waiting);
            } else {
                break;
            }
        }
        let id = self.id_of(slot);
        let Some(socket) = self.sockets.get_mut(slot) else { return };
        let Kind::Listener(listener) = &socket.kind else { return };
        socket.kind = Kind::Idle(Box::new(listener.settings));
        if let Some(hold) = &mut socket.port {
            self.ports.remove_listener(hold.port, slot);
            self.ports.release(hold);
            hold.claim.class = Class::Bound;
            self.ports.hold(hold);
        }
        self.events.post(id, &mut socket.mark, Readiness::WRITABLE | Readiness::HANGUP);
    }

    /// Resets a connection and forgets it.
    fn abort(&mut self, slot: u32) {
        let now = self.now;
        if let Some(Socket { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(slot)
        {
            if !connection.is_over() && connection.state != State::SynSent {
                connection.reset = Some(connection.reset_numbers());
            }
            connection.die(&mut self.shared.env(now), None);
            self.settle(slot);
            self.remove_socket(slot);
        }
    }

    pub(crate) fn close(&mut self, now: Instant, id: SocketId, how: Close) {
        let now = self.advance_clock(now);
        let Some(slot) = self.slot_of(id) else { return };
        let Some(socket) = self.sockets.get_mut(slot) else { return };
        match &mut socket.kind {
            Kind::Idle(_) => self.remove_socket(slot),
            Kind::Listener(_) => {
                self.stop_listening(slot);
                self.remove_socket(slot);
            }
            Kind::Connection(connection) => {
                let gone = connection.is_over() || connection.state == State::SynSent;
                if gone || how == Close::Reset || connection.rcv.buffer.ready() > 0 {
                    // RFC 2525 2.17: the peer must learn that what it sent was not read.
                    self.abort(slot);
                    return;
                }
                self.orphans += 1;
                connection.orphan = true;
                connection.visible = false;
                connection.end_output(&mut self.shared.env(now));
                self.settle(slot);
            }
        }
    }

    pub(crate) fn readiness(&self, id: SocketId) -> Readiness {
        self.socket(id).map_or(Readiness::empty(), Socket::readiness)
    }

    pub(crate) fn take_error(&mut self, id: SocketId) -> Option<SocketError> {
        let slot = self.slot_of(id)?;
        match &mut self.sockets.get_mut(slot)?.kind {
            Kind::Connection(connection) => connection.error.take(),
            _ => None,
        }
    }

    pub(crate) fn state(&self, id: SocketId) -> State {
        self.socket(id).map_or(State::Closed, Socket::state)
    }

    pub(crate) fn local_addr(&self, id: SocketId) -> Option<SocketAddr> {
        self.socket(id).map(Socket::local_addr)
    }

    pub(crate) fn remote_addr(&self, id: SocketId) -> Option<SocketAddr> {
        // After the end there is no peer any more: ENOTCONN.
        self.socket(id).filter(|socket| socket.state() != State::Closed)?.remote_addr()
    }

    /// Bytes that `recv` would give now.
    pub(crate) fn unread(&self, id: SocketId) -> usize {
        self.connection(id).map_or(0, |connection| connection.rcv.buffer.ready())
    }

    /// Bytes sent or queued and not acknowledged.
    pub(crate) fn unacked(&self, id: SocketId) -> usize {
        self.connection(id).map_or(0, Connection::unacked)
    }

    pub(crate) fn set_option(&mut self, now: Instant, id: SocketId, option: TcpOption) {
        let now = self.advance_clock(now);
        let Some(slot) = self.slot_of(id) else { return };
        let Some(socket) = self.sockets.get_mut(slot) else { return };
        let mut env = self.shared.env(now);
        match &mut socket.kind {
            Kind::Idle(settings) => settings.apply(option, env.config),
            Kind::Listener(listener) => listener.settings.apply(option, env.config),
            Kind::Connection(connection) => connection.set_option(&mut env, option),
        }
        self.settle(slot);
    }

    pub(crate) fn info(&self, now: Instant, id: SocketId) -> Option<TcpInfo> {
        let socket = self.socket(id)?;
        Some(match &socket.kind {
            Kind::Connection(connection) => connection.info(now.as_micros().max(self.now)),
            Kind::Idle(settings) => idle_info(settings, State::Closed),
            Kind::Listener(listener) => idle_info(&listener.settings, State::Listen),
        })
    }

    /// The congestion control algorithm.
    pub(crate) fn congestion(&self, id: SocketId) -> Option<Congestion> {
        Some(match &self.socket(id)?.kind {
            Kind::Idle(settings) => settings.congestion,
            Kind::Listener(listener) => listener.settings.congestion,
            Kind::Connection(connection) => connection.settings.congestion,
        })
    }

    /// Every socket, for statistics: id, local, remote, state.
    pub(crate) fn sockets(
        &self,
    ) -> impl Iterator<Item = (SocketId, Option<SocketAddr>, Option<SocketAddr>, State)> + '_ {
        let open = self.sockets.iter().map(|(slot, socket)| {
            (self.id_of(slot), Some(socket.local_addr()), socket.remote_addr(), socket.state())
        });
        // A record has no id; its index, with a generation no socket has, at least is unique.
        let waiting = self.time_waits.iter().map(|(index, record)| {
            let id = SocketId::new(crate::socket::Protocol::Tcp, index, u32::MAX);
            let key = record.key();
            (id, Some(key.local_addr()), Some(key.remote_addr()), State::TimeWait)
        });
        open.chain(waiting)
    }

    fn socket(&self, id: SocketId) -> Option<&Socket> {
        self.sockets.get(self.slot_of(id)?)
    }

    fn connection(&self, id: SocketId) -> Option<&Connection> {
        match &self.socket(id)?.kind {
            Kind::Connection(connection) => Some(connection),
            _ => None,
        }
    }
}

impl Socket {
    fn state(&self) -> State {
        match &self.kind {
            Kind::Idle(_) => State::Closed,
            Kind::Listener(_) => State::Listen,
            Kind::Connection(connection) => connection.state,
        }
    }

    fn local_addr(&self) -> SocketAddr {
        if let Kind::Connection(connection) = &self.kind {
            return connection.key.local_addr();
        }
        match self.port {
            Some(hold) => SocketAddr::new(hold.claim.addr.shown(), hold.port),
            None => SocketAddr::new(BoundTo::Any.shown(), 0),
        }
    }

    fn remote_addr(&self) -> Option<SocketAddr> {
        match &self.kind {
            Kind::Connection(connection) => Some(connection.key.remote_addr()),
            _ => None,
        }
    }
}

impl Connection {
    /// What `connect` says of the attempt before.
    fn earlier_attempt(&mut self) -> ConnectError {
        match self.state {
            State::SynSent | State::SynReceived => ConnectError::InProgress,
            State::Closed if !self.was_established => match self.error.take() {
                Some(error) => ConnectError::Failed(error),
                None => ConnectError::Aborted,
            },
            _ => ConnectError::Connected,
        }
    }

    fn send(
        &mut self,
        env: &mut Env<'_>,
        data: &[IoSlice<'_>],
        skip: usize,
        more: More,
    ) -> Result<usize, SendError> {
        if let Some(error) = self.error.take() {
            return Err(SendError::Failed(error));
        }
        if self.shut_write || self.is_over() {
            return Err(SendError::BrokenPipe);
        }
        if matches!(self.state, State::SynSent | State::SynReceived) {
            return Err(SendError::WouldBlock);
        }
        let low = self.settings.not_sent_low;
        let full = low != 0 && self.unsent() >= low;
        let room = (self.snd.limit as usize).saturating_sub(self.snd.buffer.len());
        let room = if full { 0 } else { room };
        let wanted = data.iter().map(|slice| slice.len()).sum::<usize>().saturating_sub(skip);
        if wanted == 0 {
            return Ok(0);
        }
        let taken = self.snd.buffer.push(env.pool, data, skip, room);
        self.snd.stream_end += taken as u32;
        // Also when everything fitted: the program may wait for room before its next attempt.
        if taken < wanted || !self.is_writable() {
            self.snd.starved = true;
        }
        if taken == 0 {
            return Err(SendError::WouldBlock);
        }
        self.snd.more = more == More::Yes;
        self.request_output();
        Ok(taken)
    }

    fn recv(
        &mut self,
        env: &mut Env<'_>,
        bufs: &mut [IoSliceMut<'_>],
        skip: usize,
        mode: RecvMode,
    ) -> Result<usize, RecvError> {
        let copied = self.rcv.buffer.read(env.pool, bufs, skip, mode);
        if copied > 0 {
            if mode != RecvMode::Peek {
                self.after_read(env, copied);
            }
            return Ok(copied);
        }
        if self.rcv.buffer.ready() > 0 || self.rcv.fin_done {
            return Ok(0);
        }
        if let Some(error) = self.error.take() {
            return Err(RecvError::Failed(error));
        }
        if self.shut_read || self.is_over() {
            return Ok(0);
        }
        Err(RecvError::WouldBlock)
    }

    /// The program has taken bytes: acknowledge what waited for that, open the window, and let the
    /// buffer follow the pace (dynamic right-sizing).
    fn after_read(&mut self, env: &mut Env<'_>, copied: usize) {
        self.tune_recv_buffer(env, copied);
        if self.is_over() || self.rcv.fin_done {
            return;
        }
        let drained = self.rcv.buffer.ready() == 0;
        if drained
            && core::mem::take(&mut self.ack.pushed)
            && self.ack.need == AckNeed::Delayed
            && !self.ack.interactive
        {
            self.ack_now();
        }
        // As Linux: only when the window at least doubles, and was not large before.
        let offered = self.rcv_wnd();
        if offered <= self.window_limit() / 2 {
            let new = self.select_window(env);
            if new > 0 && new >= offered.saturating_mul(2) {
                self.ack_now();
            }
        }
    }

    fn tune_recv_buffer(&mut self, env: &Env<'_>, copied: usize) {
        if self.settings.recv_buffer_fixed {
            return;
        }
        let tuning = &mut self.rcv.tuning;
        tuning.taken = tuning.taken.saturating_add(copied as u32);
        if env.now.saturating_sub(tuning.since) < u64::from(self.snd.rtt.srtt()) {
            return;
        }
        // Twice what a round trip brings, so that the sender can double.
        let wanted = tuning.taken.saturating_mul(2).saturating_add(16 * u32::from(self.rcv.mss));
        tuning.taken = 0;
        tuning.since = env.now;
        let max = env.config.recv_buffer_max as u32;
        self.rcv.limit = self.rcv.limit.max(wanted.min(max));
    }

    fn shutdown(&mut self, env: &mut Env<'_>, how: Shutdown) -> Result<(), NotConnected> {
        if self.is_over() {
            return Err(NotConnected);
        }
        if self.state == State::SynSent {
            self.die(env, Some(SocketError::ConnectionReset));
            return Ok(());
        }
        if how != Shutdown::Write {
            self.shut_read = true;
            self.notify(Readiness::READABLE | Readiness::READ_HANGUP);
        }
        if how != Shutdown::Read {
            self.end_output(env);
            self.notify(Readiness::WRITABLE);
        }
        if self.readiness().contains(Readiness::HANGUP) {
            self.notify(Readiness::HANGUP);
        }
        Ok(())
    }

    /// The program sends no more: a FIN follows what is queued.
    fn end_output(&mut self, env: &mut Env<'_>) {
        self.shut_write = true;
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            State::FinWait2 if self.orphan => {
                self.timers.set(Timer::Life, env.now + self.settings.fin_wait2.micros());
            }
            _ => {}
        }
        self.request_output();
    }

    fn unacked(&self) -> usize {
        self.snd.buffer.len() + usize::from(self.shut_write && !self.fin_acked() && !self.is_over())
    }

    fn set_option(&mut self, env: &mut Env<'_>, option: TcpOption) {
        self.settings.apply(option, env.config);
        match option {
            TcpOption::NoDelay(true) | TcpOption::Cork(false) => {
                self.snd.push_partial = true;
                self.request_output();
            }
            TcpOption::QuickAck(on) => {
                self.ack.interactive = !on;
                if on {
                    self.ack.quick = QUICK_ACKS;
                    if self.ack.need == AckNeed::Delayed {
                        self.ack_now();
                    }
                }
            }
            TcpOption::KeepAlive(_) | TcpOption::KeepIdle(_) => self.arm_keepalive(env.now),
            TcpOption::SendBuffer(_) => {
                self.snd.limit = self.settings.send_buffer;
                self.tell_if_writable();
            }
            TcpOption::Congestion(congestion) => self.snd.algorithm = Algorithm::new(congestion),
            TcpOption::RecvBuffer(_) => self.rcv.limit = self.settings.recv_buffer,
            _ => {}
        }
    }
}

/// `TCP_INFO` of a socket without a connection.
fn idle_info(settings: &Settings, state: State) -> TcpInfo {
    TcpInfo {
        state,
        retransmits: 0,
        window_scale: None,
        timestamps: false,
        sack: false,
        ecn: false,
        rto: Duration::from_secs(1),
        srtt: Duration::ZERO,
        rttvar: Duration::ZERO,
        min_rtt: Duration::ZERO,
        send_mss: 536,
        recv_mss: 536,
        cwnd: 10 * 536,
        ssthresh: u32::MAX,
        send_window: 0,
        recv_window: 0,
        in_flight: 0,
        bytes_acked: 0,
        bytes_received: 0,
        bytes_retransmitted: 0,
        segments_out: 0,
        segments_in: 0,
        retransmitted_total: 0,
        since_data_sent: Duration::ZERO,
        since_data_received: Duration::ZERO,
        since_ack_received: Duration::ZERO,
        send_buffer: settings.send_buffer as usize,
        recv_buffer: settings.recv_buffer as usize,
    }
}
