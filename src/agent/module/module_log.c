/* module_log: _probing.log(**values): a row of training_logs, which gets a column for each new name. And the
 * step that rows belong to.
 *
 * A column's type is fixed by its first value. Numbers are DOUBLE: a loss that happens to be 0 at first must
 * not make a column of integers. Only names that count (epoch, step, ...) are BIGINT. A value that does not
 * fit its column is left out, and the caller gets one warning: a log never ends a training. */
#include "agent/core/recorder.h"
#include "agent/module/module.h"
#include "agent/python/python_cells.h"
#include "control/tables.def"
#include "table/names.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MOST      64 /* values per call */
#define MOST_NAME 48 /* bytes of a column's name, with its NUL */
#define COLUMNS   "log columns"

enum { PB_IDS_OF(PB_TABLE_TRAINING_LOGS) };

static int64_t step_now = INT64_MIN;

static const struct pb_column first_columns[] = {PB_COLUMNS_OF(PB_TABLE_TRAINING_LOGS)};

static const char *const counters[] = {"epoch", "step",       "global_step", "local_step", "iteration",
                                       "iter",  "micro_step", "batch",       "rank",       "seed"};

static struct pb_table *log_table(struct pb_arena *arena)
{
    static struct pb_known_table known;
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_TRAINING_LOGS),
                                       .comment = PB_COMMENT_OF(PB_TABLE_TRAINING_LOGS),
                                       .columns = first_columns,
                                       .ncolumns = sizeof(first_columns) / sizeof(first_columns[0])};
    return pb_recorder_table(arena, &spec, &known);
}

/* A tracked variable has a column of its whole text too: loss@train. */
static int is_tracked(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.@<>[]";
    size_t n = strspn(name, letters);

    return strchr(name, '@') && !name[n] && n < MOST_NAME;
}

static enum pb_type type_for(const struct pb_python *py, const char *name, pb_pyobject *value)
{
    pb_pyobject *type = pb_type_of(value, pb_module_header(py));

    if (value == py->true_object || value == py->false_object)
        return PB_BOOL;
    if (type == py->str_type)
        return PB_STRING;
    if (type == py->bytes_type)
        return PB_BYTES;
    size_t length = strcspn(name, "@");
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
        if (strlen(counters[i]) == length && memcmp(name, counters[i], length) == 0)
            return PB_I64;
    return PB_F64;
}

/* The column of that name in the present tables, made if it is new: index << 8 | type. Cached in a dict,
 * which is of one generation. Negative: not possible. Not inside the recorder. */
static long find_column(const struct pb_python *py, pb_pyobject *known, pb_pyobject *key, pb_pyobject *value)
{
    pb_pyobject *found = py->dict_get_object(known, key);
    uint32_t place;

    if (found)
        return py->int_as(found);
    const char *name = py->utf8_of(key);
    if (!name || (!pb_name_is_column(name) && !is_tracked(name)))
        return -EINVAL;
    struct pb_column column = {.name = name, .type = type_for(py, name, value)};
    struct pb_arena *arena = pb_recorder_enter(&place);
    if (!arena)
        return -ENOENT;
    struct pb_table *table = log_table(arena);
    int at = table ? pb_table_grow(table, &column) : -ENOMEM;
    for (int type = PB_I8; at == -EEXIST && type < PB_TYPE_END; type++) { /* made by an earlier value */
        column.type = (enum pb_type)type;
        at = pb_table_grow(table, &column);
    }
    pb_recorder_leave(place);
    if (at < 0)
        return at;
    long packed = (long)at << 8 | (long)column.type;
    pb_pyobject *kept = py->int64_from(packed);
    if (kept) {
        py->dict_set_object(known, key, kept);
        py->decref(kept);
    }
    return packed;
}

/* The dict of known columns, emptied when there is another agent: a new reference. */
static pb_pyobject *known_columns(const struct pb_python *py)
{
    /* Stored after the dict: a thread that reads this number finds that dict. */
    static uint64_t of_generation;
    uint64_t now = pb_recorder_generation();
    int fresh = __atomic_load_n(&of_generation, __ATOMIC_ACQUIRE) == now;
    pb_pyobject *shared = pb_module_shared(py), *known = shared ? py->dict_get(shared, COLUMNS) : NULL;

    if (known && fresh) {
        py->incref(known);
        return known;
    }
    known = py->dict_new();
    if (known && shared)
        py->dict_set(shared, COLUMNS, known);
    __atomic_store_n(&of_generation, now, __ATOMIC_RELEASE);
    return known;
}

/* log(**values). Returns None, or the names of values that were left out. */
static pb_pyobject *log_values(pb_pyobject *self, pb_pyobject *const *args, long nargs, pb_pyobject *names)
{
    const struct pb_python *py = pb_python_here();
    struct pb_cell_value values[MOST];
    struct pb_value_temps temps = {.n = 0};
    unsigned columns[MOST], n = 0;
    uint64_t taken[(PB_MAX_COLUMNS + 63) / 64] = {0}; /* of names that differ in case one is left out */
    long given = names ? py->size_of(names) : 0;
    uint64_t generation = pb_recorder_generation();
    pb_pyobject *left_out = NULL, *known = known_columns(py);
    int has_step = 0;
    struct pb_row row;
    uint32_t place;
    (void)self;

    if (nargs || !known) {
        if (known)
            py->decref(known);
        py->err_set(*py->type_error, "log takes values by name: probing.log(epoch=1, loss=0.5)");
        return NULL;
    }
    for (long i = 0; i < given; i++) {
        pb_pyobject *name = py->tuple_get(names, i);
        long found = args[i] == py->none ? -ENOENT : find_column(py, known, name, args[i]);
        if (found == -ENOENT) /* NULL, or nothing records */
            continue;
        unsigned column = found >= 0 ? (unsigned)(found >> 8) : 0;
        if (n < MOST && found >= 0 && !(taken[column / 64] >> column % 64 & 1) &&
            pb_value_from(py, args[i], (enum pb_type)(found & 0xff), &values[n], &temps) == 0) {
            columns[n] = column;
            taken[column / 64] |= UINT64_C(1) << column % 64;
            has_step |= columns[n++] == STEP;
            continue;
        }
        py->err_clear();
        if (!left_out)
            left_out = py->list_new(0);
        if (left_out)
            py->list_append(left_out, name);
    }
    struct pb_arena *arena = pb_recorder_enter(&place);
    struct pb_table *table = arena && generation == pb_recorder_generation() ? log_table(arena) : NULL;
    if (table && pb_row_begin(table, &row) == 0) {
        if (!has_step && pb_span_step() != INT64_MIN)
            pb_set_i64(&row, STEP, pb_span_step());
        for (unsigned i = 0; i < n; i++)
            pb_value_set(&row, columns[i], &values[i]);
        pb_row_commit(&row);
    }
    if (arena)
        pb_recorder_leave(place);
    pb_value_temps_done(py, &temps);
    py->decref(known);
    if (left_out)
        return left_out;
    py->incref(py->none);
    return py->none;
}

/* step(): the next step; step(n): this one. */
static pb_pyobject *step(pb_pyobject *self, pb_pyobject *const *args, long nargs, pb_pyobject *names)
{
    const struct pb_python *py = pb_python_here();
    int64_t now = __atomic_load_n(&step_now, __ATOMIC_RELAXED);
    (void)self;
    (void)names;

    now = nargs > 0 ? py->int64_as(args[0]) : now == INT64_MIN ? 0 : now + 1;
    if (now == -1 && py->err_occurred())
        return NULL;
    __atomic_store_n(&step_now, now, __ATOMIC_RELAXED);
    return py->int64_from(now);
}

int64_t pb_span_step(void)
{
    return __atomic_load_n(&step_now, __ATOMIC_RELAXED);
}

struct pb_py_method pb_log_methods[] = {
    {"log", (pb_py_function)log_values, PB_METH_FAST, NULL},
    {"step", (pb_py_function)step, PB_METH_FAST, "step(n): the step that rows from now on belong to."},
    {0},
};
