/* archived: what of a question's sources is archived, and where. */
#pragma once

#include "ask/sources.h"
#include "engine/archive/archive_list.h"

/* The newest archived run of a process that has ended; start_time 0: of any that had that pid. -ENOENT: there
 * is none. */
int pb_archived_run(const struct pb_ask *ask, pid_t pid, uint64_t start_time, struct pb_archive_run *ret);

/* The start times of the processes with that pid that the archive knows, newest first, at most max. Returns
 * how many. */
size_t pb_archived_starts(const struct pb_ask *ask, pid_t pid, uint64_t *ret, size_t max);

/* Finds what the archive holds of the sources' runs, and keeps it there until pb_query_sources_done. runs:
 * of sources that have nothing else, by source. */
int pb_archived_attach(const struct pb_ask *ask, struct pb_query_sources *s, struct pb_err *err);

/* One source for each run in the archive: a query that names no process but an archive. */
int pb_archived_open(const struct pb_ask *ask, struct pb_query_sources *s, struct pb_err *err);
