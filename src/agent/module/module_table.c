/* module_table: tables of the program's own: _probing.table(name, columns, comment) and its Table type.
 *
 * A Table holds no pointer that outlives an agent: the first append under another agent makes the table there
 * again. Without an agent an append does nothing, at the price of one load. In a build without a GIL two
 * threads may make the table again at once: both get the same. */
#include "agent/core/recorder.h"
#include "agent/module/module.h"
#include "agent/python/python_cells.h"
#include "table/names.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAX_VALUES (PB_MAX_COLUMNS - 1) /* the first column is the time */

/* What follows an object's header. */
struct table {
    uint64_t generation; /* of the agent whose table this is; 0: none yet */
    struct pb_table *table;
    pb_pyobject *name;    /* str */
    pb_pyobject *columns; /* list of (name, type, unit or None, comment or None) */
    pb_pyobject *comment; /* str or None */
    unsigned n;
    uint8_t types[MAX_VALUES];
};

static unsigned header; /* set before the first Table is made */

static struct table *table_of(pb_pyobject *self)
{
    return (struct table *)(void *)((char *)self + header);
}

static const char *text_or_null(const struct pb_python *py, pb_pyobject *object)
{
    const char *text = object && object != py->none ? py->utf8_of(object) : NULL;
    if (!text)
        py->err_clear();
    return text;
}

static const char *column_name(const struct pb_python *py, const struct table *t, unsigned i)
{
    const char *name = text_or_null(py, py->tuple_get(py->list_get(t->columns, (long)i), 0));
    return name ? name : "?";
}

/* The columns that the table was defined with, after the time. */
static unsigned describe_columns(const struct pb_python *py, const struct table *t,
                                 struct pb_column ret[PB_MAX_COLUMNS])
{
    ret[0] = (struct pb_column){"timestamp", PB_TIMESTAMP, 0, NULL, "when the row was appended, UTC"};
    for (unsigned i = 0; i < t->n; i++) {
        pb_pyobject *column = py->list_get(t->columns, (long)i);
        ret[1 + i] = (struct pb_column){.name = column_name(py, t, i),
                                        .type = (enum pb_type)t->types[i],
                                        .unit = text_or_null(py, py->tuple_get(column, 2)),
                                        .comment = text_or_null(py, py->tuple_get(column, 3))};
    }
    return 1 + t->n;
}

/* Makes the table in the present arena, inside the recorder. */
static int make_bound(struct table *t, struct pb_arena *arena, const struct pb_column *columns,
                      const char *name, const char *comment)
{
    const struct pb_table_spec spec = {
        .name = name, .comment = comment, .columns = columns, .ncolumns = 1 + t->n};
    struct pb_table *made;

    int r = pb_table_new(arena, &spec, &made);
    if (r == 0) {
        __atomic_store_n(&t->table, made, __ATOMIC_RELAXED);
        __atomic_store_n(&t->generation, pb_recorder_generation(), __ATOMIC_RELEASE);
    }
    return r;
}

/* 0 also if nothing records. */
static int bind_table(const struct pb_python *py, struct table *t)
{
    struct pb_column columns[PB_MAX_COLUMNS];
    uint32_t place;

    describe_columns(py, t, columns);
    const char *name = py->utf8_of(t->name), *comment = text_or_null(py, t->comment);
    struct pb_arena *arena = pb_recorder_enter(&place);
    if (!arena)
        return 0;
    int r = make_bound(t, arena, columns, name, comment);
    pb_recorder_leave(place);
    return r;
}

static int is_bound(const struct table *t)
{
    return __atomic_load_n(&t->generation, __ATOMIC_ACQUIRE) == pb_recorder_generation();
}

/* --- append ---------------------------------------------------------------------------------------- */

static int find_column(const struct pb_python *py, const struct table *t, pb_pyobject *name)
{
    for (unsigned i = 0; i < t->n; i++) {
        pb_pyobject *known = py->tuple_get(py->list_get(t->columns, (long)i), 0);
        if (known == name || py->str_compare(known, name) == 0)
            return (int)i;
    }
    return -1;
}

static int refuse_definition(const struct pb_python *py, const struct table *t, const char *format, long n)
{
    char words[160], text[256];

    snprintf(words, sizeof(words), format, n, t->n);
    const char *name = py->utf8_of(t->name);
    snprintf(text, sizeof(text), "table %s: %s", name ? name : "?", words);
    py->err_set(*py->type_error, text);
    return -1;
}

static int convert_one(const struct pb_python *py, const struct table *t, unsigned i, pb_pyobject *object,
                       struct pb_cell_value *ret, struct pb_value_temps *temps)
{
    int r = pb_value_from(py, object, (enum pb_type)t->types[i], ret, temps);
    return r < 0 ? pb_value_refuse(py, column_name(py, t, i), (enum pb_type)t->types[i], object) : 0;
}

static int convert(const struct pb_python *py, const struct table *t, pb_pyobject *const *args, long nargs,
                   pb_pyobject *names, struct pb_cell_value *values, struct pb_value_temps *temps)
{
    long named = names ? py->size_of(names) : 0;

    if (nargs > (long)t->n)
        return refuse_definition(py, t, "append got %ld values for %u columns", nargs);
    for (long i = 0; i < nargs; i++)
        if (convert_one(py, t, (unsigned)i, args[i], &values[i], temps) < 0)
            return -1;
    for (unsigned i = (unsigned)nargs; i < t->n; i++)
        values[i].type = 0;
    for (long i = 0; i < named; i++) {
        int at = find_column(py, t, py->tuple_get(names, i));
        if (at < 0)
            return refuse_definition(py, t, "append got an unknown column name (argument %ld)", nargs + i);
        if (at < nargs)
            return refuse_definition(py, t, "append got a column twice (argument %ld)", nargs + i);
        if (convert_one(py, t, (unsigned)at, args[nargs + i], &values[at], temps) < 0)
            return -1;
    }
    return 0;
}

/* A row without room is dropped and counted in the table: that is no error of the program's. */
static void write_row(struct table *t, const struct pb_cell_value *values)
{
    struct pb_row row;
    uint32_t place;

    if (!pb_recorder_enter(&place))
        return;
    if (is_bound(t) && pb_row_begin(__atomic_load_n(&t->table, __ATOMIC_RELAXED), &row) == 0) {
        for (unsigned i = 0; i < t->n; i++)
            pb_value_set(&row, 1 + i, &values[i]);
        pb_row_commit(&row);
    }
    pb_recorder_leave(place);
}

static pb_pyobject *give_none(const struct pb_python *py)
{
    py->incref(py->none);
    return py->none;
}

static pb_pyobject *append(pb_pyobject *self, pb_pyobject *const *args, long nargs, pb_pyobject *names)
{
    const struct pb_python *py = pb_python_here();
    struct table *t = table_of(self);
    struct pb_cell_value values[MAX_VALUES];
    struct pb_value_temps temps;

    temps.n = 0;
    if (!t->columns) {
        py->err_set(*py->type_error, "this Table was not made by probing.table");
        return NULL;
    }
    int r = convert(py, t, args, nargs, names, values, &temps);
    if (r == 0) {
        if (__builtin_expect(!is_bound(t), 0))
            bind_table(py, t);
        write_row(t, values);
    }
    pb_value_temps_done(py, &temps);
    return r < 0 ? NULL : give_none(py);
}

/* --- the type -------------------------------------------------------------------------------------- */

static void dealloc(pb_pyobject *self)
{
    const struct pb_python *py = pb_python_here();
    struct table *t = table_of(self);
    pb_pyobject *held[] = {t->name, t->columns, t->comment, pb_type_of(self, header)};

    py->object_free(self);
    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++)
        if (held[i])
            py->decref(held[i]);
}

static pb_pyobject *repr(pb_pyobject *self)
{
    const struct pb_python *py = pb_python_here();
    const struct table *t = table_of(self);
    const char *name = t->name ? py->utf8_of(t->name) : "?";
    char text[160];

    int n = snprintf(text, sizeof(text), "<probing.Table %s, %u columns>", name ? name : "?", t->n);
    return py->str_from_utf8(text, n, "replace");
}

static struct pb_py_method table_methods[] = {
    {"append", (pb_py_function)append, PB_METH_FAST,
     "append(value, ..., column=value): adds a row. None, or a column left out, is NULL. From any thread."},
    {0},
};

static struct pb_py_slot table_slots[] = {
    {PB_SLOT_METHODS, table_methods},
    {PB_SLOT_DEALLOC, (void *)dealloc},
    {PB_SLOT_REPR, (void *)repr},
    {0, NULL},
};

static struct pb_py_spec table_spec = {"_probing.Table", 0, 0, PB_TYPE_FLAGS, table_slots};

/* --- table(name, columns, comment) ----------------------------------------------------------------- */

static int refuse_name(const struct pb_python *py, const char *what, const char *name)
{
    char text[256];

    snprintf(text, sizeof(text),
             "%s '%.100s': letters, digits and underscores, not beginning with a digit, up to %s", what, name,
             what[0] == 't' ? "63 (a table may be SCHEMA.NAME, 63 in all)" : "47");
    py->err_set(*py->value_error, text);
    return -1;
}

/* A name with a NUL in it is longer than the checked part. */
static int has_nul(const struct pb_python *py, pb_pyobject *name)
{
    long size = 0;
    const char *text = py->utf8_size(name, &size);
    return text && strlen(text) != (size_t)size;
}

static int comes_before(const struct pb_python *py, const struct table *t, const char *name)
{
    for (unsigned i = 0; i < t->n; i++)
        if (pb_name_same(column_name(py, t, i), name))
            return 1;
    return 0;
}

static int check_columns(const struct pb_python *py, struct table *t)
{
    long n = py->list_size(t->columns);

    if (n < 1 || n > MAX_VALUES)
        return refuse_definition(py, t, n < 1 ? "it needs a column%.0ld" : "%ld columns are too many",
                                 n < 0 ? 0 : n);
    for (long i = 0; i < n; i++) {
        pb_pyobject *column = py->list_get(t->columns, i), *name = py->tuple_get(column, 0),
                    *type = name ? py->tuple_get(column, 1) : NULL;
        const char *text = type ? py->utf8_of(name) : NULL;
        if (!text || !py->tuple_get(column, 3))
            return -1;
        if (!pb_name_is_column(text) || has_nul(py, name))
            return refuse_name(py, "column name", text);
        if (comes_before(py, t, text) || pb_name_same(text, "timestamp"))
            return refuse_definition(
                py, t, "a column's name comes twice (the first column is always timestamp; %ld)", i);
        long code = py->int_as(type);
        if (code <= 0 || code >= PB_TYPE_END)
            return refuse_definition(py, t, "column %ld has an unknown type", i);
        t->types[i] = (uint8_t)code;
        t->n = (unsigned)i + 1;
    }
    return 0;
}

static int take_definition(const struct pb_python *py, struct table *t)
{
    char text[256];
    const char *name = py->utf8_of(t->name);

    if (!name)
        return -1;
    if (!pb_name_is_table(name) || has_nul(py, t->name))
        return refuse_name(py, "table name", name);
    if (check_columns(py, t) < 0)
        return -1;
    int r = bind_table(py, t);
    if (r == -EEXIST || r == -EMSGSIZE) {
        snprintf(text, sizeof(text),
                 r == -EEXIST ? "there is a table %s with other columns" : "a row of table %s is too large",
                 name);
        py->err_set(*py->value_error, text);
        return -1;
    }
    return 0; /* no room for more tables: it records nothing, and the program goes on */
}

static pb_pyobject *make_table(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *given[3], *shared = pb_module_shared(py);
    pb_pyobject *type = shared ? py->dict_get(shared, "Table") : NULL;
    (void)self;

    for (int i = 0; i < 3; i++)
        if (!type || !(given[i] = py->tuple_get(args, i)))
            return NULL;
    pb_pyobject *made = py->type_alloc(type, 0);
    if (!made)
        return NULL;
    struct table *t = table_of(made);
    for (int i = 0; i < 3; i++)
        py->incref(given[i]);
    t->name = given[0];
    t->columns = given[1];
    t->comment = given[2];
    if (take_definition(py, t) == 0)
        return made;
    py->decref(made);
    return NULL;
}

struct pb_py_method pb_table_methods[] = {
    {"table", (pb_py_function)make_table, PB_METH_VARARGS, NULL},
    {0},
};

int pb_module_add_table_type(const struct pb_python *py, pb_pyobject *shared)
{
    header = pb_module_header(py);
    table_spec.size = (int)(header + sizeof(struct table));
    return pb_module_add_type(py, shared, "Table", &table_spec);
}
