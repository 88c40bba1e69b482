//! What the tests with a real DPDK share. DPDK starts once per process, so each file is one story.

use dpdk::{Eal, Mempool, Negotiated, PoolConfig, Port, PortRequest, QueuePools, Started};

/// What a test asks of a device unless it says otherwise.
pub const REQUEST: PortRequest = PortRequest {
    queues: 1,
    rx_descriptors: 512,
    tx_descriptors: 512,
    mtu: None,
    vlan_strip: false,
};

/// Small enough for any machine, large enough for the descriptors and the caches.
pub const POOL: PoolConfig = PoolConfig { packets: 2048, frame_room: 2048 };

/// Megabytes that hold two such pools.
pub const MEMORY: u64 = 64;

/// Starts DPDK with one virtual device and no huge pages.
pub fn eal(vdev: &str) -> Eal {
    let words = [format!("--vdev={vdev}")];
    let (eal, notices) = Eal::init(&words, MEMORY).expect("DPDK starts with a virtual device");
    assert_eq!(notices, []);
    eal
}

/// Starts the only device with one pool for both directions.
pub fn start(eal: &Eal, request: &PortRequest) -> (Started, Negotiated, Mempool) {
    let port = Port::find(eal, None).expect("the one device");
    let negotiated = port.negotiate(request).expect("the request is possible");
    let pool = Mempool::new(eal, &POOL).expect("there is memory");
    let pools = vec![QueuePools { rx: pool.clone(), tx: pool.clone() }];
    let started = port.start(&negotiated, pools).expect("the device starts");
    (started, negotiated, pool)
}
