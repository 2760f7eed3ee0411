/* common_role: what ranks have in common by their roles; see cluster.h. */
#include "cluster/cluster.h"

#include <stdio.h>
#include <string.h>

/* How many values of a role the ranks of a set have, and how many all ranks have. */
struct spread {
    const char *name;
    uint32_t value; /* one of those in the set */
    size_t of, in;  /* how many different values there are, and in the set */
    bool seen_of[64], seen_in[64];
};

/* All ranks of a job have their roles in one order, as a rule. */
static int64_t role_at(const struct pb_roles *roles, size_t i, const char *name)
{
    return i < roles->n && strcmp(roles->at[i].name, name) == 0 ? roles->at[i].value
                                                                : pb_roles_get(roles, name);
}

/* False: a rank lacks the role, or the role has too many values to list. */
static bool spread_of(const struct pb_cluster *c, const bool *in, size_t n, size_t role, struct spread *ret)
{
    *ret = (struct spread){.name = c->ranks[0].roles.at[role].name};
    for (size_t i = 0; i < c->nranks; i++) {
        const struct pb_cluster_rank *r = &c->ranks[i];
        int64_t value = role_at(&r->roles, role, ret->name);
        if (value < 0 || value >= 64)
            return false;
        ret->of += !ret->seen_of[value];
        ret->seen_of[value] = true;
        if ((size_t)r->rank >= n || !in[r->rank])
            continue;
        ret->in += !ret->seen_in[value];
        ret->seen_in[value] = true;
        ret->value = (uint32_t)value;
    }
    return ret->in > 0 && ret->of > 1;
}

void pb_cluster_common_role(const struct pb_cluster *c, const bool *in, size_t n, char *ret, size_t size)
{
    struct spread shared[PB_ROLES], s;
    size_t index[PB_ROLES], nshared = 0, at = 0, members = 0, fitting = 0;

    ret[0] = '\0';
    for (size_t i = 0; c->nranks && i < c->ranks[0].roles.n && at < size; i++) {
        if (!spread_of(c, in, n, i, &s) || (s.in > 1 && s.in < s.of))
            continue;
        at += (size_t)(s.in == 1 ? snprintf(ret + at, size - at, "%s%s=%u", at ? ", " : "", s.name, s.value)
                                 : snprintf(ret + at, size - at, "%sall %s", at ? ", " : "", s.name));
        if (s.in == 1) {
            index[nshared] = i;
            shared[nshared++] = s;
        }
    }
    if (!nshared) { /* all of everything is no role that they share */
        ret[0] = '\0';
        return;
    }
    /* It is shared by these ranks, but is it theirs alone? Otherwise it explains less than it seems to. */
    for (size_t i = 0; i < c->nranks; i++) {
        bool fits = true;
        for (size_t k = 0; fits && k < nshared; k++)
            fits = role_at(&c->ranks[i].roles, index[k], shared[k].name) == shared[k].value;
        fitting += fits;
        members += (size_t)c->ranks[i].rank < n && in[c->ranks[i].rank];
    }
    if (fitting > members && at < size)
        snprintf(ret + at, size - at, " (%zu of its %zu ranks)", members, fitting);
}
