/* archive_list: what an archive holds, from the names of its files: runs, their tables, their files.
 *
 * Nothing is trusted: no symbolic link is followed, names that are not ours are passed over, numbers are
 * bounded. For the broker's side; blocking. */
#pragma once

#include "engine/shared/archive.h"

#include <sys/types.h>

struct pb_archive_run {
    char id[PB_ARCHIVE_RUN];
    pid_t pid; /* as it was, in its namespace; of a recording: that was recorded, as its recorder saw it */
    uint64_t start_time; /* of that process; 0: not known */
    bool recording;      /* what somebody recorded of it */
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

/* One of them. -ENOENT. */
int pb_archive_run_read(const char *folder, const char *id, struct pb_archive_run *ret);

/* The ids of archived recordings of a process, at most max; start_time 0: any of that pid. No other run is
 * opened. Returns how many. */
unsigned pb_archive_recordings(const char *folder, pid_t pid, uint64_t start_time,
                               char (*ret)[PB_ARCHIVE_RUN], unsigned max);

/* Calls back with each table of a run and the text of its columns. */
int pb_archive_tables(const char *folder, const char *run,
                      int (*each)(void *arg, const char *table, const char *columns), void *arg);

struct pb_archive_file {
    struct pb_archive_name name;
    char path[PB_ARCHIVE_PATH]; /* below the folder */
};

struct pb_archive_files {
    struct pb_archive_file *at; /* oldest first */
    size_t n, room;
};

/* The files of a run's table. What is listed is whole batches: a batch whose renames are still under way is
 * as if it were not there. */
int pb_archive_files_read(const char *folder, const struct pb_archive_run *run, const char *table,
                          struct pb_archive_files *ret);
/* The same of all runs of a partition at once, those of one run beside each other. */
int pb_archive_partition_read(const char *folder, const char *partition, const char *table,
                              struct pb_archive_files *ret);
/* Where those of a run begin, and how many there are. */
size_t pb_archive_files_of(const struct pb_archive_files *files, const char *run, size_t *ret_n);
void pb_archive_files_done(struct pb_archive_files *files);

/* Keeps files from being removed while it is held: a lock that many may hold. Returns a descriptor. */
int pb_archive_hold(const char *folder);
