/* cluster_look: which ranks the nodes have, and whether they could be probed; see cluster_look.h. */
#include "cluster/questions/cluster_look.h"

#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cluster/link/link.h"
#include "cluster/questions/cluster_answer.h"
#include "cluster/questions/cluster_clock.h"
#include "inject/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the node --- */

enum { ONE_LIMIT_MS = 1000, ROOM = 1 << 20 };

struct verdict {
    char text[400];
};

/* Without an answer: nothing stands in the way. */
static int check_rank(const struct pb_ask *ask, void *arg, size_t i, struct pb_room *room, void **ret)
{
    const struct pb_node_members *members = arg;
    struct pb_check checks[PB_CHECKS_MAX];
    struct verdict v;

    (void)ask;
    int n = pb_inject_check(members->at[i].pid, checks, PB_CHECKS_MAX);
    for (int k = 0; k < n; k++) {
        if (checks[k].state != PB_CHECK_FAIL)
            continue;
        snprintf(v.text, sizeof(v.text), "%s: %s%s%s%s", checks[k].name, checks[k].found,
                 checks[k].remedy[0] ? " (" : "", checks[k].remedy, checks[k].remedy[0] ? ")" : "");
        *ret = pb_room_copy(room, &v, sizeof(v));
        return *ret ? 0 : -ENOSPC;
    }
    return 0;
}

int pb_answer_look(const struct pb_answering *a, struct pb_err *err)
{
    const struct pb_node_members *members = a->members;
    struct pb_each each = {.work = check_rank,
                           .arg = (void *)(uintptr_t)members,
                           .n = members->n,
                           .limit_ms = ONE_LIMIT_MS,
                           .room_size = ROOM};

    if (members->jobs[0])
        return pb_fail(err, -EINVAL,
                       "there are ranks of several jobs: %.350s; take one with --match VARIABLE=VALUE",
                       members->jobs);
    if (a->question->nwords > 1 && strcmp(a->question->words[1], "roles") == 0)
        pb_answer_take_roles(a);
    int r = members->n ? pb_each_run(&a->ask, &each) : 0;
    for (size_t i = 0; i < members->n; i++) {
        const struct verdict *v = r == 0 ? each.at[i].answer : NULL;
        pb_answer_rank(a->out, &members->at[i], members->world);
        if (v)
            pb_answer_bytes(a->out, true, v->text, strnlen(v->text, sizeof(v->text)));
        pb_answer_exit(a->out, 0);
    }
    pb_each_done(&each);
    return 0;
}

/* --- the asking end --- */

/* What is known of the ranks beside what the cluster keeps. */
struct looking {
    struct pb_cluster *c;
    struct pb_cluster_look_notes *notes;
};

static void take_notes(struct looking *l, const struct pb_node_answer *answer)
{
    struct pb_cluster_look_notes *notes = l->notes;

    for (size_t i = 0; i < answer->nranks; i++) {
        const struct pb_answer_part *p = &answer->ranks[i];
        if (!p->errors.n || notes->n == notes->cap)
            continue;
        snprintf(notes->at[notes->n].text, sizeof(notes->at[0].text), "%s", p->errors.at);
        notes->at[notes->n++].rank = p->rank.rank;
    }
}

static int take_answer(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err)
{
    struct looking *l = arg;
    struct pb_cluster *c = l->c;

    snprintf(c->nodes[node].version, sizeof(c->nodes[node].version), "%s", answer->version);
    /* All or nothing: if a node claims a rank of another node, its whole answer is dropped. */
    for (size_t i = 0; i < answer->nranks; i++) {
        const struct pb_cluster_rank *other = pb_cluster_find_rank(c, answer->ranks[i].rank.rank);
        if (other)
            return pb_fail(err, -EEXIST, "it reports rank %d, which %s already has", other->rank,
                           c->nodes[other->node].name);
    }
    for (size_t i = 0; i < answer->nranks; i++) {
        struct pb_cluster_rank rank = answer->ranks[i].rank;
        rank.node = (uint32_t)node;
        int r = pb_cluster_add_rank(c, &rank);
        if (r < 0)
            return pb_fail(err, r, "its ranks cannot be stored: %s", strerror(-r));
    }
    c->world = answer->world > c->world ? answer->world : c->world;
    take_notes(l, answer);
    return 0;
}

/* Do not ask for a layout that the user gave, "none" included. */
static bool asks_roles(const struct pb_cluster *c)
{
    return !c->layout[0];
}

static int compute_roles(struct pb_cluster *c, struct pb_err *err)
{
    bool computed = c->layout[0] && strcmp(c->layout, "none") != 0;

    for (size_t i = 0; computed && i < c->nranks; i++) {
        int r = pb_roles_compute(c->layout, c->world ? c->world : (uint32_t)c->nranks,
                                 (uint32_t)c->ranks[i].rank, &c->ranks[i].roles, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The clocks of the nodes that have answered. What fails leaves them unknown, which cluster.clocks tells. */
static void measure_clocks(struct pb_cluster *c, struct pb_selection *s,
                           const struct pb_cluster_result *result, struct pb_links *links)
{
    enum { LIMIT_MS = 2000 };
    struct pb_err ignored = {0};

    for (size_t i = 0; i < s->nnodes; i++)
        if (s->node[i] && result->nodes[i].state != PB_NODE_ANSWERED) {
            s->node[i] = false;
            s->asked--;
        }
    if (s->asked)
        pb_cluster_measure(c, s, links, LIMIT_MS, &ignored);
}

static void links_done(struct pb_links **l)
{
    pb_links_free(*l);
}

int pb_cluster_look(struct pb_cluster *c, unsigned deadline_ms, struct pb_cluster_result *ret,
                    struct pb_cluster_look_notes *notes, struct pb_err *err)
{
    struct looking looking = {c, notes};
    _cleanup_(pb_selection_done) struct pb_selection s = {0};
    static const char *const words[] = {"look", "roles"};
    struct pb_cluster_question q = {.selection = &s,
                                    .words = words,
                                    .nwords = asks_roles(c) ? 2 : 1,
                                    .deadline_ms = deadline_ms,
                                    .most = 1 << 20,
                                    .answer = take_answer,
                                    .arg = &looking};
    _cleanup_(links_done) struct pb_links *links = NULL;

    c->nranks = 0;
    c->world = 0;
    int r = pb_select(c, NULL, NULL, &s, err);
    if (r == 0 && pb_links_new(c, &links) < 0)
        r = pb_fail(err, -ENOMEM, "out of memory");
    /* A launcher of all nodes keeps its link only where all of them are there, which is not known yet. */
    q.links = pb_way_is_labelled(c->way) ? NULL : links;
    if (r == 0)
        r = pb_cluster_ask(c, &q, ret, err);
    if (r < 0)
        return r;
    c->seen_ns = pb_wall_ns();
    measure_clocks(c, &s, ret, links);
    r = compute_roles(c, err);
    if (r < 0)
        pb_cluster_result_done(ret);
    return r;
}
