/* members: see members.h. */
#include "cluster/members.h"

#include "ask/processes.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "cluster/select.h"
#include "control/identity.h"
#include "remote/procinfo.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ONE_LIMIT_MS = 1000, ROOM = 4 << 20 };

struct member {
    struct pb_cluster_rank rank;
    pid_t ppid;
    uint32_t world;
    bool python;
    char launcher[16];
    char job[128]; /* VARIABLE=VALUE that tells it from another job; "": nothing does */
};

void pb_members_done(struct pb_node_members *m)
{
    free(m->at);
    *m = (struct pb_node_members){0};
}

static bool has_entry(const char *environment, size_t length, const char *entry)
{
    size_t n = strlen(entry);

    for (size_t at = 0; at < length; at += strnlen(environment + at, length - at) + 1)
        if (strnlen(environment + at, length - at) == n && memcmp(environment + at, entry, n) == 0)
            return true;
    return false;
}

int64_t pb_identity_number(const struct pb_identity *id, enum pb_identity_field field, int64_t most)
{
    const char *text = id->value[field];
    size_t n = strspn(text, "0123456789");

    if (n == 0 || n > 9 || text[n])
        return -1;
    int64_t value = strtoll(text, NULL, 10);
    return value <= most ? value : -1;
}

void pb_identity_roles(const struct pb_identity *id, struct pb_roles *ret)
{
    static const struct {
        const char *name;
        enum pb_identity_field field;
    } roles[] = {{"tp", PB_ID_TP_RANK}, {"pp", PB_ID_PP_RANK}, {"dp", PB_ID_DP_RANK}};

    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        int64_t value = pb_identity_number(id, roles[i].field, PB_CLUSTER_RANKS);
        if (value >= 0)
            pb_roles_add(ret, roles[i].name, (uint32_t)value);
    }
}

bool pb_member_read(const char *environment, size_t length, const char *match, struct pb_cluster_rank *ret,
                    uint32_t *ret_world, const char **ret_launcher)
{
    struct pb_identity id;

    if (match && match[0] && !has_entry(environment, length, match))
        return false;
    pb_identity_read(environment, length, &id);
    int64_t rank = pb_identity_number(&id, PB_ID_RANK, PB_CLUSTER_RANKS - 1);
    if (rank < 0)
        return false;
    int64_t world = pb_identity_number(&id, PB_ID_WORLD_SIZE, PB_CLUSTER_RANKS);
    *ret = (struct pb_cluster_rank){.rank = (int32_t)rank,
                                    .local = (int32_t)pb_identity_number(&id, PB_ID_LOCAL_RANK, 1 << 16)};
    pb_identity_roles(&id, &ret->roles);
    *ret_world = world > 0 ? (uint32_t)world : 0;
    *ret_launcher = id.launcher;
    return true;
}

/* Variables that distinguish two jobs, the most reliable first. torchrun calls its job "none" by default. */
static void find_job(const char *environment, size_t length, char ret[128])
{
    static const char *const names[] = {
        "PROBING_JOB=", "TORCHELASTIC_RUN_ID=", "RAY_JOB_ID=", "SLURM_JOB_ID=", "JOB_NAME=", "MASTER_PORT="};

    ret[0] = '\0';
    for (size_t i = 0; !ret[0] && i < sizeof(names) / sizeof(names[0]); i++)
        for (size_t at = 0; at < length; at += strnlen(environment + at, length - at) + 1) {
            size_t n = strnlen(environment + at, length - at), name = strlen(names[i]);
            if (n > name && n < 128 && memcmp(environment + at, names[i], name) == 0 &&
                !(n == name + 4 && memcmp(environment + at + name, "none", 4) == 0))
                snprintf(ret, 128, "%.*s", (int)n, environment + at);
        }
}

struct member_look {
    const struct pb_processes *all;
    const char *match, *ranks;
    pid_t caller;
};

/* Without an answer: it is no rank of the job. */
static int look(const struct pb_ask *ask, void *arg, size_t i, struct pb_room *room, void **ret)
{
    const struct member_look *l = arg;
    _cleanup_free_ char *environment = NULL;
    struct member m = {.ppid = l->all->at[i].ppid};
    struct pb_procinfo info;
    const char *launcher;
    size_t length;
    pid_t pid = l->all->at[i].pid;

    (void)ask;
    if (pid == l->caller || pid == getpid() ||
        pb_proc_slurp(pb_proc_living(pid), "environ", &environment, &length) < 0 ||
        !pb_member_read(environment, length, l->match, &m.rank, &m.world, &launcher) ||
        pb_procinfo_read(pid, &info, NULL) < 0 || info.state == 'Z' || info.state == 'X')
        return 0;
    m.rank.pid = pid;
    m.rank.start_time = info.start_time;
    m.python = info.python;
    snprintf(m.launcher, sizeof(m.launcher), "%s", launcher);
    find_job(environment, length, m.job);
    *ret = pb_room_copy(room, &m, sizeof(m));
    return *ret ? 0 : -ENOSPC;
}

static int look_for_torch(const struct pb_ask *ask, void *arg, size_t i, struct pb_room *room, void **ret)
{
    const struct pb_node_members *m = arg;
    _cleanup_free_ char *maps = NULL;
    size_t length;

    (void)ask;
    if (pb_proc_slurp(pb_proc_living(m->at[i].pid), "maps", &maps, &length) == 0 &&
        memmem(maps, length, "/libtorch", 9))
        *ret = pb_room_copy(room, "", 1);
    return 0;
}

void pb_members_find_torch(const struct pb_ask *ask, struct pb_node_members *m)
{
    struct pb_each each = {
        .work = look_for_torch, .arg = m, .n = m->n, .limit_ms = ONE_LIMIT_MS, .room_size = ROOM};

    if (pb_each_run(ask, &each) == 0)
        for (size_t i = 0; i < m->n; i++)
            m->at[i].has_torch = each.at[i].answer != NULL;
    pb_each_done(&each);
}

/* A process whose child has its rank of another launcher only started the ranks: torchrun in a task of
 * SLURM. */
static bool is_launcher(const struct member *m, const struct member *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (all[i].ppid == m->rank.pid && strcmp(all[i].launcher, m->launcher) != 0)
            return true;
    return false;
}

/* Whether process a represents the rank rather than b: Python before the shell that started it, a parent
 * before its children. */
static bool is_better(const struct member *a, const struct member *b)
{
    if (a->python != b->python)
        return a->python;
    if (a->rank.start_time != b->rank.start_time)
        return a->rank.start_time < b->rank.start_time;
    return a->rank.pid < b->rank.pid;
}

static int by_rank(const void *a, const void *b)
{
    const struct member *x = a, *y = b;

    if (x->rank.rank != y->rank.rank)
        return x->rank.rank < y->rank.rank ? -1 : 1;
    return is_better(x, y) ? -1 : 1;
}

/* Names the jobs, where there are several: sorted by rank, so each with its ranks in order. */
static void name_jobs(const struct member *all, size_t n, char *ret, size_t size)
{
    size_t at = 0, jobs = 0;

    for (size_t i = 0; i < n; i++) {
        bool named = false;
        size_t ranks = 0;
        for (size_t k = 0; !named && k < i; k++)
            named = strcmp(all[k].job, all[i].job) == 0;
        if (named || !all[i].job[0] || is_launcher(&all[i], all, n))
            continue;
        jobs++;
        for (size_t k = i; k < n; k++)
            ranks += strcmp(all[k].job, all[i].job) == 0;
        if (at < size)
            at += (size_t)snprintf(ret + at, size - at, "%s%s (%zu process%s)", at ? ", " : "", all[i].job,
                                   ranks, ranks == 1 ? "" : "es");
    }
    if (jobs < 2)
        ret[0] = '\0';
}

static int keep(struct member *all, size_t n, const char *ranks, struct pb_node_members *ret)
{
    size_t kept = 0;

    for (size_t i = 0; i < n; i++)
        all[i].python = all[i].python && !is_launcher(&all[i], all, n);
    qsort(all, n, sizeof(*all), by_rank);
    name_jobs(all, n, ret->jobs, sizeof(ret->jobs));
    ret->at = calloc(n + 1, sizeof(*ret->at));
    if (!ret->at)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct member *m = &all[i];
        if ((i && all[i - 1].rank.rank == m->rank.rank) || (!m->python && is_launcher(m, all, n)))
            continue;
        ret->world = m->world > ret->world ? m->world : ret->world;
        if (!ranks || pb_ranges_have(ranks, (uint32_t)m->rank.rank))
            ret->at[kept++] = m->rank;
    }
    ret->n = kept;
    return 0;
}

int pb_members_read(const struct pb_ask *ask, const char *match, const char *ranks,
                    struct pb_node_members *ret, struct pb_err *err)
{
    _cleanup_(pb_processes_done) struct pb_processes all = {0};
    struct member_look looking = {&all, match, ranks, getpid()};
    struct pb_each each = {.work = look, .arg = &looking, .limit_ms = ONE_LIMIT_MS, .room_size = ROOM};
    struct pb_node_members members = {0};
    size_t n = 0;

    int r = pb_processes_read(ask, &all, err);
    if (r < 0)
        return r;
    each.n = all.n;
    r = pb_each_run(ask, &each);
    _cleanup_free_ struct member *found = calloc(all.n + 1, sizeof(*found));
    for (size_t i = 0; r == 0 && found && i < each.n; i++) {
        if (each.at[i].result == -ETIMEDOUT)
            pb_ask_note(ask, "process %d hangs in the kernel and is left out", (int)all.at[i].pid);
        else if (each.at[i].answer)
            memcpy(&found[n++], each.at[i].answer, sizeof(*found));
    }
    pb_each_done(&each);
    if (r == 0)
        r = found ? keep(found, n, ranks, &members) : -ENOMEM;
    if (r < 0)
        return pb_fail(err, r, r == -ECANCELED ? "cancelled" : "out of memory");
    if (match && match[0])
        members.jobs[0] = '\0'; /* the user named the job */
    *ret = members;
    return 0;
}
