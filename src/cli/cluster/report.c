/* report: what is said of nodes and ranks; see job.h. */
#include "cli/cluster/job.h"
#include "cli/print/rows.h"

#include <stdlib.h>
#include <string.h>

/* "1,224". */
static void put_count(FILE *out, size_t n)
{
    if (n >= 1000) {
        put_count(out, n / 1000);
        fprintf(out, ",%03zu", n % 1000);
    } else {
        fprintf(out, "%zu", n);
    }
}

bool pb_cluster_tell(const struct pb_cluster *c, const struct pb_cluster_result *r)
{
    enum { NAMED = 20 };
    size_t named = 0;

    if (r->answered == r->asked)
        return true;
    fflush(stdout);
    put_count(stderr, r->answered);
    fputs(" of ", stderr);
    put_count(stderr, r->asked);
    fprintf(stderr, " nodes answered\n");
    for (size_t i = 0; i < r->nnodes; i++) {
        const struct pb_node_result *n = &r->nodes[i];
        if (n->state == PB_NODE_ANSWERED || n->state == PB_NODE_NOT_ASKED)
            continue;
        if (named++ == NAMED) {
            fprintf(stderr, "  and %zu more\n", r->asked - r->answered - NAMED);
            break;
        }
        fprintf(stderr, "  %s: %s: ", c->nodes[i].name, pb_node_state_name(n->state));
        pb_put_plain(stderr, n->why);
        putc('\n', stderr);
    }
    return false;
}

void pb_cluster_put_ranks(FILE *out, const bool *in, size_t n)
{
    bool any = false;

    for (size_t i = 0; i < n; i++) {
        if (!in[i])
            continue;
        size_t last = i;
        while (last + 1 < n && in[last + 1])
            last++;
        fprintf(out, last > i ? "%s%zu-%zu" : "%s%zu", any ? ", " : "", i, last);
        any = true;
        i = last;
    }
}

void pb_cluster_tell_gone(const bool *gone, size_t size, size_t n)
{
    if (!n)
        return;
    fflush(stdout);
    fputs(n == 1 ? "rank " : "ranks ", stderr);
    pb_cluster_put_ranks(stderr, gone, size);
    fprintf(stderr, "%s not there any more: ended, or started anew (probing cluster refresh)\n",
            n == 1 ? " is" : " are");
}

/* Which values of a role the ranks of the set have, and which there are at all. */
struct spread {
    uint32_t value; /* one of those in the set */
    size_t of, in;  /* how many different values there are, and in the set */
    bool seen_of[64], seen_in[64];
};

static bool spread_of(const struct pb_cluster *c, const bool *in, size_t n, const char *name,
                      struct spread *ret)
{
    *ret = (struct spread){0};
    for (size_t i = 0; i < c->nranks; i++) {
        const struct pb_cluster_rank *r = &c->ranks[i];
        int64_t value = pb_roles_get(&r->roles, name);
        if (value < 0 || value >= 64)
            return false; /* a rank without the role, or more values than a person would be told */
        ret->of += !ret->seen_of[value];
        ret->seen_of[value] = true;
        if ((size_t)r->rank >= n || !in[r->rank])
            continue;
        ret->in += !ret->seen_in[value];
        ret->seen_in[value] = true;
        ret->value = (uint32_t)value;
    }
    return true;
}

void pb_cluster_common_role(const struct pb_cluster *c, const bool *in, size_t n, char *ret, size_t size)
{
    const struct pb_roles *roles = c->nranks ? &c->ranks[0].roles : NULL;
    size_t at = 0, told = 0, members = 0, fitting = 0;
    struct spread s;

    ret[0] = '\0';
    for (size_t i = 0; roles && i < roles->n && at < size; i++) {
        if (!spread_of(c, in, n, roles->at[i].name, &s) || !s.in)
            continue;
        const char *between = at ? ", " : "";
        if (s.in == 1 && s.of > 1) {
            at += (size_t)snprintf(ret + at, size - at, "%s%s=%u", between, roles->at[i].name, s.value);
            told++;
        } else if (s.in == s.of && s.of > 1) {
            at += (size_t)snprintf(ret + at, size - at, "%sall %s", between, roles->at[i].name);
        }
    }
    if (!told) { /* all of everything is no role that they share */
        ret[0] = '\0';
        return;
    }
    /* It is shared by these ranks, but is it theirs alone? Otherwise it explains less than it seems to. */
    for (size_t i = 0; i < c->nranks; i++) {
        bool fits = true;
        for (size_t k = 0; k < roles->n; k++)
            if (spread_of(c, in, n, roles->at[k].name, &s) && s.in == 1 && s.of > 1)
                fits = fits && pb_roles_get(&c->ranks[i].roles, roles->at[k].name) == s.value;
        fitting += fits;
        members += (size_t)c->ranks[i].rank < n && in[c->ranks[i].rank];
    }
    if (fitting > members && at < size)
        snprintf(ret + at, size - at, " (%zu of its %zu ranks)", members, fitting);
}
