/* catalog: the tables one request can read, merged over its sources, and the snapshot of each.
 *
 * Worker only; one thread prepares, DuckDB's threads read what is prepared. A table's parts are the tables of
 * that name in each source's arena; its columns are those of all of them by name. A snapshot is a copy of the
 * segments in range, taken newest to oldest: when the writer overtakes it, what is older is left out, so that
 * it always is a suffix of what was written. */
#pragma once

#include "engine/bounds.h"
#include "table/reader.h"

#include <duckdb.h>
#include <stdbool.h>

struct pb_err;

#define PB_CAT_NAME 64

/* Where strings of a column go, once they are an ENUM. */
struct pb_cat_enum {
    duckdb_logical_type type; /* NULL: the column is VARCHAR */
    unsigned width;           /* bytes of an index */
};

struct pb_cat_column {
    char name[PB_CAT_NAME], unit[16], comment[64];
    enum pb_type type;
    bool wanted; /* some statement may read it */
    struct pb_cat_enum strings;
};

/* A segment that was copied. */
struct pb_cat_segment {
    struct pb_view view;
    unsigned part;
    uint32_t **ids; /* by the table's column: an ENUM index for each string of the view; NULL: none */
};

/* A source's table of that name. */
struct pb_cat_part {
    struct pb_reader *reader;
    unsigned table;
    unsigned source;
    int fd;                      /* of a live table; -1: the source has it */
    int columns[PB_MAX_COLUMNS]; /* the table's column -> the part's, -1: it has none */
};

/* What the archive holds of a source's table of that name: see archive_scan.h. */
struct pb_cat_archived;

struct pb_cat_table {
    char schema[PB_CAT_NAME], name[PB_CAT_NAME], comment[128];
    bool live, touched, taken;
    bool whole; /* all columns may be read */
    struct pb_range range;
    struct pb_cat_column columns[PB_MAX_COLUMNS];
    unsigned ncolumns;
    int time_column;
    struct pb_cat_part *parts;
    unsigned nparts;
    struct pb_cat_segment *segments; /* oldest first */
    unsigned nsegments;
    uint64_t nrows;
    int64_t oldest; /* time of the oldest row held, INT64_MAX: none */
    struct pb_cat_archived *archived;
    unsigned narchived;
    bool named; /* some statement has its name, in whatever place: archived rows may be wanted */
};

struct pb_cat_source {
    int32_t rank, pid; /* rank -1: none */
    int fd;            /* of its arena; -1: none */
    struct pb_reader *reader;
};

struct pb_catalog {
    struct pb_cat_source *sources;
    unsigned nsources;
    bool ranks; /* several processes: rank and target_pid lead each table */
    struct pb_cat_table **tables;
    unsigned ntables;
    uint64_t bytes; /* of all snapshots */
    uint64_t segments_read, segments_skipped;
    uint64_t damaged; /* segments and cells that made no sense */
};

/* Takes over sources (and their descriptors), opens their arenas and lists the tables. An arena that cannot
 * be read is an error. */
int pb_catalog_init(struct pb_catalog *c, struct pb_cat_source *sources, unsigned nsources,
                    struct pb_err *err);
void pb_catalog_done(struct pb_catalog *c);

/* schema "" stands for main. */
struct pb_cat_table *pb_catalog_find(struct pb_catalog *c, const char *schema, const char *name);

/* The table "schema.name" or "name", made where it is new; NULL: no such table can be shown, or no memory. */
struct pb_cat_table *pb_catalog_table(struct pb_catalog *c, const char *full);

/* The column of that name, made where it is new; -1: it cannot be. */
int pb_catalog_column(struct pb_cat_table *t, const char *name, enum pb_type type, const char *unit,
                      const char *comment);

/* Adds the arenas of a live table, one a source, -1 where it could not be read; the
 * descriptors stay the caller's. */
int pb_catalog_add_live(struct pb_catalog *c, struct pb_cat_table *t, const int *fds, unsigned nfds,
                        struct pb_err *err);

/* Takes the snapshot. */
int pb_catalog_take(struct pb_catalog *c, struct pb_cat_table *t, struct pb_err *err);

/* Makes ENUMs of the strings in a snapshot where that is worth it. */
int pb_catalog_make_enums(struct pb_cat_table *t);
