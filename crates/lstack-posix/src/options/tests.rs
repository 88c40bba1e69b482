//! Options against a kernel.
