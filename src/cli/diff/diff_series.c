/* diff_series: the values of one of two runs, kept by kind, name and slot. A slot is a step, or of memory a
 * row or second. */
#include "cli/diff/run_diff.h"

#include "base/vector.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const struct pb_diff_series *pb_diff_find(const struct pb_diff_side *s, enum pb_diff_kind kind,
                                          const char *name)
{
    for (size_t i = 0; i < s->nseries; i++)
        if (s->series[i].kind == kind && strcmp(s->series[i].name, name) == 0)
            return &s->series[i];
    return NULL;
}

static int add_series(struct pb_diff_side *s, enum pb_diff_kind kind, const char *name,
                      struct pb_diff_series **ret)
{
    *ret = (struct pb_diff_series *)pb_diff_find(s, kind, name);
    if (*ret || s->nseries >= PB_DIFF_SERIES)
        return 0;
    char *copy = strdup(name);
    int r = copy ? pb_grow_full((void **)&s->series, s->nseries, sizeof(**ret)) : -ENOMEM;
    if (r < 0) {
        free(copy);
        return r;
    }
    *ret = &s->series[s->nseries++];
    **ret = (struct pb_diff_series){.kind = kind, .name = copy};
    return 0;
}

int pb_diff_take(struct pb_diff_side *s, enum pb_diff_kind kind, const char *name, double slot, double value)
{
    struct pb_diff_series *series = NULL;
    size_t at = slot >= 0 && slot < PB_DIFF_SLOTS ? (size_t)slot : PB_DIFF_SLOTS;

    int r = at < PB_DIFF_SLOTS ? add_series(s, kind, name, &series) : 0;
    if (!series) {
        s->left_out += r == 0;
        return r;
    }
    while (series->n <= at) {
        r = pb_grow((void **)&series->values, &series->cap, series->n, sizeof(double), NULL);
        if (r < 0)
            return r;
        series->values[series->n++] = 0;
    }
    series->values[at] += value;
    if (at >= s->slots[kind])
        s->slots[kind] = at + 1;
    return 0;
}

void pb_diff_series_done(struct pb_diff_side *s)
{
    for (size_t i = 0; i < s->nseries; i++) {
        free(s->series[i].name);
        free(s->series[i].values);
    }
    free(s->series);
}
