/* archived: what of a question's sources is archived, and where. */
#pragma once

#include "ask/sources.h"
#include "engine/archive/archive_list.h"

/* The newest archived run of a process that has ended. -ENOENT: there is none. */
int pb_archived_run(const struct pb_ask *ask, pid_t pid, struct pb_archive_run *ret);

/* Finds what the archive holds of the sources' runs, and keeps it there until pb_query_sources_done. runs:
 * of sources that have nothing else, by source. */
int pb_archived_attach(const struct pb_ask *ask, struct pb_query_sources *s, struct pb_err *err);

/* One source for each run in the archive: a query that names no process but an archive. */
int pb_archived_open(const struct pb_ask *ask, struct pb_query_sources *s, struct pb_err *err);
