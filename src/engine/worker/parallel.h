/* parallel: runs work on many segments in several threads. Worker only. */
#pragma once

#define PB_MAX_SCAN_THREADS 4

/* How many threads pay off for that many segments: at least one, the caller. */
unsigned pb_threads_for(unsigned segments);

/* Calls f(arg, 0) to f(arg, n - 1), each in its own thread, 0 in the caller's; returns when all have ended.
 * If a thread cannot be created fewer calls are made: f must take its work from a common counter. */
void pb_threads_run(unsigned n, void (*f)(void *arg, unsigned thread), void *arg);
