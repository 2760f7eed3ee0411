/* archived: finds the archived rows of a question's sources. */
#pragma once

#include "ask/sources.h"
#include "engine/archive/archive_list.h"

/* The newest archived run of an ended process; start_time 0: of any process with that pid. -ENOENT: none. */
int pb_archived_run(const struct pb_ask *ask, pid_t pid, uint64_t start_time, struct pb_archive_run *ret);

/* The node that a run was on; "": it is not known. */
enum { PB_ARCHIVE_NODE = 256 };
const char *pb_archived_node(const struct pb_archive_run *run, char ret[PB_ARCHIVE_NODE]);

/* Start times of the archived processes with that pid, newest first, at most max. Returns how many. */
size_t pb_archived_starts(const struct pb_ask *ask, pid_t pid, uint64_t *ret, size_t max);

/* Finds the archived runs of the sources, and keeps their files from being removed until
 * pb_query_sources_done. */
int pb_archived_attach(const struct pb_ask *ask, struct pb_query_sources *s, struct pb_err *err);

/* One source per run in the archive: for a query that names an archive but no process. */
int pb_archived_open(const struct pb_ask *ask, struct pb_query_sources *s, struct pb_err *err);
