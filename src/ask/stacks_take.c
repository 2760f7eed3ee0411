/* stacks_take: reads the stacks of all threads of a process; see stacks.h.
 *
 * Each thread is read at its own moment: its stack is consistent, but two threads' stacks may be some
 * microseconds apart. The process is never stopped as a whole. */
#include "ask/process_settings.h"
#include "ask/stacks.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "base/text.h"
#include "base/time.h"
#include "remote/core.h"
#include "remote/source_agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A core has the arguments joined by blanks, cut short. */
static void core_command(const struct pb_core_info *core, char *ret, size_t size)
{
    char words[PB_REDACT_SIZE];

    int n = snprintf(ret, size, "%s", core->command[0] ? core->command : core->name);
    for (int i = 0; i < n; i++)
        if (ret[i] == ' ')
            ret[i] = '\0';
    pb_redact_words(NULL, NULL, words);
    ret[pb_redact_command(words, ret, (size_t)n)] = '\0';
}

static void read_command(struct pb_stacks *s)
{
    const struct pb_core_info *core = pb_core_info(&s->source);

    if (core)
        core_command(core, s->command, sizeof(s->command));
    else
        pb_redact_cmdline(s->pid, s->command, sizeof(s->command));
    pb_text_clean(s->command);
}

static int open_source(const struct pb_target *target, struct pb_stacks *s, struct pb_err *err)
{
    if (!target->core)
        return pb_source_open(target->pid, &s->source, err);
    int r = pb_core_open(target->core, target->root, &s->source, err);
    if (r == 0)
        s->pid = s->source.main;
    s->root = target->root;
    return r;
}

/* A process without Python still has threads. So has a core whose Python cannot be read. */
static int open_python(struct pb_stacks *s, bool force, struct pb_err *err)
{
    struct pb_err why = {0};

    int r = pb_py_open(&s->source, force, &s->py, &why);
    if (r == -ENOENT || (r < 0 && pb_core_info(&s->source))) {
        if (r != -ENOENT)
            snprintf(s->note, sizeof(s->note), "its Python cannot be read: %s", pb_err_text(&why, r));
        s->py = NULL;
        return 0;
    }
    return r < 0 ? pb_fail(err, r, "%s", pb_err_text(&why, r)) : 0;
}

static void describe_source(struct pb_stacks *s)
{
    s->about = (struct pb_stacks_about){.python = s->py,
                                        .version = s->py ? pb_py_version(s->py) : 0,
                                        .free_threaded = s->py && pb_py_free_threaded(s->py),
                                        .verified = s->py && pb_py_verified(s->py),
                                        .native = s->native,
                                        .by_agent = s->source.ops->look,
                                        .source = s->source.ops->name,
                                        .core = pb_core_info(&s->source)};
}

int pb_stacks_open(const struct pb_ask *ask, const struct pb_target *target,
                   const struct pb_stacks_options *options, struct pb_stacks *ret, struct pb_err *err)
{
    struct pb_stacks s = {.pid = target->pid};
    char words[PB_REDACT_SIZE];

    struct pb_target labelled = *target;
    if (target->unlabelled)
        pb_target_label(&labelled);
    memcpy(s.label, labelled.label, sizeof(s.label));
    s.labelled_by = labelled.labelled_by;
    s.rank = pb_target_rank(&labelled);
    int r = open_source(target, &s, err);
    if (r < 0)
        return r;
    read_command(&s);
    *ret = s;
    pb_source_keep(&ret->source, 0);
    r = open_python(ret, options->force, err);
    pb_source_forget(&ret->source);
    if (r == 0 && ret->py && options->locals) {
        pb_redact_words(ask, target->core ? NULL : target, words);
        pb_py_redact(ret->py, words);
    }
    if (r == 0)
        r = pb_stacks_native_open(ret, options, err);
    if (r == 0)
        describe_source(ret);
    else
        pb_stacks_done(ret);
    return r;
}

#define TASKS_MAX  1000
#define LIVE_MS    10000      /* for all threads of a process; thousands take less than a second */
#define CORE_MS    60000      /* a core's file may be on a slow disk */
#define FRAMES_MAX (1u << 20) /* of all threads together */
#define LOCALS_MAX (32u << 20)

static void drop_frames(struct pb_shown_thread *t)
{
    for (size_t i = 0; i < t->nframes; i++)
        free(t->frames[i].locals);
    for (size_t i = 0; i < t->ntasks; i++) {
        for (size_t k = 0; k < t->tasks[i].nframes; k++)
            free(t->tasks[i].frames[k].locals);
        free(t->tasks[i].frames);
    }
    free(t->tasks);
    t->tasks = NULL;
    t->nframes = t->ntasks = 0;
}

static void clear_threads(struct pb_stacks *s)
{
    for (size_t i = 0; i < s->n; i++) {
        drop_frames(&s->threads[i]);
        pb_stacks_native_drop(&s->threads[i]);
        free(s->threads[i].frames);
    }
    free(s->threads);
    pb_waits_done(&s->waits);
    s->verdict[0] = '\0';
    s->threads = NULL;
    s->n = s->frames = s->natives = s->locals = 0;
}

void pb_stacks_done(struct pb_stacks *s)
{
    clear_threads(s);
    pb_stacks_native_done(s);
    pb_py_close(s->py);
    pb_source_close(&s->source);
    *s = (struct pb_stacks){.source.fd = -1};
}

/* Parents of tasks that were, or will be, shown. */
struct parents {
    uint64_t (*at)[2]; /* child, parent */
    size_t n;
};

/* What is read of a thread while it is held. */
struct stack_reading {
    struct pb_stacks *s;
    const struct pb_stacks_options *options;
    struct pb_shown_thread *t;
    struct pb_py_stack *stack;
    struct pb_moment *m;
    struct parents parents;
};

static struct pb_shown_frame show_frame(const struct stack_reading *r, const struct pb_py_frame *f)
{
    struct pb_shown_frame shown = {.code = f->code, .at = *f, .line = pb_py_line(r->s->py, f)};

    if (r->options->locals && r->s->locals < LOCALS_MAX)
        shown.locals = pb_py_locals(r->s->py, f);
    if (shown.locals)
        r->s->locals += shown.locals->size;
    return shown;
}

static int note_parents(struct parents *p, const struct pb_py_task *task)
{
    if (!task->ngathered)
        return 0;
    uint64_t(*more)[2] = reallocarray(p->at, p->n + task->ngathered, sizeof(*more));
    if (!more)
        return -ENOMEM;
    p->at = more;
    for (size_t i = 0; i < task->ngathered; i++) {
        p->at[p->n][0] = task->gathered[i];
        p->at[p->n++][1] = task->addr;
    }
    return 0;
}

static void set_parents(struct parents *p, struct pb_shown_thread *t)
{
    for (size_t i = 0; i < t->ntasks; i++)
        for (size_t k = 0; k < p->n && !t->tasks[i].parent; k++)
            if (p->at[k][0] == t->tasks[i].id)
                t->tasks[i].parent = p->at[k][1];
    free(p->at);
    *p = (struct parents){0};
}

static int add_task(void *arg, const struct pb_py_task *task)
{
    struct stack_reading *r = arg;
    struct pb_shown_thread *t = r->t;
    struct pb_shown_task *more = reallocarray(t->tasks, t->ntasks + 1, sizeof(*more));

    if (!more)
        return -ENOMEM;
    t->tasks = more;
    struct pb_shown_task *shown = &t->tasks[t->ntasks++];
    *shown = (struct pb_shown_task){.id = task->addr, .parent = task->parent, .running = task->running};
    snprintf(shown->name, sizeof(shown->name), "%s", task->name);
    snprintf(shown->waits_for, sizeof(shown->waits_for), "%s", task->waits_for);
    shown->frames = calloc(task->n + 1, sizeof(*shown->frames));
    for (size_t i = 0; shown->frames && i < task->n; i++)
        shown->frames[shown->nframes++] = show_frame(r, &task->frames[i]);
    return shown->frames ? note_parents(&r->parents, task) : -ENOMEM;
}

/* The functions of our Python part in which a thread waits for a client's word. Their local variables: held
 * has what holds it, since when on the monotonic clock, in ms, and how to connect; scene what it raised. */
static const char *const holding[][2] = {{"<probing>/_pause.py", "hold"},
                                         {"<probing>/_dap_engine.py", "wait"}};

static bool is_ours(const struct pb_shown_frame *f)
{
    return strncmp(f->code->file, "<probing>", 9) == 0;
}

static void read_held(const struct stack_reading *r, const struct pb_shown_frame *f)
{
    struct pb_shown_thread *t = r->t;
    unsigned long long since;
    bool holds = false;
    int at = 0;

    for (size_t i = 0; i < sizeof(holding) / sizeof(holding[0]); i++)
        holds |= strcmp(f->code->file, holding[i][0]) == 0 && strcmp(f->code->name, holding[i][1]) == 0;
    struct pb_py_locals *locals = holds ? pb_py_locals(r->s->py, &f->at) : NULL;
    const char *found = pb_py_locals_get(locals, "held");
    if (found && sscanf(found, "'%15[a-z] %llu %n", t->held, &since, &at) >= 2) {
        uint64_t now = pb_now_ns() / PB_NS_PER_MS;
        t->held_seconds = now > since ? (double)(now - since) / 1e3 : 0;
        if (at)
            snprintf(t->held_at, sizeof(t->held_at), "%.*s", (int)strcspn(found + at, "'"), found + at);
    }
    found = pb_py_locals_get(locals, "scene");
    if (found &&
        sscanf(found, "'%63s %63s %d %255[^']", t->raised, t->raised_in, &t->raised_line, t->raised_file) < 4)
        t->raised[0] = '\0';
    free(locals);
}

/* Of a held thread the program's own function comes first. Native frames are merged by the number of each
 * Python frame: then all stay. */
static void leave_out_ours(struct pb_shown_thread *t)
{
    size_t n = 0;

    while (n + (t->raised[0] ? 0 : 1) < t->nframes && is_ours(&t->frames[n]))
        free(t->frames[n++].locals);
    memmove(t->frames, t->frames + n, (t->nframes - n) * sizeof(*t->frames));
    t->nframes -= n;
}

static int read_frames(struct stack_reading *r)
{
    struct pb_py *py = r->s->py;
    struct pb_shown_thread *t = r->t;

    if (r->stack->n) {
        struct pb_shown_frame *frames = reallocarray(t->frames, r->stack->n, sizeof(*frames));
        if (!frames)
            return -ENOMEM;
        t->frames = frames;
    }
    size_t n = r->stack->n < FRAMES_MAX - r->s->frames ? r->stack->n : FRAMES_MAX - r->s->frames;
    t->held[0] = t->held_at[0] = t->raised[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        t->frames[t->nframes++] = show_frame(r, &r->stack->at[i]);
        read_held(r, &t->frames[i]);
    }
    if (t->held[0] && !r->s->native)
        leave_out_ours(t);
    t->truncated = r->stack->truncated || n < r->stack->n;
    /* An unreadable list of tasks does not invalidate the stack. */
    pb_py_tasks(py, &t->py, r->stack, TASKS_MAX, add_task, r);
    set_parents(&r->parents, t);
    return 0;
}

static void read_name(struct stack_reading *r)
{
    struct pb_shown_thread *t = r->t;

    /* Names may be as old as the start of the reading: pages that all threads share are read once. */
    r->s->names_round = pb_source_keep(&r->s->source, r->s->names_round);
    if (pb_py_thread_name(r->s->py, &t->py, r->stack, t->name, sizeof(t->name)) < 0)
        t->name[0] = '\0';
    pb_source_forget(&r->s->source);
}

static int read_more(void *arg)
{
    struct stack_reading *r = arg;
    struct pb_shown_thread *t = r->t;

    drop_frames(t);
    t->gil = r->stack->holder_known ? r->stack->holder == t->py.tstate : pb_py_holds_gil(r->s->py, &t->py);
    read_name(r);
    /* While a thread is held its own data does not change. */
    pb_source_keep(&r->s->source, 0);
    int result = read_frames(r);
    pb_source_forget(&r->s->source);
    return result < 0 ? result : pb_stacks_native_copy(r->s, r->m);
}

static void note_syscall(struct pb_shown_thread *t, const struct pb_moment *m)
{
    /* Through the agent it may be unknown whether a thread slept or waited for a CPU. */
    t->off_cpu = m->pc || t->native.state != 'R';
    t->syscall = m->syscall;
    memcpy(t->syscall_args, m->syscall_args, sizeof(t->syscall_args));
}

static int read_native(void *arg)
{
    const struct stack_reading *r = arg;
    return pb_stacks_native_copy(r->s, r->m);
}

/* A thread without Python: its system call, and its native stack if wanted. */
static int take_native(struct stack_reading *r, unsigned ways)
{
    return pb_moment_read(r->m, r->s->native ? ways : PB_WAY_ASLEEP, read_native, r, &r->t->way);
}

static int take_frames(struct stack_reading *r, unsigned ways)
{
    if (!r->t->python)
        return take_native(r, ways);
    int result = pb_py_sample(r->s->py, &r->t->py, r->m, ways, r->stack, read_more, r);
    r->t->way = r->stack->way;
    return result;
}

/* Of a sleeping thread some registers are unknown; stopping it shows them. If it cannot be stopped they are
 * guessed, which takes far longer. A handler on its own stack needs a second read, of the interrupted
 * stack. */
static int unwind_thread(struct stack_reading *r, bool may_stop)
{
    struct pb_capture *c = &r->s->capture;
    struct pb_shown_thread *t = r->t;

    c->no_guesses = may_stop && t->way == PB_WAY_ASLEEP;
    int result = pb_stacks_native_unwind(r->s, t);
    if (result < 0 || !may_stop || !(t->native_flags & PB_NATIVE_TRUNCATED) || !(c->no_guesses || c->wanted))
        return result;
    result = take_frames(r, PB_WAY_STOPPED);
    if (result == -ESRCH || result == -EAGAIN)
        return result;
    c->no_guesses = false;
    return pb_stacks_native_unwind(r->s, t);
}

static void take_thread(struct pb_stacks *s, const struct pb_stacks_options *options,
                        struct pb_shown_thread *t, struct pb_py_stack *stack, uint64_t until)
{
    struct pb_moment m;
    struct stack_reading reading = {s, options, t, stack, &m, {0}};
    unsigned ways = PB_WAY_ASLEEP | (options->no_stop ? 0 : PB_WAY_STOPPED);

    t->syscall = -1;
    t->gil = t->py.gil; /* as it was when the threads were listed; read again while the thread is held */
    t->failed = pb_now_ns() > until ? -ETIMEDOUT
                : t->native.tid     ? pb_source_moment(&s->source, t->native.tid, &m)
                                    : -ESRCH;
    if (t->failed < 0)
        return;
    t->failed = take_frames(&reading, ways);
    bool without = !t->python && !s->native; /* no stack to show, which is no failure */
    if (t->failed == 0 && (t->way == PB_WAY_ASLEEP || (t->way == PB_WAY_DEAD && m.syscall >= 0)))
        note_syscall(t, &m);
    if (t->failed == 0)
        t->failed = unwind_thread(&reading, !options->no_stop && t->native.state != 'D');
    s->frames += t->nframes;
    if (t->failed < 0) {
        drop_frames(t);
        pb_stacks_native_drop(t);
    }
    if (without)
        t->failed = 0;
    pb_moment_close(&m);
}

static int thread_rank(const struct pb_shown_thread *t)
{
    return (t->native.signal ? 16 : 0) + (t->gil ? 8 : 0) + (t->python && !t->off_cpu ? 4 : 0) +
           (t->python ? 2 : 0) + (!t->off_cpu ? 1 : 0);
}

static int most_telling_first(const void *a, const void *b)
{
    const struct pb_shown_thread *x = a, *y = b;
    int d = thread_rank(y) - thread_rank(x);
    return d ? d : (x->native.tid > y->native.tid) - (x->native.tid < y->native.tid);
}

/* One row per native thread, and per Python thread state without a known native thread. */
static int list_threads(struct pb_stacks *s, const struct pb_native_threads *native, struct pb_err *err)
{
    const struct pb_py_thread *py = NULL;

    int npy = s->py ? pb_py_threads(s->py, native, &py, err) : 0;
    if (npy < 0)
        return npy;
    s->threads = calloc(native->n + (size_t)npy, sizeof(*s->threads));
    if (!s->threads)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < native->n; i++)
        s->threads[s->n++].native = native->at[i];
    for (int i = 0; i < npy; i++) {
        struct pb_native_thread *n = py[i].tid ? pb_native_threads_find(native, py[i].tid) : NULL;
        struct pb_shown_thread *t = n ? &s->threads[n - native->at] : NULL;
        /* Two interpreters may share a thread, each with its own frames. */
        if (!t || t->python)
            t = &s->threads[s->n++];
        if (n)
            t->native = *n;
        else
            t->native.state = '?';
        t->python = true;
        t->py = py[i];
    }
    return 0;
}

int pb_stacks_take(struct pb_stacks *s, const struct pb_stacks_options *options, struct pb_err *err)
{
    _cleanup_(pb_native_threads_done) struct pb_native_threads native = {0};
    _cleanup_(pb_py_stack_done) struct pb_py_stack stack = {0};

    clear_threads(s);
    s->names_round = 0;
    int r = pb_source_threads(&s->source, &native, err);
    if (r == 0)
        r = list_threads(s, &native, err);
    if (r < 0)
        return r;
    unsigned within_ms = options->within_ms ? options->within_ms : s->source.pid ? LIVE_MS : CORE_MS;
    uint64_t until = pb_now_ns() + within_ms * PB_NS_PER_MS;
    if (s->py)
        pb_py_until(s->py, until);
    for (size_t i = 0; i < s->n; i++)
        take_thread(s, options, &s->threads[i], &stack, until);
    if (s->py && *pb_py_note(s->py))
        snprintf(s->note, sizeof(s->note), "%s", pb_py_note(s->py));
    if (pb_stacks_native_describe(s) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    qsort(s->threads, s->n, sizeof(*s->threads), most_telling_first);
    if (s->n && s->threads[0].failed == -ESRCH && s->source.pid && access("/proc/self", F_OK) == 0) {
        char path[32];
        snprintf(path, sizeof(path), "/proc/%d/mem", (int)s->pid);
        if (access(path, F_OK) < 0)
            return pb_fail(err, -ESRCH, "the process ended while it was read");
    }
    return 0;
}

const char *pb_stacks_held(const struct pb_shown_thread *t, char *buf, size_t size)
{
    snprintf(buf, size, "%s by `%s` since %.0f s", strcmp(t->held, "pause") == 0 ? "paused" : "held", t->held,
             t->held_seconds);
    return buf;
}

const char *pb_stacks_state(const struct pb_shown_thread *t, char *buf, size_t size)
{
    const char *name = t->off_cpu && t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;

    if (t->native.signal) {
        char number[24];
        snprintf(buf, size, "died of %s", pb_stacks_signal(t->native.signal, number, sizeof(number)));
        return buf;
    }
    if (t->held[0] && t->native.state != 'T')
        return pb_stacks_held(t, buf, size);
    switch (t->native.state) {
    case 'T':
        return "stopped by a signal";
    case 't':
        return "stopped by a tracer";
    case 'Z':
    case 'X':
        return "ended";
    case '?':
        return "no native thread is known for it";
    default:
        break;
    }
    if (!t->off_cpu)
        return "running";
    if (name)
        snprintf(buf, size, "%s in %s", t->native.state == 'D' ? "blocked" : "waiting", name);
    else if (t->syscall >= 0)
        snprintf(buf, size, "waiting in system call %d", t->syscall);
    else
        snprintf(buf, size, "waiting in the kernel");
    return buf;
}
