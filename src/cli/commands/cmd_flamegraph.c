/* flamegraph: where the time goes, sampled from outside, as a picture or in formats of other tools. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ask/stacks.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/bundle/bundle.h"
#include "cli/cli.h"
#include "cli/profile/profile_from.h"
#include "cli/profile/profile_run.h"
#include "cli/profile/recordings.h"
#include "cli/ranks/ranks.h"
#include "cli/values.h"
#include "print/outlet.h"
#include "profile/write.h"

#define BAR_WIDTH 30
#define BAR_EVERY (100 * PB_NS_PER_MS)

enum { FIRST_TRIES = 30, FIRST_AGAIN_MS = 100, SOURCES_MAX = 16 };

static const struct pb_option options[] = {
    {'o', "output", PB_TEXT("FILE"),
     ".svg .html .lines.html (source lines) .folded .json (speedscope) .gecko.json (Firefox) .pb.gz (pprof) "
     ".perfetto"},
    {'d', "duration", PB_TIME(.usual = 10000),
     "how long (default 10s; 0: until Ctrl-C); Ctrl-C ends it early and writes the file"},
    PB_PROFILE_OPTIONS,
    {0, "interpreter", NULL, "with --native: also the interpreter's own frames (_PyEval_*, ..)"},
    {0, "threads", NULL, "a level for each thread"},
    {0, "lines", NULL, "a frame for each line of a function"},
    {0, "merge", NULL, "several processes or ranks: one graph, without a level for each"},
    {0, "diff", NULL, "compare two: FILE.folded or recordings, before and after"},
    {0, "sampled", NULL, "the samples of `pprof`; without any, or with -d, sample now"},
    {0, "from", PB_TEXT("RUN"), "from a recording (probing record): its folder, or the pid of its process"},
    {0, "since", PB_TEXT("TIME"), "with --from: samples from then on: 5m ago, or 14:30:00"},
    {0, "until", PB_TEXT("TIME"), "with --from: samples up to then"},
    {0},
};

static void profile_cleanup(struct pb_profile **p)
{
    pb_profile_free(*p);
}

static void profiling_cleanup(struct pb_profiling **p)
{
    pb_profiling_free(*p);
}

static void show_progress(struct pb_profiling *p, uint64_t done_ns, uint64_t of_ns)
{
    const struct pb_profile_facts *f = pb_profile_facts_of(pb_profiling_profile(p));
    uint64_t samples = f->asleep + f->interrupted + f->pinned + f->stopped;

    if (of_ns) {
        int filled = (int)(done_ns >= of_ns ? BAR_WIDTH : done_ns * BAR_WIDTH / of_ns);
        fprintf(stderr, "%s[G[%.*s%*s] %5.1f / %.1f s", pb_escape(), filled, "##############################",
                BAR_WIDTH - filled, "", (double)done_ns / 1e9, (double)of_ns / 1e9);
    } else {
        fprintf(stderr, "%s[G%7.1f s (Ctrl-C ends)", pb_escape(), (double)done_ns / 1e9);
    }
    fprintf(stderr, "  %llu samples, %u threads %s[K", (unsigned long long)samples,
            pb_sampler_threads(pb_profiling_sampler(p)), pb_escape());
}

static void sample_until_end(struct pb_profiling *p, uint64_t duration_ns)
{
    uint64_t start = pb_now_ns();
    bool bar = isatty(STDERR_FILENO);

    while (pb_profiling_run(p, BAR_EVERY) == PB_PROFILING_GOES_ON)
        if (bar)
            show_progress(p, pb_now_ns() - start, duration_ns);
    pb_profiling_sum_up(p);
    if (bar)
        fprintf(stderr, "%s[G%s[K", pb_escape(), pb_escape());
}

void pb_flamegraph_name(const char *of, char *ret, size_t size)
{
    time_t now = time(NULL);
    struct tm tm;
    char when[32];

    strftime(when, sizeof(when), "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
    snprintf(ret, size, "flame-%s%s.svg", of, when);
}

static void name_output(const struct pb_call *call, char *ret, size_t size)
{
    char of[24] = "";

    if (call->targets.n)
        snprintf(of, sizeof(of), "%d-", (int)call->targets.at[0].pid);
    pb_flamegraph_name(of, ret, size);
}

/* s: the sampler; NULL: the profile is of a recording. */
static void print_summary(const struct pb_profile *p, const struct pb_sampler *s, const char *output,
                          size_t hidden, bool folded)
{
    const struct pb_profile_facts *f = pb_profile_facts_of(p);
    char text[512];
    size_t threads = 0;

    for (uint32_t i = 0; i < pb_profile_nthreads(p); i++)
        threads += !pb_profile_thread_at(p, i).hidden;
    printf("%s: %llu samples of %zu thread%s in %.1f s at %g Hz, %s time\n", output,
           (unsigned long long)pb_profile_samples(p), threads, threads == 1 ? "" : "s",
           (double)f->duration_ns / 1e9, f->rate, f->clock);
    printf("  stacks read %s\n", pb_profile_methods(p, text, sizeof(text)));
    if (s)
        pb_profile_say_notes(s, stdout);
    if (*pb_profile_hottest(p, 3, text, sizeof(text)))
        pb_put_between(stdout, "  hottest: ", text, "\n");
    if (hidden)
        printf("  %zu thread%s that never ran %s left out (--idle shows them)\n", hidden,
               hidden == 1 ? "" : "s", hidden == 1 ? "is" : "are");
    if (folded)
        printf("  the interpreter's own frames are folded (--interpreter shows them)\n");
    if (f->outside)
        printf("  %llu samples of other states left out\n", (unsigned long long)f->outside);
    if (pb_profile_timeline_cut(p))
        printf("  the time line is cut: there was no memory for more\n");
}

/* The source files of the targets, for a heat map of lines: found through folders that are opened before the
 * sampling, so that a process may end meanwhile. */
struct source_set {
    struct pb_sources *of[SOURCES_MAX];
    size_t n;
};

static void open_sources(const struct pb_call *call, struct source_set *ret)
{
    const char *output = pb_call_option(call, "output");
    enum pb_write_format format;

    if (!output || pb_write_format_of(output, &format, NULL) < 0 || format != PB_WRITE_LINES)
        return;
    for (size_t i = 0; i < call->targets.n && i < SOURCES_MAX; i++)
        ret->of[ret->n++] = pb_sources_of(call->targets.at[i].pid);
}

static void close_sources(struct source_set *s)
{
    for (size_t i = 0; i < s->n; i++)
        pb_sources_free(s->of[i]);
}

/* pb_line_texts.line */
static const char *find_line(void *of, const char *file, int line, int *ret_length)
{
    const struct source_set *s = of;
    const char *text = NULL;

    for (size_t i = 0; !text && i < s->n; i++)
        text = pb_sources_whole_line(s->of[i], file, line, ret_length);
    return text;
}

/* s: the sampler; NULL: the profile is of a recording or of another machine. */
static int write_graph(const struct pb_call *call, struct pb_profile *p, struct pb_profile *const *all,
                       size_t n, const struct pb_sampler *s, struct source_set *sources, struct pb_err *err)
{
    const struct pb_line_texts texts = {find_line, sources};
    const char *output = pb_call_option(call, "output");
    struct pb_flame_options flame = {.lines = pb_call_option(call, "lines"),
                                     .threads = pb_call_option(call, "threads"),
                                     .processes = pb_profile_facts_of(p)->processes > 1 &&
                                                  !pb_call_option(call, "merge"),
                                     .texts = sources ? &texts : NULL};
    bool whole = pb_call_option(call, "interpreter"), idle = pb_call_option(call, "idle");
    char named[64];

    bool folded = pb_profile_fold_interpreter(p, !whole) && !whole;
    size_t hidden = idle ? 0 : pb_profile_hide_idle(p);
    for (size_t i = 0; i < n; i++) {
        pb_profile_fold_interpreter(all[i], !whole);
        if (!idle)
            pb_profile_hide_idle(all[i]);
    }
    if (pb_profile_samples(p) == 0) {
        if (s)
            pb_profile_say_notes(s, stderr);
        return pb_fail(err, -ENODATA, "no samples were recorded%s",
                       pb_profile_facts_of(p)->refused ? ": all were refused" : "");
    }
    if (!output) {
        name_output(call, named, sizeof(named));
        output = named;
    }
    int r = n ? pb_write_files(output, p, (const struct pb_profile *const *)all, n, &flame, err)
              : pb_write_file(output, p, &flame, err);
    if (r == 0)
        print_summary(p, s, output, hidden, folded);
    return r;
}

int pb_flamegraph_write(const struct pb_call *call, struct pb_profile *p, struct pb_profile *const *all,
                        size_t n, struct pb_err *err)
{
    return write_graph(call, p, all, n, NULL, NULL, err);
}

static int run_live(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(profiling_cleanup) struct pb_profiling *p = NULL;
    _cleanup_(close_sources) struct source_set sources = {0};
    struct pb_profile_plan plan;
    unsigned duration_ms = pb_call_ms(call, "duration");

    int r = pb_profile_plan(call, &plan, err);
    if (r < 0)
        return r;
    const struct pb_profiling_options profiling = {.sampler = plan.sampler,
                                                   .duration_ns = duration_ms * PB_NS_PER_MS,
                                                   .cancelled = pb_profile_cancelled()};
    r = pb_profiling_new(&profiling, &p, err);
    if (r == 0)
        r = pb_profiling_join_all(p, &call->ask, &call->targets, err);
    if (r < 0)
        return r;
    open_sources(call, &sources);
    pb_sampler_hurry(&plan.sampler);
    pb_profile_catch_signals();
    sample_until_end(p, profiling.duration_ns);
    return write_graph(call, pb_profiling_profile(p), NULL, 0, pb_profiling_sampler(p), &sources, err);
}

static int run_from(const struct pb_call *call, const char *from, struct pb_err *err)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = NULL;
    struct pb_profile_range range;

    int r = pb_profile_range(call, &range, err);
    if (r == 0)
        r = pb_profile_new(0, &p);
    if (r == 0 && call->incident)
        r = pb_bundle_profile(from, p, err);
    else if (r == 0)
        r = pb_profile_read(from, range.since, range.until, p, err);
    return r < 0 ? r : pb_flamegraph_write(call, p, NULL, 0, err);
}

/* Whether `pprof` has samples of the process. A sampler that has just started writes its first samples after
 * a second: wait for them. */
static bool has_samples(const struct pb_call *call, char *ret, size_t size)
{
    static const char *const other[] = {"duration", "rate", "native", "cpu", "gil", "subprocesses"};
    bool goes_on;

    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
        if (pb_call_option(call, other[i]))
            return false;
    if (call->targets.n != 1 || pb_recordings_shown(call->targets.at[0].pid, ret, size, &goes_on) < 0)
        return false;
    for (int i = 0; i < FIRST_TRIES; i++) {
        _cleanup_(profile_cleanup) struct pb_profile *p = NULL;
        if (pb_profile_new(0, &p) == 0 && pb_profile_read(ret, 0, INT64_MAX, p, NULL) == 0 &&
            pb_profile_samples(p))
            return true;
        if (!goes_on)
            return false;
        pb_sleep_ns(FIRST_AGAIN_MS * PB_NS_PER_MS);
    }
    return false;
}

static int run_diff(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(profile_cleanup) struct pb_profile *before = NULL;
    _cleanup_(profile_cleanup) struct pb_profile *after = NULL;
    const char *output = pb_call_option(call, "output");
    struct pb_flame_options flame = {.lines = pb_call_option(call, "lines")};
    struct pb_profile_range range;
    char named[64];

    int r = pb_profile_range(call, &range, err);
    if (r == 0)
        r = pb_profile_new(0, &before);
    if (r == 0)
        r = pb_profile_new(0, &after);
    if (r == 0)
        r = pb_profile_read(call->args[0], range.since, range.until, before, err);
    if (r == 0)
        r = pb_profile_read(call->args[1], range.since, range.until, after, err);
    if (r < 0)
        return r;
    pb_profile_fold_interpreter(before, !pb_call_option(call, "interpreter"));
    pb_profile_fold_interpreter(after, !pb_call_option(call, "interpreter"));
    if (!output) {
        name_output(call, named, sizeof(named));
        output = named;
    }
    r = pb_write_diff_file(output, before, after, &flame, err);
    if (r == 0)
        pb_profile_say_diff(output, before, after);
    return r;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    enum pb_write_format format;
    const char *output = pb_call_option(call, "output");
    const char *from = call->incident ? call->incident : pb_call_option(call, "from");
    bool diff = pb_call_option(call, "diff");
    char sampled[1024];

    /* The name is checked before the sampling, not after it. */
    if (output && pb_write_format_of(output, &format, err) < 0)
        return PB_USAGE;
    if (call->incident && pb_call_option(call, "duration"))
        return pb_fail(err, PB_USAGE,
                       "--duration needs a process that runs: the samples of a file are taken");
    if (diff && (from || call->target || call->nargs != 2))
        return pb_fail(err, PB_USAGE,
                       "--diff takes two files. Usage: probing flamegraph --diff BEFORE AFTER");
    if (!diff && call->nargs)
        return pb_fail(err, PB_USAGE, "'%s' is one word too many", call->args[0]);
    if (diff)
        return run_diff(call, err);
    if (from)
        return run_from(call, from, err);
    if (!call->targets.n)
        return pb_fail(err, PB_USAGE,
                       "which process? (-t PID, or probing PID flamegraph; probing list shows them)");
    if (pb_call_option(call, "sampled") && has_samples(call, sampled, sizeof(sampled)))
        return run_from(call, sampled, err);
    return run_live(call, err);
}

const struct pb_command pb_cmd_flamegraph = {
    .name = "flamegraph",
    .summary = "where the time goes: a flame graph of all threads, sampled from outside",
    .synopsis = "[-o FILE] [--duration TIME] [--diff BEFORE AFTER]",
    .text = "Samples the stacks of all threads a hundred times a second, from outside: nothing is "
            "loaded into the process. No sample is a mix of two moments. A thread is read while it "
            "sleeps, or in an interrupt of its CPU (root), or it alone is stopped for some ten "
            "microseconds. The summary says how many were read in which way, and how many were "
            "refused.\n\n"
            "Waiting threads count too, with what they wait for as the innermost frame; --cpu "
            "leaves them out. .svg and .html are one file that opens in a browser, with zoom "
            "(click) and search (/). .lines.html shows the source with the share of each line.",
    .example = "probing -t 4711 flamegraph -o train.svg\nprobing -t 4711 flamegraph --native --duration 30 "
               "-o train.html\n"
               "probing -t cluster flamegraph --duration 30 -o job.perfetto\n"
               "probing flamegraph --diff monday.folded tuesday.folded -o diff.svg",
    .options = options,
    .max_args = 2,
    .flags = PB_CMD_INCIDENT | PB_CMD_SERVED | PB_CMD_MAY_TARGET | PB_CMD_TOGETHER | PB_CMD_CLUSTER,
    .run = run,
    .run_over = pb_cluster_flamegraph,
};
