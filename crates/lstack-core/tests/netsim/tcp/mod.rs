//! TCP: two stacks on a bad link, and one stack against a script.

mod closing;
mod ecn;
mod goodput;
mod noise;
mod opening;
mod pump;
mod receiving;
mod script;
mod sending;
mod transfer;
