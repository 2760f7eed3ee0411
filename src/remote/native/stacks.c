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

static int take(struct pb_native *n, struct pb_native_stack *t, bool no_stop, struct pb_capture *c,
                struct pb_native_pc *pcs)
{
    size_t count = 0;
    for (unsigned round = 0; round < 2; round++) {
        int r = capture(n, t, no_stop, c);
        if (r < 0)
            return r;
        count = pb_native_unwind(n, c, pcs, MAX_FRAMES, &t->flags);
        if (!c->wanted)
            break;
    }
    return describe_all(n, pcs, count, t);
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

int pb_native_stacks_take(struct pb_native *n, bool no_stop, struct pb_native_stacks *ret, struct pb_err *err)
{
    _cleanup_(pb_native_stacks_done) struct pb_native_stacks stacks = {0};
    _cleanup_(pb_native_threads_done) struct pb_native_threads threads = {0};
    _cleanup_(pb_capture_done) struct pb_capture c = {0};
    _cleanup_free_ struct pb_native_pc *pcs = reallocarray(NULL, MAX_FRAMES, sizeof(*pcs));
    if (!pcs)
        return -ENOMEM;
    int r = pb_native_threads_read(n->pid, &threads, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < threads.n; i++) {
        struct pb_native_stack t = {.tid = threads.at[i].tid, .state = threads.at[i].state};
        memcpy(t.name, threads.at[i].name, sizeof(t.name));
        t.error = take(n, &t, no_stop, &c, pcs);
        if (t.error == -ESRCH)
            continue;
        r = append(&stacks, &t);
        if (r < 0) {
            free(t.frames);
            return r;
        }
    }
    if (stacks.n == 0)
        return pb_fail(err, -ESRCH, "process %d is gone", n->pid);
    *ret = stacks;
    stacks = (struct pb_native_stacks){0};
    return 0;
}
