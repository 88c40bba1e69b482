//! A network device as the runtime drives it.

use std::os::fd::BorrowedFd;

use lstack_core::{FrameSink, LinkCaps, RxMeta};

/// One receive and one transmit queue of a device.
pub trait Link: FrameSink + Send {
    /// What the device offers.
    fn caps(&self) -> LinkCaps;

    /// Takes at most `max` received frames; `deliver` sees each once, Ethernet header first.
    /// Returns how many there were.
    fn rx_burst(&mut self, max: usize, deliver: &mut dyn FnMut(&[u8], RxMeta)) -> usize;

    /// Gives committed frames to the device. What it does not take stays queued for the next call;
    /// returns whether everything went.
    fn flush(&mut self) -> bool;

    /// A descriptor that becomes readable when frames arrive, for a device that has one.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;
}
