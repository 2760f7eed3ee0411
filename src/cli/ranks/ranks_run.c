/* ranks_run: a command for the ranks of a cluster; see ranks.h.
 *
 * The table of commands says which of them run over a cluster in a way of their own. Any other runs on the
 * nodes, for each rank by itself, and ranks that say the same are shown once: what differs stands out. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_write.h"
#include "cli/print/rows.h"
#include "cli/ranks/rank_outputs.h"
#include "cli/ranks/ranks.h"
#include "cli/values.h"
#include "cluster/questions/cluster_clock.h"

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

void pb_command_line_done(struct pb_command_line *w)
{
    for (size_t i = 0; i < w->ntexts; i++)
        free(w->texts[i]);
}

static void add(struct pb_command_line *w, const char *word)
{
    w->full = w->full || w->n == PB_WIRE_WORDS || !word;
    if (!w->full)
        w->at[w->n++] = word;
}

static void add_option(struct pb_command_line *w, const char *name, const char *value)
{
    char *text = NULL;

    if (asprintf(&text, *value ? "--%s=%s" : "--%s", name, value) < 0)
        text = NULL;
    if (text)
        w->texts[w->ntexts++] = text;
    add(w, text);
}

/* From what was parsed, not from what was typed: the options that are for this end are not among them. */
int pb_command_line_make(const struct pb_call *call, const char *const *first, unsigned limit_ms,
                         struct pb_command_line *ret, struct pb_err *err)
{
    static const char *const formats[] = {"table", "json", "csv", "tsv"};
    char timeout[32];

    add(ret, call->command->name);
    for (; first && *first; first++)
        add(ret, *first);
    for (size_t i = 0; call->command->options && call->command->options[i].name; i++)
        if (call->values[i])
            add_option(ret, call->command->options[i].name, call->values[i]);
    if (call->command->flags & PB_CMD_ROWS && call->format != PB_FORMAT_TABLE)
        add_option(ret, "format", formats[call->format]);
    if (call->command->flags & PB_CMD_TIMEOUT) {
        snprintf(timeout, sizeof(timeout), "%ums", limit_ms);
        add_option(ret, "timeout", timeout);
    }
    add(ret, "--");
    for (int i = 0; i < call->nargs; i++)
        add(ret, call->args[i]);
    return ret->full ? pb_fail(err, -E2BIG, "the command line is too long") : 0;
}

/* --- the answers --- */

static bool same(const struct pb_rank_output *a, const struct pb_rank_output *b)
{
    return a->status == b->status && a->noutput == b->noutput && a->nerrors == b->nerrors &&
           (!a->noutput || memcmp(a->output, b->output, a->noutput) == 0) &&
           (!a->nerrors || memcmp(a->errors, b->errors, a->nerrors) == 0);
}

/* Prints each line behind the ranks that printed it. */
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

void pb_ranks_put_with_roles(FILE *out, const struct pb_cluster *c, const bool *in, size_t n, bool roles)
{
    size_t members = 0;
    char role[256] = "";

    for (size_t i = 0; i < n; i++)
        members += in[i];
    if (roles)
        pb_cluster_common_role(c, in, n, role, sizeof(role));
    fputs(members == 1 ? "rank " : "ranks ", out);
    pb_cluster_put_ranks(out, in, n);
    if (role[0])
        fprintf(out, " (%s)", role);
}

static void put_group(struct pb_rank_outputs *a, size_t first, bool roles)
{
    size_t most = (size_t)a->at[a->n - 1].rank.rank + 1, length;
    _cleanup_free_ bool *in = calloc(most, sizeof(*in));
    _cleanup_free_ char *label = NULL;
    FILE *out = in ? open_memstream(&label, &length) : NULL;
    struct pb_rank_output *s = &a->at[first];

    if (!out)
        return;
    for (size_t i = first; i < a->n; i++)
        if (!a->at[i].shown && same(s, &a->at[i])) {
            a->at[i].shown = true;
            in[a->at[i].rank.rank] = true;
        }
    putc('[', out);
    pb_ranks_put_with_roles(out, a->c, in, most, roles);
    fputs("] ", out);
    if (fclose(out) != 0 || !label)
        return;
    put_lines(stdout, label, s->output, s->noutput);
    fflush(stdout);
    put_lines(stderr, label, s->errors, s->nerrors);
    if (s->status && !s->nerrors)
        fprintf(stderr, "%sexit status %d\n", label, s->status);
}

void pb_rank_outputs_put(struct pb_rank_outputs *a, bool roles)
{
    for (size_t i = 0; i < a->n; i++)
        if (!a->at[i].shown)
            put_group(a, i, roles);
}

/* An object a rank; where the command prints JSON that is the output, else text. */
static void put_json(const struct pb_rank_outputs *a, bool rows)
{
    struct pb_json_writer w = {.out = stdout};

    pb_json_open(&w, NULL, '[');
    for (size_t i = 0; i < a->n; i++) {
        const struct pb_rank_output *s = &a->at[i];
        size_t n = s->noutput;
        while (n && (s->output[n - 1] == '\n' || s->output[n - 1] == ' '))
            n--;
        if (i)
            pb_json_line(&w, 1);
        pb_json_open(&w, NULL, '{');
        pb_json_put_number(&w, "rank", "%d", s->rank.rank);
        pb_json_put_text(&w, "node", a->c->nodes[s->rank.node].name);
        pb_json_put_number(&w, "pid", "%d", (int)s->rank.pid);
        pb_json_put_number(&w, "status", "%d", s->status);
        pb_json_key(&w, "output");
        if (rows && n && s->status == 0)
            pb_json_put_made(&w, NULL, s->output, n);
        else
            pb_json_put_bytes(&w, NULL, n ? s->output : "", n);
        pb_json_put_bytes(&w, "errors", s->errors ? s->errors : "", s->nerrors);
        pb_json_close(&w);
    }
    pb_json_close(&w);
    putchar('\n');
}

static bool has_answered(const void *arg, int32_t rank)
{
    return pb_rank_outputs_find(arg, rank);
}

bool pb_rank_outputs_report(const struct pb_rank_outputs *a)
{
    bool missing = pb_cluster_tell_missing(a->c, a->s, &a->result, has_answered, a);

    return pb_cluster_tell(a->c, &a->result) && !missing;
}

unsigned pb_ranks_limit(const struct pb_call *call)
{
    return pb_call_limit(call) < 3600000 ? pb_call_limit(call) : 3600000;
}

int pb_cluster_check_background(const struct pb_cluster *c, const char *instead, struct pb_err *err)
{
    if (c->way != PB_WAY_SLURM)
        return 0;
    return pb_fail(err, PB_USAGE,
                   "srun kills background processes of its step: use %s, or attach the nodes with --hosts",
                   instead);
}

int pb_cluster_each(const struct pb_call *call, const struct pb_cluster *c, const struct pb_selection *s,
                    unsigned more_ms, bool roles, struct pb_err *err)
{
    _cleanup_(pb_command_line_done) struct pb_command_line w = {0};
    _cleanup_(pb_rank_outputs_done) struct pb_rank_outputs a = {0};
    enum { LONG_MS = 15000 };
    unsigned limit = pb_ranks_limit(call), deadline = limit + more_ms;
    bool failed = false;

    if (call->format == PB_FORMAT_CSV || call->format == PB_FORMAT_TSV)
        return pb_fail(err, PB_USAGE, "over a cluster it prints text or JSON");
    if (pb_call_option(call, "watch"))
        return pb_fail(err, PB_USAGE, "over a cluster it does not take --watch (top and backtrace do)");
    int r = pb_command_line_make(call, NULL, limit, &w, err);
    if (r < 0)
        return r;
    pid_t clocks = deadline > LONG_MS ? pb_clocks_follow(c) : 0;
    r = pb_rank_outputs_ask(c, s, w.at, w.n, deadline, &a, err);
    pb_clocks_end(clocks);
    if (r < 0)
        return r;
    if (call->format == PB_FORMAT_JSON)
        put_json(&a, call->command->flags & PB_CMD_ROWS);
    else
        pb_rank_outputs_put(&a, roles);
    for (size_t i = 0; i < a.n; i++)
        failed = failed || a.at[i].status != 0;
    return !pb_rank_outputs_report(&a) ? PB_PARTIAL : failed ? PB_FAILED : 0;
}

int pb_cluster_run(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(pb_cluster_done) struct pb_cluster c = {0};
    _cleanup_(pb_selection_done) struct pb_selection s = {0};
    const char *name = NULL;

    pb_cluster_is_target(call->target, &name);
    if (!(call->command->flags & PB_CMD_CLUSTER))
        return pb_fail(err, PB_USAGE,
                       "this command does not support -t cluster (it is of one process: -t HOST:PORT/PID)");
    if (call->all)
        return pb_fail(err, PB_USAGE, "a cluster is all of its ranks: leave --all out");
    int r = pb_cluster_load(name, &c, err);
    if (r == 0)
        r = pb_select(&c, call->ranks, call->nodes, &s, err);
    if (r < 0)
        return r;
    return call->command->run_over ? call->command->run_over(call, &c, &s, err)
                                   : pb_cluster_each(call, &c, &s, 0, false, err);
}
