/* archive_nodes: archives of many ranks as nodes of a cluster; see archive_nodes.h. */
#include "cluster/archive_nodes.h"

#include "ask/archived.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "cluster/link/node_wire.h"
#include "control/identity.h"
#include "remote/runs.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN "unknown"

static void runs_cleanup(struct pb_archive_runs *runs)
{
    pb_archive_runs_done(runs);
}

/* --- the answering end --- */

static void read_rank(const struct pb_archive_run *run, struct pb_cluster_rank *ret, uint32_t *world)
{
    struct pb_run_info info = {.dir_fd = -1};
    struct pb_identity id = {0};

    snprintf(info.about, sizeof(info.about), "%s", run->about);
    for (int i = 0; i < PB_ID_FIELDS; i++)
        pb_run_get(&info, pb_identity_name(i), id.value[i], sizeof(id.value[i]));
    *ret = (struct pb_cluster_rank){.rank = run->rank,
                                    .local = (int32_t)pb_identity_number(&id, PB_ID_LOCAL_RANK, 1 << 16),
                                    .pid = run->pid > 0 ? run->pid : 1,
                                    .start_time = run->start_time};
    pb_identity_roles(&id, &ret->roles);
    int64_t size = pb_identity_number(&id, PB_ID_WORLD_SIZE, PB_CLUSTER_RANKS);
    *world = size > (int64_t)*world ? (uint32_t)size : *world;
}

int pb_history_members(const char *folder, const char *node, struct pb_node_members *ret, struct pb_err *err)
{
    _cleanup_(runs_cleanup) struct pb_archive_runs runs = {0};
    struct pb_node_members members = {0};
    char name[PB_ARCHIVE_NODE];

    int r = pb_archive_runs_read(folder, &runs, err);
    if (r < 0)
        return r;
    members.at = calloc(runs.n + 1, sizeof(*members.at));
    if (!members.at)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < runs.n; i++) {
        size_t k = 0;
        if (runs.at[i].rank < 0 || strcmp(pb_archived_node(&runs.at[i], name), node) != 0)
            continue;
        while (k < members.n && members.at[k].rank != runs.at[i].rank)
            k++; /* runs are sorted: the newest of a rank counts */
        if (k == members.n && members.n < PB_WIRE_NODE_RANKS)
            read_rank(&runs.at[i], &members.at[members.n++], &members.world);
    }
    *ret = members;
    return 0;
}

/* --- the asking end --- */

/* Which node has that address; as many as there are: none. */
static size_t find_address(const struct pb_cluster *c, const char *folder, const char *node)
{
    char address[PB_CLUSTER_TEXT];
    size_t i = 0;

    snprintf(address, sizeof(address), "%s@%s", folder, node);
    while (i < c->nnodes && strcmp(c->nodes[i].address, address) != 0)
        i++;
    return i;
}

/* "n1"; "folder/n1" where another archive has that node too. */
static int add_node(struct pb_cluster *c, const char *folder, const char *node, struct pb_err *err)
{
    char address[PB_CLUSTER_TEXT], name[PB_CLUSTER_TEXT];
    const char *base = strrchr(folder, '/');

    if (strchr(node, '@') ||
        (size_t)snprintf(address, sizeof(address), "%s@%s", folder, node) >= sizeof(address))
        return pb_fail(err, -ENAMETOOLONG, "%s: its path or the name of its node %s cannot be used", folder,
                       node);
    if (find_address(c, folder, node) < c->nnodes)
        return 0;
    snprintf(name, sizeof(name), "%s", node[0] ? node : UNKNOWN);
    int r = pb_cluster_add_node(c, name, address);
    if (r == -EEXIST) {
        snprintf(name, sizeof(name), "%.100s/%.100s", base ? base + 1 : folder, node[0] ? node : UNKNOWN);
        r = pb_cluster_add_node(c, name, address);
    }
    return r < 0 ? pb_fail(err, r, "%s: its path or the name of its node %s cannot be used", folder, node)
                 : 0;
}

/* The nodes of one archive; no node if the folder is no archive. */
static int add_archive(struct pb_cluster *c, const char *folder, struct pb_err *err)
{
    _cleanup_(runs_cleanup) struct pb_archive_runs runs = {0};
    char node[PB_ARCHIVE_NODE];

    int r = pb_archive_runs_read(folder, &runs, err);
    for (size_t i = 0; r == 0 && i < runs.n; i++) {
        struct pb_cluster_rank rank;
        pb_archived_node(&runs.at[i], node);
        r = add_node(c, folder, node, err);
        if (r < 0 || runs.at[i].rank < 0)
            continue;
        read_rank(&runs.at[i], &rank, &c->world);
        rank.node = (uint32_t)find_address(c, folder, node);
        pb_cluster_add_rank(c, &rank); /* -EEXIST: of another job, or an earlier run */
    }
    return r;
}

int pb_history_find(struct pb_cluster *c, const char *given, struct pb_err *err)
{
    char folder[PATH_MAX], below[PATH_MAX + 256];
    struct dirent *entry;

    if (!realpath(given, folder))
        return pb_fail(err, -errno, "%s cannot be read: %s", given, strerror(errno));
    int r = add_archive(c, folder, err);
    if (r < 0 || c->nnodes)
        return r;
    DIR *dir = opendir(folder);
    while (dir && r == 0 && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.' || entry->d_type == DT_LNK)
            continue;
        snprintf(below, sizeof(below), "%s/%s", folder, entry->d_name);
        r = add_archive(c, below, err);
    }
    if (dir)
        closedir(dir);
    return r < 0 || c->nnodes ? r : pb_fail(err, -ENOENT, "no archived run in %s", folder);
}
