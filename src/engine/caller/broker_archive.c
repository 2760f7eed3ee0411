/* broker_archive: see broker_archive.h. */
#include "engine/caller/broker_archive.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TABLES = 128 };

struct archive_tables {
    struct pb_wire *to;
    uint32_t n;
};

static int put_table(void *arg, const char *table, const char *columns)
{
    struct archive_tables *t = arg;

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

/* The archived run of an arena; NULL: none. */
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
    struct archive_tables t = {.to = to};
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

struct archive_answer {
    struct pb_wire *to;
    int64_t from, until; /* us */
    int64_t oldest;      /* ns */
    bool earlier;        /* there are days before the listed ones */
    uint32_t n, skipped;
};

struct archived {
    unsigned arena;
    const struct pb_archive_run *run;
};

static int by_partition(const void *a, const void *b)
{
    const struct archived *x = a, *y = b;
    int order = strcmp(x->run->partition, y->run->partition);
    return order ? order : x->arena < y->arena ? -1 : 1;
}

static void put_run(const struct archived *of, const struct pb_archive_files *files, struct archive_answer *a)
{
    size_t n, first = pb_archive_files_of(files, of->run->id, &n);

    for (size_t i = first; i < first + n; i++) {
        const struct pb_archive_name *name = &files->at[i].name;
        if (name->first > INT64_MIN / 1000 && name->first < INT64_MAX / 1000 &&
            name->first * 1000 < a->oldest)
            a->oldest = name->first * 1000;
        if (name->last < a->from || name->first > a->until) {
            a->skipped++;
            continue;
        }
        a->n++;
        pb_wire_put_u32(a->to, of->arena);
        pb_wire_put_text(a->to, files->at[i].path, strlen(files->at[i].path));
    }
}

/* A partition may have files of thousands of runs: list it once for all of them. */
static int put_runs(const struct pb_sql_query *q, struct pb_archive_lists *lists, const char *table,
                    const struct pb_archive_days *days, struct archive_answer *a)
{
    unsigned narenas = pb_broker_arenas(q), n = 0;
    _cleanup_free_ struct archived *all = calloc(narenas + 1, sizeof(*all));
    const struct pb_archive_files *files = NULL;
    int r = all ? 0 : -ENOMEM;

    for (unsigned i = 0; r == 0 && i < narenas; i++) {
        const struct pb_archive_run *run = archived(q, i);
        if (run)
            all[n++] = (struct archived){i, run};
    }
    if (n)
        qsort(all, n, sizeof(*all), by_partition);
    for (unsigned i = 0; r == 0 && i < n; i++) {
        bool earlier = false;
        if (i == 0 || strcmp(all[i].run->partition, all[i - 1].run->partition) != 0)
            r = pb_archive_partition_read(lists, q->archive, all[i].run->partition, table, days, &files,
                                          &earlier);
        a->earlier = a->earlier || earlier;
        if (r == 0)
            put_run(&all[i], files, a);
    }
    return r;
}

/* Days before the range matter only for the time of the oldest row. If a listed file begins before the range,
 * that time is known. */
static int put_range(const struct pb_sql_query *q, struct pb_archive_lists *lists, const char *table,
                     struct archive_answer *a)
{
    struct pb_archive_days days = {a->from, a->until, true};

    int r = put_runs(q, lists, table, &days, a);
    if (r == 0 && a->earlier && a->oldest / 1000 > a->from) {
        days = (struct pb_archive_days){INT64_MIN, a->from - 86400 * INT64_C(1000000), false};
        r = put_runs(q, lists, table, &days, a);
    }
    return r;
}

int pb_broker_put_files(const struct pb_sql_query *q, struct pb_archive_lists *lists, struct pb_wire *which,
                        struct pb_wire *to, struct pb_sql_stats *stats)
{
    struct archive_answer a = {.to = to, .oldest = INT64_MAX};
    uint32_t length;
    char table[128];

    const char *text = pb_wire_text(which, &length);
    a.from = floor_us((int64_t)pb_wire_u64(which));
    a.until = floor_us((int64_t)pb_wire_u64(which));
    bool last = pb_wire_u32(which);
    if (!pb_wire_ok(which) || !q->archive || length >= sizeof(table) || memchr(text, '/', length))
        return -EBADMSG;
    snprintf(table, sizeof(table), "%.*s", (int)length, text);
    pb_wire_begin(to, PB_SQL_FILES);
    /* Filled in later: errno, the oldest row, the number of files. */
    pb_wire_put_u32(to, 0);
    pb_wire_put_u64(to, 0);
    pb_wire_put_u32(to, 0);
    int r = put_range(q, lists, table, &a);
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
