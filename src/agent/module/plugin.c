/* plugin: tables of C and C++ code in the program: the agent's side of include/probing.h. */
#define PROBING_AGENT
#include <probing.h>

#include "agent/core/recorder.h"
#include "table/arena.h"
#include "table/names.h"

_Static_assert((int)PROBING_BYTES == (int)PB_BYTES && (int)PROBING_INT8 == (int)PB_I8, "one set of types");

static int make_table(struct pb_arena *arena, const struct probing_table *t, struct pb_table **ret)
{
    struct pb_column columns[PB_MAX_COLUMNS] = {
        {"timestamp", PB_TIMESTAMP, 0, NULL, "when the row was appended, UTC"}};
    const struct pb_table_spec spec = {
        .name = t->name, .comment = t->comment, .columns = columns, .ncolumns = 1 + t->ncolumns};

    if (!t->name || !pb_name_is_table(t->name) || t->ncolumns < 1 || t->ncolumns >= PB_MAX_COLUMNS)
        return -EINVAL;
    for (unsigned i = 0; i < t->ncolumns; i++) {
        const struct probing_column *c = &t->columns[i];
        if (!c->name || !pb_name_is_column(c->name))
            return -EINVAL;
        columns[1 + i] = (struct pb_column){c->name, (enum pb_type)c->type, 0, c->unit, c->comment};
    }
    return pb_table_new(arena, &spec, ret);
}

static void set_integer(struct pb_row *row, unsigned column, enum pb_type type, int64_t i)
{
    switch (type) {
    case PB_I8:
        pb_set_i8(row, column, (int8_t)i);
        break;
    case PB_I16:
        pb_set_i16(row, column, (int16_t)i);
        break;
    case PB_I32:
        pb_set_i32(row, column, (int32_t)i);
        break;
    case PB_I64:
        pb_set_i64(row, column, i);
        break;
    case PB_U8:
        pb_set_u8(row, column, (uint8_t)i);
        break;
    case PB_U16:
        pb_set_u16(row, column, (uint16_t)i);
        break;
    case PB_U32:
        pb_set_u32(row, column, (uint32_t)i);
        break;
    case PB_U64:
        pb_set_u64(row, column, (uint64_t)i);
        break;
    case PB_BOOL:
        pb_set_bool(row, column, i != 0);
        break;
    case PB_TIMESTAMP:
        pb_set_timestamp(row, column, i);
        break;
    default:
        row->error = -EINVAL;
    }
}

static void set_value(struct pb_row *row, unsigned column, enum pb_type type, const struct probing_value *v)
{
    switch (v->kind) {
    case PROBING_KIND_NULL:
        break;
    case PROBING_KIND_INT:
        set_integer(row, column, type, v->i);
        break;
    case PROBING_KIND_FLOAT:
        if (type == PB_F32)
            pb_set_f32(row, column, (float)v->f);
        else
            pb_set_f64(row, column, v->f);
        break;
    default:
        if (type == PB_BYTES)
            pb_set_bytes(row, column, v->text, v->length);
        else
            pb_set_string(row, column, v->text, v->length);
    }
}

__attribute__((visibility("default"))) int probing_append_1(struct probing_table *t,
                                                            const struct probing_value *values);

int probing_append_1(struct probing_table *t, const struct probing_value *values)
{
    struct pb_table *table;
    struct pb_row row;
    uint32_t place;
    int r = 0;

    struct pb_arena *arena = pb_recorder_enter(&place);
    if (!arena)
        return -ENOENT;
    if (__atomic_load_n(&t->agent, __ATOMIC_ACQUIRE) == pb_recorder_generation()) {
        table = (struct pb_table *)(uintptr_t)__atomic_load_n(&t->handle, __ATOMIC_RELAXED);
    } else if ((r = make_table(arena, t, &table)) == 0) {
        __atomic_store_n(&t->handle, (uint64_t)(uintptr_t)table, __ATOMIC_RELAXED);
        __atomic_store_n(&t->agent, pb_recorder_generation(), __ATOMIC_RELEASE);
    }
    if (r == 0)
        r = pb_row_begin(table, &row);
    if (r == 0) {
        for (unsigned i = 0; i < t->ncolumns; i++)
            set_value(&row, 1 + i, (enum pb_type)t->columns[i].type, &values[i]);
        r = pb_row_commit(&row);
    }
    pb_recorder_leave(place);
    return r;
}
