/* judge: may this thread be borrowed now, and does it block an injection? See spans.h for the rule.
 *
 * Owned by the search for a thread (find.h), for its duration: unwind tables are read once, if possible
 * before any thread is held. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "inject/spans.h"
#include "remote/maps.h"
#include "remote/native/unwind.h"
#include "remote/source.h"

struct pb_arch_state;
struct pb_procinfo;

enum { PB_JUDGE_FRAMES = 4096 };

struct pb_judge {
    struct pb_source source;
    struct pb_native *native; /* NULL: stacks are judged by their words alone */
    struct pb_capture capture;
    struct pb_native_pc *frames;
    uint64_t *words;    /* of a stack that is read word by word; NULL: out of memory, no thread is safe */
    size_t nframes;     /* of the last pb_judge_asleep */
    pid_t unsafe_tid;   /* the last thread that was inside an allocator or the loader, */
    uint64_t unsafe_pc; /* and its pc */
    struct pb_maps maps;
    bool maps_old;     /* a thread's stack is not among them */
    pid_t strange_tid; /* the last thread on a stack that is not its own */
};

/* Works after a failure too, without unwinding. Not to be moved. */
int pb_judge_open(struct pb_judge *j, pid_t pid);
void pb_judge_done(struct pb_judge *j);

/* For a thread in a ptrace stop whose registers are s. */
enum pb_safety pb_judge_thread(struct pb_judge *j, const struct pb_spans *spans, pid_t pid, pid_t tid,
                               const struct pb_arch_state *s);

/* For a thread that sleeps, without stopping it. PB_UNSAFE: known to be unsafe without a stop; PB_PERHAPS:
 * only a stop will tell. */
enum pb_safety pb_judge_asleep(struct pb_judge *j, const struct pb_spans *spans, pid_t pid, pid_t tid);

/* Whether a sleeping thread has, or waits for, a lock of an allocator or the loader, which an injection
 * needs. False if its stack cannot be followed. */
bool pb_judge_is_in_the_way(struct pb_judge *j, const struct pb_spans *spans, pid_t tid);

/* Whether a system call with this second argument may be the wait for a lock. Locks of allocators and loaders
 * wait with plain FUTEX_WAIT; condition variables and semaphores of today's glibc with the bitset form, which
 * no lock uses. */
bool pb_judge_may_be_lock(long nr, uint64_t second);

/* Whether a thread with this stack pointer is on the stack that the C library or the kernel gave it. A signal
 * frame needs some KB, and only for that stack is the end known: a coroutine's stack may be a few KB of the
 * heap, a handler's (sigaltstack) as small as the program found sufficient. tls: see pb_arch_tls. */
bool pb_judge_on_own_stack(struct pb_judge *j, pid_t tid, uint64_t sp, uint64_t tls);

/* Before a round of checks, while no thread is held: reads mappings that have changed again. */
void pb_judge_refresh(struct pb_judge *j, pid_t pid);

/* For the same sleeping thread: whether the code that made this system call is known to continue with the
 * remaining time after EINTR. */
bool pb_judge_knows_eintr(struct pb_judge *j, const struct pb_procinfo *info, long number);

/* "malloc of libjemalloc.so.2": where the last unsafe thread was. */
void pb_judge_name(struct pb_judge *j, char *buf, size_t size);
