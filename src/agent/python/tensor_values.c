/* tensor_values: numbers, ranges and norms of tensors that tensor.h reads, and of arrays of JAX, for the
 * Python part (_values.py). */
#include "agent/core/own_memory.h"
#include "agent/module/module.h"
#include "agent/python/enter.h"
#include "agent/python/jax.h"
#include "agent/python/tensor.h"

#include <math.h>
#include <string.h>

#define WORD      sizeof(uint64_t)
#define SLICE     (1 << 20) /* elements that are added up before other threads get a turn of the GIL */
#define RANGE_MAX 4096      /* elements over which least and most are computed */

/* Of enum c10::ScalarType. */
enum { U8, I8, I16, I32, I64, F16, F32, F64, BOOL = 11, BF16 = 15, U16 = 27, U32, U64 };

/* --- values --------------------------------------------------------------------------------------------- */

static double from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

static double from_half(uint16_t bits)
{
    uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 0 ? fraction * 0x1p-24
                                 : from_bits((exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
    return bits >> 15 ? -value : value;
}

#define CASE(id, type)                                                                                       \
    case id: {                                                                                               \
        type value;                                                                                          \
        memcpy(&value, element, sizeof(value));                                                              \
        *ret = (double)value;                                                                                \
        return 1;                                                                                            \
    }

/* 0: of a type that is no number here. */
static int number_at(const char *element, int type, double *ret)
{
    uint16_t bits;

    switch (type) {
        CASE(U8, uint8_t)
        CASE(I8, int8_t)
        CASE(I16, int16_t)
        CASE(I32, int32_t)
        CASE(I64, int64_t)
        CASE(F32, float)
        CASE(F64, double)
        CASE(BOOL, uint8_t)
        CASE(U16, uint16_t)
        CASE(U32, uint32_t)
        CASE(U64, uint64_t)
    case F16:
    case BF16:
        memcpy(&bits, element, sizeof(bits));
        *ret = type == F16 ? from_half(bits) : from_bits((uint32_t)bits << 16);
        return 1;
    default:
        return 0;
    }
}

/* The offset of the next element in odometer order, in elements; place: of each dimension, zeros at first. */
static int64_t next_element(const struct pb_tensor *t, int dims, int64_t place[PB_TENSOR_DIMS],
                            int64_t offset)
{
    for (int i = dims - 1; i >= 0; i--) {
        offset += t->steps[i];
        if (++place[i] < t->sizes[i])
            break;
        offset -= t->steps[i] * t->sizes[i];
        place[i] = 0;
    }
    return offset;
}

/* Whether its elements fill one piece of memory, in whatever order. */
static int is_dense(const struct pb_tensor *t)
{
    uint64_t done = 0;
    int64_t expected = 1;

    for (int found = 1; found;) {
        found = 0;
        for (int i = 0; i < t->dims && !found; i++)
            if (!(done >> i & 1) && t->sizes[i] > 1 && t->steps[i] == expected) {
                done |= UINT64_C(1) << i;
                expected *= t->sizes[i];
                found = 1;
            }
    }
    return expected == t->count;
}

static double add_squares_f32(const char *data, int64_t n)
{
    double sum[4] = {0};
    float value[4];
    int64_t i = 0;

    for (; i + 4 <= n; i += 4) {
        memcpy(value, data + i * 4, sizeof(value));
        for (int k = 0; k < 4; k++)
            sum[k] += (double)value[k] * (double)value[k];
    }
    for (; i < n; i++) {
        memcpy(value, data + i * 4, sizeof(value[0]));
        sum[0] += (double)value[0] * (double)value[0];
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* How far a sum is: elements done, and in odometer order the place of the next one. */
struct element_walk {
    int64_t done, offset;
    int64_t place[PB_TENSOR_DIMS];
    int is_dense;
};

/* The sum of the squares of the next SLICE elements. */
static double add_squares(const struct pb_tensor *t, struct element_walk *w)
{
    int64_t end = w->done + SLICE < t->count ? w->done + SLICE : t->count;
    double sum = 0, value = 0;

    if (w->is_dense && t->number == F32) {
        sum = add_squares_f32(t->data + w->done * t->size, end - w->done);
        w->done = end;
        return sum;
    }
    for (; w->done < end; w->done++) {
        number_at(t->data + (w->is_dense ? w->done : w->offset) * t->size, t->number, &value);
        sum += value * value;
        if (!w->is_dense)
            w->offset = next_element(t, t->dims, w->place, w->offset);
    }
    return sum;
}

/* --- for the Python part -------------------------------------------------------------------------------- */

static pb_pyobject *none_of(const struct pb_python *py)
{
    py->incref(py->none);
    return py->none;
}

static pb_pyobject *text_of(const struct pb_python *py, const char *text)
{
    return text ? py->str_from_utf8(text, (long)strlen(text), "replace") : none_of(py);
}

/* Takes the reference. -1 with an exception. */
static int add_item(const struct pb_python *py, pb_pyobject *list, pb_pyobject *item)
{
    int r = item && list ? py->list_append(list, item) : -1;

    if (item)
        py->decref(item);
    return r;
}

static pb_pyobject *list_of(const struct pb_python *py, const int64_t *numbers, int n)
{
    pb_pyobject *list = py->list_new(0);

    for (int i = 0; list && i < n; i++)
        if (add_item(py, list, py->int64_from(numbers[i])) < 0) {
            py->decref(list);
            return NULL;
        }
    return list;
}

static pb_pyobject *make_number(const struct pb_python *py, const struct pb_tensor *t)
{
    double value;

    if (t->count != 1 || !t->data || !number_at(t->data, t->number, &value))
        return none_of(py);
    if (t->number == BOOL)
        return py->bool_from(value != 0);
    if (t->number == F16 || t->number == F32 || t->number == F64 || t->number == BF16)
        return py->float_from(value);
    int64_t whole = 0; /* a double has fewer digits */
    memcpy(&whole, t->data, t->number == I64 || t->number == U64 ? WORD : 0);
    return t->number == U64   ? py->int_from((unsigned long)whole)
           : t->number == I64 ? py->int64_from(whole)
                              : py->int64_from((long long)value);
}

/* A tensor, or an array of JAX: then also *ret_is_jax. As pb_tensor_read. */
static int read_any(const struct pb_python *py, pb_pyobject *object, struct pb_jax_array *room,
                    struct pb_tensor *ret, int *ret_is_jax)
{
    int r = pb_tensor_read(py, object, ret);

    *ret_is_jax = 0;
    if (r == 0) {
        r = pb_jax_array_read(py, object, room, ret);
        *ret_is_jax = r != 0;
    }
    return r;
}

/* Through the kernel; a thread of the program's opens no file for it. */
static int copy_memory(const struct pb_python *py, const char *data, size_t size, char *to)
{
    const struct iovec piece = {(void *)(uintptr_t)data, size};
    struct pb_own_memory memory;

    ssize_t got = pb_own_memory_begin(&memory, pb_enter_is_inside(py));
    if (got == 0)
        got = pb_own_memory_read_more(&memory, &piece, 1, to);
    pb_own_memory_end(&memory);
    return got == (ssize_t)size;
}

/* tensor_number(object): the value of a tensor with one element; None: it has more, or cannot be read. Read
 * as an operation of torch would read it, so it must be memory that the program may read. */
static pb_pyobject *tensor_number(pb_pyobject *self, pb_pyobject *object)
{
    const struct pb_python *py = pb_python_here();
    struct pb_jax_array room;
    struct pb_tensor t;
    char copy[2 * WORD];
    int is_jax;
    (void)self;

    if (read_any(py, object, &room, &t, &is_jax) <= 0)
        return none_of(py);
    if (is_jax && t.data && t.count == 1) {
        if (!copy_memory(py, t.data, (size_t)t.size, copy))
            return none_of(py);
        t.data = copy;
    }
    return make_number(py, &t);
}

/* tensor(object): None: not a tensor; else [shape, type, device, changes, elements, why, address, bytes of
 * an element, strides, bytes, whether it is an array of JAX]: shape is None where it is laid out in another
 * way, device where it is not known, changes where they are not counted, why where its values can be read,
 * address where not. Reads none of its memory. */
static pb_pyobject *tensor(pb_pyobject *self, pb_pyobject *object)
{
    const struct pb_python *py = pb_python_here();
    struct pb_jax_array room;
    struct pb_tensor t;
    int is_jax;
    (void)self;

    int r = read_any(py, object, &room, &t, &is_jax);
    if (r == 0)
        return none_of(py);
    pb_pyobject *list = py->list_new(0);
    if (add_item(py, list, r > 0 ? list_of(py, t.sizes, t.dims) : none_of(py)) < 0 ||
        add_item(py, list, text_of(py, t.dtype)) < 0 ||
        add_item(py, list, text_of(py, r > 0 && t.device[0] ? t.device : NULL)) < 0 ||
        add_item(py, list, t.version < 0 ? none_of(py) : py->int64_from(t.version)) < 0 ||
        add_item(py, list, py->int64_from(t.count)) < 0 || add_item(py, list, text_of(py, t.why)) < 0 ||
        add_item(py, list, t.data ? py->int_from((unsigned long)(uintptr_t)t.data) : none_of(py)) < 0 ||
        add_item(py, list, py->int64_from(t.size)) < 0 ||
        add_item(py, list, list_of(py, t.steps, t.dims)) < 0 ||
        add_item(py, list, py->int64_from(r > 0 ? t.count * t.size : 0)) < 0 ||
        add_item(py, list, py->bool_from(is_jax)) < 0) {
        if (list)
            py->decref(list);
        return NULL;
    }
    return list;
}

/* tensor_range(object): [least, most, how many are no number] of a small tensor; None: it is large, or cannot
 * be read. Its memory is read through the kernel: it may be of a file that has become shorter. */
static pb_pyobject *tensor_range(pb_pyobject *self, pb_pyobject *object)
{
    const struct pb_python *py = pb_python_here();
    static char copy[RANGE_MAX * WORD]; /* with the GIL */
    int64_t place[PB_TENSOR_DIMS] = {0}, offset = 0, nans = 0;
    double least = INFINITY, most = -INFINITY, value;
    struct pb_jax_array room;
    struct pb_tensor t;
    int is_jax;
    (void)self;

    if (py->free_threaded || read_any(py, object, &room, &t, &is_jax) <= 0 || !t.data || t.count > RANGE_MAX)
        return none_of(py);
    const int64_t reach = pb_tensor_reach(&t);
    if (reach < 0 || reach >= RANGE_MAX || (size_t)(reach + 1) * (size_t)t.size > sizeof(copy) ||
        !copy_memory(py, t.data, (size_t)(reach + 1) * (size_t)t.size, copy))
        return none_of(py);
    for (int64_t i = 0; i < t.count; i++) {
        if (!number_at(copy + offset * t.size, t.number, &value))
            return none_of(py);
        nans += value != value;
        least = value < least ? value : least;
        most = value > most ? value : most;
        offset = next_element(&t, t.dims, place, offset);
    }
    pb_pyobject *list = py->list_new(0);
    if (add_item(py, list, py->float_from(least)) < 0 || add_item(py, list, py->float_from(most)) < 0 ||
        add_item(py, list, py->int64_from(nans)) < 0) {
        if (list)
            py->decref(list);
        return NULL;
    }
    return list;
}

/* What another thread of the program may have changed while it had the GIL. */
struct looks {
    const char *data;
    int64_t count, shape[2 * PB_TENSOR_DIMS];
    int dims, number;
};

static void note_looks(const struct pb_tensor *t, struct looks *ret)
{
    size_t size = (size_t)t->dims * sizeof(int64_t);

    memset(ret, 0, sizeof(*ret));
    ret->data = t->data;
    ret->count = t->count;
    ret->dims = t->dims;
    ret->number = t->number;
    memcpy(ret->shape, t->sizes, size);
    memcpy(ret->shape + t->dims, t->steps, size);
}

/* Gives other threads a turn of the GIL. Whether the tensor is still the same afterwards: one of them may
 * have freed its memory (grad.data = ..., resize_), which a reference to the tensor does not keep. */
static int is_same_after_turn(const struct pb_python *py, pb_pyobject *object, struct pb_tensor *t)
{
    struct looks before, after;

    note_looks(t, &before);
    void *state = py->save_thread();
    py->restore_thread(state);
    if (pb_tensor_read(py, object, t) <= 0)
        return 0;
    note_looks(t, &after);
    return memcmp(&before, &after, sizeof(before)) == 0;
}

/* The sum of the squares, or a text that says why there is none. Its memory is read with the GIL only,
 * without which any thread of the program may free it. object: of Python's; NULL: there is none, and no
 * turns. */
static pb_pyobject *give_squares(const struct pb_python *py, pb_pyobject *object, struct pb_tensor *t)
{
    struct element_walk w = {0};
    double sum = 0, unused;

    if (t->count == 0 && t->is_dense)
        return py->float_from(0);
    if (!t->data)
        return text_of(py, t->why);
    if (!number_at(t->data, t->number, &unused))
        return text_of(py, "norms are not taken of its type");
    if (py->free_threaded)
        return text_of(py, "without a GIL its memory may be freed while it is read");
    w.is_dense = is_dense(t);
    for (;;) {
        sum += add_squares(t, &w);
        if (w.done == t->count)
            return py->float_from(sum);
        if (object && !is_same_after_turn(py, object, t))
            return text_of(py, "the program replaced its memory while it was read");
    }
}

/* tensor_squares(object): the sum of the squares of its elements, or a text: why not. */
static pb_pyobject *tensor_squares(pb_pyobject *self, pb_pyobject *object)
{
    const struct pb_python *py = pb_python_here();
    struct pb_tensor t;
    (void)self;

    return pb_tensor_read(py, object, &t) == 0 ? text_of(py, "not a tensor") : give_squares(py, object, &t);
}

/* tensor_gradient(object): its gradient; a number: the sum of its squares, where Python has no object of it;
 * None: it has none; a text: why it is not known. */
static pb_pyobject *tensor_gradient(pb_pyobject *self, pb_pyobject *object)
{
    const struct pb_python *py = pb_python_here();
    struct pb_tensor t, of;
    pb_pyobject *known;
    (void)self;

    if (pb_tensor_read(py, object, &t) == 0 || !t.impl)
        return text_of(py, t.why);
    if (!pb_tensor_grad(&t, &known, &of))
        return none_of(py);
    if (known) {
        py->incref(known);
        return known;
    }
    return give_squares(py, NULL, &of);
}

struct pb_py_method pb_tensor_methods[] = {
    {"tensor", (pb_py_function)tensor, PB_METH_O, NULL},
    {"tensor_number", (pb_py_function)tensor_number, PB_METH_O, NULL},
    {"tensor_range", (pb_py_function)tensor_range, PB_METH_O, NULL},
    {"tensor_squares", (pb_py_function)tensor_squares, PB_METH_O, NULL},
    {"tensor_gradient", (pb_py_function)tensor_gradient, PB_METH_O, NULL},
    {0},
};
