/* Children of every kind, after the parent has opened an internet socket. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void ended(const char *how, pid_t child)
{
    int status;
    waitpid(child, &status, 0);
    printf("%s: exited %d, status %d\n", how, WIFEXITED(status), WEXITSTATUS(status));
}

int main(void)
{
    char *shell[] = {"sh", "-c", "exit 3", NULL};
    setvbuf(stdout, NULL, _IONBF, 0);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    char buf[6] = "";
    pid_t child;
    if (bind(fd, (struct sockaddr *)&addr, len) || getsockname(fd, (struct sockaddr *)&addr, &len))
        abort();

    child = fork();
    if (child == 0) {
        int own = socket(AF_INET, SOCK_DGRAM, 0);
        sendto(own, "hello", 5, 0, (struct sockaddr *)&addr, len);
        _exit(own == fd + 1 ? 7 : 8);
    }
    ended("fork", child);
    printf("child says %zd %s\n", recv(fd, buf, 5, 0), buf);

    child = fork();
    if (child == 0)
        exit(recv(fd, buf, 5, MSG_DONTWAIT) == -1 ? 9 : 10);
    ended("fork and exit", child);

    child = vfork();
    if (child == 0) {
        close(fd);
        dup2(1, 60);
        execv("/bin/sh", shell);
        _exit(127);
    }
    ended("vfork", child);

    child = vfork();
    if (child == 0)
        _exit(5);
    ended("vfork and _exit", child);

    posix_spawn(&child, "/bin/sh", NULL, NULL, shell, environ);
    ended("posix_spawn", child);
    printf("system: %d\n", WEXITSTATUS(system("exit 4")));
    for (int i = 0; i < 2; i++) {
        FILE *from = popen("echo from popen", "r");
        char line[32];
        printf("popen: %s", fgets(line, sizeof line, from));
        printf("pclose: %d\n", pclose(from));
    }
    sendto(fd, "still", 5, 0, (struct sockaddr *)&addr, len);
    printf("parent says %zd %s\n", recv(fd, buf, 5, 0), buf);
    return 0;
}
