/* gpu_clock: what CUPTI's clock says, as CLOCK_MONOTONIC.
 *
 * Its clock counts nanoseconds, unless the program has given it another: torch.profiler does, and from then
 * on it counts ticks of the processor. So the rate is measured, by both clocks at two moments. */
#pragma once

#include <stdint.h>

struct pb_gpu_clock {
    int64_t mono;   /* ns, at the first moment */
    uint64_t there; /* what CUPTI's clock said then */
    double rate;    /* ns a tick */
};

/* Both clocks at a first and, some ms later at least, at a second moment; later ones make the rate exacter.
 * */
void pb_gpu_clock_begin(struct pb_gpu_clock *clock, int64_t mono, uint64_t there);
void pb_gpu_clock_adjust(struct pb_gpu_clock *clock, int64_t mono, uint64_t there);

int64_t pb_gpu_clock_mono(const struct pb_gpu_clock *clock, uint64_t there);
double pb_gpu_clock_ns(const struct pb_gpu_clock *clock, uint64_t ticks);
