//! Where packets come from.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys as sys;

use crate::eal::{Eal, strerror};

/// Size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Packets.
    pub packets: u32,
    /// Bytes one segment can hold, Ethernet header included.
    pub frame_room: u16,
}

impl PoolConfig {
    /// Packets that a queue's cache keeps back from the shared ring. Half of DPDK's limit: two
    /// receive bursts of 128 fit.
    pub const CACHE: u32 = 256;

    /// Memory the pool takes, bytes; a few percent more than is really used.
    #[must_use]
    pub fn memory(&self) -> u64 {
        // What a mempool takes besides packets: ring, caches, page ends.
        const OVERHEAD: u64 = 2 << 20;
        // SAFETY: pure arithmetic.
        let one = unsafe { sys::ls_mbuf_footprint(u32::from(self.data_room())) };
        u64::from(self.packets) * one * 21 / 20 + OVERHEAD
    }

    fn data_room(&self) -> u16 {
        self.frame_room.saturating_add(HEADROOM)
    }
}

/// A pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// DPDK has not enough memory left.
    #[error(
        "no memory for {packets} packets ({megabytes} MB): lower mbuf_count_per_conn or the queue \
         sizes, or give DPDK more memory (-m, --socket-mem)"
    )]
    NoMemory {
        /// Packets asked for.
        packets: u32,
        /// Memory they take.
        megabytes: u64,
    },
    /// Another reason.
    #[error("a pool of {packets} packets cannot be made: {reason}")]
    Failed {
        /// Packets asked for.
        packets: u32,
        /// DPDK's words.
        reason: String,
    },
}

/// A pool of packets. Clones share it; it goes away with the last of them.
///
/// A packet that is still out when the pool should go keeps the pool's memory from being freed, so
/// that no packet ever points to nothing.
#[derive(Clone, Debug)]
pub struct Mempool(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    pool: NonNull<sys::rte_mempool>,
    packets: u32,
    _eal: Eal,
}

// SAFETY: DPDK's pools are made for use from several threads; the per-lcore caches are kept apart
// by `QueuePair`.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Mempool {
    /// Makes a pool.
    ///
    /// # Errors
    ///
    /// See [`PoolError`].
    pub fn new(eal: &Eal, config: &PoolConfig) -> Result<Self, PoolError> {
        let name = CString::new(format!("lstack{}", NEXT_NAME.fetch_add(1, Ordering::Relaxed)))
            .expect("no zero byte in it");
        let cache = PoolConfig::CACHE.min(config.packets * 2 / 3);
        // SAFETY: DPDK runs (`eal`), the name is a C string that DPDK copies.
        let pool = unsafe {
            sys::ls_pool_create(name.as_ptr(), config.packets, cache, config.data_room())
        };
        let Some(pool) = NonNull::new(pool) else {
            // SAFETY: reads a thread-local number.
            let errno = unsafe { sys::ls_errno() };
            let packets = config.packets;
            return Err(match errno {
                libc::ENOMEM => PoolError::NoMemory { packets, megabytes: config.memory() >> 20 },
                _ => PoolError::Failed { packets, reason: strerror(errno) },
            });
        };
        Ok(Self(Arc::new(Pool { pool, packets: config.packets, _eal: eal.clone() })))
    }

    /// Packets it was made with.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.0.packets
    }

    /// Packets nobody holds at the moment. Exact only while nobody takes or gives any.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.0.available()
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.0.pool.as_ptr()
    }
}

impl Pool {
    fn available(&self) -> u32 {
        // SAFETY: the pool is alive.
        unsafe { sys::rte_mempool_avail_count(self.pool.as_ptr()) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let out = self.packets.saturating_sub(self.available());
        if out > 0 {
            // Some drivers keep packets when they are closed (net_af_xdp its fill ring).
            log::debug!(target: "dpdk", "{out} packets are still out, their pool stays");
            return;
        }
        // SAFETY: all packets are back, and nobody else has the pool.
        unsafe { sys::rte_mempool_free(self.pool.as_ptr()) };
    }
}

/// What DPDK leaves free in front of a packet.
const HEADROOM: u16 = 128;

static NEXT_NAME: AtomicU32 = AtomicU32::new(0);
