/* reader: the tables of an arena, live or left by a dead process; the reading side.
 *
 * Never writes to the file, never waits for the writer, and treats the file as hostile: any bytes give rows
 * or an error, never a crash. By default everything is copied by pread, so that a file truncated meanwhile
 * cannot raise SIGBUS. Rows come a segment at a time, as dense typed arrays. For tools: uses the heap, not
 * for signal handlers. One reader is used by one thread at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "table/layout.h"

#define PB_WHY_SIZE 160

struct pb_reader;

/* Opens the arena behind fd, which stays the caller's and must outlive the reader. `why` (PB_WHY_SIZE bytes,
 * or NULL) receives a sentence on failure. -EBADMSG: not an arena, or damaged; -ENODATA: truncated;
 * -EPROTONOSUPPORT: written by a newer (or older) major version; or the errno of the failed read. */
int pb_reader_open(int fd, struct pb_reader **ret, char *why);

/* The same over memory the caller mapped or holds, which must outlive the reader. */
int pb_reader_open_memory(const void *data, size_t size, struct pb_reader **ret, char *why);
void pb_reader_close(struct pb_reader *r);

/* Reads tables and schemas published since. Pointers returned before stay valid. */
int pb_reader_refresh(struct pb_reader *r);

struct pb_reader_info {
    unsigned major, minor;
    uint32_t pid;        /* the writer, in its pid namespace */
    uint64_t start_time; /* field 22 of its /proc/PID/stat */
    unsigned char boot_id[16];
    int64_t created;      /* UTC ns */
    uint64_t bound, size; /* bytes: what it may hold, what the file measures (holes included) */
    uint32_t segment_size;
};
void pb_reader_info(const struct pb_reader *r, struct pb_reader_info *ret);

/* --- tables ---------------------------------------------------------------------------------------- */

struct pb_column_info {
    const char *name, *unit, *comment; /* "" where none; live as long as the reader */
    enum pb_type type;
    unsigned flags;
};

struct pb_table_info {
    const char *name, *comment; /* live as long as the reader */
    const struct pb_column_info *columns;
    unsigned ncolumns;
    int time_column; /* index of the column segments are skipped by; -1: none */
    uint32_t share;
    uint64_t dropped;    /* rows lost for lack of room */
    uint64_t recycled;   /* rows that made room for newer ones */
    uint64_t cells_lost; /* late cells that came too late */
};

unsigned pb_reader_ntables(const struct pb_reader *r);

/* Table i as it is now, from the directory alone. The columns are those of the newest schema at open or
 * refresh; a later refresh may replace the array, the strings stay. -ENOENT: no such table. */
int pb_reader_table(struct pb_reader *r, unsigned i, struct pb_table_info *ret);

/* Index of the table of that name; -ENOENT. */
int pb_reader_find(const struct pb_reader *r, const char *name);

struct pb_table_stats {
    uint64_t rows;  /* that can be read now */
    uint64_t bytes; /* of the segments that hold them */
    uint64_t segments;
    int64_t first, last; /* UTC ns over the time column; both 0 without rows or without a time column */
};

/* Counts by loading every segment of the table: some 10 us for each. */
int pb_reader_stats(struct pb_reader *r, unsigned table, struct pb_table_stats *ret);

/* --- segments -------------------------------------------------------------------------------------- */

struct pb_segment_info {
    uint64_t serial; /* larger is newer */
    uint32_t slot, table, schema;
    bool open;
    uint32_t rows; /* begun in it, once it is sealed */
    int64_t first,
        last; /* UTC ns that bound the times of its rows; last is INT64_MAX while that is not known */
};

/* The segments of a table, newest first, in an array of malloc that the caller frees (NULL when there are
 * none). Returns their number. A segment whose header makes no sense is left out. */
int pb_reader_segments(struct pb_reader *r, unsigned table, struct pb_segment_info **ret);

struct pb_text {
    const char *data; /* not NUL-terminated */
    uint32_t length;
    bool utf8; /* valid UTF-8 (NULs count as valid) */
};

struct pb_view_column {
    enum pb_type type;
    const void *cells; /* nrows cells of the type's width; NULL: the segment is older than the column */
    const uint64_t *validity; /* bit i % 64 of word i / 64 is 1 where row i has a value */
    uint32_t nulls;           /* how many rows have none */
};

/* A private copy of one segment: committed rows only, in the order they were begun, without gaps. Zero it
 * before first use; loading again reuses its memory. */
struct pb_view {
    uint64_t serial;
    uint32_t slot, schema;
    uint32_t nrows;
    bool complete;     /* sealed, and every row begun in it is settled: none will be added */
    uint32_t damaged;  /* cells given as NULL because they pointed nowhere: a corrupt file */
    unsigned ncolumns; /* of the table's newest schema: every view of a table has the same columns */
    struct pb_view_column *columns;
    const struct pb_text *strings; /* by id; PB_STRING cells are uint16 ids below nstrings */
    uint32_t nstrings;             /* ids that no row refers to may be there too, empty or twice */
    const char *heap;              /* PB_BYTES cells: see pb_view_bytes */
    uint32_t heap_size;
    /* Columns to load, bit i % 64 of word i / 64; NULL: all. The others read as NULL and cost nothing. The
     * caller's, set before loading; it stays as it is. */
    const uint64_t *wanted;
    /* With `wanted`: PB_STRING cells are ids as they stand in the file, unchecked, and the strings are not
     * loaded for them. The caller's, as `wanted` is. */
    bool ids_only;
    void *memory[4];       /* private */
    size_t memory_size[4]; /* private */
};

/* Loads a segment that pb_reader_segments named. Timestamps are UTC ns. -ESTALE: it was recycled since, or
 * while it was copied: nothing of it may be used. -EBADMSG: damaged. */
int pb_view_load(struct pb_reader *r, const struct pb_segment_info *segment, struct pb_view *v);

/* Loads only the strings of a segment: the view has no rows and no columns. Fails as pb_view_load does. */
int pb_view_load_strings(struct pb_reader *r, const struct pb_segment_info *segment, struct pb_view *v);

/* Whether the segment still holds the rows of the view; the view's own copy stays valid either way. */
bool pb_view_still_valid(struct pb_reader *r, const struct pb_view *v);
void pb_view_done(struct pb_view *v);

static inline bool pb_view_is_null(const struct pb_view *v, unsigned column, uint32_t row)
{
    const struct pb_view_column *c = &v->columns[column];
    return !c->cells || !(c->validity[row / 64] >> row % 64 & 1);
}

/* The bytes of a PB_BYTES cell that is not NULL. */
static inline struct pb_text pb_view_bytes(const struct pb_view *v, unsigned column, uint32_t row)
{
    uint64_t cell = ((const uint64_t *)v->columns[column].cells)[row];
    return (struct pb_text){.data = v->heap + (cell >> 32), .length = (uint32_t)cell};
}

/* Whether the bytes are UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
 */
bool pb_utf8_valid(const char *data, size_t length);
