//! How much may be in flight. One trait, so that algorithms can be added without touching the
//! machinery around them; one enum, so that a connection holds its algorithm without a pointer.

mod cubic;
mod hystart;
mod reno;

use cubic::Cubic;
use reno::Reno;

use super::seq::Seq;
use super::types::Congestion;

/// Segments of the initial window, RFC 6928.
const INITIAL_SEGMENTS: u32 = 10;

/// The window that an algorithm governs, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub cwnd: u32,
    /// Slow start ends here; `u32::MAX` before the first loss.
    pub ssthresh: u32,
    pub mss: u32,
}

/// An acknowledgement as an algorithm sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckSample {
    pub now: u64,
    /// Bytes newly delivered.
    pub acked: u32,
    /// Round trip of the newest of them.
    pub rtt: Option<u32>,
    pub srtt: u32,
    pub una: Seq,
    pub nxt: Seq,
}

/// A congestion control algorithm.
pub(super) trait CongestionControl {
    /// Data was delivered and nothing is wrong, and the window was what limited us: grow.
    fn on_ack(&mut self, window: &mut Window, sample: &AckSample);

    /// Loss was detected: the new slow start threshold. Called once per window of data.
    fn on_loss(&mut self, window: &Window) -> u32;

    /// A retransmission timeout came after [`Self::on_loss`]; or nothing was sent for a while.
    fn restart(&mut self);
}

/// Any of the algorithms.
#[derive(Clone, Copy, Debug)]
pub(super) enum Algorithm {
    Cubic(Cubic),
    Reno(Reno),
}

impl Window {
    /// RFC 6928: ten segments, but not more than 14,600 bytes unless two segments are.
    pub(super) fn initial(mss: u32) -> Self {
        let cwnd = (INITIAL_SEGMENTS * mss).min((2 * mss).max(14_600));
        Self { cwnd, ssthresh: u32::MAX, mss }
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows by `bytes`, which stops at a gigabyte: the sequence space allows no more.
    fn grow(&mut self, bytes: u32) {
        self.cwnd = self.cwnd.saturating_add(bytes).min(1 << 30);
    }
}

impl Algorithm {
    pub(super) fn new(congestion: Congestion) -> Self {
        match congestion {
            Congestion::Cubic => Self::Cubic(Cubic::default()),
            Congestion::Reno => Self::Reno(Reno::default()),
        }
    }
}

impl CongestionControl for Algorithm {
    fn on_ack(&mut self, window: &mut Window, sample: &AckSample) {
        match self {
            Self::Cubic(cubic) => cubic.on_ack(window, sample),
            Self::Reno(reno) => reno.on_ack(window, sample),
        }
    }

    fn on_loss(&mut self, window: &Window) -> u32 {
        match self {
            Self::Cubic(cubic) => cubic.on_loss(window),
            Self::Reno(reno) => reno.on_loss(window),
        }
    }

    fn restart(&mut self) {
        match self {
            Self::Cubic(cubic) => cubic.restart(),
            Self::Reno(reno) => reno.restart(),
        }
    }
}
