//! Bindings to the distribution's libdpdk, generated at build time from an allow-list.
//!
//! `rte_*` are DPDK's own functions. `ls_*` and `LS_*` come from this crate's C files: what DPDK
//! only has as inline functions and macros. Used by the crate `dpdk` alone, which wraps everything
//! in owning types; the conditions of each call are those of DPDK's documentation.
#![allow(missing_docs, reason = "generated; documented by DPDK")]
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, reason = "names as in C")]
#![allow(clippy::all, clippy::pedantic, reason = "generated")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "bit-field accessors made by bindgen")]
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "bit-field accessors made by bindgen")]
#![allow(unsafe_op_in_unsafe_fn, reason = "bit-field accessors made by bindgen")]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
