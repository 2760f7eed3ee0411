/* archive_record: the recorder: moves closed segments of one run into an archive, a round at a time.
 *
 * Crash-safe without a log: a file is written beside its place, brought to disk, and renamed to a name that
 * says what is in it. A recorder that starts again reads the names and goes on. One recorder a run: a lock
 * in the archive holds that. What it reads is hostile (see table/reader.h); what it writes goes through a
 * process of its own (archive_write.h). Blocking; one thread. */
#pragma once

#include "base/err.h"
#include "engine/shared/archive.h"

#include <sys/types.h>

struct pb_recorder;

/* A table after a round. */
struct pb_recorder_table {
    const char *name;
    uint64_t files, segments, rows; /* written in this round */
    uint64_t lost;                  /* rows that were overwritten before they could be archived, ever */
    uint64_t lost_now;              /* of these, since the round before */
    unsigned merged;                /* small files that were made one */
    struct pb_err trouble;          /* why small files were not merged; "": nothing of the kind */
};

struct pb_recorder_options {
    const char *folder;
    int arena_fd;            /* stays the caller's */
    const char *about;       /* the description of the run, as in its run directory */
    const char *recorded;    /* of a recording: PID-START of the process; else NULL */
    const char *compression; /* as the setting probing.compression has it */
    pid_t pid;               /* for messages */
};

/* Makes the folder. -EBUSY: another recorder archives this run. */
int pb_recorder_open(const struct pb_recorder_options *o, struct pb_recorder **ret, struct pb_err *err);
void pb_recorder_close(struct pb_recorder *r);

/* Segments that were opened since the last round, about as many as were closed; what share of the arena that
 * is, in percent. One look at the file's head. */
int pb_recorder_pending(struct pb_recorder *r, unsigned *ret_percent);

/* Archives what is closed; ended: everything, for nobody writes any more. each may be NULL; it is called
 * for every table that has something to say. On failure nothing is lost: the next round tries again. */
int pb_recorder_round(struct pb_recorder *r, bool ended,
                      void (*each)(void *arg, const struct pb_recorder_table *table), void *arg,
                      struct pb_err *err);

/* FOLDER/_probing/RUN: where the log of a recorder in the background goes. */
const char *pb_recorder_place(const struct pb_recorder *r);

/* Writes our pid into the lock file, for people and for other recorders; after a fork. */
void pb_recorder_sign(struct pb_recorder *r);

/* archive_commit.c: the way of files to their places. partition: TABLE/job=/node=/rank=, open. */

/* Removes what an ended recorder of the run left half done, and finishes what it had decided. */
int pb_archive_recover(int partition, const char *run);

/* Gives the files PREFIX.1 ... (names in the partition) their names; dates: "date=...", ascending. */
int pb_archive_commit(int partition, const char *prefix, const struct pb_archive_name *names,
                      const char (*dates)[PB_ARCHIVE_DATE], unsigned n, struct pb_err *err);

/* A file of ours with this text, whole or not at all. */
int pb_archive_put_text(int dir, const char *name, const char *text, size_t length);

/* Names the process ("PID-START") that the run is a recording of; own: the folder of the run's record. */
int pb_archive_put_mark(int own, const char *run, const char *recorded);

/* Makes the folders of a path below dir, which last, and opens the last. */
int pb_archive_make_path(int dir, const char *path);
