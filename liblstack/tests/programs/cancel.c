/* Threads are cancelled, or leave by pthread_exit in a handler, while they wait in hooked calls. */
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

static int udp, epoll;
static sem_t ready;

static void clean(void *what) { printf("%s cleans up\n", (const char *)what); }

#define WAITER(name, call)                   \
    static void *name(void *unused)          \
    {                                        \
        char buf[8];                         \
        (void)buf;                           \
        pthread_cleanup_push(clean, #name);  \
        sem_post(&ready);                    \
        call;                                \
        pthread_cleanup_pop(0);              \
        return unused;                       \
    }

WAITER(in_recv, recv(udp, buf, sizeof buf, 0))
WAITER(in_read, if (read(udp, buf, sizeof buf) < 0) perror("read"))
WAITER(in_poll, poll(&(struct pollfd){udp, POLLIN, 0}, 1, -1))
WAITER(in_epoll_wait, epoll_wait(epoll, &(struct epoll_event){0}, 1, -1))
WAITER(in_select, fd_set set; FD_ZERO(&set); FD_SET(udp, &set);
       select(udp + 1, &set, NULL, NULL, NULL))

static void leave(int number)
{
    (void)number;
    pthread_exit("left");
}

static void *outlives(void *first)
{
    pthread_join(*(pthread_t *)first, NULL);
    puts("the first thread has left");
    return NULL;
}

int main(void)
{
    static pthread_t first;
    void *(*waiters[])(void *) = {in_recv, in_read, in_poll, in_epoll_wait, in_select};
    struct epoll_event event = {.events = EPOLLIN};
    setvbuf(stdout, NULL, _IONBF, 0);
    sem_init(&ready, 0, 0);
    udp = socket(AF_INET, SOCK_DGRAM, 0);
    epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, udp, &event);
    signal(SIGUSR1, leave);
    for (unsigned i = 0; i < sizeof waiters / sizeof *waiters; i++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, waiters[i], NULL);
        sem_wait(&ready);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        printf("cancelled: %d\n", result == PTHREAD_CANCELED);
        pthread_create(&thread, NULL, waiters[i], NULL);
        sem_wait(&ready);
        pthread_kill(thread, SIGUSR1);
        pthread_join(thread, &result);
        printf("left: %s\n", (const char *)result);
    }
    pthread_t last;
    first = pthread_self();
    pthread_create(&last, NULL, outlives, &first);
    pthread_exit(NULL);
}
