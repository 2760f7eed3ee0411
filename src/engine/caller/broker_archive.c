/* broker_archive: see broker_archive.h. */
#include "engine/caller/broker_archive.h"

#include "engine/archive/archive_list.h"

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

unsigned pb_broker_arenas(const struct pb_sql_query *q)
{
    unsigned n = q->nsources;

    for (unsigned i = 0; i < q->nsources; i++)
        n += q->sources[i].live.nmore;
    return n;
}

/* What the archive holds of an arena; NULL: nothing. */
static const struct pb_archive_run *archived(const struct pb_sql_query *q, unsigned arena)
{
    if (arena < q->nsources)
        return q->sources[arena].archived;
    arena -= q->nsources;
    for (unsigned i = 0; i < q->nsources; i++) {
        if (arena < q->sources[i].live.nmore)
            return q->sources[i].more[arena];
        arena -= q->sources[i].live.nmore;
    }
    return NULL;
}

void pb_broker_put_tables(const struct pb_sql_query *q, unsigned arena, struct pb_wire *to)
{
    const struct pb_archive_run *run = archived(q, arena);
    struct tables t = {.to = to};
    size_t at = to->size;

    pb_wire_put_u32(to, 0);
    if (!q->archive || !run)
        return;
    pb_archive_tables(q->archive, run->id, put_table, &t);
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

static int put_arena(const struct pb_sql_query *q, unsigned arena, const char *table, struct answer *a)
{
    const struct pb_archive_run *run = archived(q, arena);
    struct pb_archive_files files;

    int r = run ? pb_archive_files_read(q->archive, run, table, &files) : 0;
    if (!run || r < 0)
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
        pb_wire_put_u32(a->to, arena);
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
    bool last = pb_wire_u32(which);
    if (!pb_wire_ok(which) || !q->archive || length >= sizeof(table) || memchr(text, '/', length))
        return -EBADMSG;
    snprintf(table, sizeof(table), "%.*s", (int)length, text);
    pb_wire_begin(to, PB_SQL_FILES);
    /* Filled in when they are known: errno, the oldest row, how many files. */
    pb_wire_put_u32(to, 0);
    pb_wire_put_u64(to, 0);
    pb_wire_put_u32(to, 0);
    for (unsigned i = 0; r == 0 && i < pb_broker_arenas(q); i++)
        r = put_arena(q, i, table, &a);
    if (to->failed)
        return -EMSGSIZE;
    uint32_t number = (uint32_t)-r;
    memcpy(to->data, &number, sizeof(number));
    memcpy(to->data + 4, &a.oldest, sizeof(a.oldest));
    memcpy(to->data + 12, &a.n, sizeof(a.n));
    stats->files_read += last ? a.n : 0;
    stats->files_skipped += last ? a.skipped : 0;
    return 0;
}
