/* stub: our code that runs in the target before the agent, with its arguments and its answer.
 *
 * The borrowed thread runs pb_stub_borrowed: it makes the data behind the code writable, starts one thread
 * (it calls only pthread_create and functions for its attributes) and is given back. Two threads of ours do
 * the rest:
 *   caller   starts the loader thread, waits for it, asks the tool, calls the agent's entry point, unmaps
 *            this memory
 *   loader   takes a descriptor table of its own, makes the memfd there, waits for the tool to fill it,
 *            dlopens
 * Two, because threads started by the entry point inherit the descriptor table of its caller: code that a
 * user evaluates must see the program's descriptors, and the loader must not use any of them. Each leaves our
 * code by a system call instruction of the C library, with a return address outside our memory, so that the
 * memory can be unmapped with no thread in it. When the tool dies, the threads stop waiting for it, clean up
 * and end.
 * If the process has one thread, or is stopped, the borrowed thread loads the library itself (`direct`): no
 * other thread can then hold a lock of the loader, no fork can meet a half-loaded library, and no code of the
 * program runs that could see a descriptor. With `cleaner` it then starts the caller thread only to unmap
 * this memory once the borrowed thread has left it, so that it need not be held for that. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
    PB_STUB_CODE = 4096, /* the parts of the mapping, in this order: code and arguments stay read-only */
    PB_STUB_ARGUMENTS = 8192,
    PB_STUB_ANSWER = 4096,
    PB_STUB_STACK = 65536,
    PB_STUB_MEMORY = PB_STUB_CODE + PB_STUB_ARGUMENTS + PB_STUB_ANSWER + PB_STUB_STACK,
    PB_STUB_OPTIONS = 4096,
    PB_STUB_TEXT = 256,
};

/* The arguments. Read by assembly too: see the static asserts below. */
struct pb_stub {
    uint64_t memory, size;      /* the whole mapping */
    uint64_t answer, data_size; /* struct pb_stub_answer *, where the writable part begins, and its size */
    uint64_t syscall_code;      /* `syscall; ret` in the C library */
    uint64_t restorer;
    uint64_t frame_sp; /* leads the borrowed thread back to itself */
    uint64_t undo_sp;  /* the same by way of munmap(memory, size) */
    uint64_t unblock;  /* a set of signals: the one below */
    uint64_t signal;   /* sent to itself at the end: a tracer sees it, otherwise the program ignores it */
    uint64_t caller_code, loader_code;
    uint64_t errno_location;
    uint64_t pthread_create, attr_init, attr_setdetachstate;
    uint64_t attr_setstacksize; /* 0: leave the default */
    uint64_t get_minstack;      /* 0: not available */
    uint64_t stack_size;
    uint64_t libc_signal; /* a set: the signal with which the C library makes every thread run a function */
    uint64_t dlopen, dlsym, dlclose;
    uint64_t dlerror; /* 0: not available */
    uint64_t entry;   /* not 0: the library is loaded already: only call this */
    uint32_t dlopen_flags;
    uint32_t memfd;    /* 1: make one */
    uint32_t fd_limit; /* descriptors to close if the kernel has no close_range */
    uint32_t direct;   /* 1: load in the borrowed thread */
    uint32_t cleaner;  /* 1: a thread of ours unmaps the memory */
    char symbol[32];   /* of the entry point */
    char name[64];     /* of the memfd */
    char options[PB_STUB_OPTIONS];
};

enum pb_stub_state {
    PB_STUB_NOTHING,
    PB_STUB_READY,   /* waits for the tool's go */
    PB_STUB_LOADING, /* inside dlopen */
    PB_STUB_LOADED,  /* waits for the tool to allow the call: the tool may have died during dlopen */
    PB_STUB_CALLING, /* inside the entry point */
    PB_STUB_DONE,    /* the answer is complete; the tool has a second to read it */
};

struct pb_stub_answer {
    uint64_t left;        /* written by the kernel when the borrowed thread is out of our code */
    uint64_t loader_left; /* the same of the loader thread */
    uint64_t caller_sp, loader_sp;
    uint32_t state; /* enum pb_stub_state */
    int32_t error;  /* errno of the thread that could not be started; 0: both run */
    uint32_t go;    /* by the tool: the memfd is filled, `path` is written; 2: load nothing, end */
    uint32_t call;  /* by the tool: it is still alive, start the agent */
    uint32_t seen;  /* by the tool: it has read the answer */
    int32_t fd;     /* the memfd; a negative errno where there is none */
    int32_t caller_tid, loader_tid;
    uint32_t loaded;   /* 1: dlopen gave a handle */
    uint32_t cleaning; /* 1: a thread unmaps the memory after a direct load */
    uint32_t late;     /* 1: the tool did not say go, or call, in time; nothing was started */
    uint64_t handle, entry;
    uint64_t result; /* of the entry point */
    uint64_t thread;
    uint64_t attributes[16];
    char path[160];          /* by the tool: what dlopen opens */
    char text[PB_STUB_TEXT]; /* dlerror's, where something failed */
};

#define PB_STUB_GIVE_UP 2

_Static_assert(sizeof(struct pb_stub) <= PB_STUB_ARGUMENTS && sizeof(struct pb_stub_answer) <= PB_STUB_ANSWER,
               "they fit into their pages");
_Static_assert(offsetof(struct pb_stub, size) == 8 && offsetof(struct pb_stub, answer) == 16 &&
                   offsetof(struct pb_stub, data_size) == 24 &&
                   offsetof(struct pb_stub, syscall_code) == 32 && offsetof(struct pb_stub, restorer) == 40 &&
                   offsetof(struct pb_stub, undo_sp) == 56 && offsetof(struct pb_stub, unblock) == 64 &&
                   offsetof(struct pb_stub, signal) == 72 &&
                   offsetof(struct pb_stub_answer, loader_left) == 8 &&
                   offsetof(struct pb_stub_answer, caller_sp) == 16 &&
                   offsetof(struct pb_stub_answer, loader_sp) == 24,
               "the offsets in the assembly of arch/stub_*.h");

/* The code, as linked into the tool, copied unchanged. */
extern const unsigned char pb_stub_begin[] __asm__("__start_pb_stub_code")
    __attribute__((visibility("hidden")));
extern const unsigned char pb_stub_end[] __asm__("__stop_pb_stub_code") __attribute__((visibility("hidden")));

/* The entry points, and the code with which a crashed thread of ours ends: with the stack pointer of struct
 * pb_stub_answer and the arguments in the register that the entry points use. */
extern const unsigned char pb_stub_borrowed[], pb_stub_caller[], pb_stub_loader[];
extern const unsigned char pb_stub_caller_end[], pb_stub_loader_end[];
