/* diff_noise: which differences between two runs are more than noise.
 *
 * Steps are not independent: a slow one is followed by slow ones. So the interval of a difference of means is
 * made by a bootstrap of blocks of successive steps. A difference counts if the interval does not contain
 * zero and it is 3% or more. The numbers are drawn from a fixed start: two calls say the same. */
#include "cli/diff/run_diff.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS = 1000, OUTSIDE = 5, FEWEST = 8, BLOCKS = 16 };
static const double LEAST = 0.03;      /* of the value, or of a step for its parts: */
static const double LEAST_PART = 0.01; /* of a step: smaller parts are not shown */

struct values {
    const double *at;
    size_t have, n; /* from have on they are zero */
};

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static double mean_of(const struct values *v)
{
    double sum = 0;

    for (size_t i = 0; i < v->have; i++)
        sum += v->at[i];
    return v->n ? sum / (double)v->n : 0;
}

/* The mean of as many values, in blocks that begin anywhere. */
static double mean_of_draw(const struct values *v, uint64_t *state)
{
    size_t block = v->n / BLOCKS > 1 ? v->n / BLOCKS : 1, taken = 0;
    double sum = 0;

    while (taken < v->n) {
        size_t from = draw(state) % (v->n - block + 1);
        for (size_t i = 0; i < block && taken < v->n; i++, taken++)
            sum += from + i < v->have ? v->at[from + i] : 0;
    }
    return sum / (double)v->n;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void find_interval(const struct values *a, const struct values *b, struct pb_diff_change *c)
{
    double draws[DRAWS];
    uint64_t state = 0x9e3779b97f4a7c15ull;

    for (int i = 0; i < DRAWS; i++)
        draws[i] = mean_of_draw(b, &state) - mean_of_draw(a, &state);
    qsort(draws, DRAWS, sizeof(draws[0]), by_size);
    c->least = draws[OUTSIDE];
    c->most = draws[DRAWS - 1 - OUTSIDE];
    c->real = (c->least > 0 || c->most < 0) && fabs(c->b - c->a) >= LEAST * (c->a > 0 ? c->a : c->b);
}

static struct values values_of(const struct pb_diff_side *s, enum pb_diff_kind kind, const char *name)
{
    const struct pb_diff_series *found = pb_diff_find(s, kind, name);

    return (struct values){found ? found->values : NULL, found ? found->n : 0, s->slots[kind]};
}

static int by_cost(const void *a, const void *b)
{
    const struct pb_diff_change *x = a, *y = b;
    double s = fabs(x->b - x->a), t = fabs(y->b - y->a);
    bool apart = x->kind >= PB_DIFF_MEMORY, apart_too = y->kind >= PB_DIFF_MEMORY;

    return apart != apart_too ? apart - apart_too : s < t ? 1 : s > t ? -1 : strcmp(x->name, y->name);
}

/* Adds what is real of one name. */
static void judge_name(const struct pb_diff_side *a, const struct pb_diff_side *b, enum pb_diff_kind kind,
                       const char *name, struct pb_diff_changes *ret)
{
    const struct values of_a = values_of(a, kind, name), of_b = values_of(b, kind, name);
    struct pb_diff_change c = {.kind = kind, .name = name, .a = mean_of(&of_a), .b = mean_of(&of_b)};
    double step = ret->step.a > 0 ? ret->step.a : ret->step.b;

    if (of_a.n < FEWEST || of_b.n < FEWEST)
        return;
    if (kind < PB_DIFF_MEMORY && fabs(c.b - c.a) < LEAST_PART * step)
        return;
    find_interval(&of_a, &of_b, &c);
    if (c.real)
        ret->at[ret->n++] = c;
    ret->differs |= c.real && kind == PB_DIFF_PHASE;
}

int pb_diff_compare(const struct pb_diff_side *a, const struct pb_diff_side *b, struct pb_diff_changes *ret,
                    struct pb_err *err)
{
    const struct values of_a = values_of(a, PB_DIFF_STEP, "step"), of_b = values_of(b, PB_DIFF_STEP, "step");
    struct pb_diff_changes c = {.at = calloc(a->nseries + b->nseries + 1, sizeof(*c.at))};

    if (!c.at)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (of_a.n < FEWEST || of_b.n < FEWEST) {
        const struct pb_diff_side *few = of_a.n < FEWEST ? a : b;
        free(c.at);
        return pb_fail(err, -ENODATA,
                       "%.100s has %zu recorded steps, and %d are needed (config probing.torch.profiling=on)",
                       few->text, few->slots[PB_DIFF_STEP], FEWEST);
    }
    c.step = (struct pb_diff_change){
        .kind = PB_DIFF_STEP, .name = "step", .a = mean_of(&of_a), .b = mean_of(&of_b)};
    find_interval(&of_a, &of_b, &c.step);
    c.differs = c.step.real;
    for (int side = 0; side < 2; side++) {
        const struct pb_diff_side *s = side ? b : a;
        for (size_t i = 0; i < s->nseries; i++)
            if (s->series[i].kind != PB_DIFF_STEP &&
                (!side || !pb_diff_find(a, s->series[i].kind, s->series[i].name)))
                judge_name(a, b, s->series[i].kind, s->series[i].name, &c);
    }
    if (c.n)
        qsort(c.at, c.n, sizeof(*c.at), by_cost);
    *ret = c;
    return 0;
}

void pb_diff_changes_done(struct pb_diff_changes *c)
{
    free(c->at);
    *c = (struct pb_diff_changes){0};
}
