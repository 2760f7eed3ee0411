/* profile_recorder: see profile_recorder.h. */
#include "ask/profile_recorder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ask/watchdog.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "profile/meter.h"
#include "profile/store.h"

#define FLUSH_NS   PB_NS_PER_S
#define MEMORY_MAX ((size_t)128 << 20)
#define FULL       0.5 /* share of the memory in use beyond which a new epoch begins */

struct pb_profile_recorder {
    struct pb_profile_recorder_options options;
    const struct pb_ask *ask;
    double set_rate; /* the rate found at the last look */
    uint64_t start;
    struct pb_profiling *profiling;
    struct pb_store *store;
    struct pb_meter *meter;
    struct pb_watchdog watchdog;
};

static void close_parts(struct pb_profile_recorder *r)
{
    pb_profiling_free(r->profiling);
    if (pb_meter_stop(r->meter)) /* else its thread still writes to the tables */
        pb_store_close(r->store);
    r->profiling = NULL;
    r->meter = NULL;
    r->store = NULL;
}

static int open_tables(struct pb_profile_recorder *r, struct pb_err *err)
{
    const struct pb_targets *targets = r->options.targets;
    _cleanup_free_ pid_t *pids = calloc(targets->n, sizeof(*pids));
    const struct pb_profile_facts *facts = pb_profile_facts(pb_profiling_profile(r->profiling));

    if (!pids)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < targets->n; i++)
        pids[i] = targets->at[i].pid;
    const struct pb_store_options store = {.bound = r->options.size,
                                           .pids = pids,
                                           .npids = targets->n,
                                           .command = facts->title,
                                           .rate = facts->rate,
                                           .clock = facts->clock,
                                           .shown = r->options.shown};
    int result = pb_store_new(&store, &r->store, err);
    return result < 0 ? result : pb_meter_start(pb_store_arena(r->store), pids, targets->n, &r->meter, err);
}

static int open_parts(struct pb_profile_recorder *r, struct pb_err *err)
{
    const struct pb_profiling_options options = {.sampler = r->options.sampler,
                                                 .cancelled = r->options.cancelled,
                                                 .memory_max = r->options.memory_max};

    int result = pb_profiling_new(&options, &r->profiling, err);
    if (result == 0)
        result = pb_profiling_join_all(r->profiling, r->ask, r->options.targets, err);
    return result < 0 ? result : open_tables(r, err);
}

int pb_profile_recorder_open(const struct pb_ask *ask, const struct pb_profile_recorder_options *options,
                             struct pb_profile_recorder **ret, struct pb_err *err)
{
    struct pb_profile_recorder *r = calloc(1, sizeof(*r));

    if (!r)
        return pb_fail(err, -ENOMEM, "out of memory");
    r->options = *options;
    r->ask = ask;
    r->watchdog.limit_ns = options->watchdog_ns;
    if (!r->options.memory_max)
        r->options.memory_max = MEMORY_MAX;
    if (options->follow_rate)
        r->set_rate = pb_profiling_set_rate(options->targets->at[0].pid);
    int result = open_parts(r, err);
    if (result < 0) {
        pb_profile_recorder_free(r);
        return result;
    }
    *ret = r;
    return 0;
}

void pb_profile_recorder_free(struct pb_profile_recorder *r)
{
    if (!r)
        return;
    close_parts(r);
    pb_watchdog_done(&r->watchdog);
    free(r);
}

/* Writes the samples so far. When names have become many, those no longer in use are dropped. */
static int write_samples(struct pb_profile_recorder *r)
{
    struct pb_profile *p = pb_profiling_profile(r->profiling);

    int result = pb_store_flush(r->store, p);
    if (result == 0 && pb_profile_filled(p) > FULL && pb_profiling_begin_epoch(r->profiling) == 0)
        pb_store_begin_epoch(r->store);
    return result;
}

static int finish_recording(struct pb_profile_recorder *r)
{
    pb_profiling_sum_up(r->profiling);
    return pb_store_flush(r->store, pb_profiling_profile(r->profiling));
}

/* Continues at the rate that is set now. A recording has one rate, by which its samples count: a new rate
 * starts a new recording. */
static int follow_rate(struct pb_profile_recorder *r, struct pb_err *err)
{
    double rate = r->options.follow_rate ? pb_profiling_set_rate(r->options.targets->at[0].pid) : r->set_rate;

    if (rate == r->set_rate)
        return 0;
    r->set_rate = rate;
    int result = finish_recording(r);
    if (result < 0)
        return pb_fail(err, result, "the recording cannot be written: %s", strerror(-result));
    close_parts(r);
    r->options.sampler.rate = rate;
    return open_parts(r, err);
}

/* Time until the end; 0: it is over. */
static uint64_t time_left(const struct pb_profile_recorder *r)
{
    uint64_t gone = pb_now_ns() - r->start;

    if (!r->options.duration_ns)
        return FLUSH_NS;
    uint64_t left = r->options.duration_ns > gone ? r->options.duration_ns - gone : 0;
    return left < FLUSH_NS ? left : FLUSH_NS;
}

int pb_profile_recorder_run(struct pb_profile_recorder *r, struct pb_err *err)
{
    enum pb_profiling_state state = PB_PROFILING_GOES_ON;
    int result = 0;

    r->start = pb_now_ns();
    for (uint64_t left; result == 0 && state == PB_PROFILING_GOES_ON && (left = time_left(r)) > 0;) {
        state = pb_profiling_run(r->profiling, left);
        if (state != PB_PROFILING_GOES_ON)
            break;
        result = write_samples(r);
        pb_watchdog_check(&r->watchdog, pb_profiling_sampler(r->profiling), r->store);
        if (result == 0 && (result = follow_rate(r, err)) < 0)
            return result;
    }
    int finished = finish_recording(r);
    result = result < 0 ? result : finished;
    return result < 0 ? pb_fail(err, result, "the recording cannot be written: %s", strerror(-result)) : 0;
}

const char *pb_profile_recorder_path(const struct pb_profile_recorder *r)
{
    return pb_store_path(r->store);
}

const struct pb_profile *pb_profile_recorder_profile(const struct pb_profile_recorder *r)
{
    return pb_profiling_profile(r->profiling);
}

const struct pb_sampler *pb_profile_recorder_sampler(const struct pb_profile_recorder *r)
{
    return pb_profiling_sampler(r->profiling);
}

unsigned pb_profile_recorder_hangs(const struct pb_profile_recorder *r)
{
    return r->watchdog.hangs;
}
