/* writer: shared by the writer's files; private to src/table/.
 *
 * The shared memory is output only: it holds what a reader needs. Where the writer may write is decided in
 * private memory of this process (struct pb_control), in one mapping that a child of fork finds wiped. Every
 * decision is one compare-and-swap of a 64-bit word, so a signal handler that runs the same code in the
 * middle of it just wins or loses. A word of the shared memory that is loaded at all (commit words,
 * dictionary entries, times) may hold anything: it is checked against the private layout before it becomes an
 * offset or a length, and no loop depends on it.
 *
 * The rule that everything rests on: a segment's memory is written only by its owner while it is claimed, by
 * a thread that holds a row in it which is not committed, or by a visitor (its pin counts visitors). A
 * segment is claimed only when it is sealed, every row begun in it is committed or void, and its pin could be
 * closed. */
#pragma once

#include <stdatomic.h>
#include <sys/stat.h>

#include "table/arena.h"
#include "table/clock.h"
#include "table/pages.h"

enum {
    PB_EXTENT_SLOTS = 64, /* segments mapped at once */
    /* The part of PB_MAX_SLOTS that this writer uses: 16 GB of default segments. Each slot costs address
     * space, of which a program may have little. */
    PB_WRITER_SLOTS = 1 << 16,
    PB_MAX_EXTENTS = PB_WRITER_SLOTS / PB_EXTENT_SLOTS,
    PB_THREADS = 1024, /* entries of the thread map; a power of two */
    PB_THREAD_PROBES = 4,
    PB_PROMOTE_ROWS = 64, /* rows a thread puts into the shared segment before it gets its own */
    PB_MIN_SLOTS = 4,     /* kept whatever the bound says: with fewer no segment could be replaced */
    PB_SHARED_TRIES = 64, /* of a compare-and-swap: a stray writer must not hold us up */
};

/* How the rows of one schema lie in a segment. Written once, before it is published. */
struct pb_layout {
    uint32_t schema, table;
    uint32_t capacity, ncolumns, mask_words;
    uint32_t commits, masks, slots, entries, heap; /* offsets */
    uint32_t nslots, max_strings, heap_size;
    int32_t time_column;              /* -1: none */
    uint32_t time_offset;             /* 0: none */
    uint64_t nulls, more_nulls[2];    /* of a row just begun */
    uint64_t late[2];                 /* columns that may be filled late */
    uint32_t columns[PB_MAX_COLUMNS]; /* offset << 8 | type */
};

/* Whether the memory of a slot can be used, and for what. */
enum pb_space {
    PB_SPACE_HOLE = 0, /* no memory */
    PB_SPACE_FREE,     /* its pages are there, and no segment uses it */
    PB_SPACE_READY,    /* free, and kept ready for the next roll */
    PB_SPACE_BUSY,     /* it holds a segment, or a thread is making one */
};

/* The private part of a slot. state: serial << 24 | enum pb_segment_state << 20 | rows left. It counts down
 * so that taking a row needs only this word. pin: serial << 24 | closed << 23 | visitors. */
struct pb_segment {
    /* Two cache lines apart: processors fetch lines in pairs, and threads that append side by side would
     * contend. */
    _Alignas(128) _Atomic uint64_t state;
    _Atomic uint64_t pin;
    char *base;
    _Atomic(const struct pb_layout *) layout;
    _Atomic int64_t opened; /* no row is earlier, unless ts_min in the file was lowered for it */
    _Atomic int64_t real;   /* the wall clock at the same moment */
    _Atomic uint64_t dict;  /* ids given out << 32 | heap bytes given out */
    _Atomic uint32_t table;
    _Atomic uint32_t space;
    _Atomic uint32_t filled; /* the lowest row with a cell filled late since it was last copied */
};
static_assert(sizeof(struct pb_segment) == 128, "a pair of cache lines a segment");

#define PB_STATE(serial, st, left) ((uint64_t)(serial) << PB_SERIAL_SHIFT | (uint64_t)(st) << 20 | (left))
#define PB_STATE_LEFT(s)           ((uint32_t)((s)&0xfffff))
#define PB_STATE_IS(s, st)         (((s) >> 20 & 0xf) == (st))
#define PB_SERIAL(word)            ((word) >> PB_SERIAL_SHIFT)
#define PB_SLOT(cur)               ((uint32_t)((cur)&0xffffff))
#define PB_MAX_ROWS                0xfffffu
#define PB_PIN_CLOSED              (UINT64_C(1) << 23)

struct pb_table {
    _Alignas(64) struct pb_arena *arena; /* NULL in a child of fork, and once given back */
    uint32_t id;
    _Atomic uint32_t share;
    _Atomic(const struct pb_layout *) layout; /* of the current schema */
    _Atomic uint64_t shared;                  /* cur word of the segment all threads start in */
    _Atomic uint32_t nsegments, nopen;
    struct pb_file_table *file; /* shared: for the counters */
    struct pb_file_table entry; /* all but the counters, as it was defined */
};

enum pb_life {
    PB_LIFE_NONE, /* a child of fork, or given back: all of the control memory is zeros */
    PB_LIFE_OPEN,
    PB_LIFE_RETIRED, /* no row begins */
};

/* A cur word names a segment: serial << 24 | slot. In a thread's map a word below PB_PROMOTE_ROWS is the
 * number of rows it put into the shared segment. */
struct pb_control {
    _Atomic uint32_t live;   /* enum pb_life */
    _Atomic uint32_t inside; /* threads in shared memory without a row, a pin or a slot */
    _Atomic uint32_t ntables;
    _Atomic uint32_t nlayouts;
    _Atomic uint32_t define; /* held while a table or column is defined */
    _Atomic uint32_t tending;
    _Atomic uint32_t used; /* slots with memory */
    _Atomic uint32_t nready, ready_target;
    _Atomic uint32_t nfree;
    _Atomic uint32_t nopen;
    _Atomic uint32_t taken;     /* segments taken since the last tending */
    _Atomic uint32_t armed;     /* the next thread that finds few ready segments wakes the resident thread */
    _Atomic int64_t full_until; /* after memory ran out: when to ask for it again */
    _Atomic uint64_t nslots;    /* slots below this one may hold segments */
    _Atomic uint64_t next_serial;
    _Atomic uint64_t schemas_used; /* bytes of schema records */
    _Atomic uint32_t nschemas;
    struct pb_table tables[PB_MAX_TABLES];
    struct pb_layout layouts[PB_MAX_SCHEMAS];
    _Atomic uint64_t thread_key[PB_THREADS];
    _Alignas(64) _Atomic uint64_t thread_cur[PB_THREADS][PB_MAX_TABLES];
    struct pb_segment segments[PB_WRITER_SLOTS];
};

/* A descriptor of ours, and the file it was opened for: the program may close it and open a file of its own
 * under the number, which we must neither write to nor close. */
struct pb_own_fd {
    int fd; /* -1: none */
    dev_t dev;
    ino_t ino;
};

struct pb_mirror;

/* A child of fork keeps this: enough to unmap. */
struct pb_arena {
    struct pb_own_fd live; /* of the shared memory, read-only, for readers */
    uint32_t *wake;        /* or NULL */
    uint32_t segment_size;
    uint32_t max_slots;
    uint32_t page;    /* size of one */
    bool one_mapping; /* not a memfd: all of it was mapped at once */
    uint64_t segments_offset;
    _Atomic uint64_t bound;       /* bytes of memory that the arena may take */
    _Atomic uint64_t header_used; /* bytes reserved before the segments */
    struct pb_file_header about;  /* the parts of the header that never change */
    struct pb_file_header *header;
    char *schemas; /* the schema records as they were defined: the shared ones are a copy */
    struct pb_control *control;
    struct pb_mirror *mirror; /* NULL: none */
    _Atomic(char *) extents[PB_MAX_EXTENTS];
};

static inline struct pb_file_segment *pb_segment_file(const struct pb_segment *s)
{
    return (struct pb_file_segment *)(void *)s->base;
}

static inline uint32_t pb_segment_slot(const struct pb_arena *a, const struct pb_segment *s)
{
    return (uint32_t)(s - a->control->segments);
}

static inline const struct pb_layout *pb_segment_layout(const struct pb_segment *s)
{
    return atomic_load_explicit(&s->layout, memory_order_relaxed);
}

/* Raises a shared word for readers, unless it is higher already. */
static inline void pb_publish_max(uint64_t *word, uint64_t value)
{
    uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

    for (int i = 0; i < PB_SHARED_TRIES && old < value; i++)
        if (__atomic_compare_exchange_n(word, &old, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
}

/* memory.c: the shared memory itself. Makes and maps it, up to max_slots slots, of which the mapping covers
 * the header and the first extent; fills in live, header, max_slots and extents[0]. */
int pb_memory_make(struct pb_arena *a, const char *name);
void pb_memory_unmap(struct pb_arena *a);
/* Maps the extent and those below it. */
int pb_memory_map(struct pb_arena *a, uint32_t extent);
/* Allocates every page, so that no later access can fail. Contents stay, or are zero. -ENOMEM. */
int pb_memory_reserve(const struct pb_arena *a, char *at, size_t length);
/* Gives the pages back; they read as zeros. */
void pb_memory_give_back(char *at, size_t length);
/* Moves fd to a number that the program is unlikely to use and remembers its file. On failure fd is
 * closed. */
int pb_own_fd_keep(int fd, struct pb_own_fd *ret);
/* Whether fd is still that file; *ret (or NULL) receives the result of fstat. */
bool pb_own_fd_check(const struct pb_own_fd *own, struct stat *ret);
/* Closes it, if it is still ours. */
void pb_own_fd_close(struct pb_own_fd *own);

/* mirror.c: the copy in a file. Creates `name` in dirfd. */
int pb_mirror_make(struct pb_arena *a, int dirfd, const char *name);
/* Closes the copy's file and frees what belongs to it. */
void pb_mirror_close(struct pb_arena *a);

/* space.c: room in the shared memory. */
uint32_t pb_slot_limit(const struct pb_arena *a);
/* Finds a slot under the bound without memory; it is then the caller's (PB_SPACE_BUSY), mapped. -ENOSPC: at
 * the bound, or the disk is full. */
int pb_slot_grow(struct pb_arena *a, uint32_t *ret);
/* Takes a slot in that state for the caller. False: there is none. */
bool pb_slot_take(struct pb_arena *a, enum pb_space space, uint32_t *ret);
/* Gives the caller's slot back. */
void pb_slot_give(struct pb_arena *a, uint32_t slot, enum pb_space space);
/* Gives the space of the caller's slot back to the system. */
void pb_slot_punch(struct pb_arena *a, uint32_t slot);

/* segment.c: the life of segments. All signal-safe. */
bool pb_segment_visit(struct pb_segment *s, uint64_t serial);
void pb_segment_leave(struct pb_segment *s);
void pb_segment_seal(struct pb_arena *a, uint64_t cur);
/* Frees the oldest segment of the table most above its share; `asking` (or NULL) is the table that wants
 * room. The slot is the caller's. -ENOBUFS: nothing can be freed. */
int pb_segment_recycle(struct pb_arena *a, const struct pb_table *asking, uint32_t *ret);
/* Opens an empty segment for the table's current schema and puts its cur word into *ret. */
int pb_segment_open(struct pb_table *t, uint64_t *ret);
/* Takes back a segment just opened whose cur word no other thread has seen. */
void pb_segment_discard(struct pb_arena *a, uint64_t cur);
/* Widens the segment's time range in the file. The caller must hold a row in the segment. */
void pb_segment_lower_time(struct pb_segment *s, int64_t ts);
void pb_segment_raise_time(struct pb_segment *s, int64_t ts);

/* Seals the segment. True: every row begun in it is committed or void; and with close, nobody visits it now
 * or ever again. */
bool pb_segment_settle(struct pb_arena *a, struct pb_segment *s, bool close);

/* append.c: brackets around accesses to shared memory without a row or a visit. False: the arena is retired,
 * or this is a child of fork; then pb_arena_leave is not called. Signal-safe. */
bool pb_arena_enter(struct pb_arena *a);
void pb_arena_leave(struct pb_arena *a);

/* append.c: a row at that time, in whatever segment has room. */
int pb_row_reserve(struct pb_table *t, struct pb_row *row, int64_t ts);
/* Writes the header of a segment as its layout has it. */
void pb_segment_describe(struct pb_file_segment *f, const struct pb_layout *l, int64_t mono, int64_t real);

/* Adds to a counter of the table's directory entry. */
void pb_table_count(struct pb_table *t, uint64_t *counter, uint64_t n);

/* dict.c: the strings of a segment. The caller must hold a row in the segment or visit it. -ENOSPC: it is
 * full. */
int pb_dict_intern(struct pb_segment *s, const char *text, uint32_t length, uint16_t *ret);
int pb_dict_blob(struct pb_segment *s, const void *data, uint32_t length, uint64_t *ret);
