/* gpu_clock: see gpu_clock.h. */
#include "agent/probes/gpu/gpu_clock.h"

/* A clock of ns differs from CLOCK_MONOTONIC by less: then it is one, and noise of the measure does not
 * count. */
#define SAME 1e-3

void pb_gpu_clock_begin(struct pb_gpu_clock *clock, int64_t mono, uint64_t there)
{
    *clock = (struct pb_gpu_clock){.mono = mono, .there = there, .rate = 1};
}

void pb_gpu_clock_adjust(struct pb_gpu_clock *clock, int64_t mono, uint64_t there)
{
    if (mono <= clock->mono || there <= clock->there)
        return;
    double rate = (double)(mono - clock->mono) / (double)(there - clock->there);
    clock->rate = rate > 1 - SAME && rate < 1 + SAME ? 1 : rate;
}

int64_t pb_gpu_clock_mono(const struct pb_gpu_clock *clock, uint64_t there)
{
    return clock->mono + (int64_t)((double)(int64_t)(there - clock->there) * clock->rate);
}

double pb_gpu_clock_ns(const struct pb_gpu_clock *clock, uint64_t ticks)
{
    return (double)ticks * clock->rate;
}
