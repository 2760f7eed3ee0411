/* live: tables that are read at the moment somebody asks, by the broker, into an arena in memory.
 *
 * The worker can read nothing itself: what it gets is a descriptor of such an arena. */
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
    unsigned source; /* its number among those of the query */
    char table[64];
    char text[256];
};

/* What live tables are about. */
struct pb_live_source {
    pid_t pid;              /* 0: no process was named */
    uint64_t start_time;    /* of the process, as procinfo has it; 0: not known */
    int arena_fd;           /* of its recorded tables; -1: none */
    int more[PB_LIVE_MORE]; /* of what others recorded of it; -1: only the archive is left of that */
    unsigned nmore;
    bool dead;
    char label[32];     /* what people call it: "rank 3", "pid 4711" */
    const char *broken; /* why what it recorded cannot be read; NULL: it can, or there is nothing */
    /* What could not be read of all sources so far, for probing.sources; `number` is this one's. */
    const struct pb_live_failure *failures;
    unsigned nfailures, number;
    const char *archive; /* its folder; NULL: none. What it holds of arena_fd and then of more: */
    const struct pb_archive_run *archived[1 + PB_LIVE_MORE];
    /* The words that tell of the secrets of the process: control/redact.h. */
    void (*redact)(pid_t pid, char ret[PB_REDACT_SIZE]);
    /* Adds a row to probing.config for each setting. */
    int (*config)(const struct pb_live_source *source, struct pb_table *to, struct pb_err *err);
    /* Adds a row to python.backtrace for each frame; locals: with its variables. */
    int (*backtrace)(void *arg, pid_t pid, bool locals, struct pb_table *to, struct pb_err *err);
    bool locals;
    void *arg;
};

/* "rank 3 (process 4711)", or "process 4711" where there is no rank. */
void pb_live_name(const struct pb_live_source *source, char *ret, size_t size);

/* Adds a row of strings; NULL is NULL. For the callback above. */
void pb_live_add_strings(struct pb_table *t, const char *const *values, unsigned n);

/* Whether a live table has no rows of that source: of a process that has ended, or where none was named,
 * there is nothing to see now. */
bool pb_live_has_nothing(const char *name, const struct pb_live_source *source);

/* Reads the table of that name. Returns the descriptor of an arena that holds it, which the caller closes.
 * -ENOENT: there is no such live table; else why it cannot be read. */
int pb_live_read(const char *name, const struct pb_live_source *source, struct pb_err *err);

/* Sets a time of UTC, in ns; 0 is NULL. */
struct pb_row;
void pb_live_set_time(struct pb_row *row, unsigned column, int64_t utc);

/* live_audit.c: rows of what the user's service has written down. */
int pb_live_audit(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);

/* live_proc.c: rows from /proc. */
int pb_live_process(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
int pb_live_threads(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
int pb_live_maps(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
int pb_live_fds(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
int pb_live_envs(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
int pb_live_cgroup(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err);
