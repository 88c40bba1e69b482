//! Rigs in network namespaces, and what the tests on real programs share.
//!
//! A [`rig::Rig`] is two network namespaces joined by a wire. On each side a program runs either
//! on the kernel's stack or, preloaded, on lstack. Tests and `cargo xtask demo` build rigs, start
//! ordinary programs in them and look at what those programs print.
//!
//! Nothing here ever touches the machine's own network: all traffic stays inside namespaces which
//! have no name and therefore cannot be left over (see [`namespace`]).

#![forbid(unsafe_code)]

pub mod build;
pub mod frames;
pub mod iperf;
pub mod lifeline;
pub mod middle;
pub mod namespace;
pub mod netperf;
pub mod pattern;
pub mod program;
pub mod rig;
pub mod stack_conf;
pub mod stats;
pub mod suite;
pub mod wait;
