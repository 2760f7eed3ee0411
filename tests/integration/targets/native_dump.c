/* native_dump: the native stacks of a process, one line a frame, for tests.
 *
 * usage: native_dump PID [no-stop] [no-lines] [repeat=N]
 * "thread TID STATE ERROR FLAGS NAME", then for each frame, innermost first, separated by tabs:
 * "PC FLAGS FUNCTION OFFSET FILE:LINE MODULE BUILD_ID"; "-" where something is not known. The last line says
 * how long it took. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "remote/native/process_code.h"
#include "remote/native/unwind.h"
#include "remote/source.h"
#include "remote/threads.h"
#include "remote/trace.h"

/* A thread, captured, unwound and described. */
struct stack {
    pid_t tid;
    char name[16];
    char state; /* R S D T t Z X, before it was held */
    int error;  /* negative errno where its stack could not be taken; then nframes is 0 */
    unsigned flags;
    uint64_t held_ns;               /* how long it was held; 0: not at all */
    struct pb_native_frame *frames; /* innermost first */
    size_t nframes;
};

struct stacks {
    struct stack *at;
    size_t n;
};

enum {
    MAX_FRAMES = 32768, /* of one stack */
    TRIES = 10,         /* for a thread that keeps sleeping and waking */
};

static void release_stacks(struct stacks *stacks)
{
    for (size_t i = 0; i < stacks->n; i++)
        free(stacks->at[i].frames);
    free(stacks->at);
}

static int describe_all(struct pb_native *n, const struct pb_native_pc *pcs, size_t count, struct stack *t)
{
    struct pb_native_frame frame[PB_NATIVE_INLINE_MAX];
    size_t room = 0;
    for (size_t i = 0; i < count; i++) {
        size_t k = pb_native_describe(n, &pcs[i], frame, PB_NATIVE_INLINE_MAX);
        if (t->nframes + k > room) {
            room = (t->nframes + k) * 2;
            struct pb_native_frame *more = reallocarray(t->frames, room, sizeof(*more));
            if (!more)
                return -ENOMEM;
            t->frames = more;
        }
        memcpy(t->frames + t->nframes, frame, k * sizeof(frame[0]));
        t->nframes += k;
    }
    return 0;
}

/* A thread in uninterruptible sleep does not stop until it wakes: it is looked at as it sleeps. */
static int capture(struct pb_native *n, const struct stack *t, bool no_stop, struct pb_capture *c)
{
    if (no_stop || t->state == 'D')
        return pb_native_peek(n, t->tid, c);
    pid_t pid = n->source->pid;
    int signal, r = -EINPROGRESS;
    uint64_t began = 0;
    for (int i = 0; i < TRIES && r == -EINPROGRESS; i++) {
        began = pb_now_ns();
        r = pb_trace_stop(pid, t->tid, -1, 100 * PB_NS_PER_MS, &signal);
        /* A stop would make its wait longer: it is read asleep. */
        if (r == -EINPROGRESS && pb_native_peek(n, t->tid, c) == 0)
            return 0;
    }
    if (r < 0)
        return r;
    r = pb_native_copy(n, t->tid, c);
    pb_trace_let_go(pid, t->tid, signal);
    c->held_ns = pb_now_ns() - began;
    return r;
}

/* Program counters of all threads, one after the other. */
struct pile {
    struct pb_native_pc *at;
    size_t n, room;
};

static int add_to_pile(struct pile *pile, const struct pb_native_pc *pcs, size_t n)
{
    if (pile->n + n > pile->room) {
        size_t room = (pile->n + n) * 2;
        struct pb_native_pc *more = reallocarray(pile->at, room, sizeof(*more));
        if (!more)
            return -ENOMEM;
        pile->at = more;
        pile->room = room;
    }
    memcpy(pile->at + pile->n, pcs, n * sizeof(*pcs));
    pile->n += n;
    return 0;
}

/* Its program counters; t->nframes says how many for now. */
static int take(struct pb_native *n, struct stack *t, bool no_stop, struct pb_capture *c,
                struct pb_native_pc *pcs)
{
    for (unsigned round = 0; round < 2; round++) {
        int r = capture(n, t, no_stop, c);
        if (r < 0)
            return r;
        t->held_ns += c->held_ns;
        t->nframes = pb_native_unwind(n, c, pcs, MAX_FRAMES, &t->flags);
        if (!c->wanted)
            break;
    }
    return 0;
}

static int append(struct stacks *stacks, const struct stack *t)
{
    if ((stacks->n & (stacks->n - 1)) == 0) {
        struct stack *more = reallocarray(stacks->at, stacks->n ? stacks->n * 2 : 1, sizeof(*more));
        if (!more)
            return -ENOMEM;
        stacks->at = more;
    }
    stacks->at[stacks->n++] = *t;
    return 0;
}

static int take_all(struct pb_native *n, bool no_stop, const struct pb_native_threads *threads,
                    struct stacks *stacks, struct pile *pile)
{
    _cleanup_(pb_capture_done) struct pb_capture c = {0};
    _cleanup_free_ struct pb_native_pc *pcs = reallocarray(NULL, MAX_FRAMES, sizeof(*pcs));
    if (!pcs)
        return -ENOMEM;
    for (size_t i = 0; i < threads->n; i++) {
        struct stack t = {.tid = threads->at[i].tid, .state = threads->at[i].state};
        memcpy(t.name, threads->at[i].name, sizeof(t.name));
        t.error = take(n, &t, no_stop, &c, pcs);
        if (t.error == -ESRCH)
            continue;
        int r = add_to_pile(pile, pcs, t.nframes);
        if (r == 0)
            r = append(stacks, &t);
        if (r < 0)
            return r;
    }
    return 0;
}

static int describe_stacks(struct pb_native *n, struct stacks *stacks, const struct pile *pile)
{
    const struct pb_native_pc *pcs = pile->at;
    pb_native_prepare(n, pile->at, pile->n);
    for (size_t i = 0; i < stacks->n; i++) {
        size_t count = stacks->at[i].nframes;
        stacks->at[i].nframes = 0;
        int r = describe_all(n, pcs, count, &stacks->at[i]);
        if (r < 0)
            return r;
        pcs += count;
    }
    return 0;
}

static void free_pile(struct pile *pile)
{
    free(pile->at);
}

/* By tid, the main thread first. A thread that ends meanwhile is left out. no_stop: only those that wait in
 * the kernel, by pb_native_peek; the others have the error -EBUSY. */
static int take_stacks(struct pb_source *source, struct pb_native *n, bool no_stop, struct stacks *ret,
                       struct pb_err *err)
{
    _cleanup_(release_stacks) struct stacks stacks = {0};
    _cleanup_(pb_native_threads_done) struct pb_native_threads threads = {0};
    _cleanup_(free_pile) struct pile pile = {0};
    int r = pb_source_threads(source, &threads, err);
    if (r == 0)
        r = take_all(n, no_stop, &threads, &stacks, &pile);
    if (r == 0)
        r = describe_stacks(n, &stacks, &pile);
    if (r < 0)
        return r;
    if (stacks.n == 0)
        return pb_fail(err, -ESRCH, "the process is gone");
    *ret = stacks;
    stacks = (struct stacks){0};
    return 0;
}

static const char *or_dash(const char *text)
{
    return text ? text : "-";
}

static void print_stack(const struct stack *s)
{
    printf("thread %d %c %d %#x %s\n", s->tid, s->state, s->error, s->flags, s->name);
    for (size_t i = 0; i < s->nframes; i++) {
        const struct pb_native_frame *f = &s->frames[i];
        printf("%#" PRIx64 "\t%#x\t%s\t%" PRIu64 "\t%s:%u\t%s\t%s\n", f->pc, f->flags, or_dash(f->function),
               f->offset, or_dash(f->file), f->line, or_dash(f->module), or_dash(f->build_id));
    }
}

int main(int argc, char **argv)
{
    struct pb_native_options options = {0};
    struct pb_native *n;
    struct pb_err err = {0};
    bool no_stop = false;
    int repeat = 1;
    for (int i = 2; i < argc; i++) {
        no_stop |= strcmp(argv[i], "no-stop") == 0;
        options.no_lines |= strcmp(argv[i], "no-lines") == 0;
        if (strncmp(argv[i], "repeat=", 7) == 0)
            repeat = atoi(argv[i] + 7);
    }
    uint64_t began = pb_now_ns(), first = 0, held = 0, holds = 0;
    struct pb_source source = pb_source_of(argc > 1 ? atoi(argv[1]) : 0);
    int r = argc > 1 ? pb_native_new(&source, &options, &n, &err) : -1;
    if (r < 0) {
        fprintf(stderr, "native_dump: %s\n", pb_err_text(&err, r));
        return 1;
    }
    for (int i = 0; i < repeat; i++) {
        struct stacks stacks = {0};
        r = take_stacks(&source, n, no_stop, &stacks, &err);
        if (r < 0) {
            fprintf(stderr, "native_dump: %s\n", pb_err_text(&err, r));
            return 1;
        }
        if (i == 0)
            first = pb_now_ns() - began;
        for (size_t k = 0; k < stacks.n; k++, holds++) {
            held += stacks.at[k].held_ns;
            if (i == repeat - 1)
                print_stack(&stacks.at[k]);
        }
        release_stacks(&stacks);
    }
    printf("first %" PRIu64 " all %" PRIu64 " held %" PRIu64 "\n", first / 1000, (pb_now_ns() - began) / 1000,
           holds ? held / holds / 1000 : 0);
    pb_native_free(n);
    return 0;
}
