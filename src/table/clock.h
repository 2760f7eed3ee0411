/* clock: the time of rows: CLOCK_MONOTONIC in ns, read from the processor's counter where that is reliable.
 *
 * A row costs 12 ns, clock_gettime 23 ns. Where the kernel itself keeps time by the x86 time stamp
 * counter, the counter is read directly and converted by a line fitted to the system's clock, which the
 * resident thread fits anew once a second (pb_arena_tend). Until the first fit, on other machines, and
 * for good once the counter was seen to jump, clock_gettime is used. One state for the process: a line
 * holds for any arena in it. */
#pragma once

#include <stdint.h>

/* Signal-safe, any thread. Within about 100 ns of CLOCK_MONOTONIC; may step back by as much when a line is
 * replaced. */
int64_t pb_clock_mono(void);

/* Both clocks at one moment, so that their difference converts one into the other. A thread may lose its CPU
 * between two reads: the wall clock is read between two reads of the monotonic one, again until those are
 * close, and the closest of a few tries counts. Signal-safe. */
void pb_clock_both(int64_t *mono, int64_t *real);

/* Fits the line when it is time to: cheap to call often. One thread at a time. */
void pb_clock_tend(void);

/* Whether the counter is in use. For tests and benchmarks. */
int pb_clock_is_counter(void);
