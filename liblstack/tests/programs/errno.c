/* Successful calls leave errno alone, failing ones set it as libc does. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define SHOW(call)                                                            \
    do {                                                                      \
        errno = 777;                                                          \
        long result = (long)(call);                                           \
        printf("%s: %s, errno %d\n", #call, result < 0 ? "fails" : "works", errno); \
    } while (0)

static void family(int domain)
{
    struct sockaddr_storage addr = {.ss_family = domain};
    socklen_t len = domain == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    struct sockaddr *any = (struct sockaddr *)&addr;
    struct timeval none = {0};
    struct timespec nothing = {0};
    struct epoll_event event = {.events = EPOLLIN}, found[4];
    char buf[100] = "x";
    struct iovec vector = {buf, 4};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    struct mmsghdr many = {.msg_hdr = message};
    fd_set set;
    int listener, client, accepted, copy, epoll, one = 1, value;
    socklen_t size = sizeof value;

    SHOW(listener = socket(domain, SOCK_STREAM, 0));
    SHOW(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    SHOW(getsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &value, &size));
    SHOW(bind(listener, any, len));
    SHOW(listen(listener, 5));
    SHOW(getsockname(listener, any, &len));
    SHOW(client = socket(domain, SOCK_STREAM, 0));
    SHOW(connect(client, any, len));
    SHOW(connect(client, any, len));
    SHOW(accepted = accept4(listener, any, &len, SOCK_NONBLOCK));
    SHOW(getpeername(client, any, &len));
    SHOW(recv(accepted, buf, 4, 0));
    SHOW(send(client, buf, 4, 0));
    SHOW(poll(&(struct pollfd){accepted, POLLIN, 0}, 1, -1));
    SHOW(recvfrom(accepted, buf, 4, MSG_PEEK, any, &len));
    SHOW(read(accepted, buf, 4));
    SHOW(write(accepted, buf, 4));
    SHOW(readv(client, &vector, 1));
    SHOW(writev(client, &vector, 1));
    SHOW(ppoll(&(struct pollfd){accepted, POLLIN, 0}, 1, NULL, NULL));
    SHOW(recvmsg(accepted, &message, 0));
    SHOW(sendmsg(client, &message, 0));
    SHOW(sendmmsg(client, &many, 1, 0));
    SHOW(recvmmsg(accepted, &many, 1, MSG_WAITFORONE, NULL));
    SHOW(epoll = epoll_create1(0));
    SHOW(epoll_ctl(epoll, EPOLL_CTL_ADD, accepted, &event));
    SHOW(epoll_ctl(epoll, EPOLL_CTL_ADD, accepted, &event));
    SHOW(epoll_wait(epoll, found, 4, 0));
    SHOW(epoll_pwait(epoll, found, 4, 0, NULL));
    SHOW(epoll_pwait2(epoll, found, 4, &nothing, NULL));
    SHOW(epoll_wait(epoll, found, 0, 0));
    FD_ZERO(&set);
    FD_SET(client, &set);
    SHOW(select(client + 1, &set, NULL, NULL, &none));
    SHOW(pselect(client + 1, NULL, &set, NULL, &nothing, NULL));
    SHOW(copy = dup(client));
    SHOW(dup2(client, copy));
    SHOW(dup3(client, client, 0));
    SHOW(fcntl(copy, F_GETFL));
    SHOW(fcntl(copy, F_SETFL, O_NONBLOCK));
    SHOW(ioctl(copy, FIONREAD, &value));
    SHOW(shutdown(client, SHUT_WR));
    SHOW(close(copy));
    SHOW(close(copy));
    SHOW(close(client));
    SHOW(close(accepted));
    SHOW(close(listener));
    SHOW(close(epoll));
    SHOW(close_range(900, 910, 0));
    SHOW(close_range(2, 1, 0));
}

static void handler(int number) { (void)number; }

int main(void)
{
    struct sigaction action = {.sa_handler = handler};
    family(AF_INET);
    family(AF_INET6);
    SHOW(sigaction(SIGUSR1, &action, NULL));
    SHOW(sigaction(SIGKILL, &action, NULL));
    SHOW(signal(SIGUSR1, SIG_DFL) == SIG_ERR ? -1 : 0);
    SHOW(read(-1, NULL, 0));
    SHOW(close(-1));
    SHOW(dup2(-1, 5));
    SHOW(send(0, "x", 1, 0));
    return 0;
}
