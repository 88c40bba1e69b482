//! Drives stacks: devices, the stack lock, the driver thread, wake-ups.
//!
//! Whoever holds a stack's lock drives it (design: one lock per stack). A [`StackCell`] is one
//! stack with its device behind that lock; a [`Runtime`] is all the cells of a process.

mod cell;
mod link;
mod watch;

pub use cell::{Guard, Progress, Runtime, StackCell, StartError};
pub use link::Link;
pub use watch::{ReadyWord, Watcher};
