/* layout: the list of tables, and laying over them what a process tells; see layout.h. */
#include "remote/python/layout.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define COOKIE          "xdebugpy"
#define LARGEST_OFFSET  (1 << 20) /* the interpreter state is some hundred KiB */
#define FREE_KIND_SHIFT 8         /* free-threaded strings count their interning in a byte of its own */

enum { AT_VERSION = 8, AT_FREE_THREADED = 16 };

const struct pb_py_layout *const pb_py_layouts[] = {
    &pb_py_layout_3_6,
    &pb_py_layout_3_7,
    &pb_py_layout_3_8,
    &pb_py_layout_3_9,
    &pb_py_layout_3_10,
    &pb_py_layout_3_11,
    &pb_py_layout_3_12,
    &pb_py_layout_3_13,
    &pb_py_layout_3_14,
    &pb_py_layout_3_15,
    NULL,
};

const struct pb_py_layout *pb_py_layout_find(unsigned version)
{
    for (size_t i = 0; pb_py_layouts[i]; i++)
        if (pb_py_layouts[i]->version == version)
            return pb_py_layouts[i];
    return NULL;
}

const struct pb_py_layout *pb_py_layout_nearest(unsigned version)
{
    const struct pb_py_layout *nearest = pb_py_layouts[0];

    for (size_t i = 0; pb_py_layouts[i] && pb_py_layouts[i]->version <= version; i++)
        nearest = pb_py_layouts[i];
    return nearest;
}

static uint64_t number_at(const uint8_t *told, size_t at)
{
    uint64_t value;
    memcpy(&value, told + at, sizeof(value));
    return value;
}

static const struct pb_py_told *told_by(unsigned version)
{
    return version == 0x030d ? pb_py_told_3_13 : version == 0x030e ? pb_py_told_3_14 : pb_py_told_3_15;
}

int pb_py_layout_told(const uint8_t told[PB_PY_OFFSETS_SIZE], bool force, struct pb_py_layout *ret,
                      uint32_t *ret_version, bool *ret_free_threaded)
{
    if (memcmp(told, COOKIE, strlen(COOKIE)) != 0)
        return -ENOENT;
    uint32_t full = (uint32_t)number_at(told, AT_VERSION);
    unsigned version = full >> 16;
    bool free_threaded = number_at(told, AT_FREE_THREADED) == 1;
    const struct pb_py_layout *table = pb_py_layout_find(version);

    *ret_version = full >> 8;
    if (version < 0x030d || (!table && !force))
        return -ENOTSUP;
    struct pb_py_layout layout = table ? *table : *pb_py_layout_nearest(version);
    for (const struct pb_py_told *t = told_by(layout.version); t->theirs; t++) {
        uint64_t value = number_at(told, t->theirs);
        if (value > LARGEST_OFFSET)
            return -EBADMSG;
        uint32_t offset = (uint32_t)value;
        memcpy((char *)&layout + t->ours, &offset, sizeof(offset));
    }
    if (free_threaded && version >= 0x030e)
        layout.kind_shift = FREE_KIND_SHIFT;
    *ret = layout;
    *ret_free_threaded = free_threaded;
    return 0;
}
