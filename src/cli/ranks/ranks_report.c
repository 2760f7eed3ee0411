/* ranks_report: messages about nodes and ranks; see ranks.h. */
#include "base/cleanup.h"
#include "cli/ranks/ranks.h"
#include "print/outlet.h"

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
        pb_put_sentence(stderr, n->why);
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

bool pb_cluster_tell_missing(const struct pb_cluster *c, const struct pb_selection *s,
                             const struct pb_cluster_result *r, bool (*has)(const void *arg, int32_t rank),
                             const void *arg)
{
    size_t size = c->nranks ? (size_t)c->ranks[c->nranks - 1].rank + 1 : 0, n = 0;
    _cleanup_free_ bool *gone = calloc(size + 1, sizeof(*gone));

    for (size_t i = 0; gone && i < c->nranks; i++) {
        const struct pb_cluster_rank *k = &c->ranks[i];
        bool wanted = s->node[k->node] && (!s->wanted || pb_ranges_have(s->wanted, (uint32_t)k->rank));
        if (wanted && r->nodes[k->node].state == PB_NODE_ANSWERED && !has(arg, k->rank)) {
            gone[k->rank] = true;
            n++;
        }
    }
    if (!n)
        return false;
    fflush(stdout);
    fputs(n == 1 ? "rank " : "ranks ", stderr);
    pb_cluster_put_ranks(stderr, gone, size);
    fprintf(stderr, "%s gone: ended or restarted (probing cluster refresh updates the list)\n",
            n == 1 ? " is" : " are");
    return true;
}
