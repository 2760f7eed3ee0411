/* time: the monotonic clock in nanoseconds, and deadlines made of it; the wall clock. Tools only. */
#pragma once

#include <stdint.h>
#include <time.h>

#define PB_NS_PER_MS 1000000ull
#define PB_NS_PER_S  1000000000ull

static inline uint64_t pb_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * PB_NS_PER_S + (uint64_t)t.tv_nsec;
}

static inline int64_t pb_wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * (int64_t)PB_NS_PER_S + t.tv_nsec;
}

static inline void pb_sleep_ns(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / PB_NS_PER_S), .tv_nsec = (long)(ns % PB_NS_PER_S)};
    nanosleep(&t, NULL);
}
