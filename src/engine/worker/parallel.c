/* parallel: see parallel.h. */
#include "engine/worker/parallel.h"

#include <pthread.h>
#include <unistd.h>

enum { SEGMENTS_A_THREAD = 32 };

struct thread_start {
    void (*f)(void *arg, unsigned thread);
    void *arg;
    unsigned thread;
};

unsigned pb_threads_for(unsigned segments)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned most = cores < 1 ? 1 : cores > PB_MAX_SCAN_THREADS ? PB_MAX_SCAN_THREADS : (unsigned)cores;
    unsigned n = segments / SEGMENTS_A_THREAD;

    return n < 1 ? 1 : n < most ? n : most;
}

static void *run(void *arg)
{
    const struct thread_start *s = arg;
    s->f(s->arg, s->thread);
    return NULL;
}

void pb_threads_run(unsigned n, void (*f)(void *arg, unsigned thread), void *arg)
{
    struct thread_start starts[PB_MAX_SCAN_THREADS];
    pthread_t threads[PB_MAX_SCAN_THREADS];
    unsigned started = 0;

    for (; started + 1 < n; started++) {
        starts[started] = (struct thread_start){f, arg, started + 1};
        if (pthread_create(&threads[started], NULL, run, &starts[started]) != 0)
            break;
    }
    f(arg, 0);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}
