/* layout: the bytes of an arena file, as docs/table-format.md describes them.
 *
 * The contract between the process that writes an arena and everything that reads one, possibly of another
 * release: a change here is a change of the version below. Little endian, naturally aligned, no pointers.
 * Included by the writer and the reader only. */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define PB_ARENA_MAGIC "\x89PBarena" /* 8 bytes with the final NUL; written last when an arena is made */
#define PB_ARENA_MAJOR 1             /* a reader refuses any other */
#define PB_ARENA_MINOR 0             /* a reader accepts any: a minor version only adds fields at the end */

#define PB_MAX_COLUMNS 128
#define PB_MAX_TABLES  128
#define PB_MAX_SCHEMAS 512
#define PB_MAX_SLOTS   (1u << 18)

enum pb_type {
    PB_I8 = 1,
    PB_I16,
    PB_I32,
    PB_I64,
    PB_U8,
    PB_U16,
    PB_U32,
    PB_U64,
    PB_F32,
    PB_F64,
    PB_BOOL,
    PB_TIMESTAMP, /* int64: CLOCK_MONOTONIC ns in the file, UTC ns as the reader gives it */
    PB_STRING,    /* uint16: an id of the segment's dictionary */
    PB_BYTES,     /* uint64: offset in the segment's heap << 32 | length */
    PB_TYPE_END
};

enum pb_column_flags {
    PB_COL_LATE = 1, /* may be filled in once after the row was committed */
};

/* Width of a cell in bytes; 0 for what is no type. */
static inline unsigned pb_type_width(unsigned type)
{
    static const unsigned char width[PB_TYPE_END] = {0, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 1, 8, 2, 8};
    return type < PB_TYPE_END ? width[type] : 0;
}

struct pb_file_header {
    char magic[8];
    uint16_t major, minor;
    uint32_t header_size;      /* bytes of this struct in the version that wrote it */
    uint32_t segment_size;     /* a multiple of 4096 */
    uint32_t max_tables;       /* entries in the directory */
    uint64_t tables_offset;    /* struct pb_file_table[max_tables] */
    uint64_t schemas_offset;   /* struct pb_file_schema, each followed by its columns, back to back */
    uint64_t schemas_size;     /* room for them */
    uint64_t segments_offset;  /* slot i starts at segments_offset + i * segment_size */
    uint32_t pid, reserved;    /* the writer, in its own pid namespace */
    uint64_t start_time;       /* of the writer: field 22 of its /proc/PID/stat */
    int64_t mono_ns, real_ns;  /* both clocks at one moment, when the arena was made */
    unsigned char boot_id[16]; /* of the kernel that ran the writer; zero where unknown */
    /* What changes while the arena is written; single stores of one word each. */
    uint64_t bound;             /* bytes the file may hold */
    uint64_t nslots;            /* slots below this one may hold segments */
    uint64_t next_serial;       /* no segment has a serial at or above it */
    uint64_t schemas_used;      /* bytes of schema records published */
    uint32_t ntables, nschemas; /* published: entries below these are complete and never change */
};
static_assert(sizeof(struct pb_file_header) == 144, "the file header is part of the format");
static_assert(offsetof(struct pb_file_header, boot_id) == 88, "the file header is part of the format");

struct pb_file_table {
    char name[64]; /* NUL-terminated; "namespace.name" or plain */
    char comment[128];
    uint32_t schema;        /* id of the current schema */
    uint32_t share;         /* segments the table may keep whatever other tables write */
    uint64_t rows_recycled; /* committed rows in segments that made room for newer ones */
    uint64_t rows_dropped;  /* rows that found no room or did not fit */
    uint64_t cells_lost;    /* late cells whose row was gone or whose segment had no room */
    uint64_t reserved[4];
};
static_assert(sizeof(struct pb_file_table) == 256, "the table directory is part of the format");

struct pb_file_schema {
    uint32_t size; /* of the record with its columns */
    uint32_t id;   /* its position: 0, 1, 2, ... */
    uint32_t table;
    uint32_t previous; /* the schema of this table that it extends; its own id for the first */
    uint16_t ncolumns;
    uint16_t heap_percent; /* of a segment that goes to strings and bytes */
    uint32_t reserved[3];
};
static_assert(sizeof(struct pb_file_schema) == 32, "schema records are part of the format");

struct pb_file_column {
    char name[48];
    char unit[16];
    char comment[60];
    uint8_t type;  /* enum pb_type */
    uint8_t flags; /* enum pb_column_flags */
    uint8_t reserved[2];
};
static_assert(sizeof(struct pb_file_column) == 128, "schema records are part of the format");

/* The state word of a slot: serial << 24 | state. Serials are never reused, 0 is no serial. */
enum pb_segment_state {
    PB_SEG_FREE = 0,    /* nothing in it */
    PB_SEG_CLAIMED = 1, /* being prepared: what it held is gone */
    PB_SEG_OPEN = 2,    /* rows may be added */
    PB_SEG_SEALED = 3,  /* no rows are added; rows under way may still be committed, late cells filled */
};

struct pb_file_segment {
    uint64_t state;
    uint32_t table, schema;
    uint32_t capacity; /* rows */
    uint16_t ncolumns;
    uint16_t mask_words;      /* uint64 words per row for the NULLs of columns from PB_COMMIT_COLUMNS on */
    int64_t mono_ns, real_ns; /* both clocks at one moment, when the segment was opened */
    int64_t ts_min, ts_max;   /* over the table's time column; ts_max only of times set by hand */
    int64_t sealed_at;        /* clock after the last row was begun; 0: not known (yet) */
    uint32_t count;           /* rows begun, once sealed */
    uint32_t commits_offset;  /* uint64[capacity] */
    uint32_t masks_offset;    /* uint64[capacity][mask_words] */
    uint32_t slots_offset;    /* uint16[nslots]: the dictionary's hash table, id + 1, 0 for free */
    uint32_t entries_offset;  /* uint64[max_strings]: see pb_dict_entry */
    uint32_t heap_offset;
    uint32_t nslots, max_strings, heap_size;
    uint32_t reserved;
    uint64_t dict; /* ids given out << 32 | heap bytes given out */
    /* then uint32 column_offset[ncolumns], from the segment's start */
};
static_assert(sizeof(struct pb_file_segment) == 112, "segment headers are part of the format");

/* The commit word of a row: serial << 24 | void << 23 | NULL mask of the first 23 columns. A row exists with
 * all its cells from the moment its word carries the serial of its segment; a void row is never shown. */
#define PB_COMMIT_COLUMNS 23
#define PB_COMMIT_VOID    (UINT64_C(1) << 23)
#define PB_SERIAL_SHIFT   24
#define PB_SERIAL_MAX     ((UINT64_C(1) << 40) - 1)

/* A dictionary entry: offset in the heap (24 bits) | length << 24 (24 bits) | hash tag << 48. The tag is
 * never 0, so an entry of 0 is one not published. */
static inline uint64_t pb_dict_entry(uint32_t offset, uint32_t length, uint16_t tag)
{
    return (uint64_t)offset | (uint64_t)length << 24 | (uint64_t)tag << 48;
}
#define PB_ENTRY_OFFSET(e) ((uint32_t)((e)&0xffffff))
#define PB_ENTRY_LENGTH(e) ((uint32_t)((e) >> 24 & 0xffffff))
#define PB_ENTRY_TAG(e)    ((uint16_t)((e) >> 48))

#define PB_MIN_SEGMENT 4096u
#define PB_MAX_SEGMENT (1u << 24)
