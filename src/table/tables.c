/* tables: definitions: the directory, the schemas, and how their rows lie in a segment.
 *
 * Defining is rare and takes a lock; what it writes is complete before the count or pointer that shows it. */
#include <sched.h>

#include "table/names.h"
#include "table/writer.h"

static void lock(struct pb_control *c)
{
    while (atomic_exchange(&c->define, 1))
        sched_yield();
}

static void unlock(struct pb_control *c)
{
    atomic_store(&c->define, 0);
}

static void copy_text(char *to, size_t size, const char *from)
{
    size_t n = from ? strnlen(from, size - 1) : 0;

    /* A cut in the middle of a UTF-8 sequence would make the whole text invalid. */
    while (n > 0 && ((unsigned char)from[n] & 0xc0) == 0x80)
        n--;
    memset(to, 0, size);
    if (n > 0)
        memcpy(to, from, n);
}

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static uint32_t floor_power(uint32_t n)
{
    return n ? UINT32_C(1) << (31 - __builtin_clz(n)) : 0;
}

static unsigned default_heap(const struct pb_file_column *columns, unsigned n)
{
    unsigned percent = 0;

    for (unsigned i = 0; i < n; i++) {
        if (columns[i].type == PB_BYTES)
            return 50;
        if (columns[i].type == PB_STRING)
            percent = 25;
    }
    return percent;
}

static void mark_columns(struct pb_layout *l, const struct pb_file_column *columns)
{
    l->time_column = -1;
    for (uint32_t i = 0; i < l->ncolumns; i++) {
        bool late = columns[i].flags & PB_COL_LATE;
        if (late)
            l->late[i / 64] |= UINT64_C(1) << i % 64;
        if (columns[i].type == PB_TIMESTAMP && !late && l->time_column < 0)
            l->time_column = (int32_t)i;
        else if (i < PB_COMMIT_COLUMNS)
            l->nulls |= UINT64_C(1) << i;
        else
            l->more_nulls[(i - PB_COMMIT_COLUMNS) / 64] |= UINT64_C(1) << (i - PB_COMMIT_COLUMNS) % 64;
    }
}

/* Divides a segment: header, commit words, NULL words, columns, dictionary, heap. */
static int make_layout(struct pb_layout *l, const struct pb_file_schema *f, uint32_t segment_size)
{
    const struct pb_file_column *columns = (const struct pb_file_column *)(const void *)(f + 1);
    uint32_t row = sizeof(uint64_t), strings = 0;

    memset(l, 0, sizeof(*l));
    l->schema = f->id;
    l->table = f->table;
    l->ncolumns = f->ncolumns;
    if (l->ncolumns > PB_COMMIT_COLUMNS)
        l->mask_words = (l->ncolumns - PB_COMMIT_COLUMNS + 63) / 64;
    row += l->mask_words * (uint32_t)sizeof(uint64_t);
    for (uint32_t i = 0; i < l->ncolumns; i++) {
        row += pb_type_width(columns[i].type);
        strings += columns[i].type == PB_STRING;
    }
    l->heap_size = (uint32_t)((uint64_t)segment_size * f->heap_percent / 100 & ~UINT64_C(7));
    if (strings) {
        /* A small heap has no room for many strings: their dictionary would take more than they do. */
        uint32_t most = segment_size / 64, fitting = l->heap_size / 8;
        uint32_t n = floor_power(fitting > 64 && fitting < most ? fitting : most);
        l->nslots = n < 65536 ? n : 65536;
        l->max_strings = l->nslots / 2;
    }

    /* Each column starts at a multiple of 8, which may cost it 7 bytes. */
    uint32_t head = round_up((uint32_t)sizeof(struct pb_file_segment) + 4 * l->ncolumns, 64);
    uint64_t fixed = (uint64_t)head + l->nslots * 2 + l->max_strings * 8 + l->heap_size + 8 * l->ncolumns;
    if (fixed + row > segment_size)
        return -EMSGSIZE;
    uint32_t capacity = (uint32_t)((segment_size - fixed) / row);
    l->capacity = capacity < PB_MAX_ROWS ? capacity : PB_MAX_ROWS;

    l->commits = head;
    l->masks = l->commits + l->capacity * 8;
    uint32_t at = l->masks + l->capacity * l->mask_words * 8;
    for (uint32_t i = 0; i < l->ncolumns; i++) {
        l->columns[i] = at << 8 | columns[i].type;
        at = round_up(at + l->capacity * pb_type_width(columns[i].type), 8);
    }
    l->entries = at;
    l->slots = l->entries + l->max_strings * 8;
    l->heap = l->slots + l->nslots * 2;
    mark_columns(l, columns);
    l->time_offset = l->time_column >= 0 ? l->columns[l->time_column] >> 8 : 0;
    return 0;
}

/* Appends a schema record and publishes it: in private memory, which everything here uses, and a copy in the
 * shared memory. Under the lock. */
static int add_schema(struct pb_arena *a, struct pb_file_schema *f, const struct pb_file_column *columns,
                      const struct pb_layout **ret)
{
    struct pb_file_header *h = a->header;
    struct pb_control *c = a->control;
    uint64_t used = atomic_load(&c->schemas_used), at = a->about.schemas_offset + used;

    f->id = atomic_load(&c->nschemas);
    f->size = (uint32_t)(sizeof(*f) + f->ncolumns * sizeof(*columns));
    if (f->id >= PB_MAX_SCHEMAS || f->size > a->about.schemas_size - used)
        return -ENOSPC;
    uint64_t end = (at + f->size + a->page - 1) / a->page * a->page, have = atomic_load(&a->header_used);
    if (end > have) {
        int r = pb_memory_reserve(a, (char *)h + have, end - have);
        if (r < 0)
            return r;
        atomic_store(&a->header_used, end);
    }
    struct pb_file_schema *record = (struct pb_file_schema *)(void *)(a->schemas + used);
    memcpy(record + 1, columns, f->ncolumns * sizeof(*columns));
    *record = *f;

    struct pb_layout *l = &c->layouts[f->id];
    int r = make_layout(l, record, a->segment_size);
    if (r < 0)
        return r;
    memcpy((char *)h + at, record, f->size);
    atomic_store(&c->schemas_used, used + f->size);
    atomic_store(&c->nschemas, f->id + 1);
    __atomic_store_n(&h->schemas_used, used + f->size, __ATOMIC_RELEASE);
    __atomic_store_n(&h->nschemas, f->id + 1, __ATOMIC_RELEASE);
    *ret = l;
    return 0;
}

static int describe_column(const struct pb_column *column, struct pb_file_column *ret)
{
    if (!column->name || !column->name[0] || pb_type_width(column->type) == 0)
        return -EINVAL;
    memset(ret, 0, sizeof(*ret));
    copy_text(ret->name, sizeof(ret->name), column->name);
    copy_text(ret->unit, sizeof(ret->unit), column->unit);
    copy_text(ret->comment, sizeof(ret->comment), column->comment);
    ret->type = (uint8_t)column->type;
    ret->flags = (uint8_t)column->flags;
    return 0;
}

static const struct pb_file_schema *schema_of(const struct pb_arena *a, uint32_t id)
{
    const char *at = a->schemas;

    for (uint32_t i = 0; i < id; i++)
        at += ((const struct pb_file_schema *)(const void *)at)->size;
    return (const struct pb_file_schema *)(const void *)at;
}

static const struct pb_file_column *columns_of(const struct pb_file_schema *f)
{
    return (const struct pb_file_column *)(const void *)(f + 1);
}

static struct pb_table *find_table(struct pb_control *c, const char *name)
{
    uint32_t n = atomic_load(&c->ntables);

    for (uint32_t i = 0; i < n; i++)
        if (pb_name_same(c->tables[i].entry.name, name))
            return &c->tables[i];
    return NULL;
}

struct pb_table *pb_table_find(struct pb_arena *a, const char *name)
{
    return atomic_load(&a->control->live) ? find_table(a->control, name) : NULL;
}

/* Whether the table's columns begin with these. */
static bool columns_match(const struct pb_arena *a, const struct pb_table *t,
                          const struct pb_file_column *columns, unsigned n)
{
    const struct pb_file_schema *f = schema_of(a, atomic_load(&t->layout)->schema);

    for (unsigned i = 0; i < n; i++)
        if (i >= f->ncolumns || !pb_name_same(columns_of(f)[i].name, columns[i].name) ||
            columns_of(f)[i].type != columns[i].type)
            return false;
    return true;
}

static int add_table(struct pb_arena *a, const struct pb_table_spec *spec,
                     const struct pb_file_column *columns, struct pb_table **ret)
{
    struct pb_control *c = a->control;
    uint32_t id = atomic_load(&c->ntables);
    const struct pb_layout *l;

    if (id >= a->about.max_tables)
        return -ENOSPC;
    unsigned percent = spec->heap_percent ? spec->heap_percent : default_heap(columns, spec->ncolumns);
    struct pb_file_schema f = {.table = id,
                               .previous = atomic_load(&c->nschemas),
                               .ncolumns = (uint16_t)spec->ncolumns,
                               .heap_percent = (uint16_t)(percent < 90 ? percent : 90)};
    int r = add_schema(a, &f, columns, &l);
    if (r < 0)
        return r;

    struct pb_table *t = &c->tables[id];
    t->file = (struct pb_file_table *)(void *)((char *)a->header + a->about.tables_offset) + id;
    copy_text(t->entry.name, sizeof(t->entry.name), spec->name);
    copy_text(t->entry.comment, sizeof(t->entry.comment), spec->comment);
    t->entry.schema = f.id;
    t->entry.share = spec->share ? spec->share : 1;
    memcpy(t->file, &t->entry, offsetof(struct pb_file_table, rows_recycled));
    t->id = id;
    atomic_store(&t->share, t->entry.share);
    atomic_store(&t->layout, l);
    __atomic_store_n(&t->arena, a, __ATOMIC_RELAXED);
    atomic_store(&c->ntables, id + 1);
    __atomic_store_n(&a->header->ntables, id + 1, __ATOMIC_RELEASE);
    *ret = t;
    return 0;
}

int pb_table_new(struct pb_arena *a, const struct pb_table_spec *spec, struct pb_table **ret)
{
    struct pb_file_column columns[PB_MAX_COLUMNS];
    struct pb_control *c = a->control;
    int r = 0;

    if (!spec->name || !spec->name[0] || spec->ncolumns < 1 || spec->ncolumns > PB_MAX_COLUMNS)
        return -EINVAL;
    for (unsigned i = 0; i < spec->ncolumns && r == 0; i++)
        r = describe_column(&spec->columns[i], &columns[i]);
    if (r < 0)
        return r;
    if (!pb_arena_enter(a))
        return -ESHUTDOWN;

    lock(c);
    struct pb_table *t = find_table(c, spec->name);
    if (!t)
        r = add_table(a, spec, columns, &t);
    else if (!columns_match(a, t, columns, spec->ncolumns))
        r = -EEXIST;
    unlock(c);
    pb_arena_leave(a);
    if (r == 0)
        *ret = t;
    return r;
}

/* Under the lock. */
static int add_column(struct pb_table *t, const struct pb_file_column *column)
{
    struct pb_arena *a = t->arena;
    struct pb_file_column columns[PB_MAX_COLUMNS];
    const struct pb_layout *l;
    const struct pb_file_schema *old = schema_of(a, atomic_load(&t->layout)->schema);

    for (unsigned i = 0; i < old->ncolumns; i++)
        if (pb_name_same(columns_of(old)[i].name, column->name))
            return columns_of(old)[i].type == column->type ? (int)i : -EEXIST;
    if (old->ncolumns == PB_MAX_COLUMNS)
        return -ENOSPC;
    memcpy(columns, columns_of(old), old->ncolumns * sizeof(*columns));
    columns[old->ncolumns] = *column;

    unsigned percent = default_heap(columns, old->ncolumns + 1u);
    struct pb_file_schema f = {.table = t->id,
                               .previous = old->id,
                               .ncolumns = (uint16_t)(old->ncolumns + 1),
                               .heap_percent =
                                   old->heap_percent > percent ? old->heap_percent : (uint16_t)percent};
    int r = add_schema(a, &f, columns, &l);
    if (r < 0)
        return r;
    __atomic_store_n(&t->entry.schema, f.id, __ATOMIC_RELEASE);
    __atomic_store_n(&t->file->schema, f.id, __ATOMIC_RELEASE);
    atomic_store(&t->layout, l);
    return old->ncolumns;
}

int pb_table_grow(struct pb_table *t, const struct pb_column *column)
{
    struct pb_file_column described;
    int r = describe_column(column, &described);

    if (r < 0)
        return r;
    struct pb_arena *a = __atomic_load_n(&t->arena, __ATOMIC_RELAXED);
    if (!a || !pb_arena_enter(a))
        return -ESHUTDOWN;
    lock(a->control);
    r = add_column(t, &described);
    unlock(a->control);
    pb_arena_leave(a);
    return r;
}
