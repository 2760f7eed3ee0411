/* cells: the rows of a result as typed values, as the worker sends them to its caller.
 *
 * A batch is some rows (at most one DuckDB vector), column by column. Values of fixed width are an array in
 * the machine's format; texts are an array of end offsets, and their bytes. The caller treats the worker as
 * hostile: pb_batch_read checks every size before use. pb_cell_text gives the exact text of a value: SQL
 * reads the same value from it. */
#pragma once

#include "engine/shared/wire.h"

/* The type of a column's cells: types.def has how a value of each is stored. Lists, structs, maps and unions
 * are JSON; the column's type has their SQL name. */
enum pb_cell_type {
#define PB_SQL_TYPE(cell, width, duckdb, name, node, arrow) PB_CELL_##cell,
#include "engine/shared/types.def"
    PB_CELL_TYPES
};

struct pb_cell_interval {
    int32_t months, days;
    int64_t micros;
};

/* Bytes of a cell; 0: variable, or no value. */
unsigned pb_cell_width(enum pb_cell_type type);

/* A column of a batch; its pointers are into the message. */
struct pb_cells {
    enum pb_cell_type type;
    unsigned scale;           /* of decimals */
    const uint64_t *validity; /* a bit per row, 1: there is a value; NULL: all rows have one */
    const void *values;       /* of fixed width */
    const uint32_t *ends;     /* of variable width: end offsets in bytes */
    const char *bytes;
};

struct pb_batch {
    uint32_t nrows;
    unsigned ncolumns;
    const struct pb_cells *columns;
};

static inline bool pb_cells_have(const struct pb_cells *c, uint32_t row)
{
    return c->type != PB_CELL_NULL && (!c->validity || (c->validity[row / 64] >> row % 64 & 1));
}

/* For a column without a fixed width. */
static inline const char *pb_cells_bytes(const struct pb_cells *c, uint32_t row, uint32_t *ret_length)
{
    uint32_t from = row ? c->ends[row - 1] : 0;

    *ret_length = c->ends[row] - from;
    return c->bytes + from;
}

/* Parses a PB_SQL_BATCH message. type and scale of each of the n columns must be set; the rest is filled in.
 * -EBADMSG: invalid. The columns are valid as long as the message. */
int pb_batch_read(struct pb_wire *m, struct pb_cells *columns, unsigned n, uint32_t *ret_nrows);

/* Pads a message to a multiple of eight bytes, where pb_batch_read expects arrays. */
void pb_batch_align(struct pb_wire *m);

/* Appends the text of one value to m; size: its bytes where the type has no fixed width. value may be
 * unaligned. */
enum pb_sql_kind pb_cell_text(struct pb_wire *m, enum pb_cell_type type, unsigned scale, const void *value,
                              size_t size);

/* A JSON string. */
void pb_cell_json(struct pb_wire *m, const char *text, size_t length);

/* --- a row as texts, for printing --- */

struct pb_sql_cell {
    enum pb_sql_kind kind;
    const char *text; /* not terminated */
    uint32_t length;
};

/* Zero it before first use. */
struct pb_row_text {
    struct pb_wire text;
    struct pb_sql_cell *cells; /* of the last row */
    unsigned room;
};

/* The cells are valid until the next call, and at most as long as the batch. -ENOMEM. */
int pb_row_text_take(struct pb_row_text *r, const struct pb_batch *batch, uint32_t row);
void pb_row_text_done(struct pb_row_text *r);
