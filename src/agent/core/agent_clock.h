/* agent_clock: the monotonic time in nanoseconds, used everywhere in the agent. */
#pragma once

#include <stdint.h>
#include <time.h>

#define PB_NS_PER_S  1000000000ull
#define PB_NS_PER_MS 1000000ull

static inline uint64_t pb_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * PB_NS_PER_S + (uint64_t)now.tv_nsec;
}
