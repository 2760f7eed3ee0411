/* archive_scan: archived rows as part of a query's tables. Worker only.
 *
 * The broker knows the archive; what comes through is which tables it holds, and, once the snapshot of a
 * table is taken, which of its files are in range. In this order, so that a segment that is archived in
 * between is found on one side at least; a segment that is on both sides is taken from the files. The view
 * of the table then reads both. It is asked before the snapshot too: what is in files already is not copied;
 * they stay, since the broker holds the archive (pb_archive_hold). */
#pragma once

#include "engine/shared/wire.h"
#include "engine/worker/catalog.h"

struct pb_engine;

/* Reads from a REQUEST what the archive holds of a source. -EBADMSG, -ENOMEM. */
int pb_archive_read_tables(struct pb_wire *m, struct pb_catalog *c, unsigned source);
void pb_archive_release(struct pb_cat_table *t);

/* Lets DuckDB open what is below the folder. */
int pb_archive_open_folder(struct pb_engine *e, const char *folder, struct pb_err *err);

/* Marks the archived tables whose names a statement has where its tree does not tell. */
void pb_archive_want(struct pb_engine *e, const char *sql);

/* Finds the files of a table before its snapshot is taken: what they hold need not be copied. */
int pb_archive_look(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err);
/* Whether such a file holds a segment of the source. */
bool pb_archive_holds(const struct pb_cat_table *t, unsigned source, uint64_t serial);

/* Finds the files of a table whose snapshot was taken, and takes from the snapshot what they hold. */
int pb_archive_take(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err);
bool pb_archive_has_files(const struct pb_cat_table *t);

/* "SELECT ... UNION ALL " for the files, in columns as the scan gives them; NULL where there are none. */
int pb_archive_select(struct pb_engine *e, const struct pb_cat_table *t, char **ret);
