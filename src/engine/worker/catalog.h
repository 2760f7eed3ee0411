/* catalog: the tables one request can read, merged over its sources, and the snapshot of each.
 *
 * Worker only; one thread prepares, DuckDB's threads read what is prepared. A table's parts are the tables of
 * that name in each source's arena; its columns are those of all of them by name. A snapshot is a list of the
 * segments in range. Those that rows are still added to are copied at once; of many others the serial is
 * noted, and they are read when they are scanned: when the writer has recycled one by then, the scan fails,
 * and the snapshot is taken again with the oldest copied too, newest to oldest, and what is older than the
 * first that is gone left out. So it always is a suffix of what was written. */
#pragma once

#include "engine/shared/bounds.h"
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
    bool late;   /* its cells may be filled in after the row was there */
    struct pb_cat_enum strings;
    /* The source that recorded it first, and one whose type cannot be brought together with that exactly:
     * to read the column is an error that names both. */
    bool given, conflict;
    unsigned giver, other;
    enum pb_type other_type;
};

#define PB_NO_PLACE UINT16_MAX

struct pb_cat_segment {
    bool deferred;             /* read when it is scanned; else copied */
    struct pb_view view;       /* the copy */
    struct pb_segment_info at; /* what to read then */
    uint32_t seen;             /* rows that the first scan of it found, + 1; atomic */
    unsigned part;
    uint16_t **ids;   /* by the table's column: an ENUM index for each string of the view; NULL: none */
    uint16_t *places; /* by string: its index in the table's shared ENUM, or PB_NO_PLACE; NULL: none */
    uint32_t nplaces;
};

/* How much of a table is copied when its snapshot is taken. */
enum pb_cat_copies {
    PB_COPY_OPEN,   /* what rows are added to, and small tables */
    PB_COPY_OLDEST, /* that and what may be recycled while the query runs again */
    PB_COPY_ALL,
};

/* A source's table of that name. */
struct pb_cat_part {
    struct pb_reader *reader;
    unsigned table;
    unsigned source;
    int fd;                        /* of a live table; -1: the source has it */
    uint64_t end;                  /* serials at the last snapshot were below it */
    int columns[PB_MAX_COLUMNS];   /* the table's column -> the part's, -1: it has none */
    uint8_t types[PB_MAX_COLUMNS]; /* of those columns, in the part: the table's may be wider */
};

/* What the archive holds of a source's table of that name: see archive_scan.h. */
struct pb_cat_archived;

struct pb_cat_table {
    char schema[PB_CAT_NAME], name[PB_CAT_NAME], comment[128];
    bool live, touched, taken;
    bool whole; /* all columns may be read */
    struct pb_time_range range;
    struct pb_cat_column columns[PB_MAX_COLUMNS];
    unsigned ncolumns;
    int time_column;
    struct pb_cat_part *parts;
    unsigned nparts;
    struct pb_cat_segment *segments; /* oldest first */
    unsigned nsegments, ndeferred;
    enum pb_cat_copies copies;
    unsigned scans;            /* begun; atomic */
    struct pb_cat_enum shared; /* of all string columns, where segments are deferred */
    uint64_t nrows;            /* about */
    uint64_t segments_read, segments_skipped;
    uint64_t bytes;           /* copied */
    _Atomic uint64_t damaged; /* segments and cells that made no sense */
    int64_t oldest;           /* time of the oldest row held, INT64_MAX: none */
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

/* Brings a source's type of a column together with those of the sources before it: the column becomes as wide
 * as holds all. False: it cannot, and the column is marked so. */
bool pb_catalog_agree(struct pb_cat_column *c, enum pb_type type, unsigned source);

/* The error for a query that reads a column whose sources disagree about its type. */
void pb_catalog_conflict(const struct pb_catalog *c, const struct pb_cat_table *t,
                         const struct pb_cat_column *column, struct pb_err *err);

/* The table's time is that of all its sources, by name, or none: then no segment is left out by its times. */
void pb_catalog_time(struct pb_cat_table *t, const char *name, bool first);

/* Adds the arenas of a live table, one a source, -1 where it could not be read; the
 * descriptors stay the caller's. */
int pb_catalog_add_live(struct pb_catalog *c, struct pb_cat_table *t, const int *fds, unsigned nfds,
                        struct pb_err *err);

/* Takes the snapshot. */
int pb_catalog_take(struct pb_cat_table *t, struct pb_err *err);

/* Whether a view of a part's segment has the columns that were listed, in their types: a file may say one
 * thing today and another tomorrow. What does not fit must not be read. */
bool pb_catalog_fits(const struct pb_cat_table *t, unsigned part, const struct pb_view *v);

/* Gives it back, with its ENUMs. */
void pb_catalog_drop(struct pb_cat_table *t);

/* Makes ENUMs of the strings in a snapshot where that is worth it; it may be taken again for that. */
int pb_catalog_make_enums(struct pb_cat_table *t, struct pb_err *err);

/* One ENUM for all string columns that are wanted. -E2BIG: it cannot be. */
int pb_catalog_make_shared_enum(struct pb_cat_table *t);
