/* archive_list: the contents of an archive, from file names: runs, their tables, their files.
 *
 * Nothing is trusted: no symbolic link is followed, names that are not ours are skipped, numbers are bounded.
 * Used by the broker; blocking. */
#pragma once

#include "engine/shared/archive.h"

#include <sys/types.h>

struct pb_archive_run {
    char id[PB_ARCHIVE_RUN];
    pid_t pid; /* in its own namespace; of a recording: of the recorded process, as the recorder saw it */
    uint64_t start_time; /* of that process; 0: not known */
    bool recording;      /* a recording of the process, made by another process */
    int32_t rank;        /* -1: none */
    char partition[PB_ARCHIVE_PATH];
    char about[8192]; /* as in its run directory: see pb_run_get */
    time_t changed;   /* when it was last archived */
};

struct pb_archive_runs {
    struct pb_archive_run *at;
    size_t n, room;
};

/* The id of the run that an arena belongs to. */
int pb_archive_run_id(int arena_fd, char ret[PB_ARCHIVE_RUN]);

/* All runs of an archive, newest first; none where there is no archive. */
int pb_archive_runs_read(const char *folder, struct pb_archive_runs *ret, struct pb_err *err);
void pb_archive_runs_done(struct pb_archive_runs *runs);

/* One run. -ENOENT. */
int pb_archive_run_read(const char *folder, const char *id, struct pb_archive_run *ret);

/* The ids of archived recordings of a process, at most max; start_time 0: of any process with that pid. Opens
 * no other run. Returns how many. */
unsigned pb_archive_recordings(const char *folder, pid_t pid, uint64_t start_time,
                               char (*ret)[PB_ARCHIVE_RUN], unsigned max);

/* Calls `each` with every table of a run and the text of its columns. */
int pb_archive_tables(const char *folder, const char *run,
                      int (*each)(void *arg, const char *table, const char *columns), void *arg);

/* archive_files.c: the files of a table. */

struct pb_archive_file {
    struct pb_archive_name name;
    unsigned day;               /* files of one folder have the same number */
    char path[PB_ARCHIVE_PATH]; /* below the folder */
};

struct pb_archive_files {
    struct pb_archive_file *at; /* oldest first */
    size_t n, room;
};

/* Which days are listed. */
struct pb_archive_days {
    int64_t from, until; /* UTC us: both days and those between */
    bool undated;        /* also files with rows of many days */
};
#define PB_ARCHIVE_ALL_DAYS ((struct pb_archive_days){INT64_MIN, INT64_MAX, true})

/* The files of a run's table. Only whole batches are listed: neither batches that are still being renamed,
 * nor files that were merged into another. ret_left: the latter, when a killed recorder did not remove them;
 * may be NULL. */
int pb_archive_files_read(const char *folder, const struct pb_archive_run *run, const char *table,
                          struct pb_archive_files *ret, struct pb_archive_files *ret_left);
void pb_archive_files_done(struct pb_archive_files *files);

/* The same for all runs of a partition at once, sorted by run, for a query that asks several times: where no
 * folder has changed, the previous listing is returned. */
struct pb_archive_listing;
struct pb_archive_lists {
    struct pb_archive_listing **at; /* sorted */
    size_t n;
};

/* The result is valid until the next call. ret_earlier: there are days before the range. */
int pb_archive_partition_read(struct pb_archive_lists *lists, const char *folder, const char *partition,
                              const char *table, const struct pb_archive_days *days,
                              const struct pb_archive_files **ret, bool *ret_earlier);
void pb_archive_lists_done(struct pb_archive_lists *lists);

/* Where the files of a run begin, and how many there are. */
size_t pb_archive_files_of(const struct pb_archive_files *files, const char *run, size_t *ret_n);

/* The files of a run in the open folder of one day, by serial; their paths are not set. */
int pb_archive_day_read(int dir, const char *date, const char *run, struct pb_archive_files *ret);

/* Opens a folder below another, not through a link; negative errno. */
int pb_archive_open_folder_at(int at, const char *path);
/* Calls `each` with every name in a folder (type: DT_* of readdir); a result other than 0 ends it and is
 * returned. */
int pb_archive_each_name(int dir_fd, int (*each)(void *arg, int dir, const char *name, unsigned char type),
                         void *arg);

/* Takes a shared lock that keeps files from being removed. Returns a descriptor. */
int pb_archive_hold(const char *folder);
