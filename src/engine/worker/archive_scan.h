/* archive_scan: archived rows as part of a query's tables. Worker only.
 *
 * The broker reads the archive; it tells the worker which tables there are and, after the snapshot of a
 * table, which of its files are in range. In this order, so that a segment archived in between is found on at
 * least one side; a segment on both sides is read from the files. The view of the table then reads both. The
 * worker also asks before the snapshot: segments in files are not copied. The files stay, since the broker
 * holds the archive (pb_archive_hold). */
#pragma once

#include "engine/shared/wire.h"
#include "engine/worker/catalog.h"

struct pb_engine;

/* Reads the archived tables of a source from a REQUEST. -EBADMSG, -ENOMEM. */
int pb_archive_read_tables(struct pb_wire *m, struct pb_catalog *c, unsigned source);
void pb_archive_release(struct pb_cat_table *t);

/* Lets DuckDB open files below the folder. */
int pb_archive_open_folder(struct pb_engine *e, const char *folder, struct pb_err *err);

/* Finds the files of a table before its snapshot: their rows need not be copied. */
int pb_archive_look(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err);
/* Whether such a file has a segment of the source. */
bool pb_archive_holds(const struct pb_cat_table *t, unsigned source, uint64_t serial);

/* Finds the files of a table after its snapshot, and removes their rows from the snapshot. */
int pb_archive_take(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err);
bool pb_archive_has_files(const struct pb_cat_table *t);

/* "SELECT ... UNION ALL " for the files, with columns as the scan gives them; NULL where there are none. */
int pb_archive_select(struct pb_engine *e, const struct pb_cat_table *t, char **ret);
