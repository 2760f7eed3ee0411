/* cluster: the nodes and ranks of a cluster in memory; see cluster.h. */
#include "cluster/cluster.h"
#include "base/vector.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const way_names[PB_WAYS] = {
    [PB_WAY_LOCAL] = "local",           [PB_WAY_SERVICES] = "services", [PB_WAY_SSH] = "ssh",
    [PB_WAY_KUBERNETES] = "kubernetes", [PB_WAY_SLURM] = "slurm",       [PB_WAY_RAY] = "ray",
};

const char *pb_cluster_way_name(enum pb_cluster_way way)
{
    return way < PB_WAYS ? way_names[way] : "?";
}

void pb_cluster_done(struct pb_cluster *c)
{
    free(c->nodes);
    free(c->ranks);
    *c = (struct pb_cluster){0};
}

bool pb_cluster_is_name(const char *name)
{
    size_t n = strlen(name);

    return n && n < PB_CLUSTER_NAME && name[0] != '.' && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

/* A word of the file: it is printed, and handed to a launcher as an argument. */
static bool is_word(const char *text)
{
    size_t n = strlen(text);

    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] <= ' ' || text[i] == 127)
            return false;
    return n && n < PB_CLUSTER_TEXT && text[0] != '-';
}

ssize_t pb_cluster_find_node(const struct pb_cluster *c, const char *name)
{
    for (size_t i = 0; i < c->nnodes; i++)
        if (strcmp(c->nodes[i].name, name) == 0)
            return (ssize_t)i;
    return -1;
}

int pb_cluster_add_node(struct pb_cluster *c, const char *name, const char *address)
{
    if (!is_word(name) || !is_word(address))
        return -EINVAL;
    if (c->nnodes == PB_CLUSTER_NODES)
        return -ENOSPC;
    if (pb_cluster_find_node(c, name) >= 0)
        return -EEXIST;
    int r = pb_grow_full((void **)&c->nodes, c->nnodes, sizeof(*c->nodes));
    if (r < 0)
        return r;
    struct pb_cluster_node *node = &c->nodes[c->nnodes++];
    *node = (struct pb_cluster_node){0};
    strcpy(node->name, name);
    strcpy(node->address, address);
    return 0;
}

/* The first of the list that is not before rank. */
static size_t lower_bound(const struct pb_cluster *c, int32_t rank)
{
    size_t low = 0, high = c->nranks;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c->ranks[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct pb_cluster_rank *pb_cluster_find_rank(const struct pb_cluster *c, int32_t rank)
{
    size_t i = lower_bound(c, rank);

    return i < c->nranks && c->ranks[i].rank == rank ? &c->ranks[i] : NULL;
}

int pb_cluster_add_rank(struct pb_cluster *c, const struct pb_cluster_rank *rank)
{
    if (rank->rank < 0 || rank->node >= c->nnodes)
        return -EINVAL;
    if (c->nranks == PB_CLUSTER_RANKS)
        return -ENOSPC;
    size_t at = lower_bound(c, rank->rank);
    if (at < c->nranks && c->ranks[at].rank == rank->rank)
        return -EEXIST;
    int r = pb_grow_full((void **)&c->ranks, c->nranks, sizeof(*c->ranks));
    if (r < 0)
        return r;
    memmove(&c->ranks[at + 1], &c->ranks[at], (c->nranks - at) * sizeof(*c->ranks));
    c->ranks[at] = *rank;
    c->nranks++;
    return 0;
}
