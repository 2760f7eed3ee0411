/* target_joins: one thread that starts others and joins them, with stacks so large that each is given back to
 * the kernel at once, under the lock that the next pthread_create takes.
 *
 * usage: target_joins; prints "ready" and where it counts its turns, as target_malloc does. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t turns[64];

static void *touch(void *arg)
{
    char page[65536];
    memset(page, 1, sizeof(page));
    *(volatile char *)arg = page[17];
    return NULL;
}

int main(void)
{
    pthread_attr_t large;
    pthread_t thread;
    char to;

    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, 64 << 20);
    printf("ready %p\n", (void *)turns);
    fflush(stdout);
    for (;;) {
        if (pthread_create(&thread, &large, touch, &to) != 0 || pthread_join(thread, NULL) != 0)
            abort();
        __atomic_fetch_add(&turns[0], 1, __ATOMIC_RELAXED);
    }
}
