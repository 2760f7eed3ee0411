/* reader_impl: shared by the parts of the Python reader; private to src/remote/python/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/time.h"
#include "control/redact.h"
#include "remote/python/python_reader.h"
#include "remote/python/struct_offsets.h"
#include "remote/source.h"

#define CODE_HEAD_MAX   256 /* bytes of a code object that identify it */
#define TSTATE_MAX      512
#define FRAME_MAX       512
#define GUESSES         64 /* threads whose last stack is remembered */
#define GUESS_FRAMES    96
#define GUESS_CHUNK_MAX (16 << 10) /* first guess of a chunk's size: CPython's usual one */
#define CODES_MAX       (1u << 20)
#define NAMES_MAX       (48u << 20) /* bytes of all code objects and their names: a large program has 10 MB */
#define TABLES_MAX      (48u << 20) /* of all their line tables */

/* Distinguishes a known code object from another that took its address. */
struct identity {
    uint64_t name, file, lines, size;
    int first_line;
};

struct code {
    struct pb_py_code pub; /* first: a pb_py_code of ours is a code */
    struct identity id;
    uint8_t *table; /* line table */
    size_t table_len;
    uint32_t flags, argcount, kwonly, nlocals, stacksize;
    uint64_t varnames, kinds, cellvars, freevars;
    bool hidden;      /* its frames are hidden from Python: the one that cleans up after __init__ (3.13 on) */
    uint64_t copies;  /* free-threaded: array of the copies of its instructions */
    uint64_t checked; /* the stack in which it was last compared */
    char *text;       /* what the names point into */
};

/* Where the frames of a thread were the last time, to fetch them all in one call. */
struct guess {
    uint64_t tstate;
    uint64_t cframe;
    uint64_t chunk;
    uint32_t chunk_len;
    uint32_t n;
    uint64_t frames[GUESS_FRAMES]; /* those outside of the chunk */
};

/* Free-threaded: the place of a frame in its thread's own copy of the code. */
struct copy {
    uint64_t instr;
    uint32_t index; /* of the copy; 0: the code itself */
};

struct bytes {
    uint8_t *at;
    size_t cap;
};

/* A limit on the cost of reading a target, whatever its memory holds. Anything beyond it is left out, and
 * pb_py_note says so. */
struct budget {
    size_t names, tables; /* bytes that may still be kept of code objects and names, of line tables */
    uint64_t until;       /* the time to end at, as pb_now_ns; 0: none */
    bool cut;             /* something was left out */
};

/* Takes n bytes from the budget; false: not enough are left. */
static inline bool take_bytes(struct budget *b, size_t *left, size_t n)
{
    bool enough = n <= *left;

    *left -= enough ? n : 0;
    b->cut |= !enough;
    return enough;
}

static inline bool is_late(struct budget *b)
{
    bool late = b->until && pb_now_ns() > b->until;

    b->cut |= late;
    return late;
}

struct pb_py {
    struct pb_source *source;
    struct pb_py_layout layout;
    uint32_t version;
    char note[256]; /* for the user: how it is read; "": nothing */
    struct budget budget;
    uint64_t interp_head; /* address of the pointer to the first interpreter */
    uint64_t runtime_gil; /* 3.7 to 3.11: address of the GIL */
    uint64_t current;     /* address of the pointer to the thread state that has the GIL; 0: not kept there */
    uint64_t code_type;   /* PyCode_Type; 0: not known yet */
    size_t frame_len;     /* bytes of a frame that are read */
    size_t code_len;
    size_t tstate_len;
    struct pb_py_thread *threads;
    size_t nthreads, threads_cap;
    bool threads_made;    /* there were more thread states than there can be threads */
    struct tid_key *tids; /* of the native threads, by their numbers: tids.c */
    int tid_offset;       /* of the tid in a struct pthread, up to 3.10; -1: not known */

    struct code **codes; /* hash table by address */
    size_t codes_cap, ncodes;
    struct code **all; /* every one ever made */
    size_t nall, all_cap;
    uint64_t stack_number;
    char redact[PB_REDACT_SIZE];
    uint64_t *raw;       /* addresses of the codes of the stack that is read */
    struct copy *copies; /* of the same frames */
    size_t raw_cap;

    struct guess *guesses;
    struct bytes chunk, older; /* the newest data stack chunk, and the older one that is walked */
    uint64_t chunk_addr;       /* the contents of chunk, of the last stack */
    size_t chunk_len;
    uint8_t *prefetched; /* GUESS_FRAMES frames */
};

static inline uint64_t u64_at(const void *buf, size_t at)
{
    uint64_t value;
    memcpy(&value, (const uint8_t *)buf + at, sizeof(value));
    return value;
}

static inline uint32_t u32_at(const void *buf, size_t at)
{
    uint32_t value;
    memcpy(&value, (const uint8_t *)buf + at, sizeof(value));
    return value;
}

/* A pointer in the target, without its tag bits. 0 if it is not a pointer. */
static inline uint64_t untag(const struct pb_py *py, uint64_t bits)
{
    return py->layout.tagged ? bits & ~3ull : bits;
}

static inline int read_u64(struct pb_py *py, uint64_t addr, uint64_t *ret)
{
    return pb_source_read(py->source, addr, ret, sizeof(*ret));
}

/* python_reader.c: opens with a known list of interpreters and layout. For tests. */
int pb_py_open_at(struct pb_source *source, const struct pb_py_layout *layout, uint64_t interp_head,
                  struct pb_py **ret);

/* tids.c: prepares for finding the native threads of that list, which must not change until it has been
 * processed. native may be NULL. */
int pb_py_index_tids(struct pb_py *py, const struct pb_native_threads *native);
/* Sets tid and ns_tid if the thread is found. native_id: from the thread state; 0: none. */
void pb_py_find_tid(struct pb_py *py, const struct pb_native_threads *native, uint64_t native_id,
                    struct pb_py_thread *t);

/* find.c: fills version, layout and addresses. */
int pb_py_find(struct pb_py *py, bool force, struct pb_err *err);

/* text.c: a str as UTF-8, cut to size (at a character; *ret_cut then is true, may be NULL). Returns its
 * length. -EBADMSG: there is no string. */
int pb_py_text(struct pb_py *py, uint64_t addr, char *ret, size_t size, bool *ret_cut);
/* The same of an object whose first `have` bytes have been read already. */
int pb_py_text_of(struct pb_py *py, uint64_t addr, const uint8_t *object, size_t have, char *ret, size_t size,
                  bool *ret_cut);

/* stack.c: a word of a frame of the last stack, within the same moment. */
int pb_py_word_of_stack(struct pb_py *py, uint64_t addr, uint64_t *ret);

/* code.c: sets the codes of the frames of one stack, whose addresses are in raw. -EAGAIN: one of them is not
 * a code object. */
int pb_py_codes(struct pb_py *py, const uint64_t *raw, struct pb_py_frame *frames, size_t n);
void pb_py_codes_done(struct pb_py *py);

/* code.c: the place of a frame that executes a copy of its code: bytes into the code. -EAGAIN: not in it. */
int pb_py_at_of_copies(struct pb_py *py, const struct copy *copies, struct pb_py_frame *frames, size_t n);

/* dict.c: an attribute of an instance, from its own dictionary. -ENOENT: it has none of that name. */
int pb_py_attribute(struct pb_py *py, uint64_t object, const char *name, uint64_t *ret);

/* locals.c: how many slots for named variables a frame of that code has, before its stack of operands. */
int pb_py_nlocals(struct pb_py *py, const struct pb_py_code *code, uint64_t *ret);

/* locals.c: the object that a variable of a frame is bound to. -ENOENT: there is none of that name, or it is
 * not bound. */
int pb_py_local(struct pb_py *py, const struct pb_py_frame *f, const char *name, uint64_t *ret);
