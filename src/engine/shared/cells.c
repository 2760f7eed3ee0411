/* cells: see cells.h. The text of single values is in cell_text.c. */
#include "engine/shared/cells.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

unsigned pb_cell_width(enum pb_cell_type type)
{
    static const uint8_t widths[PB_CELL_TYPES] = {
#define PB_SQL_TYPE(cell, width, duckdb, name, node, arrow) [PB_CELL_##cell] = (width),
#include "engine/shared/types.def"
    };
    return type < PB_CELL_TYPES ? widths[type] : 0;
}

void pb_batch_align(struct pb_wire *m)
{
    static const char zeros[8];
    pb_wire_put(m, zeros, -m->size & 7);
}

/* The next `size` bytes of the message, from a multiple of eight on. NULL: there are fewer. */
static const void *take_array(struct pb_wire *m, size_t size)
{
    size_t from = (m->at + 7) & ~(size_t)7;

    if (m->failed || from > m->size || size > m->size - from) {
        m->failed = true;
        return NULL;
    }
    m->at = from + size;
    return m->data + from;
}

static int read_texts(struct pb_wire *m, struct pb_cells *c, uint32_t nrows)
{
    uint32_t end = 0;

    c->ends = take_array(m, (size_t)nrows * sizeof(*c->ends));
    for (uint32_t i = 0; c->ends && i < nrows; i++) {
        if (c->ends[i] < end)
            return -EBADMSG;
        end = c->ends[i];
    }
    c->bytes = take_array(m, end);
    return c->ends && c->bytes ? 0 : -EBADMSG;
}

int pb_batch_read(struct pb_wire *m, struct pb_cells *columns, unsigned n, uint32_t *ret_nrows)
{
    uint32_t nrows = pb_wire_u32(m);
    int r = pb_wire_ok(m) && nrows <= PB_SQL_MAX_MESSAGE ? 0 : -EBADMSG;

    for (unsigned i = 0; r == 0 && i < n; i++) {
        struct pb_cells *c = &columns[i];
        unsigned width = pb_cell_width(c->type);
        uint32_t some_are_null = pb_wire_u32(m);
        *c = (struct pb_cells){.type = c->type, .scale = c->scale};
        if (c->type == PB_CELL_NULL)
            continue;
        if (some_are_null && !(c->validity = take_array(m, ((size_t)nrows + 63) / 64 * 8)))
            r = -EBADMSG;
        else if (width)
            r = (c->values = take_array(m, (size_t)nrows * width)) ? 0 : -EBADMSG;
        else
            r = read_texts(m, c, nrows);
    }
    if (r < 0 || !pb_wire_ok(m))
        return -EBADMSG;
    *ret_nrows = nrows;
    return 0;
}

/* --- a row as texts --- */

int pb_row_text_take(struct pb_row_text *r, const struct pb_batch *batch, uint32_t row)
{
    if (r->room < batch->ncolumns) {
        struct pb_sql_cell *more = realloc(r->cells, batch->ncolumns * sizeof(*more));
        if (!more)
            return -ENOMEM;
        r->cells = more;
        r->room = batch->ncolumns;
    }
    pb_wire_begin(&r->text, 0);
    for (unsigned i = 0; i < batch->ncolumns; i++) {
        const struct pb_cells *c = &batch->columns[i];
        struct pb_sql_cell *cell = &r->cells[i];
        unsigned width = pb_cell_width(c->type);
        uint32_t length = width;
        size_t start = r->text.size;
        *cell = (struct pb_sql_cell){.kind = PB_SQL_NULL, .text = ""};
        if (!pb_cells_have(c, row))
            continue;
        const char *value =
            width ? (const char *)c->values + (size_t)row * width : pb_cells_bytes(c, row, &length);
        if (c->type == PB_CELL_TEXT || c->type == PB_CELL_JSON || c->type == PB_CELL_BITS) {
            *cell = (struct pb_sql_cell){
                .kind = c->type == PB_CELL_JSON ? PB_SQL_JSON : PB_SQL_TEXT, .text = value, .length = length};
            continue;
        }
        cell->kind = pb_cell_text(&r->text, c->type, c->scale, value, length);
        cell->length = (uint32_t)(r->text.size - start);
        cell->text = NULL;
    }
    if (r->text.failed)
        return -ENOMEM;
    /* Pointers are set only now: the buffer does not move any more. */
    const char *at = r->text.data ? (const char *)r->text.data : "";
    for (unsigned i = 0; i < batch->ncolumns; i++)
        if (!r->cells[i].text) {
            r->cells[i].text = at;
            at += r->cells[i].length;
        }
    return 0;
}

void pb_row_text_done(struct pb_row_text *r)
{
    pb_wire_done(&r->text);
    free(r->cells);
    *r = (struct pb_row_text){0};
}
