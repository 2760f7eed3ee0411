/* query_archive: what of a command's sources is archived, and where. */
#pragma once

#include "cli/query_sources.h"
#include "engine/archive/archive_list.h"

/* The newest archived run of a process that has ended. -ENOENT: there is none. */
int pb_query_archived_run(pid_t pid, struct pb_archive_run *ret);

/* Finds what the archive holds of the sources' runs, and keeps it there until pb_query_sources_done. runs:
 * of sources that have nothing else, by source. */
int pb_query_attach_archive(struct pb_query_sources *s, struct pb_err *err);

/* One source for each run in the archive: a query that names no process but an archive. */
int pb_query_open_archive(struct pb_query_sources *s, struct pb_err *err);
