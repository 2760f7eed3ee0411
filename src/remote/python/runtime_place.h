/* runtime_place: where a target keeps CPython's runtime. Internal.
 *
 * Tried in this order, each time for every object: the dynamic symbols, which are in memory; the sections and
 * symbols of the object's file (a static program exports nothing, a stripped one still has .PyRuntime); and
 * last its variables, searched for data that looks like a runtime. */
#pragma once

#include "remote/python/reader_impl.h"

struct pb_maps;

struct place {
    uint64_t runtime;       /* _PyRuntime; 0: before 3.7 */
    uint64_t head;          /* before 3.7: the variable that points to the first interpreter; 0: not known */
    uint64_t head_function; /* before 3.7: PyInterpreterState_Head, which returns it; 0: not known */
    uint64_t current;       /* before 3.7: _PyThreadState_Current; 0: not known */
    uint32_t version;       /* 0: not known */
    bool exact;             /* the version is that of the code, not of a file name */
};

/* Searches the dynamic symbols. -ENOENT: no object has such symbols. */
int pb_py_place_by_symbols(struct pb_py *py, const struct pb_maps *maps, struct place *ret);
/* Searches the files. -ENOENT: no file that can be opened has them. */
int pb_py_place_by_files(struct pb_py *py, const struct pb_maps *maps, struct place *ret);
/* scan.c: searches the variables. -ENOENT: nothing there is a runtime that one of our layouts fits. */
int pb_py_place_by_scan(struct pb_py *py, const struct pb_maps *maps, struct place *ret);

/* find.c: uses this layout from here on. */
void pb_py_take_layout(struct pb_py *py, const struct pb_py_layout *layout, const struct place *p);
/* Whether there is an interpreter with a thread that belongs to it. */
bool pb_py_fits(struct pb_py *py);
/* sys.hexversion, 0x030b07; 0: not found, or impossible. */
uint32_t pb_py_sys_version(struct pb_py *py);
