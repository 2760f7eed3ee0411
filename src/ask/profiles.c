/* profiles: see profiles.h. */
#include "ask/profiles.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ask/ask.h"
#include "ask/process_settings.h"
#include "base/err.h"
#include "base/text.h"
#include "base/time.h"
#include "profile/store.h"
#include "profile/write.h"

#define FULL_RATE 1000 /* Hz; probing.sample_rate is a share of it */
#define FULL      0.5  /* share of the memory in use beyond which a new epoch begins */

struct pb_profiling {
    struct pb_profiling_options options;
    struct pb_profile *profile;
    struct pb_sampler *sampler;
    uint64_t start; /* time of the first tick; 0: none yet */
};

int pb_profiling_new(const struct pb_profiling_options *options, struct pb_profiling **ret,
                     struct pb_err *err)
{
    struct pb_profiling *p = calloc(1, sizeof(*p));

    if (!p)
        return pb_fail(err, -ENOMEM, "out of memory");
    p->options = *options;
    int r = pb_profile_new(options->memory_max, &p->profile);
    if (r == 0)
        r = pb_sampler_new(&options->sampler, p->profile, options->sink, &p->sampler);
    if (r < 0) {
        pb_profiling_free(p);
        return pb_fail(err, r, "cannot start a profile: %s", strerror(-r));
    }
    pb_sampler_cancel_by(p->sampler, options->cancelled);
    *ret = p;
    return 0;
}

void pb_profiling_free(struct pb_profiling *p)
{
    if (!p)
        return;
    pb_sampler_free(p->sampler);
    pb_profile_free(p->profile);
    free(p);
}

/* The command line; the program without its folder. */
static void read_title(pid_t pid, char *ret, size_t size)
{
    char text[1024];

    pb_redact_cmdline(pid, text, sizeof(text));
    const char *program = memrchr(text, '/', strcspn(text, " "));
    pb_text_clean(text);
    if (!text[0])
        snprintf(ret, size, "process %d", (int)pid);
    else
        snprintf(ret, size, "%.255s", program ? program + 1 : text);
}

int pb_profiling_join(struct pb_profiling *p, const struct pb_target *target, struct pb_err *err)
{
    struct pb_profile_facts *facts = pb_profile_facts(p->profile);

    int r = pb_sampler_attach(p->sampler, target->pid, target->label, pb_target_rank(target), err);
    if (r == 0 && !facts->title[0])
        read_title(target->pid, facts->title, sizeof(facts->title));
    return r;
}

int pb_profiling_join_all(struct pb_profiling *p, const struct pb_ask *ask, const struct pb_targets *targets,
                          struct pb_err *err)
{
    size_t joined = 0;
    int r = pb_fail(err, -ESRCH, "no process to sample");

    for (size_t i = 0; i < targets->n; i++) {
        const struct pb_target *t = &targets->at[i];
        struct pb_err one = {0};
        int failed = pb_profiling_join(p, t, &one);
        joined += failed == 0;
        if (failed == 0)
            continue;
        if (targets->n > 1)
            pb_ask_note(ask, "%s: %s", t->label, pb_err_text(&one, failed));
        r = targets->n > 1 ? pb_fail(err, failed, "none of the %zu processes can be sampled", targets->n)
                           : pb_fail(err, failed, "%s", pb_err_text(&one, failed));
    }
    return joined ? 0 : r;
}

static bool is_cancelled(const struct pb_profiling *p)
{
    return p->options.cancelled && atomic_load(p->options.cancelled);
}

enum pb_profiling_state pb_profiling_run(struct pb_profiling *p, uint64_t for_ns)
{
    uint64_t began = pb_now_ns();

    if (!p->start)
        p->start = began;
    for (;;) {
        if (is_cancelled(p) || pb_sampler_wait(p->sampler) == -EINTR)
            return PB_PROFILING_CANCELLED;
        if (pb_sampler_tick(p->sampler) == 0)
            return PB_PROFILING_ENDED;
        if (p->options.sink && pb_profile_filled(p->profile) > FULL)
            (void)pb_sampler_begin_epoch(p->sampler); /* out of memory: stacks are cut, and counted */
        uint64_t now = pb_now_ns();
        if (p->options.duration_ns && now - p->start >= p->options.duration_ns)
            return PB_PROFILING_DONE;
        if (now - began >= for_ns)
            return PB_PROFILING_GOES_ON;
    }
}

void pb_profiling_sum_up(struct pb_profiling *p)
{
    pb_sampler_sum_up(p->sampler);
}

int pb_profiling_begin_epoch(struct pb_profiling *p)
{
    return pb_sampler_begin_epoch(p->sampler);
}

struct pb_profile *pb_profiling_profile(struct pb_profiling *p)
{
    return p->profile;
}

struct pb_sampler *pb_profiling_sampler(struct pb_profiling *p)
{
    return p->sampler;
}

static bool ends_with(const char *text, const char *ending)
{
    size_t len = strlen(text), n = strlen(ending);
    return len > n && strcmp(text + len - n, ending) == 0;
}

static int read_folded(const char *path, struct pb_profile *p, struct pb_err *err)
{
    FILE *in = fopen(path, "re");

    if (!in)
        return pb_fail(err, -errno, "%s: %s", path, strerror(errno));
    snprintf(pb_profile_facts(p)->title, sizeof(pb_profile_facts(p)->title), "%s", path);
    struct pb_err one = {0};
    int r = pb_read_folded(in, p, &one);
    fclose(in);
    return r < 0 ? pb_fail(err, r, "%s: %s", path, pb_err_text(&one, r)) : 0;
}

int pb_profile_read(const char *name, int64_t since, int64_t until, struct pb_profile *p, struct pb_err *err)
{
    return ends_with(name, ".folded") || ends_with(name, ".txt") ? read_folded(name, p, err)
                                                                 : pb_store_read(name, since, until, p, err);
}

double pb_profiling_set_rate(pid_t pid)
{
    struct pb_settings settings;

    pb_settings_saved(pid, &settings);
    return settings.at[PB_SET_SAMPLE_RATE].number * FULL_RATE;
}
