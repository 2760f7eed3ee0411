/* layout: the list of tables, and laying over them what a process tells; see layout.h. */
#include "remote/python/layout.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define LARGEST_OFFSET (1 << 20) /* the interpreter state is some hundred KiB */

enum { AT_VERSION = 8, AT_FREE_THREADED = 16 };

const struct pb_py_layout *const pb_py_layouts[] = {
    &pb_py_layout_3_4,   &pb_py_layout_3_5,   &pb_py_layout_3_6,   &pb_py_layout_3_7,
    &pb_py_layout_3_8,   &pb_py_layout_3_9,   &pb_py_layout_3_10,  &pb_py_layout_3_11,
    &pb_py_layout_3_12,  &pb_py_layout_3_13,  &pb_py_layout_3_14,  &pb_py_layout_3_15,
    &pb_py_layout_3_13t, &pb_py_layout_3_14t, &pb_py_layout_3_15t, NULL,
};

const struct pb_py_layout *pb_py_layout_find(unsigned version, bool free_threaded)
{
    const struct pb_py_layout *nearest = pb_py_layout_nearest(version, free_threaded);
    return nearest && nearest->version == version ? nearest : NULL;
}

const struct pb_py_layout *pb_py_layout_nearest(unsigned version, bool free_threaded)
{
    const struct pb_py_layout *nearest = NULL;

    for (size_t i = 0; pb_py_layouts[i]; i++)
        if (pb_py_layouts[i]->free_threaded == free_threaded &&
            (!nearest || pb_py_layouts[i]->version <= version))
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
                      uint32_t *ret_version)
{
    if (memcmp(told, PB_PY_COOKIE, strlen(PB_PY_COOKIE)) != 0)
        return -ENOENT;
    uint32_t full = (uint32_t)number_at(told, AT_VERSION);
    unsigned version = full >> 16;
    bool free_threaded = number_at(told, AT_FREE_THREADED) == 1;
    const struct pb_py_layout *table = pb_py_layout_nearest(version, free_threaded);

    *ret_version = full >> 8;
    if (version < 0x030d || (table->version != version && !force))
        return -ENOTSUP;
    struct pb_py_layout layout = *table;
    for (const struct pb_py_told *t = told_by(layout.version); t->theirs; t++) {
        uint64_t value = number_at(told, t->theirs);
        if (value > LARGEST_OFFSET)
            return -EBADMSG;
        uint32_t offset = (uint32_t)value;
        memcpy((char *)&layout + t->ours, &offset, sizeof(offset));
    }
    *ret = layout;
    return 0;
}
