/* diff: see diff.h. */
#include "profile/diff.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "profile/flame.h"

static int largest_first(const void *a, const void *b)
{
    const struct pb_profile_change *x = a, *y = b;
    double s = x->after - x->before, t = y->after - y->before;

    s = s < 0 ? -s : s;
    t = t < 0 ? -t : t;
    return s < t ? 1 : s > t ? -1 : 0;
}

/* Adds the shares of one profile, by functions of the common names. */
static int add_side(struct pb_profile_diff *d, const struct pb_profile *p, size_t room, bool after)
{
    _cleanup_free_ struct pb_hot *hot = NULL;
    double all = (double)pb_profile_samples(p);

    int n = pb_profile_hot(p, NULL, &hot);
    for (int i = 0; i < n; i++) {
        struct pb_profile_function f = pb_profile_function_at(p, hot[i].function);
        uint32_t id = pb_profile_function(d->names, f.kind, f.name, pb_profile_short_file(f.file));
        if (id >= room)
            continue;
        d->at[id].function = id;
        *(after ? &d->at[id].after : &d->at[id].before) += 100 * (double)hot[i].self / all;
    }
    return n < 0 ? n : 0;
}

int pb_profile_diff(const struct pb_profile *before, const struct pb_profile *after,
                    struct pb_profile_diff *ret)
{
    size_t room = pb_profile_nfunctions(before) + pb_profile_nfunctions(after);

    *ret = (struct pb_profile_diff){.at = calloc(room + 1, sizeof(*ret->at))};
    int r = ret->at ? pb_profile_new(0, &ret->names) : -ENOMEM;
    if (r == 0)
        r = add_side(ret, before, room, false);
    if (r == 0)
        r = add_side(ret, after, room, true);
    if (r < 0)
        return r;
    ret->n = pb_profile_nfunctions(ret->names);
    qsort(ret->at, ret->n, sizeof(*ret->at), largest_first);
    return 0;
}

void pb_profile_diff_done(struct pb_profile_diff *d)
{
    pb_profile_free(d->names);
    free(d->at);
    *d = (struct pb_profile_diff){0};
}
