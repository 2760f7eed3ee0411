/* catalog: the tables that one request can read, merged over its sources, and the snapshot of each.
 *
 * Worker only; one thread prepares, DuckDB's threads read the result. A table's parts are the tables of that
 * name in each source's arena; its columns are those of all parts by name. A snapshot is a list of the
 * segments in range. Segments that are still written to are copied at once; of the others, if there are many,
 * only the serial is noted, and they are read when they are scanned. If the writer has recycled one by then,
 * the scan fails, and the snapshot is taken again: the oldest segments are copied too, newest to oldest, and
 * everything older than the first missing one is left out. So a snapshot is always a suffix of what was
 * written. */
#pragma once

#include "engine/shared/bounds.h"
#include "table/reader.h"

#include <duckdb.h>
#include <stdbool.h>

struct pb_err;

#define PB_CAT_NAME 64

/* The ENUM of a string column. */
struct pb_cat_enum {
    duckdb_logical_type type; /* NULL: the column is VARCHAR */
    unsigned width;           /* bytes of an index */
};

struct pb_cat_column {
    char name[PB_CAT_NAME], unit[16], comment[64];
    enum pb_type type;
    bool wanted; /* some statement may read it */
    bool late;   /* its cells may be filled in after the row was written */
    bool named;  /* of a live table: a statement names it, or may */
    struct pb_cat_enum strings;
    /* The source that recorded the column first, and a source whose type has no common type with it: reading
     * the column is an error that names both. */
    bool given, conflict;
    unsigned giver, other;
    enum pb_type other_type;
};

#define PB_NO_PLACE UINT16_MAX

struct pb_cat_segment {
    bool deferred;             /* read when scanned; else copied */
    struct pb_view view;       /* the copy */
    struct pb_segment_info at; /* which segment to read then */
    uint32_t seen;             /* rows that its first scan found, + 1; atomic */
    unsigned part;
    uint16_t **ids;   /* by the table's column: an ENUM index per string of the view; NULL: none */
    uint16_t *places; /* by string: its index in the table's shared ENUM, or PB_NO_PLACE; NULL: none */
    uint32_t nplaces;
};

/* Which segments are copied when a snapshot is taken. */
enum pb_cat_copies {
    PB_COPY_OPEN,   /* those still written to, and small tables */
    PB_COPY_OLDEST, /* also those that may be recycled while the query runs again */
    PB_COPY_ALL,
};

/* The table of that name in one source. */
struct pb_cat_part {
    struct pb_reader *reader;
    unsigned table;
    unsigned source;
    int fd;                        /* of a live table; -1: the source's */
    uint64_t end;                  /* serials at the last snapshot were below it */
    int columns[PB_MAX_COLUMNS];   /* the table's column -> the part's, -1: none */
    uint8_t types[PB_MAX_COLUMNS]; /* types of those columns in the part; the table's may be wider */
};

/* The archived rows of a source's table: see archive_scan.h. */
struct pb_cat_archived;

struct pb_cat_table {
    char schema[PB_CAT_NAME], name[PB_CAT_NAME], comment[128];
    bool live, touched, taken;
    bool asked;      /* live, and by the agent: empty where there is none */
    bool registered; /* live: a function of the process gave it for this request */
    bool whole;      /* all columns may be read */
    struct pb_time_range range;
    struct pb_cat_column columns[PB_MAX_COLUMNS];
    unsigned ncolumns;
    int time_column;
    struct pb_cat_part *parts;
    unsigned nparts;
    struct pb_cat_segment *segments; /* oldest first */
    unsigned nsegments, ndeferred;
    enum pb_cat_copies copies;
    unsigned scans;            /* number of started scans; atomic */
    struct pb_cat_enum shared; /* for all string columns, where segments are deferred */
    uint64_t nrows;            /* about */
    uint64_t segments_read, segments_skipped;
    uint64_t bytes;           /* copied */
    _Atomic uint64_t damaged; /* number of damaged segments and cells */
    int64_t oldest;           /* time of the oldest row, INT64_MAX: none */
    struct pb_cat_archived *archived;
    unsigned narchived;
    bool named; /* its name occurs in a statement: archived rows may be wanted */
};

struct pb_cat_source {
    int32_t rank, pid; /* rank -1: none */
    int fd;            /* of its arena; -1: none */
    struct pb_reader *reader;
};

struct pb_catalog {
    struct pb_cat_source *sources;
    unsigned nsources;
    bool ranks; /* several processes: rank and target_pid are the first columns */
    struct pb_cat_table **tables;
    unsigned ntables;
};

/* Owns sources (and their descriptors), opens their arenas and lists the tables. An arena that cannot be read
 * is an error. */
int pb_catalog_init(struct pb_catalog *c, struct pb_cat_source *sources, unsigned nsources,
                    struct pb_err *err);
void pb_catalog_done(struct pb_catalog *c);

/* schema "" means main. */
struct pb_cat_table *pb_catalog_find(const struct pb_catalog *c, const char *schema, const char *name);

/* The table "schema.name", or "name" of main; NULL: there is none. */
struct pb_cat_table *pb_catalog_find_full(const struct pb_catalog *c, const char *full);

/* The table "schema.name" or "name", added if new; NULL: the name is not allowed, or out of memory. */
struct pb_cat_table *pb_catalog_table(struct pb_catalog *c, const char *full);

/* The column of that name, added if new; -1: not possible. */
int pb_catalog_column(struct pb_cat_table *t, const char *name, enum pb_type type, const char *unit,
                      const char *comment);

/* Widens the column to hold the source's type as well. False: there is no such type, and the column is
 * marked. */
bool pb_catalog_agree(struct pb_cat_column *c, enum pb_type type, unsigned source);

/* The error of a query that reads a column without a common type. */
void pb_catalog_conflict(const struct pb_catalog *c, const struct pb_cat_table *t,
                         const struct pb_cat_column *column, struct pb_err *err);

/* Sets the time column, if all sources have the same by name; otherwise there is none, and no segment is
 * skipped by time. */
void pb_catalog_time(struct pb_cat_table *t, const char *name, bool first);

/* The name of the table in an arena. An error: there are several. */
int pb_catalog_only_table(int fd, char ret[2 * PB_CAT_NAME], struct pb_err *err);

/* Adds the arenas of a live table, one per source, -1 where it could not be read; the descriptors stay the
 * caller's. */
int pb_catalog_add_live(struct pb_catalog *c, struct pb_cat_table *t, const int *fds, unsigned nfds,
                        struct pb_err *err);

int pb_catalog_take(struct pb_cat_table *t, struct pb_err *err);

/* Whether a segment's view has the listed columns in their types: the file may have changed. Otherwise it
 * must not be read. */
bool pb_catalog_fits(const struct pb_cat_table *t, unsigned part, const struct pb_view *v);

/* Frees the snapshot and its ENUMs. */
void pb_catalog_drop(struct pb_cat_table *t);

/* Makes ENUMs of the strings in a snapshot where that pays; may take the snapshot again. */
int pb_catalog_make_enums(struct pb_cat_table *t, struct pb_err *err);

/* One ENUM for all wanted string columns. -E2BIG: not possible. */
int pb_catalog_make_shared_enum(struct pb_cat_table *t);
