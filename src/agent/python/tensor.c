/* tensor: see tensor.h. The layouts are those of torch 2.0 to 2.13 (c10/core/TensorImpl.h, StorageImpl.h).
 *
 * What tells a tensor from anything else: its first word is the table of virtual functions of
 * c10::TensorImpl itself (tensors that are sparse, nested, quantized or inside of torch.func have classes of
 * their own), it refers back to its object of Python's, and its number of elements is the product of its
 * sizes. Numbers of keys and types are asked of functions of torch that only return names. */
#include "agent/python/tensor.h"

#include "agent/core/own_memory.h"
#include "agent/module/module.h"
#include "agent/python/imported.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define WORD         sizeof(uint64_t)
#define IMPL_BYTES   256
#define MOST_COUNT   (INT64_C(1) << 48)
#define VIRTUALS     16 /* bytes in front of the virtual functions in their table */
#define INLINE_SIZES 5

/* Offsets that differ between versions, and addresses in libc10. With the GIL. */
static struct {
    int found;       /* 1 yes, -1 there is no libc10, or one that is not known */
    unsigned impl;   /* in the object of Python's; 0: not known yet */
    unsigned header; /* of each object of torch's: its virtual functions and counts */
    unsigned back;   /* in the tensor: its object of Python's; sizes follow */
    unsigned grad;   /* in what autograd keeps of a tensor: its gradient; 0: not known yet */
    uintptr_t tensor, storage, undefined; /* virtual functions */
    uint64_t allowed;                     /* keys of tensors whose memory has their values */
    uint64_t dense;                       /* the key that each of them has */
    uint64_t python; /* the key of a class that has its own operations in Python, and perhaps sizes */
} at;

static pb_pyobject *tensor_type; /* torch.Tensor; referenced for good */

/* enum c10::ScalarType */
static const struct {
    const char *name;
    int size;
} types[] = {{"uint8", 1},           {"int8", 1},
             {"int16", 2},           {"int32", 4},
             {"int64", 8},           {"float16", 2},
             {"float32", 4},         {"float64", 8},
             {"complex32", 4},       {"complex64", 8},
             {"complex128", 16},     {"bool", 1},
             {"qint8", 1},           {"quint8", 1},
             {"qint32", 4},          {"bfloat16", 2},
             {"quint4x2", 1},        {"quint2x4", 1},
             {"bits1x8", 1},         {"bits2x4", 1},
             {"bits4x2", 1},         {"bits8", 1},
             {"bits16", 2},          {"float8_e5m2", 1},
             {"float8_e4m3fn", 1},   {"float8_e5m2fnuz", 1},
             {"float8_e4m3fnuz", 1}, {"uint16", 2},
             {"uint32", 4},          {"uint64", 8}};
#define TYPES ((int)(sizeof(types) / sizeof(types[0])))

int pb_tensor_type_number(const char *name)
{
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i].name, name) == 0)
            return i;
    return -1;
}

static uint64_t word_at(const char *base, size_t offset)
{
    uint64_t word;
    memcpy(&word, base + offset, sizeof(word));
    return word;
}

static const char *pointer_at(const char *base, size_t offset)
{
    const char *pointer;
    memcpy(&pointer, base + offset, sizeof(pointer));
    return pointer;
}

static int read_checked(const char *from, void *to, size_t size)
{
    const struct iovec piece = {(void *)(uintptr_t)from, size};
    return (uintptr_t)from > 4096 && (uintptr_t)from % WORD == 0 &&
           pb_own_memory_read(&piece, 1, to) == (ssize_t)size;
}

/* --- what libc10 has ------------------------------------------------------------------------------------ */

/* Dispatch keys of tensors whose memory holds their values. With other keys (Conjugate, Negative, ZeroTensor,
 * Python, Functionalize...) an operation computes the values from the memory. */
static int is_allowed(const char *key)
{
    static const char *const keys[] = {"Dense", "ADInplaceOrView", "AutogradOther", "AutogradFunctionality"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(key, keys[i]) == 0)
            return 1;
    return strncmp(key, "Autocast", 8) == 0;
}

/* Keys are a bit each: those of backends first, then the others, both in the order of their numbers. */
static int find_keys(void *library)
{
    void *found[] = {dlsym(library, "_ZN3c108toStringENS_16BackendComponentE"),
                     dlsym(library, "_ZN3c108toStringENS_11DispatchKeyE")};
    const char *(*backend_name)(uint8_t), *(*key_name)(uint16_t);
    unsigned backends = 0;

    if (!found[0] || !found[1])
        return 0;
    memcpy(&backend_name, &found[0], sizeof(found[0]));
    memcpy(&key_name, &found[1], sizeof(found[1]));
    while (backends < 32 && strcmp(backend_name((uint8_t)(backends + 1)), "UNKNOWN_BACKEND_BIT") != 0)
        backends++;
    if (backends == 0 || backends == 32)
        return 0;
    at.allowed = (UINT64_C(1) << backends) - 1;
    for (unsigned key = 1; backends + key - 1 < 64; key++) {
        const char *name = key_name((uint16_t)key);
        if (!name || strcmp(name, "EndOfFunctionalityKeys") == 0)
            break;
        uint64_t bit = UINT64_C(1) << (backends + key - 1);
        if (is_allowed(name))
            at.allowed |= bit;
        if (strcmp(name, "Dense") == 0)
            at.dense = bit;
        else if (strcmp(name, "Python") == 0)
            at.python = bit;
    }
    return at.dense && at.python;
}

static int find_tables(void)
{
    static const char *const names[] = {"_ZTVN3c1010TensorImplE", "_ZTVN3c1011StorageImplE",
                                        "_ZTVN3c1019UndefinedTensorImplE"};
    uintptr_t tables[3];
    int found = 1;

    void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    for (int i = 0; library && i < 3; i++) {
        tables[i] = (uintptr_t)dlsym(library, names[i]);
        found = found && tables[i];
    }
    found = library && found && find_keys(library);
    if (found) {
        at.tensor = tables[0] + VIRTUALS;
        at.storage = tables[1] + VIRTUALS;
        at.undefined = tables[2] + VIRTUALS;
    }
    if (library)
        dlclose(library);
    return found;
}

/* torch.Tensor, out of the dict of the module: a module may have a __getattr__. NULL: torch is not
 * imported. */
static pb_pyobject *find_type(const struct pb_python *py)
{
    unsigned header = pb_module_header(py);
    pb_pyobject *sys = py->dict_get(py->modules_dict(), "sys"),
                *torch = py->dict_get(py->modules_dict(), "torch");

    if (!torch || !sys || pb_type_of(torch, header) != pb_type_of(sys, header))
        return NULL;
    pb_pyobject *names = py->get_attr(torch, "__dict__");
    pb_pyobject *found = names ? py->dict_get(names, "Tensor") : NULL;
    if (found)
        py->incref(found);
    if (names)
        py->decref(names);
    py->err_clear();
    return found;
}

/* Whether it is a tensor, by its type alone. */
static int is_tensor(const struct pb_python *py, pb_pyobject *object)
{
    unsigned header = pb_module_header(py);

    if (!tensor_type) {
        pb_pyobject *found = find_type(py);
        if (!found)
            return 0;
        /* A type, that is: its own type is derived from `type`. */
        if (!py->type_is_subtype(pb_type_of(found, header), pb_type_of(py->object_type, header))) {
            py->decref(found);
            return 0;
        }
        tensor_type = found;
    }
    return py->type_is_subtype(pb_type_of(object, header), tensor_type);
}

/* --- where the fields are ------------------------------------------------------------------------------- */

/* From the end of the sizes on. */
enum {
    OFFSET = WORD + 2 * INLINE_SIZES * WORD,
    COUNT = OFFSET + WORD,
    TYPE = COUNT + WORD,
    KEYS = TYPE + WORD
};

/* Sets where things are by this tensor, if it has a storage. */
static int find_fields(const char *object, unsigned first)
{
    char impl[IMPL_BYTES], word[WORD];

    for (unsigned i = first; i <= first + WORD; i += WORD) {
        const char *here = pointer_at(object, i);
        if (!read_checked(here, impl, sizeof(impl)) || word_at(impl, 0) != at.tensor)
            continue;
        for (unsigned header = 2 * WORD; header <= 3 * WORD; header += WORD)
            for (unsigned back = header + 4 * WORD; back <= header + 5 * WORD; back += WORD) {
                const char *storage = pointer_at(impl, header);
                /* The lowest bit of the reference back is a flag in older versions. */
                if ((word_at(impl, back) & ~UINT64_C(1)) != (uintptr_t)object ||
                    !read_checked(storage, word, WORD) || word_at(word, 0) != at.storage ||
                    !(word_at(impl, back + WORD + KEYS) & at.dense))
                    continue;
                at.impl = i;
                at.header = header;
                at.back = back;
                return 1;
            }
    }
    return 0;
}

void pb_tensor_begin(const struct pb_python *py)
{
    if (at.found)
        return;
    void *state = py->save_thread(); /* the loader's lock may be held by a thread that wants the GIL */
    int found = find_tables();
    py->restore_thread(state);
    at.found = found;
}

static int find_layout(const struct pb_python *py, const char *object)
{
    if (!at.found)
        pb_tensor_begin(py);
    if (!at.found)
        at.found = -1;
    return at.found > 0 && (at.impl || find_fields(object, pb_module_header(py)));
}

/* --- a tensor ------------------------------------------------------------------------------------------- */

static int product_of(const int64_t *sizes, int n, int64_t *ret)
{
    *ret = 1;
    for (int i = 0; i < n; i++)
        if (sizes[i] < 0 || __builtin_mul_overflow(*ret, sizes[i], ret) || *ret > MOST_COUNT)
            return 0;
    return 1;
}

/* enum c10::DeviceType */
static const char *const devices[] = {"cpu",  "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip",
                                      "fpga", "maia", "xla",    "vulkan", "metal",  "xpu",   "mps",
                                      "meta", "hpu",  "ve",     "lazy",   "ipu",    "mtia",  "privateuseone"};
enum { CPU = 0, META = 14, DEVICES = sizeof(devices) / sizeof(devices[0]) };

/* Its kind and number stand behind the storage's pointer. */
static int name_device(const char *storage, char *ret, size_t size)
{
    const signed char *where = (const signed char *)storage + at.header + 3 * WORD;
    const char *kind = where[0] >= 0 && where[0] < DEVICES ? devices[where[0]] : "?";

    if (where[0] == CPU || where[0] == META || where[1] < 0)
        snprintf(ret, size, "%s", kind);
    else
        snprintf(ret, size, "%s:%d", kind, where[1]);
    return where[0];
}

int64_t pb_tensor_reach(const struct pb_tensor *t)
{
    int64_t reach = 0, part;

    for (int i = 0; i < t->dims; i++)
        if (t->steps[i] < 0 || __builtin_mul_overflow(t->sizes[i] - 1, t->steps[i], &part) ||
            __builtin_add_overflow(reach, part, &reach))
            return -1;
    return reach;
}

/* Where its values are, or why they cannot be read. */
static void find_values(struct pb_tensor *t, int device, const char *storage, const char *fields)
{
    int64_t offset = (int64_t)word_at(fields, OFFSET), end;
    uint64_t keys = word_at(fields, KEYS);

    t->nbytes = (int64_t)word_at(storage, at.header + 4 * WORD);
    t->is_dense = (keys & at.dense) && !(keys & ~at.allowed) && device == CPU;
    if (device == META)
        t->why = "it has no memory (meta)";
    else if (device != CPU)
        t->why = "it is on a device, and reading it would wait for that";
    else if (!t->is_dense)
        t->why = "only an operation of torch knows its values (a view that is conjugated or negated, or a "
                 "transformation)";
    else if (t->count == 0)
        t->why = "it is empty";
    else if (!pointer_at(storage, at.header))
        t->why = "it has no memory";
    else if (pb_tensor_reach(t) < 0 || offset < 0 ||
             __builtin_add_overflow(offset, pb_tensor_reach(t) + 1, &end) ||
             __builtin_mul_overflow(end, (int64_t)t->size, &end) || end > t->nbytes)
        t->why = "its memory was freed, or is smaller than the tensor";
    else
        t->data = pointer_at(storage, at.header) + offset * t->size;
}

static const char own_kind[] = "unsupported kind of tensor (sparse, nested, quantized, or inside a "
                               "transformation such as vmap), or an unknown layout of torch";

/* The count of changes of any kind of tensor. */
static int version_of(const char *impl)
{
    const char *counter = pointer_at(impl, at.header + 3 * WORD);
    uint32_t version;

    if (!counter)
        return -1;
    memcpy(&version, counter + at.header, sizeof(version));
    return (int)(version & INT32_MAX);
}

/* A tensor of C++; object: that of Python's, NULL: it need not have one. */
static int read_impl(const char *impl, const char *object, struct pb_tensor *ret)
{
    *ret = (struct pb_tensor){.impl = impl, .version = -1, .why = own_kind};
    if (!impl || (object && (word_at(impl, at.back) & ~UINT64_C(1)) != (uintptr_t)object))
        return -1;
    ret->version = version_of(impl);
    if (word_at(impl, 0) != at.tensor)
        return -1;
    const char *fields = impl + at.back + WORD, *storage = pointer_at(impl, at.header);
    if (word_at(fields, KEYS) & at.python) {
        ret->why = "its class overrides tensor operations, and only these know its values";
        return -1;
    }
    uint64_t dims = word_at(fields, 0);
    uint16_t type;
    int64_t count;

    memcpy(&type, fields + TYPE, sizeof(type));
    if (dims > PB_TENSOR_DIMS || type >= TYPES || !storage || word_at(storage, 0) != at.storage)
        return -1;
    ret->dims = (int)dims;
    ret->sizes =
        (const int64_t *)(const void *)(dims > INLINE_SIZES ? pointer_at(fields, WORD) : fields + WORD);
    ret->steps = ret->sizes + (dims > INLINE_SIZES ? dims : INLINE_SIZES);
    ret->count = (int64_t)word_at(fields, COUNT);
    if (!product_of(ret->sizes, ret->dims, &count) || count != ret->count)
        return -1;
    ret->why = NULL;
    ret->number = type;
    ret->dtype = types[type].name;
    ret->size = types[type].size;
    find_values(ret, name_device(storage, ret->device, sizeof(ret->device)), storage, fields);
    return 1;
}

int pb_tensor_read(const struct pb_python *py, pb_pyobject *object, struct pb_tensor *ret)
{
    *ret = (struct pb_tensor){.version = -1, .why = own_kind};
    if (!is_tensor(py, object))
        return 0;
    if (!find_layout(py, (const char *)object))
        return -1;
    return read_impl(pointer_at((const char *)object, at.impl), (const char *)object, ret);
}

/* --- what autograd keeps -------------------------------------------------------------------------------- */

/* The gradient of a tensor, of C++; NULL: it has none. */
static const char *find_grad(const struct pb_tensor *t)
{
    const char *autograd = pointer_at(t->impl, at.header + WORD);
    char word[WORD], kept[6 * WORD];

    if (!autograd)
        return NULL;
    /* Behind a std::string, of 32 bytes or, in older builds, of 8. */
    for (unsigned offset = 2 * WORD; !at.grad && offset <= 5 * WORD; offset += 3 * WORD)
        if (read_checked(autograd, kept, sizeof(kept)) &&
            read_checked(pointer_at(kept, offset), word, WORD) &&
            (word_at(word, 0) == at.tensor || word_at(word, 0) == at.undefined))
            at.grad = offset;
    const char *grad = at.grad ? pointer_at(autograd, at.grad) : NULL;
    return grad && word_at(grad, 0) != at.undefined ? grad : NULL;
}

int pb_tensor_grad(const struct pb_tensor *t, pb_pyobject **object, struct pb_tensor *ret)
{
    const char *grad = t->impl && word_at(t->impl, 0) == at.tensor ? find_grad(t) : NULL;

    if (!grad)
        return 0;
    /* With the flag, the C++ tensor owns the Python object: a reference to the object does not keep the
     * memory alive. */
    uint64_t known = word_at(grad, at.back);
    int is_kept = read_impl(grad, NULL, ret) > 0 && (known & 1);
    *object = is_kept ? NULL : (pb_pyobject *)(uintptr_t)(known & ~UINT64_C(1));
    return 1;
}

int pb_tensor_is_plain(const struct pb_python *py, pb_pyobject *object)
{
    return is_tensor(py, object) && pb_type_of(object, pb_module_header(py)) == tensor_type;
}

/* The object of Python's has a pointer to the variable, and that begins with the tensor, which is undefined
 * where hooks have packed it. */
int pb_tensor_saved(const struct pb_python *py, pb_pyobject *saved, struct pb_tensor *ret)
{
    unsigned header = pb_module_header(py);
    pb_pyobject *type = pb_imported(py, "torch._C._autograd", "SavedTensor");
    int is_saved = type && pb_type_of(saved, header) == type;
    char word[WORD];

    if (type)
        py->decref(type);
    if (!is_saved || at.found <= 0 || !at.impl)
        return 0;
    const char *variable = pointer_at((const char *)saved, header);
    const char *impl = read_checked(variable, word, WORD) ? pointer_at(word, 0) : NULL;
    if (!read_checked(impl, word, WORD) || word_at(word, 0) != at.tensor)
        return 0;
    return read_impl(impl, NULL, ret);
}
