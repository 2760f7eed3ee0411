/* reader: opening an arena, its tables and its list of segments. The rows are read in view.c.
 *
 * Everything is checked on a private copy: the file may change between two looks at it. */
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "table/reading.h"

enum { MAX_LOOKS = 4 }; /* tries to read a slot whose segment changes meanwhile */

__attribute__((format(printf, 3, 4))) static int fail_reading(char *why, int r, const char *format, ...)
{
    if (why) {
        va_list args;
        va_start(args, format);
        vsnprintf(why, PB_WHY_SIZE, format, args);
        va_end(args);
    }
    return r;
}

int pb_reader_read(const struct pb_reader *r, uint64_t offset, void *to, size_t length)
{
    if (r->fd < 0) {
        if (offset > r->size || length > r->size - offset)
            return -ENODATA;
        memcpy(to, r->data + offset, length);
        return 0;
    }
    if (offset > INT64_MAX - length)
        return -ENODATA;
    for (size_t done = 0; done < length;) {
        ssize_t n = pread(r->fd, (char *)to + done, length - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -ENODATA;
        done += (size_t)n;
    }
    return 0;
}

int pb_reader_read_commits(const struct pb_reader *r, uint64_t offset, uint64_t *to, uint64_t *spare,
                           size_t n, uint64_t serial)
{
    int result = pb_reader_read(r, offset, spare, n * sizeof(*to));
    atomic_thread_fence(memory_order_acquire);
    if (result == 0)
        result = pb_reader_read(r, offset, to, n * sizeof(*to));
    if (result < 0)
        return result;
    /* The common case: nothing was stored meanwhile. */
    if (memcmp(to, spare, n * sizeof(*to)) == 0)
        return 0;
    /* A copy need not be made of whole words. But a word that showed its serial once was stored before the
     * second read, which therefore saw all of it. */
    bool again = false;
    size_t end = n;
    while (end > 0 && spare[end - 1] >> PB_SERIAL_SHIFT != serial)
        end--;
    for (size_t i = 0; i < n; i++) {
        bool seen = spare[i] >> PB_SERIAL_SHIFT == serial;
        if (!seen && i < end && to[i] >> PB_SERIAL_SHIFT == serial)
            again = true;
        else if (!seen)
            to[i] = 0;
    }
    /* A word missing before one that was there: the first read passed it just before it was stored. Leaving
     * it out would make a gap in the rows of one thread; a third read has all of them. */
    if (again)
        result = pb_reader_read(r, offset, spare, n * sizeof(*to));
    for (size_t i = 0; again && result == 0 && i < end; i++)
        if (to[i] >> PB_SERIAL_SHIFT == serial)
            to[i] = spare[i] >> PB_SERIAL_SHIFT == serial ? spare[i] : 0;
    if (result < 0)
        return result;
    atomic_thread_fence(memory_order_acquire);
    return 0;
}

uint64_t pb_reader_slot_offset(const struct pb_reader *r, uint32_t slot)
{
    return r->header.segments_offset + (uint64_t)slot * r->header.segment_size;
}

/* --- header, schemas, directory --------------------------------------------------------------------- */

static bool within(uint64_t offset, uint64_t length, uint64_t end)
{
    return offset <= end && length <= end - offset;
}

static int check_header(const struct pb_file_header *h, char *why)
{
    if (memcmp(h->magic, PB_ARENA_MAGIC, sizeof(h->magic)) != 0)
        return fail_reading(why, -EBADMSG, "not an arena");
    if (h->major != PB_ARENA_MAJOR)
        return fail_reading(why, -EPROTONOSUPPORT,
                            "written in format %u.%u, this program reads %d.x: use %s Probing", h->major,
                            h->minor, PB_ARENA_MAJOR, h->major > PB_ARENA_MAJOR ? "a newer" : "an older");
    if (h->header_size < sizeof(*h) || h->segment_size < PB_MIN_SEGMENT || h->segment_size > PB_MAX_SEGMENT ||
        h->segment_size % PB_MIN_SEGMENT || h->max_tables > PB_MAX_TABLES || h->ntables > h->max_tables ||
        h->nschemas > PB_MAX_SCHEMAS || h->segments_offset > INT64_MAX / 2 ||
        !within(h->tables_offset, h->max_tables * sizeof(struct pb_file_table), h->segments_offset) ||
        !within(h->schemas_offset, h->schemas_size, h->segments_offset))
        return fail_reading(why, -EBADMSG, "a damaged arena: its header makes no sense");
    return 0;
}

static int read_header(struct pb_reader *r, char *why)
{
    struct pb_file_header h = {0};
    int result = pb_reader_read(r, 0, h.magic, sizeof(h.magic));

    if (result == -ENODATA)
        return fail_reading(why, -EBADMSG, "not an arena: it is too short for one");
    if (result == 0 && memcmp(h.magic, PB_ARENA_MAGIC, sizeof(h.magic)) != 0)
        return fail_reading(why, -EBADMSG, "not an arena");
    if (result == 0)
        result = pb_reader_read(r, 0, &h, sizeof(h));
    if (result < 0)
        return fail_reading(why, result, "cannot read its header: %s",
                            result == -ENODATA ? "truncated" : strerror(-result));
    result = check_header(&h, why);
    if (result == 0)
        r->header = h;
    return result;
}

static void terminate(char *text, size_t size)
{
    text[size - 1] = 0;
}

/* Checks the columns of a schema and describes them. */
static bool describe_schema(struct pb_read_schema *s)
{
    s->time_column = -1;
    for (uint32_t i = 0; i < s->ncolumns; i++) {
        struct pb_file_column *c = &s->columns[i];
        terminate(c->name, sizeof(c->name));
        terminate(c->unit, sizeof(c->unit));
        terminate(c->comment, sizeof(c->comment));
        if (pb_type_width(c->type) == 0)
            return false;
        if (s->time_column < 0 && c->type == PB_TIMESTAMP && !(c->flags & PB_COL_LATE))
            s->time_column = (int)i;
        s->infos[i] = (struct pb_column_info){
            .name = c->name, .unit = c->unit, .comment = c->comment, .type = c->type, .flags = c->flags};
    }
    return true;
}

static int read_schema(struct pb_reader *r)
{
    const struct pb_file_header *h = &r->header;
    struct pb_read_schema *s = &r->schemas[r->nschemas];
    struct pb_file_schema f;

    if (!within(r->schemas_end, sizeof(f), h->schemas_size))
        return -EBADMSG;
    int result = pb_reader_read(r, h->schemas_offset + r->schemas_end, &f, sizeof(f));
    if (result < 0)
        return result;
    size_t bytes = (size_t)f.ncolumns * sizeof(*s->columns);
    if (f.id != r->nschemas || f.ncolumns < 1 || f.ncolumns > PB_MAX_COLUMNS || f.table >= h->max_tables ||
        f.size != sizeof(f) + bytes || !within(r->schemas_end, f.size, h->schemas_size))
        return -EBADMSG;

    *s = (struct pb_read_schema){.table = f.table, .ncolumns = f.ncolumns};
    s->mask_words = f.ncolumns > PB_COMMIT_COLUMNS ? (f.ncolumns - PB_COMMIT_COLUMNS + 63u) / 64 : 0;
    s->columns = malloc(bytes);
    s->infos = calloc(f.ncolumns, sizeof(*s->infos));
    if (!s->columns || !s->infos)
        result = -ENOMEM;
    if (result == 0)
        result = pb_reader_read(r, h->schemas_offset + r->schemas_end + sizeof(f), s->columns, bytes);
    if (result == 0 && !describe_schema(s))
        result = -EBADMSG;
    if (result < 0) {
        free(s->columns);
        free(s->infos);
        return result;
    }
    r->newest[f.table] = (int)r->nschemas++;
    r->schemas_end += f.size;
    return 0;
}

static int read_directory(struct pb_reader *r, char *why)
{
    while (r->nschemas < r->header.nschemas) {
        int result = read_schema(r);
        if (result < 0)
            return fail_reading(why, result, "a damaged arena: schema %u cannot be read", r->nschemas);
    }
    for (uint32_t i = 0; i < r->header.ntables; i++) {
        struct pb_file_table t;
        int result = pb_reader_read(r, r->header.tables_offset + i * sizeof(t), &t, sizeof(t));
        if (result < 0)
            return fail_reading(why, result, "a damaged arena: table %u cannot be read", i);
        terminate(t.name, sizeof(t.name));
        terminate(t.comment, sizeof(t.comment));
        r->tables[i] = t;
    }
    return 0;
}

static int open_reader(const struct pb_reader *source, struct pb_reader **ret, char *why)
{
    struct pb_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return fail_reading(why, -ENOMEM, "out of memory");
    *r = *source;
    memset(r->newest, 0xff, sizeof(r->newest));
    r->tables = calloc(PB_MAX_TABLES, sizeof(*r->tables));

    int result = r->tables ? read_header(r, why) : fail_reading(why, -ENOMEM, "out of memory");
    if (result == 0)
        result = read_directory(r, why);
    if (result < 0) {
        pb_reader_close(r);
        return result;
    }
    *ret = r;
    return 0;
}

int pb_reader_open(int fd, struct pb_reader **ret, char *why)
{
    struct pb_reader source = {.fd = fd};
    if (fd < 0)
        return fail_reading(why, -EBADF, "no such descriptor");
    return open_reader(&source, ret, why);
}

int pb_reader_open_memory(const void *data, size_t size, struct pb_reader **ret, char *why)
{
    struct pb_reader source = {.fd = -1, .data = data, .size = size};
    return open_reader(&source, ret, why);
}

void pb_reader_close(struct pb_reader *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->nschemas; i++) {
        free(r->schemas[i].columns);
        free(r->schemas[i].infos);
    }
    free(r->tables);
    free(r);
}

int pb_reader_refresh(struct pb_reader *r)
{
    struct pb_file_header h;

    int result = pb_reader_read(r, 0, &h, sizeof(h));
    if (result == 0)
        result = check_header(&h, NULL);
    if (result < 0)
        return result;
    /* The geometry must be the same as at open: a file that changes it is damaged. */
    if (h.segment_size != r->header.segment_size || h.segments_offset != r->header.segments_offset ||
        h.tables_offset != r->header.tables_offset || h.schemas_offset != r->header.schemas_offset ||
        h.schemas_size != r->header.schemas_size || h.max_tables != r->header.max_tables ||
        h.ntables < r->header.ntables || h.nschemas < r->header.nschemas)
        return -EBADMSG;
    r->header = h;
    return read_directory(r, NULL);
}

static uint64_t source_size(const struct pb_reader *r)
{
    struct stat st;

    if (r->fd < 0)
        return r->size;
    return fstat(r->fd, &st) == 0 && st.st_size > 0 ? (uint64_t)st.st_size : 0;
}

void pb_reader_info(const struct pb_reader *r, struct pb_reader_info *ret)
{
    const struct pb_file_header *h = &r->header;

    *ret = (struct pb_reader_info){.major = h->major,
                                   .minor = h->minor,
                                   .pid = h->pid,
                                   .start_time = h->start_time,
                                   .created = h->real_ns,
                                   .bound = h->bound,
                                   .size = source_size(r),
                                   .segment_size = h->segment_size};
    memcpy(ret->boot_id, h->boot_id, sizeof(ret->boot_id));
}

unsigned pb_reader_ntables(const struct pb_reader *r)
{
    return r->header.ntables;
}

int pb_reader_table(struct pb_reader *r, unsigned i, struct pb_table_info *ret)
{
    struct pb_file_table now;

    if (i >= r->header.ntables)
        return -ENOENT;
    int result = pb_reader_read(r, r->header.tables_offset + i * sizeof(now), &now, sizeof(now));
    if (result < 0)
        return result;
    *ret = (struct pb_table_info){.name = r->tables[i].name,
                                  .comment = r->tables[i].comment,
                                  .time_column = -1,
                                  .share = now.share,
                                  .dropped = now.rows_dropped,
                                  .recycled = now.rows_recycled,
                                  .cells_lost = now.cells_lost};
    if (r->newest[i] >= 0) {
        const struct pb_read_schema *s = &r->schemas[r->newest[i]];
        ret->columns = s->infos;
        ret->ncolumns = s->ncolumns;
        ret->time_column = s->time_column;
    }
    return 0;
}

int pb_reader_find(const struct pb_reader *r, const char *name)
{
    for (uint32_t i = 0; i < r->header.ntables; i++)
        if (strcmp(r->tables[i].name, name) == 0)
            return (int)i;
    return -ENOENT;
}

/* --- segments --------------------------------------------------------------------------------------- */

static bool holds_rows(uint64_t state)
{
    uint64_t st = state & ((1u << PB_SERIAL_SHIFT) - 1);
    return state >> PB_SERIAL_SHIFT && (st == PB_SEG_OPEN || st == PB_SEG_SEALED);
}

/* Whether every region of the segment lies within it, aligned to its words. */
static bool header_is_valid(const struct pb_reader *r, const struct pb_file_segment *f)
{
    uint64_t size = r->header.segment_size;

    if (f->schema >= r->nschemas)
        return false;
    const struct pb_read_schema *s = &r->schemas[f->schema];
    uint64_t head = sizeof(*f) + 4u * s->ncolumns, rows = f->capacity;
    return s->table == f->table && s->ncolumns == f->ncolumns && s->mask_words == f->mask_words && rows > 0 &&
           rows < 1u << 20 && f->commits_offset >= head && f->commits_offset % 8 == 0 &&
           f->masks_offset % 8 == 0 && f->entries_offset % 8 == 0 &&
           within(f->commits_offset, rows * 8, size) &&
           within(f->masks_offset, rows * f->mask_words * 8, size) && f->max_strings <= 65536 &&
           within(f->entries_offset, (uint64_t)f->max_strings * 8, size) &&
           within(f->slots_offset, (uint64_t)f->nslots * 2, size) &&
           within(f->heap_offset, f->heap_size, size);
}

int pb_reader_segment(struct pb_reader *r, uint32_t slot, struct pb_file_segment *ret)
{
    uint64_t at = pb_reader_slot_offset(r, slot), state;

    for (int look = 0; look < MAX_LOOKS; look++) {
        struct pb_file_segment f;
        int result = pb_reader_read(r, at, &f, sizeof(f));
        atomic_thread_fence(memory_order_acquire);
        if (result == 0)
            result = pb_reader_read(r, at, &state, sizeof(state));
        if (result < 0)
            return result;
        if (f.state >> PB_SERIAL_SHIFT != state >> PB_SERIAL_SHIFT)
            continue;
        if (!holds_rows(f.state) || !holds_rows(state))
            return -ENOENT;
        if (f.schema >= r->nschemas && pb_reader_refresh(r) < 0)
            return -EBADMSG;
        if (!header_is_valid(r, &f))
            return -EBADMSG;
        *ret = f;
        return 0;
    }
    return -ENOENT;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = ((const struct pb_segment_info *)a)->serial, y = ((const struct pb_segment_info *)b)->serial;
    return (x < y) - (x > y);
}

static void describe_segment(const struct pb_file_segment *f, uint32_t slot, struct pb_segment_info *ret)
{
    bool open = (f->state & 0xf) == PB_SEG_OPEN;
    int64_t last = f->sealed_at > f->ts_max ? f->sealed_at : f->ts_max;

    *ret = (struct pb_segment_info){.serial = f->state >> PB_SERIAL_SHIFT,
                                    .slot = slot,
                                    .table = f->table,
                                    .schema = f->schema,
                                    .open = open,
                                    .rows = f->count < f->capacity ? f->count : f->capacity,
                                    .first = pb_add_time(f->ts_min, pb_utc_offset(f)),
                                    .last = INT64_MAX};
    if (!open && f->sealed_at)
        ret->last = pb_add_time(last, pb_utc_offset(f));
}

/* The number of slots in the header, as far as the file has them. */
static uint32_t count_slots(const struct pb_reader *r)
{
    uint64_t nslots = 0, size = source_size(r), offset = r->header.segments_offset;

    if (pb_reader_read(r, offsetof(struct pb_file_header, nslots), &nslots, sizeof(nslots)) < 0 ||
        size < offset)
        return 0;
    uint64_t there = (size - offset) / r->header.segment_size;
    nslots = nslots < there ? nslots : there;
    return nslots < PB_MAX_SLOTS ? (uint32_t)nslots : PB_MAX_SLOTS;
}

int pb_reader_segments(struct pb_reader *r, unsigned table, struct pb_segment_info **ret)
{
    struct pb_segment_info *list = NULL;
    size_t n = 0, room = 0;

    if (table >= r->header.ntables)
        return -ENOENT;
    uint32_t nslots = count_slots(r);
    for (uint32_t slot = 0; slot < nslots; slot++) {
        struct pb_file_segment f;
        if (pb_reader_segment(r, slot, &f) < 0 || f.table != table)
            continue;
        if (n == room) {
            room = room ? room * 2 : 64;
            struct pb_segment_info *more = realloc(list, room * sizeof(*list));
            if (!more) {
                free(list);
                return -ENOMEM;
            }
            list = more;
        }
        describe_segment(&f, slot, &list[n++]);
    }
    if (n > 1)
        qsort(list, n, sizeof(*list), newest_first);
    *ret = list;
    return (int)n;
}
