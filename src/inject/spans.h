/* spans: the code in which a thread must not be borrowed, and whether a stopped thread is in it.
 *
 * A thread inside an allocator holds its lock or has its data half changed; starting a thread from there,
 * which allocates, would wait for itself for ever. The code in question: the loader, every object that
 * exports an allocator of its own, and in the C library the allocator, dl*, fork, thread creation, exit. Of
 * other threads nothing is asked. The borrowed thread only calls pthread_create, which wants the lock of the
 * allocator (held by another for as long as any malloc waits for it), of the stacks, and of the TLS lists
 * (dl_load_tls_lock, which dlopen holds while it changes them and not while constructors run; before
 * glibc 2.34 there is none). What waits for a dlopen of the program's own is the thread of ours that loads,
 * and nobody waits for that. And our own stub, where threads wait for a tool that died.
 *
 * Nor is a thread borrowed that runs code of the C library alone: it has not come to its start function yet,
 * or has returned from it. A detached thread gives stacks back there, under the lock that pthread_create
 * takes, in functions that no symbol names. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_maps;
struct pb_arch_state;

struct pb_span {
    uint64_t start, end;
    bool waits;   /* a function that one may wait in without holding anything: pthread_join */
    bool foreign; /* of an allocator that is not the C library's: it may sleep with its lock held */
    bool loader;  /* of the loader itself, which also runs the constructors of a program that starts */
    bool locks;   /* a thread that sleeps in it has, or waits for, a lock that an injection needs */
};

struct pb_spans {
    struct pb_span *at;
    size_t n;
    struct {
        uint64_t start, end;
    } libc[2]; /* the code of the C library; before glibc 2.34 libpthread is an object of its own. 0: none */
    uint64_t restorer; /* marks signal frames on a stack */
};

enum pb_safety {
    PB_SAFE,
    PB_PERHAPS, /* a word that is most likely stale: safe if it stays so */
    PB_UNSAFE,
};

/* Finds the spans of a process from its mappings. Owned by the caller. */
int pb_spans_find(pid_t pid, const struct pb_maps *maps, struct pb_spans *ret);
void pb_spans_done(struct pb_spans *s);
