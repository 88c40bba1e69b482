//! A TCP/IP stack as a value.
//!
//! [`Stack`] takes frames, socket calls and the time; it gives frames, readiness events and the
//! next deadline. It has no clock, no thread, no descriptor, no static and no log line, so it runs
//! under virtual time in tests and can live in memory that several processes share.
//!
//! Layers, bottom up: [`link`] (what the stack asks of a network device), `ip` (Ethernet, ARP, IP,
//! ICMP, fragments, routing), [`tcp`] and [`udp`] (sockets and their protocols), [`stack`] (one
//! value that holds them all).
#![forbid(unsafe_code)]

mod bound;
mod buffer;
pub mod config;
pub mod counters;
pub mod event;
mod ip;
pub mod link;
mod random;
pub mod socket;
pub mod stack;
mod steering;
pub mod tcp;
pub mod time;
mod timer;
pub mod udp;

pub use bound::Binding;
pub use config::{EcnMode, Ipv4Config, Secret, StackConfig, Steering, TcpConfig, UdpConfig};
pub use event::Event;
pub use ip::probe::{address_probe, contested_by};
pub use link::{ChecksumVerdict, FrameSink, LinkCaps, RxMeta, TxMeta};
pub use socket::{Protocol, Readiness, SocketError, SocketId};
pub use stack::{Stack, TransmitStatus};
pub use time::Instant;
