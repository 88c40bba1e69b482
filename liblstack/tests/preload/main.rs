//! The built library, and programs with it.

mod exports;
mod harness;
mod kernel_path;
