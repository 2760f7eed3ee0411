/* facts_wire: see facts_wire.h. Tables name the members that travel; one reader and one writer serve all. A
 * text that is too long is cut, an index must be one of the same part, and an enumeration in its range. */
#include "diagnose/facts_wire.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/json_write.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { PROCESSES_MAX = 4096, THREADS_MAX = 65536, GROUP_MAX = 4096, FINDINGS_MAX = 64 };

enum wire_kind { WIRE_INT, WIRE_SIZE, WIRE_DOUBLE, WIRE_BOOL, WIRE_CHAR, WIRE_TEXT, WIRE_OBJECT };

struct wire_member {
    const char *name;
    size_t offset, size;
    enum wire_kind kind;
};

#define MEMBER(type, member, what)                                                                           \
    {                                                                                                        \
#member, offsetof(struct type, member), sizeof(((struct type *)0)->member), what                     \
    }

#define PROCESS(member, what) MEMBER(pb_diag_process, member, what)
static const struct wire_member process_members[] = {
    PROCESS(pid, WIRE_INT),      PROCESS(ppid, WIRE_INT),
    PROCESS(rank, WIRE_INT),     PROCESS(parent, WIRE_SIZE),
    PROCESS(command, WIRE_TEXT), PROCESS(state, WIRE_CHAR),
    PROCESS(tracer, WIRE_INT),   PROCESS(result, WIRE_INT),
    PROCESS(why, WIRE_TEXT),     PROCESS(signal, WIRE_INT),
    PROCESS(status, WIRE_INT),   PROCESS(young, WIRE_BOOL),
    PROCESS(newborn, WIRE_BOOL), {0},
};

#define PLACE(of)                                                                                            \
    MEMBER(pb_diag_thread, of.file, WIRE_TEXT), MEMBER(pb_diag_thread, of.function, WIRE_TEXT),              \
        MEMBER(pb_diag_thread, of.line, WIRE_INT), MEMBER(pb_diag_thread, of.source, WIRE_TEXT)
#define THREAD(member, what) MEMBER(pb_diag_thread, member, what)
static const struct wire_member thread_members[] = {
    THREAD(process, WIRE_SIZE),
    THREAD(tid, WIRE_INT),
    THREAD(name, WIRE_TEXT),
    THREAD(state, WIRE_CHAR),
    THREAD(main, WIRE_BOOL),
    THREAD(python, WIRE_BOOL),
    THREAD(gil, WIRE_BOOL),
    THREAD(moved, WIRE_BOOL),
    THREAD(same, WIRE_BOOL),
    THREAD(still, WIRE_DOUBLE),
    THREAD(cpu, WIRE_DOUBLE),
    THREAD(held, WIRE_TEXT),
    THREAD(wait.tid, WIRE_INT),
    THREAD(wait.kind, WIRE_INT),
    THREAD(wait.object, WIRE_OBJECT),
    THREAD(wait.fd, WIRE_INT),
    THREAD(wait.holder_pid, WIRE_INT),
    THREAD(wait.holder_tid, WIRE_INT),
    THREAD(wait.recursive, WIRE_BOOL),
    THREAD(wait.writes, WIRE_BOOL),
    THREAD(wait.remote_port, WIRE_INT),
    THREAD(wait.seconds, WIRE_DOUBLE),
    THREAD(wait.group, WIRE_TEXT),
    THREAD(wait.text, WIRE_TEXT),
    THREAD(call, WIRE_TEXT),
    THREAD(signature, WIRE_TEXT),
    THREAD(peer, WIRE_INT),
    THREAD(leaving, WIRE_BOOL),
    THREAD(finalizing, WIRE_BOOL),
    THREAD(in_event_loop, WIRE_BOOL),
    THREAD(cut_off, WIRE_BOOL),
    THREAD(serves, WIRE_BOOL),
    THREAD(suspect, WIRE_INT),
    PLACE(own),
    PLACE(top),
    PLACE(inside),
    PLACE(task),
    {0},
};

#define FINDING(member, what) MEMBER(pb_diag_finding, member, what)
static const struct wire_member finding_members[] = {
    FINDING(kind, WIRE_TEXT),
    FINDING(cause, WIRE_TEXT),
    FINDING(rank, WIRE_INT),
    FINDING(pid, WIRE_INT),
    FINDING(ranks, WIRE_TEXT),
    FINDING(explains, WIRE_INT),
    FINDING(sure, WIRE_INT),
    FINDING(since, WIRE_DOUBLE),
    FINDING(cost, WIRE_DOUBLE),
    FINDING(thread, WIRE_TEXT),
    FINDING(place.file, WIRE_TEXT),
    FINDING(place.function, WIRE_TEXT),
    FINDING(place.line, WIRE_INT),
    FINDING(place.source, WIRE_TEXT),
    FINDING(says, WIRE_TEXT),
    FINDING(why, WIRE_TEXT),
    FINDING(next, WIRE_TEXT),
    FINDING(more, WIRE_TEXT),
    {0},
};

#define JOB(member, what) MEMBER(pb_diag_job, member, what)
static const struct wire_member job_members[] = {
    JOB(name, WIRE_TEXT), JOB(port, WIRE_INT),       JOB(world, WIRE_INT),
    JOB(key, WIRE_TEXT),  JOB(between, WIRE_DOUBLE), {0},
};

/* --- writing --- */

static long long int_at(const char *at, size_t size)
{
    int value = 0;

    memcpy(&value, at, size < sizeof(value) ? size : sizeof(value));
    return value;
}

static void put_member(struct pb_json_writer *w, const struct wire_member *m, const char *at)
{
    size_t size;
    double number;
    uint64_t object;

    switch (m->kind) {
    case WIRE_INT:
        pb_json_put_number(w, m->name, "%lld", int_at(at, m->size));
        break;
    case WIRE_SIZE:
        memcpy(&size, at, sizeof(size));
        pb_json_put_number(w, m->name, "%lld", size == PB_NOBODY ? -1LL : (long long)size);
        break;
    case WIRE_DOUBLE:
        memcpy(&number, at, sizeof(number));
        pb_json_put_number(w, m->name, "%.6f", number);
        break;
    case WIRE_BOOL:
        pb_json_put_bool(w, m->name, *at);
        break;
    case WIRE_CHAR:
        pb_json_put_format(w, m->name, "%c", *at ? *at : '?');
        break;
    case WIRE_TEXT:
        pb_json_put_text(w, m->name, at);
        break;
    case WIRE_OBJECT:
        memcpy(&object, at, sizeof(object));
        pb_json_put_format(w, m->name, "%llx", (unsigned long long)object);
        break;
    }
}

static void put_members(struct pb_json_writer *w, const struct wire_member *m, const void *of)
{
    for (; m->name; m++)
        put_member(w, m, (const char *)of + m->offset);
}

static void put_thread(struct pb_json_writer *w, const struct pb_diag_job *job, size_t i)
{
    struct pb_diag_thread t = job->threads[i];
    size_t suspect = t.wait.kind == PB_WAIT_PYTHON_LOCK ? pb_diag_suspect(job, i) : PB_NOBODY;

    t.suspect = suspect == PB_NOBODY ? 0 : job->threads[suspect].tid;
    pb_json_line(w, 2);
    pb_json_open(w, NULL, '{');
    put_members(w, thread_members, &t);
    if (t.wait.group_ranks) {
        pb_json_open(w, "group_ranks", '[');
        for (size_t k = 0; k < t.wait.ngroup_ranks; k++)
            pb_json_put_number(w, NULL, "%d", t.wait.group_ranks[k]);
        pb_json_close(w);
    }
    pb_json_close(w);
}

static void put_finding(struct pb_json_writer *w, const struct pb_diag_finding *f)
{
    pb_json_line(w, 2);
    pb_json_open(w, NULL, '{');
    put_members(w, finding_members, f);
    pb_json_open(w, "evidence", '[');
    for (size_t i = 0; i < f->nevidence; i++) {
        pb_json_open(w, NULL, '[');
        for (size_t k = 0; k < PB_DIAG_FIELDS; k++)
            pb_json_put_text(w, NULL, f->evidence[i].field[k]);
        pb_json_close(w);
    }
    pb_json_close(w);
    pb_json_close(w);
}

void pb_diag_facts_write(FILE *out, const struct pb_diag_answer *a)
{
    struct pb_json_writer w = {.out = out};
    const struct pb_diag_job *job = a->job;

    pb_json_open(&w, NULL, '{');
    put_members(&w, job_members, job);
    pb_json_open(&w, "processes", '[');
    for (size_t i = 0; i < job->nprocesses; i++) {
        pb_json_line(&w, 2);
        pb_json_open(&w, NULL, '{');
        put_members(&w, process_members, &job->processes[i]);
        pb_json_close(&w);
    }
    pb_json_close(&w);
    pb_json_open(&w, "threads", '[');
    for (size_t i = 0; i < job->nthreads; i++)
        put_thread(&w, job, i);
    pb_json_close(&w);
    pb_json_open(&w, "findings", '[');
    for (size_t i = 0; i < a->findings.n; i++)
        put_finding(&w, &a->findings.at[i]);
    pb_json_close(&w);
    pb_json_close(&w);
    putc('\n', out);
}

/* --- reading --- */

struct node_part {
    struct pb_json j;
    struct pb_err *err;
    struct pb_diag_job job;
    struct pb_diag_findings findings;
};

static void part_done(struct node_part *p)
{
    for (size_t i = 0; i < p->job.nthreads; i++)
        free(p->job.threads[i].wait.group_ranks);
    free(p->job.threads);
    free(p->job.processes);
    free(p->findings.at);
    pb_json_done(&p->j);
}

static int bad(const struct node_part *p, const char *what)
{
    return pb_fail(p->err, -EBADMSG, "its answer to diagnose is malformed: %s", what);
}

static int read_number(const struct node_part *p, uint32_t node, double *ret)
{
    char text[64], *end;

    if (pb_json_text(&p->j, node, text, sizeof(text)) < 0)
        return -EBADMSG;
    *ret = strtod(text, &end);
    return end == text || *end || !(*ret >= -1e15 && *ret <= 1e15) ? -EBADMSG : 0;
}

static int read_member(const struct node_part *p, const struct wire_member *m, uint32_t node, char *at)
{
    bool is_text = m->kind == WIRE_CHAR || m->kind == WIRE_TEXT || m->kind == WIRE_OBJECT;
    char text[32];
    double number = 0;

    if (!node || is_text != (p->j.nodes[node].kind == '"'))
        return -EBADMSG;
    if (m->kind == WIRE_TEXT) {
        if (pb_json_text(&p->j, node, at, m->size) < 0)
            return -EBADMSG;
        pb_text_clean(at);
        return 0;
    }
    if (is_text) {
        if (pb_json_text(&p->j, node, text, sizeof(text)) <= 0)
            return -EBADMSG;
        uint64_t object = strtoull(text, NULL, 16);
        memcpy(at, m->kind == WIRE_CHAR ? (const void *)text : (const void *)&object, m->size);
        return 0;
    }
    if (m->kind == WIRE_BOOL) {
        size_t n;
        *(bool *)at = *pb_json_span(&p->j, node, &n) == 't';
        return 0;
    }
    if (read_number(p, node, &number) < 0)
        return -EBADMSG;
    if (m->kind == WIRE_DOUBLE) {
        memcpy(at, &number, sizeof(number));
        return 0;
    }
    if (number < INT_MIN || number > INT_MAX)
        return -EBADMSG;
    int whole = (int)number;
    size_t size = whole < 0 ? PB_NOBODY : (size_t)whole;
    memcpy(at, m->kind == WIRE_SIZE ? (const void *)&size : (const void *)&whole, m->size);
    return 0;
}

static int read_members(const struct node_part *p, const struct wire_member *m, uint32_t node, void *to)
{
    if (p->j.nodes[node].kind != '{')
        return bad(p, "no object");
    for (; m->name; m++)
        if (read_member(p, m, pb_json_get(&p->j, node, m->name), (char *)to + m->offset) < 0)
            return bad(p, m->name);
    return 0;
}

/* An array of that name; the number of its elements is at most `most`. */
static int read_list(const struct node_part *p, const char *name, size_t most, size_t size,
                     uint32_t *ret_first, void **ret)
{
    uint32_t list = pb_json_get(&p->j, 1, name);
    size_t n = 0;

    if (!list || p->j.nodes[list].kind != '[')
        return bad(p, name);
    *ret_first = p->j.nodes[list].child;
    for (uint32_t k = *ret_first; k; k = p->j.nodes[k].next)
        n++;
    if (n > most)
        return bad(p, name);
    *ret = calloc(n + 1, size);
    return *ret ? 0 : pb_fail(p->err, -ENOMEM, "out of memory");
}

static int read_processes(struct node_part *p, const char *node)
{
    uint32_t first;
    int r = read_list(p, "processes", PROCESSES_MAX, sizeof(*p->job.processes), &first,
                      (void **)&p->job.processes);

    for (uint32_t k = first; r == 0 && k; k = p->j.nodes[k].next) {
        struct pb_diag_process *to = &p->job.processes[p->job.nprocesses];
        r = read_members(p, process_members, k, to);
        if (r == 0 && to->parent != PB_NOBODY && to->parent >= p->job.nprocesses)
            r = bad(p, "parent");
        snprintf(to->node, sizeof(to->node), "%s", node);
        p->job.nprocesses++;
    }
    return r;
}

static int read_group(struct node_part *p, uint32_t list, struct pb_wait *ret)
{
    double rank;

    if (!list)
        return 0;
    ret->group_ranks = calloc(GROUP_MAX, sizeof(*ret->group_ranks));
    if (!ret->group_ranks)
        return pb_fail(p->err, -ENOMEM, "out of memory");
    for (uint32_t k = p->j.nodes[list].child; k; k = p->j.nodes[k].next) {
        if (ret->ngroup_ranks == GROUP_MAX || read_number(p, k, &rank) < 0 || rank < 0 || rank > INT_MAX)
            return bad(p, "group_ranks");
        ret->group_ranks[ret->ngroup_ranks++] = (int)rank;
    }
    return 0;
}

/* Threads come by their process. */
static int read_threads(struct node_part *p)
{
    uint32_t first;
    int r = read_list(p, "threads", THREADS_MAX, sizeof(*p->job.threads), &first, (void **)&p->job.threads);
    size_t last = 0;

    for (uint32_t k = first; r == 0 && k; k = p->j.nodes[k].next) {
        struct pb_diag_thread *to = &p->job.threads[p->job.nthreads++];
        r = read_members(p, thread_members, k, to);
        if (r < 0)
            break;
        to->wait.holder_frame = -1;
        if (to->process >= p->job.nprocesses || to->process < last || (int)to->wait.kind < 0 ||
            to->wait.kind >= PB_WAIT_KINDS)
            return bad(p, "threads");
        last = to->process;
        struct pb_diag_process *of = &p->job.processes[last];
        if (!of->n++)
            of->first = p->job.nthreads - 1;
        r = read_group(p, pb_json_get(&p->j, k, "group_ranks"), &to->wait);
    }
    return r;
}

static int read_evidence(struct node_part *p, uint32_t list, struct pb_diag_finding *f)
{
    for (uint32_t k = list ? p->j.nodes[list].child : 0; k && f->nevidence < PB_DIAG_EVIDENCE;
         k = p->j.nodes[k].next) {
        struct pb_diag_evidence *e = &f->evidence[f->nevidence++];
        size_t n = 0;
        for (uint32_t c = p->j.nodes[k].child; c && n < PB_DIAG_FIELDS; c = p->j.nodes[c].next, n++) {
            if (p->j.nodes[c].kind != '"' || pb_json_text(&p->j, c, e->field[n], sizeof(e->field[n])) < 0)
                return bad(p, "evidence");
            pb_text_clean(e->field[n]);
        }
    }
    return 0;
}

static int read_findings(struct node_part *p)
{
    uint32_t first;
    int r = read_list(p, "findings", FINDINGS_MAX, sizeof(*p->findings.at), &first, (void **)&p->findings.at);

    for (uint32_t k = first; r == 0 && k; k = p->j.nodes[k].next) {
        struct pb_diag_finding *f = &p->findings.at[p->findings.n++];
        r = read_members(p, finding_members, k, f);
        if (r == 0 && ((int)f->sure < 0 || f->sure > PB_DIAG_CERTAIN))
            r = bad(p, "sure");
        if (r == 0)
            r = read_evidence(p, pb_json_get(&p->j, k, "evidence"), f);
    }
    return r;
}

/* --- joining --- */

/* What has no rank, such as a launcher, may be on each node. */
static bool has_rank(const struct pb_diag_job *job, const struct pb_diag_process *p)
{
    if (p->rank < 0)
        return false;
    for (size_t i = 0; i < job->nprocesses; i++)
        if (job->processes[i].parent == PB_NOBODY && p->parent == PB_NOBODY &&
            job->processes[i].rank == p->rank)
            return true;
    return false;
}

/* Moves the part into the job; its indices move on. A rank of which a node has nothing left may be well on
 * another one: it is left out. */
static int join(struct pb_diag_job *job, struct pb_diag_findings *findings, struct node_part *p)
{
    size_t nprocesses = job->nprocesses, nthreads = job->nthreads, n = 0;
    _cleanup_free_ size_t *moved = calloc(p->job.nprocesses + 1, sizeof(*moved));
    struct pb_diag_process *processes =
        reallocarray(job->processes, nprocesses + p->job.nprocesses + 1, sizeof(*processes));
    job->processes = processes ? processes : job->processes;
    struct pb_diag_thread *threads =
        reallocarray(job->threads, nthreads + p->job.nthreads + 1, sizeof(*threads));
    job->threads = threads ? threads : job->threads;
    struct pb_diag_finding *all = reallocarray(findings->at, findings->n + p->findings.n + 1, sizeof(*all));
    findings->at = all ? all : findings->at;

    if (!moved || !processes || !threads || !all)
        return pb_fail(p->err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < p->job.nprocesses; i++) {
        struct pb_diag_process *from = &p->job.processes[i];
        moved[i] = from->state == 'X' && from->pid <= 0 ? PB_NOBODY : nprocesses + n++;
        if (moved[i] != PB_NOBODY && has_rank(job, from))
            return bad(p, "a rank of which another node has answered");
    }
    for (size_t i = 0; i < p->job.nprocesses; i++) {
        struct pb_diag_process one = p->job.processes[i];
        if (moved[i] == PB_NOBODY)
            continue;
        one.parent = one.parent == PB_NOBODY ? PB_NOBODY : moved[one.parent];
        one.first += nthreads;
        processes[moved[i]] = one;
    }
    for (size_t i = 0; i < p->job.nthreads; i++) {
        threads[nthreads + i] = p->job.threads[i];
        threads[nthreads + i].process = moved[p->job.threads[i].process];
    }
    memcpy(findings->at + findings->n, p->findings.at, p->findings.n * sizeof(*all));
    findings->n += p->findings.n;
    job->nprocesses += n;
    job->nthreads += p->job.nthreads;
    p->job.nthreads = 0; /* what they point to is the job's */
    return 0;
}

int pb_diag_facts_add(struct pb_diag_job *job, struct pb_diag_findings *findings, const char *node,
                      const char *text, size_t length, struct pb_err *err)
{
    _cleanup_(part_done) struct node_part p = {.err = err};

    if (pb_json_parse(text, length, &p.j) < 0 || p.j.nodes[1].kind != '{')
        return bad(&p, "no JSON");
    int r = read_members(&p, job_members, 1, &p.job);
    if (r == 0)
        r = read_processes(&p, node);
    if (r == 0)
        r = read_threads(&p);
    if (r == 0)
        r = read_findings(&p);
    for (size_t i = 0; r == 0 && i < p.job.nprocesses; i++)
        if (p.job.processes[i].state == 'X' && p.job.processes[i].n)
            r = bad(&p, "a process that is gone has threads");
    if (r == 0)
        r = join(job, findings, &p);
    if (r < 0)
        return r;
    if (!job->name[0]) {
        memcpy(job->name, p.job.name, sizeof(job->name));
        memcpy(job->key, p.job.key, sizeof(job->key));
        job->port = p.job.port;
        job->between = p.job.between;
    }
    job->world = p.job.world > job->world ? p.job.world : job->world;
    job->ranks = true;
    return 0;
}

int pb_diag_facts_add_lost(struct pb_diag_job *job, int rank, pid_t pid, const char *node, const char *why)
{
    struct pb_diag_process *more = reallocarray(job->processes, job->nprocesses + 1, sizeof(*more));

    if (!more)
        return -ENOMEM;
    job->processes = more;
    struct pb_diag_process *p = &more[job->nprocesses++];
    *p = (struct pb_diag_process){.pid = pid,
                                  .rank = rank,
                                  .parent = PB_NOBODY,
                                  .status = -1,
                                  .state = why ? '?' : 'X',
                                  .result = why ? -ETIMEDOUT : -ESRCH};
    snprintf(p->node, sizeof(p->node), "%s", node);
    snprintf(p->why, sizeof(p->why), "%s", why ? why : "it is not there any more");
    pb_text_clean(p->why);
    job->ranks = true;
    return 0;
}
