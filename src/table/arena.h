/* arena: tables in shared, bounded memory, with a copy in a file that outlives the process; the writing side.
 *
 * One arena per process. Any thread appends at any time without locks, also from a signal handler that
 * interrupts an append of the same thread; a row is seen whole or not at all, whatever kills the writer.
 * When the bound is reached the oldest rows of the table most above its share make room.
 * Uses libc only; no thread-local storage, no heap: it runs inside other people's processes. Tools read
 * with reader.h. docs/table-format.md says how it works.
 *
 *   struct pb_row row;
 *   if (pb_row_begin(table, &row) == 0) {        // reads the clock; every cell is NULL until set
 *       pb_set_u64(&row, COL_BYTES, n);
 *       pb_set_string(&row, COL_NAME, name, strlen(name));
 *       pb_row_commit(&row);
 *   }
 *
 * "Signal-safe" below means: in a handler too, on any thread, at any moment between create and close. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "table/layout.h"

struct pb_arena;
struct pb_table;
struct pb_segment;

/* --- the arena ------------------------------------------------------------------------------------- */

#define PB_ARENA_MEMFD (-1) /* for dirfd: no copy in a file */

struct pb_arena_options {
    /* Bytes of memory that the arena may take; 0: 64 MB. Its copy takes as much again, wherever that is. At
     * least 4 segments are kept whatever it says. */
    uint64_t bound;
    uint32_t segment_size; /* 0: 256 KB; a multiple of 4096, at most 16 MB */
    uint32_t max_tables;   /* 0: 128 */
    uint32_t schema_bytes; /* room for column descriptions (128 bytes each); 0: 1 MB, taken as it is used */
    uint32_t *wake; /* raised by one, and a FUTEX_WAKE, when few ready segments are left; NULL: never */
};

/* Makes an arena in memory of that name (a sealed memfd: no path leads to it, and nothing that others do to
 * it is a signal here), and its copy in the file `name` in dirfd (it must not exist; mode 0600). Options may
 * be NULL. -ENOMEM: no room for the header and one segment; nothing is left behind then. */
int pb_arena_create(int dirfd, const char *name, const struct pb_arena_options *options,
                    struct pb_arena **ret);

/* Brings the copy up to date, unmaps and closes; the copy stays. No thread may append any more: the caller
 * must see to that. No pb_table of this arena may be used afterwards. NULL is allowed. */
void pb_arena_close(struct pb_arena *a);

/* Instead of pb_arena_close, for an arena that threads of the program append to: nobody knows when the last
 * of them has left an append. From retire on no row begins (-ESHUTDOWN; appends before cost nothing more) and
 * no cell is filled; rows begun before may still be committed. Everything is sealed and can be read. Not
 * signal-safe; once. */
void pb_arena_retire(struct pb_arena *a);

/* Returns 1 after giving back the memory of a retired arena; 0 while a thread holds a row or visits a segment
 * (nanoseconds, unless a thread is kept from running): try again. Brings the copy up to date first, and
 * closes it. 10 MB of address space and a page or two stay for ever: tables and the arena stay valid, and
 * calls on them fail with -ESHUTDOWN, -ESTALE or NULL. One thread at a time; not signal-safe. */
int pb_arena_release(struct pb_arena *a);

/* A read-only descriptor of the memory (close-on-exec), owned by the arena: to hand to a reader. -1 where
 * there is none: the kernel gave no memfd, or the program has closed it. */
int pb_arena_fd(const struct pb_arena *a);

/* Brings the copy up to date, as far as a few ms go: rows committed before the call, late cells filled before
 * it. One thread at a time, not signal-safe. Does file I/O: hold no lock. A reader of the file, at any time
 * and whatever happened to the writer or the file, finds whole rows that were committed, or fewer. Returns 1
 * when there is more to copy, 0 when all is there, negative errno when the copy cannot be written: after
 * -ENOSPC and the like it is tried again after a while, -ENOENT is for good (the file was removed) and so is
 * -EBADF (the program has closed its descriptor). An arena without a copy: 0. */
int pb_arena_mirror(struct pb_arena *a);

/* The errno of the last pb_arena_mirror that failed, until one succeeds; 0: the copy is fine. */
int pb_arena_mirror_error(const struct pb_arena *a);

/* Changes the bound. Takes hold at once for growth; memory above a lowered bound is given back by
 * pb_arena_tend. Signal-safe. */
void pb_arena_set_bound(struct pb_arena *a, uint64_t bytes);
uint64_t pb_arena_bound(const struct pb_arena *a);

/* Bytes of memory that it takes now, header included; without its copy. */
uint64_t pb_arena_used(const struct pb_arena *a);

/* The work of the resident thread (once a second, and when options.wake was raised): prepares segments ahead
 * of the writers, with their pages, and gives back memory above the bound. One thread at a time; a second
 * call meanwhile returns 0. Returns the number of segments prepared, or negative errno when one could not be
 * (-ENOMEM: out of memory, -ENOBUFS: nothing could be recycled). Only latency and the lowering of a bound
 * depend on it. */
int pb_arena_tend(struct pb_arena *a);

/* A child of fork must never write to its parent's arena. Where the kernel has MADV_WIPEONFORK (4.14 and
 * newer) this holds by itself: every append in the child fails with -ESHUTDOWN. Older kernels: call this in
 * the child (pthread_atfork) before anything appends. Harmless where it is not needed. Signal-safe. */
void pb_arena_after_fork_in_child(struct pb_arena *a);

/* In a child of fork: closes the descriptors that came along, those that are still the arena's. */
void pb_arena_close_fds(struct pb_arena *a);

/* Where the copy of an arena should live on this machine. shm_dir NULL: /dev/shm; run_dir NULL: none. */
enum pb_copy_place_kind { PB_PLACE_SHM, PB_PLACE_RUN_DIR, PB_PLACE_MEMFD };
struct pb_copy_place {
    enum pb_copy_place_kind kind;
    uint64_t bound; /* `want`, or less where the place has no room for that */
};
/* In shared memory if 1 GB is free there, using at most a 32nd of that; else in the run directory if it
 * has room for 4 MB, using at most half of it; else there is no copy. */
void pb_arena_place(const char *shm_dir, const char *run_dir, uint64_t want, struct pb_copy_place *ret);
/* The same limits as they are now, for an arena whose copy already holds `held` bytes in the directory. */
uint64_t pb_arena_room(int dir_fd, enum pb_copy_place_kind kind, uint64_t held);

/* --- tables ---------------------------------------------------------------------------------------- */

struct pb_column {
    const char *name; /* up to 47 bytes */
    enum pb_type type;
    unsigned flags;      /* enum pb_column_flags */
    const char *unit;    /* up to 15 bytes: "ns", "MB"; NULL: none */
    const char *comment; /* up to 59 bytes; NULL: none */
};

struct pb_table_spec {
    const char *name;    /* up to 63 bytes: "memory_usage" or "python.torch_trace" */
    const char *comment; /* up to 127 bytes; NULL: none */
    const struct pb_column *columns;
    unsigned ncolumns;     /* 1 to PB_MAX_COLUMNS */
    unsigned share;        /* segments the table keeps whatever other tables write; 0: 1 */
    unsigned heap_percent; /* of a segment for strings and bytes; 0: 25 with strings, 50 with bytes columns */
};

/* Makes a table, or returns the existing one of that name when its columns begin with the same names and
 * types. The first PB_TIMESTAMP column that is not late is the table's time: pb_row_begin sets it and readers
 * skip segments by it. Texts that are too long are cut. Handles live as long as the arena; not signal-safe.
 * -EEXIST: another table has the name; -ENOSPC: no room for more; -EMSGSIZE: a row cannot fit a segment;
 * -EINVAL: no name, no columns, an unknown type. */
int pb_table_new(struct pb_arena *a, const struct pb_table_spec *spec, struct pb_table **ret);

/* The table of that name, or NULL. */
struct pb_table *pb_table_find(struct pb_arena *a, const char *name);

/* Adds a column and returns its index, or the index of the one of that name and type. Rows written before
 * read as NULL in it. Appends under way keep working. Not signal-safe. -EEXIST: it has another type. */
int pb_table_grow(struct pb_table *t, const struct pb_column *column);

/* --- rows ------------------------------------------------------------------------------------------ */

/* A row under way. Everything in it is private to the functions below. */
struct pb_row {
    char *base;              /* of the segment */
    const uint32_t *columns; /* offset << 8 | type */
    uint64_t *commit;        /* this row's commit word */
    uint64_t serial;         /* of the segment, << 24 */
    uint64_t nulls;          /* columns that are NULL */
    uint64_t more_nulls[2];  /* columns from PB_COMMIT_COLUMNS on */
    struct pb_segment *segment;
    struct pb_table *table;
    uint32_t index;
    uint32_t mask_words;
    int error;
};

/* Begins a row: its time is now, every other cell NULL. Must be followed by pb_row_commit or pb_row_abort on
 * the same thread, soon: the segment cannot be recycled until then. Signal-safe. -ENOBUFS, -ENOMEM: no room
 * and nothing to recycle, counted as dropped; -ESHUTDOWN: in a child of fork, or the arena is retired. */
int pb_row_begin(struct pb_table *t, struct pb_row *row);

/* Makes the row visible, or, when a setter failed, voids it and returns that failure: -EINVAL (no such column
 * or another type), -EMSGSIZE (the row's strings do not fit a segment; counted as dropped), -ENOBUFS. */
static inline int pb_row_commit(struct pb_row *row);

/* Drops the row: no reader ever sees it. */
void pb_row_abort(struct pb_row *row);

/* Setters: signal-safe; a failure is kept in the row and returned by commit. A string may hold any bytes,
 * NULs too, and is stored unchanged. A NULL pointer leaves the cell NULL. Timestamps are CLOCK_MONOTONIC
 * ns. */
static inline void pb_set_i8(struct pb_row *row, unsigned column, int8_t value);
static inline void pb_set_i16(struct pb_row *row, unsigned column, int16_t value);
static inline void pb_set_i32(struct pb_row *row, unsigned column, int32_t value);
static inline void pb_set_i64(struct pb_row *row, unsigned column, int64_t value);
static inline void pb_set_u8(struct pb_row *row, unsigned column, uint8_t value);
static inline void pb_set_u16(struct pb_row *row, unsigned column, uint16_t value);
static inline void pb_set_u32(struct pb_row *row, unsigned column, uint32_t value);
static inline void pb_set_u64(struct pb_row *row, unsigned column, uint64_t value);
static inline void pb_set_f32(struct pb_row *row, unsigned column, float value);
static inline void pb_set_f64(struct pb_row *row, unsigned column, double value);
static inline void pb_set_bool(struct pb_row *row, unsigned column, bool value);
void pb_set_timestamp(struct pb_row *row, unsigned column, int64_t mono_ns);
void pb_set_string(struct pb_row *row, unsigned column, const char *text, size_t length);
void pb_set_bytes(struct pb_row *row, unsigned column, const void *data, size_t length);

/* Caches where a string that is set over and over was stored last, to save the lookup while rows go to the
 * same segment. Starts as zeros, belongs to one arena, and is used by one thread at a time. */
struct pb_string_place {
    uint64_t serial;
    uint16_t id;
};
void pb_set_string_again(struct pb_row *row, unsigned column, const char *text, size_t length,
                         struct pb_string_place *place);

/* --- late cells ------------------------------------------------------------------------------------ */

/* Names a row for as long as it exists; plain data, may be copied. */
struct pb_row_ref {
    uint64_t serial;
    uint32_t slot, index;
};

/* The reference of a row begun and not aborted; take it after the last setter, before or after the commit. */
struct pb_row_ref pb_row_ref(const struct pb_row *row);

/* Fills a cell of a PB_COL_LATE column that is still NULL, after the commit, from any thread. Signal-safe.
 * Two threads that fill one cell at the same moment leave one of the two values.
 * -ESTALE: the row made room for newer ones; -EALREADY: it has a value; -EINVAL: not a late column of that
 * type, or the row was aborted; -EAGAIN: not committed yet; -ENOBUFS: its segment has no room for the string.
 * -ESTALE and -ENOBUFS are counted in the table. */
int pb_fill(struct pb_arena *a, struct pb_row_ref ref, unsigned column, enum pb_type type, const void *value,
            size_t length);

/* Fills several cells of a row, which costs less than one by one. Returns the first failure; the other cells
 * are filled all the same. */
struct pb_late {
    unsigned column;
    enum pb_type type;
    const void *value;
    size_t length;
};
int pb_fill_all(struct pb_arena *a, struct pb_row_ref ref, const struct pb_late *cells, unsigned ncells);

static inline int pb_fill_i32(struct pb_arena *a, struct pb_row_ref ref, unsigned column, int32_t value)
{
    return pb_fill(a, ref, column, PB_I32, &value, sizeof(value));
}

static inline int pb_fill_i64(struct pb_arena *a, struct pb_row_ref ref, unsigned column, int64_t value)
{
    return pb_fill(a, ref, column, PB_I64, &value, sizeof(value));
}

static inline int pb_fill_u64(struct pb_arena *a, struct pb_row_ref ref, unsigned column, uint64_t value)
{
    return pb_fill(a, ref, column, PB_U64, &value, sizeof(value));
}

static inline int pb_fill_f64(struct pb_arena *a, struct pb_row_ref ref, unsigned column, double value)
{
    return pb_fill(a, ref, column, PB_F64, &value, sizeof(value));
}

static inline int pb_fill_timestamp(struct pb_arena *a, struct pb_row_ref ref, unsigned column,
                                    int64_t mono_ns)
{
    return pb_fill(a, ref, column, PB_TIMESTAMP, &mono_ns, sizeof(mono_ns));
}

static inline int pb_fill_string(struct pb_arena *a, struct pb_row_ref ref, unsigned column, const char *text,
                                 size_t length)
{
    return pb_fill(a, ref, column, PB_STRING, text, length);
}

/* --- what the inline functions are made of --------------------------------------------------------- */

/* Voids the row and returns its error. */
int pb_row_fail(struct pb_row *row);

static inline void pb_row_clear_null(struct pb_row *row, unsigned column)
{
    if (column < PB_COMMIT_COLUMNS)
        row->nulls &= ~(UINT64_C(1) << column);
    else
        row->more_nulls[(column - PB_COMMIT_COLUMNS) / 64] &=
            ~(UINT64_C(1) << (column - PB_COMMIT_COLUMNS) % 64);
}

/* Where the cell lies, with its NULL bit cleared; NULL when the column is not of that type. */
static inline void *pb_row_cell(struct pb_row *row, unsigned column, unsigned type, unsigned width)
{
    uint32_t where = column < PB_MAX_COLUMNS ? row->columns[column] : 0;
    if (__builtin_expect((where & 0xff) != type, 0)) {
        row->error = -EINVAL;
        return NULL;
    }
    pb_row_clear_null(row, column);
    return row->base + (where >> 8) + (size_t)row->index * width;
}

#define PB_SETTER(name, ctype, type)                                                                         \
    static inline void pb_set_##name(struct pb_row *row, unsigned column, ctype value)                       \
    {                                                                                                        \
        void *cell = pb_row_cell(row, column, type, sizeof(value));                                          \
        if (cell)                                                                                            \
            memcpy(cell, &value, sizeof(value));                                                             \
    }
PB_SETTER(i8, int8_t, PB_I8)
PB_SETTER(i16, int16_t, PB_I16)
PB_SETTER(i32, int32_t, PB_I32)
PB_SETTER(i64, int64_t, PB_I64)
PB_SETTER(u8, uint8_t, PB_U8)
PB_SETTER(u16, uint16_t, PB_U16)
PB_SETTER(u32, uint32_t, PB_U32)
PB_SETTER(u64, uint64_t, PB_U64)
PB_SETTER(f32, float, PB_F32)
PB_SETTER(f64, double, PB_F64)
PB_SETTER(bool, bool, PB_BOOL)
#undef PB_SETTER

/* Writes the NULL words of a row with more columns than its commit word has bits. */
void pb_row_store_masks(struct pb_row *row);

static inline int pb_row_commit(struct pb_row *row)
{
    if (__builtin_expect(row->error, 0))
        return pb_row_fail(row);
    if (row->mask_words)
        pb_row_store_masks(row);
    /* The one store that makes the row: a reader that sees it sees everything written before it. */
    __atomic_store_n(row->commit, row->serial | row->nulls, __ATOMIC_RELEASE);
    return 0;
}
