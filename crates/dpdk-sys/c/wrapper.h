/* What bindgen reads: DPDK's headers, and what they only have as inline functions and macros. */
#ifndef LSTACK_DPDK_WRAPPER_H
#define LSTACK_DPDK_WRAPPER_H

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* No per-lcore cache: what a thread has that DPDK does not know. */
static const unsigned int LS_NO_CACHE = UINT32_MAX;
/* Number of per-lcore caches a mempool has. */
static const unsigned int LS_CACHES = RTE_MAX_LCORE;

static const uint64_t LS_RX_IP_CHECKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t LS_RX_TCP_CHECKSUM = RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
static const uint64_t LS_RX_UDP_CHECKSUM = RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
static const uint64_t LS_RX_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t LS_RX_VLAN_STRIP = RTE_ETH_RX_OFFLOAD_VLAN_STRIP;
static const uint64_t LS_RX_RSS_HASH = RTE_ETH_RX_OFFLOAD_RSS_HASH;
static const uint64_t LS_TX_IP_CHECKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t LS_TX_TCP_CHECKSUM = RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
static const uint64_t LS_TX_UDP_CHECKSUM = RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
static const uint64_t LS_TX_TCP_TSO = RTE_ETH_TX_OFFLOAD_TCP_TSO;
static const uint64_t LS_TX_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;

static const uint64_t LS_RSS_TYPES = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP;
static const uint32_t LS_MQ_RSS = RTE_ETH_MQ_RX_RSS;

static const uint64_t LS_MBUF_RX_IP_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK;
static const uint64_t LS_MBUF_RX_IP_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t LS_MBUF_RX_IP_BAD = RTE_MBUF_F_RX_IP_CKSUM_BAD;
static const uint64_t LS_MBUF_RX_L4_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t LS_MBUF_RX_L4_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;
static const uint64_t LS_MBUF_RX_L4_BAD = RTE_MBUF_F_RX_L4_CKSUM_BAD;
static const uint64_t LS_MBUF_RX_VLAN_STRIPPED = RTE_MBUF_F_RX_VLAN_STRIPPED;

static const uint64_t LS_MBUF_TX_IPV4 = RTE_MBUF_F_TX_IPV4;
static const uint64_t LS_MBUF_TX_IPV6 = RTE_MBUF_F_TX_IPV6;
static const uint64_t LS_MBUF_TX_IP_CHECKSUM = RTE_MBUF_F_TX_IP_CKSUM;
static const uint64_t LS_MBUF_TX_TCP_CHECKSUM = RTE_MBUF_F_TX_TCP_CKSUM;
static const uint64_t LS_MBUF_TX_UDP_CHECKSUM = RTE_MBUF_F_TX_UDP_CKSUM;
static const uint64_t LS_MBUF_TX_TCP_SEG = RTE_MBUF_F_TX_TCP_SEG;

/* One segment of a packet as Rust sees it. */
struct ls_mbuf_view {
	uint8_t *data;
	struct rte_mbuf *next;
	uint64_t flags;
	uint32_t packet_len;
	uint16_t data_len;
	uint16_t segments;
	uint16_t vlan;
};

/* Bursts. `cache` names the per-lcore cache of the mempool that is used meanwhile; nobody else may
 * use the same one at the same time. */
/* Stops and starts a port while neither a burst nor an interrupt handler is in it. `started` tells
 * which of the two failed. */
int ls_restart_port(uint16_t port, int *started);

/* Stops and closes a port, likewise. One that was never started is refused and stays. */
void ls_close_port(uint16_t port);

uint16_t ls_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count,
		     unsigned int cache);
/* Returns how many packets it took; `*refused` of them were malformed for the device, and freed. */
uint16_t ls_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count,
		     unsigned int cache, uint16_t *refused);
int ls_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **packets, unsigned int count,
		  unsigned int cache);
void ls_free_bulk(struct rte_mbuf **packets, unsigned int count, unsigned int cache);

void ls_mbuf_view_of(const struct rte_mbuf *packet, struct ls_mbuf_view *view);
uint8_t *ls_mbuf_resize(struct rte_mbuf *packet, uint32_t len);
int ls_mbuf_chain(struct rte_mbuf *head, struct rte_mbuf *tail);
uint16_t ls_mbuf_refcnt(const struct rte_mbuf *packet);
void ls_mbuf_tx_offload(struct rte_mbuf *packet, uint64_t flags, uint64_t l2_len, uint64_t l3_len,
			uint64_t l4_len, uint64_t segment_size);

/* A pool of packets that hold `data_room` bytes, headroom included; NULL: see ls_errno(). */
struct rte_mempool *ls_pool_create(const char *name, unsigned int count, unsigned int cache,
				   uint16_t data_room);
/* Memory one packet takes in such a pool. */
uint64_t ls_mbuf_footprint(uint32_t data_room);

/* The error of the last failed call of this thread, positive. */
int ls_errno(void);
/* The calling thread stops being DPDK's main lcore: no cache belongs to it any more. */
void ls_forget_lcore(void);
/* What each line of DPDK's log goes to: level, text (not terminated), length. */
typedef void (*ls_log_sink)(uint32_t level, const char *text, size_t len);
int ls_log_open(ls_log_sink sink);
/* Whether a descriptor is DPDK's; adding one that was made for it elsewhere, taking it away. */
int ls_owns_descriptor(int fd);
void ls_adopt_descriptor(int fd);
void ls_forget_descriptor(int fd);
/* Sockets of AF_PACKET devices in the order in which they were made; returns how many there are. */
unsigned int ls_packet_sockets(int *fds, unsigned int max);

#endif
