/* place: where a target keeps CPython's runtime. Internal.
 *
 * Asked in this order, each time of every object: the dynamic symbols, which are in memory; the sections and
 * symbols of the object's file (a static program exports nothing, a stripped one still has .PyRuntime); and
 * last its variables themselves, searched for what looks like a runtime. */
#pragma once

#include "remote/python/internal.h"

struct pb_maps;

struct place {
    uint64_t runtime;       /* _PyRuntime; 0: before 3.7 */
    uint64_t head;          /* before 3.7: the variable that names the first interpreter; 0: not known */
    uint64_t head_function; /* before 3.7: PyInterpreterState_Head, which returns it; 0: not known */
    uint64_t current;       /* before 3.7: _PyThreadState_Current; 0: not known */
    uint32_t version;       /* 0: not told */
    bool exact;             /* the version is that of the code, not of a file name */
};

/* -ENOENT: no object has such symbols. */
int pb_py_place_by_symbols(struct pb_py *py, const struct pb_maps *maps, struct place *ret);
/* -ENOENT: no file that can be opened says it. */
int pb_py_place_by_files(struct pb_py *py, const struct pb_maps *maps, struct place *ret);
/* scan.c. -ENOENT: nothing there is a runtime that a layout of ours fits. */
int pb_py_place_by_scan(struct pb_py *py, const struct pb_maps *maps, struct place *ret);

/* find.c: reads by this layout from here on. */
void pb_py_take_layout(struct pb_py *py, const struct pb_py_layout *layout, const struct place *p);
/* Whether what is there is an interpreter with a thread that belongs to it. */
bool pb_py_fits(struct pb_py *py);
/* What sys.hexversion says, 0x030b07; 0: nothing, or what cannot be. */
uint32_t pb_py_told_version(struct pb_py *py);
