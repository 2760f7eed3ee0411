/* sent: see sent.h. */
#include "engine/shared/sent.h"

#include "base/err.h"
#include "control/packet.h"
#include "table/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_COLUMNS = 1024, HEAD = 8, AHEAD = HEAD - PB_PACKET_HEAD };

int pb_sent_next(const uint8_t *data, size_t size, size_t *at, struct pb_sent_frame *ret)
{
    size_t length = 0;

    if (*at == size)
        return 0;
    if (*at > size || size - *at < HEAD)
        return -EBADMSG;
    int type = pb_packet_parse(data + *at + AHEAD, PB_PACKET_HEAD, PB_SQL_MAX_MESSAGE, &length);
    size_t left = size - *at - HEAD, whole = (length + 7) & ~(size_t)7;
    if (type <= 0 || type >= PB_SQL_MESSAGE_END || whole > left)
        return -EBADMSG;
    *ret =
        (struct pb_sent_frame){.type = (uint32_t)type, .size = (uint32_t)length, .data = data + *at + HEAD};
    *at += HEAD + whole;
    return 1;
}

int pb_sent_write(FILE *out, const struct pb_wire *m)
{
    static const char zeros[8];
    unsigned char head[HEAD] = {0};
    size_t padding = -m->size & 7;

    pb_packet_head(head + AHEAD, (unsigned char)m->type, m->size);
    if (m->failed || fwrite(head, sizeof(head), 1, out) != 1 ||
        (m->size && fwrite(m->data, m->size, 1, out) != 1) ||
        (padding && fwrite(zeros, padding, 1, out) != 1))
        return -EIO;
    return 0;
}

void pb_sent_hello(struct pb_wire *m, const char *version)
{
    pb_wire_begin(m, PB_SQL_HELLO);
    pb_wire_put_u32(m, PB_SQL_VERSION);
    pb_wire_put_text(m, version, strlen(version));
}

void pb_batch_put(struct pb_wire *m, const struct pb_batch *batch)
{
    pb_wire_begin(m, PB_SQL_BATCH);
    pb_wire_put_u32(m, batch->nrows);
    for (unsigned i = 0; i < batch->ncolumns; i++) {
        const struct pb_cells *c = &batch->columns[i];
        unsigned width = pb_cell_width(c->type);
        pb_wire_put_u32(m, c->validity != NULL);
        if (c->type == PB_CELL_NULL)
            continue;
        if (c->validity) {
            pb_batch_align(m);
            pb_wire_put(m, c->validity, ((size_t)batch->nrows + 63) / 64 * 8);
        }
        pb_batch_align(m);
        if (width) {
            pb_wire_put(m, c->values, (size_t)batch->nrows * width);
        } else {
            pb_wire_put(m, c->ends, (size_t)batch->nrows * sizeof(*c->ends));
            pb_batch_align(m);
            pb_wire_put(m, c->bytes, batch->nrows ? c->ends[batch->nrows - 1] : 0);
        }
    }
}

/* --- reading --- */

struct sent_reading {
    const struct pb_sent_check *check;
    struct pb_cells *cells;
    unsigned ncolumns;
    int rank; /* its column; -1: none */
};

/* A frame as a message, which is only read. */
static struct pb_wire message_of(const struct pb_sent_frame *f)
{
    return (struct pb_wire){.type = f->type, .data = (uint8_t *)(uintptr_t)f->data, .size = f->size};
}

static int check_columns(struct sent_reading *r, const struct pb_sent_frame *f)
{
    struct pb_wire m = message_of(f);
    uint32_t n = pb_wire_u32(&m);

    free(r->cells);
    r->cells = NULL;
    if (!pb_wire_ok(&m) || n == 0 || n > MAX_COLUMNS || !(r->cells = calloc(n, sizeof(*r->cells))))
        return -EBADMSG;
    r->ncolumns = n;
    r->rank = -1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t length, ignored;
        const char *name = pb_wire_text(&m, &length), *type = pb_wire_text(&m, &ignored);
        uint32_t cells = pb_wire_u32(&m), scale = pb_wire_u32(&m);
        if (!pb_wire_ok(&m) || !name || !type || cells >= PB_CELL_TYPES || scale > 38)
            return -EBADMSG;
        r->cells[i] = (struct pb_cells){.type = (enum pb_cell_type)cells, .scale = scale};
        if (length == 4 && strncasecmp(name, "rank", 4) == 0)
            r->rank = (int)i;
    }
    /* A rank that is no rank could not be looked at. */
    if (r->rank >= 0 && r->cells[r->rank].type != PB_CELL_I32)
        return -EBADMSG;
    return 0;
}

static bool is_rank_of_node(const struct pb_sent_check *check, int32_t rank)
{
    for (unsigned i = 0; i < check->nranks; i++)
        if (check->ranks[i] == rank)
            return true;
    return check->nranks == 0;
}

static int check_batch(struct sent_reading *r, const struct pb_sent_frame *f, struct pb_sent_part *part,
                       struct pb_err *err)
{
    struct pb_wire m = message_of(f);
    uint32_t nrows;

    if (!r->cells || pb_batch_read(&m, r->cells, r->ncolumns, &nrows) < 0)
        return -EBADMSG;
    part->rows += nrows;
    if (r->check->most && part->rows > r->check->most)
        return pb_fail(err, -E2BIG, "it sent more rows than requested");
    if (r->rank < 0)
        return 0;
    const struct pb_cells *c = &r->cells[r->rank];
    const int32_t *ranks = c->values;
    for (uint32_t i = 0; i < nrows; i++)
        if (pb_cells_have(c, i) && !is_rank_of_node(r->check, ranks[i]))
            return pb_fail(err, -EPERM, "it sends rows of rank %d, which does not run there", (int)ranks[i]);
    return 0;
}

static int check_hello(const struct pb_sent_frame *f, const char *version, struct pb_err *err)
{
    struct pb_wire m = message_of(f);
    uint32_t number = pb_wire_u32(&m), length = 0;
    const char *text = f->type == PB_SQL_HELLO ? pb_wire_text(&m, &length) : NULL;

    if (!text || length > 64 || !pb_utf8_valid(text, length))
        return pb_fail(err, -EBADMSG, "malformed answer");
    if (number != PB_SQL_VERSION || length != strlen(version) || memcmp(text, version, length) != 0)
        return pb_fail(err, -EPROTO, "it has version %.*s, and this is %s", (int)length, text, version);
    return 0;
}

static int read_error(const struct pb_sent_frame *f, struct pb_sent_part *part)
{
    struct pb_wire m = message_of(f);
    uint32_t number = pb_wire_u32(&m), length;
    const char *text = pb_wire_text(&m, &length);

    if (!text || number == 0 || number > 4095 || !pb_utf8_valid(text, length))
        return -EBADMSG;
    part->error = (int)number;
    part->frames = NULL;
    part->size = 0;
    /* Whole characters only. */
    size_t n = length < sizeof(part->text) ? length : sizeof(part->text) - 1;
    while (n && n < length && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    memcpy(part->text, text, n);
    part->text[n] = '\0';
    return 0;
}

static int read_part(struct sent_reading *r, const uint8_t *data, size_t size, size_t *at,
                     struct pb_sent_part *part, struct pb_err *err)
{
    size_t from = *at;
    struct pb_sent_frame f;
    int result = 1;

    *part = (struct pb_sent_part){.frames = data + from};
    free(r->cells);
    r->cells = NULL;
    while (result > 0 && (result = pb_sent_next(data, size, at, &f)) > 0) {
        if (f.type == PB_SQL_DONE || f.type == PB_SQL_ERROR) {
            part->size = *at - from;
            return f.type == PB_SQL_ERROR ? read_error(&f, part) : 0;
        }
        int good = f.type == PB_SQL_COLUMNS && !r->cells ? check_columns(r, &f)
                   : f.type == PB_SQL_BATCH              ? check_batch(r, &f, part, err)
                   : f.type == PB_SQL_NOTE               ? 0
                                                         : -EBADMSG;
        result = good < 0 ? good : 1;
    }
    return result < 0 ? result : pb_fail(err, -EBADMSG, "its answer was cut short");
}

int pb_sent_read(const uint8_t *data, size_t size, const struct pb_sent_check *check,
                 struct pb_sent_part *parts, struct pb_err *err)
{
    struct sent_reading r = {.check = check, .rank = -1};
    struct pb_sent_frame f;
    size_t at = 0;

    err->text[0] = '\0';
    if (size == 0)
        return pb_fail(err, -EBADMSG, "its answer was cut short");
    int result = pb_sent_next(data, size, &at, &f) > 0 ? check_hello(&f, check->version, err) : -EBADMSG;
    for (unsigned i = 0; result == 0 && i < check->nparts; i++)
        result = read_part(&r, data, size, &at, &parts[i], err);
    if (result == 0 && at != size)
        result = -EBADMSG;
    free(r.cells);
    return result < 0 && !err->text[0] ? pb_fail(err, result, "malformed answer") : result;
}
