/* tensor: numpy arrays, torch tensors and arrays of JAX by their type, shape, device and data address, not by
 * their contents.
 *
 * Neither library publishes its layout. numpy's has been the same since 1.x. In a torch tensor the pointer
 * back to its Python object is right before the sizes; it is searched for each time, and accepted only if the
 * count of elements is the product of the sizes. */
#include <inttypes.h>
#include <string.h>

#include "base/text.h"
#include "control/jax_array.h"
#include "remote/python/value.h"

#define NDIM_MAX   64 /* of numpy 2; torch has the same */
#define BASES_MAX  16
#define DESCR_LEN  64 /* the head of a free-threaded object takes half of it */
#define DESCR_CHAR 9  /* after the head: type object, kind, then the character of the type */

static void put_shape(struct value_out *o, const int64_t *sizes, uint64_t n)
{
    pb_py_put(o, "(");
    for (uint64_t i = 0; i < n; i++)
        pb_py_putf(o, "%s%" PRId64, i ? ", " : "", sizes[i]);
    pb_py_put(o, n == 1 ? ",)" : ")");
}

static const char *numpy_type(char c)
{
    static const struct {
        char c;
        const char *name;
    } types[] = {{'?', "bool"},       {'b', "int8"},        {'B', "uint8"},      {'h', "int16"},
                 {'H', "uint16"},     {'i', "int32"},       {'I', "uint32"},     {'l', "int64"},
                 {'L', "uint64"},     {'q', "int64"},       {'Q', "uint64"},     {'e', "float16"},
                 {'f', "float32"},    {'d', "float64"},     {'g', "longdouble"}, {'F', "complex64"},
                 {'D', "complex128"}, {'O', "object"},      {'S', "bytes"},      {'U', "str"},
                 {'M', "datetime64"}, {'m', "timedelta64"}, {'V', "void"}};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].c == c)
            return types[i].name;
    return NULL;
}

/* PyArrayObject: data, int nd, dimensions, strides, base, descr. */
static bool put_numpy(struct value_out *o, uint64_t addr)
{
    uint64_t fields[6], object = o->py->layout.object.size;
    int64_t sizes[NDIM_MAX];
    uint8_t descr[DESCR_LEN];

    if (pb_source_read(o->py->source, addr + object, fields, sizeof(fields)) < 0)
        return false;
    uint64_t n = (uint32_t)fields[1];
    if (object + DESCR_CHAR >= sizeof(descr) || n > NDIM_MAX ||
        (n && pb_source_read(o->py->source, fields[2], sizes, n * 8) < 0) ||
        pb_source_read(o->py->source, fields[5], descr, sizeof(descr)) < 0)
        return false;
    const char *type = numpy_type((char)descr[object + DESCR_CHAR]);
    pb_py_putf(o, "array(dtype=%s, shape=", type ? type : "?");
    put_shape(o, sizes, n);
    pb_py_putf(o, ", data=0x%" PRIx64 ")", fields[0]);
    return true;
}

enum { IMPL_LEN = 256, IMPL_SEARCH = 96, INLINE_DIMS = 5 };

/* By the number of its ScalarType; NULL: unknown. */
static const char *torch_type(unsigned type, unsigned *ret_size)
{
    static const char *const names[] = {"uint8",           "int8",
                                        "int16",           "int32",
                                        "int64",           "float16",
                                        "float32",         "float64",
                                        "complex32",       "complex64",
                                        "complex128",      "bool",
                                        "qint8",           "quint8",
                                        "qint32",          "bfloat16",
                                        "quint4x2",        "quint2x4",
                                        "bits1x8",         "bits2x4",
                                        "bits4x2",         "bits8",
                                        "bits16",          "float8_e5m2",
                                        "float8_e4m3fn",   "float8_e5m2fnuz",
                                        "float8_e4m3fnuz", "uint16",
                                        "uint32",          "uint64"};
    static const uint8_t sizes[] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4,
                                    2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1,  1, 2, 4, 8};
    _Static_assert(sizeof(names) / sizeof(names[0]) == sizeof(sizes), "a size for each");

    if (type >= sizeof(sizes))
        return NULL;
    *ret_size = sizes[type];
    return names[type];
}

static const char *torch_device(unsigned type)
{
    static const char *const names[] = {"cpu", "cuda", "mkldnn",       "opengl", "opencl", "ideep",
                                        "hip", "fpga", "maia",         "xla",    "vulkan", "metal",
                                        "xpu", "mps",  "meta",         "hpu",    "ve",     "lazy",
                                        "ipu", "mtia", "privateuseone"};
    return type < sizeof(names) / sizeof(names[0]) ? names[type] : "?";
}

/* Sizes and strides: a count, then both in place up to five, else a pointer to them. */
static bool read_sizes(struct value_out *o, const uint8_t *at, uint64_t n, int64_t *sizes)
{
    if (n > INLINE_DIMS)
        return n <= NDIM_MAX && pb_source_read(o->py->source, u64_at(at, 8), sizes, n * 8) == 0;
    memcpy(sizes, at + 8, n * 8);
    return true;
}

static bool put_impl(struct value_out *o, const uint8_t *impl, size_t sizes_at)
{
    const uint8_t *after = impl + sizes_at + 8 + 2 * INLINE_DIMS * 8;
    uint64_t n = u64_at(impl, sizes_at), data = 0;
    int64_t sizes[NDIM_MAX], product = 1;
    unsigned item = 0;

    if (!read_sizes(o, impl + sizes_at, n, sizes))
        return false;
    for (uint64_t i = 0; i < n; i++)
        if (sizes[i] < 0 || __builtin_mul_overflow(product, sizes[i], &product))
            return false;
    const char *type = torch_type(after[16], &item);
    if ((int64_t)u64_at(after, 8) != product || !type)
        return false;
    uint64_t storage = u64_at(impl, 16);
    if (read_u64(o->py, storage + 16, &data) < 0)
        data = 0;
    pb_py_putf(o, "tensor(dtype=%s, shape=", type);
    put_shape(o, sizes, n);
    int index = after[19] < 128 ? after[19] : -1; /* a signed byte */
    pb_py_putf(o, ", device=%s", torch_device(after[18]));
    if (index >= 0)
        pb_py_putf(o, ":%d", index);
    pb_py_putf(o, ", data=0x%" PRIx64 ")", data ? data + u64_at(after, 0) * item : 0);
    return true;
}

/* The first or second word after the head of the Python object points to the C++ tensor. */
static bool put_torch(struct value_out *o, uint64_t addr)
{
    uint64_t words[2];
    uint8_t impl[IMPL_LEN];

    if (pb_source_read(o->py->source, addr + o->py->layout.object.size, words, sizeof(words)) < 0)
        return false;
    for (int i = 0; i < 2; i++) {
        if (pb_source_read(o->py->source, words[i], impl, sizeof(impl)) < 0)
            continue;
        for (size_t at = 24; at < IMPL_SEARCH; at += 8)
            if (u64_at(impl, at) == addr && put_impl(o, impl, at + 8))
                return true;
    }
    return false;
}

static int read_target(void *source, uint64_t at, void *to, size_t size)
{
    return pb_source_read(source, at, to, size);
}

static bool put_jax(struct value_out *o, uint64_t addr)
{
    struct pb_jax_array a;

    if (!pb_jax_read(read_target, o->py->source, addr, (unsigned)o->py->layout.object.size, &a))
        return false;
    pb_text_clean(a.dtype);
    pb_text_clean(a.device);
    pb_py_putf(o, "jax.Array(dtype=%s, shape=", a.dtype);
    put_shape(o, a.sizes, (uint64_t)a.dims);
    pb_py_putf(o, ", device=%s", a.device[0] ? a.device : "?");
    if (a.data)
        pb_py_putf(o, ", data=0x%" PRIx64, a.data);
    pb_py_put(o, ")");
    return true;
}

/* Whether the object's class or one of its bases has that name. */
static bool derives_from(struct pb_py *py, uint64_t object, const char *name)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t type, at;
    char text[32];
    size_t len = strlen(name) + 1;

    if (len > sizeof(text) || read_u64(py, object + l->object.type, &type) < 0)
        return false;
    for (int i = 0; type && i < BASES_MAX; i++) {
        if (read_u64(py, type + l->type.name, &at) == 0 && pb_source_read(py->source, at, text, len) == 0 &&
            memcmp(text, name, len) == 0)
            return true;
        if (read_u64(py, type + l->type.base, &type) < 0)
            return false;
    }
    return false;
}

bool pb_py_put_array(struct value_out *o, uint64_t addr, const char *type)
{
    if (pb_jax_is_type(type))
        return put_jax(o, addr);
    if (derives_from(o->py, addr, "numpy.ndarray"))
        return put_numpy(o, addr);
    /* It was called _TensorBase up to torch 2.0. */
    return (derives_from(o->py, addr, "torch._C.TensorBase") ||
            derives_from(o->py, addr, "torch._C._TensorBase")) &&
           put_torch(o, addr);
}
