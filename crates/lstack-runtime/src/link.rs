//! A network device as the runtime drives it.

use std::os::fd::BorrowedFd;

use lstack_core::{FrameSink, LinkCaps, RxMeta, TxMeta};

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

    /// The driver thread is about to sleep on [`Self::wake_fd`]: a device that signals only on
    /// demand arms it here. `false`: frames are there already, do not sleep.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// Called once in the driver thread before it drives, with the stack's lock held: for devices
    /// that expect something of the thread, such as a signal to be let through.
    fn on_driver_start(&mut self) {}

    /// What the device counts, for the statistics.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// A device that is gone: takes and gives nothing.
#[derive(Debug)]
pub(crate) struct ClosedLink {
    caps: LinkCaps,
}

impl ClosedLink {
    /// In place of a device with these properties.
    pub(crate) fn new(caps: LinkCaps) -> Self {
        Self { caps }
    }
}

impl FrameSink for ClosedLink {
    fn reserve(&mut self, _len: usize) -> Option<&mut [u8]> {
        None
    }

    fn commit(&mut self, _meta: TxMeta) {}
}

impl Link for ClosedLink {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn rx_burst(&mut self, _max: usize, _deliver: &mut dyn FnMut(&[u8], RxMeta)) -> usize {
        0
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
