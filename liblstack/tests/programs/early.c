/* A socket before main, and many threads that open the first ones at once. */
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int first = -1;
static pthread_barrier_t together;

__attribute__((constructor(101))) static void before_main(void)
{
    if (getenv("EARLY"))
        first = socket(AF_INET, SOCK_STREAM, 0);
}

static void *opens(void *unused)
{
    pthread_barrier_wait(&together);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || close(fd) != 0)
        abort();
    return unused;
}

int main(void)
{
    pthread_t threads[16];
    pthread_barrier_init(&together, NULL, 16);
    for (int i = 0; i < 16; i++)
        pthread_create(&threads[i], NULL, opens, NULL);
    for (int i = 0; i < 16; i++)
        pthread_join(threads[i], NULL);
    printf("first %d\n", first);
    return 0;
}
