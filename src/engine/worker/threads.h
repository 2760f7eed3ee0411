/* threads: a few helpers for what is done to many segments at once. Worker only. */
#pragma once

#define PB_MAX_SCAN_THREADS 4

/* How many are worth it for that many segments: at least one, the caller. */
unsigned pb_threads_for(unsigned segments);

/* Calls f(arg, 0) to f(arg, n - 1), each in a thread of its own, 0 in the caller's; returns when all have.
 * Where no thread is to be had fewer calls are made: f must take its work from a common counter. */
void pb_threads_run(unsigned n, void (*f)(void *arg, unsigned thread), void *arg);
