/* collector: adds samples with the numbers of one profile to another profile; see sink.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "profile/sink.h"

int pb_collector_init(struct pb_collector *c, size_t memory_max)
{
    *c = (struct pb_collector){0};
    return pb_profile_new(memory_max, &c->p);
}

void pb_collector_done(struct pb_collector *c)
{
    pb_profile_free(c->p);
    free(c->nodes);
    free(c->threads);
    *c = (struct pb_collector){0};
}

static void forget_numbers(struct pb_collector *c)
{
    if (c->nnodes)
        memset(c->nodes, 0, c->nnodes * sizeof(*c->nodes));
    if (c->nthreads)
        memset(c->threads, 0, c->nthreads * sizeof(*c->threads));
}

/* Makes room for number i in a map. */
static int extend_map(uint32_t **map, size_t *n, uint32_t i)
{
    if (i < *n)
        return 0;
    size_t more_n = 2 * (size_t)i + 64;
    uint32_t *more = reallocarray(*map, more_n, sizeof(*more));
    if (!more)
        return -ENOMEM;
    memset(more + *n, 0, (more_n - *n) * sizeof(*more));
    *map = more;
    *n = more_n;
    return 0;
}

static uint32_t copy_frame(struct pb_profile *p, const struct pb_profile *names, uint32_t id)
{
    struct pb_profile_frame frame = pb_profile_frame_at(names, id);
    struct pb_profile_function f = pb_profile_function_at(names, frame.function);

    return pb_profile_frame(p, pb_profile_function(p, f.kind, f.name, f.file), frame.line);
}

/* Adds the missing ancestors from the nearest known one downwards. */
static uint32_t node_of(struct pb_collector *c, const struct pb_profile *names, uint32_t node)
{
    if (extend_map(&c->nodes, &c->nnodes, node) < 0)
        return PB_PROFILE_NONE;
    c->nodes[PB_PROFILE_ROOT] = PB_PROFILE_ROOT + 1;
    while (!c->nodes[node]) {
        uint32_t next = node;
        struct pb_node at;
        for (at = pb_profile_node_at(names, next); !c->nodes[at.parent]; at = pb_profile_node_at(names, next))
            next = at.parent;
        uint32_t own = pb_profile_node(c->p, c->nodes[at.parent] - 1, copy_frame(c->p, names, at.frame));
        if (own == PB_PROFILE_NONE)
            return PB_PROFILE_NONE;
        c->nodes[next] = own + 1;
    }
    return c->nodes[node] - 1;
}

static uint32_t thread_of(struct pb_collector *c, const struct pb_profile *names, uint32_t thread)
{
    if (extend_map(&c->threads, &c->nthreads, thread) < 0)
        return PB_PROFILE_NONE;
    if (!c->threads[thread]) {
        struct pb_profile_thread t = pb_profile_thread_at(names, thread);
        /* A sum from another machine may be any number: unsigned, it only wraps. */
        pid_t pid = (pid_t)((uint32_t)t.pid + (uint32_t)c->shift),
              tid = (pid_t)((uint32_t)t.tid + (uint32_t)c->shift);
        uint32_t own = pb_profile_thread(c->p, pid, tid, t.name, t.process);
        if (own == PB_PROFILE_NONE)
            return PB_PROFILE_NONE;
        pb_profile_rank_thread(c->p, own, t.rank);
        c->threads[thread] = own + 1;
    }
    return c->threads[thread] - 1;
}

static int add_sample(void *arg, const struct pb_profile *names, const struct pb_sample *sample)
{
    struct pb_collector *c = arg;
    struct pb_profile_facts *facts = pb_profile_facts(c->p);

    facts->rate = pb_profile_facts_of(names)->rate; /* the length of spans depends on it */
    uint32_t thread = thread_of(c, names, sample->thread), node = node_of(c, names, sample->node);
    if (thread == PB_PROFILE_NONE || node == PB_PROFILE_NONE)
        return -ENOSPC;
    return pb_profile_add(c->p, thread, node, sample->flags, sample->when, sample->weight);
}

static void begin_epoch(void *arg, const struct pb_profile *names)
{
    pb_collector_sync(arg, names);
    forget_numbers(arg);
}

struct pb_sink pb_collector_sink(struct pb_collector *c)
{
    return (struct pb_sink){c, add_sample, begin_epoch};
}

void pb_collector_sync(struct pb_collector *c, const struct pb_profile *names)
{
    for (size_t i = 0; i < c->nthreads && i < pb_profile_nthreads(names); i++) {
        struct pb_profile_thread t = pb_profile_thread_at(names, (uint32_t)i);
        if (!c->threads[i])
            continue;
        pb_profile_name_thread(c->p, c->threads[i] - 1, t.name);
        if (t.ran)
            pb_profile_mark_ran(c->p, c->threads[i] - 1);
    }
    *pb_profile_facts(c->p) = *pb_profile_facts_of(names);
}
