/* stacks_native: the native frames of a thread, read at the same moment as its Python frames, and both merged
 * into one stack; see stacks.h. */
#include "ask/stacks.h"
#include "base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PCS_MAX    4096
#define FRAMES_MAX (1u << 18) /* of all threads together: a hostile process must not fill our memory */

/* Where only the agent may read the process, registers may be unknown even of a sleeping thread. */
static bool can_read_registers(struct pb_stacks *s)
{
    struct pb_moment m;
    uint64_t ran_ns;
    char call[256];

    return !s->source.ops->look ||
           (pb_source_moment(&s->source, s->pid, &m) == 0 &&
            s->source.ops->look(&s->source, m.ns_tid, &ran_ns, call, sizeof(call)) == 0 && call[0]);
}

int pb_stacks_native_open(struct pb_stacks *s, const struct pb_stacks_options *options, struct pb_err *err)
{
    if (!options->native && !(options->native_if_alone && !s->py))
        return 0;
    if (!can_read_registers(s))
        return !options->native ? 0
                                : pb_fail(err, -ENOTSUP,
                                          "permission denied: native frames need the registers of process "
                                          "%d, which only a tracer may "
                                          "read (be root, or leave out --native)",
                                          (int)s->pid);
    int r = pb_native_new(&s->source, NULL, &s->native, options->native ? err : NULL);
    /* Native frames are optional here: a process that cannot be unwound is shown without them. */
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
    free(t->pcs);
    free(t->natives);
    free(t->merged);
    t->pcs = NULL;
    t->natives = NULL;
    t->merged = NULL;
    t->npcs = t->nnatives = t->nmerged = 0;
}

int pb_stacks_native_copy(struct pb_stacks *s, const struct pb_moment *m)
{
    if (!s->native)
        return 0;
    if (m->way == PB_WAY_ASLEEP)
        return pb_native_copy_asleep(s->native, m->tid, m->pc, m->sp, &s->capture);
    return pb_native_copy(s->native, m->tid, &s->capture);
}

int pb_stacks_native_unwind(struct pb_stacks *s, struct pb_shown_thread *t)
{
    if (!s->native)
        return 0;
    pb_stacks_native_drop(t);
    struct pb_native_pc *pcs = reallocarray(NULL, PCS_MAX, sizeof(*pcs));
    if (!pcs)
        return -ENOMEM;
    t->npcs = pb_native_unwind(s->native, &s->capture, pcs, PCS_MAX, &t->native_flags);
    /* Most stacks are short, and a process may have thousands of them: give the rest back. */
    struct pb_native_pc *fits = reallocarray(pcs, t->npcs, sizeof(*pcs));
    if (!fits) {
        free(pcs);
        t->npcs = 0;
        return -ENOMEM;
    }
    t->pcs = fits;
    return 0;
}

/* Looks up the symbols of all threads in one pass over each table: libtorch's has half a million entries. */
static void prepare_symbols(struct pb_stacks *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++)
        n += s->threads[i].npcs;
    struct pb_native_pc *all = reallocarray(NULL, n + 1, sizeof(*all));
    if (!all)
        return;
    n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct pb_shown_thread *t = &s->threads[i];
        if (t->npcs)
            memcpy(all + n, t->pcs, t->npcs * sizeof(*all));
        n += t->npcs;
    }
    pb_native_prepare(s->native, all, n);
    free(all);
}

static int describe_thread(struct pb_stacks *s, struct pb_shown_thread *t)
{
    size_t room = 0, used = s->natives < FRAMES_MAX ? s->natives : FRAMES_MAX;

    for (size_t i = 0; i < t->npcs && used + t->nnatives < FRAMES_MAX; i++) {
        if (room < t->nnatives + PB_NATIVE_INLINE_MAX) {
            room = 2 * room + 4 * PB_NATIVE_INLINE_MAX;
            struct pb_native_frame *more = reallocarray(t->natives, room, sizeof(*more));
            if (!more)
                return -ENOMEM;
            t->natives = more;
        }
        t->nnatives +=
            pb_native_describe(s->native, &t->pcs[i], t->natives + t->nnatives, PB_NATIVE_INLINE_MAX);
    }
    s->natives += t->nnatives;
    return 0;
}

static int merge_frames(struct pb_shown_thread *t)
{
    struct pb_py_frame *python = calloc(t->nframes + 1, sizeof(*python));

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

int pb_stacks_native_describe(struct pb_stacks *s)
{
    int r = 0;

    if (!s->native)
        return 0;
    prepare_symbols(s);
    for (size_t i = 0; r == 0 && i < s->n; i++) {
        if (!s->threads[i].npcs)
            continue;
        r = describe_thread(s, &s->threads[i]);
        if (r == 0)
            r = merge_frames(&s->threads[i]);
    }
    return r;
}
