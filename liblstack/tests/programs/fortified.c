/* Calls whose names _FORTIFY_SOURCE changes. The lengths are unknown to the compiler. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    char buf[16];
    struct pollfd entries[2];
    size_t room = count > 1 ? strtoul(arguments[1], NULL, 10) : 8;
    nfds_t entry_count = count > 1 ? 2 : 1;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    if (bind(fd, (struct sockaddr *)&addr, len) ||
        getsockname(fd, (struct sockaddr *)&addr, &len))
        abort();
    for (int i = 0; i < 3; i++)
        sendto(fd, "0123456789", 10, 0, (struct sockaddr *)&addr, len);
    entries[0] = entries[1] = (struct pollfd){fd, POLLIN, 0};
    printf("select %d\n", select(fd + 1, &set, NULL, NULL, NULL));
    printf("poll %d\n", poll(entries, entry_count, 1000));
    printf("ppoll %d\n", ppoll(entries, entry_count, NULL, NULL));
    printf("read %zd\n", read(fd, buf, room));
    printf("recv %zd\n", recv(fd, buf, room, 0));
    printf("recvfrom %zd\n", recvfrom(fd, buf, room, 0, (struct sockaddr *)&addr, &len));
    return 0;
}
