/* slow_malloc, to be preloaded: a malloc that writes a log under a lock of its own and sleeps with it now and
 * then. A thread of the program that is borrowed there could allocate for ever. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

extern void *__libc_malloc(size_t size);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned calls;

void *malloc(size_t size)
{
    pthread_mutex_lock(&lock);
    void *memory = __libc_malloc(size);
    if (++calls % 50 == 0)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    pthread_mutex_unlock(&lock);
    return memory;
}
