//! Owning safe types over DPDK.
//!
//! [`Eal`] is the proof that DPDK runs in this process. [`Port::find`] looks for a device,
//! [`Port::negotiate`] asks it for what it can do, [`Port::start`] gives one [`QueuePair`] per
//! queue. Packets are [`Mbuf`]s, moved in [`Batch`]es; each has one owner, and dropping it gives it
//! back to its [`Mempool`]. No raw pointer leaves this crate.
//!
//! What drives queues is written against the traits [`Queues`] and [`Packet`]; [`mock`] implements
//! them over plain memory, so that it can be tested without DPDK.
//!
//! Nothing here prints, exits or changes the calling thread: DPDK's log goes to the crate `log`
//! under the target `dpdk`, and affinity, signal mask and limits are put back after each call that
//! touches them.

mod args;
mod batch;
mod caller;
mod eal;
mod eal_log;
mod mbuf;
mod mempool;
pub mod mock;
mod packet;
mod port;
mod queue;
mod stats;
mod wake;

pub use args::{Arguments, Notice};
pub use batch::Batch;
pub use eal::{Eal, EalError, owns_descriptor};
pub use mbuf::{ChainError, Mbuf};
pub use mempool::{Mempool, PoolConfig, PoolError};
pub use packet::{Checksum, L4Offload, Packet, Queues, RxFlags, TxOffload};
pub use port::{
    Negotiated, Port, PortError, PortInfo, PortRequest, QueuePools, Started, StartedPort,
};
pub use queue::QueuePair;
pub use stats::{PortStats, Xstat};
