/* graph: who waits for whom, and where each chain of waits ends; see facts.h.
 *
 * A thread of a rank that is blocked waits for something that has an owner: a thread, a process, the ranks
 * that are not in its collective. The owners are followed to where they end. A chain that reaches no end is a
 * circle. Nothing here judges: whether an end is a fault is a rule's matter. */
#include "diagnose/facts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const end_names[PB_END_KINDS] = {
    [PB_END_RUNS] = "runs",     [PB_END_BLOCKED] = "blocked", [PB_END_STOPPED] = "stopped",
    [PB_END_HELD] = "held",     [PB_END_DEAD] = "dead",       [PB_END_CIRCLE] = "circle",
    [PB_END_GIL] = "gil",       [PB_END_DIFFERS] = "differs", [PB_END_TOGETHER] = "together",
    [PB_END_SILENT] = "silent",
};

const char *pb_diag_end_name(enum pb_diag_end_kind kind)
{
    return end_names[kind];
}

static int add_edge(struct pb_diag_job *job, struct pb_diag_edge edge)
{
    if (job->nedges % 256 == 0) {
        struct pb_diag_edge *more = reallocarray(job->edges, job->nedges + 256, sizeof(*more));
        if (!more)
            return -ENOMEM;
        job->edges = more;
    }
    job->edges[job->nedges++] = edge;
    return 0;
}

/* --- edges --- */

static bool is_gone(const struct pb_diag_process *p)
{
    return p->state == 'Z' || p->state == 'X';
}

static size_t main_of(const struct pb_diag_job *job, size_t process)
{
    return job->processes[process].n ? job->processes[process].first : PB_NOBODY;
}

/* Pids are those of the node on which `of` runs. */
static size_t find_process(const struct pb_diag_job *job, size_t of, pid_t pid)
{
    for (size_t i = 0; pid > 0 && i < job->nprocesses; i++)
        if (job->processes[i].pid == pid && strcmp(job->processes[i].node, job->processes[of].node) == 0)
            return i;
    return PB_NOBODY;
}

static size_t find_thread(const struct pb_diag_job *job, size_t process, pid_t tid)
{
    const struct pb_diag_process *p = &job->processes[process];

    for (size_t i = p->first; tid && i < p->first + p->n; i++)
        if (job->threads[i].tid == tid)
            return i;
    return PB_NOBODY;
}

/* What a program of another kind does is not read: that its rank waits for it is the end, unless it is
 * stopped or gone. */
static bool tells(const struct pb_diag_job *job, size_t process)
{
    const struct pb_diag_process *p = &job->processes[process];

    for (size_t i = p->first; i < p->first + p->n; i++)
        if (job->threads[i].python)
            return true;
    return is_gone(p) || p->state == 'T' || p->state == 't';
}

static int to_process(struct pb_diag_job *job, size_t from, size_t process, bool guessed)
{
    if (!tells(job, process))
        return 0;
    return add_edge(job, (struct pb_diag_edge){from, main_of(job, process), process, guessed});
}

static bool is_rank(const struct pb_diag_process *p)
{
    return p->rank >= 0 && p->parent == PB_NOBODY;
}

/* Both are in the same collective; where a group is unknown, they may be. */
static bool is_with(const struct pb_diag_thread *a, const struct pb_diag_thread *b)
{
    return a->wait.kind == PB_WAIT_COLLECTIVE && b->wait.kind == PB_WAIT_COLLECTIVE &&
           strcmp(a->wait.text, b->wait.text) == 0 &&
           (!a->wait.group[0] || !b->wait.group[0] || strcmp(a->wait.group, b->wait.group) == 0);
}

static bool is_in_group(const struct pb_wait *w, int rank)
{
    for (size_t i = 0; i < w->ngroup_ranks; i++)
        if (w->group_ranks[i] == rank)
            return true;
    return !w->group_ranks;
}

/* The thread of a process that is in a collective; its main thread where none is. */
static size_t subject_of(const struct pb_diag_job *job, size_t process)
{
    const struct pb_diag_process *p = &job->processes[process];
    size_t main = main_of(job, process);

    if (main != PB_NOBODY && job->threads[main].wait.kind == PB_WAIT_COLLECTIVE)
        return main;
    for (size_t i = p->first; i < p->first + p->n; i++)
        if (job->threads[i].wait.kind == PB_WAIT_COLLECTIVE && !job->threads[i].wait.writes &&
            main != PB_NOBODY && strcmp(job->threads[main].inside.function, "join") == 0)
            return i;
    return main;
}

/* The ranks that a collective waits for: of its group, and not in it. A send or receive waits for one. */
static int follow_collective(struct pb_diag_job *job, size_t from)
{
    const struct pb_diag_thread *t = &job->threads[from];
    int r = 0;

    for (size_t i = 0; r == 0 && i < job->nprocesses; i++) {
        const struct pb_diag_process *p = &job->processes[i];
        if (!is_rank(p) || i == t->process || !is_in_group(&t->wait, p->rank) ||
            (t->peer >= 0 && p->rank != t->peer))
            continue;
        size_t to = subject_of(job, i);
        if (to == PB_NOBODY || !is_with(t, &job->threads[to]))
            r = add_edge(job, (struct pb_diag_edge){from, to, i, false});
    }
    return r;
}

static int follow_holder(struct pb_diag_job *job, size_t from)
{
    const struct pb_wait *w = &job->threads[from].wait;
    size_t own = job->threads[from].process;
    size_t process = find_process(job, own, w->holder_pid);

    if (process == PB_NOBODY || (process == own && !w->holder_tid) || !tells(job, process))
        return 0;
    size_t to = w->holder_tid ? find_thread(job, process, w->holder_tid) : main_of(job, process);
    return add_edge(job, (struct pb_diag_edge){from, to, process, false});
}

/* A lock whose holder is unknown: likely the only other thread with the lock in a variable of a frame; and
 * where no other Python thread exists, the thread waits for itself. */
size_t pb_diag_suspect(const struct pb_diag_job *job, size_t thread)
{
    const struct pb_diag_thread *t = &job->threads[thread];
    const struct pb_diag_process *p = &job->processes[t->process];
    size_t found = PB_NOBODY, others = 0, suspects = 0;

    if (t->suspect)
        return find_thread(job, t->process, t->suspect);
    if (p->node[0] || t->wait.holder_tid || t->wait.kind != PB_WAIT_PYTHON_LOCK)
        return PB_NOBODY;
    for (size_t i = p->first; i < p->first + p->n; i++) {
        if (i == thread || !job->threads[i].python)
            continue;
        others++;
        if (pb_diag_has_object(&job->threads[i], t->wait.object)) {
            found = i;
            suspects++;
        }
    }
    return others == 0 ? thread : suspects == 1 ? found : PB_NOBODY;
}

static int follow_lock(struct pb_diag_job *job, size_t from)
{
    const struct pb_diag_thread *t = &job->threads[from];

    if (t->wait.holder_tid || t->wait.kind != PB_WAIT_PYTHON_LOCK)
        return follow_holder(job, from);
    size_t found = pb_diag_suspect(job, from);
    return found == PB_NOBODY ? 0 : add_edge(job, (struct pb_diag_edge){from, found, t->process, true});
}

/* A worker that waits for its next index is idle. */
static bool is_idle_worker(const struct pb_diag_thread *t)
{
    return strcmp(t->inside.function, "get") == 0 || strcmp(t->inside.function, "_poll") == 0 ||
           strcmp(t->inside.function, "poll") == 0;
}

static int follow_loader(struct pb_diag_job *job, size_t from)
{
    size_t process = job->threads[from].process;
    int r = 0;

    for (size_t i = 0; r == 0 && i < job->nprocesses; i++) {
        const struct pb_diag_process *p = &job->processes[i];
        size_t main = main_of(job, i);
        if (p->parent != process || (main == PB_NOBODY && !is_gone(p)) ||
            (main != PB_NOBODY && !job->threads[main].python) ||
            (main != PB_NOBODY && strcmp(job->threads[main].inside.function, "get") == 0 &&
             is_idle_worker(&job->threads[main])))
            continue;
        r = to_process(job, from, i, true);
    }
    return r;
}

/* join, result and the like do not name their thread: it is certain only that it is another one, and likely
 * the only one of the program's own that is neither idle nor waiting for this one. */
static int follow_work(struct pb_diag_job *job, size_t from)
{
    const struct pb_diag_process *p = &job->processes[job->threads[from].process];
    size_t found = PB_NOBODY;

    if (strcmp(job->threads[from].inside.function, "join") != 0 &&
        strcmp(job->threads[from].inside.function, "_wait_for_tstate_lock") != 0 &&
        strcmp(job->threads[from].inside.function, "_shutdown") != 0 &&
        strcmp(job->threads[from].inside.function, "result") != 0)
        return 0;
    for (size_t i = p->first; i < p->first + p->n; i++) {
        const struct pb_diag_thread *t = &job->threads[i];
        if (i == from || !t->python || !t->own.line || strstr(t->own.file, "/threading.py") ||
            strncmp(t->own.file, "<probing>", 9) == 0 || strstr(t->own.file, "concurrent/futures"))
            continue;
        if (found != PB_NOBODY)
            return 0;
        found = i;
    }
    return found == PB_NOBODY
               ? 0
               : add_edge(job, (struct pb_diag_edge){from, found, job->threads[from].process, true});
}

static int follow_children(struct pb_diag_job *job, size_t from)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < job->nprocesses; i++)
        if (job->processes[i].parent == job->threads[from].process && !is_gone(&job->processes[i]))
            r = to_process(job, from, i, true);
    return r;
}

/* A result of another process: from a child that is stopped, or that a signal has ended, none will come. */
static int follow_lost_children(struct pb_diag_job *job, size_t from)
{
    const char *inside = job->threads[from].inside.file;
    size_t edges = job->nedges;
    int r = 0;

    if (!strstr(inside, "concurrent/futures/") && !strstr(inside, "multiprocessing/"))
        return 0;
    for (size_t i = 0; r == 0 && i < job->nprocesses; i++) {
        const struct pb_diag_process *p = &job->processes[i];
        bool lost = p->state == 'T' || p->state == 't' || (p->state == 'Z' && p->signal);
        if (p->parent == job->threads[from].process && lost && job->nedges - edges < 16)
            r = to_process(job, from, i, true);
    }
    return r;
}

static int find_edges(struct pb_diag_job *job, size_t from)
{
    const struct pb_diag_thread *t = &job->threads[from];
    char state = job->processes[t->process].state;
    size_t edges = job->nedges;
    int r;

    if (t->held[0] || state == 'T' || state == 't' || t->state == 'T' || t->state == 't')
        return 0;
    switch (t->wait.kind) {
    case PB_WAIT_COLLECTIVE:
        return follow_collective(job, from);
    case PB_WAIT_LOADER_WORKER:
        return follow_loader(job, from);
    case PB_WAIT_CHILD:
        return t->wait.holder_pid ? follow_holder(job, from) : follow_children(job, from);
    case PB_WAIT_PYTHON_LOCK:
        return follow_lock(job, from);
    case PB_WAIT_GIL:
    case PB_WAIT_MUTEX:
    case PB_WAIT_FILE_LOCK:
        return follow_holder(job, from);
    case PB_WAIT_PIPE:
    case PB_WAIT_SOCKET:
        r = follow_lost_children(job, from);
        return r < 0 || job->nedges > edges ? r : follow_holder(job, from);
    case PB_WAIT_FUTEX:
    case PB_WAIT_POLL:
        r = follow_lost_children(job, from);
        return r < 0 || job->nedges > edges ? r : follow_work(job, from);
    default:
        return 0;
    }
}

/* --- ends --- */

static enum pb_diag_end_kind end_of(const struct pb_diag_job *job, size_t thread)
{
    const struct pb_diag_thread *t = &job->threads[thread];
    char state = job->processes[t->process].state;

    if (t->held[0])
        return PB_END_HELD;
    if (state == 'T' || state == 't' || t->state == 'T' || t->state == 't')
        return PB_END_STOPPED;
    if (t->wait.kind == PB_WAIT_COLLECTIVE)
        return PB_END_TOGETHER;
    if (t->wait.kind == PB_WAIT_NONE && t->state != 'D')
        return PB_END_RUNS;
    return PB_END_BLOCKED;
}

/* What a walk from one thread has reached. */
struct walk {
    struct pb_diag_job *job;
    size_t *queue, n; /* threads reached, the start first */
    size_t *before;   /* of each, its place in the queue of the one that waits for it */
    bool *guessed, *seen;
    size_t found; /* ends */
};

static int add_end(struct walk *w, struct pb_diag_end end, size_t start, size_t *ret)
{
    struct pb_diag_job *job = w->job;
    size_t i = 0;

    while (i < job->nends && (job->ends[i].kind != end.kind || job->ends[i].process != end.process ||
                              job->ends[i].thread != end.thread))
        i++;
    if (i == job->nends) {
        struct pb_diag_end *more = reallocarray(job->ends, job->nends + 1, sizeof(*more));
        if (!more)
            return -ENOMEM;
        job->ends = more;
        more[job->nends++] = end;
    }
    struct pb_diag_end *e = &job->ends[i];
    e->guessed &= end.guessed;
    w->found++;
    *ret = i;
    if (start == end.thread || (e->nblocked && e->blocked[e->nblocked - 1] == start))
        return 0;
    size_t *blocked = reallocarray(e->blocked, e->nblocked + 1, sizeof(*blocked));
    if (!blocked)
        return -ENOMEM;
    e->blocked = blocked;
    blocked[e->nblocked++] = start;
    /* A main thread may wake up now and then to see whether what it waits for still lives. */
    e->moved |= job->threads[start].moved && job->threads[start].process != e->process &&
                (job->processes[e->process].rank < 0 ||
                 job->processes[job->threads[start].process].rank != job->processes[e->process].rank);
    return 0;
}

/* The holder of a GIL that others wait for without moving keeps it, and so does one that sleeps with it:
 * Python code would have let it go. */
static bool keeps_gil(const struct pb_diag_job *job, size_t thread)
{
    const struct pb_diag_thread *t = &job->threads[thread];
    const struct pb_diag_process *p = &job->processes[t->process];

    if (t->gil && t->state == 'S' && !t->moved)
        return true;
    for (size_t i = p->first; t->gil && t->same && i < p->first + p->n; i++)
        if (job->threads[i].wait.kind == PB_WAIT_GIL && job->threads[i].same)
            return true;
    return false;
}

static int reach(struct walk *w, size_t at, const struct pb_diag_edge *edge)
{
    size_t ignored;
    bool guessed = w->guessed[at] || edge->guessed;

    if (edge->to == PB_NOBODY) {
        const struct pb_diag_process *p = &w->job->processes[edge->process];
        struct pb_diag_end end = {.kind = is_gone(p) ? PB_END_DEAD : PB_END_SILENT,
                                  .process = edge->process,
                                  .thread = PB_NOBODY,
                                  .waiter = w->queue[at],
                                  .guessed = guessed};
        return add_end(w, end, w->queue[0], &ignored);
    }
    if (w->seen[edge->to])
        return 0;
    w->seen[edge->to] = true;
    w->before[w->n] = at;
    w->guessed[w->n] = guessed;
    w->queue[w->n++] = edge->to;
    return 0;
}

static bool is_collective(const struct pb_diag_job *job, const size_t *threads, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (job->threads[threads[i]].wait.kind != PB_WAIT_COLLECTIVE)
            return false;
    return true;
}

/* Nothing that was reached ends: from somewhere on the chain goes round. The innermost circle is the one that
 * is met again first. */
static int add_circle(struct walk *w)
{
    const struct pb_diag_job *job = w->job;
    size_t path[64], n = 0, at = w->queue[0], ignored;
    bool guessed = false;

    for (;;) {
        for (size_t i = 0; i < n; i++)
            if (path[i] == at) {
                memmove(path, path + i, (n - i) * sizeof(*path));
                n -= i;
                goto found;
            }
        if (n == 64)
            return 0;
        path[n++] = at;
        size_t next = PB_NOBODY;
        for (size_t i = 0; i < job->nedges && next == PB_NOBODY; i++)
            if (job->edges[i].from == at) {
                next = job->edges[i].to;
                guessed |= job->edges[i].guessed;
            }
        if (next == PB_NOBODY)
            return 0;
        at = next;
    }
found:;
    struct pb_diag_end end = {.kind = is_collective(job, path, n) ? PB_END_DIFFERS : PB_END_CIRCLE,
                              .waiter = PB_NOBODY,
                              .guessed = guessed};
    size_t least = 0;
    for (size_t i = 0; i < n; i++)
        if (path[i] < path[least])
            least = i;
    for (size_t i = 0; i < n && i < sizeof(end.circle) / sizeof(end.circle[0]); i++) {
        end.circle[end.ncircle++] = path[(least + i) % n];
        end.moved |= job->threads[path[i]].moved;
    }
    /* Ranks that wait for each other in collectives are one end, whatever circle among them was met. */
    end.thread = end.kind == PB_END_DIFFERS ? PB_NOBODY : path[least];
    end.process = end.kind == PB_END_DIFFERS ? 0 : job->threads[path[least]].process;
    return add_end(w, end, w->queue[0], &ignored);
}

static int walk_from(struct walk *w, size_t start)
{
    struct pb_diag_job *job = w->job;
    int r = 0;

    memset(w->seen, 0, job->nthreads * sizeof(*w->seen));
    w->n = w->found = 0;
    w->seen[start] = true;
    w->guessed[0] = false;
    w->queue[w->n++] = start;
    for (size_t at = 0; r == 0 && at < w->n; at++) {
        size_t thread = w->queue[at], ignored;
        bool goes_on = false, keeps = keeps_gil(job, thread);
        for (size_t i = 0; r == 0 && !keeps && i < job->nedges; i++)
            if (job->edges[i].from == thread) {
                goes_on = true;
                r = reach(w, at, &job->edges[i]);
            }
        if (r < 0 || goes_on)
            continue;
        struct pb_diag_end end = {.kind = keeps ? PB_END_GIL : end_of(job, thread),
                                  .process = job->threads[thread].process,
                                  .thread = thread,
                                  .waiter = at ? w->queue[w->before[at]] : PB_NOBODY,
                                  .guessed = w->guessed[at]};
        r = add_end(w, end, start, &ignored);
    }
    return r == 0 && !w->found ? add_circle(w) : r;
}

static bool is_start(const struct pb_diag_job *job, size_t thread)
{
    const struct pb_diag_process *p = &job->processes[job->threads[thread].process];

    return p->parent == PB_NOBODY && subject_of(job, job->threads[thread].process) == thread;
}

/* A rank that has ended or does not answer is an end of its own, whether or not others wait for it. */
static int add_lost(struct walk *w)
{
    struct pb_diag_job *job = w->job;
    size_t ignored;
    int r = 0;

    for (size_t i = 0; r == 0 && i < job->nprocesses; i++) {
        const struct pb_diag_process *p = &job->processes[i];
        if (p->n || p->parent != PB_NOBODY)
            continue;
        struct pb_diag_end end = {.kind = is_gone(p) ? PB_END_DEAD : PB_END_SILENT,
                                  .process = i,
                                  .thread = PB_NOBODY,
                                  .waiter = PB_NOBODY};
        r = add_end(w, end, PB_NOBODY, &ignored);
    }
    return r;
}

/* Two threads of a rank that wait for each other matter although its main thread may go on. */
static int add_own_circles(struct walk *w)
{
    struct pb_diag_job *job = w->job;
    int r = 0;

    for (size_t i = 0; r == 0 && i < job->nthreads; i++) {
        enum pb_wait_kind kind = job->threads[i].wait.kind;
        bool ends = is_start(job, i) || (kind != PB_WAIT_PYTHON_LOCK && kind != PB_WAIT_MUTEX);
        if (ends)
            continue;
        size_t before = job->nends;
        r = walk_from(w, i);
        /* Only a circle counts: that a helper waits for a lock is nobody's harm. */
        for (size_t k = before; k < job->nends; k++)
            if (job->ends[k].kind != PB_END_CIRCLE) {
                free(job->ends[k].blocked);
                memmove(&job->ends[k], &job->ends[k + 1], (job->nends - k - 1) * sizeof(*job->ends));
                job->nends--;
                k--;
            }
    }
    return r;
}

int pb_diag_follow(struct pb_diag_job *job)
{
    struct walk w = {.job = job};
    int r = 0;

    w.queue = calloc(job->nthreads + 1, sizeof(*w.queue));
    w.before = calloc(job->nthreads + 1, sizeof(*w.before));
    w.guessed = calloc(job->nthreads + 1, sizeof(*w.guessed));
    w.seen = calloc(job->nthreads + 1, sizeof(*w.seen));
    if (!w.queue || !w.before || !w.guessed || !w.seen)
        r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < job->nthreads; i++)
        r = find_edges(job, i);
    if (r == 0)
        r = add_lost(&w);
    for (size_t i = 0; r == 0 && i < job->nthreads; i++)
        if (is_start(job, i))
            r = walk_from(&w, i);
    if (r == 0)
        r = add_own_circles(&w);
    free(w.queue);
    free(w.before);
    free(w.guessed);
    free(w.seen);
    return r;
}
