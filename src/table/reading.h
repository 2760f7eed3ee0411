/* reading: shared by the reader's files (reader.c, view.c); private to src/table/. */
#pragma once

#include "table/reader.h"

struct pb_read_schema {
    uint32_t table, ncolumns, mask_words;
    int time_column;                /* -1: none */
    struct pb_file_column *columns; /* texts are terminated, types are valid */
    struct pb_column_info *infos;
};

struct pb_reader {
    int fd; /* -1: memory */
    const char *data;
    size_t size;
    struct pb_file_header header; /* a checked copy */
    struct pb_file_table *tables; /* max_tables; names are terminated */
    struct pb_read_schema schemas[PB_MAX_SCHEMAS];
    uint32_t nschemas;
    uint64_t schemas_end;      /* bytes of schema records taken in */
    int newest[PB_MAX_TABLES]; /* the newest schema of each table, -1: none */
};

/* Copies bytes of the arena. -ENODATA: they are not all there. */
int pb_reader_read(const struct pb_reader *r, uint64_t offset, void *to, size_t length);

/* Copies words that the writer may be storing right now, each whole: a word that differs between two reads is
 * used only if both values carry `serial`, and then as last read. `spare` has room for n too. */
int pb_reader_read_commits(const struct pb_reader *r, uint64_t offset, uint64_t *to, uint64_t *spare,
                           size_t n, uint64_t serial);

uint64_t pb_reader_slot_offset(const struct pb_reader *r, uint32_t slot);

/* The header of a slot, if it holds a segment whose every offset and count lies within it. -ENOENT: it holds
 * none; -EBADMSG: it makes no sense. */
int pb_reader_segment(struct pb_reader *r, uint32_t slot, struct pb_file_segment *ret);

/* ns added to a segment's times to get UTC. */
static inline int64_t pb_utc_offset(const struct pb_file_segment *f)
{
    return (int64_t)((uint64_t)f->real_ns - (uint64_t)f->mono_ns);
}

/* Adds without overflow: a hostile time gives the smallest or largest value. */
static inline int64_t pb_add_time(int64_t a, int64_t b)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return b < 0 ? INT64_MIN : INT64_MAX;
    return sum;
}
