/* view: the rows of one segment, copied, checked and laid out as dense columns.
 *
 * Commit words are copied first, everything else after: a row whose word was seen has all its cells. The
 * serial is looked at again at the end, so a segment recycled meanwhile is noticed and nothing of it is given
 * out. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "table/reading.h"

enum { SEGMENT, WORDS, COLUMNS, STRINGS }; /* what the view's pieces of memory hold */

/* Everything about the segment being loaded. */
struct load {
    struct pb_reader *r;
    struct pb_file_segment f;
    const struct pb_read_schema *schema, *newest;
    char *base;        /* a copy of the whole segment */
    uint64_t *commits; /* of the rows that are given out, once they are chosen */
    uint64_t *masks;
    uint32_t *rows; /* their numbers in the segment */
    uint32_t nrows;
    uint32_t settled;  /* committed or void */
    bool dense;        /* they are the first nrows: nothing has to move */
    bool texts;        /* the dictionary and the heap were copied */
    uint64_t any_null; /* of the commit words: columns in which any row is NULL */
};

/* Memory of at least that size, kept for the next load. */
static void *get_memory(struct pb_view *v, int which, size_t size)
{
    if (v->memory_size[which] < size) {
        free(v->memory[which]);
        v->memory[which] = malloc(size);
        v->memory_size[which] = v->memory[which] ? size : 0;
    }
    return v->memory[which];
}

static bool is_wanted(const struct pb_view *v, uint32_t column)
{
    return !v->wanted || (v->wanted[column / 64] >> column % 64 & 1);
}

static uint64_t column_offset(const struct load *l, uint32_t column)
{
    uint32_t offset;
    memcpy(&offset, l->base + sizeof(l->f) + column * sizeof(offset), sizeof(offset));
    return offset;
}

/* Copies a piece of the segment to its place in the copy. */
static int copy_piece(const struct load *l, uint64_t at, uint64_t offset, uint64_t length)
{
    uint64_t size = l->r->header.segment_size;

    if (offset > size || length > size - offset)
        return -EBADMSG;
    return pb_reader_read(l->r, at + offset, l->base + offset, length);
}

/* Copies the dictionary and the used part of the heap; their sizes come from the copy of the header. */
static int copy_texts(const struct load *l, uint64_t at)
{
    const struct pb_file_segment *f = &l->f;
    struct pb_file_segment now;

    memcpy(&now, l->base, sizeof(now));
    uint64_t strings = now.dict >> 32, bytes = (uint32_t)now.dict;
    int result = copy_piece(l, at, f->entries_offset,
                            (strings < f->max_strings ? strings : f->max_strings) * sizeof(uint64_t));
    if (result < 0)
        return result;
    return copy_piece(l, at, f->heap_offset, bytes < f->heap_size ? bytes : f->heap_size);
}

/* Copies the wanted columns, and the texts that their strings and bytes need. */
static int copy_wanted(struct load *l, const struct pb_view *v, uint64_t at)
{
    const struct pb_file_segment *f = &l->f;

    int result = copy_piece(l, at, 0, sizeof(*f) + 4u * l->schema->ncolumns);
    for (uint32_t i = 0; result == 0 && i < l->schema->ncolumns; i++) {
        unsigned type = l->schema->columns[i].type;
        if (!is_wanted(v, i))
            continue;
        result = copy_piece(l, at, column_offset(l, i), (uint64_t)f->capacity * pb_type_width(type));
        l->texts = l->texts || (type == PB_STRING && !v->ids_only) || type == PB_BYTES;
    }
    return result == 0 && l->texts ? copy_texts(l, at) : result;
}

/* Whether the slot still held the same segment after the copy. */
static int check_serial(const struct load *l, uint64_t at, uint64_t serial)
{
    uint64_t state;

    atomic_thread_fence(memory_order_acquire);
    int result = pb_reader_read(l->r, at, &state, sizeof(state));
    if (result < 0)
        return result;
    uint64_t st = state & ((1u << PB_SERIAL_SHIFT) - 1);
    if (state >> PB_SERIAL_SHIFT != serial || (st != PB_SEG_OPEN && st != PB_SEG_SEALED))
        return -ESTALE;
    return 0;
}

static int copy_segment(struct load *l, struct pb_view *v, uint32_t slot, uint64_t serial)
{
    size_t rows = l->f.capacity, masks = rows * l->f.mask_words;
    uint64_t at = pb_reader_slot_offset(l->r, slot);
    uint64_t *words = get_memory(v, WORDS, (rows * 2 + masks) * 8 + rows * sizeof(*l->rows));

    l->base = get_memory(v, SEGMENT, l->r->header.segment_size);
    if (!words || !l->base)
        return -ENOMEM;
    l->commits = words;
    l->masks = words + rows * 2;
    l->rows = (uint32_t *)(void *)(l->masks + masks);
    int result = pb_reader_read_commits(l->r, at + l->f.commits_offset, words, words + rows, rows, serial);
    if (result == 0)
        result = pb_reader_read(l->r, at + l->f.masks_offset, l->masks, masks * 8);
    atomic_thread_fence(memory_order_acquire);
    l->texts = !v->wanted;
    if (result == 0)
        result =
            v->wanted ? copy_wanted(l, v, at) : pb_reader_read(l->r, at, l->base, l->r->header.segment_size);
    return result < 0 ? result : check_serial(l, at, serial);
}

/* The common case, tested in one pass without branches: the first n rows are committed, none is void. */
static bool are_dense(struct load *l, uint64_t serial)
{
    uint64_t differ = 0;
    uint32_t n = l->f.capacity;

    while (n > 0 && l->commits[n - 1] >> PB_SERIAL_SHIFT != serial)
        n--;
    for (uint32_t i = 0; i < n; i++)
        differ |= l->commits[i] ^ serial << PB_SERIAL_SHIFT;
    l->nrows = l->settled = n;
    l->any_null = differ;
    return differ < PB_COMMIT_VOID;
}

/* Committed rows that are not void, and their NULL words moved together. */
static void choose_rows(struct load *l, uint64_t serial)
{
    uint32_t words = l->f.mask_words;

    l->dense = are_dense(l, serial);
    if (l->dense)
        return;
    l->nrows = l->settled = 0;
    l->any_null = 0;
    for (uint32_t i = 0; i < l->f.capacity; i++) {
        if (l->commits[i] >> PB_SERIAL_SHIFT != serial)
            continue;
        l->settled++;
        if (l->commits[i] & PB_COMMIT_VOID)
            continue;
        l->commits[l->nrows] = l->commits[i];
        l->any_null |= l->commits[i];
        for (uint32_t w = 0; w < words; w++)
            l->masks[l->nrows * words + w] = l->masks[i * words + w];
        l->rows[l->nrows++] = i;
    }
}

/* Moves the cells of the chosen rows to the front. Most segments have no gap and nothing moves. */
#define COMPACT(type)                                                                                        \
    for (uint32_t i = 0; i < l->nrows; i++)                                                                  \
    ((type *)cells)[i] = ((type *)cells)[l->rows[i]]

static void compact(const struct load *l, void *cells, unsigned width)
{
    if (l->dense)
        return;
    switch (width) {
    case 1:
        COMPACT(uint8_t);
        break;
    case 2:
        COMPACT(uint16_t);
        break;
    case 4:
        COMPACT(uint32_t);
        break;
    default:
        COMPACT(uint64_t);
    }
}

/* Bits of the rows that have a value in the column. */
static void find_validity(const struct load *l, uint32_t column, uint64_t *validity)
{
    uint32_t more = column - PB_COMMIT_COLUMNS;

    /* Most columns have no NULL at all. */
    if (column < PB_COMMIT_COLUMNS && !(l->any_null >> column & 1)) {
        memset(validity, 0xff, l->nrows / 64 * 8);
        if (l->nrows % 64)
            validity[l->nrows / 64] = (UINT64_C(1) << l->nrows % 64) - 1;
        return;
    }
    memset(validity, 0, (l->nrows + 63u) / 64 * 8);
    for (uint32_t i = 0; i < l->nrows; i++) {
        uint64_t null = column < PB_COMMIT_COLUMNS ? l->commits[i] >> column
                                                   : l->masks[i * l->f.mask_words + more / 64] >> more % 64;
        validity[i / 64] |= (~null & 1) << i % 64;
    }
}

static void find_strings(const struct load *l, struct pb_view *v, struct pb_text *strings)
{
    struct pb_file_segment f;

    /* The count comes from the copy made after the commit words: it covers every id a row can name. */
    memcpy(&f, l->base, sizeof(f));
    v->complete = (f.state & 0xf) == PB_SEG_SEALED && f.count == l->settled;
    uint32_t given = l->texts ? (uint32_t)(f.dict >> 32) : 0, used = l->texts ? (uint32_t)f.dict : 0;
    v->strings = strings;
    v->nstrings = given < l->f.max_strings ? given : l->f.max_strings;
    v->heap = l->base + l->f.heap_offset;
    v->heap_size = used < l->f.heap_size ? used : l->f.heap_size;
    for (uint32_t i = 0; i < v->nstrings; i++) {
        uint64_t e;
        memcpy(&e, l->base + l->f.entries_offset + i * sizeof(e), sizeof(e));
        uint32_t offset = PB_ENTRY_OFFSET(e), length = PB_ENTRY_LENGTH(e);
        bool good = PB_ENTRY_TAG(e) && offset <= v->heap_size && length <= v->heap_size - offset;
        strings[i] = good
                         ? (struct pb_text){v->heap + offset, length, pb_utf8_valid(v->heap + offset, length)}
                         : (struct pb_text){NULL, 0, true};
    }
}

static bool cell_is_good(const struct pb_view *v, const struct pb_view_column *c, uint32_t row)
{
    if (c->type == PB_STRING) {
        uint16_t id = ((const uint16_t *)c->cells)[row];
        return id < v->nstrings && v->strings[id].data;
    }
    uint64_t blob = ((const uint64_t *)c->cells)[row];
    return blob >> 32 <= v->heap_size && (uint32_t)blob <= v->heap_size - (blob >> 32);
}

static void make_utc(const struct load *l, int64_t *times)
{
    int64_t offset = pb_utc_offset(&l->f);
    uint64_t overflow = 0;

    for (uint32_t i = 0; i < l->nrows; i++) {
        uint64_t sum = (uint64_t)times[i] + (uint64_t)offset;
        overflow |= ((uint64_t)times[i] ^ sum) & ((uint64_t)offset ^ sum);
        times[i] = (int64_t)sum;
    }
    /* A hostile time overflowed: once more, with checks. */
    for (uint32_t i = 0; overflow >> 63 && i < l->nrows; i++)
        times[i] = pb_add_time((int64_t)((uint64_t)times[i] - (uint64_t)offset), offset);
}

/* The common case, tested in one pass without branches: every row has an id within the dictionary. */
static bool ids_are_good(const struct load *l, const struct pb_view *v, uint32_t column, const uint16_t *ids)
{
    uint16_t most = 0;

    if (column >= PB_COMMIT_COLUMNS || l->any_null >> column & 1)
        return false;
    for (uint32_t i = 0; i < l->nrows; i++)
        most = ids[i] > most ? ids[i] : most;
    for (uint32_t i = 0; i <= most && most < v->nstrings; i++)
        if (!v->strings[i].data)
            return false;
    return most < v->nstrings;
}

/* Makes cells safe to use: booleans are 0 or 1, no reference leaves the segment. */
static void make_good(struct load *l, struct pb_view *v, struct pb_view_column *c, void *cells,
                      uint64_t *validity)
{
    uint8_t *truths = cells;

    for (uint32_t i = 0; i < l->nrows; i++) {
        if (c->type == PB_BOOL) {
            truths[i] = truths[i] != 0;
            continue;
        }
        bool null = !(validity[i / 64] >> i % 64 & 1);
        if (!null && cell_is_good(v, c, i))
            continue;
        /* A NULL cell gets id or offset 0, so that a caller that reads it all the same stays within bounds.
         */
        memset((char *)cells + (size_t)i * pb_type_width(c->type), 0, pb_type_width(c->type));
        validity[i / 64] &= ~(UINT64_C(1) << i % 64);
        v->damaged += !null;
    }
}

static uint32_t count_nulls(const uint64_t *validity, uint32_t nrows)
{
    uint32_t valid = 0;
    for (uint32_t i = 0; i < (nrows + 63) / 64; i++)
        valid += (uint32_t)__builtin_popcountll(validity[i]);
    return nrows - valid;
}

static int fill_column(struct load *l, struct pb_view *v, uint32_t i, uint64_t *validity)
{
    struct pb_view_column *c = &v->columns[i];

    *c = (struct pb_view_column){.type = l->newest->columns[i].type, .validity = validity, .nulls = l->nrows};
    memset(validity, 0, (l->nrows + 63u) / 64 * 8);
    if (i >= l->schema->ncolumns || l->schema->columns[i].type != c->type || !is_wanted(v, i))
        return 0;
    uint64_t offset = column_offset(l, i);
    unsigned width = pb_type_width(c->type);
    if (offset % 8 || offset > l->r->header.segment_size ||
        (uint64_t)l->f.capacity * width > l->r->header.segment_size - offset)
        return -EBADMSG;
    void *cells = l->base + offset;
    c->cells = cells;
    compact(l, cells, width);
    find_validity(l, i, validity);
    if (c->type == PB_TIMESTAMP)
        make_utc(l, cells);
    else if (c->type == PB_BOOL || c->type == PB_BYTES ||
             (c->type == PB_STRING && !v->ids_only && !ids_are_good(l, v, i, cells)))
        make_good(l, v, c, cells, validity);
    c->nulls = count_nulls(validity, l->nrows);
    return 0;
}

/* Columns follow each other, before the heap. In a hostile file they might overlap: checking one would then
 * change another. */
static bool columns_overlap(const struct load *l)
{
    uint64_t end = sizeof(l->f) + 4 * l->schema->ncolumns;

    for (uint32_t i = 0; i < l->schema->ncolumns; i++) {
        if (column_offset(l, i) < end)
            return true;
        end = column_offset(l, i) + (uint64_t)l->f.capacity * pb_type_width(l->schema->columns[i].type);
    }
    return l->f.heap_size && l->f.heap_offset < end;
}

static int lay_out(struct load *l, struct pb_view *v)
{
    size_t ncolumns = l->newest->ncolumns, words = (l->nrows + 63u) / 64;
    struct pb_view_column *columns = get_memory(v, COLUMNS, ncolumns * (sizeof(*columns) + words * 8));
    struct pb_text *strings = get_memory(v, STRINGS, (l->f.max_strings + 1) * sizeof(*strings));

    if (!columns || !strings)
        return -ENOMEM;
    if (columns_overlap(l))
        return -EBADMSG;
    v->ncolumns = (unsigned)ncolumns;
    v->columns = columns;
    v->nrows = l->nrows;
    v->damaged = 0;
    find_strings(l, v, strings);
    uint64_t *validity = (uint64_t *)(void *)(columns + ncolumns);
    for (uint32_t i = 0; i < ncolumns; i++) {
        int result = fill_column(l, v, i, validity + i * words);
        if (result < 0)
            return result;
    }
    return 0;
}

static int begin_load(struct load *l, const struct pb_segment_info *segment, struct pb_view *v)
{
    v->nrows = v->nstrings = 0;
    int result = pb_reader_segment(l->r, segment->slot, &l->f);
    if (result == -ENOENT || (result == 0 && l->f.state >> PB_SERIAL_SHIFT != segment->serial))
        return -ESTALE;
    if (result < 0)
        return result;
    if (l->f.table >= l->r->header.ntables)
        return -EBADMSG;
    l->schema = &l->r->schemas[l->f.schema];
    l->newest = &l->r->schemas[l->r->newest[l->f.table]];
    return 0;
}

int pb_view_load_strings(struct pb_reader *r, const struct pb_segment_info *segment, struct pb_view *v)
{
    struct load l = {.r = r, .texts = true};

    int result = begin_load(&l, segment, v);
    if (result < 0)
        return result;
    uint64_t at = pb_reader_slot_offset(r, segment->slot);
    struct pb_text *strings = get_memory(v, STRINGS, (l.f.max_strings + 1) * sizeof(*strings));
    l.base = get_memory(v, SEGMENT, r->header.segment_size);
    if (!strings || !l.base)
        return -ENOMEM;
    result = copy_piece(&l, at, 0, sizeof(l.f));
    if (result == 0)
        result = copy_texts(&l, at);
    if (result == 0)
        result = check_serial(&l, at, segment->serial);
    if (result < 0)
        return result;
    find_strings(&l, v, strings);
    return 0;
}

int pb_view_load(struct pb_reader *r, const struct pb_segment_info *segment, struct pb_view *v)
{
    struct load l = {.r = r};

    int result = begin_load(&l, segment, v);
    if (result == 0)
        result = copy_segment(&l, v, segment->slot, segment->serial);
    if (result < 0)
        return result;
    choose_rows(&l, segment->serial);
    v->serial = segment->serial;
    v->slot = segment->slot;
    v->schema = l.f.schema;
    return lay_out(&l, v);
}

bool pb_view_still_valid(struct pb_reader *r, const struct pb_view *v)
{
    struct pb_file_segment f;
    return pb_reader_segment(r, v->slot, &f) == 0 && f.state >> PB_SERIAL_SHIFT == v->serial;
}

void pb_view_done(struct pb_view *v)
{
    for (int i = 0; i < 4; i++)
        free(v->memory[i]);
    memset(v, 0, sizeof(*v));
}

/* --- counting ---------------------------------------------------------------------------------------- */

static void widen(const struct pb_view *v, int column, struct pb_table_stats *s, bool *any)
{
    const struct pb_view_column *c = column >= 0 ? &v->columns[column] : NULL;
    const int64_t *times = c ? c->cells : NULL;

    for (uint32_t i = 0; times && i < v->nrows; i++) {
        if (pb_view_is_null(v, (unsigned)column, i))
            continue;
        s->first = !*any || times[i] < s->first ? times[i] : s->first;
        s->last = !*any || times[i] > s->last ? times[i] : s->last;
        *any = true;
    }
}

int pb_reader_stats(struct pb_reader *r, unsigned table, struct pb_table_stats *ret)
{
    struct pb_segment_info *list = NULL;
    struct pb_table_stats s = {0};
    struct pb_table_info info;
    struct pb_view v = {0};
    bool any = false;

    int n = pb_reader_segments(r, table, &list);
    int result = n < 0 ? n : pb_reader_table(r, table, &info);
    for (int i = 0; result == 0 && i < n; i++) {
        if (pb_view_load(r, &list[i], &v) < 0)
            continue;
        s.rows += v.nrows;
        s.segments++;
        s.bytes += r->header.segment_size;
        widen(&v, info.time_column, &s, &any);
    }
    free(list);
    pb_view_done(&v);
    if (result == 0)
        *ret = s;
    return result;
}
