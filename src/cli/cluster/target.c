/* target: a command for the ranks of a cluster; see job.h.
 *
 * Stacks are merged (stacks.c). Any other command runs on the nodes, for each rank by itself, and ranks that
 * say the same are shown once: what differs stands out. */
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/cluster/job.h"
#include "cli/print/rows.h"
#include "cli/query/query_run.h"
#include "print/records.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool pb_cluster_is_target(const char *target, const char **ret_name)
{
    static const char word[] = "cluster";
    size_t n = strlen(word);

    if (strncmp(target, word, n) != 0 || (target[n] && target[n] != ':'))
        return false;
    if (ret_name)
        *ret_name = target[n] ? target + n + 1 : NULL;
    return true;
}

/* --- the words for the nodes --- */

enum { WORDS = PB_WIRE_WORDS, TEXT = PB_WIRE_QUESTION_MAX };

struct words {
    const char *at[WORDS];
    size_t n;
    char *texts[PB_OPTS_MAX + 2];
    size_t ntexts;
    bool full;
};

static void words_done(struct words *w)
{
    for (size_t i = 0; i < w->ntexts; i++)
        free(w->texts[i]);
}

static void add(struct words *w, const char *word)
{
    w->full = w->full || w->n == WORDS || !word;
    if (!w->full)
        w->at[w->n++] = word;
}

static void add_option(struct words *w, const char *name, const char *value)
{
    char *text = NULL;

    if (asprintf(&text, *value ? "--%s=%s" : "--%s", name, value) < 0)
        text = NULL;
    if (text)
        w->texts[w->ntexts++] = text;
    add(w, text);
}

/* From what was parsed, not from what was typed: the options that are for this end are not among them. */
static void make_words(const struct pb_call *call, unsigned limit_ms, struct words *w)
{
    static const char *const formats[] = {"table", "json", "csv", "tsv"};
    char timeout[32];

    add(w, "command");
    add(w, call->command->name);
    for (size_t i = 0; call->command->options && call->command->options[i].name; i++)
        if (call->values[i])
            add_option(w, call->command->options[i].name, call->values[i]);
    if (call->command->flags & PB_CMD_ROWS && call->format != PB_FORMAT_TABLE)
        add_option(w, "format", formats[call->format]);
    if (call->command->flags & PB_CMD_TIMEOUT) {
        snprintf(timeout, sizeof(timeout), "%ums", limit_ms);
        add_option(w, "timeout", timeout);
    }
    add(w, "--");
    for (int i = 0; i < call->nargs; i++)
        add(w, call->args[i]);
}

/* --- the answers --- */

struct said {
    struct pb_cluster_rank rank;
    int status;
    char *output, *errors;
    size_t noutput, nerrors;
    bool shown;
};

struct answers {
    const struct pb_cluster *c;
    struct said *at;
    size_t n, cap;
};

static void answers_done(struct answers *a)
{
    for (size_t i = 0; i < a->n; i++) {
        free(a->at[i].output);
        free(a->at[i].errors);
    }
    free(a->at);
}

static int take_answer(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err)
{
    struct answers *a = arg;

    for (size_t i = 0; i < answer->nranks; i++)
        for (size_t k = 0; k < a->n; k++)
            if (a->at[k].rank.rank == answer->ranks[i].rank.rank)
                return pb_fail(err, -EEXIST, "it answers for rank %d, for which %s has answered",
                               a->at[k].rank.rank, a->c->nodes[a->at[k].rank.node].name);
    for (size_t i = 0; i < answer->nranks; i++) {
        struct pb_answer_part *p = &answer->ranks[i];
        if (a->n == a->cap) {
            size_t cap = a->cap ? 2 * a->cap : 64;
            void *more = realloc(a->at, cap * sizeof(*a->at));
            if (!more)
                return pb_fail(err, -ENOMEM, "out of memory");
            a->at = more;
            a->cap = cap;
        }
        struct said *s = &a->at[a->n++];
        *s = (struct said){.rank = p->rank, .status = p->ended ? p->status : 1};
        s->rank.node = (uint32_t)node;
        s->output = pb_take_ptr(p->output.at);
        s->errors = pb_take_ptr(p->errors.at);
        s->noutput = p->output.n;
        s->nerrors = p->errors.n;
    }
    return 0;
}

static int by_rank(const void *a, const void *b)
{
    const struct said *x = a, *y = b;
    return x->rank.rank < y->rank.rank ? -1 : x->rank.rank > y->rank.rank;
}

static bool same(const struct said *a, const struct said *b)
{
    return a->status == b->status && a->noutput == b->noutput && a->nerrors == b->nerrors &&
           (!a->noutput || memcmp(a->output, b->output, a->noutput) == 0) &&
           (!a->nerrors || memcmp(a->errors, b->errors, a->nerrors) == 0);
}

/* Each line with the ranks that said it in front. */
static void put_lines(FILE *out, const char *label, const char *text, size_t n)
{
    while (n) {
        size_t line = strcspn(text, "\n");
        _cleanup_free_ char *copy = strndup(text, line);
        fputs(label, out);
        if (copy)
            pb_put_plain(out, copy);
        putc('\n', out);
        line += text[line] == '\n';
        line = line ? line : 1; /* a NUL of the program's */
        text += line < n ? line : n;
        n -= line < n ? line : n;
    }
}

static void put_group(struct answers *a, size_t first)
{
    size_t most = (size_t)a->at[a->n - 1].rank.rank + 1, length, members = 0;
    _cleanup_free_ bool *in = calloc(most, sizeof(*in));
    _cleanup_free_ char *label = NULL;
    FILE *out = in ? open_memstream(&label, &length) : NULL;
    struct said *s = &a->at[first];

    if (!out)
        return;
    for (size_t i = first; i < a->n; i++)
        if (!a->at[i].shown && same(s, &a->at[i])) {
            a->at[i].shown = true;
            in[a->at[i].rank.rank] = true;
            members++;
        }
    fputs(members == 1 ? "[rank " : "[ranks ", out);
    pb_cluster_put_ranks(out, in, most);
    fputs("] ", out);
    if (fclose(out) != 0 || !label)
        return;
    put_lines(stdout, label, s->output, s->noutput);
    fflush(stdout);
    put_lines(stderr, label, s->errors, s->nerrors);
    if (s->status && !s->nerrors)
        fprintf(stderr, "%sexit status %d\n", label, s->status);
}

static void put_groups(struct answers *a)
{
    for (size_t i = 0; i < a->n; i++)
        if (!a->at[i].shown)
            put_group(a, i);
}

/* An object a rank; where the command prints JSON that is the output, else text. */
static void put_json(const struct answers *a, bool rows)
{
    putchar('[');
    for (size_t i = 0; i < a->n; i++) {
        const struct said *s = &a->at[i];
        size_t n = s->noutput;
        const char *node = a->c->nodes[s->rank.node].name;
        while (n && (s->output[n - 1] == '\n' || s->output[n - 1] == ' '))
            n--;
        printf("%s{\"rank\": %d, \"node\": ", i ? ",\n " : "", s->rank.rank);
        pb_put_json(stdout, node, strlen(node));
        printf(", \"pid\": %d, \"status\": %d, \"output\": ", (int)s->rank.pid, s->status);
        if (rows && n && s->status == 0)
            fwrite(s->output, 1, n, stdout);
        else
            pb_put_json(stdout, n ? s->output : "", n);
        fputs(", \"errors\": ", stdout);
        pb_put_json(stdout, s->errors ? s->errors : "", s->nerrors);
        putchar('}');
    }
    puts("]");
}

/* Ranks that were asked for and that no node has any more. */
static void tell_missing(const struct pb_cluster *c, const struct pb_selection *s,
                         const struct pb_cluster_result *r, const struct answers *a, bool *ret_missing)
{
    size_t most = c->nranks ? (size_t)c->ranks[c->nranks - 1].rank + 1 : 0, n = 0;
    _cleanup_free_ bool *gone = calloc(most + 1, sizeof(*gone));

    for (size_t i = 0; gone && i < c->nranks; i++) {
        const struct pb_cluster_rank *k = &c->ranks[i];
        bool wanted = s->node[k->node] && (!s->wanted || pb_ranges_have(s->wanted, (uint32_t)k->rank));
        if (!wanted || r->nodes[k->node].state != PB_NODE_ANSWERED)
            continue;
        const struct said key = {.rank = *k};
        if (!a->n || !bsearch(&key, a->at, a->n, sizeof(*a->at), by_rank)) {
            gone[k->rank] = true;
            n++;
        }
    }
    *ret_missing = n;
    if (gone)
        pb_cluster_tell_gone(gone, most, n);
}

static int run_command(const struct pb_call *call, const struct pb_cluster *c, const struct pb_selection *s,
                       struct pb_err *err)
{
    _cleanup_(words_done) struct words w = {0};
    _cleanup_(answers_done) struct answers a = {.c = c};
    _cleanup_(pb_cluster_result_done) struct pb_cluster_result result = {0};
    enum { MARGIN_MS = 500 };
    unsigned limit = pb_call_limit(call) < 3600000 ? pb_call_limit(call) : 3600000;
    struct pb_cluster_question q = {
        .selection = s, .words = w.at, .deadline_ms = limit + MARGIN_MS, .answer = take_answer, .arg = &a};
    bool missing = false, failed = false;

    if (call->format == PB_FORMAT_CSV || call->format == PB_FORMAT_TSV)
        return pb_fail(err, PB_USAGE, "over a cluster it prints text or JSON");
    make_words(call, limit, &w);
    q.nwords = w.n;
    if (w.full)
        return pb_fail(err, -E2BIG, "the command line is too long");
    int r = pb_cluster_ask(c, &q, &result, err);
    if (r < 0)
        return r;
    if (a.n)
        qsort(a.at, a.n, sizeof(*a.at), by_rank);
    if (call->format == PB_FORMAT_JSON)
        put_json(&a, call->command->flags & PB_CMD_ROWS);
    else
        put_groups(&a);
    for (size_t i = 0; i < a.n; i++)
        failed = failed || a.at[i].status != 0;
    tell_missing(c, s, &result, &a, &missing);
    bool all = pb_cluster_tell(c, &result);
    return !all || missing ? PB_PARTIAL : failed ? PB_FAILED : 0;
}

int pb_cluster_run(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(pb_cluster_done) struct pb_cluster c = {0};
    _cleanup_(pb_selection_done) struct pb_selection s = {0};
    const char *name = NULL;

    pb_cluster_is_target(call->target, &name);
    if (!(call->command->flags & PB_CMD_CLUSTER))
        return pb_fail(err, PB_USAGE, "it does not work on a cluster (probing -t cluster backtrace does)");
    if (call->all)
        return pb_fail(err, PB_USAGE, "a cluster is all of its ranks: leave --all out");
    int r = pb_cluster_load(name, &c, err);
    if (r == 0)
        r = pb_select(&c, call->ranks, call->nodes, &s, err);
    if (r < 0)
        return r;
    if (strcmp(call->command->name, "backtrace") == 0)
        return pb_cluster_backtrace(call, &c, &s, err);
    if (strcmp(call->command->name, "query") == 0)
        return pb_query_over_cluster(call, &c, &s, err);
    return run_command(call, &c, &s, err);
}
