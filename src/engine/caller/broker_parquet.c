/* broker_parquet: see broker_parquet.h. */
#include "engine/caller/broker_parquet.h"

#include "base/err.h"
#include "engine/caller/broker_slot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 256 << 10 };

struct pb_parquet {
    int socket;
    struct pb_wire out;
    uint32_t rows;
};

int pb_parquet_open(const char *file, struct pb_parquet **ret, struct pb_err *err)
{
    struct pb_parquet *p = calloc(1, sizeof(*p));

    if (!p)
        return pb_fail(err, -ENOMEM, "out of memory");
    p->socket = pb_worker_start_writer(file, err);
    if (p->socket < 0) {
        int r = p->socket;
        free(p);
        return r;
    }
    *ret = p;
    return 0;
}

static int flush_rows(struct pb_parquet *p)
{
    if (p->rows == 0 || p->out.failed)
        return p->out.failed ? -EMSGSIZE : 0;
    memcpy(p->out.data, &p->rows, sizeof(p->rows));
    p->rows = 0;
    return pb_wire_send(p->socket, &p->out, 0);
}

static void begin_rows(struct pb_parquet *p)
{
    pb_wire_begin(&p->out, PB_SQL_ROWS);
    pb_wire_put_u32(&p->out, 0);
}

/* A writer that has given up reports the reason at the end: until then a failed send is no error. */
static int ignore_closed_socket(int r)
{
    return r == -EPIPE || r == -ECONNRESET ? 0 : r;
}

int pb_parquet_columns(struct pb_parquet *p, const struct pb_sql_column *columns, unsigned n)
{
    int r = flush_rows(p);

    pb_wire_begin(&p->out, PB_SQL_COLUMNS);
    pb_wire_put_u32(&p->out, n);
    for (unsigned i = 0; i < n; i++) {
        pb_wire_put_text(&p->out, columns[i].name, strlen(columns[i].name));
        pb_wire_put_text(&p->out, columns[i].type, strlen(columns[i].type));
    }
    if (r == 0)
        r = pb_wire_send(p->socket, &p->out, 0);
    begin_rows(p);
    return ignore_closed_socket(r);
}

int pb_parquet_row(struct pb_parquet *p, const struct pb_sql_cell *cells, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        uint8_t kind = (uint8_t)cells[i].kind;
        pb_wire_put(&p->out, &kind, 1);
        pb_wire_put_text(&p->out, cells[i].text, cells[i].length);
    }
    p->rows++;
    if (p->out.size < BLOCK)
        return 0;
    int r = flush_rows(p);
    begin_rows(p);
    return ignore_closed_socket(r);
}

int pb_parquet_end(struct pb_parquet *p, struct pb_err *err)
{
    struct pb_wire in = {0};
    uint32_t length = 0;

    int r = ignore_closed_socket(flush_rows(p));
    pb_wire_begin(&p->out, PB_SQL_DONE);
    if (r == 0)
        r = ignore_closed_socket(pb_wire_send(p->socket, &p->out, 0));
    if (r == 0)
        r = pb_wire_receive(p->socket, &in, 0);
    uint32_t number = r == 0 ? pb_wire_u32(&in) : 0;
    const char *text = r == 0 ? pb_wire_text(&in, &length) : NULL;
    if (r < 0)
        pb_fail(err, r, "the Parquet file was not written: %s", strerror(-r));
    else if (in.type != PB_SQL_DONE)
        r = pb_fail(err, number && number < 4096 ? -(int)number : -EIO,
                    "the Parquet file was not written: %.*s", (int)length, text ? text : "");
    pb_wire_done(&in);
    return r;
}

void pb_parquet_free(struct pb_parquet *p)
{
    if (!p)
        return;
    close(p->socket);
    pb_wire_done(&p->out);
    free(p);
}
