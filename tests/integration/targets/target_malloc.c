/* target_malloc: threads that loop in malloc and free, and one in dlopen, so that hardly any moment is safe.
 *
 * usage: target_malloc THREADS; prints "ready", then runs until killed. Each thread counts its turns in a
 * table at the address printed, so that a test sees that all of them get on. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t turns[64];
static void *volatile shared[256];

static void *allocate(void *arg)
{
    uint64_t *count = arg;
    unsigned seed = (unsigned)(count - turns) + 1;
    for (;;) {
        for (int i = 0; i < 64; i++) {
            seed = seed * 1103515245 + 12345;
            size_t size = seed >> 8 & 1 ? seed >> 16 & 255 : (seed >> 9 & 127) * 1024;
            void *mine = malloc(size + 1);
            memset(mine, 1, size < 64 ? size : 64);
            free(__atomic_exchange_n(&shared[seed >> 24], mine, __ATOMIC_ACQ_REL));
        }
        __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *load(void *arg)
{
    uint64_t *count = arg;
    for (;;) {
        void *lib = dlopen("libm.so.6", RTLD_NOW);
        if (!lib)
            lib = dlopen(NULL, RTLD_NOW);
        dlsym(lib, "cos");
        dlclose(lib);
        __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 3;
    pthread_t thread;
    for (int i = 1; i < n && i < 64; i++)
        pthread_create(&thread, NULL, i == n - 1 ? load : allocate, &turns[i]);
    printf("ready %p\n", (void *)turns);
    fflush(stdout);
    allocate(&turns[0]);
    return 0;
}
