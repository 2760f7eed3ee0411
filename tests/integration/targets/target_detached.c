/* target_detached: detached threads that each start the next one and end. Each gives its own stack back,
 * which is so large that it goes to the kernel at once, under the lock that pthread_create takes. The first
 * thread is never borrowed: it waits in a signal handler that has a small stack of its own.
 *
 * usage: target_detached; prints "ready" and where it counts its turns, as target_malloc does. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t turns[64];
static pthread_attr_t large;

static void *start_next(void *arg)
{
    volatile char used[1 << 17];
    pthread_t next;

    for (size_t i = 0; i < sizeof(used); i += 4096)
        used[i] = 1;
    __atomic_fetch_add(&turns[0], 1, __ATOMIC_RELAXED);
    if (pthread_create(&next, &large, start_next, NULL) != 0)
        abort();
    return NULL;
}

static void wait_here(int number)
{
    (void)number;
    for (;;)
        pause();
}

int main(void)
{
    static char room[65536];
    const stack_t small = {.ss_sp = room, .ss_size = sizeof(room)};
    const struct sigaction on_small = {.sa_handler = wait_here, .sa_flags = SA_ONSTACK};

    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, 64 << 20);
    pthread_attr_setdetachstate(&large, PTHREAD_CREATE_DETACHED);
    start_next(NULL);
    printf("ready %p\n", (void *)turns);
    fflush(stdout);
    sigaltstack(&small, NULL);
    sigaction(SIGUSR1, &on_small, NULL);
    raise(SIGUSR1);
    return 1;
}
