/* sampler_members: which processes are sampled, where samples go, and how long their numbers hold; see
 * sampler.h. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/time.h"
#include "profile/watch.h"

#define SHORT_TURN_NS 100000
#define HURRY_RATE    2000 /* above this rate we would have priority all the time */

bool pb_sampler_watches(const struct pb_sampler *s, pid_t pid)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->processes[i]->pid == pid)
            return true;
    return false;
}

int pb_sampler_emit(struct pb_sampler *s, const struct pb_sample *sample)
{
    if (s->sink.add)
        return s->sink.add(s->sink.arg, s->profile, sample);
    return pb_profile_add(s->profile, sample->thread, sample->node, sample->flags, sample->when,
                          sample->weight);
}

void pb_sampler_cancel_by(struct pb_sampler *s, const atomic_bool *cancelled)
{
    s->cancelled = cancelled;
}

/* Without the right to a priority: short time slices, which the scheduler grants sooner (EEVDF, Linux 6.12).
 * Older kernels ignore it. */
static void ask_for_short_turns(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {.size = sizeof(attr), .policy = SCHED_OTHER, .runtime = SHORT_TURN_NS};

    attr.nice = getpriority(PRIO_PROCESS, 0);
    (void)syscall(SYS_sched_setattr, 0, &attr, 0);
}

void pb_sampler_hurry(const struct pb_sampler_options *options)
{
    struct sched_param ahead = {.sched_priority = 1};

    /* When CPUs are short, a late sampler finds threads asleep that ran at the tick. At rates that take a
     * whole CPU the target would not run any more. */
    if (options->rate > HURRY_RATE)
        return;
    if (sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &ahead) < 0 &&
        setpriority(PRIO_PROCESS, 0, -20) < 0)
        ask_for_short_turns();
}

/* The processes after it keep their order. */
static void remove_process(struct pb_sampler *s, size_t i)
{
    pb_watch_free(s->processes[i]);
    s->n--;
    for (; i < s->n; i++)
        s->processes[i] = s->processes[i + 1];
}

void pb_sampler_forget_ended(struct pb_sampler *s)
{
    for (size_t i = 0; i < s->n;)
        if (s->processes[i]->ended) {
            s->left++;
            remove_process(s, i);
        } else {
            i++;
        }
}

/* Calls visit for each watched thread, in one order. */
static size_t each_thread(struct pb_sampler *s, void (*visit)(void *arg, size_t i, struct pb_watched *t),
                          void *arg)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < s->processes[i]->n; k++, n++)
            if (visit)
                visit(arg, n, &s->processes[i]->threads[k]);
    return n;
}

/* The numbers in use by threads: two nodes each, and the thread's own. */
struct held_member {
    uint32_t *nodes, *threads;
};

static void take_numbers(void *arg, size_t i, struct pb_watched *t)
{
    const struct held_member *h = arg;

    h->nodes[2 * i] = t->node;
    h->nodes[2 * i + 1] = t->last_node;
    h->threads[i] = t->thread;
}

static void give_numbers(void *arg, size_t i, struct pb_watched *t)
{
    const struct held_member *h = arg;

    t->node = h->nodes[2 * i];
    t->last_node = h->nodes[2 * i + 1];
    t->thread = h->threads[i];
}

int pb_sampler_begin_epoch(struct pb_sampler *s)
{
    size_t n = each_thread(s, NULL, NULL);
    _cleanup_free_ uint32_t *nodes = calloc(2 * n + 1, sizeof(*nodes));
    _cleanup_free_ uint32_t *threads = calloc(n + 1, sizeof(*threads));
    struct held_member held = {nodes, threads};

    if (!nodes || !threads)
        return -ENOMEM;
    each_thread(s, take_numbers, &held);
    if (s->sink.begin_epoch)
        s->sink.begin_epoch(s->sink.arg, s->profile);
    int r = pb_profile_begin_epoch(s->profile, nodes, 2 * n, threads, n);
    if (r < 0)
        return r;
    each_thread(s, give_numbers, &held);
    /* Functions are looked up again when next seen. */
    for (size_t i = 0; i < s->n; i++) {
        free(s->processes[i]->codes.at);
        s->processes[i]->codes = (struct pb_code_map){0};
    }
    return 0;
}
