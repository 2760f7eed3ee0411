/* cluster_query: see cluster_query.h. */
#include "cluster/questions/cluster_query.h"

#include "ask/rank_rows.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cluster/questions/cluster_answer.h"
#include "cluster/questions/cluster_clock.h"
#include "cluster/questions/cluster_query_tables.h"
#include "engine/shared/sent.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the node --- */

/* Of the time that the asking side waits: for the way there and back. */
enum { NODE_MARGIN_MS = 200 };

static ssize_t pass_on(void *cookie, const char *bytes, size_t n)
{
    const struct pb_answering *a = cookie;

    pb_answer_bytes(a->out, false, bytes, n);
    return a->out->failed ? 0 : (ssize_t)n;
}

int pb_answer_rows(const struct pb_answering *a, struct pb_err *err)
{
    _cleanup_(pb_targets_done) struct pb_targets targets = {0};
    int r = pb_answer_targets(a, &targets);
    FILE *out = fopencookie((void *)(uintptr_t)a, "w", (cookie_io_functions_t){.write = pass_on});
    uint64_t now = pb_now_ns();

    if (r < 0 || !out) {
        if (out)
            fclose(out);
        return pb_fail(err, -ENOMEM, "out of memory");
    }
    pb_answer_ranks(a);
    struct pb_rows_request request = {.statements = a->question->words + 1, .n = a->question->nwords - 1};
    request.timeout_ms = a->deadline_ns > now + 2 * NODE_MARGIN_MS * PB_NS_PER_MS
                             ? (unsigned)((a->deadline_ns - now) / PB_NS_PER_MS) - NODE_MARGIN_MS
                             : NODE_MARGIN_MS;
    if (a->ask.archive_node)
        targets.n = 0; /* the runs of the archive, and no process */
    r = pb_rows_answer(&a->ask, &targets, &request, out, err);
    if (fclose(out) != 0 && r == 0)
        r = pb_fail(err, -EIO, "the answer could not be written");
    return r;
}

/* --- the asking end --- */

enum { MAX_TABLES = 64, MAX_NOTES = 64, DEADLINE_MS = 5000, OWN_TABLES = 3, OLD_CLOCK_S = 10 };
static const uint64_t CAP = 1000000;
/* Bytes of this machine's own ranks, or archives, which do not travel. */
static const size_t LOCAL_MOST = (size_t)1 << 30;

/* A table of the plan. */
struct planned {
    char *schema, *name, *sql, *fallback;
};

/* What a node sent. */
struct node_rows {
    char *data; /* NULL: nothing */
    size_t size;
    struct pb_sent_part *parts; /* one a table */
    struct pb_sql_rank *ranks;
    unsigned nranks;
};

struct pb_cluster_query {
    const struct pb_cluster *c;
    struct pb_cluster_query_request request;
    uint64_t now_us;
    bool whole;  /* nothing is split: a split one failed */
    bool clocks; /* the statement reads cluster.clocks */
    char *root;  /* the statement for here; NULL: as given */
    struct planned tables[MAX_TABLES];
    unsigned ntables;
    struct node_rows *nodes; /* one for each of the cluster */
    struct pb_cluster_result result;
    char *notes[MAX_NOTES];
    unsigned nnotes, given;
    struct pb_sql_sent *sent;
    struct pb_sql_table node_tables[MAX_TABLES], own[OWN_TABLES];
    struct pb_sql_node_rows node_rows;
    struct pb_sql *sql;
    bool has_output; /* its caller has seen rows or columns: it cannot be run again */
    struct pb_cluster_query_stats stats;
};

/* --- notes --- */

static void add_note(struct pb_cluster_query *q, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Equal notes of many nodes are printed once. */
static void add_note(struct pb_cluster_query *q, const char *format, ...)
{
    char text[768];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    for (unsigned i = 0; i < q->nnotes; i++)
        if (strcmp(q->notes[i], text) == 0)
            return;
    if (q->nnotes == MAX_NOTES || !(q->notes[q->nnotes] = strdup(text)))
        return;
    q->nnotes++;
}

/* --- the plan --- */

static char *copy_cell(const struct pb_sql_cell *cell)
{
    return strndup(cell->text, cell->length);
}

static int take_plan(struct pb_cluster_query *q, const struct pb_batch *batch, bool *first)
{
    struct pb_row_text row = {0};
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < batch->nrows; i++) {
        r = batch->ncolumns == 4 ? pb_row_text_take(&row, batch, i) : -EBADMSG;
        if (r < 0)
            break;
        if (*first) {
            q->clocks = row.cells[0].length > 0;
            q->root = row.cells[2].length ? copy_cell(&row.cells[2]) : NULL;
            *first = false;
            continue;
        }
        if (q->ntables == MAX_TABLES)
            r = -E2BIG;
        struct planned *t = &q->tables[q->ntables];
        if (r == 0)
            *t = (struct planned){copy_cell(&row.cells[0]), copy_cell(&row.cells[1]),
                                  copy_cell(&row.cells[2]), copy_cell(&row.cells[3])};
        if (r == 0 && (q->ntables++, !t->schema || !t->name || !t->sql || !t->fallback))
            r = -ENOMEM;
    }
    pb_row_text_done(&row);
    return r;
}

static int make_plan(struct pb_cluster_query *q, struct pb_err *err)
{
    const struct pb_sql_query plan = {.sql = q->request.sql,
                                      .length = q->request.length,
                                      .timeout_ms = q->request.timeout_ms,
                                      .cancel = q->request.cancel,
                                      .plan = true,
                                      .whole = q->whole,
                                      .cap = q->request.cap,
                                      .now_us = q->now_us};
    struct pb_sql_event event;
    bool first = true;
    struct pb_sql *s;

    int r = pb_sql_open(&plan, &s, err);
    if (r < 0)
        return r;
    while ((r = pb_sql_next(s, &event, err)) > 0)
        if (event.kind == PB_SQL_EVENT_BATCH && (r = take_plan(q, &event.batch, &first)) < 0) {
            pb_fail(err, r, "the statement cannot be planned: %s", strerror(-r));
            break;
        }
    pb_sql_close(s);
    q->stats.split = q->root;
    return r;
}

/* --- the nodes --- */

static void release_rows(struct node_rows *n)
{
    for (unsigned i = 0; i < n->nranks; i++)
        free((char *)n->ranks[i].role);
    free(n->ranks);
    free(n->parts);
    free(n->data);
    *n = (struct node_rows){0};
}

/* The ranks that the node listed; roles that it does not know come from the saved file. */
static int take_ranks(const struct pb_cluster *c, const struct pb_node_answer *answer, struct node_rows *n)
{
    n->ranks = calloc(answer->nranks + 1, sizeof(*n->ranks));
    if (!n->ranks)
        return -ENOMEM;
    for (size_t i = 0; i < answer->nranks; i++) {
        const struct pb_cluster_rank *answered = &answer->ranks[i].rank,
                                     *saved = pb_cluster_find_rank(c, answered->rank);
        char text[PB_ROLES_TEXT];
        pb_roles_format(answered->roles.n || !saved ? &answered->roles : &saved->roles, text);
        n->ranks[n->nranks] =
            (struct pb_sql_rank){.rank = answered->rank, .role = text[0] ? strdup(text) : NULL};
        n->nranks++;
    }
    return 0;
}

static int check_rows(struct pb_cluster_query *q, struct node_rows *n, struct pb_err *err)
{
    _cleanup_free_ int32_t *ranks = calloc(n->nranks + 1, sizeof(*ranks));
    struct pb_sent_check check = {.version = PROBING_VERSION,
                                  .nparts = q->ntables,
                                  .ranks = ranks,
                                  .nranks = n->nranks,
                                  .most = q->request.cap + 1};

    n->parts = calloc(q->ntables + 1, sizeof(*n->parts));
    if (!ranks || !n->parts)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (unsigned i = 0; i < n->nranks; i++)
        ranks[i] = n->ranks[i].rank;
    return pb_sent_read((const uint8_t *)n->data, n->size, &check, n->parts, err);
}

static int take_answer(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err)
{
    struct pb_cluster_query *q = arg;
    struct node_rows *n = &q->nodes[node];

    release_rows(n);
    if (answer->status != 0)
        return pb_fail(err, -EIO, "%s", answer->sentence[0] ? answer->sentence : "it could not answer");
    n->data = answer->output.at;
    n->size = answer->output.n;
    answer->output = (struct pb_bytes){0};
    int r = take_ranks(q->c, answer, n);
    r = r < 0 ? pb_fail(err, r, "out of memory") : check_rows(q, n, err);
    if (r < 0)
        release_rows(n);
    return r;
}

static int ask_nodes(struct pb_cluster_query *q, struct pb_err *err)
{
    const char *words[2 * MAX_TABLES + 1] = {"rows"};
    size_t n = 1;

    for (unsigned i = 0; i < q->ntables; i++) {
        words[n++] = q->tables[i].sql;
        words[n++] = q->tables[i].fallback[0] ? q->tables[i].fallback : "-";
    }
    const struct pb_cluster_question question = {.selection = q->request.selection,
                                                 .words = words,
                                                 .nwords = n,
                                                 .deadline_ms = q->request.deadline_ms,
                                                 .most = q->c->way == PB_WAY_LOCAL ? LOCAL_MOST : 0,
                                                 .answer = take_answer,
                                                 .arg = q};
    int r = pb_cluster_ask(q->c, &question, &q->result, err);
    q->stats.rounds++;
    q->stats.bytes += q->result.bytes;
    return r;
}

/* --- what came --- */

static void take_notes(struct pb_cluster_query *q, size_t node, const struct pb_sent_part *part)
{
    struct pb_sent_frame f;
    size_t at = 0;

    while (part->frames && pb_sent_next(part->frames, part->size, &at, &f) > 0) {
        struct pb_wire m = {.data = (uint8_t *)(uintptr_t)f.data, .size = f.size};
        uint32_t length;
        const char *text = f.type == PB_SQL_NOTE ? pb_wire_text(&m, &length) : NULL;
        if (text && pb_wire_u32(&m))
            add_note(q, "%s: %.*s", q->c->nodes[node].name, length > 400 ? 400 : (int)length, text);
        else if (text)
            add_note(q, "%.*s", length > 400 ? 400 : (int)length, text);
    }
}

static bool is_missing_table(const struct pb_sent_part *part)
{
    return part->error == ENOENT;
}

/* Sorts what the nodes sent. 1: a split question must be asked for rows instead. */
static int collect_rows(struct pb_cluster_query *q)
{
    q->sent = calloc(q->c->nnodes * q->ntables + 1, sizeof(*q->sent));
    if (!q->sent)
        return -ENOMEM;
    q->node_rows.nsent = 0;
    for (size_t i = 0; i < q->c->nnodes; i++) {
        const struct node_rows *n = &q->nodes[i];
        for (unsigned t = 0; n->data && t < q->ntables; t++) {
            const struct pb_sent_part *part = &n->parts[t];
            if (part->error && q->root)
                return 1;
            if (part->error && !is_missing_table(part))
                add_note(q, "rows of node %s are missing in %s: %s", q->c->nodes[i].name, q->tables[t].name,
                         part->text);
            if (part->error)
                continue;
            take_notes(q, i, part);
            q->stats.rows += part->rows;
            if (part->rows > q->request.cap)
                add_note(q,
                         "node %s has more than %" PRIu64 " rows of %s: the answer is of the first ones "
                         "(--max-rows)",
                         q->c->nodes[i].name, q->request.cap, q->tables[t].name);
            q->sent[q->node_rows.nsent++] = (struct pb_sql_sent){.table = t,
                                                                 .node = q->c->nodes[i].name,
                                                                 .ranks = n->ranks,
                                                                 .nranks = n->nranks,
                                                                 .frames = part->frames,
                                                                 .size = part->size};
        }
    }
    return 0;
}

static int make_own_tables(struct pb_cluster_query *q)
{
    static const char *const names[OWN_TABLES] = {"nodes", "ranks", "clocks"};
    char *selects[] = {pb_cluster_nodes_select(q->c, &q->result), pb_cluster_ranks_select(q->c),
                       pb_cluster_clocks_select(q->c)};
    int r = 0;

    for (unsigned i = 0; i < OWN_TABLES; i++) {
        q->own[i] = (struct pb_sql_table){"cluster", names[i], selects[i]};
        r = selects[i] ? r : -ENOMEM;
    }
    return r;
}

static int run_on_node_rows(struct pb_cluster_query *q, struct pb_err *err)
{
    const char *sql = q->root ? q->root : q->request.sql;

    for (unsigned i = 0; i < q->ntables; i++)
        q->node_tables[i] = (struct pb_sql_table){.schema = q->tables[i].schema, .name = q->tables[i].name};
    if (make_own_tables(q) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    q->node_rows.tables = q->node_tables;
    q->node_rows.ntables = q->ntables;
    q->node_rows.own = q->own;
    q->node_rows.nown = OWN_TABLES;
    q->node_rows.sent = q->sent;
    const struct pb_sql_query query = {.sql = sql,
                                       .length = q->root ? strlen(sql) : q->request.length,
                                       .timeout_ms = q->request.timeout_ms,
                                       .cancel = q->request.cancel,
                                       .progress = true,
                                       .node_rows = &q->node_rows,
                                       .now_us = q->now_us};
    return pb_sql_open(&query, &q->sql, err);
}

/* --- the whole of it --- */

static void clear_round(struct pb_cluster_query *q)
{
    pb_sql_close(q->sql);
    q->sql = NULL;
    for (unsigned i = 0; i < q->ntables; i++) {
        free(q->tables[i].schema);
        free(q->tables[i].name);
        free(q->tables[i].sql);
        free(q->tables[i].fallback);
    }
    q->ntables = 0;
    for (unsigned i = 0; i < OWN_TABLES; i++)
        free((char *)q->own[i].select);
    memset(q->own, 0, sizeof(q->own));
    for (size_t i = 0; q->nodes && i < q->c->nnodes; i++)
        release_rows(&q->nodes[i]);
    for (unsigned i = 0; i < q->nnotes; i++)
        free(q->notes[i]);
    q->nnotes = q->given = 0;
    free(q->sent);
    q->sent = NULL;
    free(q->root);
    q->root = NULL;
    pb_cluster_result_done(&q->result);
    q->result = (struct pb_cluster_result){0};
    q->stats.rows = 0;
}

/* A statement about the clocks gets them as they are now, and not as they were when the job was attached. */
static void renew_old_clocks(struct pb_cluster_query *q)
{
    const struct pb_cluster *c = q->c;
    int64_t before = pb_wall_ns() - OLD_CLOCK_S * (int64_t)PB_NS_PER_S;
    struct pb_err ignored = {0};
    bool old = false;

    for (size_t i = 0; i < c->nnodes; i++)
        old = old || !c->nodes[i].clock.known || c->nodes[i].clock.at_ns < before;
    if (old)
        pb_cluster_renew_clocks(q->request.renew, NULL, &ignored);
}

static int begin_round(struct pb_cluster_query *q, struct pb_err *err)
{
    int r = make_plan(q, err);
    if (r == 0 && q->clocks && q->request.renew)
        renew_old_clocks(q);
    if (r == 0)
        r = ask_nodes(q, err);
    if (r == 0)
        r = collect_rows(q);
    if (r == 1 && !q->whole) {
        clear_round(q);
        q->whole = true;
        return begin_round(q, err);
    }
    if (r == 0 && q->ntables && q->result.answered == 0)
        return pb_fail(err, -EHOSTUNREACH, "no node answered");
    return r == 0                  ? run_on_node_rows(q, err)
           : r < 0 && err->text[0] ? r
                                   : pb_fail(err, -ENOMEM, "out of memory");
}

int pb_cluster_query_open(const struct pb_cluster *c, const struct pb_cluster_query_request *request,
                          struct pb_cluster_query **ret, struct pb_err *err)
{
    struct pb_cluster_query *q = calloc(1, sizeof(*q));

    if (!q)
        return pb_fail(err, -ENOMEM, "out of memory");
    *q = (struct pb_cluster_query){.c = c, .request = *request};
    q->request.cap = request->cap ? request->cap : CAP;
    q->request.deadline_ms = request->deadline_ms ? request->deadline_ms : DEADLINE_MS;
    q->now_us = (uint64_t)pb_wall_ns() / 1000;
    q->nodes = calloc(c->nnodes + 1, sizeof(*q->nodes));
    int r = q->nodes ? begin_round(q, err) : pb_fail(err, -ENOMEM, "out of memory");
    if (r < 0) {
        pb_cluster_query_close(q);
        return r;
    }
    *ret = q;
    return 0;
}

int pb_cluster_query_next(struct pb_cluster_query *q, struct pb_sql_event *ret, struct pb_err *err)
{
    if (q->given < q->nnotes) {
        *ret = (struct pb_sql_event){.kind = PB_SQL_EVENT_NOTE, .text = q->notes[q->given++]};
        return 1;
    }
    int r = pb_sql_next(q->sql, ret, err);
    /* Parts that cannot be put together after all (an average of times, say) are asked for as rows. */
    if (r < 0 && q->root && !q->has_output && r != -ECANCELED && r != -ETIMEDOUT) {
        clear_round(q);
        q->whole = true;
        r = begin_round(q, err);
        return r < 0 ? r : pb_cluster_query_next(q, ret, err);
    }
    if (r > 0 && (ret->kind == PB_SQL_EVENT_COLUMNS || ret->kind == PB_SQL_EVENT_BATCH))
        q->has_output = true;
    return r;
}

const struct pb_cluster_result *pb_cluster_query_result(const struct pb_cluster_query *q)
{
    return &q->result;
}

struct pb_cluster_query_stats pb_cluster_query_stats_of(const struct pb_cluster_query *q)
{
    return q->stats;
}

void pb_cluster_query_close(struct pb_cluster_query *q)
{
    if (!q)
        return;
    clear_round(q);
    free(q->nodes);
    free(q);
}
