/* ranks_profile: flamegraph and top over the ranks of a cluster; see ranks.h. */
#include "cli/values.h"
#include "cluster/questions/cluster_profile.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/print/rows.h"
#include "cli/profile/profile_run.h"
#include "cli/profile/profile_screen.h"
#include "cli/ranks/ranks.h"
#include "cluster/questions/cluster_clock.h"
#include "profile/write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_MS = 5000, LONG_MS = 15000, FLAGS = 6 };

static void profile_cleanup(struct pb_profile **p)
{
    pb_profile_free(*p);
}

static void links_cleanup(struct pb_links **l)
{
    pb_links_free(*l);
}

/* The options that nodes have to know. */
static int read_request(const struct pb_call *call, const struct pb_selection *s, const char *flags[FLAGS],
                        struct pb_cluster_profile_request *ret, struct pb_err *err)
{
    static const char *const names[FLAGS] = {"cpu", "gil", "native", "no-stop", "force", "subprocesses"};
    struct pb_profile_plan plan;
    size_t n = 0;

    int r = pb_profile_plan(call, &plan, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < FLAGS; i++)
        if (pb_call_option(call, names[i]))
            flags[n++] = names[i];
    *ret = (struct pb_cluster_profile_request){.selection = s,
                                               .patience_ms = PATIENCE_MS,
                                               .rate = pb_call_option(call, "rate"),
                                               .flags = flags,
                                               .nflags = n};
    return 0;
}

/* --- flamegraph --- */

/* Prints the largest error between the clocks of two nodes. */
static void tell_clocks(int64_t error_ns)
{
    if (error_ns < 0)
        fputs("note: the clock of a node is not known: its rows may be shifted (probing cluster refresh)\n",
              stderr);
    else
        fprintf(stderr, "note: times of all nodes are by the clock here, to %.0f us\n",
                (double)error_ns / 1e3);
}

static int write_profile(const struct pb_call *call, struct pb_cluster_profile *p, struct pb_err *err)
{
    _cleanup_(profile_cleanup) struct pb_profile *sum = NULL;
    _cleanup_free_ struct pb_profile **all = calloc(p->nnodes + 1, sizeof(struct pb_profile *));
    const char *output = pb_call_option(call, "output");
    enum pb_write_format format = PB_WRITE_SVG;
    int64_t error_ns;
    size_t n = 0;

    if (!all)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = pb_cluster_profile_merge(p, &sum);
    if (r < 0)
        return pb_fail(err, r, "the profiles of all nodes cannot be merged: %s", strerror(-r));
    pb_cluster_profile_shift(p, &error_ns);
    for (size_t i = 0; i < p->nnodes; i++)
        if (p->nodes[i].p)
            all[n++] = p->nodes[i].p;
    r = pb_flamegraph_write(call, sum, all, n, err);
    if (r == 0 && output && pb_write_format_of(output, &format, NULL) == 0 &&
        (format == PB_WRITE_PERFETTO || format == PB_WRITE_SPEEDSCOPE) && n > 1)
        tell_clocks(error_ns);
    return r;
}

int pb_cluster_flamegraph(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                          struct pb_err *err)
{
    _cleanup_(pb_cluster_profile_done) struct pb_cluster_profile p = {0};
    struct pb_cluster_profile_request request;
    const char *output = pb_call_option(call, "output");
    const char *flags[FLAGS];
    enum pb_write_format format;
    struct pb_err ignored = {0};

    if (call->nargs || pb_call_option(call, "diff") || pb_call_option(call, "from"))
        return pb_fail(err, PB_USAGE, "--diff and --from are for files: leave -t cluster out");
    if (output && pb_write_format_of(output, &format, err) < 0)
        return PB_USAGE;
    int r = read_request(call, s, flags, &request, err);
    if (r < 0)
        return r;
    request.duration_ms = pb_call_ms(call, "duration");
    if (!request.duration_ms)
        return pb_fail(err, PB_USAGE,
                       "over a cluster --duration 0 is not possible: give a time such as 10 or 2m");
    pid_t clocks = request.duration_ms > LONG_MS ? pb_clocks_follow(c) : 0;
    r = pb_cluster_profile(c, &request, &p, err);
    pb_clocks_end(clocks);
    if (r < 0)
        return r;
    bool all = pb_cluster_tell(c, &p.result);
    if (!p.result.answered)
        return pb_fail(err, -EHOSTUNREACH, "no node answered");
    /* What is shifted is shifted by clocks of just now. */
    pb_cluster_renew_clocks(c, NULL, &ignored);
    r = write_profile(call, &p, err);
    return r < 0 ? r : all ? 0 : PB_PARTIAL;
}

/* --- top --- */

struct rank_load {
    int32_t rank;
    uint32_t node;
    uint64_t running, waiting, gil, ticks;
    char function[300];
};

struct loads {
    struct rank_load *at;
    size_t n;
};

/* The rank of each thread of a profile; -1: none. On the heap. */
static int32_t *read_thread_ranks(const struct pb_profile *p)
{
    size_t n = pb_profile_nthreads(p);
    int32_t *ranks = calloc(n + 1, sizeof(*ranks));

    for (size_t i = 0; ranks && i < n; i++)
        ranks[i] = pb_profile_thread_at(p, (uint32_t)i).rank;
    return ranks;
}

/* The function in which the rank runs most; where none runs, in which it waits most. */
static void find_hottest(const struct pb_profile *p, const int32_t *ranks, struct rank_load *l,
                         uint64_t *samples)
{
    uint32_t best = PB_PROFILE_NONE;
    bool running = l->running;

    memset(samples, 0, pb_profile_nfunctions(p) * sizeof(*samples));
    for (size_t i = 0; i < pb_profile_ncounts(p); i++) {
        struct pb_count c = pb_profile_count_at(p, i);
        uint32_t frames[2];
        size_t n = ranks[c.thread] == l->rank && running == !(c.flags & PB_SAMPLE_WAITING)
                       ? pb_profile_stack(p, c.node, frames, 2)
                       : 0;
        if (!n)
            continue;
        uint32_t function = pb_profile_frame_at(p, frames[0]).function;
        /* What a thread waits for stands above the function that waits. */
        if (n > 1 && pb_profile_function_at(p, function).kind == PB_FRAME_WAIT)
            function = pb_profile_frame_at(p, frames[1]).function;
        samples[function] += c.samples;
        if (best == PB_PROFILE_NONE || samples[function] > samples[best])
            best = function;
    }
    if (best != PB_PROFILE_NONE)
        pb_profile_label(p, best, l->function, sizeof(l->function));
}

static int add_node(const struct pb_profile *p, uint32_t node, struct loads *to)
{
    _cleanup_free_ int32_t *ranks = read_thread_ranks(p);
    _cleanup_free_ uint64_t *samples = calloc(pb_profile_nfunctions(p) + 1, sizeof(*samples));
    size_t first = to->n;

    if (!ranks || !samples)
        return -ENOMEM;
    for (size_t i = 0; i < pb_profile_ncounts(p); i++) {
        struct pb_count c = pb_profile_count_at(p, i);
        size_t k = first;
        while (k < to->n && to->at[k].rank != ranks[c.thread])
            k++;
        if (ranks[c.thread] < 0)
            continue;
        if (k == to->n) {
            struct rank_load *more = realloc(to->at, (to->n + 1) * sizeof(*more));
            if (!more)
                return -ENOMEM;
            to->at = more;
            to->at[to->n++] = (struct rank_load){
                .rank = ranks[c.thread], .node = node, .ticks = pb_profile_facts_of(p)->ticks};
        }
        *(c.flags & PB_SAMPLE_WAITING ? &to->at[k].waiting : &to->at[k].running) += c.samples;
        to->at[k].gil += c.flags & PB_SAMPLE_GIL ? c.samples : 0;
    }
    for (size_t k = first; k < to->n; k++)
        find_hottest(p, ranks, &to->at[k], samples);
    return 0;
}

static int by_rank(const void *a, const void *b)
{
    const struct rank_load *x = a, *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

static void put_loads(FILE *out, const struct pb_cluster_profile *p, const struct loads *l)
{
    time_t now = time(NULL);
    char when[32];
    struct tm tm;

    strftime(when, sizeof(when), "%H:%M:%S", gmtime_r(&now, &tm));
    fprintf(out, "cluster %s: %zu rank%s, %zu of %zu nodes; %s UTC\n", p->c->name, l->n, l->n == 1 ? "" : "s",
            p->result.answered, p->result.asked, when);
    fprintf(out, "  RANK   RUN%%  WAIT%%   GIL%%  %-16s FUNCTION\n", "NODE");
    for (size_t i = 0; i < l->n; i++) {
        const struct rank_load *r = &l->at[i];
        double ticks = r->ticks ? (double)r->ticks : 1;
        fprintf(out, "%6d %6.1f %6.1f %6.1f  %-16s %s\n", r->rank, 100 * (double)r->running / ticks,
                100 * (double)r->waiting / ticks, 100 * (double)r->gil / ticks, p->c->nodes[r->node].name,
                r->function);
    }
}

/* One refresh. */
static int show_loads(struct pb_cluster_profile *p, bool screen, struct pb_err *err)
{
    struct loads l = {0};
    _cleanup_free_ char *text = NULL;
    size_t size;
    int r = 0;

    for (size_t i = 0; r == 0 && i < p->nnodes; i++)
        if (p->nodes[i].p) {
            pb_profile_fold_interpreter(p->nodes[i].p, true);
            r = add_node(p->nodes[i].p, (uint32_t)i, &l);
        }
    if (l.n)
        qsort(l.at, l.n, sizeof(*l.at), by_rank);
    FILE *out = r == 0 ? open_memstream(&text, &size) : NULL;
    if (out)
        put_loads(out, p, &l);
    free(l.at);
    if (!out || fclose(out) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (screen)
        pb_screen_show(text);
    else
        fputs(text, stdout);
    fflush(stdout);
    return 0;
}

int pb_cluster_top(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                   struct pb_err *err)
{
    _cleanup_(links_cleanup) struct pb_links *links = NULL;
    struct pb_cluster_profile_request request;
    const char *flags[FLAGS];
    uint64_t count = (uint64_t)pb_call_number(call, "count");
    bool screen = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO), all = true;

    if (!count && !screen)
        count = 1;
    int r = read_request(call, s, flags, &request, err);
    /* Each look is a question over the links of the one before. */
    if (r == 0 && pb_links_new(c, &links) < 0)
        r = pb_fail(err, -ENOMEM, "out of memory");
    if (r < 0)
        return r;
    request.duration_ms = pb_call_ms(call, "interval");
    /* A launcher of all nodes forwards a question only after every node has connected: start a new one. */
    request.links = c->way == PB_WAY_SLURM ? NULL : links;
    pb_profile_catch_signals();
    screen = screen && pb_screen_open() == 0;
    for (uint64_t i = 0; r == 0 && (!count || i < count) && !pb_profile_signal(); i++) {
        _cleanup_(pb_cluster_profile_done) struct pb_cluster_profile p = {0};
        r = pb_cluster_profile(c, &request, &p, err);
        int key = screen ? pb_screen_key() : 0;
        if (r < 0 || key == 'q' || key == 'Q' || pb_profile_signal())
            break;
        if (i && !screen)
            putchar('\n');
        r = show_loads(&p, screen, err);
        all = screen || pb_cluster_tell(c, &p.result);
    }
    pb_screen_close();
    return r < 0 ? r : all ? 0 : PB_PARTIAL;
}
