/* Any bytes at all as a set of stacks from another node: refused, or a set that can be looked at, merged and
 * sent on as the same bytes again. */
#include "ask/stackset.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile size_t sink;

static void look_at(struct pb_stackset *set)
{
    for (size_t i = 0; i < pb_stackset_n(set); i++) {
        struct pb_set_stack stack;
        pb_stackset_stack(set, i, &stack);
        for (uint32_t k = 0; k < stack.nframes; k++) {
            struct pb_set_frame f;
            pb_stackset_frame(set, stack.frames[k], &f);
            sink += f.function ? strlen(f.function) : 0;
        }
        for (size_t k = 1; k < stack.nranks; k++)
            if (stack.ranks[k].first <= stack.ranks[k - 1].last + 1ull)
                abort(); /* ranges are sorted and apart */
        for (size_t k = 0; k < stack.nmembers; k++)
            sink += strlen(stack.members[k].process) + strlen(stack.members[k].thread);
    }
}

/* The same bytes again into a set, which then knows all that they hold. */
static void merge_again(struct pb_stackset *set, const void *bytes, size_t n)
{
    size_t stacks = pb_stackset_n(set), threads = pb_stackset_threads(set);

    if (pb_stackset_merge(set, bytes, n, NULL, NULL, NULL) < 0)
        return;
    look_at(set);
    if (pb_stackset_n(set) != stacks || pb_stackset_threads(set) != 2 * threads)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pb_stackset *set, *again;
    void *bytes;
    size_t n;

    if (pb_stackset_new(&set) < 0)
        return 0;
    if (pb_stackset_merge(set, data, size, NULL, NULL, NULL) < 0) {
        pb_stackset_free(set);
        return 0;
    }
    look_at(set);
    if (pb_stackset_encode(set, &bytes, &n) == 0 && pb_stackset_new(&again) == 0) {
        if (pb_stackset_merge(again, bytes, n, NULL, NULL, NULL) < 0)
            abort(); /* what we send we understand */
        if (pb_stackset_n(again) != pb_stackset_n(set))
            abort();
        merge_again(again, bytes, n);
        pb_stackset_free(again);
        free(bytes);
    }
    pb_stackset_free(set);
    return 0;
}
