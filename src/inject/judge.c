/* judge: may this thread be borrowed now? See spans.h for the rule.
 *
 * First the stack is unwound by the unwind tables of the mapped objects: then every frame is known, and a
 * thread that sleeps in an allocator with its lock held differs from one whose stack only has stale return
 * addresses. Where the tables do not reach the end (code without them, a cut stack) every word of the stack
 * that could be a return address counts as a frame. */
#include "inject/judge.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "inject/arch.h"
#include "inject/spans.h"
#include "remote/interrupted.h"
#include "remote/mem.h"
#include "remote/procinfo.h"

enum {
    STACK_WORDS = 8192,  /* 64 KB: an allocator's or loader's frames are the last few KB */
    NEAR_WORDS = 512,    /* 4 KB: what an allocator calls outside its own code is small */
    LOCK_WORDS = 128,    /* the same for a thread that waits for a lock: the slow path has small frames */
    SIGNALS_DEEP = 4,    /* handlers that interrupted handlers */
    STACK_MAX = 1 << 20, /* copied while the thread is held: 0.1 us a KB */
};

#ifndef PTRACE_GET_RSEQ_CONFIGURATION
#define PTRACE_GET_RSEQ_CONFIGURATION 0x420f
#endif

struct thread_look {
    const struct pb_spans *spans;
    uint64_t *words; /* STACK_WORDS of them, for the stack */
    pid_t pid;
    bool blocked;  /* in a system call that a signal would interrupt */
    size_t near;   /* a hit within so many words is certain */
    bool any_word; /* after a signal frame of unknown layout a word needs no call before it */
    enum pb_safety worst;
    uint64_t pc; /* the address in question */
};

static const struct pb_span *span_of(const struct thread_look *l, uint64_t addr)
{
    for (size_t i = 0; i < l->spans->n; i++) {
        const struct pb_span *s = &l->spans->at[i];
        if (addr >= s->start && addr < s->end)
            return l->blocked && s->waits ? NULL : s;
    }
    return NULL;
}

/* Whether the bytes before addr end with a call. Near the beginning of a mapping there may be too few of
 * them; at its very beginning no call can end (a word of the auxiliary vector is such an address). Code that
 * cannot be read may have a call anywhere. */
static bool follows_call(const struct thread_look *l, uint64_t addr)
{
    unsigned char before[16] = {0};
    for (size_t len = sizeof(before); len >= 2; len /= 2)
        if (pb_mem_read(l->pid, addr - len, before + sizeof(before) - len, len) == 0)
            return pb_arch_is_call(before);
    return pb_mem_read(l->pid, addr, before, 1) < 0;
}

static void worsen(struct thread_look *l, enum pb_safety to, uint64_t pc)
{
    if (to <= l->worst)
        return;
    l->worst = to;
    l->pc = pc;
}

/* Most words are data: a comparison with the whole extent of the spans excludes them. */
static void find_extent(const struct pb_spans *spans, uint64_t *low, uint64_t *high)
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

/* Returns the stack pointer that a signal handler interrupted, if that is another stack; else 0. */
static uint64_t scan_stack(struct thread_look *l, uint64_t sp)
{
    uint64_t low, high, elsewhere = 0, *words = l->words;
    ssize_t len =
        words ? pb_mem_read_some(l->pid, sp, words, STACK_WORDS * sizeof(words[0])) : (ssize_t)-ENOMEM;
    if (len < 0) {
        worsen(l, PB_UNSAFE, 0);
        return 0;
    }
    size_t n = (size_t)len / sizeof(words[0]);
    find_extent(l->spans, &low, &high);
    for (size_t i = 0; i < n && l->worst != PB_UNSAFE; i++) {
        uint64_t pc, above;
        if (words[i] == l->spans->restorer) {
            if (!pb_arch_interrupted(words + i, n - i, &pc, &above)) {
                l->any_word = true;
            } else {
                if (span_of(l, pc))
                    worsen(l, PB_UNSAFE, pc);
                if (above < sp || above >= sp + (uint64_t)len)
                    elsewhere = above;
            }
        }
        uint64_t to = pb_arch_code_address(words[i]);
        const struct pb_span *span = to < low || to >= high ? NULL : span_of(l, to);
        if (!span || !(l->any_word || follows_call(l, to)))
            continue;
        /* A foreign allocator may wait for anything with its lock held: its words are never taken for
         * stale. */
        worsen(l, span->foreign || i < l->near ? PB_UNSAFE : PB_PERHAPS, to);
    }
    return elsewhere;
}

/* Inside a restartable sequence the kernel would forget to restart it. */
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

bool pb_judge_may_be_lock(long nr, uint64_t second)
{
    return nr == SYS_futex && (second & (uint64_t)FUTEX_CMD_MASK) != FUTEX_WAIT_BITSET;
}

static void begin_look(struct thread_look *l, const struct pb_arch_state *s)
{
    long nr = -1;
    uint64_t second = 0;
    l->blocked = pb_arch_blocked(l->pid, s, &nr, &second);
    /* Blocked in anything but a lock: the C library's allocator makes no such call, so no word is near. */
    l->near = !l->blocked ? NEAR_WORDS : pb_judge_may_be_lock(nr, second) ? LOCK_WORDS : 0;
}

/* Checks that need no stack. A function called by the allocator may have neither tables nor a frame (the C
 * library's atomic operations on aarch64): then only the link register shows the allocator. */
static void judge_registers(struct thread_look *l, pid_t tid, const struct pb_arch_state *s)
{
    uint64_t pc = pb_arch_pc(s), link = pb_arch_link(s);
    if (!pb_arch_can_be_borrowed(s) || span_of(l, pc) || in_rseq(l->pid, tid, pc))
        worsen(l, PB_UNSAFE, pc);
    else if (link && span_of(l, link))
        worsen(l, PB_UNSAFE, link);
}

static void scan_all(struct thread_look *l, const struct pb_arch_state *s)
{
    uint64_t sp = pb_arch_sp(s);
    for (int depth = 0; sp && depth < SIGNALS_DEEP && l->worst != PB_UNSAFE; depth++)
        sp = scan_stack(l, sp);
}

/* A return address may belong to the next function, after a call that does not return. */
static uint64_t address_in_caller(const struct pb_native_pc *frame)
{
    return frame->flags & PB_NATIVE_EXACT ? frame->pc : frame->pc - 1;
}

static bool is_in_libc(const struct pb_spans *s, uint64_t addr)
{
    for (size_t i = 0; i < sizeof(s->libc) / sizeof(s->libc[0]); i++)
        if (addr >= s->libc[i].start && addr < s->libc[i].end)
            return true;
    return false;
}

/* Whether all frames are the C library's: the thread starts or ends, see spans.h. */
static bool is_libc_alone(const struct pb_spans *s, const struct pb_native_pc *frames, size_t n)
{
    size_t i = 0;
    while (i < n && is_in_libc(s, address_in_caller(&frames[i])))
        i++;
    return n > 0 && i == n;
}

/* True: the tables gave every frame. */
static bool unwind_frames(struct thread_look *l, struct pb_judge *j, pid_t tid)
{
    unsigned flags = 0;
    size_t n = 0;
    for (int round = 0; round < 2; round++) { /* a second time, if a handler runs on another stack */
        if (pb_native_copy(j->native, tid, &j->capture) < 0)
            return false;
        n = pb_native_unwind(j->native, &j->capture, j->frames, PB_JUDGE_FRAMES, &flags);
        if (!j->capture.wanted)
            break;
    }
    for (size_t i = 0; i < n; i++)
        if (span_of(l, address_in_caller(&j->frames[i])))
            worsen(l, PB_UNSAFE, j->frames[i].pc);
    if (flags & (PB_NATIVE_TRUNCATED | PB_NATIVE_BY_FP | PB_NATIVE_BY_SCAN))
        return false;
    if (is_libc_alone(l->spans, j->frames, n))
        worsen(l, PB_UNSAFE, j->frames[0].pc);
    return true;
}

enum pb_safety pb_judge_thread(struct pb_judge *j, const struct pb_spans *spans, pid_t pid, pid_t tid,
                               const struct pb_arch_state *s)
{
    struct thread_look l = {.spans = spans, .words = j->words, .pid = pid, .pc = pb_arch_pc(s)};
    begin_look(&l, s);
    judge_registers(&l, tid, s);
    if (l.worst != PB_UNSAFE && !(j->native && unwind_frames(&l, j, tid)) && l.worst != PB_UNSAFE)
        scan_all(&l, s);
    if (l.worst == PB_UNSAFE) {
        j->unsafe_tid = tid;
        j->unsafe_pc = l.pc;
    }
    return l.worst;
}

/* The first thread of a process has its thread-local variables elsewhere, perhaps next to the heap. Only in a
 * child forked by another thread is its stack made by the C library, with a guard page below. */
static bool is_made_by_libc(const struct pb_judge *j, const struct pb_map *m, bool first)
{
    const struct pb_map *below = m > j->maps.at ? m - 1 : NULL;
    return !first || (below && below->end == m->start && !below->prot);
}

bool pb_judge_on_own_stack(struct pb_judge *j, pid_t tid, uint64_t sp, uint64_t tls)
{
    const struct pb_map *m = pb_maps_find(&j->maps, sp);
    if (m && (strcmp(m->path, "[stack]") == 0 ||
              (tls > sp && tls < m->end && is_made_by_libc(j, m, tid == j->source.pid))))
        return true;
    j->maps_old = true;
    j->strange_tid = tid;
    return false;
}

void pb_judge_refresh(struct pb_judge *j, pid_t pid)
{
    struct pb_maps maps;
    if (!j->maps_old || pb_maps_read(pid, &maps, NULL) < 0)
        return;
    pb_maps_done(&j->maps);
    j->maps = maps;
    j->maps_old = false;
}

int pb_judge_open(struct pb_judge *j, pid_t pid)
{
    const struct pb_native_options options = {.stack_max = STACK_MAX, .no_lines = true};
    *j = (struct pb_judge){.source = pb_source_of(pid), .maps_old = true};
    j->capture.no_guesses = true;
    j->frames = reallocarray(NULL, PB_JUDGE_FRAMES, sizeof(*j->frames));
    j->words = reallocarray(NULL, STACK_WORDS, sizeof(*j->words));
    if (!j->frames || !j->words)
        return -ENOMEM;
    return pb_native_new(&j->source, &options, &j->native, NULL);
}

void pb_judge_done(struct pb_judge *j)
{
    pb_native_free(j->native);
    pb_capture_done(&j->capture);
    free(j->frames);
    free(j->words);
    pb_maps_done(&j->maps);
    pb_source_close(&j->source);
}

enum pb_safety pb_judge_asleep(struct pb_judge *j, const struct pb_spans *spans, pid_t pid, pid_t tid)
{
    struct thread_look l = {.spans = spans, .pid = pid, .blocked = true};
    unsigned flags;
    if (!j->native || pb_native_peek(j->native, tid, &j->capture) < 0)
        return PB_PERHAPS;
    j->nframes = pb_native_unwind(j->native, &j->capture, j->frames, PB_JUDGE_FRAMES, &flags);
    for (size_t i = 0; i < j->nframes; i++) {
        if (!span_of(&l, address_in_caller(&j->frames[i])))
            continue;
        j->unsafe_tid = tid;
        j->unsafe_pc = j->frames[i].pc;
        return PB_UNSAFE;
    }
    return PB_PERHAPS;
}

static bool is_of_a_lock(const struct pb_spans *spans, uint64_t addr, bool *ret_loader)
{
    for (size_t i = 0; i < spans->n; i++) {
        const struct pb_span *s = &spans->at[i];
        if (addr < s->start || addr >= s->end)
            continue;
        *ret_loader = *ret_loader || s->loader;
        if (s->locks)
            return true;
    }
    return false;
}

/* Whether the stack has a word that could be a return into dlopen. */
static bool has_word_of_a_lock(struct pb_judge *j, const struct pb_spans *spans, pid_t pid, uint64_t sp)
{
    struct thread_look l = {.pid = pid};
    bool unused = false;
    ssize_t len = j->words ? pb_mem_read_some(pid, sp, j->words, STACK_WORDS * sizeof(j->words[0])) : 0;
    for (ssize_t i = 0; i < len / (ssize_t)sizeof(j->words[0]); i++) {
        uint64_t to = pb_arch_code_address(j->words[i]);
        if (is_of_a_lock(spans, to, &unused) && follows_call(&l, to))
            return true;
    }
    return false;
}

/* Allocators have threads of their own, which sleep in them and hold nothing: those were called by the C
 * library's start of a thread alone. The frames are exact (pb_judge_open), but not all registers of a
 * sleeping thread are known, and the tables may end in the loader: then the words of the stack are searched
 * for its caller. */
bool pb_judge_is_in_the_way(struct pb_judge *j, const struct pb_spans *spans, pid_t tid)
{
    enum { THREAD_START = 2 };
    unsigned flags = 0;
    bool loader = false;
    struct pb_waiting w;
    if (!j->native || pb_native_peek(j->native, tid, &j->capture) < 0)
        return false;
    size_t n = pb_native_unwind(j->native, &j->capture, j->frames, PB_JUDGE_FRAMES, &flags);
    for (size_t i = n; i-- > 0;) {
        bool of_lock = is_of_a_lock(spans, address_in_caller(&j->frames[i]), &loader);
        if (!of_lock && !loader)
            continue;
        j->unsafe_tid = tid;
        j->unsafe_pc = j->frames[i].pc;
        if (of_lock)
            return n - 1 - i > THREAD_START || flags & PB_NATIVE_TRUNCATED;
        return flags & PB_NATIVE_TRUNCATED && pb_waiting_read(j->source.pid, tid, -1, &w) == 1 &&
               has_word_of_a_lock(j, spans, j->source.pid, w.sp);
    }
    return false;
}

static bool starts_with(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* After EINTR CPython since 3.5 continues each call with the remaining time (PEP 475), and so do libuv and
 * libev in their loops: for them only EINTR keeps the length of the wait. Not sigtimedwait: up to 3.13 at
 * least CPython returns a signal that never came when the time is over after EINTR. */
bool pb_judge_knows_eintr(struct pb_judge *j, const struct pb_procinfo *info, long number)
{
    struct pb_native_frame frame;
    bool epoll = number == SYS_epoll_pwait;
#ifdef SYS_epoll_wait
    epoll = epoll || number == SYS_epoll_wait;
#endif
    if (j->nframes < 2 || !epoll)
        return false;
    const struct pb_native_pc caller = {address_in_caller(&j->frames[1]), 0};
    if (pb_native_describe(j->native, &caller, &frame, 1) != 1 || !frame.module)
        return false;
    const char *slash = strrchr(frame.module, '/'), *base = slash ? slash + 1 : frame.module;
    if (info->python && (starts_with(base, "libpython3") || strcmp(frame.module, info->exe) == 0))
        return true;
    return starts_with(base, "select.cpython-") || starts_with(base, "libuv.so") ||
           starts_with(base, "libev.so") || strstr(frame.module, "/uvloop/loop.cpython-") ||
           strstr(frame.module, "/gevent/libev/corecext.");
}

void pb_judge_name(struct pb_judge *j, char *buf, size_t size)
{
    struct pb_native_frame frame;
    const struct pb_native_pc pc = {j->unsafe_pc, PB_NATIVE_EXACT};
    const char *module = NULL, *function = NULL;
    if (j->native && j->unsafe_pc && pb_native_describe(j->native, &pc, &frame, 1) == 1) {
        module = frame.module ? strrchr(frame.module, '/') : NULL;
        module = module ? module + 1 : frame.module;
        function = frame.function;
    }
    snprintf(buf, size, "%.60s of %.60s", function ? function : "a function",
             module ? module : "its program");
}
