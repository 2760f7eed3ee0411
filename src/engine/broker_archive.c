/* broker_archive: see broker_archive.h. */
#include "engine/broker_archive.h"

#include "engine/archive_list.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TABLES = 128 };

struct tables {
    struct pb_wire *to;
    uint32_t n;
};

static int put_table(void *arg, const char *table, const char *columns)
{
    struct tables *t = arg;

    pb_wire_put_text(t->to, table, strlen(table));
    pb_wire_put_text(t->to, columns, strlen(columns));
    return ++t->n == MAX_TABLES;
}

void pb_broker_put_tables(const struct pb_sql_query *q, const struct pb_sql_source *s, struct pb_wire *to)
{
    struct tables t = {.to = to};
    size_t at = to->size;

    pb_wire_put_u32(to, 0);
    if (!q->archive || !s->archived)
        return;
    pb_archive_tables(q->archive, s->archived->id, put_table, &t);
    if (!to->failed)
        memcpy(to->data + at, &t.n, sizeof(t.n));
}

static int64_t floor_us(int64_t ns)
{
    return ns / 1000 - (ns % 1000 < 0);
}

struct answer {
    struct pb_wire *to;
    int64_t from, until; /* us */
    int64_t oldest;      /* ns */
    uint32_t n, skipped;
};

static int put_source(const struct pb_sql_query *q, unsigned source, const char *table, struct answer *a)
{
    struct pb_archive_files files;

    int r = pb_archive_files_read(q->archive, q->sources[source].archived, table, &files);
    if (r < 0)
        return r;
    for (size_t i = 0; i < files.n; i++) {
        const struct pb_archive_name *name = &files.at[i].name;
        if (name->first > INT64_MIN / 1000 && name->first < INT64_MAX / 1000 &&
            name->first * 1000 < a->oldest)
            a->oldest = name->first * 1000;
        if (name->last < a->from || name->first > a->until) {
            a->skipped++;
            continue;
        }
        a->n++;
        pb_wire_put_u32(a->to, source);
        pb_wire_put_text(a->to, files.at[i].path, strlen(files.at[i].path));
    }
    pb_archive_files_done(&files);
    return 0;
}

int pb_broker_put_files(const struct pb_sql_query *q, struct pb_wire *which, struct pb_wire *to,
                        struct pb_sql_stats *stats)
{
    struct answer a = {.to = to, .oldest = INT64_MAX};
    uint32_t length;
    char table[128];
    int r = 0;

    const char *text = pb_wire_text(which, &length);
    a.from = floor_us((int64_t)pb_wire_u64(which));
    a.until = floor_us((int64_t)pb_wire_u64(which));
    if (!pb_wire_ok(which) || !q->archive || length >= sizeof(table) || memchr(text, '/', length))
        return -EBADMSG;
    snprintf(table, sizeof(table), "%.*s", (int)length, text);
    pb_wire_begin(to, PB_SQL_FILES);
    /* Filled in when they are known: errno, the oldest row, how many files. */
    pb_wire_put_u32(to, 0);
    pb_wire_put_u64(to, 0);
    pb_wire_put_u32(to, 0);
    for (unsigned i = 0; r == 0 && i < q->nsources; i++)
        if (q->sources[i].archived)
            r = put_source(q, i, table, &a);
    if (to->failed)
        return -EMSGSIZE;
    uint32_t number = (uint32_t)-r;
    memcpy(to->data, &number, sizeof(number));
    memcpy(to->data + 4, &a.oldest, sizeof(a.oldest));
    memcpy(to->data + 12, &a.n, sizeof(a.n));
    stats->files_read += a.n;
    stats->files_skipped += a.skipped;
    return 0;
}
