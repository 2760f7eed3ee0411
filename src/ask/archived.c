/* archived: see archived.h. */
#include "ask/archived.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "remote/runs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The folder of the archive, links resolved; -ENOENT: there is none. */
static int find_folder(const struct pb_ask *ask, char ret[PATH_MAX])
{
    char folder[PATH_MAX];

    int r = pb_archive_folder(ask->archive, folder, sizeof(folder), NULL);
    return r < 0 ? -ENOENT : realpath(folder, ret) ? 0 : -ENOENT;
}

const char *pb_archived_node(const struct pb_archive_run *run, char ret[PB_ARCHIVE_NODE])
{
    struct pb_run_info info = {.dir_fd = -1};

    snprintf(info.about, sizeof(info.about), "%s", run->about);
    return pb_run_get(&info, "node", ret, PB_ARCHIVE_NODE);
}

int pb_archived_run(const struct pb_ask *ask, pid_t pid, uint64_t start_time, struct pb_archive_run *ret)
{
    _cleanup_(pb_archive_runs_done) struct pb_archive_runs runs = {0};
    char folder[PATH_MAX];

    int r = find_folder(ask, folder);
    if (r == 0)
        r = pb_archive_runs_read(folder, &runs, NULL);
    const struct pb_archive_run *found = NULL;
    for (size_t i = 0; r == 0 && i < runs.n; i++) {
        const struct pb_archive_run *run = &runs.at[i];
        /* The newest process with that pid; its own run comes before a recording of it. */
        if (run->pid == pid && (start_time == 0 || run->start_time == start_time) &&
            (!found || (found->recording && !run->recording && run->start_time == found->start_time)))
            found = run;
    }
    if (found)
        *ret = *found;
    return found ? 0 : -ENOENT;
}

size_t pb_archived_starts(const struct pb_ask *ask, pid_t pid, uint64_t *ret, size_t max)
{
    _cleanup_(pb_archive_runs_done) struct pb_archive_runs runs = {0};
    char folder[PATH_MAX];
    size_t n = 0;

    if (find_folder(ask, folder) < 0 || pb_archive_runs_read(folder, &runs, NULL) < 0)
        return 0;
    for (size_t i = 0; i < runs.n && n < max; i++) {
        size_t k = 0;
        while (k < n && ret[k] != runs.at[i].start_time)
            k++;
        if (runs.at[i].pid == pid && k == n)
            ret[n++] = runs.at[i].start_time;
    }
    return n;
}

static int keep_run(const struct pb_archive_run **to, const struct pb_archive_run *run)
{
    struct pb_archive_run *copy = malloc(sizeof(*copy));

    if (!copy)
        return -ENOMEM;
    *copy = *run;
    *to = copy;
    return 0;
}

static int add_recording(struct pb_sql_source *s, const struct pb_archive_run *run)
{
    unsigned k = s->live.nmore;

    if (k == PB_LIVE_MORE)
        return 0;
    s->live.more[k] = -1;
    int r = keep_run(&s->more[k], run);
    if (r == 0)
        s->live.nmore++;
    return r;
}

/* Attaches the archived recordings of a source, including those whose live file is gone. */
static int attach_recordings(struct pb_sql_source *s, const char *folder)
{
    char ids[2 * PB_LIVE_MORE][PB_ARCHIVE_RUN], id[PB_ARCHIVE_RUN];
    struct pb_archive_run run;
    int r = 0;

    if (s->live.pid == 0)
        return 0;
    unsigned n = pb_archive_recordings(folder, s->live.pid, s->live.start_time, ids, 2 * PB_LIVE_MORE);
    for (unsigned i = 0; r == 0 && i < n; i++) {
        unsigned k = 0, nmore = s->live.nmore;
        while (k < nmore && !(s->live.more[k] >= 0 && pb_archive_run_id(s->live.more[k], id) == 0 &&
                              strcmp(id, ids[i]) == 0))
            k++;
        if (pb_archive_run_read(folder, ids[i], &run) < 0)
            continue;
        r = k < nmore ? keep_run(&s->more[k], &run) : add_recording(s, &run);
    }
    return r;
}

/* Takes a lock that keeps other processes from removing files while a query reads them. */
static int hold_archive(struct pb_query_sources *s, const char *folder, struct pb_err *err)
{
    s->hold = pb_archive_hold(folder);
    if (s->hold < 0)
        return pb_fail(err, s->hold, "the archive %s cannot be read: %s", folder, strerror(-s->hold));
    s->archive = strdup(folder);
    return s->archive ? 0 : pb_fail(err, -ENOMEM, "out of memory");
}

int pb_archived_attach(const struct pb_ask *ask, struct pb_query_sources *s, struct pb_err *err)
{
    struct pb_archive_run run;
    char folder[PATH_MAX], id[PB_ARCHIVE_RUN];
    bool any = false;
    int r = 0;

    if (find_folder(ask, folder) < 0)
        return 0;
    for (unsigned i = 0; r == 0 && i < s->n; i++) {
        struct pb_sql_source *source = &s->at[i];
        if (!source->archived && source->live.arena_fd >= 0 &&
            pb_archive_run_id(source->live.arena_fd, id) == 0 && pb_archive_run_read(folder, id, &run) == 0)
            r = keep_run(&source->archived, &run);
        if (r == 0)
            r = attach_recordings(source, folder);
        any = any || source->archived;
        for (unsigned k = 0; k < source->live.nmore; k++)
            any = any || source->more[k];
    }
    if (r < 0)
        return pb_fail(err, r, "out of memory");
    return any ? hold_archive(s, folder, err) : 0;
}

static struct pb_sql_source *add_source(struct pb_query_sources *s, const struct pb_archive_run *run)
{
    struct pb_sql_source *source = &s->at[s->n++];

    *source = (struct pb_sql_source){
        .rank = run->rank,
        .live = {.pid = run->pid, .start_time = run->start_time, .dead = true, .arena_fd = -1}};
    return source;
}

/* The source of the process that a recording is of, with room for one more recording. */
static struct pb_sql_source *source_of(struct pb_query_sources *s, const struct pb_archive_run *run)
{
    for (unsigned i = 0; i < s->n; i++)
        if (s->at[i].live.pid == run->pid && s->at[i].live.start_time == run->start_time &&
            s->at[i].live.nmore < PB_LIVE_MORE)
            return &s->at[i];
    return add_source(s, run);
}

/* Drops the runs of other nodes. */
static void keep_node(const char *node, struct pb_archive_runs *runs)
{
    size_t n = 0;

    for (size_t i = 0; node && i < runs->n; i++) {
        char name[PB_ARCHIVE_NODE];
        if (strcmp(pb_archived_node(&runs->at[i], name), node) == 0)
            runs->at[n++] = runs->at[i];
    }
    runs->n = node ? n : runs->n;
}

int pb_archived_open(const struct pb_ask *ask, struct pb_query_sources *s, struct pb_err *err)
{
    _cleanup_(pb_archive_runs_done) struct pb_archive_runs runs = {0};
    char folder[PATH_MAX], given[PATH_MAX];

    int r = pb_archive_folder(ask->archive, given, sizeof(given), err);
    if (r < 0)
        return r;
    if (!realpath(given, folder))
        return pb_fail(err, -errno, "the archive %s cannot be read: %s", given, strerror(errno));
    r = pb_archive_runs_read(folder, &runs, err);
    keep_node(ask->archive_node, &runs);
    if (r == 0 && runs.n == 0)
        return pb_fail(err, -ENOENT, "no archived run in %s", folder);
    if (r == 0 && runs.n >= PB_SQL_MAX_SOURCES)
        return pb_fail(err, -E2BIG,
                       "%zu runs are too many for one query; %d is the most (give a pid: -t PID)", runs.n,
                       PB_SQL_MAX_SOURCES);
    s->at = r == 0 ? calloc(runs.n + 1, sizeof(*s->at)) : NULL;
    if (!s->at)
        return r < 0 ? r : pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < runs.n; i++)
        if (!runs.at[i].recording)
            r = keep_run(&add_source(s, &runs.at[i])->archived, &runs.at[i]);
    for (size_t i = 0; r == 0 && i < runs.n; i++)
        if (runs.at[i].recording)
            r = add_recording(source_of(s, &runs.at[i]), &runs.at[i]);
    /* Rows of a node are for others to put together: rank and target_pid lead also those of a single run. */
    if (r == 0 && ask->archive_node)
        s->at[s->n++] = (struct pb_sql_source){.rank = -1, .live = {.arena_fd = -1}};
    return r < 0 ? pb_fail(err, r, "out of memory") : hold_archive(s, folder, err);
}
