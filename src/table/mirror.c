/* mirror: a copy of the arena in a file, for when the process is gone.
 *
 * The rows live in memory that no other process can truncate (memory.c) and that ends with this process. The
 * resident thread copies changes into the file by pwrite only: a file that was truncated or removed, or a
 * full disk, is an error here and never a signal. The file is consistent at every moment, because each piece
 * is written after the pieces it relies on: schemas and directory before the header that counts them; a slot
 * is marked free before it is overwritten; then the cells, then the segment's header, then the NULL words,
 * and last the commit words. All of them were read in the opposite order.
 *
 * Private memory says where rows are; the shared memory gives values only. A segment is copied into private
 * memory first and used only if it was not recycled meanwhile, so appends never wait for the copy. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "table/writer.h"

#ifndef FALLOC_FL_PUNCH_HOLE
#define FALLOC_FL_KEEP_SIZE  1
#define FALLOC_FL_PUNCH_HOLE 2
#endif

enum {
    MAX_BYTES = 16 << 20, /* copied in one call: a few ms */
};
/* Written behind the last slot. Read as the state of a slot, it means free. */
#define MARK     (PB_SERIAL_MAX << PB_SERIAL_SHIFT | PB_SEG_FREE)
#define RETRY_NS INT64_C(2000000000) /* after a full disk, writing is tried again after this */

/* How much of a slot the file has. */
struct slot_copy {
    uint64_t serial;               /* 0: nothing that can be read */
    uint32_t begun, rows, settled; /* rows begun; the first that was not settled; settled ones from that on */
    uint32_t refill;               /* the lowest row with a late cell that is not copied yet */
    uint32_t ids, heap;            /* entries and bytes that need not be copied again */
    bool sealed, written;
};

struct pb_mirror {
    struct pb_own_fd file;
    int error;                    /* negative errno; 0: none */
    bool over;                    /* nothing more is written */
    int64_t retry_at;             /* after an error */
    uint64_t size;                /* of the file, as we made it, without the mark behind it */
    uint64_t bytes;               /* copied in this call */
    uint32_t cursor;              /* the slot to begin with */
    uint64_t schemas;             /* bytes of schema records in the file */
    struct pb_file_header header; /* as it stands in the file */
    struct pb_file_table tables[PB_MAX_TABLES];
    char *staging; /* a segment's size */
    struct slot_copy slots[PB_WRITER_SLOTS];
};

/* A segment that is being copied. */
struct mirror_copy {
    struct pb_arena *a;
    struct pb_mirror *m;
    struct pb_segment *s;
    const struct pb_layout *l;
    uint64_t serial;
    uint32_t slot, from, begun, settled, first_open; /* rows [from, begun) */
    uint32_t ids_from, ids, ids_safe, heap_from, heap, heap_safe;
    bool sealed;
};

/* --- the file ---------------------------------------------------------------------------------------- */

static int write_at(struct pb_mirror *m, uint64_t offset, const void *data, size_t length)
{
    const char *from = data;
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        offset + length > limit.rlim_cur) /* the kernel would raise SIGXFSZ */
        return -EFBIG;
    m->bytes += length;
    for (size_t done = 0; done < length;) {
        ssize_t n = pwrite(m->file.fd, from + done, length - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENOSPC;
        done += (size_t)n;
    }
    return 0;
}

/* Whether the file was not truncated since its mark was written. Its length does not tell: a later write
 * restores that. */
static bool has_mark(const struct pb_mirror *m)
{
    uint64_t word = 0;

    return m->size == 0 ||
           (pread(m->file.fd, &word, sizeof(word), (off_t)m->size) == sizeof(word) && word == MARK);
}

/* Makes the file at least that long, and writes the mark. The old mark is checked after the new one is
 * written, so that a truncation between the two is noticed. */
static int lengthen(struct pb_mirror *m, uint64_t size)
{
    const uint64_t mark = MARK;

    if (m->size >= size)
        return 0;
    int r = write_at(m, size, &mark, sizeof(mark));
    if (r < 0)
        return r;
    if (!has_mark(m))
        return -EAGAIN;
    m->size = size;
    return 0;
}

static void end_mirror(struct pb_arena *a, int error)
{
    struct pb_mirror *m = a->mirror;

    pb_own_fd_close(&m->file);
    m->over = true;
    m->error = error;
}

/* Whether the file is ours and whole. A truncated one is emptied and begun anew: lost cells would read as
 * zeros. -EAGAIN: it is empty now. */
static int check_file(struct pb_arena *a)
{
    struct pb_mirror *m = a->mirror;
    struct stat st;

    if (!pb_own_fd_check(&m->file, &st)) {
        end_mirror(a, -EBADF);
        return -EBADF;
    }
    if (st.st_nlink == 0) {
        end_mirror(a, -ENOENT);
        return -ENOENT;
    }
    if (has_mark(m))
        return 0;
    if (ftruncate(m->file.fd, 0) < 0)
        return -errno;
    m->size = m->schemas = 0;
    memset(&m->header, 0, sizeof(m->header));
    memset(m->tables, 0, sizeof(m->tables));
    for (uint32_t i = 0, n = (uint32_t)atomic_load(&a->control->nslots); i < n; i++)
        m->slots[i] = (struct slot_copy){0};
    return -EAGAIN;
}

/* --- header, directory, schemas ---------------------------------------------------------------------- */

static int copy_tables(struct pb_arena *a, uint32_t n)
{
    struct pb_mirror *m = a->mirror;

    for (uint32_t i = 0; i < n; i++) {
        const struct pb_table *t = &a->control->tables[i];
        struct pb_file_table now = {0};
        memcpy(now.name, t->entry.name, sizeof(now.name));
        memcpy(now.comment, t->entry.comment, sizeof(now.comment));
        now.schema = __atomic_load_n(&t->entry.schema, __ATOMIC_ACQUIRE);
        now.share = t->entry.share;
        now.rows_recycled = __atomic_load_n(&t->file->rows_recycled, __ATOMIC_RELAXED);
        now.rows_dropped = __atomic_load_n(&t->file->rows_dropped, __ATOMIC_RELAXED);
        now.cells_lost = __atomic_load_n(&t->file->cells_lost, __ATOMIC_RELAXED);
        if (memcmp(&now, &m->tables[i], sizeof(now)) == 0)
            continue;
        int r = write_at(m, a->about.tables_offset + i * sizeof(now), &now, sizeof(now));
        if (r < 0)
            return r;
        m->tables[i] = now;
    }
    return 0;
}

static int copy_directory(struct pb_arena *a)
{
    struct pb_control *c = a->control;
    struct pb_mirror *m = a->mirror;
    struct pb_file_header h = a->about;

    /* Each entry is complete before it is counted. */
    h.ntables = atomic_load(&c->ntables);
    h.nschemas = atomic_load(&c->nschemas);
    h.schemas_used = atomic_load(&c->schemas_used);
    h.bound = atomic_load(&a->bound);
    h.nslots = atomic_load(&c->nslots);
    h.next_serial = atomic_load(&c->next_serial);
    int r = lengthen(m, a->segments_offset);
    if (r == 0 && h.schemas_used > m->schemas) {
        r = write_at(m, h.schemas_offset + m->schemas, a->schemas + m->schemas, h.schemas_used - m->schemas);
        if (r == 0)
            m->schemas = h.schemas_used;
    }
    if (r == 0)
        r = copy_tables(a, h.ntables);
    if (r < 0 || memcmp(&h, &m->header, sizeof(h)) == 0)
        return r;
    r = write_at(m, 0, &h, sizeof(h));
    if (r == 0)
        m->header = h;
    return r;
}

/* --- a segment --------------------------------------------------------------------------------------- */

static uint64_t slot_offset(const struct mirror_copy *c)
{
    return c->a->segments_offset + (uint64_t)c->slot * c->a->segment_size;
}

/* Copies whole words that other threads write meanwhile; incomplete rows are not used. The thread sanitizer
 * would report this race, so it is off here. */
__attribute__((no_sanitize("thread"))) static void copy_words(const struct mirror_copy *c, uint32_t from,
                                                              uint32_t to)
{
    const volatile uint64_t *live = (const volatile uint64_t *)(const void *)c->s->base;
    uint64_t *copied = (uint64_t *)(void *)c->m->staging;

    for (uint32_t i = from / 8; i < (to + 7) / 8; i++)
        copied[i] = live[i];
}

/* Writes the same words from the copy to the file. */
static int write_words(const struct mirror_copy *c, uint32_t from, uint32_t to)
{
    from &= ~7u;
    to = (to + 7) & ~7u;
    return to > from ? write_at(c->m, slot_offset(c) + from, c->m->staging + from, to - from) : 0;
}

/* Copies the commit words as they are now, without those of rows that are not settled. */
static void copy_commits(struct mirror_copy *c)
{
    uint64_t *words = (uint64_t *)(void *)(c->m->staging + c->l->commits);

    copy_words(c, c->l->commits + c->from * 8, c->l->commits + c->begun * 8);
    atomic_thread_fence(memory_order_acquire);
    c->first_open = c->begun;
    for (uint32_t i = c->begun; i-- > c->from;) {
        if (PB_SERIAL(words[i]) == c->serial)
            continue;
        words[i] = 0;
        c->first_open = i;
    }
    c->settled = 0;
    for (uint32_t i = c->first_open; i < c->begun; i++)
        c->settled += words[i] != 0;
}

static void copy_cells(const struct mirror_copy *c)
{
    const struct pb_layout *l = c->l;

    copy_words(c, l->entries + c->ids_from * 8, l->entries + c->ids * 8);
    copy_words(c, l->heap + c->heap_from, l->heap + c->heap);
    for (uint32_t i = 0; i < l->ncolumns; i++) {
        uint32_t offset = l->columns[i] >> 8, width = pb_type_width(l->columns[i] & 0xff);
        copy_words(c, offset + c->from * width, offset + c->begun * width);
    }
}

/* The segment's header: from private memory, except the times. */
__attribute__((no_sanitize("thread"))) static void make_header(const struct mirror_copy *c)
{
    struct pb_file_segment *f = (struct pb_file_segment *)(void *)c->m->staging;
    const volatile struct pb_file_segment *live = pb_segment_file(c->s);

    pb_segment_describe(f, c->l, atomic_load(&c->s->opened), atomic_load(&c->s->real));
    f->state = c->serial << PB_SERIAL_SHIFT | (c->sealed ? PB_SEG_SEALED : PB_SEG_OPEN);
    f->ts_min = live->ts_min;
    f->ts_max = live->ts_max;
    f->sealed_at = c->sealed ? live->sealed_at : 0;
    f->count = c->sealed ? c->begun : 0;
    f->dict = (uint64_t)c->ids << 32 | c->heap;
}

/* Finds the rows of a segment that are to be copied. False: none, or the segment is being recycled. */
static bool find_new_rows(struct mirror_copy *c, struct slot_copy *done)
{
    uint64_t before = atomic_load(&c->s->state), dict = atomic_load(&c->s->dict);
    /* Read after dict: every row that took heap before that is counted here as begun. */
    uint64_t state = atomic_load(&c->s->state);

    c->l = pb_segment_layout(c->s);
    c->serial = PB_SERIAL(state);
    if (PB_SERIAL(before) != c->serial || PB_STATE_LEFT(state) > c->l->capacity)
        return false;
    c->begun = c->l->capacity - PB_STATE_LEFT(state);
    c->sealed = PB_STATE_IS(state, PB_SEG_SEALED);
    c->ids_safe = (uint32_t)(dict >> 32);
    c->heap_safe = (uint32_t)dict;
    bool same = done->serial == c->serial;
    if (same) {
        uint32_t filled = atomic_load_explicit(&c->s->filled, memory_order_relaxed);
        if (filled != UINT32_MAX) /* before the cells are copied: cells filled from now on are marked again */
            filled = atomic_exchange(&c->s->filled, UINT32_MAX);
        done->refill = filled < done->refill ? filled : done->refill;
        if (done->refill == UINT32_MAX && done->rows == c->begun && done->begun == c->begun &&
            done->sealed == c->sealed)
            return false;
    } else {
        atomic_exchange(&c->s->filled, UINT32_MAX);
    }
    /* A cell that was filled without a mark, since there was one, is read after the mark was taken away. */
    atomic_thread_fence(memory_order_seq_cst);
    bool refilled = same && done->refill != UINT32_MAX;
    c->from = !same ? 0 : done->refill < done->rows ? done->refill : done->rows;
    c->ids_from = same && !refilled ? done->ids : 0;
    c->heap_from = same && !refilled ? done->heap : 0;
    return true;
}

/* Copies the segment into private memory. False: nothing is new, or it was recycled meanwhile. */
static bool take_copy(struct mirror_copy *c, const struct slot_copy *done)
{
    copy_commits(c);
    if (done->serial == c->serial && done->refill == UINT32_MAX && done->begun == c->begun &&
        done->sealed == c->sealed && done->rows == c->first_open && done->settled == c->settled)
        return false;
    copy_words(c, c->l->masks + c->from * c->l->mask_words * 8,
               c->l->masks + c->begun * c->l->mask_words * 8);
    atomic_thread_fence(memory_order_acquire);
    uint64_t dict = atomic_load(&c->s->dict);
    c->ids = (uint32_t)(dict >> 32);
    c->heap = (uint32_t)dict;
    if (c->ids > c->l->max_strings || c->heap > c->l->heap_size || c->ids < c->ids_from ||
        c->heap < c->heap_from)
        return false;
    copy_cells(c);
    make_header(c);
    atomic_thread_fence(memory_order_acquire);
    uint64_t state = atomic_load(&c->s->state);
    return PB_SERIAL(state) == c->serial && !PB_STATE_IS(state, PB_SEG_CLAIMED);
}

static int write_copy(const struct mirror_copy *c)
{
    const struct pb_layout *l = c->l;
    uint64_t rows = l->mask_words * 8;

    int r = write_words(c, l->entries + c->ids_from * 8, l->entries + c->ids * 8);
    if (r == 0)
        r = write_words(c, l->heap + c->heap_from, l->heap + c->heap);
    for (uint32_t i = 0; r == 0 && i < l->ncolumns; i++) {
        uint32_t offset = l->columns[i] >> 8, width = pb_type_width(l->columns[i] & 0xff);
        r = write_words(c, offset + c->from * width, offset + c->begun * width);
    }
    if (r == 0)
        r = write_words(c, 0, (uint32_t)sizeof(struct pb_file_segment) + 4 * l->ncolumns);
    if (r == 0)
        r = write_words(c, l->masks + c->from * (uint32_t)rows, l->masks + c->begun * (uint32_t)rows);
    return r < 0 ? r : write_words(c, l->commits + c->from * 8, l->commits + c->begun * 8);
}

/* Marks the slot as free in the file. */
static int write_state(const struct mirror_copy *c, uint64_t state)
{
    return write_at(c->m, slot_offset(c), &state, sizeof(state));
}

/* For a slot that holds no segment now: marks it free in the file. */
static int clear_slot(const struct mirror_copy *c, struct slot_copy *done)
{
    int r = done->serial ? write_state(c, done->serial << PB_SERIAL_SHIFT | PB_SEG_FREE) : 0;

    if (r < 0)
        return r;
    done->serial = 0;
    if (done->written && atomic_load(&c->s->space) == PB_SPACE_HOLE) {
        /* A file system without holes keeps the space until it is written again. */
        (void)fallocate(c->m->file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)slot_offset(c),
                        c->a->segment_size);
        done->written = false;
    }
    return 0;
}

static int copy_slot(struct pb_arena *a, uint32_t slot)
{
    struct mirror_copy c = {.a = a, .m = a->mirror, .s = &a->control->segments[slot], .slot = slot};
    struct slot_copy *done = &a->mirror->slots[slot];
    uint64_t state = atomic_load(&c.s->state);

    if (!PB_STATE_IS(state, PB_SEG_OPEN) && !PB_STATE_IS(state, PB_SEG_SEALED))
        return done->serial || done->written ? clear_slot(&c, done) : 0;
    if (!find_new_rows(&c, done) || !take_copy(&c, done))
        return 0;
    int r = check_file(a);
    if (r == 0)
        r = lengthen(c.m, slot_offset(&c) + a->segment_size);
    if (r == 0 && done->serial != c.serial) {
        *done = (struct slot_copy){.written = true};
        r = write_state(&c, c.serial << PB_SERIAL_SHIFT | PB_SEG_CLAIMED);
    }
    if (r == 0)
        r = write_copy(&c);
    if (r < 0)
        return r;
    bool settled = c.first_open == c.begun;
    *done = (struct slot_copy){.serial = c.serial,
                               .begun = c.begun,
                               .rows = c.first_open,
                               .settled = c.settled,
                               .refill = UINT32_MAX,
                               .ids = settled ? c.ids_safe : c.ids_from,
                               .heap = settled ? c.heap_safe : c.heap_from,
                               .sealed = c.sealed,
                               .written = true};
    /* Had the file been truncated between these writes, it might show rows whose cells are lost. */
    return check_file(a);
}

/* --- the whole --------------------------------------------------------------------------------------- */

static int copy_all(struct pb_arena *a)
{
    struct pb_mirror *m = a->mirror;
    uint32_t n = (uint32_t)atomic_load(&a->control->nslots);

    int r = check_file(a);
    if (r == 0 || r == -EAGAIN)
        r = copy_directory(a);
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        if (m->bytes > MAX_BYTES)
            return 1;
        m->cursor = m->cursor + 1 < n ? m->cursor + 1 : 0;
        r = copy_slot(a, m->cursor);
    }
    return r;
}

int pb_arena_mirror(struct pb_arena *a)
{
    struct pb_mirror *m = a->mirror;

    if (!m || !atomic_load(&a->control->live))
        return 0;
    if (m->over || (m->error && pb_clock_mono() < m->retry_at))
        return m->error;
    m->bytes = 0;
    int r = copy_all(a);
    if (r == -EAGAIN) { /* it was truncated: copy everything again */
        m->error = 0;
        return 1;
    }
    m->error = r < 0 ? r : 0;
    if (r < 0)
        m->retry_at = pb_clock_mono() + RETRY_NS;
    return r;
}

int pb_arena_mirror_error(const struct pb_arena *a)
{
    return a->mirror ? a->mirror->error : 0;
}

int pb_mirror_make(struct pb_arena *a, int dirfd, const char *name)
{
    struct pb_mirror *m = pb_pages_map(sizeof(*m));

    if (!m)
        return -ENOMEM;
    m->file.fd = -1;
    m->staging = pb_pages_map(a->segment_size);
    a->mirror = m;
    if (!m->staging)
        return -ENOMEM;
    int fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int r = pb_own_fd_keep(fd, &m->file);
    if (r < 0) {
        unlinkat(dirfd, name, 0);
        return r;
    }
    (void)pb_arena_mirror(a); /* a disk that is full now may have room later */
    return 0;
}

void pb_mirror_close(struct pb_arena *a)
{
    struct pb_mirror *m = a->mirror;

    a->mirror = NULL;
    pb_own_fd_close(&m->file);
    if (m->staging)
        munmap(m->staging, a->segment_size);
    munmap(m, sizeof(*m));
}
