/* own_tables: the tables that the Python part fills. It gets their columns here, from control/tables.def. */
#include "agent/module/module.h"
#include "control/tables.def"
#include "table/arena.h"

#include <string.h>

#define PYTHON_TABLES(X)                                                                                     \
    X(BREAK_HITS)                                                                                            \
    X(CRASH_FRAMES) X(EXCEPTIONS) X(MODULES) X(OPTIMIZERS) X(PROFILE_HOTSPOT) X(TENSORS) X(VARIABLES)
#define COLUMNS(table) static const struct pb_column columns_##table[] = {PB_COLUMNS_OF(PB_TABLE_##table)};
PYTHON_TABLES(COLUMNS)

#define SPEC(table)                                                                                          \
    {.name = PB_NAME_OF(PB_TABLE_##table),                                                                   \
     .comment = PB_COMMENT_OF(PB_TABLE_##table),                                                             \
     .columns = columns_##table,                                                                             \
     .ncolumns = sizeof(columns_##table) / sizeof(columns_##table[0])},
static const struct pb_table_spec specs[] = {PYTHON_TABLES(SPEC)};

/* Appends a new object; NULL stands for an error of Python's. */
static int add_object(const struct pb_python *py, pb_pyobject *list, pb_pyobject *object)
{
    int r = object ? py->list_append(list, object) : -1;

    if (object)
        py->decref(object);
    return r;
}

static int add_text(const struct pb_python *py, pb_pyobject *list, const char *text)
{
    if (!text)
        return py->list_append(list, py->none);
    return add_object(py, list, py->str_from(text, (long)strlen(text)));
}

static int add_column(const struct pb_python *py, pb_pyobject *list, const struct pb_column *column)
{
    int r = add_text(py, list, column->name);

    if (r == 0)
        r = add_object(py, list, py->int_from((unsigned long)column->type));
    if (r == 0)
        r = add_text(py, list, column->unit);
    return r < 0 ? r : add_text(py, list, column->comment);
}

static const struct pb_table_spec *find_spec(const char *name)
{
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
        if (strcmp(specs[i].name, name) == 0)
            return &specs[i];
    return NULL;
}

/* own_table(name): [comment, then name, type, unit and comment of each column but a Table's timestamp]. */
static pb_pyobject *describe_table(pb_pyobject *self, pb_pyobject *name)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    const char *text = py->utf8_of(name);
    const struct pb_table_spec *spec = text ? find_spec(text) : NULL;
    if (!spec) {
        if (text)
            py->err_set(*py->value_error, "the Python part has no such table");
        return NULL;
    }
    pb_pyobject *list = py->list_new(0);
    int r = list ? add_text(py, list, spec->comment) : -1;
    for (unsigned i = strcmp(spec->columns[0].name, "timestamp") == 0; r == 0 && i < spec->ncolumns; i++)
        r = add_column(py, list, &spec->columns[i]);
    if (r < 0 && list) {
        py->decref(list);
        return NULL;
    }
    return list;
}

struct pb_py_method pb_own_table_methods[] = {
    {"own_table", (pb_py_function)describe_table, PB_METH_O, NULL},
    {0},
};
