/* spans: the code in which a thread must not be borrowed, and whether a stopped thread is in it.
 *
 * A thread inside the allocator or the loader holds their locks or has their data half changed; loading a
 * library in it would wait for itself for ever. The code in question: the loader, every object that exports
 * an allocator of its own, and in the C library the allocator, dl*, fork, thread creation, exit. The stack is
 * judged conservatively, by words that point behind a call in such code. Stale words look the same, so a
 * thread that waits in a system call no allocator makes is accepted once it has settled. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_maps;
struct pb_arch_state;

struct pb_span {
    uint64_t start, end;
    bool waits; /* a function that one may wait in without holding anything: pthread_join */
};

struct pb_spans {
    struct pb_span *at;
    size_t n;
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

/* Judges a thread in a ptrace stop whose registers are s. */
enum pb_safety pb_spans_judge(const struct pb_spans *spans, pid_t pid, pid_t tid,
                              const struct pb_arch_state *s);
