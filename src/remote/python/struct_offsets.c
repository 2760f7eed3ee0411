/* struct_offsets: finding a version, and applying a process's own offsets to them; see struct_offsets.h. */
#include "remote/python/struct_offsets.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "remote/python/reader_impl.h"

enum { AT_VERSION = 8, AT_FREE_THREADED = 16 };

/* The valid range of an offset that a process stores. Any program that can write to the process can change
 * it: an impossible offset is refused here, once, before anything is read by it. */
struct fact {
    const char *name;
    uint16_t ours;    /* the field in our struct */
    uint32_t largest; /* for structures that are copied whole: the copy's size */
    uint8_t size;     /* of the field, and its alignment */
    uint8_t structure;
    bool last; /* the other fields of the structure are before it */
};

enum structure {
    RUNTIME,
    INTERP,
    TSTATE,
    FRAME,
    CODE,
    OBJECT,
    TYPE,
    UNICODE,
    BYTES,
    TUPLE,
    LIST,
    DICT,
    INT,
    FLOAT
};

#define INTERP_LARGEST                                                                                       \
    (1 << 16) /* the interpreter state is larger, but the fields that are read are in its first 8 KiB */
#define OBJECT_LARGEST 64 /* a free-threaded head has 32 bytes */
#define FACT(structure, field, largest, size)                                                                \
    {                                                                                                        \
#field, offsetof(struct pb_py_layout, field), largest, size, structure, false                        \
    }
#define FACT_LAST(structure, field, largest, size)                                                           \
    {                                                                                                        \
#field, offsetof(struct pb_py_layout, field), largest, size, structure, true                         \
    }

static const struct fact facts[] = {
    FACT(RUNTIME, runtime.interp_head, 1 << 16, 8),
    FACT(INTERP, interp.next, INTERP_LARGEST, 8),
    FACT(INTERP, interp.id, INTERP_LARGEST, 8),
    FACT(INTERP, interp.tstate_head, INTERP_LARGEST, 8),
    FACT(INTERP, interp.modules, INTERP_LARGEST, 8),
    FACT(INTERP, interp.sysdict, INTERP_LARGEST, 8),
    FACT(INTERP, interp.gil, INTERP_LARGEST, 8),
    FACT(TSTATE, tstate.next, TSTATE_MAX - 8, 8),
    FACT(TSTATE, tstate.interp, TSTATE_MAX - 8, 8),
    FACT(TSTATE, tstate.frame, TSTATE_MAX - 8, 8),
    FACT(TSTATE, tstate.thread_id, TSTATE_MAX - 8, 8),
    FACT(TSTATE, tstate.native_id, TSTATE_MAX - 8, 8),
    FACT(TSTATE, tstate.chunk, TSTATE_MAX - 8, 8),
    FACT(FRAME, frame.back, FRAME_MAX - 8, 8),
    FACT(FRAME, frame.code, FRAME_MAX - 8, 8),
    FACT(FRAME, frame.instr, FRAME_MAX - 8, 8),
    FACT(FRAME, frame.owner, FRAME_MAX - 8, 1),
    FACT_LAST(FRAME, frame.locals, FRAME_MAX, 8),
    FACT(CODE, code.file, CODE_HEAD_MAX - 8, 8),
    FACT(CODE, code.name, CODE_HEAD_MAX - 8, 8),
    FACT(CODE, code.qualname, CODE_HEAD_MAX - 8, 8),
    FACT(CODE, code.lines, CODE_HEAD_MAX - 8, 8),
    FACT(CODE, code.first_line, CODE_HEAD_MAX - 8, 4),
    FACT(CODE, code.argcount, CODE_HEAD_MAX - 8, 4),
    FACT(CODE, code.varnames, CODE_HEAD_MAX - 8, 8),
    FACT(CODE, code.kinds, CODE_HEAD_MAX - 8, 8),
    FACT_LAST(CODE, code.adaptive, 2 * CODE_HEAD_MAX, 2),
    FACT(OBJECT, object.type, OBJECT_LARGEST - 8, 8),
    FACT_LAST(OBJECT, object.size, OBJECT_LARGEST, 8),
    FACT(TYPE, type.name, 1024, 8),
    FACT(TYPE, type.flags, 1024, 8),
    FACT(UNICODE, unicode.length, 96, 8),
    FACT(UNICODE, unicode.state, 96, 4),
    FACT_LAST(UNICODE, unicode.ascii_size, 104, 8),
    FACT(BYTES, bytes.size, OBJECT_LARGEST, 8),
    FACT_LAST(BYTES, bytes.data, OBJECT_LARGEST + 16, 1),
    FACT(TUPLE, tuple.size, OBJECT_LARGEST, 8),
    FACT_LAST(TUPLE, tuple.data, OBJECT_LARGEST + 16, 8),
    FACT(LIST, list.size, OBJECT_LARGEST, 8),
    FACT(LIST, list.data, OBJECT_LARGEST + 16, 8),
    FACT(DICT, dict.keys, 128, 8),
    FACT(DICT, dict.values, 128, 8),
    FACT(INT, integer.tag, OBJECT_LARGEST, 8),
    FACT_LAST(INT, integer.digits, OBJECT_LARGEST + 16, 4),
    FACT(FLOAT, float_value, OBJECT_LARGEST, 8),
};
#define FACTS (sizeof(facts) / sizeof(facts[0]))

const struct pb_py_layout *pb_py_layout_find(unsigned version, bool free_threaded)
{
    const struct pb_py_layout *nearest = pb_py_layout_nearest(version, free_threaded);
    return nearest && nearest->version == version ? nearest : NULL;
}

const struct pb_py_layout *pb_py_layout_nearest(unsigned version, bool free_threaded)
{
    const struct pb_py_layout *nearest = NULL;

    for (const struct pb_py_layout *l = pb_py_layouts; l->version; l++)
        if (l->free_threaded == free_threaded && (!nearest || l->version <= version))
            nearest = l;
    return nearest;
}

static uint64_t number_at(const uint8_t *offsets, size_t at)
{
    uint64_t value;
    memcpy(&value, offsets + at, sizeof(value));
    return value;
}

unsigned pb_py_published_column(unsigned version)
{
    return version == 0x030d ? 0 : version == 0x030e ? 1 : 2;
}

static const struct fact *fact_of(uint16_t ours)
{
    for (size_t i = 0; i < FACTS; i++)
        if (facts[i].ours == ours)
            return &facts[i];
    return NULL;
}

static uint32_t offset_in(const struct pb_py_layout *l, const struct fact *f)
{
    uint32_t offset;
    memcpy(&offset, (const char *)l + f->ours, sizeof(offset));
    return offset;
}

/* Two fields of one structure must not overlap; the last one comes after the others. */
static bool fields_agree(const struct pb_py_layout *l, const struct fact *a, const struct fact *b)
{
    uint32_t at = offset_in(l, a), other = offset_in(l, b);

    if (a->structure != b->structure || a == b)
        return true;
    return a->last ? other + b->size <= at : b->last || at + a->size <= other || other + b->size <= at;
}

static int check_fields(const struct pb_py_layout *l, struct pb_err *err)
{
    for (const struct pb_py_published *a = pb_py_published; a->theirs[0]; a++)
        for (const struct pb_py_published *b = pb_py_published; b->theirs[0]; b++)
            if (!fields_agree(l, fact_of(a->ours), fact_of(b->ours)))
                return pb_fail(err, -EBADMSG, "its CPython stores impossible offsets: %s and %s overlap",
                               fact_of(a->ours)->name, fact_of(b->ours)->name);
    return 0;
}

bool pb_py_layout_is_known(const struct pb_py_layout *l)
{
    const struct pb_py_layout *table = pb_py_layout_find(l->version, l->free_threaded);

    for (const struct pb_py_published *t = pb_py_published; table && t->theirs[0]; t++)
        if (offset_in(l, fact_of(t->ours)) != offset_in(table, fact_of(t->ours)))
            return false;
    return table;
}

int pb_py_layout_published(const uint8_t offsets[PB_PY_OFFSETS_SIZE], bool force, struct pb_py_layout *ret,
                           uint32_t *ret_version, struct pb_err *err)
{
    if (memcmp(offsets, PB_PY_COOKIE, strlen(PB_PY_COOKIE)) != 0)
        return -ENOENT;
    uint32_t full = (uint32_t)number_at(offsets, AT_VERSION);
    unsigned version = full >> 16;
    bool free_threaded = number_at(offsets, AT_FREE_THREADED) == 1;
    const struct pb_py_layout *table = pb_py_layout_nearest(version, free_threaded);

    *ret_version = full >> 8;
    if (version < 0x030d || (table->version != version && !force))
        return -ENOTSUP;
    struct pb_py_layout layout = *table;
    unsigned column = pb_py_published_column(layout.version);
    for (const struct pb_py_published *t = pb_py_published; t->theirs[0]; t++) {
        uint64_t value = number_at(offsets, t->theirs[column]);
        const struct fact *fact = fact_of(t->ours);
        if (!fact || value > fact->largest || value % fact->size)
            return pb_fail(err, -EBADMSG, "its CPython stores impossible offsets: %s at %" PRIu64,
                           fact ? fact->name : "?", value);
        uint32_t offset = (uint32_t)value;
        memcpy((char *)&layout + t->ours, &offset, sizeof(offset));
    }
    int r = pb_py_layout_is_known(&layout) ? 0 : check_fields(&layout, err);
    if (r == 0)
        *ret = layout;
    return r;
}
