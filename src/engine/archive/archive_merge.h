/* archive_merge: merges small files of a table, run and day into larger ones, so that an archive of months
 * has a few thousand files, not millions.
 *
 * The merged file is written beside the others, synced, and renamed to a name that covers the range of all
 * their segments. From that rename on it is valid and its sources are not (archive_files.c); the sources are
 * removed afterwards, by whichever recorder finds them. Both happen while no query reads, since a query opens
 * the files of its listing later. */
#pragma once

#include "engine/archive/archive_list.h"

enum { PB_ARCHIVE_MERGE_MOST = 64 }; /* files at once */

struct pb_archive_merge {
    size_t first, n; /* indices of the given files */
    struct pb_archive_name name;
};

/* Chooses neighbours among the files of one day, sorted by serial: at least 16 small ones of similar size, or
 * fewer that make a large one. Each row is rewritten about three times in all. 0: nothing to merge. */
size_t pb_merge_choose(const struct pb_archive_files *files, const uint64_t *bytes,
                       struct pb_archive_merge *ret);

/* A day of a table, and callbacks of the recorder. */
struct pb_merge_day {
    int top, partition; /* the archive; TABLE/job=/node=/rank= in it */
    const char *date;   /* name of the folder */
    const char *run;
    const char *prefix; /* .tmp-...: the unfinished file is PREFIX.1 in the partition */
    /* Whether every segment between two serials that can be archived has been archived. */
    bool (*is_whole)(void *arg, uint64_t first, uint64_t last);
    /* Writes the rows of fds[1], fds[2] ... to fds[0]. */
    int (*write)(void *arg, const int *fds, size_t n, struct pb_err *err);
    void *arg;
};

/* Merges files of the day where there are enough. Returns how many were merged, 0: none. Unchanged on
 * failure. */
int pb_merge_day(const struct pb_merge_day *d, struct pb_err *err);

/* Removes the sources of earlier merges when no query reads; the rest is left to the next time. */
void pb_merge_clean(int top, const struct pb_archive_files *left);
