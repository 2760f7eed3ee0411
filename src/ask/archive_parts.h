/* archive_parts: the parts of a process that can be archived: its own tables, and those of recordings of it
 * (`record`).
 *
 * To the archive each part is a run of its own, with a recorder of its own (engine/archive_record.h).
 * Recordings begin and end while the process runs, so they are searched for repeatedly. */
#pragma once

#include "engine/archive/archive_record.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_archive_part {
    char id[PB_ARCHIVE_RUN];
    int fd;                       /* of its tables; -1: closed */
    struct pb_archiver *recorder; /* NULL: everything is archived */
    bool recording, ended;
};

struct pb_archive_parts {
    pid_t pid;
    uint64_t start_time; /* 0: not known */
    uid_t uid;
    const char *folder, *compression;
    const char *about; /* the description of the process */
    struct pb_archive_part *at;
    size_t n;
};

struct pb_run_info;
struct pb_target;

/* Opens the process's own tables, and fills in pid, start_time and uid; ret_run: its description, from /proc
 * where it wrote none. May wait for the process. -ENOENT: it has no tables of its own. */
int pb_archive_parts_find(struct pb_archive_parts *p, const struct pb_target *target,
                          struct pb_run_info *ret_run, struct pb_err *err);

/* Adds the process's own tables; owns the descriptor. */
int pb_archive_parts_own(struct pb_archive_parts *p, int fd, struct pb_err *err);

/* Finds new recordings, and those that have ended. */
int pb_archive_parts_look(struct pb_archive_parts *p, struct pb_err *err);

/* Whether any recording still runs. */
bool pb_archive_parts_recorded(const struct pb_archive_parts *p);

/* pb_archiver_pending of the part with the most, and pb_archiver_round of all parts; ended: whether the
 * process's own tables have. A part that fails does not stop the others: the first error is returned at the
 * end. */
int pb_archive_parts_pending(const struct pb_archive_parts *p, unsigned *ret_percent);
int pb_archive_parts_round(struct pb_archive_parts *p, bool ended,
                           void (*each)(void *arg, const struct pb_archiver_table *table), void *arg,
                           struct pb_err *err);

void pb_archive_parts_done(struct pb_archive_parts *p);
