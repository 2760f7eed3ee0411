/* jax_array: see jax_array.h. The layouts are those of jaxlib 0.10 (jaxlib/py_array.h, pjrt/cpu); the object
 * of Python's has had its fields in this order since 0.5. */
#include "control/jax_array.h"

#include <stdio.h>
#include <string.h>

#define WORD       8
#define TEXT_MAX   64
#define MOST_COUNT (INT64_C(1) << 48)

/* Fields of jax::PyArray_Storage, from `aval` on. */
enum { AVAL, WEAK_TYPE, DTYPE, SHAPE, SHAPE_END, SHAPE_ROOM, SHARDING, NUMPY_VALUE, MORE, FIELDS = MORE + 8 };

/* xla::CommonPjRtBufferImpl, xla::CpuRawBuffer, xla::Shape, in bytes. */
enum { BUFFER_SPACE = 88, BUFFER_KEPT = 96, BUFFER_SHAPE = 120 };
enum { RAW_MEMORY = 32 };
enum { SHAPE_SIZES = 8, SHAPE_ORDER = 104, INLINE_SIZES = 6 };

struct reader {
    pb_jax_read_fn *fetch;
    void *context;
    unsigned header; /* of an object of Python */
};

static int read_word(const struct reader *r, uint64_t at, uint64_t *ret)
{
    *ret = 0;
    return at > 4096 && at % WORD == 0 && r->fetch(r->context, at, ret, WORD) == 0;
}

/* 0 also where it cannot be read. */
static uint64_t word_at(const struct reader *r, uint64_t at)
{
    uint64_t word;
    return read_word(r, at, &word) ? word : 0;
}

/* A text of C; the end of its page may be near. "": there is none. */
static void read_text(const struct reader *r, uint64_t at, char text[TEXT_MAX])
{
    memset(text, 0, TEXT_MAX);
    for (size_t n = TEXT_MAX - 1; at > 4096 && n >= 4; n /= 2) {
        if (r->fetch(r->context, at, text, n) == 0)
            return;
        memset(text, 0, TEXT_MAX);
    }
}

/* Of the type of an object of Python's: its name stands after the size of an object that has a size. */
static void type_name(const struct reader *r, uint64_t object, char text[TEXT_MAX])
{
    uint64_t type = word_at(r, object + r->header - WORD);
    read_text(r, type ? word_at(r, type + r->header + WORD) : 0, text);
}

/* Whether it is an object of C++ of that class, as its type information says. */
static int is_class(const struct reader *r, uint64_t object, const char *name)
{
    char text[TEXT_MAX];
    uint64_t table = word_at(r, object), info = table ? word_at(r, table - WORD) : 0;

    read_text(r, info ? word_at(r, info + WORD) : 0, text);
    return strcmp(text, name) == 0;
}

int pb_jax_is_type(const char *name)
{
    const char *last = strrchr(name, '.');
    return strncmp(name, "jaxlib.", 7) == 0 && last && strcmp(last, ".ArrayImpl") == 0;
}

/* --- shape and type ------------------------------------------------------------------------------------- */

/* Types of numpy and ml_dtypes with the bytes of an element. Those of less than eight bits are not known:
 * several share a byte. */
static int size_of_type(const char *name)
{
    static const struct {
        const char *name;
        int size;
    } types[] = {{"bool", 1},     {"int8", 1},    {"int16", 2},   {"int32", 4},     {"int64", 8},
                 {"uint8", 1},    {"uint16", 2},  {"uint32", 4},  {"uint64", 8},    {"float16", 2},
                 {"bfloat16", 2}, {"float32", 4}, {"float64", 8}, {"complex64", 8}, {"complex128", 16}};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].size;
    return strncmp(name, "float8_", 7) == 0 ? 1 : 0;
}

/* An object numpy.dtype has the type of its elements next: numpy.float32, ml_dtypes.bfloat16. */
static int read_dtype(const struct reader *r, uint64_t dtype, struct pb_jax_array *ret)
{
    char text[TEXT_MAX];

    type_name(r, dtype, text);
    if (strncmp(text, "numpy.dtype", 11) != 0)
        return 0;
    uint64_t element = word_at(r, dtype + r->header);
    read_text(r, element ? word_at(r, element + r->header + WORD) : 0, text);
    const char *dot = strrchr(text, '.');
    size_t n = dot ? strlen(dot + 1) : 0;
    if (n && dot[n] == '_') /* numpy.bool_, before 2.0 */
        n--;
    if (!n)
        return 0;
    snprintf(ret->dtype, sizeof(ret->dtype), "%.*s", (int)(n < 23 ? n : 23), dot + 1);
    ret->size = size_of_type(ret->dtype);
    return 1;
}

/* A vector of C++ of its sizes; strides are those of C until another order is known. */
static int read_shape(const struct reader *r, const uint64_t *fields, struct pb_jax_array *ret)
{
    uint64_t begin = fields[SHAPE], bytes = fields[SHAPE_END] - begin;

    if (bytes % WORD || bytes > PB_JAX_DIMS * WORD || fields[SHAPE_ROOM] < fields[SHAPE_END] ||
        (bytes && r->fetch(r->context, begin, ret->sizes, bytes) < 0))
        return 0;
    ret->dims = (int)(bytes / WORD);
    ret->count = 1;
    for (int i = ret->dims; i-- > 0;) {
        ret->steps[i] = ret->count;
        if (ret->sizes[i] < 0 || __builtin_mul_overflow(ret->count, ret->sizes[i], &ret->count) ||
            ret->count > MOST_COUNT)
            return 0;
    }
    return 1;
}

/* Finds `aval`, which follows what Python itself has put into the object, and checks what stands behind
 * it. */
static int read_fields(const struct reader *r, uint64_t object, uint64_t *fields, struct pb_jax_array *ret)
{
    char text[TEXT_MAX];

    for (unsigned at = r->header; at <= r->header + 4 * WORD; at += WORD) {
        if (r->fetch(r->context, object + at, fields, FIELDS * WORD) < 0)
            return 0;
        type_name(r, fields[AVAL], text);
        if (strcmp(text, "ShapedArray") == 0 && read_dtype(r, fields[DTYPE], ret) &&
            read_shape(r, fields, ret))
            return 1;
    }
    return 0;
}

/* --- values --------------------------------------------------------------------------------------------- */

/* A list of absl: its length and one bit that says whether it is elsewhere, then the items or where they
 * are. */
static uint64_t items_of(const struct reader *r, uint64_t list, uint64_t *ret_count)
{
    uint64_t head = word_at(r, list);

    *ret_count = head >> 1;
    return head & 1 ? word_at(r, list + WORD) : list + WORD;
}

static const char unknown[] =
    "not in the CPU's memory, or another version of jaxlib; the program has not fetched them";

static const char deleted[] = "the program deleted it, or gave its memory to a compiled function (donated)";

/* Why an asynchronous value is not there; NULL: it is. The lower bits of its second word are its state. */
static const char *why_not_there(const struct reader *r, uint64_t value)
{
    enum { STATE = 3, CONCRETE = 2, FAILED = 3 };
    uint64_t word;

    if (!read_word(r, value + WORD, &word))
        return unknown;
    if ((word & STATE) == FAILED)
        return "its computation failed";
    return (word & STATE) == CONCRETE ? NULL : "it is still being computed";
}

/* Why its computation, or a copy into it, has not ended well; NULL: it has. Each event has a pointer to
 * functions and one to the value. */
static const char *why_not_computed(const struct reader *r, uint64_t kept)
{
    uint64_t n, head, items = items_of(r, kept + WORD, &n);
    const char *why = NULL;

    if (!read_word(r, kept + WORD, &head) || n > 64)
        return unknown;
    for (uint64_t i = 0; i < n && !why; i++)
        why = why_not_there(r, word_at(r, items + (2 * i + 1) * WORD));
    return why;
}

/* The order of its dimensions in memory, the fastest first. */
static int read_order(const struct reader *r, uint64_t shape, struct pb_jax_array *ret)
{
    uint64_t n, order[INLINE_SIZES], sizes[INLINE_SIZES], seen = 0;
    int64_t step = 1;
    uint64_t at = items_of(r, shape + SHAPE_SIZES, &n), from;

    if (n != (uint64_t)ret->dims || n > INLINE_SIZES)
        return 0;
    from = items_of(r, shape + SHAPE_ORDER, &n);
    if (n != (uint64_t)ret->dims || (n && (r->fetch(r->context, at, sizes, n * WORD) < 0 ||
                                           r->fetch(r->context, from, order, n * WORD) < 0)))
        return 0;
    for (uint64_t i = 0; i < n; i++) {
        if (order[i] >= n || (seen >> order[i] & 1) || sizes[i] != (uint64_t)ret->sizes[i])
            return 0;
        seen |= UINT64_C(1) << order[i];
        ret->steps[order[i]] = step;
        if (__builtin_mul_overflow(step, ret->sizes[order[i]], &step))
            return 0;
    }
    return 1;
}

/* The memory of the CPU that a buffer has, and how many bytes. It is jaxlib's, or of an array of the program
 * that jaxlib uses where it is. */
static uint64_t memory_of(const struct reader *r, uint64_t raw, uint64_t *ret_bytes)
{
    uint64_t value = word_at(r, raw + RAW_MEMORY), memory = value + 8 * WORD;

    if (!is_class(r, raw, "N3xla12CpuRawBufferE") || why_not_there(r, value))
        return 0;
    if (is_class(r, memory, "N3xla20CpuDeviceMemoryOwnedE")) {
        memory = word_at(r, memory + WORD);
        if (!is_class(r, memory, "N3xla12_GLOBAL__N_113AlignedMemoryE"))
            return 0;
    } else if (!is_class(r, memory, "N3xla22CpuDeviceMemoryForeignE")) {
        return 0;
    }
    *ret_bytes = word_at(r, memory + 2 * WORD);
    return word_at(r, memory + WORD);
}

/* "cpu:1", a string of C++ in the device. */
static int name_device(const struct reader *r, uint64_t space, char *ret, size_t size)
{
    uint64_t device = word_at(r, space + 2 * WORD);
    char text[TEXT_MAX];

    if (!is_class(r, space, "N3xla20CpuDeviceMemorySpaceE"))
        return 0;
    read_text(r, is_class(r, device, "N3xla13PjRtCpuDeviceE") ? word_at(r, device + 5 * WORD) : 0, text);
    snprintf(ret, size, "%.*s", 23, strncmp(text, "cpu:", 4) == 0 ? text : "cpu");
    return 1;
}

static const char *find_values(const struct reader *r, uint64_t buffer, struct pb_jax_array *ret)
{
    uint64_t kept, bytes = 0;

    if (!read_word(r, buffer + BUFFER_KEPT, &kept) || !is_class(r, buffer, "N3xla20CommonPjRtBufferImplE") ||
        !name_device(r, word_at(r, buffer + BUFFER_SPACE), ret->device, sizeof(ret->device)))
        return unknown;
    if (!kept)
        return deleted;
    const char *why = why_not_computed(r, kept);
    if (why)
        return why;
    if (ret->count == 0)
        return "it is empty";
    uint64_t data = memory_of(r, word_at(r, kept), &bytes);
    if (!ret->size)
        return "of a type that is not known here";
    if (!data || !read_order(r, word_at(r, buffer + BUFFER_SHAPE), ret) ||
        bytes < (uint64_t)ret->count * (uint64_t)ret->size)
        return unknown;
    ret->data = data;
    return NULL;
}

/* The buffers of an array of IFRT follow its sharding in a list; each has a count of references behind it. */
static const char *find_buffer(const struct reader *r, uint64_t array, struct pb_jax_array *ret)
{
    for (uint64_t at = array + 8 * WORD; at < array + 24 * WORD; at += WORD) {
        uint64_t n, items = items_of(r, at, &n), first = n && n < 65536 ? word_at(r, items) : 0;
        if (first && is_class(r, first, "N3xla20CommonPjRtBufferImplE"))
            return n == 1 ? find_values(r, first, ret) : "its shards are on several devices";
    }
    return unknown;
}

/* The array of numpy that jax keeps once the program has fetched the values. Behind its head: data, number of
 * dimensions, sizes, strides. */
static int find_fetched(const struct reader *r, uint64_t fetched, struct pb_jax_array *ret)
{
    uint64_t fields[4];
    int64_t sizes[PB_JAX_DIMS], strides[PB_JAX_DIMS];
    char text[TEXT_MAX];
    size_t bytes = (size_t)ret->dims * WORD;

    type_name(r, fetched, text);
    if (strcmp(text, "numpy.ndarray") != 0 || !ret->size ||
        r->fetch(r->context, fetched + r->header, fields, sizeof(fields)) < 0 ||
        (uint32_t)fields[1] != (unsigned)ret->dims ||
        (bytes && (r->fetch(r->context, fields[2], sizes, bytes) < 0 ||
                   r->fetch(r->context, fields[3], strides, bytes) < 0)) ||
        memcmp(sizes, ret->sizes, bytes) != 0)
        return 0;
    for (int i = 0; i < ret->dims; i++) {
        if (strides[i] < 0 || strides[i] % ret->size)
            return 0;
        ret->steps[i] = strides[i] / ret->size;
    }
    ret->data = ret->count ? fields[0] : 0;
    return ret->data != 0;
}

/* A deleted array has no array of IFRT between its client and None. */
static int is_deleted(const struct reader *r, const uint64_t *more)
{
    char client[TEXT_MAX], replicated[TEXT_MAX];

    type_name(r, more[1], client);
    type_name(r, more[3], replicated);
    return strcmp(client, "Client") == 0 && !more[2] && strcmp(replicated, "NoneType") == 0;
}

int pb_jax_read(pb_jax_read_fn *fetch, void *context, uint64_t object, unsigned header,
                struct pb_jax_array *ret)
{
    const struct reader r = {.fetch = fetch, .context = context, .header = header};
    uint64_t fields[FIELDS], array = 0;

    *ret = (struct pb_jax_array){.why = unknown};
    if (!read_fields(&r, object, fields, ret))
        return 0;
    for (int i = MORE; i < FIELDS && !array; i++)
        if (is_class(&r, fields[i], "N3xla4ifrt9PjRtArrayE"))
            array = fields[i];
    if (array)
        ret->why = find_buffer(&r, array, ret);
    else if (is_deleted(&r, fields + MORE))
        ret->why = deleted;
    if (!ret->data && ret->count && find_fetched(&r, fields[NUMPY_VALUE], ret))
        ret->why = NULL;
    return 1;
}
