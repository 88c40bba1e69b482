//! The preload library: libc socket calls in, packets out
