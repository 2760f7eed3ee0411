/* python_reader: the stacks of a CPython process, read from outside, without its help and without its GIL.
 *
 * pb_py_open finds the runtime, its version and layout once; then threads are listed and stacks read, cheaply
 * and often. A stack of a live thread is correct only if read within a moment (remote/moment.h); pb_py_sample
 * does both. After warming up a sample does not allocate; buffers grow to the deepest stack seen and stay.
 *
 * One pb_py belongs to one thread of ours. Everything a pb_py returns (codes, names) lives until it is
 * closed, unless stated otherwise. Whatever the target's memory holds, every count, size, depth and string
 * here is bounded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "remote/moment.h"

struct pb_err;
struct pb_native_threads;
struct pb_py;
struct pb_source;

#define PB_PY_FRAMES_MAX  16384 /* of one stack: the innermost so many, then it is marked truncated */
#define PB_PY_THREADS_MAX 65536
#define PB_PY_NAME_MAX    128

/* A code object, executed by frames. Two frames of one function have the same pointer. */
struct pb_py_code {
    uint64_t addr;        /* in the target */
    const char *name;     /* UTF-8; control characters as the target has them */
    const char *qualname; /* the same as name before 3.11 */
    const char *file;
    int first_line;
    unsigned id; /* 0, 1, .. in the order they were first seen; never reused */
};

enum pb_py_frame_flags {
    /* The interpreter's C function was entered for this frame: its native frame is between this frame and the
     * next outer one. Frames without this flag share the native frame of the next outer one that has it. */
    PB_PY_ENTRY = 1,
    PB_PY_GENERATOR = 2, /* of a generator or coroutine */
};

struct pb_py_frame {
    const struct pb_py_code *code;
    uint64_t addr; /* of the frame in the target */
    int32_t at;    /* bytes into the code of the instruction it executes; < 0: it has not started */
    unsigned flags;
};

/* Innermost frame first. Caller-owned, reused from call to call: pb_py_stack_done at the end. */
struct pb_py_stack {
    struct pb_py_frame *at;
    size_t n, cap;
    bool truncated; /* there are more frames outwards than PB_PY_FRAMES_MAX, or the chain is broken there */
    enum pb_way way;
    /* The thread state that held the GIL in the same moment; only where known without another read. */
    uint64_t holder;
    bool holder_known;
};
void pb_py_stack_done(struct pb_py_stack *s);

/* A Python thread. tid is 0 if no native thread is known for the thread state. */
struct pb_py_thread {
    uint64_t tstate;
    uint64_t ident;    /* threading.get_ident() */
    int64_t interp;    /* id of its interpreter; 0 is the main one */
    pid_t tid, ns_tid; /* in our pid namespace, in its own */
    bool gil;          /* it held the GIL of its interpreter at the instant of the read */
    /* Where its stack was at that instant, 3.11 on: the guess for the first read. 0: not known. */
    uint64_t cframe, chunk;
    uint32_t chunk_len;
};

/* Opens a source: a process, or a core (then ways are PB_WAY_DEAD). The source must outlive the pb_py. force:
 * use the nearest layout for an unknown version. -ENOENT: no CPython in it (err says so); -ENOTSUP: a version
 * or build that cannot be read. */
int pb_py_open(struct pb_source *source, bool force, struct pb_py **ret, struct pb_err *err);
void pb_py_close(struct pb_py *py);

/* 0x030b07: 3.11.7; the last byte is 0xff where only the minor version is known. */
uint32_t pb_py_version(const struct pb_py *py);
bool pb_py_free_threaded(const struct pb_py *py);
/* False: its layout comes from public headers only, or is that of another version (force). */
bool pb_py_verified(const struct pb_py *py);

/* A remark for a person on how it is read: the process's offsets were not used, or there was more of
 * something than a process can be expected to have and the rest was left out. "": none. */
const char *pb_py_note(const struct pb_py *py);

/* After that time (pb_now_ns; 0: never) reads end early: the rest is left out. */
void pb_py_until(struct pb_py *py, uint64_t time_ns);

/* Lists the Python threads of all interpreters. native: of the same process, to find tids; read it just
 * before. The array belongs to py, until the next call. Returns how many: no more than the native threads
 * allow, since a process may fake any number of thread states. */
int pb_py_threads(struct pb_py *py, const struct pb_native_threads *native, const struct pb_py_thread **ret,
                  struct pb_err *err);

/* Whether a thread holds the GIL of its interpreter now: one short read. */
bool pb_py_holds_gil(struct pb_py *py, const struct pb_py_thread *t);

/* Whether a thread that sleeps in a futex at that address waits for the GIL. False in 3.6, where that is not
 * known. */
bool pb_py_waits_for_gil(struct pb_py *py, const struct pb_py_thread *t, uint64_t futex);

/* Reads the stack of a thread. Correct only within a moment of that thread. A thread that runs no Python code
 * has 0 frames. -EAGAIN: not a valid stack (it moved); -ESRCH: the process or thread is gone. */
int pb_py_stack(struct pb_py *py, const struct pb_py_thread *t, struct pb_py_stack *stack);

/* The same within a moment: tries the ways in order until one proves the reading. -EAGAIN: refused, no
 * allowed way could prove it; else as pb_moment_begin and pb_py_stack. stack->way is the way used. `more`, or
 * NULL, reads other data of that moment (locals, names) before it ends; it is called again whenever a reading
 * was discarded, and its result is returned. */
int pb_py_sample(struct pb_py *py, const struct pb_py_thread *t, struct pb_moment *m, unsigned ways,
                 struct pb_py_stack *stack, int (*more)(void *arg), void *arg);

/* The stack of a thread that runs on that CPU, copied in an interrupt of it (remote/bpf.h): correct without a
 * moment, and without a stop. -EAGAIN: it does not run there; -ENODATA: the copy does not hold all of it
 * (very deep, or between two stores): use another way; -ESRCH. */
struct pb_py_glance;
int pb_py_glance(struct pb_py_glance *g, const struct pb_py_thread *t, int cpu, struct pb_py_stack *stack,
                 bool *ret_gil);

/* py must outlive it. -EPERM: not allowed; other errors: not on this kernel. */
int pb_py_glance_new(struct pb_py *py, struct pb_py_glance **ret);
void pb_py_glance_free(struct pb_py_glance *g);

/* The line of a frame; 0: its instruction has none (code that the compiler added). Cheap: reads nothing. */
int pb_py_line(struct pb_py *py, const struct pb_py_frame *f);

/* The name of a thread as Python knows it ("MainThread", "Thread-1 (worker)"), from its outermost frame,
 * which must be in the stack. UTF-8, cut to size. -ENOENT: it has none (a thread that C code started). */
int pb_py_thread_name(struct pb_py *py, const struct pb_py_thread *t, const struct pb_py_stack *stack,
                      char *ret, size_t size);

/* The words that mark secrets (control/redact.h); until called, those of probing.redact's default. */
void pb_py_redact(struct pb_py *py, const char *words);

/* The arguments and locals of a frame, in one block of memory. */
struct pb_py_locals {
    uint32_t size; /* of the block */
    uint32_t n;
    uint32_t more; /* that are not here */
    char text[];   /* a name, its value, the next name: each ends in a NUL */
};

/* NULL: none, or no memory. The caller frees it. Bounded in depth, items and bytes; values with the name of a
 * secret are left out. Within the frame's moment, like the stack itself. */
struct pb_py_locals *pb_py_locals(struct pb_py *py, const struct pb_py_frame *f);

/* The value behind a name, and the name behind a value. */
static inline const char *pb_py_locals_after(const char *text)
{
    return text + strlen(text) + 1;
}

/* The value of that name; NULL: there is none. */
const char *pb_py_locals_get(const struct pb_py_locals *l, const char *name);

/* "name = value" lines, which the caller frees; NULL: there are none. */
char *pb_py_locals_lines(const struct pb_py_locals *l);

/* A lock (threading.Lock, RLock) on a frame's stack of operands: the frame waits for it, or has entered it by
 * `with` and not left. */
struct pb_py_lock {
    uint64_t addr;
    uint64_t owner; /* ident of the thread that holds it; 0: not held, or a plain Lock */
    uint64_t futex; /* where a thread waits for it; 0: not known (3.14 on) */
    bool recursive, locked;
    bool wanted;  /* a thread waits for it: 3.14 on only */
    bool entered; /* its exit method is there: a `with` is open, or was */
    bool in_use;  /* the slot is in use, or may be */
};

/* The locks of a frame, at most max; within its moment. A slot that is no longer in use may still hold a
 * lock: evidence, not proof. Returns how many. */
int pb_py_frame_locks(struct pb_py *py, const struct pb_py_frame *f, struct pb_py_lock *ret, size_t max);

/* A process group of torch.distributed. */
#define PB_PY_GROUP_RANKS 65536 /* with more ranks they are not read */
struct pb_py_group {
    char name[PB_PY_NAME_MAX];
    int *ranks; /* in the whole job, ascending; the caller frees it; NULL: not known */
    size_t n;
};

/* The group of a frame of torch/distributed/distributed_c10d.py. Within a moment of its thread, which need
 * not be the one in which the frame was read. -ENOENT: it has none; -ESRCH: it is another frame by now;
 * others: it cannot be read. */
int pb_py_process_group(struct pb_py *py, const struct pb_py_frame *f, struct pb_py_group *ret);

/* A task of asyncio: its coroutine and those that it awaits, the innermost first. */
struct pb_py_task {
    uint64_t addr;
    char name[PB_PY_NAME_MAX];
    const struct pb_py_frame *frames; /* none: it has not started, or it is running */
    size_t n;
    bool running;                   /* its frames are on the thread's stack */
    char waits_for[PB_PY_NAME_MAX]; /* awaited by the innermost: a type, a task's name; "": not known */
    uint64_t parent;                /* the task that waits for this one; 0: none is known */
    const uint64_t *gathered;       /* tasks that this one waits for by asyncio.gather */
    size_t ngathered;
};

/* Calls visit for the tasks of the event loop that runs in this thread, at most max. Within the thread's
 * moment, with its stack. Returns how many; 0: no event loop runs there. */
int pb_py_tasks(struct pb_py *py, const struct pb_py_thread *t, const struct pb_py_stack *stack, size_t max,
                int (*visit)(void *arg, const struct pb_py_task *task), void *arg);
