/* A wall clock that is ahead by OFFSET_CLOCK_NS: loaded into a program (LD_PRELOAD) in place of a machine
 * whose clock is wrong. */
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *t)
{
    static int (*real)(clockid_t, struct timespec *);

    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int r = real(id, t);
    if (r == 0 && id == CLOCK_REALTIME) {
        const char *by = getenv("OFFSET_CLOCK_NS");
        long long ns = (long long)t->tv_sec * 1000000000 + t->tv_nsec + (by ? atoll(by) : 0);
        t->tv_sec = (time_t)(ns / 1000000000);
        t->tv_nsec = (long)(ns % 1000000000);
    }
    return r;
}
