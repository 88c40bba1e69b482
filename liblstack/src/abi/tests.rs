use std::ptr;
use std::time::Duration;

use libc::{iovec, timespec, timeval};
use lstack_posix::Errno;

use super::{Room, bytes, duration, duration_of, gather, milliseconds, scatter};

const FAULT: Errno = Errno(libc::EFAULT);
const INVALID: Errno = Errno(libc::EINVAL);

#[test]
fn null_is_a_buffer_of_nothing_and_a_fault_otherwise() {
    // SAFETY: null is allowed.
    assert_eq!(unsafe { bytes(ptr::null(), 0) }, Ok(&[][..]));
    // SAFETY: null is allowed.
    assert_eq!(unsafe { bytes(ptr::null(), 10) }, Err(FAULT));
}

#[test]
fn lengths_beyond_user_space_are_faults() {
    let byte = 0_u8;
    // SAFETY: refused before anything is read.
    assert_eq!(unsafe { bytes((&raw const byte).cast(), usize::MAX) }, Err(FAULT));
}

#[test]
fn vectors_follow_the_kernel_s_limits() {
    let mut byte = 7_u8;
    let base = (&raw mut byte).cast();
    let one = iovec { iov_base: base, iov_len: 1 };
    let none = iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    let negative = iovec { iov_base: base, iov_len: usize::MAX };
    let beyond = iovec { iov_base: base, iov_len: isize::MAX as usize };
    let lens = |vectors: &[iovec]| {
        // SAFETY: the entries are valid or refused.
        let bufs = unsafe { gather(vectors.as_ptr(), vectors.len()) }?;
        Ok(bufs.iter().map(|buf| buf.len()).collect::<Vec<_>>())
    };
    assert_eq!(lens(&[one, none, one]), Ok(vec![1, 0, 1]));
    assert_eq!(lens(&[]), Ok(vec![]));
    assert_eq!(lens(&[one, negative]), Err(INVALID));
    assert_eq!(lens(&[one, beyond]), Err(FAULT));
    assert_eq!(lens(&[one; 1024]).map(|lens| lens.len()), Ok(1024));
    assert_eq!(lens(&[one; 1025]), Err(INVALID));
    // SAFETY: null is refused.
    assert_eq!(unsafe { scatter(ptr::null(), 1) }.map(drop), Err(FAULT));
}

#[test]
fn room_knows_its_length() {
    let mut space = [0_u8; 4];
    let mut len = 4;
    let start = space.as_mut_ptr();
    // SAFETY: `space` has four bytes.
    let room = unsafe { Room::new(start.cast(), &raw mut len) }.unwrap();
    assert_eq!(room.bytes.len(), 4);
    room.set_len(16);
    assert_eq!(len, 16);
    let mut negative = -1_i32 as u32;
    // SAFETY: refused.
    assert_eq!(unsafe { Room::new(start.cast(), &raw mut negative) }.map(drop), Err(INVALID));
    // SAFETY: refused.
    assert_eq!(unsafe { Room::new(start.cast(), ptr::null_mut()) }.map(drop), Err(FAULT));
    // SAFETY: null means not wanted.
    let unwanted = unsafe { Room::optional(ptr::null_mut(), ptr::null_mut()) }.unwrap();
    assert!(unwanted.bytes.is_empty());
}

#[test]
fn timeouts_are_exact_or_refused() {
    assert_eq!(milliseconds(-1), None);
    assert_eq!(milliseconds(0), Some(Duration::ZERO));
    let spec = |tv_sec, tv_nsec| {
        let value = timespec { tv_sec, tv_nsec };
        // SAFETY: `value` is valid.
        unsafe { duration(&raw const value) }
    };
    assert_eq!(spec(1, 999_999_999), Ok(Some(Duration::new(1, 999_999_999))));
    assert_eq!(spec(0, 1_000_000_000), Err(INVALID));
    assert_eq!(spec(-1, 0), Err(INVALID));
    let val = |tv_sec, tv_usec| duration_of(Some(&timeval { tv_sec, tv_usec }));
    assert_eq!(val(1, 2_500_000), Ok(Some(Duration::from_micros(3_500_000))));
    assert_eq!(val(0, -1), Err(INVALID));
    assert_eq!(duration_of(None), Ok(None));
}
