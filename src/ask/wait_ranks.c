/* wait_ranks: which ranks the others wait for, from the stacks of all of them; see waits.h.
 *
 * A rank in a collective waits for the ranks of its group that are not in it. Where the group could not be
 * read, all asked ranks that are not in it are named, which holds for any group. */
#include "ask/stacks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rank {
    int number;
    struct pb_stacks *stacks;
    struct pb_wait *wait; /* of its main thread */
};

static int by_number(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static bool is_same_group(const struct pb_wait *x, const struct pb_wait *y)
{
    return strcmp(x->group, y->group) == 0 && x->ngroup_ranks == y->ngroup_ranks &&
           (!x->group_ranks ||
            memcmp(x->group_ranks, y->group_ranks, x->ngroup_ranks * sizeof(*x->group_ranks)) == 0);
}

/* Whether both are in the same collective; where a group is unknown, they may be. */
static bool is_in(const struct pb_wait *x, const struct pb_wait *y)
{
    return x->kind == PB_WAIT_COLLECTIVE && strcmp(x->text, y->text) == 0 &&
           (!x->group[0] || !y->group[0] || is_same_group(x, y));
}

static int by_value(const void *a, const void *b)
{
    const int *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static bool is_of_group(const struct pb_wait *w, int rank)
{
    return !w->group_ranks || bsearch(&rank, w->group_ranks, w->ngroup_ranks, sizeof(rank), by_value);
}

/* False: it has no rank, or its main thread was not read. */
static bool find_rank(const struct pb_stacks_answer *a, struct rank *ret)
{
    /* The answer is in our own memory; const is only for its readers. */
    struct pb_stacks *s = (struct pb_stacks *)a->stacks;
    if (a->result < 0 || !s || s->waits.n != s->n)
        return false;
    ret->number = s->rank;
    if (ret->number < 0)
        return false;
    ret->stacks = s;
    for (size_t i = 0; i < s->n; i++)
        if (s->threads[i].native.tid == s->pid) {
            ret->wait = &s->waits.at[i];
            return s->threads[i].failed == 0;
        }
    return false;
}

void pb_wait_put_ranks(const int *ranks, size_t n, char *ret, size_t size)
{
    size_t len = 0;

    ret[0] = '\0';
    for (size_t i = 0, last; i < n && len < size; i = last + 1) {
        for (last = i; last + 1 < n && ranks[last + 1] <= ranks[last] + 1;)
            last++;
        size_t was = len;
        len += (size_t)snprintf(ret + len, size - len, ranks[i] == ranks[last] ? "%s%d" : "%s%d-%d",
                                len ? ", " : "", ranks[i], ranks[last]);
        if (len + sizeof(", ..") > size) { /* no room for the rest */
            snprintf(ret + was, size - was, "%s", was ? ", .." : "..");
            return;
        }
    }
}

/* Fills w->absent with the ranks of its group that are not in the collective; absent has room for all
 * ranks. */
static void put_absent(const struct rank *ranks, size_t n, struct pb_wait *w, int *absent)
{
    size_t found = 0;

    for (size_t i = 0; i < n; i++)
        if (!is_in(ranks[i].wait, w) && is_of_group(w, ranks[i].number))
            absent[found++] = ranks[i].number;
    pb_wait_put_ranks(absent, found, w->absent, sizeof(w->absent));
}

/* An earlier rank in the same collective: it has the same absent ranks. */
static const struct pb_wait *find_same(const struct rank *ranks, const size_t *different, size_t n,
                                       const struct pb_wait *w)
{
    for (size_t i = 0; i < n; i++) {
        const struct pb_wait *other = ranks[different[i]].wait;
        if (strcmp(other->text, w->text) == 0 && is_same_group(other, w))
            return other;
    }
    return NULL;
}

static void add_to_verdict(struct pb_stacks *s, const struct pb_wait *w)
{
    size_t len = strlen(s->verdict), room = sizeof(s->verdict) - len;

    if (w->absent[0] && s->verdict_is_wait)
        snprintf(s->verdict + len, room, "; not in it: %s %s", strpbrk(w->absent, ",-.") ? "ranks" : "rank",
                 w->absent);
}

void pb_waits_compare_ranks(struct pb_stacks_answer *answers, size_t nanswers)
{
    struct rank *ranks = calloc(nanswers + 1, sizeof(*ranks));
    int *absent = calloc(nanswers + 1, sizeof(*absent));
    size_t *different = calloc(nanswers + 1, sizeof(*different)), ndifferent = 0, n = 0;

    for (size_t i = 0; ranks && absent && different && i < nanswers; i++)
        n += find_rank(&answers[i], &ranks[n]);
    if (n > 1)
        qsort(ranks, n, sizeof(*ranks), by_number);
    for (size_t i = 0; i < n; i++) {
        struct pb_wait *w = ranks[i].wait;
        if (w->kind != PB_WAIT_COLLECTIVE)
            continue;
        const struct pb_wait *same = find_same(ranks, different, ndifferent, w);
        if (same) {
            memcpy(w->absent, same->absent, sizeof(w->absent));
        } else {
            put_absent(ranks, n, w, absent);
            different[ndifferent++] = i;
        }
        add_to_verdict(ranks[i].stacks, w);
    }
    free(different);
    free(absent);
    free(ranks);
}
