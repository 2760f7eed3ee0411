/* archive_parts: what of a process can be archived: its own tables, and those that recorders fill (`record`).
 *
 * Each is a run of its own to the archive, with a recorder of its own (engine/archive_record.h). Recordings
 * begin and end while the process runs: they are looked for again and again. */
#pragma once

#include "engine/archive/archive_record.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_archive_part {
    char id[PB_ARCHIVE_RUN];
    int fd;                       /* of its tables; -1: closed */
    struct pb_recorder *recorder; /* NULL: all of it is archived */
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

/* Its own tables; takes over the descriptor. */
int pb_archive_parts_own(struct pb_archive_parts *p, int fd, struct pb_err *err);

/* Finds recordings that are new, and those that have ended. */
int pb_archive_parts_look(struct pb_archive_parts *p, struct pb_err *err);

/* A recording goes on. */
bool pb_archive_parts_recorded(const struct pb_archive_parts *p);

/* As pb_recorder_pending, of the part with most, and pb_recorder_round, of all; ended: of its own tables. A
 * part that fails holds up no other: the first failure is returned when all had their turn. */
int pb_archive_parts_pending(const struct pb_archive_parts *p, unsigned *ret_percent);
int pb_archive_parts_round(struct pb_archive_parts *p, bool ended,
                           void (*each)(void *arg, const struct pb_recorder_table *table), void *arg,
                           struct pb_err *err);

void pb_archive_parts_done(struct pb_archive_parts *p);
