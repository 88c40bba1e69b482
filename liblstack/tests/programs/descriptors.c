/* fcntl with and without its third argument, copies, numbers. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void flags(const char *when, int fd)
{
    printf("%s: nonblock %d, cloexec %d\n", when, !!(fcntl(fd, F_GETFL) & O_NONBLOCK),
           !!(fcntl(fd, F_GETFD) & FD_CLOEXEC));
}

int main(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1, off = 0;
    struct stat about;
    printf("first number %d\n", fd);
    flags("fresh", fd);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    flags("F_SETFL", fd);
    ioctl(fd, FIONBIO, &off);
    flags("FIONBIO off", fd);
    ioctl(fd, FIONBIO, &on);
    flags("FIONBIO on", fd);
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    printf("copy %d\n", copy);
    flags("copy", copy);
    printf("F_DUPFD %d\n", fcntl(fd, F_DUPFD, 200));
    printf("F_SETOWN %d, F_GETOWN %d\n", fcntl(fd, F_SETOWN, getpid()),
           fcntl(fd, F_GETOWN) == getpid());
    int both = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    flags("SOCK_", both);
    close(fd);
    printf("lowest again %d\n", open("/dev/null", O_RDONLY) == fd);
    printf("dup2 %d\n", dup2(both, 50));
    flags("dup2", 50);
    printf("dup3 %d\n", dup3(both, 51, O_CLOEXEC));
    flags("dup3", 51);
    printf("socket %d\n", fstat(both, &about) == 0 && S_ISSOCK(about.st_mode));
    closefrom(40);
    printf("closed %d\n", fcntl(50, F_GETFD));
    printf("closed %d\n", fcntl(200, F_GETFD));
    printf("closed %d, errno %d\n", close_range(3, ~0u, 0), errno);
    printf("next number %d\n", socket(AF_INET6, SOCK_DGRAM, 0));
    return 0;
}
