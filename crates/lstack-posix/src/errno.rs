//! Error numbers, and the only place where the stack's errors become them.

/// An error number of `errno(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);
