//! TCP: two stacks on a bad link, and one stack against a script.

mod closing;
mod goodput;
mod noise;
mod opening;
mod pump;
mod receiving;
#[allow(dead_code, reason = "shared with the packet scripts, which use all of it")]
mod script;
mod sending;
mod transfer;
