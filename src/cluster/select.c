/* select: see select.h. */
#include "cluster/select.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- numbers and ranges --- */

/* A number, or a range, at *at; a comma after it is passed. False: there is none. */
static bool next_range(const char **at, uint32_t *ret_first, uint32_t *ret_last)
{
    char *end;
    size_t n = strspn(*at, "0123456789");

    if (n == 0 || n > 9)
        return false;
    *ret_first = *ret_last = (uint32_t)strtoul(*at, &end, 10);
    if (*end == '-') {
        n = strspn(end + 1, "0123456789");
        if (n == 0 || n > 9)
            return false;
        *ret_last = (uint32_t)strtoul(end + 1, &end, 10);
    }
    if ((*end && *end != ',') || *ret_last < *ret_first)
        return false;
    *at = *end ? end + 1 : end;
    return !*end || end[1];
}

int pb_ranges_check(const char *ranges)
{
    uint32_t first, last;

    if (!*ranges)
        return -EINVAL;
    while (*ranges)
        if (!next_range(&ranges, &first, &last))
            return -EINVAL;
    return 0;
}

bool pb_ranges_have(const char *ranges, uint32_t number)
{
    uint32_t first, last;

    while (*ranges && next_range(&ranges, &first, &last))
        if (number >= first && number <= last)
            return true;
    return false;
}

/* --- names with brackets --- */

struct hostlist {
    int (*each)(void *arg, const char *name);
    void *arg;
    size_t n;
};

/* One entry of the list: expands the first bracket, and calls itself for what is behind it. */
static int expand(struct hostlist *h, const char *entry, unsigned depth)
{
    const char *open = strchr(entry, '['), *close = open ? strchr(open, ']') : NULL;
    char name[2 * PB_CLUSTER_TEXT];

    if (!open) {
        if (!*entry || strchr(entry, ']') || strlen(entry) >= PB_CLUSTER_TEXT)
            return -EINVAL;
        return ++h->n > PB_CLUSTER_NODES ? -E2BIG : h->each(h->arg, entry);
    }
    if (!close || close == open + 1 || depth == 4)
        return -EINVAL;
    for (const char *at = open + 1; at < close;) {
        size_t width = strspn(at, "0123456789");
        char *end;
        uint32_t first = (uint32_t)strtoul(at, &end, 10), last = first;
        if (width == 0 || width > 9)
            return -EINVAL;
        if (*end == '-') {
            size_t second = strspn(end + 1, "0123456789");
            if (second == 0 || second > 9)
                return -EINVAL;
            last = (uint32_t)strtoul(end + 1, &end, 10);
        }
        if ((*end != ',' && end != close) || last < first || last - first >= PB_CLUSTER_NODES)
            return -EINVAL;
        for (uint32_t i = first; i <= last; i++) {
            int n = snprintf(name, sizeof(name), "%.*s%0*u%s", (int)(open - entry), entry, (int)width, i,
                             close + 1);
            int r = n < 0 || (size_t)n >= sizeof(name) ? -EINVAL : expand(h, name, depth + 1);
            if (r < 0)
                return r;
        }
        at = end == close ? close : end + 1;
    }
    return 0;
}

int pb_hostlist_each(const char *list, int (*each)(void *arg, const char *name), void *arg)
{
    struct hostlist h = {each, arg, 0};
    char entry[PB_CLUSTER_TEXT];

    if (!*list)
        return -EINVAL;
    while (*list) {
        size_t n = 0;
        for (bool inside = false; list[n] && (inside || list[n] != ','); n++)
            inside = list[n] == '[' || (inside && list[n] != ']');
        if (n == 0 || n >= sizeof(entry))
            return -EINVAL;
        memcpy(entry, list, n);
        entry[n] = '\0';
        int r = expand(&h, entry, 0);
        if (r < 0)
            return r;
        list += n;
        if (*list == ',' && !*++list)
            return -EINVAL;
    }
    return 0;
}

/* --- ranks by their roles --- */

struct wish {
    char name[PB_ROLE_NAME];
    bool any;
    char values[64]; /* numbers and ranges, of one "=" */
};

/* "pp=3,tp=*,dp=0-3": a part without "=" goes on with the values before it ("pp=1,3"). */
static int read_wishes(const char *text, struct wish wishes[PB_ROLES], size_t *ret_n)
{
    size_t n = 0;

    while (*text) {
        size_t whole = strcspn(text, ","), name = strcspn(text, "=,");
        const char *value = text + (text[name] == '=' ? name + 1 : 0);
        size_t length = whole - (size_t)(value - text);
        if (text[name] == '=') {
            if (n == PB_ROLES || name == 0 || name >= PB_ROLE_NAME)
                return -EINVAL;
            wishes[n] = (struct wish){0};
            memcpy(wishes[n].name, text, name);
            n++;
        }
        struct wish *w = n ? &wishes[n - 1] : NULL;
        size_t had = w ? strlen(w->values) : 0;
        if (!w || length == 0 || had + length + 2 > sizeof(w->values) || w->any)
            return -EINVAL;
        if (length == 1 && *value == '*' && !had)
            w->any = true;
        else
            snprintf(w->values + had, sizeof(w->values) - had, "%s%.*s", had ? "," : "", (int)length, value);
        text += whole;
        if (*text == ',' && !*++text)
            return -EINVAL;
    }
    for (size_t i = 0; i < n; i++)
        if (!wishes[i].any && pb_ranges_check(wishes[i].values) < 0)
            return -EINVAL;
    *ret_n = n;
    return n ? 0 : -EINVAL;
}

static bool fits(const struct pb_cluster_rank *rank, const struct wish *wishes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int64_t value = pb_roles_get(&rank->roles, wishes[i].name);
        if (value < 0 || (!wishes[i].any && !pb_ranges_have(wishes[i].values, (uint32_t)value)))
            return false;
    }
    return true;
}

/* --- both --- */

void pb_selection_done(struct pb_selection *s)
{
    free(s->wanted);
    free(s->node);
    *s = (struct pb_selection){0};
}

struct named {
    const struct pb_cluster *c;
    struct pb_selection *s;
    char missing[PB_CLUSTER_TEXT];
};

static int select_node(void *arg, const char *name)
{
    struct named *n = arg;
    ssize_t i = pb_cluster_find_node(n->c, name);

    if (i < 0) {
        snprintf(n->missing, sizeof(n->missing), "%s", name);
        return -ENOENT;
    }
    n->s->node[i] = true;
    return 0;
}

/* The ranks of a selection, as ranges, and the nodes that have them. */
static int select_ranks(const struct pb_cluster *c, struct pb_selection *s, struct pb_err *err)
{
    struct wish wishes[PB_ROLES];
    size_t nwishes = 0, length;
    bool roles = strchr(s->ranks, '=');
    _cleanup_free_ bool *has = calloc(c->nnodes + 1, sizeof(*has));
    int32_t first = -1, last = -1;

    if (roles ? read_wishes(s->ranks, wishes, &nwishes) < 0 : pb_ranges_check(s->ranks) < 0)
        return pb_fail(err, -EINVAL, "'%s' is no selection of ranks such as 0-7,64 or pp=3,tp=*", s->ranks);
    FILE *out = has ? open_memstream(&s->wanted, &length) : NULL;
    if (!out)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i <= c->nranks; i++) {
        const struct pb_cluster_rank *r = i < c->nranks ? &c->ranks[i] : NULL;
        if (r && (!s->node[r->node] ||
                  !(roles ? fits(r, wishes, nwishes) : pb_ranges_have(s->ranks, (uint32_t)r->rank))))
            continue;
        if (first >= 0 && (!r || r->rank != last + 1)) {
            fprintf(out, first == last ? "%d" : "%d-%d", first, last);
            fputs(r ? "," : "", out);
            first = -1;
        }
        if (!r)
            break;
        first = first < 0 ? r->rank : first;
        last = r->rank;
        has[r->node] = true;
        s->nranks++;
    }
    if (fclose(out) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (s->nranks == 0)
        return pb_fail(err, -EINVAL, "no rank of cluster %s is %s%s", c->name, s->ranks,
                       s->nodes ? " on those nodes" : "");
    memcpy(s->node, has, c->nnodes * sizeof(*has));
    return 0;
}

int pb_select(const struct pb_cluster *c, const char *ranks, const char *nodes, struct pb_selection *ret,
              struct pb_err *err)
{
    _cleanup_(pb_selection_done) struct pb_selection s = {.ranks = ranks, .nodes = nodes};
    struct named named = {.c = c, .s = &s};
    int r = 0;

    s.nnodes = c->nnodes;
    s.node = calloc(c->nnodes + 1, sizeof(*s.node));
    if (!s.node)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (nodes)
        r = pb_hostlist_each(nodes, select_node, &named);
    else
        memset(s.node, true, c->nnodes * sizeof(*s.node));
    if (r == -ENOENT)
        return pb_fail(err, r, "cluster %s has no node %s (probing cluster show)", c->name, named.missing);
    if (r < 0)
        return pb_fail(err, r, "'%s' is no list of nodes such as n[01-16],m3", nodes);
    if (ranks) {
        r = select_ranks(c, &s, err);
        if (r < 0)
            return r;
    } else {
        for (size_t i = 0; i < c->nranks; i++)
            s.nranks += s.node[c->ranks[i].node];
    }
    for (size_t i = 0; i < c->nnodes; i++)
        s.asked += s.node[i];
    *ret = pb_take(s, (struct pb_selection){0});
    return 0;
}
