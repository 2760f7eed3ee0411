/* stacks: all threads of a process with their native stacks. See unwind.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "remote/native/process.h"
#include "remote/threads.h"

enum {
    MAX_FRAMES = 32768, /* of one stack */
};

void pb_native_stacks_done(struct pb_native_stacks *stacks)
{
    for (size_t i = 0; i < stacks->n; i++)
        free(stacks->at[i].frames);
    free(stacks->at);
}

static int describe_all(struct pb_native *n, const struct pb_native_pc *pcs, size_t count,
                        struct pb_native_stack *t)
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
static int capture(struct pb_native *n, const struct pb_native_stack *t, bool no_stop, struct pb_capture *c)
{
    if (no_stop || t->state == 'D')
        return pb_native_peek(n, t->tid, c);
    return pb_native_capture(n, t->tid, c, NULL);
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
static int take(struct pb_native *n, struct pb_native_stack *t, bool no_stop, struct pb_capture *c,
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

static int append(struct pb_native_stacks *stacks, const struct pb_native_stack *t)
{
    if ((stacks->n & (stacks->n - 1)) == 0) {
        struct pb_native_stack *more = reallocarray(stacks->at, stacks->n ? stacks->n * 2 : 1, sizeof(*more));
        if (!more)
            return -ENOMEM;
        stacks->at = more;
    }
    stacks->at[stacks->n++] = *t;
    return 0;
}

static int take_all(struct pb_native *n, bool no_stop, const struct pb_native_threads *threads,
                    struct pb_native_stacks *stacks, struct pile *pile)
{
    _cleanup_(pb_capture_done) struct pb_capture c = {0};
    _cleanup_free_ struct pb_native_pc *pcs = reallocarray(NULL, MAX_FRAMES, sizeof(*pcs));
    if (!pcs)
        return -ENOMEM;
    for (size_t i = 0; i < threads->n; i++) {
        struct pb_native_stack t = {.tid = threads->at[i].tid, .state = threads->at[i].state};
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

static int describe_stacks(struct pb_native *n, struct pb_native_stacks *stacks, const struct pile *pile)
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

int pb_native_stacks_take(struct pb_native *n, bool no_stop, struct pb_native_stacks *ret, struct pb_err *err)
{
    _cleanup_(pb_native_stacks_done) struct pb_native_stacks stacks = {0};
    _cleanup_(pb_native_threads_done) struct pb_native_threads threads = {0};
    _cleanup_(free_pile) struct pile pile = {0};
    int r = pb_source_threads(n->source, &threads, err);
    if (r == 0)
        r = take_all(n, no_stop, &threads, &stacks, &pile);
    if (r == 0)
        r = describe_stacks(n, &stacks, &pile);
    if (r < 0)
        return r;
    if (stacks.n == 0)
        return pb_fail(err, -ESRCH, "the process is gone");
    *ret = stacks;
    stacks = (struct pb_native_stacks){0};
    return 0;
}
