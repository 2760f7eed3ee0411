/* rank_rows: see rank_rows.h. */
#include "ask/rank_rows.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "engine/shared/sent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The output of a node about one statement, beside its rows. */
enum { MAX_NOTES = 64 };

struct rows_answer {
    const struct pb_ask *ask;
    const struct pb_targets *targets;
    const struct pb_rows_request *request;
    uint64_t deadline; /* on the monotonic clock; 0: none */
    struct pb_wire m;
    unsigned notes;
};

static void put_columns(struct pb_wire *m, const struct pb_sql_event *event)
{
    pb_wire_begin(m, PB_SQL_COLUMNS);
    pb_wire_put_u32(m, event->n);
    for (unsigned i = 0; i < event->n; i++) {
        const struct pb_sql_column *c = &event->columns[i];
        pb_wire_put_text(m, c->name, strlen(c->name));
        pb_wire_put_text(m, c->type, strlen(c->type));
        pb_wire_put_u32(m, c->cells);
        pb_wire_put_u32(m, c->scale);
    }
}

/* own: it is about this node alone. */
static void put_note(struct pb_wire *m, const char *text, bool own)
{
    pb_wire_begin(m, PB_SQL_NOTE);
    pb_wire_put_text(m, text, strlen(text));
    pb_wire_put_u32(m, own);
}

/* A rank whose rows are missing is named, and the others' come. */
static void put_failure(struct pb_wire *m, const struct pb_query *q, const struct pb_sql_event *event)
{
    char name[64], text[512];

    pb_live_name(&pb_query_source(q, event->source)->live, name, sizeof(name));
    snprintf(text, sizeof(text), "rows of %s are missing%s%s: %s", name, event->table ? " in " : "",
             event->table ? event->table : "", event->text);
    put_note(m, text, true);
}

static int put_event(struct rows_answer *a, const struct pb_query *q, const struct pb_sql_event *event,
                     FILE *out)
{
    switch (event->kind) {
    case PB_SQL_EVENT_COLUMNS:
        put_columns(&a->m, event);
        break;
    case PB_SQL_EVENT_BATCH:
        pb_batch_put(&a->m, &event->batch);
        break;
    case PB_SQL_EVENT_NOTE:
        put_note(&a->m, event->text, false);
        break;
    case PB_SQL_EVENT_FAILED:
        put_failure(&a->m, q, event);
        break;
    default:
        return 0;
    }
    if (a->m.type == PB_SQL_NOTE && ++a->notes > MAX_NOTES)
        return 0;
    return pb_sent_write(out, &a->m);
}

/* One statement, to its end. */
static int run_statement(struct rows_answer *a, const char *sql, FILE *out, struct pb_err *err)
{
    uint64_t now = pb_now_ns();
    struct pb_query_request request = {.sql = sql, .length = strlen(sql), .cancel = a->request->cancel};
    struct pb_sql_event event;
    struct pb_query *q;

    if (a->deadline && now >= a->deadline)
        return pb_fail(err, -ETIMEDOUT, "there was no time left for it");
    request.timeout_ms = a->deadline ? (unsigned)((a->deadline - now) / PB_NS_PER_MS) + 1 : 0;
    a->notes = 0;
    int r = pb_query_open(a->ask, a->targets, &request, &q, err);
    if (r < 0)
        return r;
    while ((r = pb_query_next(q, &event, err)) > 0) {
        r = put_event(a, q, &event, out);
        if (r < 0) {
            pb_fail(err, r, "a row is too large to be sent");
            break;
        }
    }
    pb_query_close(q);
    if (r < 0)
        return r;
    pb_wire_begin(&a->m, PB_SQL_DONE);
    return pb_sent_write(out, &a->m);
}

/* The frames of one statement, of malloc: rows of one that fails in the middle are not sent. */
static int answer_statement(struct rows_answer *a, const char *sql, char **ret, size_t *ret_size,
                            struct pb_err *err)
{
    FILE *out = open_memstream(ret, ret_size);

    if (!out)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = run_statement(a, sql, out, err);
    if (fclose(out) != 0 && r == 0)
        r = pb_fail(err, -ENOMEM, "out of memory");
    if (r < 0) {
        free(*ret);
        *ret = NULL;
    }
    return r;
}

static int answer_pair(struct rows_answer *a, const char *sql, const char *instead, FILE *out)
{
    _cleanup_free_ char *frames = NULL;
    struct pb_err err = {0};
    size_t size = 0;

    int r = answer_statement(a, sql, &frames, &size, &err);
    if (r == -EINVAL && strcmp(instead, "-") != 0)
        r = answer_statement(a, instead, &frames, &size, &err);
    if (r == -ECANCELED)
        return r;
    if (r == 0)
        return fwrite(frames, 1, size, out) == size ? 0 : -EIO;
    const char *why = pb_err_text(&err, r);
    pb_wire_begin(&a->m, PB_SQL_ERROR);
    pb_wire_put_u32(&a->m, r > -4096 ? (uint32_t)-r : EIO);
    pb_wire_put_text(&a->m, why, strlen(why));
    return pb_sent_write(out, &a->m);
}

int pb_rows_answer(const struct pb_ask *ask, const struct pb_targets *targets,
                   const struct pb_rows_request *request, FILE *out, struct pb_err *err)
{
    /* As if all that are probed were asked: then also one process is one of several. */
    struct pb_targets all = *targets;
    struct rows_answer a = {.ask = ask, .targets = &all, .request = request};

    all.probed = true;
    if (request->n % 2)
        return pb_fail(err, -EINVAL, "a statement has no other beside it");
    if (request->timeout_ms)
        a.deadline = pb_now_ns() + request->timeout_ms * PB_NS_PER_MS;
    pb_sent_hello(&a.m, PROBING_VERSION);
    int r = pb_sent_write(out, &a.m);
    for (size_t i = 0; r == 0 && i < request->n; i += 2)
        r = answer_pair(&a, request->statements[i], request->statements[i + 1], out);
    pb_wire_done(&a.m);
    return r < 0 ? pb_fail(err, r, "the answer could not be written: %s", strerror(-r)) : 0;
}
