/* judge: may this thread be borrowed now? See spans.h for the rule, and for why it is a conservative one. */
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "inject/arch.h"
#include "inject/spans.h"
#include "remote/mem.h"

enum {
    STACK_WORDS = 8192, /* 64 KB: an allocator's or loader's frames are the last few KB */
    NEAR_WORDS = 512,   /* 4 KB: what an allocator calls outside its own code is small */
    LOCK_WORDS = 128,   /* the same for one that waits for a lock: the slow path's own frames are small */
    SIGNALS_DEEP = 4,   /* handlers that interrupted handlers */
};

#ifndef PTRACE_GET_RSEQ_CONFIGURATION
#define PTRACE_GET_RSEQ_CONFIGURATION 0x420f
#endif

struct look {
    const struct pb_spans *spans;
    pid_t pid;
    bool blocked;  /* in a system call that a signal would interrupt */
    size_t near;   /* a hit within so many words counts as certain */
    bool any_word; /* after a signal frame of unknown layout a word needs no call before it */
    enum pb_safety worst;
};

static const struct pb_span *span_of(const struct look *l, uint64_t addr)
{
    for (size_t i = 0; i < l->spans->n; i++) {
        const struct pb_span *s = &l->spans->at[i];
        if (addr >= s->start && addr < s->end)
            return l->blocked && s->waits ? NULL : s;
    }
    return NULL;
}

static bool follows_call(const struct look *l, uint64_t addr)
{
    unsigned char before[16];
    return pb_mem_read(l->pid, addr - sizeof(before), before, sizeof(before)) < 0 || pb_arch_is_call(before);
}

static void worsen(struct look *l, enum pb_safety to)
{
    if (to > l->worst)
        l->worst = to;
}

/* Most words are data: one comparison with the whole extent of the spans disposes of them. */
static void extent(const struct pb_spans *spans, uint64_t *low, uint64_t *high)
{
    *low = UINT64_MAX;
    *high = 0;
    for (size_t i = 0; i < spans->n; i++) {
        if (spans->at[i].start < *low)
            *low = spans->at[i].start;
        if (spans->at[i].end > *high)
            *high = spans->at[i].end;
    }
}

/* Returns the stack pointer of what a signal handler interrupted, where that is another stack; else 0. */
static uint64_t scan(struct look *l, uint64_t sp)
{
    static uint64_t words[STACK_WORDS]; /* 64 KB, too much for a stack; one injection runs at a time */
    uint64_t low, high, elsewhere = 0;
    ssize_t len = pb_mem_read_some(l->pid, sp, words, sizeof(words));
    if (len < 0) {
        worsen(l, PB_UNSAFE);
        return 0;
    }
    size_t n = (size_t)len / sizeof(words[0]);
    extent(l->spans, &low, &high);
    for (size_t i = 0; i < n && l->worst != PB_UNSAFE; i++) {
        uint64_t pc, above;
        if (words[i] == l->spans->restorer) {
            if (!pb_arch_interrupted(words + i, n - i, &pc, &above)) {
                l->any_word = true;
            } else {
                if (span_of(l, pc))
                    worsen(l, PB_UNSAFE);
                if (above < sp || above >= sp + (uint64_t)len)
                    elsewhere = above;
            }
        }
        if (words[i] < low || words[i] >= high || !span_of(l, words[i]))
            continue;
        if (l->any_word || follows_call(l, words[i]))
            worsen(l, i < l->near ? PB_UNSAFE : PB_PERHAPS);
    }
    return elsewhere;
}

/* Inside a restartable sequence the kernel would forget, on the way out of it, that it has to be restarted.
 */
static bool in_rseq(pid_t pid, pid_t tid, uint64_t pc)
{
    struct {
        uint64_t abi;
        uint32_t size, signature, flags, pad;
    } conf = {0};
    struct {
        uint32_t version, flags;
        uint64_t start, len, abort;
    } cs;
    uint64_t at;
    if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, sizeof(conf), &conf) < 0 || !conf.abi)
        return false;
    if (pb_mem_read(pid, conf.abi + 8, &at, sizeof(at)) < 0 || !at ||
        pb_mem_read(pid, at, &cs, sizeof(cs)) < 0)
        return false;
    return pc - cs.start < cs.len;
}

/* Locks of allocators and loaders wait with plain FUTEX_WAIT; condition variables and semaphores of today's
 * glibc with the bitset form, which no lock uses. */
static bool may_be_lock(long nr, uint64_t second)
{
    return nr == SYS_futex && (second & (uint64_t)FUTEX_CMD_MASK) != FUTEX_WAIT_BITSET;
}

enum pb_safety pb_spans_judge(const struct pb_spans *spans, pid_t pid, pid_t tid,
                              const struct pb_arch_state *s)
{
    struct look l = {.spans = spans, .pid = pid};
    long nr = -1;
    uint64_t second = 0, pc = pb_arch_pc(s);

    l.blocked = pb_arch_blocked(pid, s, &nr, &second);
    /* Blocked in anything but a lock, nothing is near: allocators and loaders make no such call. */
    l.near = !l.blocked ? NEAR_WORDS : may_be_lock(nr, second) ? LOCK_WORDS : 0;
    if (span_of(&l, pc) || in_rseq(pid, tid, pc))
        return PB_UNSAFE;
    uint64_t sp = pb_arch_sp(s);
    for (int depth = 0; sp && depth < SIGNALS_DEEP && l.worst != PB_UNSAFE; depth++)
        sp = scan(&l, sp);
    return l.worst;
}
