/* archive_record: the recorder: moves closed segments of one run into an archive, one round at a time.
 *
 * Crash-safe without a log: a file is written under a temporary name, synced, and renamed to a name that says
 * what it holds. A new recorder reads the names and continues. One recorder per run, by a lock in the
 * archive. The arena is hostile input (see table/reader.h); files are written by a separate process
 * (archive_write.h). Blocking; one thread. */
#pragma once

#include "base/err.h"
#include "engine/shared/archive.h"

#include <sys/types.h>

struct pb_archiver;

/* The result of a round for one table. */
struct pb_archiver_table {
    const char *name;
    uint64_t files, segments, rows; /* written in this round */
    uint64_t lost;                  /* rows overwritten before they were archived, since the beginning */
    uint64_t lost_now;              /* of these, since the previous round */
    unsigned merged;                /* small files that were merged into one */
    struct pb_err trouble;          /* why small files were not merged; "": no error */
};

struct pb_archiver_options {
    const char *folder;
    int arena_fd;            /* owned by the caller */
    const char *about;       /* the description of the run, as in its run directory */
    const char *recorded;    /* a recording: PID-START of the recorded process; else NULL */
    const char *compression; /* value of the setting probing.compression */
    pid_t pid;               /* for messages */
};

/* Creates the folder. -EBUSY: another recorder archives this run. */
int pb_archiver_open(const struct pb_archiver_options *o, struct pb_archiver **ret, struct pb_err *err);
void pb_archiver_close(struct pb_archiver *r);

/* About how many segments were closed since the last round, and what share of the arena that is, in percent.
 * Reads only the file's header. */
int pb_archiver_pending(struct pb_archiver *r, unsigned *ret_percent);

/* Archives closed segments; ended: all segments, since the process writes no more. each may be NULL; it is
 * called for every table with something to report. On failure nothing is lost: the next round tries again. */
int pb_archiver_round(struct pb_archiver *r, bool ended,
                      void (*each)(void *arg, const struct pb_archiver_table *table), void *arg,
                      struct pb_err *err);

/* FOLDER/_probing/RUN: the folder of a background recorder's log. */
const char *pb_archiver_place(const struct pb_archiver *r);

/* Writes our pid into the lock file, for people and other recorders; called after a fork. */
void pb_archiver_sign(struct pb_archiver *r);

/* archive_commit.c: moves files to their final names. partition: TABLE/job=/node=/rank=, open. */

/* Finishes the committed batches of an ended recorder of the run, and removes its other leftovers. */
int pb_archive_recover(int partition, const char *run);

/* Renames the files PREFIX.1 ... (in the partition); dates: "date=...", ascending. */
int pb_archive_commit(int partition, const char *prefix, const struct pb_archive_name *names,
                      const char (*dates)[PB_ARCHIVE_DATE], unsigned n, struct pb_err *err);

/* Writes a file with this text, whole or not at all. */
int pb_archive_put_text(int dir, const char *name, const char *text, size_t length);

/* Marks the run as a recording of a process ("PID-START"); own: the folder of the run's record. */
int pb_archive_put_mark(int own, const char *run, const char *recorded);

/* Creates the folders of a path below dir, synced, and opens the last. */
int pb_archive_make_path(int dir, const char *path);
