//! Owning safe types over DPDK: Eal, Mempool, Mbuf, Port, queues
