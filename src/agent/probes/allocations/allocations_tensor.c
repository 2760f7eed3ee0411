/* allocations_tensor: tensors of torch that Python code gets to see, for memory_allocations.
 *
 * Their memory is not Python's, and torch tells nobody of it. But each such tensor has an object of Python's,
 * made through the tp_alloc slot of its class: there we see that one comes into being, and by which line. How
 * large it is can be read once torch has filled it in: when the same thread makes its next tensor. Until then
 * it is `young`, and known to be alive since its block passes through our free when it ends.
 *
 * How large it is, and whether its memory is its own, is read from torch's structures, since a call to torch
 * could be seen by the program (torch.jit.trace, modes of torch functions), and nothing of torch's is made or
 * called to learn where the fields are: the program may just be importing it. torch's classes are known by
 * the addresses of their virtual tables, and the fields by where a tensor of the program's refers to them.
 * A view shares the storage of another tensor, which that storage's count of references tells. But the tensor
 * that is being made may be a view of the one that is looked at: where the count is two, that is decided with
 * the next tensor. The result of an operation whose backward keeps it has two as well; it is no view, which
 * the class of what autograd keeps of it tells. */
#include "agent/core/fork_gate.h"
#include "agent/module/module.h"
#include "agent/probes/allocations/allocations.h"
#include "agent/python/imported.h"
#include "table/clock.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define TYPE_ALLOC    304 /* of a type object, on LP64 with a GIL */
#define SLOT_ALLOC    47
#define FAMILIES      16
#define KEPT_NS       1000000000
#define MOST_HEADER   64 /* bytes of an object's block before the object */
#define MOST_BYTES    (UINT64_C(1) << 50)
#define REFERENCES    8 /* of every object of torch's: how many refer to it, 32 bits */
#define AUTOGRAD      8 /* of a tensor, behind its storage */
#define OBJECT_HEADER 16
#define STORAGE_SIZE  32 /* of a storage, behind the end of its counts */
#define BEFORE_TABLE  16 /* from the symbol of a virtual table to its first function */
#define LAST_ADDRESS  (UINT64_C(1) << 56)

typedef pb_pyobject *(*alloc_function)(pb_pyobject *type, long items);

static alloc_function original; /* NULL: not found */
static pb_pyobject *types[2];   /* Tensor and Parameter, kept for good */
static int are_in, refused;
static int classes_are_known; /* -1: this torch has others */
/* Where things are: the tensor in its object, its storage, the storage's size. 0: not known yet. */
static struct {
    unsigned impl, storage, size;
} at;
/* What the first word of an object of torch's is, by its class. */
static struct {
    uint64_t tensor, storage, no_view; /* no_view: what autograd keeps of a tensor that is no view */
} classes;

/* A tensor that was made, and known to be alive. */
struct young {
    char *object; /* NULL: none */
    void *block;  /* in the filter; NULL: none */
    int64_t when;
    struct pb_alloc_place place;
    uint64_t storage, bytes; /* once it was looked at; an address that is only compared */
    uint32_t references;     /* to the storage */
    int no_view;             /* a gradient is asked of it, and it is no view */
    char device[12];
};

/* Of one thread: the tensor that it made last, and the one before if that may share its memory. */
static struct family {
    unsigned long thread;
    struct young last, shared;
} families[FAMILIES];

static uint64_t word_at(const char *base, unsigned offset)
{
    uint64_t word;
    memcpy(&word, base + offset, sizeof(word));
    return word;
}

static uint32_t references_of(uint64_t object)
{
    uint32_t count;
    memcpy(&count, (const char *)(uintptr_t)object + REFERENCES, sizeof(count));
    return count;
}

/* --- of the program's threads ---------------------------------------------------------------------- */

static struct family *own_family(void)
{
    unsigned long self = (unsigned long)pthread_self();
    struct family *f = &families[self * UINT64_C(0x9e3779b97f4a7c15) >> 60];

    if (f->thread != self && f->last.object) {
        if (pb_clock_mono() - f->last.when < KEPT_NS)
            return NULL; /* another thread's: it is looked at there */
        __atomic_store_n(&f->last.object, NULL, __ATOMIC_RELAXED);
        __atomic_store_n(&f->shared.object, NULL, __ATOMIC_RELAXED);
    }
    f->thread = self;
    return f;
}

static void end_young(struct young *y, const void *block)
{
    if (__atomic_load_n(&y->block, __ATOMIC_RELAXED) == block)
        __atomic_store_n(&y->object, NULL, __ATOMIC_RELAXED);
}

void pb_alloc_tensors_freed(const void *block)
{
    for (int i = 0; i < FAMILIES; i++) {
        end_young(&families[i].last, block);
        end_young(&families[i].shared, block);
    }
}

/* Gives its place back, to be released when everything else is done: that may be the end of a function's
 * code, and run code of the program's. */
static struct pb_alloc_place drop_young(struct young *y)
{
    struct pb_alloc_place place = y->place;

    if (y->block)
        pb_alloc_filter_remove(y->block);
    *y = (struct young){0};
    return place;
}

/* The word at an object of torch's, if it may be a pointer to another. */
static uint64_t pointer_at(uint64_t base, unsigned offset)
{
    uint64_t word = word_at((const char *)(uintptr_t)base, offset);

    return word % 8 == 0 && word >= 4096 && word < LAST_ADDRESS ? word : 0;
}

static int is_a(uint64_t object, uint64_t class)
{
    return object && word_at((const char *)(uintptr_t)object, 0) == class;
}

/* The tensor is behind the object's header, or behind a flag there (older releases). In front of the storage
 * are one or two counts of references, as in the storage in front of where its memory is and how large. */
static void find_fields(const char *object)
{
    unsigned impl = pointer_at((uintptr_t)object, OBJECT_HEADER) ? OBJECT_HEADER : OBJECT_HEADER + 8;
    uint64_t tensor = pointer_at((uintptr_t)object, impl);

    if (!is_a(tensor, classes.tensor))
        return;
    unsigned storage = pointer_at(tensor, 16) ? 16 : 24;
    if (!is_a(pointer_at(tensor, storage), classes.storage))
        return;
    at.impl = impl;
    at.storage = storage;
    __atomic_store_n(&at.size, storage + STORAGE_SIZE, __ATOMIC_RELEASE);
}

/* What torch has filled in. */
static void look_at_young(struct young *y)
{
    if (!at.size)
        find_fields(y->object);
    uint64_t impl = at.size ? pointer_at((uintptr_t)y->object, at.impl) : 0;
    uint64_t storage = is_a(impl, classes.tensor) ? pointer_at(impl, at.storage) : 0;
    if (!is_a(storage, classes.storage))
        return;
    y->storage = storage;
    y->references = references_of(storage);
    y->no_view = is_a(pointer_at(impl, at.storage + AUTOGRAD), classes.no_view);
    uint64_t bytes = word_at((const char *)(uintptr_t)storage, at.size);
    y->bytes = bytes < MOST_BYTES ? bytes : 0;
    /* The device stands before the size: its kind and its number. */
    const signed char *where = (const signed char *)(uintptr_t)storage + at.size - sizeof(uint64_t);
    if (where[0] == 0)
        snprintf(y->device, sizeof(y->device), "cpu");
    else
        snprintf(y->device, sizeof(y->device), where[0] == 1 ? "cuda:%d" : "%d",
                 where[0] == 1 ? where[1] : where[0]);
}

/* Whether its memory is its own, but for the tensor that was made next, where that is known. */
static int is_own(const struct young *y, const struct young *next)
{
    uint32_t references = y->references - (next && next->storage == y->storage);

    return references == 1 || (references == 2 && y->no_view);
}

static void count_young(const struct pb_python *py, const struct young *y)
{
    int64_t left = __atomic_load_n(&pb_allocations.left_other, __ATOMIC_RELAXED) - (int64_t)y->bytes;

    __atomic_store_n(&pb_allocations.left_other, left, __ATOMIC_RELAXED);
    uint64_t weight = left < 0 && y->bytes ? pb_alloc_choose(&pb_allocations.left_other, y->bytes) : 0;
    if (weight)
        pb_alloc_write(py, &y->place,
                       &(struct pb_alloc_row){.kind = "tensor",
                                              .device = y->device,
                                              .bytes = y->bytes,
                                              .weight = weight,
                                              .when = y->when,
                                              .block = y->block});
}

/* The object was allocated; that our functions were called for it tells that they are called for all. */
static void note_tensor(const struct pb_python *py, pb_pyobject *object)
{
    struct family *f = own_family();
    uintptr_t block = (uintptr_t)__atomic_load_n(&pb_allocations.newest, __ATOMIC_RELAXED);
    struct pb_alloc_place place, before[2] = {{0}};

    if (!f)
        return;
    if (block > (uintptr_t)object || (uintptr_t)object - block > MOST_HEADER) {
        __atomic_store_n(&f->last.object, NULL, __ATOMIC_RELAXED);
        __atomic_store_n(&f->shared.object, NULL, __ATOMIC_RELAXED);
        return;
    }
    if (!pb_alloc_place(py, &place))
        return;
    if (f->last.object)
        look_at_young(&f->last);
    else if (f->shared.object) /* which the last one shared, perhaps */
        look_at_young(&f->shared);
    if (f->shared.object && is_own(&f->shared, &f->last))
        count_young(py, &f->shared);
    before[0] = drop_young(&f->shared);
    if (f->last.object && f->last.storage && is_own(&f->last, NULL)) {
        count_young(py, &f->last);
        before[1] = drop_young(&f->last);
    } else if (f->last.object && f->last.storage) {
        f->shared = f->last; /* perhaps with the one that is being made */
    } else {
        before[1] = drop_young(&f->last);
    }
    pb_alloc_filter_add((void *)block);
    f->last = (struct young){
        .object = (char *)object, .block = (void *)block, .when = pb_clock_mono(), .place = place};
    for (int i = 0; i < 2; i++)
        pb_alloc_place_release(py, &before[i]);
}

static pb_pyobject *alloc_tensor(pb_pyobject *type, long items)
{
    const struct pb_python *py = pb_python_here();
    int seen = __atomic_load_n(&pb_allocations.enabled, __ATOMIC_ACQUIRE) &&
               (type == types[0] || type == types[1]) && py;

    if (seen)
        __atomic_store_n(&pb_allocations.newest, NULL, __ATOMIC_RELAXED);
    pb_pyobject *object = original(type, items);
    if (seen && object && __atomic_load_n(&pb_allocations.enabled, __ATOMIC_ACQUIRE))
        note_tensor(py, object);
    return object;
}

/* --- torch's classes -------------------------------------------------------------------------------- */

#define LIBRARY_SIZE 512
static const struct {
    const char *library, *symbol;
    uint64_t *to;
} tables[] = {
    {"/libc10.so", "_ZTVN3c1010TensorImplE", &classes.tensor},
    {"/libc10.so", "_ZTVN3c1011StorageImplE", &classes.storage},
    {"/libtorch_cpu.so", "_ZTVN5torch8autograd12AutogradMetaE", &classes.no_view},
};

struct wanted_library {
    const char *name;
    char path[LIBRARY_SIZE];
};

static int find_library(struct dl_phdr_info *info, size_t size, void *ret)
{
    struct wanted_library *w = ret;
    size_t length = info->dlpi_name ? strlen(info->dlpi_name) : 0, end = strlen(w->name);
    (void)size;

    if (length < end || length >= sizeof(w->path) || strcmp(info->dlpi_name + length - end, w->name) != 0)
        return 0;
    memcpy(w->path, info->dlpi_name, length + 1);
    return 1;
}

static int find_classes(void)
{
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        struct wanted_library w = {.name = tables[i].library};
        void *library =
            pb_fork_gate_each_object(find_library, &w) ? dlopen(w.path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        void *table = library ? dlsym(library, tables[i].symbol) : NULL;
        if (library)
            dlclose(library);
        if (!table)
            return 0;
        *tables[i].to = (uintptr_t)table + BEFORE_TABLE;
    }
    return 1;
}

/* --- in and out ------------------------------------------------------------------------------------- */

static void **slot_of(pb_pyobject *type)
{
    return (void **)(void *)((char *)type + TYPE_ALLOC);
}

static pb_pyobject *imported_class(const struct pb_python *py, const char *module, const char *name)
{
    const unsigned header = pb_module_header(py);
    pb_pyobject *found = pb_imported(py, module, name);

    if (found && !py->type_is_subtype(pb_type_of(found, header), pb_type_of(py->int_type, header))) {
        py->decref(found);
        return NULL;
    }
    return found;
}

/* Both classes have the slot where we look for it, and the same function in it. */
static int find_slots(const struct pb_python *py)
{
    types[0] = types[0] ? types[0] : imported_class(py, "torch", "Tensor");
    types[1] = types[1] ? types[1] : imported_class(py, "torch.nn.parameter", "Parameter");
    if (!types[0] || !types[1])
        return 0;
    void *function = py->type_slot(types[0], SLOT_ALLOC);
    if (!function || function != *slot_of(types[0]) || function != *slot_of(types[1]))
        return -1;
    memcpy(&original, &function, sizeof(function));
    return 1;
}

static int is_torch(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    return info->dlpi_name && strstr(info->dlpi_name, "libtorch_python.so") != NULL;
}

int pb_alloc_is_torch_loaded(void)
{
    if (!pb_fork_gate_each_object(is_torch, NULL))
        return 0;
    if (!__atomic_load_n(&classes_are_known, __ATOMIC_ACQUIRE))
        __atomic_store_n(&classes_are_known, find_classes() ? 1 : -1, __ATOMIC_RELEASE);
    return 1;
}

void pb_alloc_tensors_put(const struct pb_python *py, char *why, size_t why_size)
{
    const int known = __atomic_load_n(&classes_are_known, __ATOMIC_ACQUIRE);

    if (are_in || refused || !known)
        return;
    int found = known < 0 ? -1 : original ? 1 : find_slots(py);
    py->err_clear();
    if (found == 0)
        return; /* it is being imported */
    if (found < 0) {
        __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
        snprintf(why, why_size, "not of tensors: this torch is laid out otherwise");
        return;
    }
    for (int i = 0; i < 2; i++)
        __atomic_store_n(slot_of(types[i]), (void *)alloc_tensor, __ATOMIC_RELEASE);
    __atomic_store_n(&are_in, 1, __ATOMIC_RELAXED);
}

void pb_alloc_tensors_take(const struct pb_python *py)
{
    for (int i = 0; are_in && i < 2; i++)
        if (*slot_of(types[i]) == (void *)alloc_tensor)
            __atomic_store_n(slot_of(types[i]), (void *)original, __ATOMIC_RELEASE);
    __atomic_store_n(&are_in, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < FAMILIES; i++) {
        struct pb_alloc_place places[] = {drop_young(&families[i].last), drop_young(&families[i].shared)};
        for (int k = 0; k < 2; k++)
            pb_alloc_place_release(py, &places[k]);
    }
}

int pb_alloc_tensors_are_in(void)
{
    return __atomic_load_n(&are_in, __ATOMIC_RELAXED) || __atomic_load_n(&refused, __ATOMIC_RELAXED);
}

void pb_alloc_tensors_forget(void)
{
    memset(families, 0, sizeof(families));
}
