/* node_rows: see node_rows.h. */
#include "engine/worker/node_rows.h"

#include "base/cleanup.h"
#include "engine/shared/cells.h"
#include "engine/shared/sql_text.h"
#include "engine/shared/type_name.h"
#include "engine/worker/plan.h"
#include "table/reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Rows that are handed over at a time: a vector of DuckDB's. */
enum { VECTOR = 2048, MAX_TABLES = 64, MAX_LAYOUTS = 1024, MAX_COLUMNS = 1024, MAX_RANKS = 1 << 20 };

struct named_table {
    char schema[PB_CAT_NAME], name[PB_CAT_NAME];
};

/* What nodes with the same columns sent of a table. */
struct layout {
    unsigned table;
    unsigned n;
    char (*names)[PB_CAT_NAME];
    struct pb_cells *cells; /* types alone; filled in batch by batch */
    int rank;               /* its index; -1: none */
    duckdb_appender appender;
};

/* The node whose rows come. */
struct sender {
    unsigned table;
    const char *node; /* within the message */
    uint32_t node_length;
    struct pb_wire about; /* the message: TABLE */
    struct layout *layout;
};

struct node_query {
    struct pb_engine *e;
    struct named_table tables[MAX_TABLES];
    unsigned ntables;
    struct layout *layouts[MAX_LAYOUTS];
    unsigned nlayouts;
    struct sender sender;
    struct pb_wire in;
};

static int nonsense(struct pb_err *err)
{
    return pb_fail(err, -EBADMSG, "rows of a node make no sense");
}

/* --- types --- */

/* What a column of such cells is in a table: of no value at all it can be any. */
static enum pb_cell_type stored_as(enum pb_cell_type type)
{
    return type == PB_CELL_NULL ? PB_CELL_I32 : type;
}

static bool can_be_sent(enum pb_cell_type type)
{
    static const bool nodes[PB_CELL_TYPES] = {
#define PB_SQL_TYPE(cell, width, duckdb, name, node, arrow) [PB_CELL_##cell] = (node),
#include "engine/shared/types.def"
    };
    return nodes[type];
}

/* For people. The type of a decimal has digits too, and is made where they are known. */
static const char *name_type(enum pb_cell_type type)
{
    return type == PB_CELL_DECIMAL ? "DECIMAL" : pb_cell_type_name(stored_as(type));
}

static duckdb_type id_of_cells(enum pb_cell_type type)
{
    static const duckdb_type ids[PB_CELL_TYPES] = {
#define PB_SQL_TYPE(cell, width, duckdb, name, node, arrow) [PB_CELL_##cell] = DUCKDB_TYPE_##duckdb,
#include "engine/shared/types.def"
    };
    return ids[stored_as(type)];
}

static bool is_integer(enum pb_cell_type t)
{
    return t >= PB_CELL_I8 && t <= PB_CELL_I128;
}

/* Whether one type holds every value of both: as sources of one node are brought together. */
static bool go_together(enum pb_cell_type a, enum pb_cell_type b)
{
    bool floats = (a == PB_CELL_F32 || a == PB_CELL_F64) && (b == PB_CELL_F32 || b == PB_CELL_F64);

    return a == b || a == PB_CELL_NULL || b == PB_CELL_NULL || floats || (is_integer(a) && is_integer(b));
}

/* --- layouts --- */

static void free_layout(struct layout *l)
{
    if (!l)
        return;
    if (l->appender)
        duck.appender_destroy(&l->appender);
    free(l->names);
    free(l->cells);
    free(l);
}

/* Names as a table may have them: those of the columns that we add are ours. */
static int read_name(struct pb_wire *m, char ret[PB_CAT_NAME])
{
    uint32_t length;
    const char *text = pb_wire_text(m, &length);

    if (!text || length == 0 || length > PB_CAT_NAME - 3 || memchr(text, 0, length) ||
        !pb_utf8_valid(text, length))
        return -EBADMSG;
    memcpy(ret, text, length);
    ret[length] = '\0';
    if (strcasecmp(ret, "node") == 0 || strcasecmp(ret, "role") == 0)
        strcat(ret, "_1");
    return 0;
}

static int read_column(struct layout *l, unsigned i, struct pb_wire *m)
{
    uint32_t length;

    int r = read_name(m, l->names[i]);
    if (r < 0 || !pb_wire_text(m, &length))
        return -EBADMSG;
    uint32_t type = pb_wire_u32(m), scale = pb_wire_u32(m);
    if (!pb_wire_ok(m) || type >= PB_CELL_TYPES || scale > 38)
        return -EBADMSG;
    l->cells[i] = (struct pb_cells){.type = (enum pb_cell_type)type, .scale = scale};
    for (unsigned k = 0; k < i; k++)
        if (strcasecmp(l->names[k], l->names[i]) == 0)
            return -EBADMSG;
    if (strcasecmp(l->names[i], "rank") == 0)
        l->rank = type == PB_CELL_I32 ? (int)i : -1;
    return 0;
}

static int read_layout(struct node_query *o, struct layout **ret, struct pb_err *err)
{
    uint32_t n = pb_wire_u32(&o->in);
    struct layout *l = calloc(1, sizeof(*l));

    if (!l)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = pb_wire_ok(&o->in) && n > 0 && n <= MAX_COLUMNS ? 0 : nonsense(err);
    l->table = o->sender.table;
    l->rank = -1;
    if (r == 0) {
        l->n = n;
        l->names = calloc(n, sizeof(*l->names));
        l->cells = calloc(n, sizeof(*l->cells));
        r = l->names && l->cells ? 0 : pb_fail(err, -ENOMEM, "out of memory");
    }
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        if (read_column(l, i, &o->in) < 0)
            r = nonsense(err);
        else if (!can_be_sent(l->cells[i].type))
            r = pb_fail(err, -ENOTSUP, "column %s has a type that is not sent between nodes", l->names[i]);
    }
    if (r < 0) {
        free_layout(l);
        return r;
    }
    *ret = l;
    return 0;
}

static bool same_layout(const struct layout *a, const struct layout *b)
{
    if (a->table != b->table || a->n != b->n)
        return false;
    for (unsigned i = 0; i < a->n; i++)
        if (strcmp(a->names[i], b->names[i]) != 0 || a->cells[i].type != b->cells[i].type ||
            a->cells[i].scale != b->cells[i].scale)
            return false;
    return true;
}

static int check_types(const struct node_query *o, const struct layout *l, struct pb_err *err)
{
    for (unsigned k = 0; k < o->nlayouts; k++) {
        const struct layout *other = o->layouts[k];
        for (unsigned i = 0; other->table == l->table && i < l->n; i++)
            for (unsigned m = 0; m < other->n; m++)
                if (strcasecmp(other->names[m], l->names[i]) == 0 &&
                    !go_together(other->cells[m].type, l->cells[i].type))
                    return pb_fail(err, -EINVAL,
                                   "column %s of %s is %s on node %.*s and %s on others: no type holds both "
                                   "(leave the column out, or ask fewer ranks)",
                                   l->names[i], o->tables[l->table].name, name_type(l->cells[i].type),
                                   (int)o->sender.node_length, o->sender.node,
                                   name_type(other->cells[m].type));
    }
    return 0;
}

static int make_table(struct node_query *o, struct layout *l, struct pb_err *err)
{
    _cleanup_free_ char *sql = NULL;
    char name[24];
    size_t size;
    FILE *out = open_memstream(&sql, &size);

    if (!out)
        return pb_fail(err, -ENOMEM, "out of memory");
    snprintf(name, sizeof(name), "t%u", o->nlayouts);
    fprintf(out, "CREATE TABLE memory.pb_node_rows.%s (node VARCHAR, role VARCHAR", name);
    for (unsigned i = 0; i < l->n; i++) {
        fputs(", ", out);
        pb_put_quoted(out, l->names[i], '"');
        if (l->cells[i].type == PB_CELL_DECIMAL)
            fprintf(out, " DECIMAL(38, %u)", l->cells[i].scale);
        else
            fprintf(out, " %s", name_type(l->cells[i].type));
    }
    fputc(')', out);
    if (fclose(out) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = pb_engine_do(o->e, sql, err);
    if (r == 0 && duck.appender_create_ext(o->e->connection, "memory", "pb_node_rows", name, &l->appender) !=
                      DuckDBSuccess)
        r = pb_fail(err, -EIO, "DuckDB takes no rows");
    return r;
}

static int take_columns(struct node_query *o, struct pb_err *err)
{
    struct layout *l = NULL;

    int r = read_layout(o, &l, err);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < o->nlayouts; i++)
        if (same_layout(o->layouts[i], l)) {
            free_layout(l);
            o->sender.layout = o->layouts[i];
            return 0;
        }
    r = o->nlayouts < MAX_LAYOUTS ? check_types(o, l, err)
                                  : pb_fail(err, -E2BIG, "nodes disagree about columns in too many ways");
    if (r == 0)
        r = make_table(o, l, err);
    if (r < 0) {
        free_layout(l);
        return r;
    }
    o->layouts[o->nlayouts++] = l;
    o->sender.layout = l;
    return 0;
}

/* --- rows --- */

/* The role of a rank, as the TABLE message has it. */
static const char *role_of(const struct sender *s, int32_t rank, uint32_t *ret_length)
{
    struct pb_wire m = s->about;
    uint32_t n = pb_wire_u32(&m);

    for (uint32_t i = 0; i < n && pb_wire_ok(&m); i++) {
        int32_t one = (int32_t)pb_wire_u32(&m);
        const char *role = pb_wire_text(&m, ret_length);
        if (role && one == rank)
            return *ret_length ? role : NULL;
    }
    return NULL;
}

static void set_null(duckdb_vector v, uint64_t **validity, idx_t i)
{
    if (!*validity) {
        duck.vector_ensure_validity_writable(v);
        *validity = duck.vector_get_validity(v);
    }
    (*validity)[i / 64] &= ~(UINT64_C(1) << i % 64);
}

static void add_who(const struct sender *s, duckdb_data_chunk chunk, uint32_t from, idx_t n)
{
    const struct layout *l = s->layout;
    duckdb_vector node = duck.data_chunk_get_vector(chunk, 0), role = duck.data_chunk_get_vector(chunk, 1);
    uint64_t *validity = NULL;
    const char *text = NULL;
    uint32_t length = 0;
    int64_t last = INT64_MIN;

    for (idx_t i = 0; i < n; i++) {
        uint32_t row = from + (uint32_t)i;
        duck.vector_assign_string_element_len(node, i, s->node, s->node_length);
        bool known = l->rank >= 0 && pb_cells_have(&l->cells[l->rank], row);
        int32_t rank = known ? ((const int32_t *)l->cells[l->rank].values)[row] : -1;
        /* Rows of a rank follow each other. */
        if (last != rank)
            text = known ? role_of(s, rank, &length) : NULL;
        last = rank;
        if (text)
            duck.vector_assign_string_element_len(role, i, text, length);
        else
            set_null(role, &validity, i);
    }
}

static int add_texts(const struct pb_cells *c, duckdb_vector v, uint32_t from, idx_t n)
{
    for (idx_t i = 0; i < n; i++) {
        uint32_t length;
        const char *text = pb_cells_bytes(c, from + (uint32_t)i, &length);
        if (!pb_cells_have(c, from + (uint32_t)i))
            continue;
        if (c->type == PB_CELL_TEXT && !pb_utf8_valid(text, length))
            return -EBADMSG;
        duck.vector_assign_string_element_len(v, i, text, length);
    }
    return 0;
}

static int add_column(const struct pb_cells *c, duckdb_vector v, uint32_t from, idx_t n)
{
    unsigned width = pb_cell_width(c->type);
    uint64_t *validity = NULL;
    char *to = duck.vector_get_data(v);

    for (idx_t i = 0; i < n; i++)
        if (!pb_cells_have(c, from + (uint32_t)i))
            set_null(v, &validity, i);
    if (c->type == PB_CELL_NULL)
        return 0;
    if (!width)
        return add_texts(c, v, from, n);
    memcpy(to, (const char *)c->values + (size_t)from * width, n * width);
    /* A bool that is neither 0 nor 1 is undefined to DuckDB. */
    for (idx_t i = 0; c->type == PB_CELL_BOOL && i < n; i++)
        to[i] = to[i] != 0;
    return 0;
}

static int append_rows(struct node_query *o, uint32_t from, idx_t n, struct pb_err *err)
{
    struct layout *l = o->sender.layout;
    _cleanup_free_ duckdb_logical_type *types = calloc(l->n + 2, sizeof(void *));

    if (!types)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (unsigned i = 0; i < l->n + 2; i++)
        types[i] =
            i >= 2 && l->cells[i - 2].type == PB_CELL_DECIMAL
                ? duck.create_decimal_type(38, (uint8_t)l->cells[i - 2].scale)
                : duck.create_logical_type(i < 2 ? DUCKDB_TYPE_VARCHAR : id_of_cells(l->cells[i - 2].type));
    duckdb_data_chunk chunk = duck.create_data_chunk(types, l->n + 2);
    int r = chunk ? 0 : pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        add_who(&o->sender, chunk, from, n);
    for (unsigned i = 0; r == 0 && i < l->n; i++)
        r = add_column(&l->cells[i], duck.data_chunk_get_vector(chunk, i + 2), from, n);
    if (r == 0) {
        duck.data_chunk_set_size(chunk, n);
        if (duck.append_data_chunk(l->appender, chunk) != DuckDBSuccess) {
            const char *why = duck.appender_error(l->appender);
            r = pb_fail(err, -EIO, "rows of node %.*s were not taken: %s", (int)o->sender.node_length,
                        o->sender.node, why ? why : "no reason given");
        }
    } else if (r == -EBADMSG) {
        r = nonsense(err);
    }
    if (chunk)
        duck.destroy_data_chunk(&chunk);
    for (unsigned i = 0; i < l->n + 2; i++)
        duck.destroy_logical_type(&types[i]);
    return r;
}

static int take_batch(struct node_query *o, struct pb_err *err)
{
    struct layout *l = o->sender.layout;
    uint32_t nrows;

    if (!l || pb_batch_read(&o->in, l->cells, l->n, &nrows) < 0)
        return nonsense(err);
    int r = 0;
    for (uint32_t from = 0; r == 0 && from < nrows; from += VECTOR)
        r = append_rows(o, from, nrows - from < VECTOR ? nrows - from : VECTOR, err);
    return r;
}

static int take_sender(struct node_query *o, struct pb_err *err)
{
    struct sender *s = &o->sender;
    struct pb_wire taken = s->about;

    /* The message stays as long as its node's rows come: o->in takes the memory of the one before. */
    s->about = o->in;
    o->in = taken;
    o->in.nfds = 0;
    s->layout = NULL;
    s->table = pb_wire_u32(&s->about);
    s->node = pb_wire_text(&s->about, &s->node_length);
    return s->node && s->table < o->ntables && pb_utf8_valid(s->node, s->node_length) ? 0 : nonsense(err);
}

static int take_rows(struct node_query *o, struct pb_err *err)
{
    for (;;) {
        int r = pb_engine_receive(o->e, &o->in);
        if (r < 0)
            return pb_fail(err, r, "rows of nodes did not come: %s", strerror(-r));
        if (o->in.type == PB_SQL_DONE)
            return 0;
        r = o->in.type == PB_SQL_TABLE     ? take_sender(o, err)
            : o->in.type == PB_SQL_COLUMNS ? take_columns(o, err)
            : o->in.type == PB_SQL_BATCH   ? take_batch(o, err)
                                           : nonsense(err);
        if (r < 0)
            return r;
    }
}

/* What is still on its way when something is wrong: the worker goes on to its next request after it. */
static void skip_rows(struct node_query *o)
{
    while (o->in.type != PB_SQL_DONE && pb_engine_receive(o->e, &o->in) == 0)
        ;
}

/* --- views --- */

static int make_view(struct node_query *o, const struct named_table *t, const char *select,
                     struct pb_err *err)
{
    _cleanup_free_ char *sql = NULL;
    const char *schema = t->schema[0] ? t->schema : "main";

    if (!pb_views_forget(o->e, schema, t->name)) {
        char *drop;
        if (asprintf(&drop, "%sDROP VIEW IF EXISTS memory.\"%s\".\"%s\";",
                     o->e->node_views ? o->e->node_views : "", schema, t->name) < 0)
            return pb_fail(err, -ENOMEM, "out of memory");
        free(o->e->node_views);
        o->e->node_views = drop;
    }
    if (asprintf(
            &sql,
            "CREATE SCHEMA IF NOT EXISTS memory.\"%s\"; CREATE OR REPLACE VIEW memory.\"%s\".\"%s\" AS %s",
            schema, schema, t->name, select) < 0) {
        sql = NULL;
        return pb_fail(err, -ENOMEM, "out of memory");
    }
    return pb_engine_do(o->e, sql, err);
}

static int drop_view(struct node_query *o, const struct named_table *t, struct pb_err *err)
{
    char sql[4 * PB_CAT_NAME];

    snprintf(sql, sizeof(sql), "DROP VIEW memory.\"%s\".\"%s\"", t->schema[0] ? t->schema : "main", t->name);
    return pb_engine_do(o->e, sql, err);
}

static int make_views(struct node_query *o, struct pb_err *err)
{
    int r = 0;

    for (unsigned t = 0; r == 0 && t < o->ntables; t++) {
        _cleanup_free_ char *sql = NULL;
        bool any = false;
        size_t size;
        FILE *out = open_memstream(&sql, &size);
        if (!out)
            return pb_fail(err, -ENOMEM, "out of memory");
        for (unsigned i = 0; i < o->nlayouts; i++) {
            const struct layout *l = o->layouts[i];
            if (l->table != t)
                continue;
            fprintf(out, "%sSELECT %snode, role, * EXCLUDE (%snode, role) FROM memory.pb_node_rows.t%u",
                    any ? " UNION ALL BY NAME " : "", l->rank >= 0 ? "rank, " : "",
                    l->rank >= 0 ? "rank, " : "", i);
            any = true;
        }
        if (fclose(out) != 0)
            return pb_fail(err, -ENOMEM, "out of memory");
        /* A table that no node has is missing here too, whatever an earlier request knew. */
        r = make_view(o, &o->tables[t], any ? sql : "SELECT 1", err);
        if (r == 0 && !any)
            r = drop_view(o, &o->tables[t], err);
    }
    return r;
}

static int read_named(struct pb_wire *m, struct named_table *ret)
{
    char *to[] = {ret->schema, ret->name};

    for (int i = 0; i < 2; i++) {
        uint32_t length;
        const char *text = pb_wire_text(m, &length);
        if (!text || length >= PB_CAT_NAME || memchr(text, '"', length) || memchr(text, 0, length) ||
            !pb_utf8_valid(text, length))
            return -EBADMSG;
        memcpy(to[i], text, length);
        to[i][length] = '\0';
    }
    return ret->name[0] ? 0 : -EBADMSG;
}

/* Tables that the asking side has itself come as statements. */
static int make_own_tables(struct node_query *o, struct pb_wire *m, struct pb_err *err)
{
    uint32_t n = pb_wire_u32(m);
    int r = pb_wire_ok(m) && n <= MAX_TABLES ? 0 : nonsense(err);

    for (uint32_t i = 0; r == 0 && i < n; i++) {
        struct named_table t;
        uint32_t length;
        r = read_named(m, &t);
        const char *text = r == 0 ? pb_wire_text(m, &length) : NULL;
        _cleanup_free_ char *select = text ? strndup(text, length) : NULL;
        r = select ? make_view(o, &t, select, err) : nonsense(err);
    }
    return r;
}

static int pin_now(struct pb_engine *e, struct pb_err *err)
{
    char sql[256], moment[40];

    pb_plan_moment((int64_t)e->request->now_us, moment);
    snprintf(sql, sizeof(sql),
             "CREATE OR REPLACE MACRO now() AS TIMESTAMP '%s'; "
             "CREATE OR REPLACE MACRO get_current_timestamp() AS TIMESTAMP '%s'",
             moment, moment);
    return pb_engine_do(e, sql, err);
}

static int read_tables(struct node_query *o, struct pb_wire *m, struct pb_err *err)
{
    o->ntables = pb_wire_u32(m);
    if (!pb_wire_ok(m) || o->ntables > MAX_TABLES) {
        o->ntables = 0;
        return nonsense(err);
    }
    for (unsigned i = 0; i < o->ntables; i++)
        if (read_named(m, &o->tables[i]) < 0)
            return nonsense(err);
    return 0;
}

/* Rows that an appender still holds are not in its table yet. */
static int flush_rows(struct node_query *o, struct pb_err *err)
{
    int r = 0;

    for (unsigned i = 0; i < o->nlayouts; i++)
        if (duck.appender_destroy(&o->layouts[i]->appender) != DuckDBSuccess && r == 0)
            r = pb_fail(err, -EIO, "rows of nodes were not taken");
    return r;
}

int pb_node_rows_begin(struct pb_engine *e, struct pb_err *err)
{
    struct node_query *o = calloc(1, sizeof(*o));

    if (!o)
        return pb_fail(err, -ENOMEM, "out of memory");
    o->e = e;
    int r = read_tables(o, e->request->in, err);
    if (r == 0)
        r = pb_engine_do(e, "CREATE OR REPLACE SCHEMA memory.pb_node_rows", err);
    if (r == 0)
        r = make_own_tables(o, e->request->in, err);
    if (r == 0)
        r = take_rows(o, err);
    if (r < 0)
        skip_rows(o);
    int flushed = flush_rows(o, r == 0 ? err : NULL);
    r = r < 0 ? r : flushed;
    if (r == 0)
        r = make_views(o, err);
    if (r == 0)
        r = pin_now(e, err);
    for (unsigned i = 0; i < o->nlayouts; i++)
        free_layout(o->layouts[i]);
    pb_wire_done(&o->sender.about);
    pb_wire_done(&o->in);
    free(o);
    return r;
}

void pb_node_rows_end(struct pb_engine *e)
{
    if (e->node_views)
        pb_engine_do(e, e->node_views, NULL);
    free(e->node_views);
    e->node_views = NULL;
    pb_engine_do(
        e,
        "DROP SCHEMA IF EXISTS memory.pb_node_rows CASCADE; DROP SCHEMA IF EXISTS memory.cluster CASCADE; "
        "CREATE OR REPLACE MACRO now() AS system.main.get_current_timestamp() AT TIME ZONE 'UTC'; "
        "CREATE OR REPLACE MACRO get_current_timestamp() AS system.main.get_current_timestamp() AT "
        "TIME ZONE 'UTC'",
        NULL);
}
