//! TCP between two stacks.

mod goodput;
mod pump;
mod transfer;
