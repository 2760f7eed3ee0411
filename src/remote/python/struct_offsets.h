/* struct_offsets: the offsets of fields in CPython's structures, per minor version (layouts.inc, written by
 * scripts/layouts.py from the real headers). Offsets in bytes; 0 where a version has no such field (a
 * field at offset 0 is marked "may be 0").
 *
 * From 3.13 on a process stores its own offsets (_Py_DebugOffsets), which replace those of its version's
 * column. They are not trusted: checked when read (struct_offsets.c), and where they are impossible the table
 * alone is tried (find.c). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum pb_py_frames {
    PB_PY_FRAMES_HEAP,   /* up to 3.10: objects on the heap, linked outwards */
    PB_PY_FRAMES_CFRAME, /* 3.11, 3.12: on data stack chunks, the first named by a struct on the C stack */
    PB_PY_FRAMES_TSTATE, /* 3.13 on: the same, named by the thread state */
};

enum pb_py_lines {
    PB_PY_LINES_LNOTAB,    /* 3.6 to 3.9: pairs of deltas, signed lines */
    PB_PY_LINES_LINETABLE, /* 3.10 */
    PB_PY_LINES_LOCATIONS, /* 3.11 on */
    PB_PY_LINES_UNSIGNED,  /* up to 3.5: as LNOTAB, but lines only count upwards */
};

struct pb_py_layout {
    uint16_t version; /* 0x030b: 3.11 */
    bool verified;    /* made from headers of a build that the tests ran against */
    bool free_threaded;
    enum pb_py_frames frames;
    enum pb_py_lines lines;
    bool lasti_units;    /* instructions are counted in units of two bytes */
    bool tagged;         /* object references on frames carry tag bits */
    unsigned kind_shift; /* of the bits in a string's state that tell its kind */
    struct {
        uint32_t interp_head;
        uint32_t current; /* 3.7 to 3.11: the thread state that holds the GIL */
        uint32_t gil;     /* 3.7 to 3.11: the GIL itself */
    } runtime;
    struct {
        uint32_t next; /* may be 0 */
        uint32_t id, tstate_head, modules, sysdict;
        uint32_t gil; /* 3.12 on: pointer to the GIL */
    } interp;
    struct {
        uint32_t holder, locked;
        uint32_t enabled; /* free-threaded: an int that is 0 while the GIL is off; may be 0 */
    } gil;
    struct {
        uint32_t next, interp;
        uint32_t frame; /* the frame, or the cframe */
        uint32_t thread_id, native_id;
        uint32_t chunk, chunk_top;
        uint32_t tasks; /* 3.14 on: list of asyncio's tasks */
    } tstate;
    uint32_t cframe_frame; /* may be 0 */
    struct {
        uint32_t previous, size, top, data; /* previous may be 0 */
    } chunk;
    struct {
        uint32_t back, code; /* code may be 0 */
        uint32_t instr;      /* an index, or a pointer to the instruction */
        uint32_t locals;
        uint32_t is_entry, owner;
        uint32_t stacktop; /* 3.11 to 3.13: slots in use; -1 while it runs */
        uint32_t globals;
        uint32_t valuestack; /* up to 3.10: pointer to the first slot of its stack */
        uint32_t top; /* up to 3.9 and from 3.14 on a pointer past the last slot in use; 3.10: how many are */
        uint32_t iblock, blocks; /* up to 3.10: the open blocks, and from which slot on */
        uint32_t tlbc;           /* free-threaded, 3.14 on: which copy of the code it executes */
    } frame;
    struct {
        uint32_t file, name, qualname, lines, first_line, flags;
        uint32_t argcount, kwonly, nlocals, stacksize;
        uint32_t varnames; /* all fast locals, or from 3.11 on locals, cells and free variables */
        uint32_t kinds;    /* 3.11 on: what each of those is */
        uint32_t cellvars, freevars;
        uint32_t bytes;           /* up to 3.10: pointer to the bytes object */
        uint32_t adaptive;        /* 3.11 on: the code itself */
        uint32_t first_traceable; /* 3.11 on: before this instruction the frame is hidden from Python */
        uint32_t tlbc;            /* free-threaded, 3.14 on: pointer to the threads' copies of the code */
    } code;
    struct {
        uint32_t type, size;
    } object;
    struct {
        uint32_t name, flags, basicsize, itemsize, dictoffset, cached_keys, base;
        uint32_t managed_dict; /* 3.11 on: distance of an object's dictionary before it */
    } type;
    struct {
        uint32_t length, state, ascii_size, compact_size;
    } unicode;
    struct {
        uint32_t size, data;
    } bytes, tuple, list; /* data of a list: pointer to the items */
    struct {
        uint32_t used, keys, values;
    } dict;
    struct {
        uint32_t used, mask, table;
    } set;
    struct {
        uint32_t tag, digits; /* tag up to 3.11: the signed count of digits */
    } integer;
    uint32_t float_value;
    uint32_t cell_value;
    struct {
        uint32_t frame; /* up to 3.10 a pointer to the frame; from 3.11 on the frame itself */
        uint32_t state, code, name, qualname;
    } gen;
    struct {
        uint32_t runtime,
            interp; /* the youngest of three generations: in the runtime (3.7, 3.8), in the interpreter */
        uint32_t size, count; /* of one; 3.6 has them nowhere that a header tells */
    } gc;
    struct { /* 3.12 on: of the allocator of small blocks */
        uint32_t state;
        bool indirect; /* a pointer to it */
        uint32_t arenas, maxarenas;
    } heap;
};

/* All versions, oldest first, then the free-threaded ones; ends with version 0. */
extern const struct pb_py_layout pb_py_layouts[];

/* The table of a minor version, 0x030b. NULL: there is none. */
const struct pb_py_layout *pb_py_layout_find(unsigned version, bool free_threaded);

/* The newest table that is not newer, or the oldest: used by --force for an unknown version. */
const struct pb_py_layout *pb_py_layout_nearest(unsigned version, bool free_threaded);

#define PB_PY_OFFSETS_SIZE 1024       /* of _Py_DebugOffsets, the most that any version has */
#define PB_PY_COOKIE       "xdebugpy" /* what it begins with */

/* A field that a process of these versions stores: its place in our struct, and in _Py_DebugOffsets. */
#define PB_PY_TELLING 3 /* 3.13, 3.14, 3.15 */
struct pb_py_published {
    uint16_t ours, theirs[PB_PY_TELLING];
};
extern const struct pb_py_published pb_py_published[]; /* ends with zeros */

/* Which of theirs a version has. */
unsigned pb_py_published_column(unsigned version);

/* Whether all offsets that a process of its version stores equal those of its table. */
bool pb_py_layout_is_known(const struct pb_py_layout *l);

/* Applies the offsets that a process stores (the bytes at its _PyRuntime) to the table of its version.
 * -ENOENT: it stores none; -ENOTSUP: a version without table (unless force); -EBADMSG: impossible offsets,
 * and err names one. Reading by the result is safe; whether it fits this process is checked later. */
struct pb_err;
int pb_py_layout_published(const uint8_t offsets[PB_PY_OFFSETS_SIZE], bool force, struct pb_py_layout *ret,
                           uint32_t *ret_version, struct pb_err *err);
