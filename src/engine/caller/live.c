/* live: see live.h. Tables about tables are here, tables about the process in live_proc.c. */
#include "engine/caller/live.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "engine/archive/archive_count.h"
#include "engine/archive/archive_list.h"
#include "engine/shared/known.h"
#include "table/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SEGMENT = 1 << 20, SMALL_SEGMENT = 1 << 17, MOST_ARCHIVED = 1024 };
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
    return source->backtrace
               ? source->backtrace(source->arg, source->pid, pb_live_names(source, "locals"), t, err)
               : 0;
}

static int read_nothing(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    return 0;
}

bool pb_live_names(const struct pb_live_source *source, const char *column)
{
    for (unsigned i = 0; i < source->nnamed; i++)
        if (strcmp(source->named[i], column) == 0)
            return true;
    return false;
}

static int read_memory_now(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    return source->memory ? source->memory(source->arg, source->pid, t, err) : 0;
}

/* --- probing.tables and probing.columns --- */

#define T_ID(id, ...) T_##id,
enum { PB_TABLE_TABLES(PB_NOTHING, T_ID) };

/* Times in an arena are on the monotonic clock. */
void pb_live_set_time(struct pb_row *row, unsigned column, int64_t utc)
{
    struct timespec mono, real;

    clock_gettime(CLOCK_MONOTONIC, &mono);
    clock_gettime(CLOCK_REALTIME, &real);
    int64_t offset = (real.tv_sec - mono.tv_sec) * INT64_C(1000000000) + real.tv_nsec - mono.tv_nsec;
    if (utc)
        pb_set_timestamp(row, column, utc - offset);
}

static void add_table(struct pb_table *t, const char *name, const char *kind, bool asked, const char *comment,
                      const struct pb_table_stats *stats, const struct pb_table_info *info)
{
    struct pb_row row;

    if (pb_row_begin(t, &row) < 0)
        return;
    add_string(&row, T_NAME, name);
    add_string(&row, T_KIND, kind);
    pb_set_bool(&row, T_IN_TARGET, asked);
    if (stats) {
        pb_set_i64(&row, T_ROWS, (int64_t)stats->rows);
        pb_set_i64(&row, T_BYTES, (int64_t)stats->bytes);
        pb_live_set_time(&row, T_FIRST, stats->first);
        pb_live_set_time(&row, T_LAST, stats->last);
        pb_set_i64(&row, T_DROPPED, info ? (int64_t)info->dropped : 0);
        pb_set_i64(&row, T_RECYCLED, info ? (int64_t)info->recycled : 0);
    }
    add_string(&row, T_COMMENT, comment);
    pb_row_commit(&row);
}

/* A table with archived rows. */
struct archived_run {
    unsigned arena;
    char name[128];
    char *columns; /* as stored in the archive */
};

/* All arenas of a process, with their archived rows. */
struct recorded {
    const struct pb_live_source *source;
    struct pb_reader *at[1 + PB_LIVE_MORE]; /* NULL: only the archive exists */
    unsigned n;
    struct archived_run *archived;
    unsigned narchived;
};

static int add_archived(void *arg, const char *table, const char *columns)
{
    struct recorded *r = arg;
    struct archived_run *more = realloc(r->archived, (r->narchived + 1) * sizeof(*more));

    if (!more)
        return -ENOMEM;
    r->archived = more;
    more[r->narchived] = (struct archived_run){.arena = r->n, .columns = strdup(columns)};
    snprintf(more[r->narchived++].name, sizeof(more->name), "%s", table);
    return r->narchived == MOST_ARCHIVED;
}

static void open_recorded(const struct pb_live_source *source, struct recorded *ret)
{
    *ret = (struct recorded){.source = source};
    for (; ret->n < 1 + source->nmore; ret->n++) {
        const struct pb_archive_run *run = source->archive ? source->archived[ret->n] : NULL;
        int fd = ret->n ? source->more[ret->n - 1] : source->arena_fd;
        if (fd < 0 || pb_reader_open(fd, &ret->at[ret->n], NULL) < 0)
            ret->at[ret->n] = NULL;
        if (run)
            pb_archive_tables(source->archive, run->id, add_archived, ret);
    }
}

static void recorded_done(struct recorded *r)
{
    for (unsigned i = 0; i < r->n; i++)
        pb_reader_close(r->at[i]);
    for (unsigned i = 0; i < r->narchived; i++)
        free(r->archived[i].columns);
    free(r->archived);
}

static int find_in(const struct recorded *r, unsigned arena, const char *name)
{
    return r->at[arena] ? pb_reader_find(r->at[arena], name) : -ENOENT;
}

/* Whether one of the first n arenas has the table. */
static bool is_recorded(const struct recorded *r, unsigned n, const char *name)
{
    for (unsigned i = 0; i < n; i++)
        if (find_in(r, i, name) >= 0)
            return true;
    return false;
}

static bool is_archived(const struct recorded *r, unsigned n, const char *name)
{
    for (unsigned i = 0; i < n; i++)
        if (strcmp(r->archived[i].name, name) == 0)
            return true;
    return false;
}

/* A table in several arenas is one table, including their archived rows. */
static void sum_up(const struct recorded *r, const char *name, struct pb_table_stats *ret_stats,
                   struct pb_table_info *ret_info)
{
    struct pb_table_stats sum = {0};
    struct pb_table_info info;
    uint64_t dropped = 0, recycled = 0;

    for (unsigned i = 0; i < r->n; i++) {
        const struct pb_archive_run *run = r->source->archive ? r->source->archived[i] : NULL;
        struct pb_table_stats one = {0};
        int table = find_in(r, i, name);
        if (table >= 0 && pb_reader_table(r->at[i], (unsigned)table, &info) == 0 &&
            pb_reader_stats(r->at[i], (unsigned)table, &one) == 0) {
            dropped += info.dropped;
            recycled += info.recycled;
        }
        if (run)
            pb_archive_count(r->source->archive, run, name, table < 0 ? NULL : r->at[i],
                             table < 0 ? 0 : (unsigned)table, &one);
        sum.rows += one.rows;
        sum.bytes += one.bytes;
        sum.first = one.first && (!sum.first || one.first < sum.first) ? one.first : sum.first;
        sum.last = one.last > sum.last ? one.last : sum.last;
    }
    *ret_stats = sum;
    ret_info->dropped = dropped;
    ret_info->recycled = recycled;
}

static const char *known_comment(const char *name)
{
    for (unsigned i = 0; i < pb_nknown; i++)
        if (strcmp(pb_known[i].spec.name, name) == 0)
            return pb_known[i].spec.comment;
    return "";
}

static int read_tables(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    _cleanup_(recorded_done) struct recorded recorded;
    struct pb_table_info info;
    struct pb_table_stats stats = {0};

    open_recorded(source, &recorded);
    for (unsigned i = 0; i < pb_nknown; i++) {
        const struct pb_table_spec *spec = &pb_known[i].spec;
        if (pb_known[i].live || (!is_recorded(&recorded, recorded.n, spec->name) &&
                                 !is_archived(&recorded, recorded.narchived, spec->name)))
            add_table(t, spec->name, pb_known[i].live ? "live" : "recorded", pb_known[i].asked, spec->comment,
                      pb_known[i].live ? NULL : &stats, NULL);
    }
    for (unsigned k = 0; k < recorded.n; k++)
        for (unsigned i = 0; recorded.at[k] && i < pb_reader_ntables(recorded.at[k]); i++) {
            if (pb_reader_table(recorded.at[k], i, &info) < 0 || pb_known_find(info.name) ||
                is_recorded(&recorded, k, info.name))
                continue;
            sum_up(&recorded, info.name, &stats, &info);
            add_table(t, info.name, "recorded", false, info.comment, &stats, &info);
        }
    for (unsigned i = 0; i < recorded.narchived; i++) {
        const char *name = recorded.archived[i].name;
        if (pb_known_find(name) || is_recorded(&recorded, recorded.n, name) ||
            is_archived(&recorded, i, name))
            continue;
        sum_up(&recorded, name, &stats, &info);
        add_table(t, name, "recorded", false, known_comment(name), &stats, &info);
    }
    return 0;
}

/* Columns of a table that exists only in the archive. */
static void add_archived_columns(struct pb_table *t, const struct archived_run *a)
{
    struct pb_archive_columns *columns = calloc(1, sizeof(*columns));

    if (columns && a->columns)
        pb_archive_columns_read(a->columns, strlen(a->columns), columns);
    for (unsigned i = 0; columns && i < columns->n; i++)
        if (columns->at[i].stored)
            pb_live_add_strings(t,
                                (const char *const[]){a->name, columns->at[i].name, columns->at[i].unit,
                                                      columns->at[i].comment},
                                4);
    free(columns);
}

static int read_columns(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    _cleanup_(recorded_done) struct recorded recorded;
    struct pb_table_info info;

    open_recorded(source, &recorded);
    for (unsigned i = 0; i < pb_nknown; i++) {
        const struct pb_table_spec *spec = &pb_known[i].spec;
        bool by_others = !pb_known[i].live && (is_recorded(&recorded, recorded.n, spec->name) ||
                                               is_archived(&recorded, recorded.narchived, spec->name));
        for (unsigned k = 0; k < spec->ncolumns && !by_others; k++)
            pb_live_add_strings(t,
                                (const char *const[]){spec->name, spec->columns[k].name,
                                                      spec->columns[k].unit, spec->columns[k].comment},
                                4);
    }
    for (unsigned k = 0; k < recorded.n; k++)
        for (unsigned i = 0; recorded.at[k] && i < pb_reader_ntables(recorded.at[k]); i++) {
            if (pb_reader_table(recorded.at[k], i, &info) < 0 || is_recorded(&recorded, k, info.name))
                continue;
            for (unsigned c = 0; c < info.ncolumns; c++) {
                const struct pb_column_info *column = &info.columns[c];
                pb_live_add_strings(
                    t, (const char *const[]){info.name, column->name, column->unit, column->comment}, 4);
            }
        }
    for (unsigned i = 0; i < recorded.narchived; i++)
        if (!is_recorded(&recorded, recorded.n, recorded.archived[i].name) &&
            !is_archived(&recorded, i, recorded.archived[i].name))
            add_archived_columns(t, &recorded.archived[i]);
    return 0;
}

/* --- probing.sources --- */

void pb_live_name(const struct pb_live_source *source, char *ret, size_t size)
{
    snprintf(ret, size, source->ranked ? "%s (process %d)" : "%sprocess %d",
             source->ranked ? source->label : "", (int)source->pid);
}

#define S_ID(id, ...) S_##id,
enum { PB_TABLE_SOURCES(PB_NOTHING, S_ID) };

static void add_source(struct pb_table *t, const struct pb_live_source *source, const char *state,
                       const char *rows, const char *error)
{
    struct pb_row row;

    if (pb_row_begin(t, &row) < 0)
        return;
    if (source->pid)
        pb_set_i32(&row, S_PID, source->pid);
    add_string(&row, S_LABEL, source->label);
    add_string(&row, S_STATE, state);
    add_string(&row, S_ROWS, rows);
    add_string(&row, S_ERROR, error);
    pb_row_commit(&row);
}

/* A row per kind of missing rows, or one row that says that nothing is missing. */
static int read_sources(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    bool archived = false, failed = source->broken;

    for (unsigned i = 0; i < 1 + source->nmore; i++)
        archived = archived || source->archived[i];
    if (source->broken)
        add_source(t, source, "failed", "recorded", source->broken);
    for (unsigned i = 0; i < source->nfailures; i++) {
        if (source->failures[i].source != source->number)
            continue;
        add_source(t, source, "failed", source->failures[i].table, source->failures[i].text);
        failed = true;
    }
    if (!failed)
        add_source(t, source,
                   source->pid == 0                                      ? "no process"
                   : source->dead                                        ? "ended"
                   : source->arena_fd < 0 && !source->nmore && !archived ? "not probed"
                                                                         : "live",
                   NULL, NULL);
    return 0;
}

/* --- the readers --- */

static const struct {
    const char *name;
    int (*read)(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
    bool process; /* needs a live process */
} readers[] = {
    {"system.process", pb_live_process, true},
    {"system.threads", pb_live_threads, true},
    {"system.maps", pb_live_maps, true},
    {"system.fds", pb_live_fds, true},
    {"system.envs", pb_live_envs, true},
    {"system.cgroup", pb_live_cgroup, true},
    {"python.backtrace", read_backtrace, true},
    {"python.memory_now", read_memory_now, true},
    {"python.torch_nccl_flight_record", pb_live_flight_record, true},
    {"python.torch_nccl_pg_status", pb_live_pg_status, true},
    {"python.modules", read_nothing, true},
    {"python.tensors", read_nothing, true},
    {"python.optimizers", read_nothing, true},
    {"probing.config", read_config, false},
    {"probing.tables", read_tables, false},
    {"probing.columns", read_columns, false},
    {"probing.audit", pb_live_audit, false},
    {"probing.sources", read_sources, false},
};

bool pb_live_has_nothing(const char *name, const struct pb_live_source *source)
{
    for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]); i++)
        if (strcmp(readers[i].name, name) == 0)
            return readers[i].process && (source->dead || source->pid == 0);
    return false;
}

static int fill_table(const char *name, struct pb_table *t, const struct pb_live_source *source,
                      struct pb_err *err)
{
    if (pb_live_has_nothing(name, source))
        return 0;
    for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]); i++)
        if (strcmp(readers[i].name, name) == 0)
            return readers[i].read(t, source, err);
    return pb_fail(err, -ENOENT, "%s has no reader", name);
}

/* Opens the same memory read-only: a worker under an attacker's control could otherwise change what the next
 * statement reads. */
static int open_to_read(int fd)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* Without memfd_create (refused by a filter, or before Linux 3.17) the table is a file, unlinked before it is
 * passed on. */
static int read_into_file(const char *name, const struct pb_known *known, const struct pb_arena_options *o,
                          const struct pb_live_source *source, struct pb_err *err)
{
    static const char *const folders[] = {"/dev/shm", "/tmp", "/var/tmp"};
    _cleanup_close_ int dir = -1;
    struct pb_arena *arena = NULL;
    struct pb_table *table;
    char file[64];
    int r = -ENOENT;

    snprintf(file, sizeof(file), ".probing-live-%d-%llx", (int)getpid(), (unsigned long long)pb_now_ns());
    for (size_t i = 0; r < 0 && i < sizeof(folders) / sizeof(folders[0]); i++) {
        if (dir >= 0)
            close(dir);
        dir = open(folders[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        r = dir < 0 ? -errno : pb_arena_create(dir, file, o, &arena);
    }
    if (r < 0)
        return pb_fail(err, r, "no place for %s: memfd_create is refused, and no file can be made: %s", name,
                       strerror(-r));
    r = pb_table_new(arena, &known->spec, &table);
    if (r == 0)
        r = fill_table(name, table, source, err);
    int left = r;
    do
        left = r < 0 ? r : pb_arena_mirror(arena);
    while (left > 0);
    r = left;
    int fd = r < 0 ? r : openat(dir, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (r == 0 && fd < 0)
        fd = pb_fail(err, -errno, "%s cannot be passed to the SQL worker: %s", name, strerror(errno));
    pb_arena_close(arena);
    unlinkat(dir, file, 0);
    return fd;
}

/* Tables about ended processes are short, and there may be thousands of them. */
static uint32_t segment_of(const char *name)
{
    for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]); i++)
        if (strcmp(readers[i].name, name) == 0 && !readers[i].process)
            return SMALL_SEGMENT;
    return SEGMENT;
}

/* A table that the process makes. */
static int read_own(const char *name, const struct pb_live_source *source, struct pb_err *err)
{
    _cleanup_close_ int fd = source->own ? source->own(source, name, err) : -ENOENT;

    if (fd < 0)
        return fd;
    int copy = open_to_read(fd);
    return copy < 0 ? pb_fail(err, -errno, "%s cannot be passed to the SQL worker: %s", name, strerror(errno))
                    : copy;
}

int pb_live_read(const char *name, const struct pb_live_source *source, struct pb_err *err)
{
    const struct pb_known *known = pb_known_find(name);
    const struct pb_arena_options options = {
        .bound = MOST_BYTES, .segment_size = segment_of(name), .max_tables = 4, .schema_bytes = 1 << 16};
    struct pb_arena *arena;
    struct pb_table *table;

    if ((!known || known->asked) && !pb_live_has_nothing(name, source)) {
        int own = read_own(name, source, err);
        if (own != -ENOENT || !known)
            return own;
    }
    if (!known)
        return -ENOENT;
    int r = pb_arena_create(PB_ARENA_MEMFD, "probing-live", &options, &arena);
    if (r < 0)
        return pb_fail(err, r, "no memory for %s: %s", name, strerror(-r));
    if (pb_arena_fd(arena) < 0) {
        pb_arena_close(arena);
        return read_into_file(name, known, &options, source, err);
    }
    r = pb_table_new(arena, &known->spec, &table);
    if (r == 0)
        r = fill_table(name, table, source, err);
    int fd = r == 0 ? open_to_read(pb_arena_fd(arena)) : r;
    if (r == 0 && fd < 0)
        fd = pb_fail(err, -errno, "%s cannot be passed to the SQL worker: %s", name, strerror(errno));
    pb_arena_close(arena);
    return fd;
}
