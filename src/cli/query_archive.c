/* query_archive: see query_archive.h. */
#include "cli/query_archive.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The folder of the archive where there is one, without links; -ENOENT. */
static int find_folder(char ret[PATH_MAX])
{
    char folder[PATH_MAX];

    int r = pb_archive_folder(NULL, folder, sizeof(folder), NULL);
    return r < 0 ? -ENOENT : realpath(folder, ret) ? 0 : -ENOENT;
}

int pb_query_archived_run(pid_t pid, struct pb_archive_run *ret)
{
    _cleanup_(pb_archive_runs_done) struct pb_archive_runs runs = {0};
    char folder[PATH_MAX];

    int r = find_folder(folder);
    if (r == 0)
        r = pb_archive_runs_read(folder, &runs, NULL);
    for (size_t i = 0; r == 0 && i < runs.n; i++)
        if (runs.at[i].pid == pid) {
            *ret = runs.at[i];
            return 0;
        }
    return -ENOENT;
}

static int keep_run(struct pb_sql_source *s, const struct pb_archive_run *run)
{
    struct pb_archive_run *copy = malloc(sizeof(*copy));

    if (!copy)
        return -ENOMEM;
    *copy = *run;
    s->archived = copy;
    return 0;
}

/* While a query reads, nobody removes files. */
static int hold(struct pb_query_sources *s, const char *folder, struct pb_err *err)
{
    s->hold = pb_archive_hold(folder);
    if (s->hold < 0)
        return pb_fail(err, s->hold, "the archive %s cannot be read: %s", folder, strerror(-s->hold));
    s->archive = strdup(folder);
    return s->archive ? 0 : pb_fail(err, -ENOMEM, "out of memory");
}

int pb_query_attach_archive(struct pb_query_sources *s, struct pb_err *err)
{
    struct pb_archive_run run;
    char folder[PATH_MAX], id[PB_ARCHIVE_RUN];
    bool any = false;
    int r = 0;

    if (find_folder(folder) < 0)
        return 0;
    for (unsigned i = 0; r == 0 && i < s->n; i++) {
        struct pb_sql_source *source = &s->at[i];
        if (!source->archived && source->live.arena_fd >= 0 &&
            pb_archive_run_id(source->live.arena_fd, id) == 0 && pb_archive_run_read(folder, id, &run) == 0)
            r = keep_run(source, &run);
        any = any || source->archived;
    }
    if (r < 0)
        return pb_fail(err, r, "out of memory");
    return any ? hold(s, folder, err) : 0;
}

int pb_query_open_archive(struct pb_query_sources *s, struct pb_err *err)
{
    _cleanup_(pb_archive_runs_done) struct pb_archive_runs runs = {0};
    char folder[PATH_MAX], given[PATH_MAX];

    int r = pb_archive_folder(NULL, given, sizeof(given), err);
    if (r < 0)
        return r;
    if (!realpath(given, folder))
        return pb_fail(err, -errno, "the archive %s cannot be read: %s", given, strerror(errno));
    r = pb_archive_runs_read(folder, &runs, err);
    if (r == 0 && runs.n == 0)
        return pb_fail(err, -ENOENT, "there is no archived run in %s", folder);
    if (r == 0 && runs.n > PB_SQL_MAX_FDS)
        return pb_fail(err, -E2BIG,
                       "%zu runs are too many for one query; %d is the most (give a pid: -t PID)", runs.n,
                       PB_SQL_MAX_FDS);
    s->at = r == 0 ? calloc(runs.n, sizeof(*s->at)) : NULL;
    if (!s->at)
        return r < 0 ? r : pb_fail(err, -ENOMEM, "out of memory");
    for (; r == 0 && s->n < runs.n; s->n++) {
        const struct pb_archive_run *run = &runs.at[s->n];
        s->at[s->n] = (struct pb_sql_source){.rank = run->rank,
                                             .live = {.pid = run->pid, .dead = true, .arena_fd = -1}};
        r = keep_run(&s->at[s->n], run);
    }
    return r < 0 ? pb_fail(err, r, "out of memory") : hold(s, folder, err);
}
