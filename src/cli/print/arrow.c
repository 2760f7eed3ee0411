/* arrow: see arrow.h. The format is https://arrow.apache.org/docs/format/Columnar.html; its messages are
 * FlatBuffers, of which this has the few lines that it takes to write a table, a text and a vector: forwards,
 * each thing behind whatever points to it. */
#include "cli/print/arrow.h"

#include "engine/shared/cells.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Of Arrow's Schema.fbs and Message.fbs. */
enum { VERSION_5 = 4, HEADER_SCHEMA = 1, HEADER_BATCH = 3 };
enum { TYPE_NULL = 1, TYPE_INT, TYPE_FLOAT, TYPE_BINARY, TYPE_TEXT, TYPE_BOOL, TYPE_DECIMAL, TYPE_DATE };
enum { TYPE_TIME = 9, TYPE_TIMESTAMP, TYPE_INTERVAL };
enum { UNIT_S, UNIT_MS, UNIT_US, UNIT_NS };
enum { DATE_DAYS = 0, MONTH_DAY_NANO = 2, HUGE_DIGITS = 38 };

struct pb_arrow {
    FILE *out;
    struct pb_wire head, body, text;
    bool has_schema;
};

/* --- FlatBuffers --- */

/* A field of a table; size 0: it is left out. */
struct slot {
    uint8_t size;
    uint64_t value; /* of a size of 4 that is patched later: nothing yet */
};

enum { SLOTS = 7 };

static void align_to(struct pb_wire *m, size_t to, size_t after)
{
    static const char zeros[8];

    pb_wire_put(m, zeros, -(m->size + after) & (to - 1));
}

/* Writes a table behind its vtable; ret_at: where each field stands. */
static size_t put_table(struct pb_wire *m, const struct slot *slots, unsigned n, size_t ret_at[SLOTS])
{
    uint16_t vtable[2 + SLOTS] = {(uint16_t)(4 + 2 * n), 4};

    align_to(m, 8, 4 + 2 * (size_t)n); /* so that the table itself begins at a multiple of eight */
    for (unsigned i = 0; i < n; i++) {
        if (!slots[i].size)
            continue;
        vtable[1] = (uint16_t)((vtable[1] + slots[i].size - 1) / slots[i].size * slots[i].size);
        vtable[2 + i] = vtable[1];
        vtable[1] = (uint16_t)(vtable[1] + slots[i].size);
    }
    pb_wire_put(m, vtable, vtable[0]);
    size_t table = m->size;
    pb_wire_put_u32(m, vtable[0]); /* how far back its vtable is */
    for (unsigned i = 0; i < n; i++) {
        if (!slots[i].size)
            continue;
        align_to(m, slots[i].size, 0);
        ret_at[i] = m->size;
        pb_wire_put(m, &slots[i].value, slots[i].size);
    }
    return table;
}

/* Lets the offset at a place point to what comes next. */
static void point_to(struct pb_wire *m, size_t at, size_t target)
{
    uint32_t offset = (uint32_t)(target - at);

    if (!m->failed)
        memcpy(m->data + at, &offset, sizeof(offset));
}

static void put_text(struct pb_wire *m, size_t at, const char *text)
{
    align_to(m, 4, 0);
    point_to(m, at, m->size);
    pb_wire_put_u32(m, (uint32_t)strlen(text));
    pb_wire_put(m, text, strlen(text) + 1);
}

/* The message's own table; gives where the offset to its header stands. */
static size_t begin_message(struct pb_wire *m, uint8_t header, uint64_t body)
{
    size_t at[SLOTS];

    pb_wire_begin(m, 0);
    pb_wire_put_u32(m, 0);
    size_t table = put_table(m, (const struct slot[]){{2, VERSION_5}, {1, header}, {4, 0}, {8, body}}, 4, at);
    point_to(m, 0, table);
    return at[2];
}

static int write_message(struct pb_arrow *a)
{
    align_to(&a->head, 8, 0);
    if (a->head.failed || a->body.failed)
        return -ENOMEM;
    const uint32_t prefix[2] = {UINT32_MAX, (uint32_t)a->head.size};
    fwrite(prefix, sizeof(prefix), 1, a->out);
    fwrite(a->head.data, 1, a->head.size, a->out);
    fwrite(a->body.data, 1, a->body.size, a->out);
    return ferror(a->out) ? -(errno ? errno : EIO) : 0;
}

/* --- the schema --- */

/* The fields of a type's table in Schema.fbs; n 0: it has none. */
struct arrow_type {
    uint8_t type;
    unsigned n;
    struct slot slots[3];
    bool utc; /* a time stamp of a zone: its second field is the zone's name */
};

/* The arrow column of types.def. */
#define ARROW_NULL                .type = TYPE_NULL
#define ARROW_BOOL                .type = TYPE_BOOL
#define ARROW_INT(bits, has_sign) TYPE_INT, 2, {{4, bits}, {1, has_sign}}, false
#define ARROW_FLOAT(precision)    TYPE_FLOAT, 1, {{2, precision}}, false
#define ARROW_DECIMAL             TYPE_DECIMAL, 3, {{4, HUGE_DIGITS}, {4, 0}, {4, 128}}, false
#define ARROW_DATE                TYPE_DATE, 1, {{2, DATE_DAYS}}, false
#define ARROW_TIME(unit)          TYPE_TIME, 2, {{2, unit}, {4, 64}}, false
#define ARROW_TIMESTAMP(unit)     TYPE_TIMESTAMP, 1, {{2, unit}}, false
#define ARROW_TIMESTAMP_UTC       TYPE_TIMESTAMP, 2, {{2, UNIT_US}, {4, 0}}, true
#define ARROW_INTERVAL            TYPE_INTERVAL, 1, {{2, MONTH_DAY_NANO}}, false
#define ARROW_BINARY              .type = TYPE_BINARY
#define ARROW_TEXT                .type = TYPE_TEXT

static const struct arrow_type types[PB_CELL_TYPES] = {
#define PB_SQL_TYPE(cell, width, duckdb, name, node, arrow) [PB_CELL_##cell] = {ARROW_##arrow},
#include "engine/shared/types.def"
};

static struct arrow_type type_of(const struct pb_sql_column *c)
{
    struct arrow_type t = types[c->cells];

    if (c->cells == PB_CELL_DECIMAL)
        t.slots[1].value = c->scale;
    return t;
}

static void put_field(struct pb_wire *m, size_t from, const struct pb_sql_column *c)
{
    const struct arrow_type t = type_of(c);
    size_t at[SLOTS], type_at[SLOTS];

    /* name, nullable, type_type, type, dictionary, children */
    size_t table =
        put_table(m, (const struct slot[]){{4, 0}, {1, 1}, {1, t.type}, {4, 0}, {0, 0}, {4, 0}}, 6, at);
    point_to(m, from, table);
    put_text(m, at[0], c->name);
    table = put_table(m, t.slots, t.n, type_at);
    point_to(m, at[3], table);
    if (t.utc)
        put_text(m, type_at[1], "UTC");
    align_to(m, 4, 0);
    point_to(m, at[5], m->size);
    pb_wire_put_u32(m, 0);
}

int pb_arrow_columns(struct pb_arrow *a, const struct pb_sql_column *columns, unsigned n)
{
    struct pb_wire *m = &a->head;
    size_t at[SLOTS];

    if (a->has_schema)
        return -EEXIST;
    a->has_schema = true;
    size_t header = begin_message(m, HEADER_SCHEMA, 0);
    size_t table = put_table(m, (const struct slot[]){{2, 0}, {4, 0}}, 2, at); /* little endian, fields */
    point_to(m, header, table);
    align_to(m, 4, 0);
    point_to(m, at[1], m->size);
    pb_wire_put_u32(m, n);
    size_t fields = m->size;
    for (unsigned i = 0; i < n; i++)
        pb_wire_put_u32(m, 0);
    for (unsigned i = 0; i < n; i++)
        put_field(m, fields + 4 * (size_t)i, &columns[i]);
    pb_wire_begin(&a->body, 0);
    return write_message(a);
}

/* --- rows --- */

struct buffer {
    uint64_t offset, length;
};

/* What a batch's header says of its body: counted while that is written. */
struct arrays {
    struct {
        uint64_t length, nulls;
    } * nodes;
    struct buffer *buffers;
    size_t nbuffers;
};

static uint64_t count_nulls(const struct pb_cells *c, uint32_t nrows)
{
    uint64_t values = 0;

    if (c->type == PB_CELL_NULL)
        return nrows;
    if (!c->validity)
        return 0;
    for (uint32_t at = 0; at < nrows; at += 64) {
        uint64_t mask = nrows - at < 64 ? (UINT64_C(1) << (nrows - at)) - 1 : UINT64_MAX;
        values += (unsigned)__builtin_popcountll(c->validity[at / 64] & mask);
    }
    return nrows - values;
}

static void begin_buffer(struct pb_arrow *a, struct arrays *s)
{
    s->buffers[s->nbuffers].offset = a->body.size;
}

static void end_buffer(struct pb_arrow *a, struct arrays *s)
{
    s->buffers[s->nbuffers].length = a->body.size - s->buffers[s->nbuffers].offset;
    s->nbuffers++;
    align_to(&a->body, 8, 0);
}

static void put_buffer(struct pb_arrow *a, struct arrays *s, const void *data, size_t size)
{
    begin_buffer(a, s);
    pb_wire_put(&a->body, data, size);
    end_buffer(a, s);
}

static void put_bits(struct pb_arrow *a, struct arrays *s, const uint8_t *values, uint32_t nrows)
{
    begin_buffer(a, s);
    for (uint32_t at = 0; at < nrows; at += 8) {
        uint8_t byte = 0;
        for (uint32_t i = at; i < nrows && i < at + 8; i++)
            byte |= (uint8_t)((values[i] != 0) << (i - at));
        pb_wire_put(&a->body, &byte, 1);
    }
    end_buffer(a, s);
}

static int put_intervals(struct pb_arrow *a, struct arrays *s, const struct pb_cells *c, uint32_t nrows)
{
    const struct pb_cell_interval *values = c->values;
    int r = 0;

    begin_buffer(a, s);
    for (uint32_t i = 0; i < nrows; i++) {
        struct pb_cell_interval v = pb_cells_have(c, i) ? values[i] : (struct pb_cell_interval){0};
        if (__builtin_mul_overflow(v.micros, 1000, &v.micros))
            r = -ERANGE;
        pb_wire_put(&a->body, &v, sizeof(v));
    }
    end_buffer(a, s);
    return r;
}

/* Where each text begins, and where the last ends; then their bytes. */
static void put_texts(struct pb_arrow *a, struct arrays *s, const uint32_t *ends, const void *bytes,
                      uint32_t nrows)
{
    begin_buffer(a, s);
    pb_wire_put_u32(&a->body, 0);
    pb_wire_put(&a->body, ends, nrows * sizeof(*ends));
    end_buffer(a, s);
    put_buffer(a, s, bytes, nrows ? ends[nrows - 1] : 0);
}

/* Of a type that Arrow does not have. */
static int put_as_texts(struct pb_arrow *a, struct arrays *s, const struct pb_cells *c, uint32_t nrows)
{
    unsigned width = pb_cell_width(c->type);
    uint32_t *ends = calloc(nrows + 1, sizeof(*ends));

    if (!ends)
        return -ENOMEM;
    pb_wire_begin(&a->text, 0);
    for (uint32_t i = 0; i < nrows; i++) {
        if (pb_cells_have(c, i))
            pb_cell_text(&a->text, c->type, c->scale, (const char *)c->values + (size_t)i * width, width);
        ends[i] = (uint32_t)a->text.size;
    }
    put_texts(a, s, ends, a->text.data, nrows);
    free(ends);
    return a->text.failed ? -ENOMEM : 0;
}

static int put_column(struct pb_arrow *a, struct arrays *s, const struct pb_cells *c, uint32_t nrows)
{
    uint64_t nulls = count_nulls(c, nrows);

    if (c->type == PB_CELL_NULL)
        return 0;
    put_buffer(a, s, c->validity, nulls ? (nrows + 7) / 8 : 0);
    switch (c->type) {
    case PB_CELL_BOOL:
        put_bits(a, s, c->values, nrows);
        return 0;
    case PB_CELL_INTERVAL:
        return put_intervals(a, s, c, nrows);
    default:
        if (pb_cell_width(c->type) && types[c->type].type == TYPE_TEXT)
            return put_as_texts(a, s, c, nrows);
        if (pb_cell_width(c->type))
            put_buffer(a, s, c->values, (size_t)nrows * pb_cell_width(c->type));
        else
            put_texts(a, s, c->ends, c->bytes, nrows);
        return 0;
    }
}

/* A vector of structs of two numbers each. */
static void put_pairs(struct pb_wire *m, size_t at, const void *pairs, size_t n)
{
    align_to(m, 8, 4);
    point_to(m, at, m->size);
    pb_wire_put_u32(m, (uint32_t)n);
    pb_wire_put(m, pairs, 16 * n);
}

static int write_batch(struct pb_arrow *a, const struct pb_batch *batch, struct arrays *s)
{
    struct pb_wire *m = &a->head;
    size_t at[SLOTS];

    pb_wire_begin(&a->body, 0);
    for (unsigned i = 0; i < batch->ncolumns; i++) {
        s->nodes[i].length = batch->nrows;
        s->nodes[i].nulls = count_nulls(&batch->columns[i], batch->nrows);
        int r = put_column(a, s, &batch->columns[i], batch->nrows);
        if (r < 0)
            return r;
    }
    size_t header = begin_message(m, HEADER_BATCH, a->body.size);
    size_t table = put_table(m, (const struct slot[]){{8, batch->nrows}, {4, 0}, {4, 0}}, 3, at);
    point_to(m, header, table);
    put_pairs(m, at[1], s->nodes, batch->ncolumns);
    put_pairs(m, at[2], s->buffers, s->nbuffers);
    return write_message(a);
}

int pb_arrow_rows(struct pb_arrow *a, const struct pb_batch *batch)
{
    struct arrays s = {.nodes = calloc(batch->ncolumns + 1, sizeof(*s.nodes)),
                       .buffers = calloc(3 * (size_t)batch->ncolumns + 1, sizeof(*s.buffers))};
    int r = s.nodes && s.buffers ? write_batch(a, batch, &s) : -ENOMEM;

    free(s.nodes);
    free(s.buffers);
    return r;
}

/* --- its life --- */

struct pb_arrow *pb_arrow_new(FILE *out)
{
    struct pb_arrow *a = calloc(1, sizeof(*a));

    if (a)
        a->out = out;
    return a;
}

int pb_arrow_end(struct pb_arrow *a)
{
    const uint32_t end[2] = {UINT32_MAX, 0};
    int r = a->has_schema ? 0 : pb_arrow_columns(a, NULL, 0);

    if (r == 0 && fwrite(end, sizeof(end), 1, a->out) != 1)
        r = -(errno ? errno : EIO);
    return r;
}

void pb_arrow_free(struct pb_arrow *a)
{
    if (!a)
        return;
    pb_wire_done(&a->head);
    pb_wire_done(&a->body);
    pb_wire_done(&a->text);
    free(a);
}
