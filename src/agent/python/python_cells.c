/* python_cells: see python_cells.h. */
#include "agent/python/python_cells.h"

#include "agent/module/module.h"
#include "table/clock.h"

#include <math.h>
#include <stdio.h>

static const char *const type_names[PB_TYPE_END] = {
    [PB_I8] = "int8",    [PB_I16] = "int16",   [PB_I32] = "int32",  [PB_I64] = "int64",
    [PB_U8] = "uint8",   [PB_U16] = "uint16",  [PB_U32] = "uint32", [PB_U64] = "uint64",
    [PB_F32] = "float",  [PB_F64] = "float",   [PB_BOOL] = "bool",  [PB_TIMESTAMP] = "timestamp",
    [PB_STRING] = "str", [PB_BYTES] = "bytes",
};

/* Names the column, instead of the conversion's own exception, which does not. */
int pb_value_refuse(const struct pb_python *py, const char *column, enum pb_type type, pb_pyobject *object)
{
    char text[256];

    if (py->err_occurred() && !py->err_matches(*py->type_error))
        return -1; /* too large, or an exception of the object's __float__ */
    const unsigned header = pb_module_header(py);

    py->err_clear();
    snprintf(text, sizeof(text), "column %s takes %s, not this %.100s", column, type_names[type],
             pb_class_name(pb_type_of(object, header), header));
    py->err_set(*py->type_error, text);
    return -1;
}

static int in_range(int64_t i, enum pb_type type)
{
    switch (type) {
    case PB_I8:
        return i >= INT8_MIN && i <= INT8_MAX;
    case PB_I16:
        return i >= INT16_MIN && i <= INT16_MAX;
    case PB_I32:
        return i >= INT32_MIN && i <= INT32_MAX;
    case PB_U8:
        return i >= 0 && i <= UINT8_MAX;
    case PB_U16:
        return i >= 0 && i <= UINT16_MAX;
    case PB_U32:
        return i >= 0 && i <= UINT32_MAX;
    default:
        return 1;
    }
}

static int integer_from(const struct pb_python *py, pb_pyobject *object, enum pb_type type,
                        struct pb_cell_value *ret)
{
    pb_pyobject *made = NULL;

    if (pb_type_of(object, pb_module_header(py)) != py->int_type) {
        object = made = py->number_index(object); /* never a float cut short */
        if (!made)
            return -1;
    }
    int failed;
    if (type == PB_U64) {
        ret->u = py->uint64_as(object);
        failed = ret->u == UINT64_MAX && py->err_occurred();
    } else {
        ret->i = py->int64_as(object);
        failed = ret->i == -1 && py->err_occurred();
    }
    if (made)
        py->decref(made);
    return failed || (type != PB_U64 && !in_range(ret->i, type)) ? -1 : 0;
}

int pb_value_epoch(const struct pb_python *py, pb_pyobject *object, int64_t *ret)
{
    struct pb_cell_value value;

    if (pb_type_of(object, pb_module_header(py)) == py->float_type) {
        double seconds = py->float_as(object);
        if (!isfinite(seconds) || fabs(seconds) > 9e9)
            return -1;
        *ret = (int64_t)(seconds * 1e9);
        return 0;
    }
    if (integer_from(py, object, PB_I64, &value) < 0)
        return -1;
    *ret = value.i;
    return 0;
}

static int timestamp_from(const struct pb_python *py, pb_pyobject *object, struct pb_cell_value *ret)
{
    int64_t mono, real;

    if (pb_value_epoch(py, object, &ret->i) < 0)
        return -1;
    pb_clock_both(&mono, &real);
    return __builtin_sub_overflow(ret->i, real - mono, &ret->i) ? -1 : 0;
}

/* Text that is not UTF-8 (lone surrogates, from file names) is written with backslashes. */
static int string_from(const struct pb_python *py, pb_pyobject *object, struct pb_cell_value *ret,
                       struct pb_value_temps *temps)
{
    long length;

    ret->text = py->utf8_size(object, &length);
    if (!ret->text) {
        py->err_clear();
        if (!py->is_instance(object, py->str_type) || temps->n == sizeof(temps->at) / sizeof(temps->at[0]))
            return -1;
        pb_pyobject *bytes = py->str_encode(object, "utf-8", "backslashreplace");
        char *text;
        if (!bytes)
            return -1;
        temps->at[temps->n++] = bytes;
        if (py->bytes_as(bytes, &text, &length) < 0)
            return -1;
        ret->text = text;
    }
    ret->length = (size_t)length;
    return 0;
}

static int bytes_from(const struct pb_python *py, pb_pyobject *object, struct pb_cell_value *ret)
{
    char *data;
    long length;

    if (py->bytes_as(object, &data, &length) < 0)
        return -1;
    ret->text = data;
    ret->length = (size_t)length;
    return 0;
}

int pb_value_from(const struct pb_python *py, pb_pyobject *object, enum pb_type type,
                  struct pb_cell_value *ret, struct pb_value_temps *temps)
{
    int r, truth;

    ret->type = 0;
    if (object == py->none)
        return 0;
    switch (type) {
    case PB_F32:
    case PB_F64:
        ret->d = py->float_as(object);
        r = __builtin_expect(ret->d == -1.0, 0) && py->err_occurred() ? -1 : 0;
        break;
    case PB_BOOL:
        truth = object == py->true_object ? 1 : object == py->false_object ? 0 : py->is_true(object);
        ret->i = truth;
        r = truth < 0 ? -1 : 0;
        break;
    case PB_TIMESTAMP:
        r = timestamp_from(py, object, ret);
        break;
    case PB_STRING:
        r = string_from(py, object, ret, temps);
        break;
    case PB_BYTES:
        r = bytes_from(py, object, ret);
        break;
    default:
        r = integer_from(py, object, type, ret);
    }
    if (r == 0)
        ret->type = (uint8_t)type;
    return r;
}

void pb_value_temps_done(const struct pb_python *py, struct pb_value_temps *temps)
{
    while (temps->n)
        py->decref(temps->at[--temps->n]);
}

void pb_value_set(struct pb_row *row, unsigned column, const struct pb_cell_value *value)
{
    switch (value->type) {
    case PB_I8:
        pb_set_i8(row, column, (int8_t)value->i);
        break;
    case PB_I16:
        pb_set_i16(row, column, (int16_t)value->i);
        break;
    case PB_I32:
        pb_set_i32(row, column, (int32_t)value->i);
        break;
    case PB_I64:
        pb_set_i64(row, column, value->i);
        break;
    case PB_U8:
        pb_set_u8(row, column, (uint8_t)value->i);
        break;
    case PB_U16:
        pb_set_u16(row, column, (uint16_t)value->i);
        break;
    case PB_U32:
        pb_set_u32(row, column, (uint32_t)value->i);
        break;
    case PB_U64:
        pb_set_u64(row, column, value->u);
        break;
    case PB_F32:
        pb_set_f32(row, column, (float)value->d);
        break;
    case PB_F64:
        pb_set_f64(row, column, value->d);
        break;
    case PB_BOOL:
        pb_set_bool(row, column, value->i != 0);
        break;
    case PB_TIMESTAMP:
        pb_set_timestamp(row, column, value->i);
        break;
    case PB_STRING:
        pb_set_string(row, column, value->text, value->length);
        break;
    case PB_BYTES:
        pb_set_bytes(row, column, value->text, value->length);
        break;
    default: /* NULL */
        break;
    }
}
