/* jax: see jax.h. */
#include "agent/python/jax.h"

#include "agent/core/own_memory.h"
#include "agent/module/module.h"
#include "agent/python/enter.h"

#include <errno.h>
#include <string.h>

static int read_own(void *memory, uint64_t at, void *to, size_t size)
{
    const struct iovec piece = {(void *)(uintptr_t)at, size};

    return pb_own_memory_read_more(memory, &piece, 1, to) == (ssize_t)size ? 0 : -EFAULT;
}

/* A type is alive as long as its object: its name can be read as it is. */
static int is_jax(const struct pb_python *py, pb_pyobject *object)
{
    unsigned header = pb_module_header(py);
    const char *name;

    memcpy(&name, (const char *)pb_type_of(object, header) + header + sizeof(void *), sizeof(name));
    return name && pb_jax_is_type(name);
}

int pb_jax_array_read(const struct pb_python *py, pb_pyobject *object, struct pb_jax_array *room,
                      struct pb_tensor *ret)
{
    struct pb_own_memory memory;

    if (!is_jax(py, object))
        return 0;
    *ret = (struct pb_tensor){.version = -1};
    if (pb_own_memory_begin(&memory, pb_enter_is_inside(py)) < 0) {
        ret->why = "threads of the program do not read it behind a filter of system calls (seccomp)";
        return -1;
    }
    int is_read = pb_jax_read(read_own, &memory, (uint64_t)(uintptr_t)object, pb_module_header(py), room);
    pb_own_memory_end(&memory);
    if (!is_read)
        return 0;
    *ret = (struct pb_tensor){.data = (const char *)(uintptr_t)room->data,
                              .why = room->why,
                              .dtype = room->dtype,
                              .sizes = room->sizes,
                              .steps = room->steps,
                              .count = room->count,
                              .nbytes = room->count * room->size,
                              .dims = room->dims,
                              .number = pb_tensor_type_number(room->dtype),
                              .size = room->size,
                              .version = -1,
                              .is_dense = 1};
    memcpy(ret->device, room->device, sizeof(ret->device));
    return 1;
}
