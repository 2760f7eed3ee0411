/* profile_run: shared by flamegraph, top and record: options, signals, and the summary of a profile. */
#pragma once

#include "ask/profiles.h"
#include "cli/cli.h"
#include "profile/flame.h"

/* The options that all three take. */
#define PB_PROFILE_OPTIONS                                                                                   \
    {'r', "rate", PB_NUMBER("HZ", .least = 0.01, .most = 1e6),                                               \
     "samples a second of each thread (default: probing.sample_rate, 100)"},                                 \
        {0, "cpu", NULL, "only threads that run: CPU time"},                                                 \
        {0, "wall", NULL, "threads that run and that wait: time as it passes (the default)"},                \
        {0, "gil", NULL, "only the thread that holds the GIL"},                                              \
        {0, "idle", NULL, "also threads that never run while it samples"},                                   \
        {0, "native", NULL, "native frames (C, C++) among the Python frames"},                               \
        {0, "subprocesses", NULL, "also sample its child processes, including later ones"},                  \
        {0, "no-stop", NULL, "never stop a thread; samples that need a stop are refused, and counted"},      \
    {                                                                                                        \
        0, "force", NULL, "take the nearest known layout for an unknown version of CPython"                  \
    }

struct pb_profile_plan {
    struct pb_sampler_options sampler;
    bool idle;
};

int pb_profile_plan(const struct pb_call *call, struct pb_profile_plan *ret, struct pb_err *err);

/* From now on SIGINT, SIGTERM and SIGHUP set a flag instead of ending the program, unless they are
 * ignored. */
void pb_profile_catch_signals(void);
/* The signal that was received; 0: none. */
int pb_profile_signal(void);
/* Becomes true with the first such signal. */
const atomic_bool *pb_profile_cancelled(void);

/* Writes the file of --output and prints a summary (cmd_flamegraph.c). all: the profiles of several machines,
 * of which p is the sum, for formats with a time axis; n 0: p alone. */
int pb_flamegraph_write(const struct pb_call *call, struct pb_profile *p, struct pb_profile *const *all,
                        size_t n, struct pb_err *err);

/* The name of a flame graph that was given none: flame-, of, the time and .svg. */
void pb_flamegraph_name(const char *of, char *ret, size_t size);

/* Prints how threads were read, why not in a better way, and how many processes ended meanwhile. */
void pb_profile_say_notes(const struct pb_sampler *s, FILE *out);

/* "forward (model.py) 31.2%, ...": at most n functions. Returns buf. */
const char *pb_profile_hottest(const struct pb_profile *p, int n, char *buf, size_t size);
