/* sampler_native: native stacks for the sampler: unwound from the copy that a moment left, merged with the
 * Python frames of the same moment, and interned. Each address is described once. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/intern.h"
#include "profile/watch.h"
#include "remote/native/merge.h"

#define PCS_MAX    4096
#define FRAMES_MAX (4 * PCS_MAX)

struct pb_native_buffers {
    struct pb_native_pc pcs[PCS_MAX];
    struct pb_native_frame frames[FRAMES_MAX];
    struct pb_merged *merged;
    size_t merged_cap;
};

int pb_native_buffers_new(struct pb_native_buffers **ret)
{
    *ret = calloc(1, sizeof(**ret));
    return *ret ? 0 : -ENOMEM;
}

void pb_native_buffers_free(struct pb_native_buffers *b)
{
    if (b)
        free(b->merged);
    free(b);
}

static size_t unwind(struct pb_sampler *s, struct pb_process_watch *w, unsigned *ret_flags)
{
    struct pb_native_buffers *b = s->buffers;
    size_t n = pb_native_unwind(w->native, &s->capture, b->pcs, PCS_MAX, ret_flags), nframes = 0;

    pb_native_prepare(w->native, b->pcs, n);
    for (size_t i = 0; i < n && nframes + PB_NATIVE_INLINE_MAX < FRAMES_MAX; i++)
        nframes += pb_native_describe(w->native, &b->pcs[i], b->frames + nframes, FRAMES_MAX - nframes);
    return nframes;
}

static uint32_t native_node(struct pb_sampler *s, uint32_t parent, const struct pb_native_frame *f)
{
    const char *name = f->function ? f->function : "?";
    const char *file = f->file ? f->file : f->module ? f->module : "";
    uint32_t function = pb_profile_function(s->profile, PB_FRAME_NATIVE, name, file);

    return function == PB_PROFILE_NONE
               ? PB_PROFILE_NONE
               : pb_profile_node(s->profile, parent, pb_profile_frame(s->profile, function, (int)f->line));
}

int pb_native_node(struct pb_sampler *s, struct pb_process_watch *w, bool with_python, uint32_t *ret,
                   bool *ret_guessed, bool *ret_truncated, bool *ret_apart)
{
    struct pb_native_buffers *b = s->buffers;
    size_t npython = with_python ? s->stack.n : 0, n;
    unsigned flags;
    uint32_t node = PB_PROFILE_ROOT;

    size_t nnative = unwind(s, w, &flags);
    if (b->merged_cap < nnative + npython) {
        struct pb_merged *more = reallocarray(b->merged, nnative + npython, sizeof(*more));
        if (!more)
            return -ENOMEM;
        b->merged = more;
        b->merged_cap = nnative + npython;
    }
    enum pb_merge how =
        pb_merge_stacks(b->frames, nnative, flags, s->stack.at, npython, s->stack.truncated, b->merged, &n);
    *ret_guessed = flags & PB_NATIVE_BY_SCAN;
    *ret_truncated = flags & PB_NATIVE_TRUNCATED || (npython && s->stack.truncated);
    *ret_apart = npython && how == PB_MERGE_APART;
    for (size_t i = n; i > 0; i--) {
        const struct pb_merged *m = &b->merged[i - 1];
        uint32_t next =
            m->python ? pb_python_node(s, w, node, m->index) : native_node(s, node, &b->frames[m->index]);
        if (next == PB_PROFILE_NONE) {
            *ret_truncated = true;
            break;
        }
        node = next;
    }
    *ret = node;
    return 0;
}
