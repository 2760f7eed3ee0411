/* stacks_native: the native frames of a thread, taken in the same moment as its Python frames, and the two in
 * one stack; see stacks.h. */
#include "base/err.h"
#include "cli/stacks.h"

#include <errno.h>
#include <stdlib.h>

#define PCS_MAX    4096
#define FRAMES_MAX (1u << 18) /* of all threads together: a hostile process must not fill our memory */

int pb_stacks_native_open(struct pb_stacks *s, const struct pb_stacks_options *options, struct pb_err *err)
{
    if (!options->native && !(options->native_if_alone && !s->py))
        return 0;
    int r = pb_native_new(&s->source, NULL, &s->native, options->native ? err : NULL);
    /* Nobody asked for it: then a process that cannot be unwound is shown without. */
    return options->native ? r : 0;
}

void pb_stacks_native_done(struct pb_stacks *s)
{
    pb_capture_done(&s->capture);
    pb_native_free(s->native);
    s->native = NULL;
}

void pb_stacks_native_drop(struct pb_shown_thread *t)
{
    free(t->natives);
    free(t->merged);
    t->natives = NULL;
    t->merged = NULL;
    t->nnatives = t->nmerged = 0;
}

int pb_stacks_native_copy(struct pb_stacks *s, const struct pb_moment *m)
{
    if (!s->native)
        return 0;
    if (m->way == PB_WAY_ASLEEP)
        return pb_native_copy_asleep(s->native, m->tid, m->pc, m->sp, &s->capture);
    return pb_native_copy(s->native, m->tid, &s->capture);
}

static int describe(struct pb_stacks *s, struct pb_shown_thread *t)
{
    static struct pb_native_pc pcs[PCS_MAX];

    size_t n = pb_native_unwind(s->native, &s->capture, pcs, PCS_MAX, &t->native_flags);
    size_t room = 0, used = s->natives < FRAMES_MAX ? s->natives : FRAMES_MAX;
    pb_native_prepare(s->native, pcs, n);
    for (size_t i = 0; i < n && used + t->nnatives < FRAMES_MAX; i++) {
        if (room < t->nnatives + PB_NATIVE_INLINE_MAX) {
            room = 2 * room + 4 * PB_NATIVE_INLINE_MAX;
            struct pb_native_frame *more = reallocarray(t->natives, room, sizeof(*more));
            if (!more)
                return -ENOMEM;
            t->natives = more;
        }
        t->nnatives += pb_native_describe(s->native, &pcs[i], t->natives + t->nnatives, PB_NATIVE_INLINE_MAX);
    }
    s->natives += t->nnatives;
    return 0;
}

int pb_stacks_native_merge(struct pb_stacks *s, struct pb_shown_thread *t)
{
    if (!s->native)
        return 0;
    pb_stacks_native_drop(t);
    int r = describe(s, t);
    struct pb_py_frame *python = r == 0 ? calloc(t->nframes + 1, sizeof(*python)) : NULL;
    t->merged = python ? calloc(t->nnatives + t->nframes + 1, sizeof(*t->merged)) : NULL;
    if (t->merged) {
        for (size_t i = 0; i < t->nframes; i++)
            python[i] = t->frames[i].at;
        t->merge = pb_merge_stacks(t->natives, t->nnatives, t->native_flags, python, t->nframes, t->truncated,
                                   t->merged, &t->nmerged);
    }
    free(python);
    return t->merged ? 0 : -ENOMEM;
}
