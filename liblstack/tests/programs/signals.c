/* What a program sees of its own signal handlers, and which calls they end. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t runs;
static int wake_fd = -1;

static void plain(int number)
{
    (void)number;
    runs++;
    /* Lets a restarted call end. */
    if (wake_fd >= 0 && write(wake_fd, "x", 1) != 1)
        abort();
}

static void with_info(int number, siginfo_t *info, void *context)
{
    runs++;
    printf("  info: number %d, code %d, value %d, context %d\n", number == info->si_signo,
           info->si_code, info->si_value.sival_int, context != NULL);
}

static void show(int number)
{
    struct sigaction now;
    errno = 777;
    if (sigaction(number, NULL, &now) != 0) {
        printf("  signal %d: errno %d\n", number, errno);
        return;
    }
    const char *name = now.sa_handler == SIG_DFL   ? "default"
                       : now.sa_handler == SIG_IGN ? "ignored"
                       : now.sa_handler == plain   ? "plain"
                       : now.sa_sigaction == with_info ? "with_info"
                                                       : "unknown";
    printf("  signal %d: %s, flags %x, blocks itself %d, blocks USR2 %d, errno %d\n", number, name,
           (unsigned)now.sa_flags & ~0x04000000u, sigismember(&now.sa_mask, number),
           sigismember(&now.sa_mask, SIGUSR2), errno);
}

static void views(void)
{
    struct sigaction action = {.sa_sigaction = with_info, .sa_flags = SA_SIGINFO | SA_RESTART};
    puts("views");
    for (int number = 1; number <= 64; number++)
        show(number);
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGUSR1, &action, NULL);
    show(SIGUSR1);
    sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 42});
    printf("  signal(): %d\n", signal(SIGUSR1, plain) == (void (*)(int))with_info);
    show(SIGUSR1);
    siginterrupt(SIGUSR1, 1);
    show(SIGUSR1);
    signal(SIGUSR1, plain);
    show(SIGUSR1);
    siginterrupt(SIGUSR1, 0);
    printf("  ignore: %d\n", signal(SIGUSR1, SIG_IGN) == plain);
    show(SIGUSR1);
    raise(SIGUSR1);
    printf("  default: %d\n", signal(SIGUSR1, SIG_DFL) == SIG_IGN);
    action = (struct sigaction){.sa_handler = plain, .sa_flags = SA_RESETHAND | SA_NODEFER};
    sigaction(SIGTERM, &action, NULL);
    show(SIGTERM);
    raise(SIGTERM);
    show(SIGTERM);
    sysv_signal(SIGUSR1, plain);
    show(SIGUSR1);
    raise(SIGUSR1);
    show(SIGUSR1);
    printf("  errors: %d %d\n", signal(SIGKILL, plain) == SIG_ERR, signal(99, plain) == SIG_ERR);
    printf("  runs: %d\n", (int)runs);
}

static void in_time(int flags)
{
    struct sigaction action = {.sa_handler = plain, .sa_flags = flags};
    struct itimerval soon = {.it_value.tv_usec = 50000};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
}

static void blocking(int flags)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    char byte;
    if (bind(listener, (struct sockaddr *)&addr, len) || listen(listener, 5) ||
        getsockname(listener, (struct sockaddr *)&addr, &len) ||
        connect(client, (struct sockaddr *)&addr, len))
        abort();
    int accepted = accept(listener, NULL, NULL);
    printf("blocking, restart %d\n", flags == SA_RESTART);

    wake_fd = accepted;
    in_time(flags);
    long result = recv(client, &byte, 1, 0);
    printf("  recv: %ld, %d\n", result, result < 0 ? errno : 0);
    wake_fd = -1;

    in_time(flags);
    struct pollfd entry = {listener, POLLIN, 0};
    result = poll(&entry, 1, 5000);
    printf("  poll: %ld, %d\n", result, errno);

    in_time(flags);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(listener, &set);
    struct timeval limit = {5, 0};
    result = select(listener + 1, &set, NULL, NULL, &limit);
    printf("  select: %ld, %d, time left %d\n", result, errno, limit.tv_sec == 4);

    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    in_time(flags);
    result = epoll_wait(epoll, &event, 1, 5000);
    printf("  epoll_wait: %ld, %d\n", result, errno);

    struct timeval receive_limit = {5, 0};
    setsockopt(accepted, SOL_SOCKET, SO_RCVTIMEO, &receive_limit, sizeof receive_limit);
    in_time(flags);
    while ((result = recv(accepted, &byte, 1, 0)) > 0)
        ;
    printf("  recv with a time limit: %ld, %d\n", result, errno);
    close(epoll);
    close(client);
    close(accepted);
    close(listener);
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    views();
    blocking(0);
    blocking(SA_RESTART);
    views();
    return 0;
}
