/* The outside world as DPDK's code sees it.
 *
 * build.rs renames the calls of the archives to the functions here. They go to the kernel directly:
 * in the preload library the libc names are hooks for the program's sockets, and DPDK's
 * descriptors are none. Printing goes to DPDK's log.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/if_packet.h>
#include <linux/mempolicy.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_trace_point.h>

#include "wrapper.h"

/* ---- descriptors ---- */

/* Which descriptors are DPDK's. Programs close descriptors they did not open (daemons close all of
 * them); whoever stands between them and the kernel asks here first. One bit each; descriptors
 * above the table are not remembered, and are no ones DPDK gets in a process that just began. */
#define DESCRIPTORS_MAX 65536
static uint64_t descriptors[DESCRIPTORS_MAX / 64];

static int opened(long fd)
{
	if (fd >= 0 && fd < DESCRIPTORS_MAX)
		__atomic_fetch_or(&descriptors[fd / 64], 1ULL << (fd % 64), __ATOMIC_RELAXED);
	return (int)fd;
}

static void closed(int fd)
{
	if (fd >= 0 && fd < DESCRIPTORS_MAX)
		__atomic_fetch_and(&descriptors[fd / 64], ~(1ULL << (fd % 64)), __ATOMIC_RELAXED);
}

int ls_owns_descriptor(int fd)
{
	if (fd < 0 || fd >= DESCRIPTORS_MAX)
		return 0;
	return __atomic_load_n(&descriptors[fd / 64], __ATOMIC_RELAXED) >> (fd % 64) & 1;
}

void ls_adopt_descriptor(int fd)
{
	opened(fd);
}

void ls_forget_descriptor(int fd)
{
	closed(fd);
}

int lstack_dpdk_socket(int domain, int type, int protocol)
{
	/* DPDK's sockets are its own: a program that execs does not hand them on. */
	return opened(syscall(SYS_socket, domain, type | SOCK_CLOEXEC, protocol));
}

int lstack_dpdk_accept(int fd, struct sockaddr *address, socklen_t *len)
{
	return opened(syscall(SYS_accept4, fd, address, len, SOCK_CLOEXEC));
}

/* Whether a socket's file is there but nobody listens: a process that was killed left it. */
static int is_left_over(const struct sockaddr *address, socklen_t len, int type)
{
	int probe, refused;

	if (address->sa_family != AF_UNIX || ((const struct sockaddr_un *)address)->sun_path[0] == 0)
		return 0;
	probe = (int)syscall(SYS_socket, AF_UNIX, type | SOCK_CLOEXEC, 0);
	if (probe < 0)
		return 0;
	refused = syscall(SYS_connect, probe, address, len) < 0 && errno == ECONNREFUSED;
	syscall(SYS_close, probe);
	return refused;
}

int lstack_dpdk_bind(int fd, const struct sockaddr *address, socklen_t len)
{
	int type = 0;
	socklen_t size = sizeof(type);
	int result = (int)syscall(SYS_bind, fd, address, len);

	/* A memif server that is started again after a crash must not stumble over its own socket. */
	if (result < 0 && errno == EADDRINUSE &&
	    syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
	    is_left_over(address, len, type)) {
		syscall(SYS_unlink, ((const struct sockaddr_un *)address)->sun_path);
		result = (int)syscall(SYS_bind, fd, address, len);
	}
	return result;
}

int lstack_dpdk_connect(int fd, const struct sockaddr *address, socklen_t len)
{
	return (int)syscall(SYS_connect, fd, address, len);
}

int lstack_dpdk_listen(int fd, int backlog)
{
	return (int)syscall(SYS_listen, fd, backlog);
}

int lstack_dpdk_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	return (int)syscall(SYS_getsockopt, fd, level, name, value, len);
}

int lstack_dpdk_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	unsigned int fanout;

	/*
	 * net_af_packet asks the kernel to reassemble IP packets before they reach its ring, whose
	 * slots hold single frames: whatever is longer would arrive cut off.
	 */
	if (level == SOL_PACKET && name == PACKET_FANOUT && len == sizeof(fanout)) {
		memcpy(&fanout, value, sizeof(fanout));
		fanout &= ~((unsigned int)PACKET_FANOUT_FLAG_DEFRAG << 16);
		return (int)syscall(SYS_setsockopt, fd, level, name, &fanout, len);
	}
	return (int)syscall(SYS_setsockopt, fd, level, name, value, len);
}

int lstack_dpdk_close(int fd)
{
	/* First: from the call on, the number may be somebody else's. */
	closed(fd);
	return (int)syscall(SYS_close, fd);
}

int lstack_dpdk_dup(int fd)
{
	return opened(syscall(SYS_dup, fd));
}

int lstack_dpdk_fcntl(int fd, int command, ...)
{
	va_list arguments;
	unsigned long argument;

	va_start(arguments, command);
	argument = va_arg(arguments, unsigned long);
	va_end(arguments);
	return (int)syscall(SYS_fcntl, fd, command, argument);
}

int lstack_dpdk_fcntl64(int fd, int command, ...)
{
	va_list arguments;
	unsigned long argument;

	va_start(arguments, command);
	argument = va_arg(arguments, unsigned long);
	va_end(arguments);
	return (int)syscall(SYS_fcntl, fd, command, argument);
}

int lstack_dpdk_ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	unsigned long argument;

	va_start(arguments, request);
	argument = va_arg(arguments, unsigned long);
	va_end(arguments);
	return (int)syscall(SYS_ioctl, fd, request, argument);
}

ssize_t lstack_dpdk_read(int fd, void *buffer, size_t len)
{
	return syscall(SYS_read, fd, buffer, len);
}

ssize_t lstack_dpdk___read_chk(int fd, void *buffer, size_t len, size_t room)
{
	if (len > room)
		abort();
	return syscall(SYS_read, fd, buffer, len);
}

ssize_t lstack_dpdk_readv(int fd, const struct iovec *parts, int count)
{
	return syscall(SYS_readv, fd, parts, count);
}

ssize_t lstack_dpdk_write(int fd, const void *buffer, size_t len)
{
	return syscall(SYS_write, fd, buffer, len);
}

ssize_t lstack_dpdk_writev(int fd, const struct iovec *parts, int count)
{
	return syscall(SYS_writev, fd, parts, count);
}

ssize_t lstack_dpdk_recv(int fd, void *buffer, size_t len, int flags)
{
	return syscall(SYS_recvfrom, fd, buffer, len, flags, NULL, NULL);
}

ssize_t lstack_dpdk_recvfrom(int fd, void *buffer, size_t len, int flags, struct sockaddr *from,
			     socklen_t *from_len)
{
	return syscall(SYS_recvfrom, fd, buffer, len, flags, from, from_len);
}

ssize_t lstack_dpdk_recvmsg(int fd, struct msghdr *message, int flags)
{
	ssize_t len = syscall(SYS_recvmsg, fd, message, flags | MSG_CMSG_CLOEXEC);
	struct cmsghdr *part = len < 0 ? NULL : CMSG_FIRSTHDR(message);

	for (; part != NULL; part = CMSG_NXTHDR(message, part)) {
		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0);
		     at += sizeof(int)) {
			int received;

			memcpy(&received, CMSG_DATA(part) + at, sizeof(received));
			opened(received);
		}
	}
	return len;
}

/* A peer that has gone must not kill the program with SIGPIPE. */
ssize_t lstack_dpdk_send(int fd, const void *buffer, size_t len, int flags)
{
	return syscall(SYS_sendto, fd, buffer, len, flags | MSG_NOSIGNAL, NULL, 0);
}

ssize_t lstack_dpdk_sendto(int fd, const void *buffer, size_t len, int flags,
			   const struct sockaddr *to, socklen_t to_len)
{
	return syscall(SYS_sendto, fd, buffer, len, flags | MSG_NOSIGNAL, to, to_len);
}

ssize_t lstack_dpdk_sendmsg(int fd, const struct msghdr *message, int flags)
{
	return syscall(SYS_sendmsg, fd, message, flags | MSG_NOSIGNAL);
}

int lstack_dpdk_epoll_create(int size)
{
	return opened(syscall(SYS_epoll_create1, EPOLL_CLOEXEC));
}

int lstack_dpdk_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
	return (int)syscall(SYS_epoll_ctl, epoll, operation, fd, event);
}

/* In `c/inline.c`. */
void ls_begin_change(void);
void ls_end_change(void);

/* The interrupt thread's: between two of its waits it runs the drivers' handlers, which may take a
 * device's rings away, so no burst runs meanwhile. */
int lstack_dpdk_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout_ms)
{
	static __thread int handling;
	int count;

	if (handling)
		ls_end_change();
	count = (int)syscall(SYS_epoll_pwait, epoll, events, max, timeout_ms, NULL, _NSIG / 8);
	handling = count > 0;
	if (handling)
		ls_begin_change();
	return count;
}

int lstack_dpdk_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	struct timespec timeout = { timeout_ms / 1000, (timeout_ms % 1000) * 1000000L };

	return (int)syscall(SYS_ppoll, fds, count, timeout_ms < 0 ? NULL : &timeout, NULL,
			    _NSIG / 8);
}

int lstack_dpdk___poll_chk(struct pollfd *fds, nfds_t count, int timeout_ms, size_t room)
{
	if (room / sizeof(*fds) < count)
		abort();
	return lstack_dpdk_poll(fds, count, timeout_ms);
}

/* Descriptors that a program executed by the host program must not inherit: a copy of a tap
 * device's descriptor would keep the interface alive. */
int lstack_dpdk_open64(const char *path, int flags, ...)
{
	va_list arguments;
	unsigned int mode;

	va_start(arguments, flags);
	mode = va_arg(arguments, unsigned int);
	va_end(arguments);
	return opened(syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode));
}

int lstack_dpdk_openat64(int directory, const char *path, int flags, ...)
{
	va_list arguments;
	unsigned int mode;

	va_start(arguments, flags);
	mode = va_arg(arguments, unsigned int);
	va_end(arguments);
	return opened(syscall(SYS_openat, directory, path, flags | O_CLOEXEC, mode));
}

int lstack_dpdk_memfd_create(const char *name, unsigned int flags)
{
	return opened(syscall(SYS_memfd_create, name, flags | 1U /* MFD_CLOEXEC */));
}

int lstack_dpdk_eventfd(unsigned int count, int flags)
{
	return opened(syscall(SYS_eventfd2, count, flags | O_CLOEXEC));
}

int lstack_dpdk_timerfd_create(int clock, int flags)
{
	return opened(syscall(SYS_timerfd_create, clock, flags | O_CLOEXEC));
}

int lstack_dpdk_pipe(int ends[2])
{
	int error = (int)syscall(SYS_pipe2, ends, O_CLOEXEC);

	if (error == 0) {
		opened(ends[0]);
		opened(ends[1]);
	}
	return error;
}

/* ---- AF_PACKET: which socket belongs to which queue ---- */

/* The driver makes one socket without a binding to look at the interface, then one per queue, in
 * order, and tells nobody. Remembering them is what lets an idle program sleep on them. */
#define PACKET_SOCKETS_MAX 64
static int packet_sockets[PACKET_SOCKETS_MAX];
static unsigned int packet_socket_count;

int lstack_dpdk_packet_socket(int domain, int type, int protocol)
{
	int fd = lstack_dpdk_socket(domain, type, protocol);
	unsigned int at;

	if (fd >= 0 && domain == AF_PACKET) {
		at = __atomic_fetch_add(&packet_socket_count, 1, __ATOMIC_RELAXED);
		if (at < PACKET_SOCKETS_MAX)
			__atomic_store_n(&packet_sockets[at], fd, __ATOMIC_RELEASE);
	}
	return fd;
}

unsigned int ls_packet_sockets(int *fds, unsigned int max)
{
	unsigned int count = __atomic_load_n(&packet_socket_count, __ATOMIC_RELAXED);

	if (count > PACKET_SOCKETS_MAX)
		count = PACKET_SOCKETS_MAX;
	if (count > max)
		count = max;
	for (unsigned int i = 0; i < count; i++)
		fds[i] = __atomic_load_n(&packet_sockets[i], __ATOMIC_ACQUIRE);
	return count;
}

/* ---- signals ---- */

/* glibc's own name of sigaction, which no preload library replaces. */
extern int __sigaction(int, const struct sigaction *, struct sigaction *);

int lstack_dpdk_sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
	return __sigaction(number, action, before);
}

/* The tap driver wants a real-time signal for every packet, to save itself a read when polled
 * empty. In a foreign program that means interrupted system calls on any of its threads. It is told
 * that all signals are in use, and then works without: it reads at each poll, which is what lets
 * the descriptor be slept on. */
int lstack_dpdk_tap_sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
	if (before != NULL) {
		memset(before, 0, sizeof(*before));
		before->sa_handler = SIG_IGN;
	}
	if (action != NULL) {
		errno = EINVAL;
		return -1;
	}
	return 0;
}

/* ---- printing ---- */

static void print_to_log(const char *format, va_list arguments)
{
	rte_vlog(RTE_LOG_INFO, RTE_LOGTYPE_EAL, format, arguments);
}

int lstack_dpdk_printf(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	print_to_log(format, arguments);
	va_end(arguments);
	return 0;
}

int lstack_dpdk___printf_chk(int flag, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	print_to_log(format, arguments);
	va_end(arguments);
	return 0;
}

int lstack_dpdk___fprintf_chk(FILE *stream, int flag, const char *format, ...)
{
	va_list arguments;
	int len = 0;

	va_start(arguments, format);
	if (stream == stdout || stream == stderr)
		print_to_log(format, arguments);
	else
		len = vfprintf(stream, format, arguments);
	va_end(arguments);
	return len;
}

int lstack_dpdk_puts(const char *text)
{
	rte_log(RTE_LOG_INFO, RTE_LOGTYPE_EAL, "%s\n", text);
	return 0;
}

int lstack_dpdk_putchar(int character)
{
	return character;
}

void lstack_dpdk_perror(const char *text)
{
	rte_log(RTE_LOG_ERR, RTE_LOGTYPE_EAL, "%s: %s\n", text, strerror(errno));
}

/* The program's own syslog identity stays as it is. */
void lstack_dpdk_openlog(const char *identity, int option, int facility)
{
}

void lstack_dpdk_closelog(void)
{
}

void lstack_dpdk_syslog(int priority, const char *format, ...)
{
}

void lstack_dpdk___syslog_chk(int priority, int flag, const char *format, ...)
{
}

int lstack_dpdk_getopt_long(int count, char *const *words, const char *short_options,
			    const struct option *options, int *index)
{
	int printing = opterr, found;

	opterr = 0;
	found = getopt_long(count, words, short_options, options, index);
	opterr = printing;
	if (found == '?' && optind > 0 && optind <= count)
		rte_log(RTE_LOG_ERR, RTE_LOGTYPE_EAL, "unknown or incomplete option %s\n",
			words[optind - 1]);
	return found;
}

/* ---- memory policy (what libnuma does, without libnuma) ---- */

/* As libnuma's; the header may not be installed. */
struct bitmask {
	unsigned long size;
	unsigned long *maskp;
};

#define NODES_MAX 1024
#define WORD_BITS (8 * sizeof(unsigned long))

long lstack_dpdk_get_mempolicy(int *mode, unsigned long *mask, unsigned long max, void *address,
			       unsigned int flags)
{
	return syscall(SYS_get_mempolicy, mode, mask, max, address, flags);
}

long lstack_dpdk_set_mempolicy(int mode, const unsigned long *mask, unsigned long max)
{
	return syscall(SYS_set_mempolicy, mode, mask, max);
}

int lstack_dpdk_numa_available(void)
{
	return syscall(SYS_get_mempolicy, NULL, NULL, 0, NULL, 0) < 0 ? -1 : 0;
}

struct bitmask *lstack_dpdk_numa_allocate_nodemask(void)
{
	struct bitmask *mask = calloc(1, sizeof(*mask) + NODES_MAX / 8);

	if (mask != NULL) {
		mask->size = NODES_MAX;
		mask->maskp = (unsigned long *)(mask + 1);
	}
	return mask;
}

void lstack_dpdk_numa_bitmask_free(struct bitmask *mask)
{
	free(mask);
}

void lstack_dpdk_numa_set_preferred(int node)
{
	unsigned long mask[NODES_MAX / WORD_BITS] = { 0 };

	if (node < 0 || node >= NODES_MAX) {
		syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
		return;
	}
	mask[(size_t)node / WORD_BITS] = 1UL << ((size_t)node % WORD_BITS);
	syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask, (unsigned long)NODES_MAX + 1);
}

void lstack_dpdk_numa_set_localalloc(void)
{
	syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
}

/* ---- rights ---- */

/* The legacy virtio driver asks when the library is loaded, also by programs that never open a
 * socket. Refused: only virtio devices older than 1.0 need I/O ports. */
int lstack_dpdk_iopl(int level)
{
	(void)level;
	errno = EPERM;
	return -1;
}

/* ---- time ---- */

/* DPDK measures its clock for 100 ms, most of its start-up time. Ten are enough for what it is used
 * for (timeouts of drivers), and the frequency is rounded to 10 MHz all the same. */
uint64_t get_tsc_freq(void)
{
	struct timespec pause = { 0, 10 * 1000 * 1000 }, start, end;
	uint64_t first, last, hz;
	double seconds;

	if (clock_gettime(CLOCK_MONOTONIC_RAW, &start) != 0)
		return 0;
	first = rte_rdtsc();
	nanosleep(&pause, NULL);
	clock_gettime(CLOCK_MONOTONIC_RAW, &end);
	last = rte_rdtsc();
	seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
	hz = (uint64_t)((double)(last - first) / seconds);
	return RTE_ALIGN_MUL_NEAR(hz, (uint64_t)10 * 1000 * 1000);
}

/* ---- tracing ---- */

/* DPDK's trace points format their descriptions in constructors: half of what loading the library
 * into a program would cost. Nothing here can switch them on, so none is registered; one that was
 * never registered is off. */
int __rte_trace_point_register(rte_trace_point_t *handle, const char *name, void (*describe)(void))
{
	return 0;
}

/* ---- strings ---- */

size_t lstack_dpdk_strlcpy(char *to, const char *from, size_t room)
{
	size_t len = strlen(from);

	if (room > 0) {
		size_t copied = len < room ? len : room - 1;

		memcpy(to, from, copied);
		to[copied] = '\0';
	}
	return len;
}

size_t lstack_dpdk_strlcat(char *to, const char *from, size_t room)
{
	size_t used = strnlen(to, room);

	if (used == room)
		return room + strlen(from);
	return used + lstack_dpdk_strlcpy(to + used, from, room - used);
}
