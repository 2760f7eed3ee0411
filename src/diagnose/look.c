/* look: see look.h.
 *
 * The first look keeps of each thread where it stood and how often it had run; the second one is kept whole,
 * with the waits of all threads. A thread that neither ran nor moved between them is still. */
#include "diagnose/look.h"

#include "ask/ask.h"
#include "ask/stacks.h"
#include "ask/targets.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/procfs.h"
#include "base/text.h"
#include "base/time.h"
#include "diagnose/cut_off.h"
#include "diagnose/script_end.h"
#include "diagnose/serves.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BETWEEN_MS = 1000,
    LIMIT_MS = 900, /* for a process, where CPUs are idle */
    LIMIT_MOST_MS = 4000,
    ROOM = 8 << 20,
};

struct before {
    pid_t pid, tid;
    char state;
    uint64_t place, ran, slices;
};

struct befores {
    struct before *at;
    size_t n, room;
    uint64_t time;
};

/* How long a thread has run, and how often it was given a CPU. */
static void read_ran(pid_t pid, pid_t tid, uint64_t *ret_ran, uint64_t *ret_slices)
{
    char path[48], text[96];
    unsigned long long ran = 0, slices = 0;

    snprintf(path, sizeof(path), "task/%d/schedstat", (int)tid);
    if (pb_proc_read(pid, path, text, sizeof(text)) > 0)
        sscanf(text, "%llu %*s %llu", &ran, &slices);
    *ret_ran = ran;
    *ret_slices = slices;
}

static uint64_t place_of(const struct pb_shown_thread *t)
{
    uint64_t h = PB_HASH_START;

    for (size_t i = 0; i < t->nframes; i++) {
        h = pb_hash_text(h, t->frames[i].code->file);
        h = pb_hash_text(h, t->frames[i].code->name);
        h = pb_hash_bytes(h, &t->frames[i].line, sizeof(t->frames[i].line));
    }
    return pb_hash_bytes(h, &t->syscall, sizeof(t->syscall));
}

static int keep_before(struct befores *b, const struct pb_stacks *s)
{
    for (size_t i = 0; i < s->n; i++) {
        if (b->n == b->room) {
            size_t room = 2 * b->room + 256;
            struct before *more = reallocarray(b->at, room, sizeof(*more));
            if (!more)
                return -ENOMEM;
            b->at = more;
            b->room = room;
        }
        struct before *one = &b->at[b->n++];
        *one = (struct before){.pid = s->pid,
                               .tid = s->threads[i].native.tid,
                               .state = s->threads[i].native.state,
                               .place = place_of(&s->threads[i])};
        read_ran(one->pid, one->tid, &one->ran, &one->slices);
    }
    return 0;
}

static const struct before *find_before(const struct befores *b, pid_t pid, pid_t tid)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->at[i].pid == pid && b->at[i].tid == tid)
            return &b->at[i];
    return NULL;
}

/* --- all processes of all jobs at once --- */

struct asked {
    struct pb_targets targets;
    struct pb_stacks_answer *answers;
};

static void asked_done(struct asked *a)
{
    if (a->answers)
        pb_stacks_answers_done(a->answers, a->targets.n);
    free(a->answers);
    free(a->targets.at);
    *a = (struct asked){0};
}

static bool can_be_read(const struct pb_diag_process *p)
{
    return p->pid > 0 && p->state != 'Z' && p->state != 'X';
}

/* Where more threads want to run than there are CPUs, an answer takes so much longer. */
static unsigned limit_by_load(void)
{
    double load, share = getloadavg(&load, 1) == 1 ? load / (double)sysconf(_SC_NPROCESSORS_ONLN) : 1;

    return share <= 1                         ? LIMIT_MS
           : share * LIMIT_MS < LIMIT_MOST_MS ? (unsigned)(share * LIMIT_MS)
                                              : LIMIT_MOST_MS;
}

static int ask_all(const struct pb_ask *ask, const struct pb_diag_jobs *jobs, unsigned limit_ms, bool whole,
                   struct asked *ret)
{
    const struct pb_stacks_options options = {.within_ms = limit_ms * 2 / 3, .locals = whole};
    struct pb_ask limited = *ask;
    struct asked a = {0};
    size_t n = 0;

    limited.limit_ms = limit_ms;
    for (size_t i = 0; i < jobs->n; i++)
        n += jobs->at[i].nprocesses;
    a.targets.at = calloc(n + 1, sizeof(*a.targets.at));
    a.answers = calloc(n + 1, sizeof(*a.answers));
    if (!a.targets.at || !a.answers) {
        asked_done(&a);
        return -ENOMEM;
    }
    for (size_t i = 0; i < jobs->n; i++)
        for (size_t k = 0; k < jobs->at[i].nprocesses; k++)
            if (can_be_read(&jobs->at[i].processes[k])) {
                const struct pb_diag_process *p = &jobs->at[i].processes[k];
                struct pb_target *t = &a.targets.at[a.targets.n++];
                t->pid = p->pid;
                /* Of ranks torch's Flight Recorder is read too. */
                if (p->rank >= 0 && p->parent == PB_NOBODY)
                    pb_target_set_rank(t, p->rank);
            }
    int r = pb_stacks_ask(&limited, &a.targets, &options, whole ? PB_WAITS_ALL : PB_WAITS_NONE, a.answers);
    if (r < 0)
        asked_done(&a);
    else
        *ret = a;
    return r;
}

/* --- the second look as facts --- */

static void put_place(const struct pb_shown_frame *f, struct pb_diag_place *ret)
{
    snprintf(ret->file, sizeof(ret->file), "%s", f->code->file);
    snprintf(ret->function, sizeof(ret->function), "%s", f->code->qualname);
    pb_text_clean(ret->file);
    pb_text_clean(ret->function);
    ret->line = f->line;
}

static bool ends_with(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);
    return n >= m && strcmp(text + n - m, with) == 0;
}

/* Library files whose frames tell what a thread waits for, or does. */
static const char *const telling[] = {
    "torch/distributed/distributed_c10d.py",
    "torch/utils/data/dataloader.py",
    "torch/autograd/graph.py",
    "torch/distributed/rendezvous.py",
    "concurrent/futures/_base.py",
    "multiprocessing/queues.py",
    "multiprocessing/synchronize.py",
    "multiprocessing/connection.py",
    "multiprocessing/popen_fork.py",
    "asyncio/base_events.py",
    "subprocess.py",
    "queue.py",
    "threading.py",
};

static void find_places(const struct pb_shown_thread *t, struct pb_diag_thread *ret)
{
    size_t best = sizeof(telling) / sizeof(telling[0]);

    if (t->raised[0]) {
        snprintf(ret->own.file, sizeof(ret->own.file), "%s", t->raised_file);
        snprintf(ret->own.function, sizeof(ret->own.function), "%s", t->raised_in);
        ret->own.line = t->raised_line;
    }
    if (t->nframes)
        put_place(&t->frames[0], &ret->top);
    for (size_t i = 0; i < t->nframes; i++) {
        const struct pb_py_code *code = t->frames[i].code;
        if (pb_stacks_is_own(code->file)) {
            if (!ret->own.line)
                put_place(&t->frames[i], &ret->own);
            break;
        }
        for (size_t k = 0; k < best; k++)
            if (ends_with(code->file, telling[k])) {
                best = k;
                put_place(&t->frames[i], &ret->inside);
                /* Without its class, as before Python 3.11. */
                snprintf(ret->inside.function, sizeof(ret->inside.function), "%s", code->name);
                pb_text_clean(ret->inside.function);
            }
    }
    if (!ret->own.line)
        ret->own = ret->top;
}

/* Variables of a collective's frame that all ranks must agree on; of a list the elements' shapes count. */
static bool is_agreed(const char *name, size_t n)
{
    static const char *const names[] = {"tensor",      "tensors",    "input",         "output",      "src",
                                        "tensor_list", "input_list", "output_tensor", "input_tensor"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strlen(names[i]) == n && strncmp(names[i], name, n) == 0)
            return true;
    return false;
}

/* Copies a value without the addresses in it: "tensor(dtype=float32, shape=(1,), data=0x7f..)". */
static size_t put_value(const char *from, size_t n, char *ret, size_t size)
{
    size_t len = 0;

    for (size_t i = 0; i < n && len + 1 < size;) {
        if (n - i > 7 && strncmp(from + i, ", data=", 7) == 0)
            i += 2 + strcspn(from + i + 2, ",)");
        else if (n - i > 6 && strncmp(from + i, " at 0x", 6) == 0)
            i += 1 + strcspn(from + i + 1, " >,") + strcspn(from + i + 4, " >,");
        else
            ret[len++] = from[i++];
    }
    ret[len] = '\0';
    return len;
}

/* The variables of the frame of a collective; NULL: there is none. */
static const struct pb_py_locals *find_call(const struct pb_shown_thread *t)
{
    for (size_t i = 0; i < t->nframes; i++)
        if (ends_with(t->frames[i].code->file, telling[0]))
            return t->frames[i].locals;
    return NULL;
}

/* "tensor(dtype=float32, shape=(1,)), src 0": of each variable what is written, without addresses. */
static void put_signature(const struct pb_shown_thread *t, char *ret, size_t size)
{
    const struct pb_py_locals *locals = find_call(t);
    const char *name = locals ? locals->text : NULL;
    size_t len = 0;

    for (uint32_t i = 0; locals && i < locals->n && len + 32 < size; i++) {
        const char *value = pb_py_locals_after(name);
        if (is_agreed(name, strlen(name))) {
            bool plain = strncmp(value, "tensor(", 7) == 0; /* it says what it is itself */
            len += (size_t)snprintf(ret + len, size - len, "%s%.16s%s", len ? ", " : "", plain ? "" : name,
                                    plain ? "" : " ");
            len += put_value(value, strlen(value), ret + len, size - len);
        }
        name = pb_py_locals_after(value);
    }
}

bool pb_diag_has_object(const struct pb_diag_thread *t, uint64_t object)
{
    char address[24];

    snprintf(address, sizeof(address), "0x%llx", (unsigned long long)object);
    for (size_t i = 0; t->shown && i < t->shown->nframes; i++) {
        const struct pb_py_locals *locals = t->shown->frames[i].locals;
        const char *name = locals ? locals->text : NULL;
        for (uint32_t k = 0; locals && k < locals->n; k++) {
            const char *value = pb_py_locals_after(name);
            if (strstr(value, address))
                return true;
            name = pb_py_locals_after(value);
        }
    }
    return false;
}

/* The other rank of a send or receive, from the variables of its frame. */
static int read_peer(const struct pb_shown_thread *t, const char *name)
{
    const struct pb_py_locals *locals = find_call(t);
    const char *value = locals ? pb_py_locals_get(locals, name) : NULL;
    int peer;

    return value && sscanf(value, "%d", &peer) == 1 && peer >= 0 ? peer : -1;
}

/* What ask does not call a collective and is one: the reducer of DDP waits for gradients in C++, below
 * backward, with nothing of Python above it; a key of the store waits for the rank that sets it. */
static void find_collective(const struct pb_shown_thread *t, int port, struct pb_diag_thread *ret)
{
    const char *text = ret->wait.text;

    if (ret->wait.kind == PB_WAIT_SOCKET && ret->main && port && !ret->wait.writes &&
        ret->wait.remote_port == (unsigned)port) {
        ret->wait.kind = PB_WAIT_COLLECTIVE;
        snprintf(ret->wait.text, sizeof(ret->wait.text), "a key of the store");
    }
    if (ret->wait.kind == PB_WAIT_FUTEX && ret->main &&
        strcmp(ret->top.function, "_engine_run_backward") == 0) {
        ret->wait.kind = PB_WAIT_COLLECTIVE;
        snprintf(ret->wait.text, sizeof(ret->wait.text), "the all_reduce of gradients");
    }
    if (ret->wait.kind != PB_WAIT_COLLECTIVE)
        return;
    put_signature(t, ret->signature, sizeof(ret->signature));
    if (strncmp(text, "recv", 4) == 0 || strncmp(text, "irecv", 5) == 0)
        ret->peer = read_peer(t, "src");
    else if (strncmp(text, "send", 4) == 0 || strncmp(text, "isend", 5) == 0)
        ret->peer = read_peer(t, "dst");
}

static bool is_stopped(char state)
{
    return state == 'T' || state == 't';
}

static void fill_thread(const struct pb_stacks *s, size_t i, const struct befores *befores,
                        const struct pb_diag_job *job, struct pb_diag_thread *ret)
{
    const struct pb_shown_thread *t = &s->threads[i];
    double between = job->between;
    int port = job->port;
    uint64_t ran, slices;

    ret->tid = t->native.tid;
    ret->state = t->native.state;
    ret->main = t->native.tid == s->pid;
    ret->python = t->python;
    ret->gil = t->gil;
    ret->shown = t;
    ret->still = -1;
    ret->wait.fd = -1;
    snprintf(ret->name, sizeof(ret->name), "%s", t->name[0] ? t->name : t->native.name);
    pb_text_clean(ret->name);
    snprintf(ret->held, sizeof(ret->held), "%s", t->held);
    if (i < s->waits.n) {
        ret->wait = s->waits.at[i];
        ret->still = ret->wait.seconds;
    }
    const char *call = t->off_cpu && t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;
    snprintf(ret->call, sizeof(ret->call), "%s", call ? call : "");
    find_places(t, ret);
    pb_diag_find_end(t, ret);
    ret->serves = pb_diag_serves(s->pid, t);
    ret->cut_off = pb_diag_is_cut_off(s, t, &ret->task);
    ret->peer = -1;
    find_collective(t, port, ret);
    read_ran(s->pid, ret->tid, &ran, &slices);
    const struct before *b = find_before(befores, s->pid, ret->tid);
    /* Who reads it may stop it for a moment, a keeper of ours as well as a debugger. */
    if (is_stopped(ret->state) && b && !is_stopped(b->state))
        ret->state = 'S';
    ret->same = b && b->place == place_of(t);
    ret->moved = !b || b->place != place_of(t) || b->slices != slices || b->ran != ran;
    ret->cpu = b && between > 0 ? (double)(ran - b->ran) / 1e9 / between : 0;
    if (b && !ret->moved && ret->still < between)
        ret->still = between;
}

static int fill_process(struct pb_diag_job *job, size_t index, const struct pb_stacks_answer *a,
                        const struct befores *befores)
{
    struct pb_diag_process *p = &job->processes[index];
    const struct pb_stacks *s = a->stacks;

    p->result = a->result;
    if (a->result < 0) {
        snprintf(p->why, sizeof(p->why), "%s", pb_err_text(&a->err, a->result));
        return 0;
    }
    struct pb_diag_thread *more = reallocarray(job->threads, job->nthreads + s->n + 1, sizeof(*more));
    if (!more)
        return -ENOMEM;
    job->threads = more;
    p->first = job->nthreads;
    for (int main = 1; main >= 0; main--) /* the main thread first */
        for (size_t i = 0; i < s->n; i++)
            if ((s->threads[i].native.tid == s->pid) == main) {
                struct pb_diag_thread *t = &more[job->nthreads++];
                *t = (struct pb_diag_thread){.process = index};
                fill_thread(s, i, befores, job, t);
                if (t->main)
                    p->state = t->state;
            }
    p->n = job->nthreads - p->first;
    /* Where no thread has a Python state any more, the interpreter is gone, and C code ends. */
    bool python = false;
    for (size_t i = p->first; i < job->nthreads; i++)
        python |= job->threads[i].python;
    if (p->n && !python)
        job->threads[p->first].finalizing = true;
    return 0;
}

static size_t find_target(const struct asked *a, pid_t pid)
{
    size_t i = 0;

    while (i < a->targets.n && a->targets.at[i].pid != pid)
        i++;
    return i;
}

/* Moves the answers of the job's processes into it. */
static int fill_job(struct pb_diag_job *job, struct asked *a, const struct befores *befores, double between)
{
    int r = 0;

    job->between = between;
    job->answers = calloc(job->nprocesses + 1, sizeof(*job->answers));
    if (!job->answers)
        return -ENOMEM;
    for (size_t i = 0; r == 0 && i < job->nprocesses; i++) {
        size_t at = find_target(a, job->processes[i].pid);
        if (at == a->targets.n || !can_be_read(&job->processes[i]))
            continue;
        struct pb_stacks_answer *kept = &job->answers[job->nanswers++];
        *kept = a->answers[at];
        a->answers[at] = (struct pb_stacks_answer){0};
        r = fill_process(job, i, kept, befores);
    }
    return r;
}

/* --- lines of source files, in a child --- */

static void read_place(struct pb_sources *sources, struct pb_diag_place *p)
{
    int n = 0;
    const char *line = p->line ? pb_sources_line(sources, p->file, p->line, &n) : NULL;

    if (line) {
        snprintf(p->source, sizeof(p->source), "%.*s", n, line);
        pb_text_clean(p->source);
    }
}

static int read_sources(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    (void)ask;
    struct pb_diag_job *job = arg;
    char(*lines)[sizeof(job->threads->own.source)] =
        pb_room_alloc(room, (2 * job->nthreads + 1) * sizeof(*lines));

    if (!lines)
        return pb_fail(err, -ENOSPC, "too many threads");
    for (size_t i = 0; i < job->nanswers; i++) {
        struct pb_sources *sources = job->answers[i].stacks ? pb_sources_new(job->answers[i].stacks) : NULL;
        for (size_t k = 0; sources && k < job->nthreads; k++)
            if (job->processes[job->threads[k].process].pid == job->answers[i].stacks->pid) {
                read_place(sources, &job->threads[k].own);
                read_place(sources, &job->threads[k].task);
                snprintf(lines[2 * k], sizeof(lines[0]), "%s", job->threads[k].own.source);
                snprintf(lines[2 * k + 1], sizeof(lines[0]), "%s", job->threads[k].task.source);
            }
        pb_sources_free(sources);
    }
    pb_task_answer(room, lines);
    return 0;
}

static void add_sources(const struct pb_ask *ask, struct pb_diag_job *job)
{
    /* A source file may be on a mount that hangs. */
    struct pb_ask limited = *ask;
    limited.limit_ms = limit_by_load() / 3;
    struct pb_task task = {.work = read_sources, .arg = job, .limit_ms = limited.limit_ms, .room_size = ROOM};
    struct pb_err ignored;

    if (pb_task_run(&limited, &task, &ignored) == 0) {
        const char(*lines)[sizeof(job->threads->own.source)] = pb_task_answer_of(&task);
        for (size_t i = 0; lines && i < job->nthreads; i++) {
            memcpy(job->threads[i].own.source, lines[2 * i], sizeof(lines[0]));
            memcpy(job->threads[i].task.source, lines[2 * i + 1], sizeof(lines[0]));
        }
    }
    pb_room_free(task.room);
}

int pb_diag_look(const struct pb_ask *ask, struct pb_diag_jobs *jobs, const struct pb_look_options *options,
                 struct pb_err *err)
{
    unsigned between_ms = options->between_ms ? options->between_ms : BETWEEN_MS;
    unsigned limit_ms = options->limit_ms ? options->limit_ms : limit_by_load();
    _cleanup_(asked_done) struct asked first = {0}, second = {0};
    struct befores befores = {.time = pb_now_ns()};

    int r = ask_all(ask, jobs, limit_ms, false, &first);
    for (size_t i = 0; r == 0 && i < first.targets.n; i++)
        if (first.answers[i].result == 0)
            r = keep_before(&befores, first.answers[i].stacks);
    uint64_t next = pb_now_ns() + between_ms * PB_NS_PER_MS, from = pb_now_ns();
    asked_done(&first);
    uint64_t now = pb_now_ns();
    if (r == 0 && now < next)
        pb_sleep_ns(next - now);
    if (r == 0)
        r = ask_all(ask, jobs, limit_ms, true, &second);
    double between = (double)(pb_now_ns() - from) / 1e9;
    for (size_t i = 0; r == 0 && i < jobs->n; i++)
        r = fill_job(&jobs->at[i], &second, &befores, between);
    for (size_t i = 0; r == 0 && i < jobs->n; i++)
        add_sources(ask, &jobs->at[i]);
    free(befores.at);
    return r < 0 ? pb_fail(err, r, r == -ECANCELED ? "cancelled" : "out of memory") : 0;
}
