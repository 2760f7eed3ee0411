/* wait_ranks: which ranks the others wait for, from the stacks of all of them; see waits.h.
 *
 * A rank that waits in a collective waits for those of its group that are not in it. What the group is only
 * PyTorch knows: said is which of the ranks that were asked are not there, which is true of any group. */
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

static bool is_in(const struct rank *r, const char *collective)
{
    return r->wait->kind == PB_WAIT_COLLECTIVE && strcmp(r->wait->text, collective) == 0;
}

/* False: it has no rank, or its main thread was not read. */
static bool find_rank(const struct pb_stacks_answer *a, struct rank *ret)
{
    /* The answer lies in memory that is ours; only its readers see it as const. */
    struct pb_stacks *s = (struct pb_stacks *)a->stacks;
    char end;

    if (a->result < 0 || !s || s->waits.n != s->n || sscanf(s->label, "rank %d%c", &ret->number, &end) != 1 ||
        ret->number < 0)
        return false;
    ret->stacks = s;
    for (size_t i = 0; i < s->n; i++)
        if (s->threads[i].native.tid == s->pid) {
            ret->wait = &s->waits.at[i];
            return s->threads[i].failed == 0;
        }
    return false;
}

/* "1, 4-7" of those that are not in it, by their numbers. */
static void put_absent(const struct rank *ranks, size_t n, const char *collective, char *ret, size_t size)
{
    size_t len = 0;

    ret[0] = '\0';
    for (size_t i = 0, last; i < n && len < size; i = last + 1) {
        last = i;
        if (is_in(&ranks[i], collective))
            continue;
        while (last + 1 < n && ranks[last + 1].number <= ranks[last].number + 1 &&
               !is_in(&ranks[last + 1], collective))
            last++;
        int first = ranks[i].number, end = ranks[last].number;
        size_t was = len;
        len += (size_t)snprintf(ret + len, size - len, first == end ? "%s%d" : "%s%d-%d", len ? ", " : "",
                                first, end);
        if (len + sizeof(", ..") > size) { /* there is more than goes in */
            snprintf(ret + was, size - was, "%s", was ? ", .." : "..");
            return;
        }
    }
}

void pb_waits_compare_ranks(struct pb_stacks_answer *answers, size_t nanswers)
{
    struct rank *ranks = calloc(nanswers + 1, sizeof(*ranks));
    size_t n = 0;

    for (size_t i = 0; ranks && i < nanswers; i++)
        n += find_rank(&answers[i], &ranks[n]);
    if (n > 1)
        qsort(ranks, n, sizeof(*ranks), by_number);
    for (size_t i = 0; i < n; i++) {
        struct pb_wait *w = ranks[i].wait;
        if (w->kind != PB_WAIT_COLLECTIVE)
            continue;
        put_absent(ranks, n, w->text, w->absent, sizeof(w->absent));
        char *verdict = ranks[i].stacks->verdict;
        size_t len = strlen(verdict), room = sizeof(ranks[i].stacks->verdict) - len;
        if (w->absent[0] && strstr(verdict, w->text))
            snprintf(verdict + len, room, "; not in it: %s %s", strpbrk(w->absent, ",-.") ? "ranks" : "rank",
                     w->absent);
    }
    free(ranks);
}
