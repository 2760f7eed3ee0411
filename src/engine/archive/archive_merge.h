/* archive_merge: small files of a table, run and day made into larger ones, so that an archive of months is a
 * few thousand files, not millions.
 *
 * The merged file is written beside the others, brought to disk, and renamed to a name that stands for the
 * range of all their segments. That rename is the moment from which it counts, and the files that it was made
 * of do not (archive_files.c): removing them comes after, and whoever finds some left removes them. Both
 * happen while no query reads, since a query opens by its own time the files that it has listed. */
#pragma once

#include "engine/archive/archive_list.h"

enum { PB_ARCHIVE_MERGE_MOST = 64 }; /* files at once */

struct pb_archive_merge {
    size_t first, n; /* of the files that were given */
    struct pb_archive_name name;
};

/* Chooses neighbours among the files of one day, which are sorted by their serials: at least 16 that are
 * small alike, or fewer that make a large one. Each row is written again some three times in all. 0: there is
 * nothing to do. */
size_t pb_merge_choose(const struct pb_archive_files *files, const uint64_t *bytes,
                       struct pb_archive_merge *ret);

/* A day of a table, and what the recorder does for it. */
struct pb_merge_day {
    int top, partition; /* the archive; TABLE/job=/node=/rank= in it */
    const char *date;   /* the folder */
    const char *run;
    const char *prefix; /* .tmp-...: what is half done is named PREFIX.1 in the partition */
    /* Whether all segments of the table between two serials that can be archived are archived. */
    bool (*is_whole)(void *arg, uint64_t first, uint64_t last);
    /* Writes the rows of fds[1], fds[2] ... to fds[0]. */
    int (*write)(void *arg, const int *fds, size_t n, struct pb_err *err);
    void *arg;
};

/* Merges files of the day where there are enough. Returns how many there were, 0: none. On failure nothing
 * has changed. */
int pb_merge_day(const struct pb_merge_day *d, struct pb_err *err);

/* Removes files that a merge has left, when no query reads; what is not removed is for the next time. */
void pb_merge_clean(int top, const struct pb_archive_files *left);
