/* archive: rows that have left the arena, in Parquet files that any engine reads as they are.
 *
 *   FOLDER/TABLE/job=J/node=N/rank=R/date=YYYY-MM-DD/NAME.parquet   rows; the name says which
 *   FOLDER/TABLE/job=J/node=N/rank=R/.tmp-*, .commit.*              files that are being written
 *   FOLDER/_probing/RUN/                                            about, lock, log, TABLE.columns of a run
 *   FOLDER/_probing/RUN.of-PID-START                                that run is a recording of this process
 *
 * A name is RUN-FIRST-LAST-PARTofPARTS-cCOLUMNS-rTOTAL-SEGMENTS.parquet: the run, the times of its first and
 * last row (us), which part of a batch it is (a batch that spans midnight has a file a day), how many columns
 * the table had, how many rows of the table were archived up to its end, and the serials of the segments in
 * it. Names are the only record of what is archived: they appear with the rows or not at all. A file that was
 * merged of several has FIRST~MORE for its serials: all of the table's in that range that were ever archived.
 * Files of the same folder and run whose serials lie in it are the ones it was made of, and count no more.
 * What is here is text and paths; shared by broker and worker. */
#pragma once

#include "table/layout.h"
#include "table/names.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct pb_err;

enum {
    PB_ARCHIVE_RUN = 17,            /* sixteen digits and NUL */
    PB_ARCHIVE_PATH = 512,          /* of a path below the folder */
    PB_ARCHIVE_SERIALS = 128,       /* of the segments' text in a name */
    PB_ARCHIVE_BATCH = 128,         /* segments in a file at most */
    PB_ARCHIVE_PARTS = 8,           /* files in a batch at most */
    PB_ARCHIVE_DATE = 32,           /* of a day's folder, with NUL */
    PB_ARCHIVE_TABLE = PB_NAME_SIZE /* of one part of a table's name, with NUL */
};
#define PB_ARCHIVE_OWN PB_NAME_ARCHIVE /* our records; Spark, pyarrow and others pass over such names */
#define PB_ARCHIVE_OF  ".of-" /* RUN.of-PID-START: an empty file beside a recording's, names its process */

/* The contents of a file name. */
struct pb_archive_name {
    char run[PB_ARCHIVE_RUN];
    int64_t first, last; /* UTC us, of its rows */
    unsigned part, parts;
    unsigned ncolumns;
    uint64_t total;
    char serials[PB_ARCHIVE_SERIALS + 1];
    uint64_t first_serial, last_serial; /* from the text above */
};

/* A range of serials, both ends included. */
struct pb_archive_span {
    uint64_t first, last;
};

/* -EINVAL: not a file name of ours. */
int pb_archive_name_read(const char *text, struct pb_archive_name *ret);
void pb_archive_name_write(const struct pb_archive_name *name, char *ret, size_t size);

/* Ascending serials as text. Returns how many fitted. */
size_t pb_archive_serials_pack(const uint64_t *serials, size_t n, char ret[PB_ARCHIVE_SERIALS + 1]);
/* The range of a merged file as text: all serials between two. */
void pb_archive_serials_pack_all(uint64_t first, uint64_t last, char ret[PB_ARCHIVE_SERIALS + 1]);
bool pb_archive_is_merged(const struct pb_archive_name *name);
/* Returns how many spans there are, at most PB_ARCHIVE_BATCH, ascending; -EINVAL. */
int pb_archive_serials_unpack(const char *text, struct pb_archive_span ret[PB_ARCHIVE_BATCH]);

/* Sorts spans and joins those that touch. Returns how many are left. */
size_t pb_archive_spans_join(struct pb_archive_span *spans, size_t n);
/* Whether one of the spans contains a serial. */
bool pb_archive_spans_hold(const struct pb_archive_span *spans, size_t n, uint64_t serial);

/* The folder of a day (days after 1970-01-01): date=YYYY-MM-DD. PB_ARCHIVE_UNDATED: rows of many days. */
#define PB_ARCHIVE_UNDATED INT64_MIN
void pb_archive_date(int64_t day, char ret[PB_ARCHIVE_DATE]);

/* The given folder, or the setting's: PROBING_ARCHIVE, else probing/archive in the user's data directory.
 * Creates nothing. -ENOENT: it is "none", or there is no home. */
int pb_archive_folder(const char *given, char *ret, size_t size, struct pb_err *err);

/* probing/archive in the user's data directory. -ENOENT: there is no home. */
int pb_archive_folder_usual(char *ret, size_t size);

/* Decodes, in place, the %XX for separators in a component of a path or a field of a line. */
void pb_archive_unescape(char *text);

/* job=J/node=N/rank=R; an empty value becomes Hive's name for NULL. */
int pb_archive_partition(const char *job, const char *node, const char *rank, char *ret, size_t size);

/* --- the columns of a table, as TABLE.columns keeps them: a line each --- */

struct pb_archive_column {
    enum pb_type type;
    bool late;
    bool stored; /* false: a name that no file can hold; its index is kept */
    char name[64], unit[16], comment[64];
};

struct pb_archive_columns {
    struct pb_archive_column at[PB_MAX_COLUMNS];
    unsigned n;
    int time; /* index of the time column; -1: none */
};

/* Reads lines, up to the first invalid one. */
void pb_archive_columns_read(const char *text, size_t length, struct pb_archive_columns *ret);
void pb_archive_columns_write(FILE *out, const struct pb_archive_columns *columns);

/* Sets stored and time. A name is not stored when it is empty, not UTF-8, or a duplicate. */
void pb_archive_columns_judge(struct pb_archive_columns *columns);

/* Whether a time column has its nanoseconds in another column, NAME_ns; ret may be NULL. */
bool pb_archive_column_ns(const struct pb_archive_columns *columns, unsigned i, char ret[72]);
