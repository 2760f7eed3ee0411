/* ranks_debug: breakpoints, log points, watches and hooks in the ranks of a cluster; see rank_outputs.h.
 *
 * They are set in all ranks of the selection, or taken away again. Before a rank can be held, the timeouts of
 * the process groups of ALL ranks are raised, since those that are not held wait for it. torch copies a
 * group's timeout into each operation as it is issued: operations that were under way keep the old one. So
 * nothing is held until every rank has issued what any rank had issued by then, after which those operations
 * end without the ranks that are held. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/time.h"
#include "base/vector.h"
#include "cli/ranks/rank_outputs.h"
#include "cli/values.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DURATION_MS = 3600000, HOLD_MS = 600000, AGAIN_MS = 100, CELLS = 9 };

/* --- the process groups of the ranks --- */

struct group {
    uint64_t key; /* of its name and ranks */
    int32_t rank;
    int64_t issued;                  /* -1: not counted */
    double timeout, before;          /* s; before: -1 where it is not raised */
    const char *name, *kind, *ranks; /* in the text of the answer */
};

struct groups {
    struct pb_rank_outputs outputs;
    struct group *at;
    size_t n;
};

static void groups_done(struct groups *g)
{
    free(g->at);
    pb_rank_outputs_done(&g->outputs);
    *g = (struct groups){0};
}

static uint64_t hash_text(uint64_t h, const char *text)
{
    return pb_hash_bytes(pb_hash_text(h, text), "\t", 1);
}

/* Splits a line of tab-separated cells in place. False: it has another number of cells. */
static bool read_group(char *line, int32_t rank, struct group *ret)
{
    char *cells[CELLS], *at = line;
    size_t n = 0;

    while (at && n < CELLS)
        cells[n++] = strsep(&at, "\t");
    if (n != CELLS || !cells[1][0] || strcmp(cells[1], "name") == 0)
        return false;
    *ret = (struct group){.key = hash_text(hash_text(PB_HASH_START, cells[1]), cells[4]),
                          .rank = rank,
                          .issued = cells[8][0] ? strtoll(cells[8], NULL, 10) : -1,
                          .timeout = cells[6][0] ? strtod(cells[6], NULL) : -1,
                          .before = cells[7][0] ? strtod(cells[7], NULL) : -1,
                          .name = cells[1],
                          .kind = cells[3],
                          .ranks = cells[4]};
    return true;
}

static int by_key(const void *a, const void *b)
{
    const struct group *x = a, *y = b;

    return x->key != y->key ? (x->key < y->key ? -1 : 1) : (x->rank > y->rank) - (x->rank < y->rank);
}

static int read_groups(struct groups *g)
{
    size_t cap = 0;

    for (size_t i = 0; i < g->outputs.n; i++) {
        char *save = NULL, *text = g->outputs.at[i].status == 0 ? g->outputs.at[i].output : NULL;
        for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line;
             line = strtok_r(NULL, "\n", &save)) {
            if (pb_grow((void **)&g->at, &cap, g->n, sizeof(*g->at), NULL) < 0)
                return -ENOMEM;
            g->n += read_group(line, g->outputs.at[i].rank.rank, &g->at[g->n]);
        }
    }
    if (g->n)
        qsort(g->at, g->n, sizeof(*g->at), by_key);
    return 0;
}

static int ask_groups(const struct pb_cluster *c, const struct pb_selection *all, const char *option,
                      unsigned limit_ms, struct groups *ret, struct pb_err *err)
{
    const char *words[] = {"groups", "--format=tsv", option};

    int r = pb_rank_outputs_ask(c, all, words, option ? 3 : 2, limit_ms, &ret->outputs, err);
    if (r == 0 && read_groups(ret) < 0)
        r = pb_fail(err, -ENOMEM, "out of memory");
    return r;
}

/* The largest count of each group in `before`, against the least in `now`. Returns a group that is behind. */
static const struct group *find_behind(const struct groups *before, const struct groups *now)
{
    for (size_t i = 0, k = 0; i < before->n;) {
        const struct group *first = &before->at[i];
        int64_t most = -1;
        for (; i < before->n && before->at[i].key == first->key; i++)
            most = before->at[i].issued > most ? before->at[i].issued : most;
        while (k < now->n && now->at[k].key < first->key)
            k++;
        for (; k < now->n && now->at[k].key == first->key; k++)
            if (now->at[k].issued >= 0 && now->at[k].issued < most)
                return first;
    }
    return NULL;
}

/* Operations that were issued with the old timeout have ended, or will without a rank that is held now. */
static void wait_for_old_operations(const struct pb_cluster *c, const struct pb_selection *all,
                                    const struct groups *before, unsigned limit_ms)
{
    uint64_t end = pb_now_ns() + limit_ms * PB_NS_PER_MS;

    for (;;) {
        _cleanup_(groups_done) struct groups now = {0};
        struct pb_err unused = {0};
        const struct group *behind = before->n ? before->at : NULL;
        if (ask_groups(c, all, NULL, limit_ms, &now, &unused) == 0)
            behind = find_behind(before, &now);
        if (!behind)
            return;
        if (pb_now_ns() >= end) {
            fprintf(stderr,
                    "note: operations of group %s (%s, ranks %s) from before are still under way: where a "
                    "held rank is missing there, they fail %g s after they began\n",
                    behind->name, behind->kind, behind->ranks,
                    behind->before >= 0 ? behind->before : behind->timeout);
            return;
        }
        usleep(AGAIN_MS * 1000);
    }
}

/* --- notes --- */

static void tell_timeouts(const struct groups *g)
{
    double least = -1, most = -1;

    for (size_t i = 0; i < g->n; i++) {
        const struct group *k = &g->at[i];
        if (k->before >= 0) {
            least = least < 0 || k->before < least ? k->before : least;
            most = k->timeout > most ? k->timeout : most;
        } else if (i == 0 || g->at[i - 1].key != k->key) {
            fprintf(stderr, "note: the timeout of group %s (%s, ranks %s) cannot be raised", k->name, k->kind,
                    k->ranks);
            if (k->timeout >= 0)
                fprintf(stderr, ": an operation that waits for a held rank fails after %g s", k->timeout);
            putc('\n', stderr);
        }
    }
    if (least >= 0)
        fprintf(stderr,
                "note: operations wait for up to %g s instead of %g s until `break --stop`, so that no rank "
                "fails while another is held\n",
                most, least);
}

static void tell_others(const struct pb_cluster *c, const struct pb_rank_outputs *set)
{
    size_t most = c->nranks ? (size_t)c->ranks[c->nranks - 1].rank + 1 : 0, n = 0;
    _cleanup_free_ bool *in = calloc(most + 1, sizeof(*in));

    for (size_t i = 0; in && i < c->nranks; i++) {
        in[c->ranks[i].rank] = true;
        n++;
    }
    for (size_t i = 0; in && i < set->n; i++)
        if ((size_t)set->at[i].rank.rank < most && in[set->at[i].rank.rank]) {
            in[set->at[i].rank.rank] = false;
            n--;
        }
    if (!in || !n)
        return;
    fputs("note: ", stderr);
    pb_ranks_put_with_roles(stderr, c, in, most, true);
    fputs(n == 1 ? " has no breakpoint, and runs on until it waits for a held rank\n"
                 : " have no breakpoint, and run on until they wait for a held rank\n",
          stderr);
}

/* --- all or none --- */

struct setting {
    const struct pb_call *call;
    const struct pb_cluster *c;
    const struct pb_selection *s;
    struct pb_selection all;
    bool holds;            /* a thread may be held */
    unsigned longer_ms;    /* for which the timeouts are raised */
    char name[40], as[48]; /* of the breakpoint, for --stop */
};

static void restore_timeouts(const struct setting *set)
{
    _cleanup_(groups_done) struct groups g = {0};
    struct pb_err unused = {0};

    ask_groups(set->c, &set->all, "--restore", pb_ranks_limit(set->call), &g, &unused);
}

/* Removes what was set in all ranks, including ranks whose answer was lost: it may be set there. */
static void undo(const struct setting *set)
{
    _cleanup_(pb_rank_outputs_done) struct pb_rank_outputs a = {0};
    const char *words[PB_WIRE_WORDS] = {set->call->command->name, "--stop", "--"};
    struct pb_err unused = {0};
    size_t n = 3;

    if (set->name[0])
        words[n++] = set->name;
    for (int i = 0; !set->name[0] && i < set->call->nargs && n < PB_WIRE_WORDS; i++)
        words[n++] = set->call->args[i];
    pb_rank_outputs_ask(set->c, set->s, words, n, pb_ranks_limit(set->call), &a, &unused);
    if (set->holds)
        restore_timeouts(set);
}

static bool all_did(const struct pb_rank_outputs *a)
{
    bool all = pb_rank_outputs_report(a);

    for (size_t i = 0; i < a->n; i++)
        all = all && a->at[i].status == 0;
    return all;
}

static int raise_timeouts(const struct setting *set, struct groups *ret, struct pb_err *err)
{
    char option[32];

    snprintf(option, sizeof(option), "--raise=%ums", set->longer_ms);
    int r = ask_groups(set->c, &set->all, option, pb_ranks_limit(set->call), ret, err);
    if (r < 0)
        return r;
    if (!all_did(&ret->outputs)) {
        for (size_t i = 0; i < ret->outputs.n; i++)
            ret->outputs.at[i].noutput = 0; /* cut apart, and not wanted */
        pb_rank_outputs_put(&ret->outputs, true);
        restore_timeouts(set);
        return pb_fail(err, -EIO,
                       "nothing is set: the timeouts of not all ranks can be raised, and the others would "
                       "fail while a rank is held");
    }
    wait_for_old_operations(set->c, &set->all, ret, pb_ranks_limit(set->call));
    return 0;
}

static int set_in_all(struct setting *set, struct pb_err *err)
{
    _cleanup_(groups_done) struct groups groups = {0};
    _cleanup_(pb_rank_outputs_done) struct pb_rank_outputs a = {0};
    _cleanup_(pb_command_line_done) struct pb_command_line w = {0};
    char duration[32];
    const char *first[4] = {NULL};
    size_t n = 0;

    if (set->name[0])
        first[n++] = set->as;
    if (set->holds)
        first[n++] = "--no-listen";
    snprintf(duration, sizeof(duration), "--duration=%ums", (unsigned)DURATION_MS);
    if (set->holds && !pb_call_option(set->call, "duration"))
        first[n++] = duration;
    int r = pb_command_line_make(set->call, first, pb_ranks_limit(set->call), &w, err);
    if (r == 0 && set->holds)
        r = raise_timeouts(set, &groups, err);
    if (r == 0)
        r = pb_rank_outputs_ask(set->c, set->s, w.at, w.n, pb_ranks_limit(set->call), &a, err);
    if (r < 0)
        return r;
    if (all_did(&a)) {
        pb_rank_outputs_put(&a, true);
        if (set->holds) {
            tell_others(set->c, &a);
            tell_timeouts(&groups);
        }
        return 0;
    }
    for (size_t i = 0; i < a.n; i++)
        if (a.at[i].status == 0)
            a.at[i].shown = true;
    pb_rank_outputs_put(&a, true);
    undo(set);
    return pb_fail(err, -EIO, "nothing is set: not all ranks could");
}

static int read_time(const struct pb_call *call, const char *option, unsigned usual, unsigned *ret,
                     struct pb_err *err)
{
    *ret = pb_call_ms(call, option) ? pb_call_ms(call, option) : usual;
    return *ret <= 7 * 86400000u ? 0 : pb_fail(err, PB_USAGE, "over a cluster --%s is 168h at most", option);
}

/* --stop: what holds lets go first, then the timeouts are put back. A rank that has nothing set is no
 * failure. */
static int stop(struct setting *set, struct pb_err *err)
{
    _cleanup_(pb_rank_outputs_done) struct pb_rank_outputs a = {0};
    _cleanup_(pb_command_line_done) struct pb_command_line w = {0};
    size_t stopped = 0;

    int r = pb_command_line_make(set->call, NULL, pb_ranks_limit(set->call), &w, err);
    if (r == 0)
        r = pb_rank_outputs_ask(set->c, set->s, w.at, w.n, pb_ranks_limit(set->call), &a, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < a.n; i++)
        stopped += a.at[i].status == 0;
    for (size_t i = 0; stopped && i < a.n; i++)
        if (a.at[i].status == PB_EXIT_NOTHING) {
            a.at[i].shown = true;
            a.at[i].status = 0;
        }
    pb_rank_outputs_put(&a, true);
    if (!all_did(&a))
        return PB_PARTIAL;
    if (set->holds && !set->call->nargs && !set->call->ranks && !set->call->nodes)
        restore_timeouts(set);
    return stopped ? 0 : PB_FAILED;
}

/* Whether the call sets or takes away something in the ranks' programs. */
static bool is_change(const struct pb_call *call)
{
    return call->format == PB_FORMAT_TABLE &&
           (call->nargs || pb_call_option(call, "on-change") || pb_call_option(call, "stop"));
}

int pb_cluster_debug(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                     struct pb_err *err)
{
    struct setting set = {.call = call, .c = c, .s = s};
    bool breaks = strcmp(call->command->name, "break") == 0;
    unsigned duration, limit;

    if (!is_change(call))
        return pb_cluster_each(call, c, s, 0, breaks, err);
    if (breaks && (pb_call_option(call, "listen") || pb_call_option(call, "token")))
        return pb_fail(err, PB_USAGE, "over a cluster there is no address for clients (show, continue)");
    int r = read_time(call, "duration", DURATION_MS, &duration, err);
    if (r == 0)
        r = read_time(call, "limit", HOLD_MS, &limit, err);
    if (r == 0)
        r = pb_select(c, NULL, NULL, &set.all, err);
    if (r < 0)
        return r;
    set.holds = breaks && !pb_call_option(call, "log");
    set.longer_ms = duration + limit; /* a thread may be held at the very end of a breakpoint */
    if (breaks && !pb_call_option(call, "stop") && !pb_call_option(call, "as")) {
        snprintf(set.name, sizeof(set.name), "cluster-%x-%" PRIx64, (unsigned)getpid(), pb_now_ns());
        snprintf(set.as, sizeof(set.as), "--as=%s", set.name);
    } else if (breaks && pb_call_option(call, "as")) {
        snprintf(set.name, sizeof(set.name), "%s", pb_call_option(call, "as"));
    }
    r = pb_call_option(call, "stop") ? stop(&set, err) : set_in_all(&set, err);
    pb_selection_done(&set.all);
    return r;
}
