/* live: tables that are read at the time of a query, by the broker, into an arena in memory.
 *
 * The worker can read nothing itself: it gets a descriptor of such an arena. */
#pragma once

#include "control/redact.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_archive_run;
struct pb_err;
struct pb_table;

#define PB_LIVE_MORE 16

/* A live table of one source that could not be read. */
struct pb_live_failure {
    unsigned source; /* its number in the query */
    char table[64];
    char text[256];
};

/* The subject of live tables: one process. */
struct pb_live_source {
    pid_t pid;              /* 0: no process */
    uint64_t start_time;    /* as in procinfo; 0: unknown */
    int arena_fd;           /* of its recorded tables; -1: none */
    int more[PB_LIVE_MORE]; /* of recordings of it; -1: only archived */
    unsigned nmore;
    bool dead;
    char label[32];     /* name for people: "rank 3", "pid 4711" */
    bool ranked;        /* that is its rank */
    const char *broken; /* why its recorded tables cannot be read; NULL: they can, or there are none */
    /* Failures of all sources so far, for probing.sources; `number` is that of this source. */
    const struct pb_live_failure *failures;
    unsigned nfailures, number;
    const char *archive; /* folder of the archive; NULL: none. Archived runs of arena_fd, then of more: */
    const struct pb_archive_run *archived[1 + PB_LIVE_MORE];
    /* The words that mark names of secrets: control/redact.h. */
    void (*redact)(pid_t pid, char ret[PB_REDACT_SIZE]);
    /* Adds a row to probing.config for each setting. */
    int (*config)(const struct pb_live_source *source, struct pb_table *to, struct pb_err *err);
    /* Adds a row to python.backtrace for each frame; locals: with its variables. */
    int (*backtrace)(void *arg, pid_t pid, bool locals, struct pb_table *to, struct pb_err *err);
    /* Adds the row of python.memory_now. */
    int (*memory)(void *arg, pid_t pid, struct pb_table *to, struct pb_err *err);
    /* A table that the process itself makes, as the descriptor of an arena. -ENOENT: it has none of that
     * name. */
    int (*own)(const struct pb_live_source *source, const char *table, struct pb_err *err);
    void *arg;
    /* Of the present question: columns that the statements name, and the time that is left, 0: no limit. */
    const char (*named)[64];
    unsigned nnamed, left_ms;
};

/* "rank 3 (process 4711)", or "process 4711" where there is no rank. */
void pb_live_name(const struct pb_live_source *source, char *ret, size_t size);

/* Adds a row of strings; NULL is NULL. For the callback above. */
void pb_live_add_strings(struct pb_table *t, const char *const *values, unsigned n);

/* Whether a live table has no rows for the source: the process has ended, or none was named. */
bool pb_live_has_nothing(const char *name, const struct pb_live_source *source);

/* Whether the statements name this column of the table. */
bool pb_live_names(const struct pb_live_source *source, const char *column);

/* Reads the table of that name. Returns the descriptor of an arena with it, which the caller closes. -ENOENT:
 * there is no such table; else why it cannot be read. */
int pb_live_read(const char *name, const struct pb_live_source *source, struct pb_err *err);

/* Sets a UTC time in ns; 0 is NULL. */
struct pb_row;
void pb_live_set_time(struct pb_row *row, unsigned column, int64_t utc);

/* live_audit.c: rows of the service's audit log. */
int pb_live_audit(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);

/* live_proc.c: rows from /proc. */
int pb_live_process(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
int pb_live_threads(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
int pb_live_maps(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
int pb_live_fds(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
int pb_live_envs(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
int pb_live_cgroup(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);

/* live_flight.c: torch's Flight Recorder. */
int pb_live_flight_record(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
int pb_live_pg_status(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
