/* outgoing: see outgoing.h. */
#include "engine/worker/outgoing.h"

#include "base/cleanup.h"
#include "base/time.h"
#include "engine/worker/vector_cells.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Size of a message; how much is held back, in bytes and in time. */
enum { BATCH_BYTES = 4 << 20, HOLD_BYTES = 1 << 20, HOLD_MS = 100 };

struct held_batch {
    uint32_t type;
    uint8_t *data;
    size_t size;
};

struct outgoing {
    struct pb_engine *engine;
    duckdb_result *result;
    struct pb_value_type **types;
    idx_t ncolumns;
    struct held_batch *held;
    size_t nheld, bytes;
    uint64_t began;
    bool released; /* nothing is held back any more */
};

static void close_outgoing(struct outgoing *o)
{
    for (idx_t i = 0; o->types && i < o->ncolumns; i++)
        pb_value_type_free(o->types[i]);
    free(o->types);
    for (size_t i = 0; i < o->nheld; i++)
        free(o->held[i].data);
    free(o->held);
}

/* Keeps the message in the engine's buffer for later. */
static int hold_back(struct outgoing *o)
{
    struct pb_wire *m = &o->engine->out;
    struct held_batch *more = realloc(o->held, (o->nheld + 1) * sizeof(*more));

    if (!more)
        return -ENOMEM;
    o->held = more;
    uint8_t *copy = malloc(m->size + 1);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, m->data, m->size);
    o->held[o->nheld++] = (struct held_batch){.type = m->type, .data = copy, .size = m->size};
    o->bytes += m->size;
    return 0;
}

/* Sends the messages held back. The statement must not run again after this. */
static int release_held(struct outgoing *o)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < o->nheld; i++) {
        struct pb_wire m = {.type = o->held[i].type,
                            .data = o->held[i].data,
                            .size = o->held[i].size,
                            .room = o->held[i].size};
        r = pb_engine_send(o->engine, &m);
        free(o->held[i].data);
        o->held[i].data = NULL;
    }
    o->released = true;
    return r;
}

static int pass_on(struct outgoing *o)
{
    if (o->engine->out.failed)
        return -EMSGSIZE;
    return o->released ? pb_engine_send(o->engine, &o->engine->out) : hold_back(o);
}

static bool rows_are_due(const struct outgoing *o)
{
    return !o->released && (o->bytes >= HOLD_BYTES || pb_now_ns() - o->began >= HOLD_MS * PB_NS_PER_MS);
}

static int put_columns(struct outgoing *o)
{
    struct pb_wire *m = &o->engine->out;

    o->ncolumns = duck.column_count(o->result);
    o->types = calloc(o->ncolumns + 1, sizeof(void *));
    if (!o->types)
        return -ENOMEM;
    pb_wire_begin(m, PB_SQL_COLUMNS);
    pb_wire_put_u32(m, (uint32_t)o->ncolumns);
    for (idx_t i = 0; i < o->ncolumns; i++) {
        o->types[i] = pb_value_type_new(duck.column_logical_type(o->result, i));
        _cleanup_free_ char *type = o->types[i] ? pb_value_type_name(o->types[i]) : NULL;
        const char *name = duck.column_name(o->result, i);
        if (!type)
            return -ENOMEM;
        pb_wire_put_text(m, name, strlen(name));
        pb_wire_put_text(m, type, strlen(type));
        pb_wire_put_u32(m, pb_value_cells(o->types[i]));
        pb_wire_put_u32(m, pb_value_scale(o->types[i]));
    }
    return pass_on(o);
}

static bool put_batch(struct outgoing *o, duckdb_data_chunk chunk, idx_t from, idx_t n)
{
    struct pb_wire *m = &o->engine->out;
    bool fits = true;

    pb_wire_begin(m, PB_SQL_BATCH);
    pb_wire_put_u32(m, (uint32_t)n);
    for (idx_t i = 0; fits && i < o->ncolumns; i++)
        fits =
            pb_value_put_column(m, o->types[i], duck.data_chunk_get_vector(chunk, i), from, n, BATCH_BYTES);
    return fits;
}

/* Rows with long texts are split over several messages. */
static int put_rows(struct outgoing *o, duckdb_data_chunk chunk, idx_t from, idx_t n)
{
    if (put_batch(o, chunk, from, n) || n == 1)
        return pass_on(o);
    int r = put_rows(o, chunk, from, n / 2);
    return r < 0 ? r : put_rows(o, chunk, from + n / 2, n - n / 2);
}

static int pass_chunks(struct outgoing *o, struct pb_err *err)
{
    for (;;) {
        duckdb_data_chunk chunk = duck.fetch_chunk(*o->result);
        if (!chunk)
            break;
        idx_t n = o->engine->run == PB_RUN_UNSEEN ? 0 : duck.data_chunk_get_size(chunk);
        int r = n ? put_rows(o, chunk, 0, n) : 0;
        duck.destroy_data_chunk(&chunk);
        if (r == 0 && rows_are_due(o))
            r = pb_prepare_is_settled(o->engine) ? release_held(o) : PB_RUN_MUST_SETTLE;
        if (r != 0)
            return r;
    }
    const char *why = duck.result_error(o->result);
    if (why && *why)
        return pb_fail(err, -EINVAL, "%s", why);
    return 0;
}

int pb_outgoing_send(struct pb_engine *e, duckdb_result *result, struct pb_err *err)
{
    struct outgoing o = {.engine = e, .result = result, .began = e->request->received};

    o.released = e->run == PB_RUN_UNSEEN;
    int r = o.released ? 0 : put_columns(&o);
    /* All rows were read already. */
    if (r == 0 && e->run == PB_RUN_WHOLE)
        r = release_held(&o);
    if (r == 0)
        r = pass_chunks(&o, err);
    if (r == 0 && !o.released)
        r = release_held(&o);
    if (r == -EMSGSIZE)
        pb_fail(err, r, "a row is larger than %u MB", PB_SQL_MAX_MESSAGE >> 20);
    close_outgoing(&o);
    return r;
}
