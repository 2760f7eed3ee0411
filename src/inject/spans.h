/* spans: the code in which a thread must not be borrowed, and whether a stopped thread is in it.
 *
 * A thread inside an allocator holds its lock or has its data half changed; starting a thread there
 * allocates, and would wait for that lock for ever. The spans are: the loader, every object that exports an
 * allocator, and in the C library the allocator, dl*, fork, thread creation and exit. The other threads may
 * be anywhere: the borrowed thread only calls pthread_create, which needs the locks of the allocator (held no
 * longer than any malloc waits), of the stacks, and of the TLS lists (dl_load_tls_lock, which dlopen holds
 * while it changes them and not while constructors run; before glibc 2.34 there is none). Only our loading
 * thread waits for a dlopen of the program, and no thread waits for ours. Our own stub is a span too: threads
 * may wait there for a tool that died.
 *
 * Nor is a thread borrowed that runs only code of the C library: it has not reached its start function yet,
 * or has returned from it. A detached thread frees stacks there, under the lock that pthread_create takes, in
 * functions without symbols. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_maps;
struct pb_arch_state;

struct pb_span {
    uint64_t start, end;
    bool waits;   /* a function in which threads wait without holding a lock: pthread_join */
    bool foreign; /* of another allocator than the C library's: it may sleep with its lock held */
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
    PB_PERHAPS, /* a word that is most likely stale: safe if it does not change */
    PB_UNSAFE,
};

/* Finds the spans of a process from its mappings. Owned by the caller. */
int pb_spans_find(pid_t pid, const struct pb_maps *maps, struct pb_spans *ret);
void pb_spans_done(struct pb_spans *s);
