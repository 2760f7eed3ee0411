/* cells: setters that do more than a store: times, strings, bytes, and cells filled in later.
 *
 * When the segment's dictionary is full the row moves to a new segment, unnoticed by the caller. Signal-safe
 * throughout. */
#include "table/writer.h"

enum {
    MAX_MOVES = 8
}; /* other threads may fill a shared segment's dictionary as fast as a row moves into it */

static char *cell_of(const struct pb_row *row, uint32_t column)
{
    uint32_t where = row->columns[column];
    return row->base + (where >> 8) + (size_t)row->index * pb_type_width(where & 0xff);
}

static bool is_null(const struct pb_row *row, uint32_t column)
{
    uint32_t more = column - PB_COMMIT_COLUMNS;
    return column < PB_COMMIT_COLUMNS ? row->nulls >> column & 1
                                      : row->more_nulls[more / 64] >> more % 64 & 1;
}

/* The bytes of a string or bytes cell that is set. Cell and dictionary are shared memory, which other
 * processes may damage: an invalid reference gives an empty text. */
static const char *text_of(const struct pb_row *row, uint32_t column, uint32_t *length)
{
    const struct pb_layout *l = pb_segment_layout(row->segment);
    const uint64_t *entries = (const uint64_t *)(const void *)(row->base + l->entries);
    uint64_t offset, n;
    uint16_t id;

    if ((row->columns[column] & 0xff) == PB_STRING) {
        memcpy(&id, cell_of(row, column), sizeof(id));
        uint64_t entry = id < l->max_strings ? __atomic_load_n(&entries[id], __ATOMIC_ACQUIRE) : 0;
        offset = PB_ENTRY_OFFSET(entry);
        n = PB_ENTRY_LENGTH(entry);
    } else {
        uint64_t blob;
        memcpy(&blob, cell_of(row, column), sizeof(blob));
        offset = blob >> 32;
        n = (uint32_t)blob;
    }
    if (offset > l->heap_size || n > l->heap_size - offset)
        offset = n = 0;
    *length = (uint32_t)n;
    return row->base + l->heap + offset;
}

/* Stores a string or bytes in the row's segment. -ENOSPC: its dictionary or heap is full. */
static int store_text(struct pb_row *row, uint32_t column, const char *text, uint32_t length)
{
    uint32_t type = row->columns[column] & 0xff;
    uint64_t blob;
    uint16_t id;
    int r;

    if (type == PB_STRING) {
        r = pb_dict_intern(row->segment, text, length, &id);
        if (r == 0)
            memcpy(cell_of(row, column), &id, sizeof(id));
    } else {
        r = pb_dict_blob(row->segment, text, length, &blob);
        if (r == 0)
            memcpy(cell_of(row, column), &blob, sizeof(blob));
    }
    if (r == 0)
        pb_row_clear_null(row, column);
    return r;
}

/* Whether an empty segment has room for what the row holds and `length` bytes more in that column. */
static bool fits_segment(const struct pb_row *row, uint32_t column, size_t length)
{
    const struct pb_layout *l = pb_segment_layout(row->segment);
    uint64_t bytes = length;
    uint32_t strings = (row->columns[column] & 0xff) == PB_STRING, n;

    for (uint32_t c = 0; c < l->ncolumns; c++) {
        uint32_t type = row->columns[c] & 0xff;
        if ((type != PB_STRING && type != PB_BYTES) || is_null(row, c))
            continue;
        text_of(row, c, &n);
        bytes += n;
        strings += type == PB_STRING;
    }
    return bytes <= l->heap_size && strings <= l->max_strings;
}

/* Copies every cell that is set; columns added since stay NULL. */
static int copy_cells(const struct pb_row *from, struct pb_row *to)
{
    const struct pb_layout *l = pb_segment_layout(from->segment);

    for (uint32_t c = 0; c < l->ncolumns; c++) {
        uint32_t type = from->columns[c] & 0xff, length;
        if (is_null(from, c))
            continue;
        if (type == PB_STRING || type == PB_BYTES) {
            const char *text = text_of(from, c, &length);
            int r = store_text(to, c, text, length);
            if (r < 0)
                return r;
            continue;
        }
        memcpy(cell_of(to, c), cell_of(from, c), pb_type_width(type));
        pb_row_clear_null(to, c);
    }
    return 0;
}

/* Moves the row into a segment with an empty dictionary, or one that other threads have begun to fill. */
static int move_row(struct pb_row *row)
{
    struct pb_table *t = row->table;
    const struct pb_layout *l = pb_segment_layout(row->segment);
    struct pb_row next;
    int64_t ts = pb_clock_mono();

    if (l->time_column >= 0)
        memcpy(&ts, cell_of(row, (uint32_t)l->time_column), sizeof(ts));
    pb_segment_seal(t->arena, row->serial | pb_segment_slot(t->arena, row->segment));
    int r = pb_row_reserve(t, &next, ts);
    if (r < 0)
        return r;
    pb_segment_raise_time(next.segment, ts);
    r = copy_cells(row, &next);
    if (r < 0 && r != -ENOSPC) {
        pb_row_abort(&next);
        return r;
    }
    if (r == -ENOSPC) {
        pb_segment_seal(t->arena, next.serial | pb_segment_slot(t->arena, next.segment));
        pb_row_abort(&next);
        return r;
    }
    pb_row_abort(row);
    *row = next;
    return 0;
}

/* The text did not fit into the row's segment: moves the row to another one, if an empty segment has room. */
static __attribute__((noinline)) void set_elsewhere(struct pb_row *row, uint32_t column, const char *text,
                                                    size_t length)
{
    int r = -ENOSPC;

    if (!fits_segment(row, column, length)) {
        row->error = -EMSGSIZE;
        return;
    }
    for (int i = 0; r == -ENOSPC && i < MAX_MOVES; i++) {
        r = move_row(row);
        if (r == 0)
            r = store_text(row, column, text, (uint32_t)length);
    }
    if (r < 0)
        row->error = r == -ENOSPC ? -ENOBUFS : r;
}

/* Whether the cell exists, has that type, and there is data to set. */
static inline bool may_set(struct pb_row *row, unsigned column, enum pb_type type, const void *data)
{
    if (column >= PB_MAX_COLUMNS || (row->columns[column] & 0xff) != type) {
        row->error = -EINVAL;
        return false;
    }
    return data && !row->error;
}

void pb_set_string(struct pb_row *row, unsigned column, const char *text, size_t length)
{
    uint16_t id;

    if (__builtin_expect(!may_set(row, column, PB_STRING, text), 0))
        return;
    if (__builtin_expect(
            length > PB_MAX_SEGMENT || pb_dict_intern(row->segment, text, (uint32_t)length, &id) < 0, 0)) {
        set_elsewhere(row, column, text, length);
        return;
    }
    memcpy(row->base + (row->columns[column] >> 8) + (size_t)row->index * sizeof(id), &id, sizeof(id));
    pb_row_clear_null(row, column);
}

void pb_set_string_again(struct pb_row *row, unsigned column, const char *text, size_t length,
                         struct pb_string_place *place)
{
    if (__builtin_expect(place->serial == row->serial, 1)) {
        void *cell = pb_row_cell(row, column, PB_STRING, sizeof(place->id));
        if (cell)
            memcpy(cell, &place->id, sizeof(place->id));
        return;
    }
    pb_set_string(row, column, text, length);
    if (row->error)
        return;
    /* After pb_set_string, since a full dictionary makes the row move to another segment. */
    place->serial = row->serial;
    memcpy(&place->id, cell_of(row, column), sizeof(place->id));
}

void pb_set_bytes(struct pb_row *row, unsigned column, const void *data, size_t length)
{
    if (!may_set(row, column, PB_BYTES, data))
        return;
    if (length > PB_MAX_SEGMENT || store_text(row, column, data, (uint32_t)length) < 0)
        set_elsewhere(row, column, data, length);
}

void pb_set_timestamp(struct pb_row *row, unsigned column, int64_t mono_ns)
{
    void *cell = pb_row_cell(row, column, PB_TIMESTAMP, sizeof(mono_ns));

    if (!cell)
        return;
    memcpy(cell, &mono_ns, sizeof(mono_ns));
    if ((int)column == pb_segment_layout(row->segment)->time_column) {
        pb_segment_lower_time(row->segment, mono_ns);
        pb_segment_raise_time(row->segment, mono_ns);
    }
}

/* --- late cells ------------------------------------------------------------------------------------ */

/* A reference has the table's number above the serial, so that a cell that comes too late is counted in its
 * table. */
struct pb_row_ref pb_row_ref(const struct pb_row *row)
{
    const struct pb_arena *a = __atomic_load_n(&row->table->arena, __ATOMIC_RELAXED);
    uint64_t serial = PB_SERIAL(row->serial) | (uint64_t)row->table->id << 40;

    return (struct pb_row_ref){
        .serial = serial, .slot = a ? pb_segment_slot(a, row->segment) : UINT32_MAX, .index = row->index};
}

static int store_late(struct pb_segment *s, char *cell, enum pb_type type, const void *value, size_t length)
{
    uint64_t v = 0;
    uint16_t id = 0;
    unsigned width = pb_type_width(type);
    int r = 0;

    if (type == PB_STRING || type == PB_BYTES) {
        if (length > pb_segment_layout(s)->heap_size)
            return -ENOBUFS;
        r = type == PB_STRING ? pb_dict_intern(s, value, (uint32_t)length, &id)
                              : pb_dict_blob(s, value, (uint32_t)length, &v);
        if (type == PB_STRING)
            v = id;
    } else if (length == width) {
        memcpy(&v, value, width);
    } else {
        return -EINVAL;
    }
    if (r < 0)
        return -ENOBUFS;
    /* One store a cell, so that two threads that fill it at once cannot mix their values. */
    switch (width) {
    case 1:
        __atomic_store_n((uint8_t *)cell, (uint8_t)v, __ATOMIC_RELAXED);
        break;
    case 2:
        __atomic_store_n((uint16_t *)(void *)cell, (uint16_t)v, __ATOMIC_RELAXED);
        break;
    case 4:
        __atomic_store_n((uint32_t *)(void *)cell, (uint32_t)v, __ATOMIC_RELAXED);
        break;
    default:
        __atomic_store_n((uint64_t *)(void *)cell, v, __ATOMIC_RELAXED);
    }
    return 0;
}

static int fill_visited(struct pb_segment *s, uint64_t serial, uint32_t index, const struct pb_late *late)
{
    const struct pb_layout *l = pb_segment_layout(s);
    unsigned column = late->column;
    enum pb_type type = late->type;

    if (column >= l->ncolumns || index >= l->capacity || (l->columns[column] & 0xff) != type ||
        !(l->late[column / 64] >> column % 64 & 1))
        return -EINVAL;
    uint64_t *mask = (uint64_t *)(void *)(s->base + l->commits) + index, bit = UINT64_C(1) << column % 64;
    uint64_t commit = __atomic_load_n(mask, __ATOMIC_ACQUIRE);
    if (PB_SERIAL(commit) != serial)
        return -EAGAIN;
    if (commit & PB_COMMIT_VOID)
        return -EINVAL;
    if (column >= PB_COMMIT_COLUMNS) {
        unsigned more = column - PB_COMMIT_COLUMNS;
        mask = (uint64_t *)(void *)(s->base + l->masks) + (size_t)index * l->mask_words + more / 64;
        bit = UINT64_C(1) << more % 64;
    }
    if (!(__atomic_load_n(mask, __ATOMIC_ACQUIRE) & bit))
        return -EALREADY;
    char *cell = s->base + (l->columns[column] >> 8) + (size_t)index * pb_type_width(type);
    int r = store_late(s, cell, type, late->value, late->length);
    if (r < 0)
        return r;
    /* Marked last: a copy of the row made from now on has the cell. Both in one order for all threads: if the
     * row is marked already, the copy that removes that mark must see this bit. */
    __atomic_fetch_and(mask, ~bit, __ATOMIC_SEQ_CST);
    uint32_t lowest = atomic_load(&s->filled);
    while (index < lowest && !atomic_compare_exchange_weak(&s->filled, &lowest, index))
        ;
    return 0;
}

int pb_fill_all(struct pb_arena *a, struct pb_row_ref ref, const struct pb_late *cells, unsigned ncells)
{
    struct pb_control *c = a->control;
    uint64_t serial = ref.serial & PB_SERIAL_MAX, table = ref.serial >> 40;
    unsigned lost = 0;
    int first = 0;

    if (atomic_load(&c->live) != PB_LIFE_OPEN)
        return -ESHUTDOWN;
    if (ref.slot >= a->max_slots || table >= atomic_load(&c->ntables))
        return -EINVAL;
    struct pb_segment *s = &c->segments[ref.slot];
    bool visited = pb_segment_visit(s, serial);
    for (unsigned i = 0; i < ncells; i++) {
        int r = !cells[i].value ? -EINVAL : visited ? fill_visited(s, serial, ref.index, &cells[i]) : -ESTALE;
        first = first ? first : r;
        lost += r == -ESTALE || r == -ENOBUFS;
    }
    if (visited)
        pb_segment_leave(s);
    if (lost && pb_arena_enter(a)) {
        pb_table_count(&c->tables[table], &c->tables[table].file->cells_lost, lost);
        pb_arena_leave(a);
    }
    return first;
}

int pb_fill(struct pb_arena *a, struct pb_row_ref ref, unsigned column, enum pb_type type, const void *value,
            size_t length)
{
    return pb_fill_all(a, ref, &(struct pb_late){column, type, value, length}, 1);
}
