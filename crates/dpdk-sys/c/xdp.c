/* libxdp and libbpf, loaded when an AF_XDP device is made.
 *
 * Linked the usual way they would cost every program under the preload library 1.4 ms at its start
 * (measured), also those that never open a socket. Without them, making the device fails and the
 * log says why.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "wrapper.h"

/* Both libraries print to stderr unless told otherwise. */
static int print_to_log(int level, const char *format, va_list arguments)
{
	return rte_vlog(RTE_LOG_INFO, RTE_LOGTYPE_EAL, format, arguments);
}

static void silence(void *handle, const char *setter)
{
	void *(*set_print)(int (*)(int, const char *, va_list));

	*(void **)&set_print = dlsym(handle, setter);
	if (set_print != NULL)
		set_print(print_to_log);
}

static void *library_symbol(const char *library, const char *name)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	void *symbol = handle != NULL ? dlsym(handle, name) : NULL;

	if (handle != NULL) {
		/* libxdp brings libbpf along. */
		silence(handle, "libbpf_set_print");
		silence(handle, "libxdp_set_print");
	}
	if (symbol == NULL)
		rte_log(RTE_LOG_ERR, RTE_LOGTYPE_EAL,
			"AF_XDP needs %s (apt-get install libxdp1 libbpf1): %s\n", library,
			dlerror());
	return symbol;
}

/* A function `name` of `library`, or `missing` when there is none. All their arguments are pointers
 * and integers of at most 64 bits, which one calling convention passes alike. */
#define LAZY(result, library, name, missing, parameters, arguments)                    \
	result lstack_dpdk_##name parameters                                           \
	{                                                                              \
		static result(*real) parameters;                                       \
		if (real == NULL)                                                      \
			*(void **)&real = library_symbol(library, #name);              \
		return real != NULL ? real arguments : (missing);                      \
	}

#define BPF "libbpf.so.1"
#define XDP "libxdp.so.1"

typedef uint64_t u64;

LAZY(int, BPF, bpf_map__fd, -ENOSYS, (const void *map), (map))
LAZY(int, BPF, bpf_map_update_elem, -ENOSYS, (int fd, const void *key, const void *value, u64 flags),
     (fd, key, value, flags))
LAZY(void *, BPF, bpf_object__find_map_by_name, NULL, (const void *object, const char *name),
     (object, name))
LAZY(int, BPF, bpf_object__load, -ENOSYS, (void *object), (object))
LAZY(void *, BPF, bpf_object__next_program, NULL, (const void *object, void *program),
     (object, program))
LAZY(void *, BPF, bpf_object__open_file, NULL, (const char *path, const void *options),
     (path, options))
LAZY(int, BPF, bpf_program__fd, -ENOSYS, (const void *program), (program))
LAZY(int, BPF, bpf_xdp_attach, -ENOSYS, (int index, int fd, uint32_t flags, const void *options),
     (index, fd, flags, options))
LAZY(int, BPF, bpf_xdp_detach, -ENOSYS, (int index, uint32_t flags, const void *options),
     (index, flags, options))
LAZY(int, BPF, bpf_xdp_query_id, -ENOSYS, (int index, int flags, uint32_t *id), (index, flags, id))
LAZY(long, BPF, libbpf_get_error, -ENOSYS, (const void *pointer), (pointer))
LAZY(int, XDP, xsk_socket__create, -ENOSYS,
     (void **socket, const char *interface, uint32_t queue, void *umem, void *rx, void *tx,
      const void *config),
     (socket, interface, queue, umem, rx, tx, config))
LAZY(int, XDP, xsk_socket__fd, -ENOSYS, (const void *socket), (socket))
LAZY(int, XDP, xsk_umem__create, -ENOSYS,
     (void **umem, void *area, u64 size, void *fill, void *completion, const void *config),
     (umem, area, size, fill, completion, config))
LAZY(int, XDP, xsk_umem__delete, -ENOSYS, (void *umem), (umem))

/* Nothing to report. */
void lstack_dpdk_bpf_object__close(void *object)
{
	void (*real)(void *);

	*(void **)&real = library_symbol(BPF, "bpf_object__close");
	if (real != NULL)
		real(object);
}

void lstack_dpdk_xsk_socket__delete(void *socket)
{
	void (*real)(void *);

	*(void **)&real = library_symbol(XDP, "xsk_socket__delete");
	if (real != NULL)
		real(socket);
}
