//! Drives stacks: devices, the stack lock, the driver thread, wake-ups.
//!
//! Whoever holds a stack's lock drives it (design: one lock per stack). A [`StackCell`] is one
//! stack with its device behind that lock; a [`Runtime`] is all the cells of a process.
#![deny(unsafe_code)]

mod capture;
mod cell;
mod claim;
mod clock;
mod conflict;
mod device;
mod doorbell;
mod dpdk_link;
mod driver;
mod exchange;
mod idle;
mod link;
mod lock;
mod memory_link;
mod runtime;
mod shard;
mod watch;

pub use cell::{Guard, Progress, StackCell};
pub use device::{DeviceError, is_device_descriptor};
pub use link::Link;
pub use memory_link::{MemoryLink, memory_pair, memory_pair_with_wake_up};
pub use runtime::{Runtime, StartError};
pub use watch::{ReadyWord, Watcher};
