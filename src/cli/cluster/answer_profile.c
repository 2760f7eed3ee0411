/* answer_profile: samples the ranks of a node for a while; see answer.h. */
#include "ask/profiles.h"
#include "ask/settings.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cluster/answer.h"
#include "profile/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DURATION_MAX_MS = 3600000 };
#define SEND_EVERY_NS (PB_NS_PER_S / 2)
#define FULL_RATE     1000 /* Hz; probing.sample_rate is a share of it */

static void profiling_cleanup(struct pb_profiling **p)
{
    pb_profiling_free(*p);
}

/* "profile" MS RATE|- FLAGS.. */
static int read_request(const struct pb_answering *a, const struct pb_targets *targets,
                        struct pb_profiling_options *ret, struct pb_err *err)
{
    const struct pb_node_question *q = a->question;
    unsigned long ms = q->nwords > 2 ? strtoul(q->words[1], NULL, 10) : 0;
    struct pb_sampler_options *s = &ret->sampler;
    const struct {
        const char *name;
        bool *to;
    } flags[] = {{"cpu", &s->cpu},         {"gil", &s->gil},     {"native", &s->native},
                 {"no-stop", &s->no_stop}, {"force", &s->force}, {"subprocesses", &s->subprocesses}};

    *ret = (struct pb_profiling_options){.duration_ns = ms * PB_NS_PER_MS};
    s->with_gil = true;
    if (ms < 1 || ms > DURATION_MAX_MS)
        return pb_fail(err, -EINVAL, "a profile takes 1 ms to an hour");
    if (strcmp(q->words[2], "-") == 0) {
        struct pb_settings settings;
        pb_settings_for(&a->ask, targets->n ? &targets->at[0] : NULL, &settings);
        s->rate = settings.at[PB_SET_SAMPLE_RATE].number * FULL_RATE;
    } else {
        s->rate = strtod(q->words[2], NULL);
    }
    if (!(s->rate >= 0.01 && s->rate <= 1e6))
        return pb_fail(err, -EINVAL, "'%.40s' is no rate", q->words[2]);
    for (size_t i = 3; i < q->nwords; i++)
        for (size_t k = 0; k < sizeof(flags) / sizeof(flags[0]); k++)
            if (strcmp(q->words[i], flags[k].name) == 0)
                *flags[k].to = true;
    return 0;
}

/* Drops a frame that is too long and continues with the next. */
static void send_samples(const struct pb_answering *a, struct pb_profiling *p, struct pb_stream_writer *w)
{
    const void *frame;

    int n = pb_stream_frame(w, pb_profiling_profile(p), &frame);
    if (n > 0)
        pb_answer_bytes(a->out, false, frame, (size_t)n);
    pb_answer_flush(a->out);
}

static int sample(const struct pb_answering *a, const struct pb_targets *targets, struct pb_err *err)
{
    _cleanup_(profiling_cleanup) struct pb_profiling *p = NULL;
    struct pb_profiling_options options;
    struct pb_stream_writer writer;
    enum pb_profiling_state state = PB_PROFILING_GOES_ON;

    pb_stream_writer_init(&writer);
    struct pb_sink sink = pb_stream_sink(&writer);
    int r = read_request(a, targets, &options, err);
    options.sink = &sink;
    if (r == 0)
        r = pb_profiling_new(&options, &p, err);
    if (r == 0)
        r = pb_profiling_join_all(p, &a->ask, targets, err);
    if (r == 0)
        pb_sampler_hurry(&options.sampler);
    /* An asking end that has left is noticed by the next write. */
    while (r == 0 && state == PB_PROFILING_GOES_ON && !a->out->failed) {
        state = pb_profiling_run(p, SEND_EVERY_NS);
        pb_profiling_sum_up(p);
        if (state != PB_PROFILING_GOES_ON)
            pb_stream_end(&writer, state);
        send_samples(a, p, &writer);
    }
    pb_stream_writer_done(&writer);
    return r;
}

int pb_answer_profile(const struct pb_answering *a, struct pb_err *err)
{
    size_t n = a->members->n;
    _cleanup_free_ struct pb_target *targets = calloc(n + 1, sizeof(*targets));

    if (!targets)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        targets[i] = (struct pb_target){.pid = a->members->at[i].pid};
        pb_target_set_rank(&targets[i], a->members->at[i].rank);
    }
    pb_answer_ranks(a);
    return n ? sample(a, &(struct pb_targets){.at = targets, .n = n}, err) : 0;
}
