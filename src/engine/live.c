/* live: see live.h; the tables about tables are here, those about the process in live_proc.c. */
#include "engine/live.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "engine/known.h"
#include "table/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SEGMENT = 1 << 20 };
static const uint64_t MOST_BYTES = 256u << 20;

static void add_string(struct pb_row *row, unsigned column, const char *text)
{
    if (text && text[0])
        pb_set_string(row, column, text, strlen(text));
}

void pb_live_add_strings(struct pb_table *t, const char *const *values, unsigned n)
{
    struct pb_row row;

    if (pb_row_begin(t, &row) < 0)
        return;
    for (unsigned i = 0; i < n; i++)
        add_string(&row, i, values[i]);
    pb_row_commit(&row);
}

static int read_config(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    return source->config ? source->config(source, t, err) : 0;
}

static int read_backtrace(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    return source->backtrace ? source->backtrace(source->arg, source->pid, source->locals, t, err) : 0;
}

/* --- probing.tables and probing.columns --- */

enum { T_NAME, T_KIND, T_IN_TARGET, T_ROWS, T_BYTES, T_FIRST, T_LAST, T_DROPPED, T_RECYCLED, T_COMMENT };

/* Times in an arena are of the monotonic clock. */
static void set_time(struct pb_row *row, unsigned column, int64_t utc)
{
    struct timespec mono, real;

    clock_gettime(CLOCK_MONOTONIC, &mono);
    clock_gettime(CLOCK_REALTIME, &real);
    int64_t offset = (real.tv_sec - mono.tv_sec) * INT64_C(1000000000) + real.tv_nsec - mono.tv_nsec;
    if (utc)
        pb_set_timestamp(row, column, utc - offset);
}

static void add_table(struct pb_table *t, const char *name, const char *kind, const char *comment,
                      const struct pb_table_stats *stats, const struct pb_table_info *info)
{
    struct pb_row row;

    if (pb_row_begin(t, &row) < 0)
        return;
    add_string(&row, T_NAME, name);
    add_string(&row, T_KIND, kind);
    pb_set_bool(&row, T_IN_TARGET, false); /* no table needs the process yet */
    if (stats) {
        pb_set_i64(&row, T_ROWS, (int64_t)stats->rows);
        pb_set_i64(&row, T_BYTES, (int64_t)stats->bytes);
        set_time(&row, T_FIRST, stats->first);
        set_time(&row, T_LAST, stats->last);
        pb_set_i64(&row, T_DROPPED, info ? (int64_t)info->dropped : 0);
        pb_set_i64(&row, T_RECYCLED, info ? (int64_t)info->recycled : 0);
    }
    add_string(&row, T_COMMENT, comment);
    pb_row_commit(&row);
}

static struct pb_reader *open_recorded(const struct pb_live_source *source)
{
    struct pb_reader *reader = NULL;

    if (source->arena_fd < 0 || pb_reader_open(source->arena_fd, &reader, NULL) < 0)
        return NULL;
    return reader;
}

static int read_tables(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    struct pb_reader *reader = open_recorded(source);

    for (unsigned i = 0; i < pb_nknown; i++) {
        const struct pb_table_spec *spec = &pb_known[i].spec;
        struct pb_table_stats none = {0};
        if (pb_known[i].live || !reader || pb_reader_find(reader, spec->name) < 0)
            add_table(t, spec->name, pb_known[i].live ? "live" : "recorded", spec->comment,
                      pb_known[i].live ? NULL : &none, NULL);
    }
    for (unsigned i = 0; reader && i < pb_reader_ntables(reader); i++) {
        struct pb_table_info info;
        struct pb_table_stats stats;
        if (pb_reader_table(reader, i, &info) == 0 && !pb_known_find(info.name) &&
            pb_reader_stats(reader, i, &stats) == 0)
            add_table(t, info.name, "recorded", info.comment, &stats, &info);
    }
    pb_reader_close(reader);
    return 0;
}

static int read_columns(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    struct pb_reader *reader = open_recorded(source);
    struct pb_table_info info;

    for (unsigned i = 0; i < pb_nknown; i++) {
        const struct pb_table_spec *spec = &pb_known[i].spec;
        bool recorded = reader && !pb_known[i].live && pb_reader_find(reader, spec->name) >= 0;
        for (unsigned k = 0; k < spec->ncolumns && !recorded; k++)
            pb_live_add_strings(t,
                                (const char *const[]){spec->name, spec->columns[k].name,
                                                      spec->columns[k].unit, spec->columns[k].comment},
                                4);
    }
    for (unsigned i = 0; reader && i < pb_reader_ntables(reader); i++) {
        if (pb_reader_table(reader, i, &info) < 0)
            continue;
        for (unsigned k = 0; k < info.ncolumns; k++) {
            const struct pb_column_info *c = &info.columns[k];
            pb_live_add_strings(t, (const char *const[]){info.name, c->name, c->unit, c->comment}, 4);
        }
    }
    pb_reader_close(reader);
    return 0;
}

/* --- which is read how --- */

static const struct {
    const char *name;
    int (*read)(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
    bool process; /* needs a live one */
} readers[] = {
    {"system.process", pb_live_process, true},  {"system.threads", pb_live_threads, true},
    {"system.maps", pb_live_maps, true},        {"system.fds", pb_live_fds, true},
    {"system.envs", pb_live_envs, true},        {"system.cgroup", pb_live_cgroup, true},
    {"python.backtrace", read_backtrace, true}, {"probing.config", read_config, false},
    {"probing.tables", read_tables, false},     {"probing.columns", read_columns, false},
};

static int fill(const char *name, struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]); i++)
        if (strcmp(readers[i].name, name) == 0)
            /* Of a process that has ended, or where none was named, there is nothing to see now. */
            return readers[i].process && (source->dead || source->pid == 0) ? 0
                                                                            : readers[i].read(t, source, err);
    return pb_fail(err, -ENOENT, "%s has no reader", name);
}

int pb_live_read(const char *name, const struct pb_live_source *source, struct pb_err *err)
{
    const struct pb_known *known = pb_known_find(name);
    const struct pb_arena_options options = {
        .bound = MOST_BYTES, .segment_size = SEGMENT, .max_tables = 4, .schema_bytes = 1 << 16};
    struct pb_arena *arena;
    struct pb_table *table;

    if (!known)
        return pb_fail(err, -ENOENT, "there is no live table %s", name);
    int r = pb_arena_create(PB_ARENA_MEMFD, "probing-live", &options, &arena);
    if (r < 0)
        return pb_fail(err, r, "no memory for %s: %s", name, strerror(-r));
    r = pb_table_new(arena, &known->spec, &table);
    if (r == 0)
        r = fill(name, table, source, err);
    int fd = r == 0 ? fcntl(pb_arena_fd(arena), F_DUPFD_CLOEXEC, 0) : r;
    if (r == 0 && fd < 0)
        fd = pb_fail(err, -errno, "%s cannot be handed over: %s", name, strerror(errno));
    pb_arena_close(arena);
    return fd;
}
