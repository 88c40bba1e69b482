/* DPDK's inline functions, callable from Rust.
 *
 * A mempool has one cache per lcore and takes the caller's from a thread-local number. Threads of a
 * program under lstack have no such number, and would go to the shared ring for every packet.
 * Whoever drives a queue here lends the thread the queue's own cache number for the length of the
 * call, which is sound because a queue has one user at a time.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_prefetch.h>

#include "wrapper.h"

static inline unsigned int borrow(unsigned int cache)
{
	unsigned int before = RTE_PER_LCORE(_lcore_id);

	RTE_PER_LCORE(_lcore_id) = cache;
	return before;
}

static inline void give_back(unsigned int before)
{
	RTE_PER_LCORE(_lcore_id) = before;
}

/* DPDK's interrupt thread takes a memif apart when the other end goes away: it unmaps the rings that
 * a burst may be reading. So a burst announces itself, and the interrupt thread, before it handles
 * what it was woken for, lets no new burst in and waits for the announced ones (see `c/os.c`). Both
 * sides write first and look second, in one total order, so at least one of them sees the other.
 * A burst that is not let in finds nothing and takes nothing, as on an idle device. */
struct user {
	int in_burst;
} __attribute__((aligned(64)));

static struct user users[RTE_MAX_LCORE + 1]; /* LS_CACHES of their own, one shared */
static int changing;

static inline struct user *user_of(unsigned int cache)
{
	return &users[cache < LS_CACHES ? cache : LS_CACHES];
}

static inline int enter_burst(unsigned int cache)
{
	/* Added, not set: queues beyond the last cache number share one entry. */
	__atomic_fetch_add(&user_of(cache)->in_burst, 1, __ATOMIC_SEQ_CST);
	if (likely(!__atomic_load_n(&changing, __ATOMIC_SEQ_CST)))
		return 1;
	__atomic_fetch_sub(&user_of(cache)->in_burst, 1, __ATOMIC_RELEASE);
	return 0;
}

static inline void leave_burst(unsigned int cache)
{
	__atomic_fetch_sub(&user_of(cache)->in_burst, 1, __ATOMIC_RELEASE);
}

/* One at a time: the interrupt thread, and whoever stops, starts or closes a port. */
void ls_begin_change(void)
{
	while (__atomic_exchange_n(&changing, 1, __ATOMIC_SEQ_CST) != 0)
		sched_yield();
	for (unsigned int i = 0; i <= LS_CACHES; i++)
		while (__atomic_load_n(&users[i].in_burst, __ATOMIC_SEQ_CST) != 0)
			sched_yield();
}

void ls_end_change(void)
{
	__atomic_store_n(&changing, 0, __ATOMIC_RELEASE);
}

int ls_restart_port(uint16_t port, int *started)
{
	int error;

	ls_begin_change();
	*started = 0;
	error = rte_eth_dev_stop(port);
	if (error == 0) {
		*started = 1;
		error = rte_eth_dev_start(port);
	}
	ls_end_change();
	return error;
}

void ls_close_port(uint16_t port)
{
	ls_begin_change();
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	ls_end_change();
}

uint16_t ls_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count,
		     unsigned int cache)
{
	unsigned int before;
	uint16_t got;

	if (!enter_burst(cache))
		return 0;
	before = borrow(cache);
	got = rte_eth_rx_burst(port, queue, packets, count);
	give_back(before);
	leave_burst(cache);
	for (uint16_t i = 0; i < got; i++)
		rte_prefetch0(rte_pktmbuf_mtod(packets[i], void *));
	return got;
}

uint16_t ls_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count,
		     unsigned int cache, uint16_t *refused)
{
	unsigned int before;
	uint16_t ready, sent;

	*refused = 0;
	if (!enter_burst(cache))
		return 0;
	before = borrow(cache);
	ready = rte_eth_tx_prepare(port, queue, packets, count);
	sent = rte_eth_tx_burst(port, queue, packets, ready);
	if (sent == ready && ready < count) {
		/* The next one can never be sent and would block all behind it. */
		rte_pktmbuf_free(packets[ready]);
		*refused = 1;
		sent++;
	}
	give_back(before);
	leave_burst(cache);
	return sent;
}

int ls_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **packets, unsigned int count,
		  unsigned int cache)
{
	unsigned int before = borrow(cache);
	int error = rte_pktmbuf_alloc_bulk(pool, packets, count);

	give_back(before);
	return error;
}

void ls_free_bulk(struct rte_mbuf **packets, unsigned int count, unsigned int cache)
{
	unsigned int before = borrow(cache);

	rte_pktmbuf_free_bulk(packets, count);
	give_back(before);
}

void ls_mbuf_view_of(const struct rte_mbuf *packet, struct ls_mbuf_view *view)
{
	view->data = rte_pktmbuf_mtod(packet, uint8_t *);
	view->next = packet->next;
	view->flags = packet->ol_flags;
	view->packet_len = packet->pkt_len;
	view->data_len = packet->data_len;
	view->segments = packet->nb_segs;
	view->vlan = packet->vlan_tci;
}

uint8_t *ls_mbuf_resize(struct rte_mbuf *packet, uint32_t len)
{
	if (packet->next != NULL || len > (uint32_t)(packet->buf_len - RTE_PKTMBUF_HEADROOM))
		return NULL;
	packet->data_off = RTE_PKTMBUF_HEADROOM;
	packet->data_len = (uint16_t)len;
	packet->pkt_len = len;
	return rte_pktmbuf_mtod(packet, uint8_t *);
}

int ls_mbuf_chain(struct rte_mbuf *head, struct rte_mbuf *tail)
{
	return rte_pktmbuf_chain(head, tail);
}

uint16_t ls_mbuf_refcnt(const struct rte_mbuf *packet)
{
	return rte_mbuf_refcnt_read(packet);
}

void ls_mbuf_tx_offload(struct rte_mbuf *packet, uint64_t flags, uint64_t l2_len, uint64_t l3_len,
			uint64_t l4_len, uint64_t segment_size)
{
	packet->ol_flags = flags;
	packet->tx_offload = rte_mbuf_tx_offload(l2_len, l3_len, l4_len, segment_size, 0, 0, 0);
}

/* Without huge pages and with virtual addresses for devices, memory is contiguous for a device
 * wherever it is for us. DPDK does not see that and would give each packet pages of its own. */
static int packs_densely(void)
{
	return !rte_eal_has_hugepages() && rte_eal_iova_mode() == RTE_IOVA_VA;
}

/* What packing leaves out: the address for devices, which is our own. */
static void set_device_address(struct rte_mempool *pool, void *argument, void *object,
			       unsigned int index)
{
	struct rte_mbuf *packet = object;

	rte_mempool_get_header(object)->iova = (rte_iova_t)(uintptr_t)object;
	rte_mbuf_iova_set(packet, (rte_iova_t)(uintptr_t)packet->buf_addr);
}

struct rte_mempool *ls_pool_create(const char *name, unsigned int count, unsigned int cache,
				   uint16_t data_room)
{
	struct rte_pktmbuf_pool_private private = { .mbuf_data_room_size = data_room };
	unsigned int flags = packs_densely() ? RTE_MEMPOOL_F_NO_IOVA_CONTIG : 0;
	struct rte_mempool *pool;
	int error;

	pool = rte_mempool_create_empty(name, count, (unsigned int)sizeof(struct rte_mbuf) + data_room,
					cache, sizeof(private), SOCKET_ID_ANY, flags);
	if (pool == NULL)
		return NULL;
	error = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
	if (error == 0) {
		rte_pktmbuf_pool_init(pool, &private);
		error = rte_mempool_populate_default(pool);
	}
	if (error < 0) {
		rte_mempool_free(pool);
		rte_errno = -error;
		return NULL;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	if (flags != 0)
		rte_mempool_obj_iter(pool, set_device_address, NULL);
	return pool;
}

uint64_t ls_mbuf_footprint(uint32_t data_room)
{
	uint32_t element = (uint32_t)sizeof(struct rte_mbuf) + data_room;

	return rte_mempool_calc_obj_size(element, 0, NULL);
}

int ls_errno(void)
{
	return rte_errno;
}

void ls_forget_lcore(void)
{
	RTE_PER_LCORE(_lcore_id) = LCORE_ID_ANY;
}

static ssize_t log_write(void *cookie, const char *text, size_t len)
{
	int level = rte_log_cur_msg_loglevel();

	(*(ls_log_sink *)cookie)(level < 0 ? RTE_LOG_INFO : (uint32_t)level, text, len);
	return (ssize_t)len;
}

int ls_log_open(ls_log_sink sink)
{
	static ls_log_sink kept;
	static FILE *stream;

	kept = sink;
	if (stream == NULL) {
		cookie_io_functions_t functions = { .write = log_write };

		stream = fopencookie(&kept, "w", functions);
		if (stream == NULL)
			return -1;
		/* DPDK flushes after each message, so that each arrives whole. */
	}
	return rte_openlog_stream(stream);
}
