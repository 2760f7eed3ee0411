/* scan: see scan.h. */
#include "engine/worker/scan.h"

#include "base/err.h"
#include "engine/shared/widen.h"
#include "engine/worker/duck.h"
#include "engine/worker/pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { VECTOR = 2048 }; /* DuckDB's vector size; a multiple of 64, so that validity words can be copied */

/* Never shown: the statement runs again. */
static const char REPEAT[] = "the snapshot is invalid";

/* The first columns of each table when a query is over several processes. */
enum { LEAD_RANK, LEAD_PID, LEADS };

static const struct pb_scan_request *request;
static _Atomic uint64_t rows_given, rows_known;
static _Atomic bool repeat;

struct table_scan {
    struct pb_cat_table *table;
    unsigned leads;
    idx_t ncolumns;
    idx_t columns[PB_MAX_COLUMNS + LEADS]; /* the columns asked for */
    bool texts;                            /* some column needs its strings or bytes */
    _Atomic unsigned next;                 /* the next segment */
};

/* The position of one thread. */
struct cursor {
    struct pb_cat_segment *segment;
    const struct pb_view *view; /* its rows */
    uint32_t row;
    struct pb_view mine; /* a segment read on demand */
    struct pb_reader *reader;
    unsigned part; /* the part that the reader belongs to */
};

void pb_scan_begin(const struct pb_scan_request *now)
{
    request = now;
    rows_given = rows_known = 0;
    repeat = false;
}

bool pb_scan_must_repeat(void)
{
    return atomic_exchange(&repeat, false);
}

uint64_t pb_scan_rows(void)
{
    return rows_given;
}

uint64_t pb_scan_rows_known(void)
{
    return rows_known;
}

static duckdb_type duck_type(enum pb_type type)
{
    static const duckdb_type types[PB_TYPE_END] = {
#define PB_STORED_TYPE(ours, cell, width, duckdb, name, node, arrow) [PB_##ours] = DUCKDB_TYPE_##duckdb,
#include "engine/shared/types.def"
    };
    return types[type];
}

static void add_column(duckdb_bind_info info, const char *name, duckdb_type type)
{
    duckdb_logical_type logical = duck.create_logical_type(type);
    duck.bind_add_result_column(info, name, logical);
    duck.destroy_logical_type(&logical);
}

static struct pb_cat_table *named_table(duckdb_bind_info info)
{
    duckdb_value value = duck.bind_get_parameter(info, 0);
    char *full = duck.get_varchar(value), *dot = full ? strchr(full, '.') : NULL;
    struct pb_cat_table *t = NULL;

    if (dot && request) {
        *dot = '\0';
        t = pb_catalog_find(request->catalog, full, dot + 1);
    }
    duck.free(full);
    duck.destroy_value(&value);
    return t;
}

static void bind_scan(duckdb_bind_info info)
{
    struct pb_cat_table *t = named_table(info);

    if (!t) {
        duck.bind_set_error(info, "there is no such table in this process");
        return;
    }
    if (request->catalog->ranks) {
        add_column(info, "rank", DUCKDB_TYPE_INTEGER);
        add_column(info, "target_pid", DUCKDB_TYPE_INTEGER);
    }
    for (unsigned i = 0; i < t->ncolumns; i++) {
        const struct pb_cat_column *c = &t->columns[i];
        if (c->strings.type)
            duck.bind_add_result_column(info, c->name, c->strings.type);
        else
            add_column(info, c->name,
                       duck_type(request->raw_times && c->type == PB_TIMESTAMP ? PB_I64 : c->type));
    }
    if (t->taken)
        duck.bind_set_cardinality(info, t->nrows, t->ndeferred == 0);
    duck.bind_set_bind_data(info, t, NULL);
}

/* Cells filled in between two scans of one query would appear in only one of them. */
static bool may_change(struct pb_cat_table *t)
{
    bool late = false;

    for (unsigned i = 0; i < t->ncolumns; i++)
        late = late || (t->columns[i].late && t->columns[i].wanted);
    return __atomic_fetch_add(&t->scans, 1, __ATOMIC_RELAXED) && t->ndeferred && late;
}

/* Sets the columns to read. *ret_foreseen: false when the snapshot lacks one of them. -EINVAL: a column has
 * no common type. */
static int choose_columns(struct table_scan *s, duckdb_init_info info, bool *ret_foreseen, struct pb_err *err)
{
    const struct pb_cat_table *t = s->table;
    bool foreseen = true;

    s->ncolumns = duck.init_get_column_count(info);
    for (idx_t i = 0; i < s->ncolumns; i++) {
        idx_t column = s->columns[i] = duck.init_get_column_index(info, i);
        if (column < s->leads || column >= s->leads + t->ncolumns)
            continue;
        const struct pb_cat_column *c = &t->columns[column - s->leads];
        if (c->conflict) {
            pb_catalog_conflict(request->catalog, t, c, err);
            return -EINVAL;
        }
        s->texts = s->texts || (c->type == PB_STRING && !c->strings.type);
        foreseen = foreseen && (t->whole || c->wanted);
    }
    *ret_foreseen = foreseen;
    return 0;
}

/* Several scans may begin at once, and preparing a table talks to the broker. */
static int prepare_table(struct pb_cat_table *t, struct pb_err *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&lock);
    int r = t->taken ? 0 : request->prepare(request->arg, t, err);
    pthread_mutex_unlock(&lock);
    return r;
}

static void init_scan(duckdb_init_info info)
{
    struct pb_cat_table *t = duck.init_get_bind_data(info);
    struct pb_err err = {0};

    int r = prepare_table(t, &err);
    struct table_scan *s = r == 0 ? calloc(1, sizeof(*s)) : NULL;
    if (!s) {
        duck.init_set_error(info, r < 0 ? pb_err_text(&err, r) : "out of memory");
        return;
    }
    s->table = t;
    atomic_fetch_add(&rows_known, t->nrows);
    s->leads = request->catalog->ranks ? LEADS : 0;
    bool foreseen = false;
    duck.init_set_init_data(info, s, free);
    if (choose_columns(s, info, &foreseen, &err) < 0) {
        duck.init_set_error(info, err.text);
        return;
    }
    if (!foreseen)
        t->whole = true;
    if (!foreseen || may_change(t)) {
        repeat = true;
        duck.init_set_error(info, REPEAT);
    }
    duck.init_set_max_threads(info, t->nsegments > 1 ? request->threads : 1);
}

static void free_cursor(void *cursor)
{
    struct cursor *c = cursor;

    pb_pool_give(&c->mine);
    pb_reader_close(c->reader);
    free(c);
}

static void init_thread(duckdb_init_info info)
{
    struct cursor *c = calloc(1, sizeof(*c));

    if (!c)
        duck.init_set_error(info, "out of memory");
    else
        duck.init_set_init_data(info, c, free_cursor);
}

static void set_nulls(duckdb_vector vector, uint32_t n)
{
    duck.vector_ensure_validity_writable(vector);
    memset(duck.vector_get_validity(vector), 0, (n + 63) / 64 * 8);
}

/* Nanoseconds to microseconds, rounded down, also before 1970. A 64-bit division costs more than everything
 * else here; rows of one vector are mostly within half a minute, where 32 bits suffice. */
static void fill_times(duckdb_vector vector, const int64_t *ns, uint32_t n)
{
    int64_t *us = duck.vector_get_data(vector), first = ns[0] / 1000 - (ns[0] % 1000 < 0);
    uint64_t base = (uint64_t)first * 1000, far = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t since = (uint64_t)ns[i] - base;
        far |= since >> 35;
        us[i] = first + (int64_t)((uint32_t)(since >> 3) / 125);
    }
    for (uint32_t i = 0; far && i < n; i++)
        us[i] = ns[i] / 1000 - (ns[i] % 1000 < 0);
}

#define FILL_IDS(type)                                                                                       \
    do {                                                                                                     \
        type *to = duck.vector_get_data(vector);                                                             \
        for (uint32_t i = 0; i < n; i++)                                                                     \
            to[i] = (type)ids[cells[i]];                                                                     \
    } while (0)

static void fill_enum(duckdb_vector vector, const uint16_t *cells, const uint16_t *ids, unsigned width,
                      uint32_t n)
{
    if (width == 1)
        FILL_IDS(uint8_t);
    else if (width == 2)
        FILL_IDS(uint16_t);
    else
        FILL_IDS(uint32_t);
}

/* Invalid UTF-8 would make DuckDB invalidate the whole database: such bytes are shown as \xNN. */
static void assign_escaped(duckdb_vector vector, idx_t row, const struct pb_text *text)
{
    static const char digits[] = "0123456789abcdef";
    char *copy = malloc((size_t)text->length * 4 + 1), *to = copy;

    if (!copy) {
        duck.vector_assign_string_element_len(vector, row, "?", 1);
        return;
    }
    for (uint32_t i = 0; i < text->length; i++) {
        unsigned char c = (unsigned char)text->data[i];
        if (c < 0x80) {
            *to++ = (char)c;
            continue;
        }
        *to++ = '\\';
        *to++ = 'x';
        *to++ = digits[c >> 4];
        *to++ = digits[c & 15];
    }
    duck.vector_assign_string_element_len(vector, row, copy, (idx_t)(to - copy));
    free(copy);
}

static void fill_strings(duckdb_vector vector, const struct pb_view *v, unsigned column, uint32_t row,
                         uint32_t n)
{
    const struct pb_view_column *c = &v->columns[column];

    for (uint32_t i = 0; i < n; i++) {
        if (pb_view_is_null(v, column, row + i))
            continue;
        if (c->type == PB_BYTES) {
            struct pb_text bytes = pb_view_bytes(v, column, row + i);
            duck.vector_assign_string_element_len(vector, i, bytes.data, bytes.length);
            continue;
        }
        const struct pb_text *text = &v->strings[((const uint16_t *)c->cells)[row + i]];
        if (text->utf8)
            duck.vector_assign_string_element_len(vector, i, text->data, text->length);
        else
            assign_escaped(vector, i, text);
    }
}

/* Whether every id of the column has a place in the shared ENUM. There are many rows and few ids: one pass
 * without branches, where no row is NULL. */
static bool have_places(const struct pb_cat_segment *s, const struct pb_view *v,
                        const struct pb_view_column *c)
{
    const uint16_t *cells = c->cells;
    uint16_t most = 0;

    if (c->nulls)
        return false;
    for (uint32_t i = 0; i < v->nrows; i++)
        most = cells[i] > most ? cells[i] : most;
    for (uint32_t i = 0; i <= most && most < s->nplaces; i++)
        if (s->places[i] == PB_NO_PLACE)
            return false;
    return most < s->nplaces;
}

/* Checks that all ids of a column can be looked up. False: one is new (its row was being written before) or
 * invalid. */
static bool check_ids(const struct pb_cat_segment *s, const struct pb_view *v, unsigned column)
{
    const struct pb_view_column *c = &v->columns[column];
    uint16_t *cells = (uint16_t *)c->cells;

    if (!cells || c->nulls == v->nrows || have_places(s, v, c))
        return true;
    for (uint32_t i = 0; i < v->nrows; i++) {
        if (pb_view_is_null(v, column, i))
            cells[i] = 0;
        else if (cells[i] >= s->nplaces || s->places[cells[i]] == PB_NO_PLACE)
            return false;
    }
    return true;
}

static void fill_column(duckdb_vector vector, const struct pb_cat_table *t, unsigned column,
                        const struct pb_cat_segment *s, const struct pb_view *v, uint32_t row, uint32_t n)
{
    int theirs = t->parts[s->part].columns[column];
    const struct pb_view_column *c = theirs >= 0 ? &v->columns[theirs] : NULL;

    if (!c || !c->cells || c->nulls == v->nrows) {
        set_nulls(vector, n);
        return;
    }
    unsigned width = pb_type_width(c->type);
    const char *cells = (const char *)c->cells + (size_t)row * width;
    if (c->nulls) {
        duck.vector_ensure_validity_writable(vector);
        memcpy(duck.vector_get_validity(vector), &c->validity[row / 64], (n + 63) / 64 * 8);
    }
    if (c->type == PB_TIMESTAMP && !request->raw_times)
        fill_times(vector, (const int64_t *)(const void *)cells, n);
    else if (c->type == PB_STRING && t->columns[column].strings.type)
        fill_enum(vector, (const uint16_t *)(const void *)cells, s->places ? s->places : s->ids[column],
                  t->columns[column].strings.width, n);
    else if (c->type == PB_STRING || c->type == PB_BYTES)
        fill_strings(vector, v, (unsigned)theirs, row, n);
    else if (c->type != t->columns[column].type)
        pb_widen_cells(cells, c->type, duck.vector_get_data(vector), t->columns[column].type, n);
    else
        memcpy(duck.vector_get_data(vector), cells, (size_t)n * width);
}

static void fill_lead(duckdb_vector vector, const struct pb_cat_source *source, idx_t which, uint32_t n)
{
    int32_t *to = duck.vector_get_data(vector);

    if (which == LEAD_RANK && source->rank < 0)
        set_nulls(vector, n);
    for (uint32_t i = 0; i < n; i++)
        to[i] = which == LEAD_RANK ? source->rank : source->pid;
}

/* Reads a deferred segment. -ESTALE: it has changed since the snapshot. */
static int read_now(const struct table_scan *s, struct cursor *c)
{
    struct pb_cat_table *t = s->table;
    const struct pb_cat_part *part = &t->parts[c->segment->part];
    uint64_t wanted[PB_MAX_COLUMNS / 64] = {0};
    int r = 0;

    if (!c->reader || c->part != c->segment->part) {
        pb_reader_close(c->reader);
        c->reader = NULL;
        c->part = c->segment->part;
        r = pb_reader_open(part->fd, &c->reader, NULL);
    }
    for (idx_t i = 0; i < s->ncolumns; i++) {
        idx_t column = s->columns[i] - s->leads;
        int theirs = s->columns[i] < s->leads || column >= t->ncolumns ? -1 : part->columns[column];
        if (theirs >= 0)
            wanted[theirs / 64] |= UINT64_C(1) << theirs % 64;
    }
    if (!c->mine.memory[0])
        pb_pool_take(&c->mine);
    c->mine.wanted = wanted;
    c->mine.ids_only = !s->texts;
    if (r == 0)
        r = pb_view_load(c->reader, &c->segment->at, &c->mine);
    c->mine.wanted = NULL;
    if (r == 0 && !pb_catalog_fits(t, c->segment->part, &c->mine))
        r = -EBADMSG;
    for (unsigned i = 0; r == 0 && t->shared.type && i < t->ncolumns; i++) {
        int theirs = part->columns[i];
        if (theirs >= 0 && c->mine.columns[theirs].type == PB_STRING &&
            !check_ids(c->segment, &c->mine, (unsigned)theirs))
            r = -ESTALE;
    }
    return r;
}

/* Whether the segment has as many rows as in an earlier scan of this query, if there was one. */
static bool is_as_before(struct pb_cat_segment *s, uint32_t nrows)
{
    uint32_t seen = 0;
    return __atomic_compare_exchange_n(&s->seen, &seen, nrows + 1, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED) ||
           seen == nrows + 1;
}

/* Makes the rows of the cursor's segment ready. -EBADMSG: it is damaged. */
static int open_segment(const struct table_scan *s, struct cursor *c)
{
    c->row = 0;
    c->view = &c->segment->view;
    if (!c->segment->deferred)
        return 0;
    int r = read_now(s, c);
    c->view = &c->mine;
    if (r == 0)
        s->table->damaged += c->mine.damaged;
    if (r == 0 && !is_as_before(c->segment, c->mine.nrows))
        r = -ESTALE;
    return r;
}

/* The next segment with rows; 0 at the end. */
static int next_segment(struct table_scan *s, struct cursor *c)
{
    for (;;) {
        unsigned i = atomic_fetch_add(&s->next, 1);
        if (i >= s->table->nsegments)
            return 0;
        c->segment = &s->table->segments[i];
        int r = open_segment(s, c);
        if (r == -EBADMSG)
            s->table->damaged++;
        else if (r < 0)
            return r;
        else if (c->view->nrows)
            return 1;
    }
}

static void give_up(duckdb_function_info info, struct cursor *c, int r)
{
    c->segment = NULL;
    repeat = repeat || r == -ESTALE;
    duck.function_set_error(info, r == -ESTALE ? REPEAT : strerror(-r));
}

static void scan_rows(duckdb_function_info info, duckdb_data_chunk chunk)
{
    struct table_scan *s = duck.function_get_init_data(info);
    struct cursor *c = duck.function_get_local_init_data(info);

    if (!c->segment || c->row == c->view->nrows) {
        int r = next_segment(s, c);
        if (r < 0)
            give_up(info, c, r);
        if (r <= 0) {
            duck.data_chunk_set_size(chunk, 0);
            return;
        }
    }
    uint32_t left = c->view->nrows - c->row, n = left < VECTOR ? left : VECTOR;
    const struct pb_cat_source *source = &request->catalog->sources[s->table->parts[c->segment->part].source];
    for (idx_t i = 0; i < s->ncolumns; i++) {
        idx_t column = s->columns[i];
        /* The row id, which count(*) asks for, needs no value. */
        if (column >= s->leads + s->table->ncolumns)
            continue;
        duckdb_vector vector = duck.data_chunk_get_vector(chunk, i);
        if (column < s->leads)
            fill_lead(vector, source, column, n);
        else
            fill_column(vector, s->table, (unsigned)(column - s->leads), c->segment, c->view, c->row, n);
    }
    c->row += n;
    atomic_fetch_add(&rows_given, n);
    duck.data_chunk_set_size(chunk, n);
}

int pb_scan_register(duckdb_connection connection)
{
    duckdb_table_function f = duck.create_table_function();
    duckdb_logical_type text = duck.create_logical_type(DUCKDB_TYPE_VARCHAR);

    duck.table_function_set_name(f, "pb_scan");
    duck.table_function_add_parameter(f, text);
    duck.table_function_set_bind(f, bind_scan);
    duck.table_function_set_init(f, init_scan);
    duck.table_function_set_local_init(f, init_thread);
    duck.table_function_set_function(f, scan_rows);
    duck.table_function_supports_projection_pushdown(f, true);
    duckdb_state state = duck.register_table_function(connection, f);
    duck.destroy_logical_type(&text);
    duck.destroy_table_function(&f);
    return state == DuckDBSuccess ? 0 : -EIO;
}
