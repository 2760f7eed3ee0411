/* pylayout: the offsets of the few fields of CPython's structures that the agent reads itself, on LP64 Linux;
 * the same on x86-64 and aarch64. Copies from src/remote/python/layouts.inc, which scripts/layouts.py writes
 * from the headers (the agent may not include remote/); tests/lint compares the two. Builds with other
 * structures (debug builds) have no table that fits: gil.c and frames.c compare with the C API first. */
#pragma once

#include <stdint.h>

struct pb_agent_layout {
    int minor; /* of 3.minor */
    uint16_t
        interp_gil; /* 3.12 on: the pointer to the GIL in the interpreter; 0: a function tells the holder */
    uint16_t thread_id;   /* of a thread state: the pthread handle */
    uint16_t on_delete;   /* of a thread state: what PyThreadState_Clear calls, 3.9 to 3.12; 0: nothing */
    uint16_t native_id;   /* of a thread state: the tid; 0: not stored */
    uint16_t top;         /* of a thread state: the innermost frame, or in 3.11 and 3.12 the struct with it */
    uint16_t cframe_top;  /* 3.11 and 3.12: the innermost frame in that struct */
    uint16_t back, code;  /* of a frame */
    uint16_t slots;       /* of a frame: the first of its locals, cells and free variables */
    uint16_t owner;       /* of a frame, from 3.12 on: one byte */
    uint16_t instr;       /* of a frame, from 3.11 on: pointer to the instruction */
    uint16_t flags, file; /* of a code object */
    uint16_t name;        /* of a code object */
    uint16_t qualname;    /* of a code object, from 3.11 on */
    uint16_t adaptive;    /* of a code object, from 3.11 on: the instructions themselves */
    uint16_t names; /* of a code object: tuple of all locals; from 3.11 on of cells and free variables too */
    uint16_t cells, free; /* of a code object, up to 3.10: tuples of names */
    uint16_t kinds;       /* of a code object, 3.11 and 3.12: bytes, one a slot */
};

/* The same in every version without trace refs. */
#define PB_PY_OBJECT_TYPE 8
#define PB_PY_TUPLE_SIZE  16
#define PB_PY_TUPLE_ITEMS 24
#define PB_PY_BYTES_DATA  32
#define PB_PY_CELL_VALUE  16

/* NULL: a version without table. From 3.13 on locals have an API: the fields for those are not known. */
const struct pb_agent_layout *pb_agent_layout_find(int minor);
