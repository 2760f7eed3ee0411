/* fact_tables: see fact_tables.h. Every text comes from the job: it is quoted, and cut. */
#include "diagnose/fact_tables.h"

#include "ask/stacks.h"
#include "base/text.h"
#include "diagnose/issued.h"

#include <stdlib.h>
#include <string.h>

/* --- values --- */

struct columns {
    FILE *out;
    bool first;
};

static void next(struct columns *c)
{
    fputs(c->first ? "(" : ", ", c->out);
    c->first = false;
}

static void text(struct columns *c, const char *value)
{
    next(c);
    if (!value || !value[0]) {
        fputs("NULL", c->out);
        return;
    }
    putc('\'', c->out);
    for (size_t left = strlen(value), n; left; value += n, left -= n) {
        uint32_t code;
        n = pb_utf8_read(value, left, &code);
        if (!n) { /* a character that was cut */
            n = 1;
            continue;
        }
        if (*value == '\'')
            putc('\'', c->out);
        fwrite(value, 1, n, c->out);
    }
    putc('\'', c->out);
}

static void number(struct columns *c, double value, bool known)
{
    next(c);
    if (known)
        fprintf(c->out, "%.3f", value);
    else
        fputs("NULL", c->out);
}

static void whole(struct columns *c, long long value, bool known)
{
    next(c);
    if (known)
        fprintf(c->out, "%lld", value);
    else
        fputs("NULL", c->out);
}

static void truth(struct columns *c, bool value)
{
    next(c);
    fputs(value ? "true" : "false", c->out);
}

static void place(struct columns *c, const struct pb_diag_place *p)
{
    const char *name = p ? strrchr(p->file, '/') : NULL;
    char short_name[300] = "";

    if (p && p->line)
        snprintf(short_name, sizeof(short_name), "%.200s:%d", name ? name + 1 : p->file, p->line);
    text(c, p && p->line ? p->file : NULL);
    whole(c, p ? p->line : 0, p && p->line);
    text(c, p && p->line ? p->function : NULL);
    text(c, p && p->line ? p->source : NULL);
    text(c, short_name);
}

/* A row of NULLs gives the types where there is no other row; it is left out again. */
static void begin(FILE *out, const char *name, const char *const (*types)[2], size_t n)
{
    fprintf(out, "%s AS (SELECT * FROM (VALUES (", name);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%sCAST(NULL AS %s)", i ? ", " : "", types[i][1]);
    putc(')', out);
}

static void end(FILE *out, const char *const (*types)[2], size_t n)
{
    fputs(") AS t(", out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s%s", i ? ", " : "", types[i][0]);
    fprintf(out, ") WHERE %s IS NOT NULL)", types[0][0]);
}

/* --- words for processes --- */

static void put_who(const struct pb_diag_job *job, size_t process, char *ret, size_t size)
{
    const struct pb_diag_process *p = &job->processes[process];

    if (p->parent != PB_NOBODY && p->rank >= 0)
        snprintf(ret, size, "process %d, a child of rank %d,", (int)p->pid, p->rank);
    else if (p->parent != PB_NOBODY)
        snprintf(ret, size, "process %d, a child of process %d,", (int)p->pid,
                 (int)job->processes[p->parent].pid);
    else if (p->rank >= 0)
        snprintf(ret, size, "rank %d", p->rank);
    else
        snprintf(ret, size, "process %d", (int)p->pid);
}

static int by_value(const void *a, const void *b)
{
    const int *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The ranks of these threads as "0, 1, 3", each once. */
static int put_ranks(const struct pb_diag_job *job, const size_t *threads, size_t n, char *ret, size_t size)
{
    int *ranks = calloc(n + 1, sizeof(*ranks)), count = 0;

    ret[0] = '\0';
    for (size_t i = 0; ranks && i < n; i++) {
        int rank = job->processes[job->threads[threads[i]].process].rank;
        bool again = rank < 0;
        for (int k = 0; k < count; k++)
            again |= ranks[k] == rank;
        if (!again)
            ranks[count++] = rank;
    }
    if (count)
        qsort(ranks, (size_t)count, sizeof(*ranks), by_value);
    if (ranks)
        pb_wait_put_ranks(ranks, (size_t)count, ret, size);
    free(ranks);
    return count;
}

/* "rank 1" or "ranks 0, 1, 3" */
static void put_others(const char *ranks, int n, char *ret, size_t size)
{
    snprintf(ret, size, "%s%s", n == 0 ? "" : n == 1 ? "rank " : "ranks ", n == 0 ? "" : ranks);
}

/* --- tables --- */

static const char *const end_columns[][2] = {
    {"how", "VARCHAR"},
    {"who", "VARCHAR"},
    {"rank", "INTEGER"},
    {"pid", "INTEGER"},
    {"child", "BOOLEAN"},
    {"command", "VARCHAR"},
    {"thread", "VARCHAR"},
    {"tid", "INTEGER"},
    {"main", "BOOLEAN"},
    {"python", "BOOLEAN"},
    {"wait", "VARCHAR"},
    {"wait_text", "VARCHAR"},
    {"call", "VARCHAR"},
    {"state", "VARCHAR"},
    {"tracer", "INTEGER"},
    {"writes", "BOOLEAN"},
    {"own_end", "BOOLEAN"},
    {"same", "BOOLEAN"},
    {"moved", "BOOLEAN"},
    {"still", "DOUBLE"},
    {"cpu", "DOUBLE"},
    {"held", "VARCHAR"},
    {"leaving", "BOOLEAN"},
    {"in_event_loop", "BOOLEAN"},
    {"serves", "BOOLEAN"},
    {"child_moves", "BOOLEAN"},
    {"young", "BOOLEAN"},
    {"signal", "INTEGER"},
    {"status", "INTEGER"},
    {"why", "VARCHAR"},
    {"guessed", "BOOLEAN"},
    {"file", "VARCHAR"},
    {"line", "INTEGER"},
    {"function", "VARCHAR"},
    {"source", "VARCHAR"},
    {"place", "VARCHAR"},
    {"top_function", "VARCHAR"},
    {"top_place", "VARCHAR"},
    {"top_own", "BOOLEAN"},
    {"inside_function", "VARCHAR"},
    {"inside_file", "VARCHAR"},
    {"signature", "VARCHAR"},
    {"waiter", "VARCHAR"},
    {"waiter_thread", "VARCHAR"},
    {"waiter_wait", "VARCHAR"},
    {"waiter_place", "VARCHAR"},
    {"waiter_source", "VARCHAR"},
    {"waiter_child", "BOOLEAN"},
    {"waiter_inside", "VARCHAR"},
    {"waiter_same_process", "BOOLEAN"},
    {"waiter_text", "VARCHAR"},
    {"waiter_leaving", "BOOLEAN"},
    {"waiter_file", "VARCHAR"},
    {"waiter_line", "INTEGER"},
    {"waiter_function", "VARCHAR"},
    {"blocked", "INTEGER"},
    {"blocked_ranks", "VARCHAR"},
    {"others", "VARCHAR"},
    {"waiting", "DOUBLE"},
    {"waiters_moved", "BOOLEAN"},
    {"op", "VARCHAR"},
    {"op_place", "VARCHAR"},
    {"op_source", "VARCHAR"},
    {"circle", "INTEGER"},
    {"circle_processes", "INTEGER"},
    {"lone", "BOOLEAN"},
    {"cut_off", "BOOLEAN"},
    {"task_file", "VARCHAR"},
    {"task_line", "INTEGER"},
    {"task_function", "VARCHAR"},
    {"task_source", "VARCHAR"},
    {"task_place", "VARCHAR"},
    {"n", "INTEGER"},
};
#define END_COLUMNS (sizeof(end_columns) / sizeof(end_columns[0]))

/* Whether one of its children, or of their children, ran between the looks; if a pid is given, that one. */
static bool has_child_that_moves(const struct pb_diag_job *job, size_t process, pid_t pid)
{
    for (size_t i = 0; i < job->nthreads; i++) {
        size_t at = job->threads[i].process;
        if (!job->threads[i].moved || (pid && job->processes[at].pid != pid))
            continue;
        for (int depth = 0; depth < 64 && job->processes[at].parent != PB_NOBODY; depth++)
            if ((at = job->processes[at].parent) == process)
                return true;
    }
    return false;
}

static void put_thread(struct columns *c, const struct pb_diag_job *job, const struct pb_diag_end *e)
{
    const struct pb_diag_thread *t = e->thread == PB_NOBODY ? NULL : &job->threads[e->thread];
    const struct pb_diag_process *p = &job->processes[e->process];
    char state[2] = {t ? t->state : p->state, '\0'};

    text(c, t ? t->name : NULL);
    whole(c, t ? t->tid : 0, t);
    truth(c, t && t->main);
    truth(c, t && t->python);
    text(c, t ? pb_wait_name(t->wait.kind) : NULL);
    text(c, t ? t->wait.text : NULL);
    text(c, t ? t->call : NULL);
    text(c, state);
    whole(c, p->tracer, p->tracer);
    truth(c, t && t->wait.writes);
    truth(c, t && t->wait.holder_pid == p->pid && !t->wait.holder_tid);
    truth(c, t && t->same);
    truth(c, t && t->moved);
    number(c, t ? t->still : 0, t && t->still >= 0);
    number(c, t ? t->cpu : 0, t);
    text(c, t ? t->held : NULL);
    truth(c, t && t->leaving);
    truth(c, t && t->in_event_loop);
    truth(c, t && t->serves);
    truth(c,
          t && has_child_that_moves(job, e->process, t->wait.kind == PB_WAIT_CHILD ? 0 : t->wait.holder_pid));
    truth(c, p->young);
    whole(c, p->signal, p->signal);
    whole(c, p->status, p->status >= 0);
    text(c, p->why);
    truth(c, e->guessed);
    place(c, t ? &t->own : NULL);
    text(c, t ? t->top.function : NULL);
    char top[300] = "";
    if (t && t->top.line)
        snprintf(top, sizeof(top), "%.200s:%d", t->top.file, t->top.line);
    text(c, top);
    truth(c, t && t->top.line && pb_stacks_is_own(t->top.file));
    text(c, t ? t->inside.function : NULL);
    text(c, t && t->inside.line ? t->inside.file : NULL);
    text(c, t ? t->signature : NULL);
}

static void put_waiter(struct columns *c, const struct pb_diag_job *job, const struct pb_diag_end *e)
{
    const struct pb_diag_thread *w = e->waiter == PB_NOBODY ? NULL : &job->threads[e->waiter];
    char who[80] = "", where[300] = "";
    const char *name = w ? strrchr(w->own.file, '/') : NULL;

    if (w) {
        put_who(job, w->process, who, sizeof(who));
        snprintf(where, sizeof(where), "%.200s:%d", name ? name + 1 : w->own.file, w->own.line);
    }
    text(c, who);
    text(c, w ? w->name : NULL);
    text(c, w ? pb_wait_name(w->wait.kind) : NULL);
    text(c, where);
    text(c, w ? w->own.source : NULL);
    truth(c, w && job->processes[w->process].parent != PB_NOBODY);
    text(c, w ? w->inside.function : NULL);
    truth(c, w && w->process == e->process);
    text(c, w ? w->wait.text : NULL);
    truth(c, w && w->leaving);
    text(c, w ? w->own.file : NULL);
    whole(c, w ? w->own.line : 0, w && w->own.line);
    text(c, w ? w->own.function : NULL);
}

/* Whether an end is of one rank alone: threads of that rank wait for it too, but are not others. */
static bool is_of_one_rank(const struct pb_diag_job *job, const struct pb_diag_end *e)
{
    if (e->kind == PB_END_DIFFERS)
        return false;
    for (size_t i = 0; e->kind == PB_END_CIRCLE && i < e->ncircle; i++)
        if (job->processes[job->threads[e->circle[i]].process].rank != job->processes[e->process].rank)
            return false;
    return job->processes[e->process].rank >= 0;
}

static void put_blocked(struct columns *c, const struct pb_diag_job *job, const struct pb_diag_end *e)
{
    const struct pb_diag_thread *first = NULL;
    char ranks[64], others[80], where[300] = "";
    size_t kept = 0, *of_others = calloc(e->nblocked + 1, sizeof(*of_others));
    double waiting = -1;

    const bool one = is_of_one_rank(job, e);

    for (size_t i = 0; of_others && i < e->nblocked; i++) {
        const struct pb_diag_thread *t = &job->threads[e->blocked[i]];
        if (one && job->processes[t->process].rank == job->processes[e->process].rank)
            continue;
        of_others[kept++] = e->blocked[i];
        if (t->still >= 0 && (waiting < 0 || t->still < waiting))
            waiting = t->still;
        if (!first && t->wait.kind == PB_WAIT_COLLECTIVE)
            first = t;
    }
    int n = of_others ? put_ranks(job, of_others, kept, ranks, sizeof(ranks)) : 0;
    put_others(n ? ranks : "", n, others, sizeof(others));
    free(of_others);
    whole(c, n, true);
    text(c, n ? ranks : NULL);
    text(c, others);
    number(c, waiting, waiting >= 0);
    truth(c, e->moved);
    text(c, first ? first->wait.text : NULL);
    const char *name = first ? strrchr(first->own.file, '/') : NULL;
    if (first)
        snprintf(where, sizeof(where), "%.200s:%d", name ? name + 1 : first->own.file, first->own.line);
    text(c, where);
    text(c, first ? first->own.source : NULL);
}

static void put_ends(FILE *out, const struct pb_diag_job *job)
{
    begin(out, "ends", end_columns, END_COLUMNS);
    for (size_t i = 0; i < job->nends; i++) {
        const struct pb_diag_end *e = &job->ends[i];
        const struct pb_diag_process *p = &job->processes[e->process];
        struct columns c = {out, true};
        char who[80];
        int processes = 0;

        put_who(job, e->process, who, sizeof(who));
        fputs(", ", out);
        text(&c, pb_diag_end_name(e->kind));
        text(&c, who);
        whole(&c, p->rank, p->rank >= 0);
        whole(&c, p->pid, p->pid > 0);
        truth(&c, p->parent != PB_NOBODY);
        text(&c, p->command);
        put_thread(&c, job, e);
        put_waiter(&c, job, e);
        put_blocked(&c, job, e);
        for (size_t k = 0; k < e->ncircle; k++) {
            bool again = false;
            for (size_t m = 0; m < k; m++)
                again |= job->threads[e->circle[m]].process == job->threads[e->circle[k]].process;
            processes += !again;
        }
        whole(&c, (long long)e->ncircle, true);
        whole(&c, processes, true);
        truth(&c, !job->ranks);
        const struct pb_diag_thread *t = e->thread == PB_NOBODY ? NULL : &job->threads[e->thread];
        truth(&c, t && t->cut_off);
        place(&c, t ? &t->task : NULL);
        whole(&c, (long long)i, true);
        putc(')', out);
    }
    end(out, end_columns, END_COLUMNS);
}

static const char *const thread_columns[][2] = {
    {"tid", "INTEGER"},        {"rank", "INTEGER"},         {"pid", "INTEGER"},
    {"child", "BOOLEAN"},      {"who", "VARCHAR"},          {"thread", "VARCHAR"},
    {"main", "BOOLEAN"},       {"subject", "BOOLEAN"},      {"python", "BOOLEAN"},
    {"gil", "BOOLEAN"},        {"wait", "VARCHAR"},         {"wait_text", "VARCHAR"},
    {"call", "VARCHAR"},       {"same", "BOOLEAN"},         {"moved", "BOOLEAN"},
    {"still", "DOUBLE"},       {"cpu", "DOUBLE"},           {"held", "VARCHAR"},
    {"leaving", "BOOLEAN"},    {"young", "BOOLEAN"},        {"op", "VARCHAR"},
    {"group_name", "VARCHAR"}, {"signature", "VARCHAR"},    {"file", "VARCHAR"},
    {"line", "INTEGER"},       {"function", "VARCHAR"},     {"source", "VARCHAR"},
    {"place", "VARCHAR"},      {"top_function", "VARCHAR"}, {"inside_function", "VARCHAR"},
    {"in_circle", "INTEGER"},  {"circle_at", "INTEGER"},    {"recursive", "BOOLEAN"},
    {"peer", "INTEGER"},
};
#define THREAD_COLUMNS (sizeof(thread_columns) / sizeof(thread_columns[0]))

/* The circle that a thread is in, and where. */
static void put_circle(struct columns *c, const struct pb_diag_job *job, size_t thread)
{
    for (size_t i = 0; i < job->nends; i++)
        for (size_t k = 0; k < job->ends[i].ncircle; k++)
            if (job->ends[i].circle[k] == thread) {
                whole(c, (long long)i, true);
                whole(c, (long long)k, true);
                return;
            }
    whole(c, 0, false);
    whole(c, 0, false);
}

static void put_threads(FILE *out, const struct pb_diag_job *job)
{
    begin(out, "threads", thread_columns, THREAD_COLUMNS);
    for (size_t i = 0; i < job->nthreads; i++) {
        const struct pb_diag_thread *t = &job->threads[i];
        const struct pb_diag_process *p = &job->processes[t->process];
        struct columns c = {out, true};
        char who[80];

        if (!t->python && !t->main)
            continue;
        put_who(job, t->process, who, sizeof(who));
        fputs(", ", out);
        whole(&c, t->tid, true);
        whole(&c, p->rank, p->rank >= 0);
        whole(&c, p->pid, true);
        truth(&c, p->parent != PB_NOBODY);
        text(&c, who);
        text(&c, t->name);
        truth(&c, t->main);
        truth(&c, p->parent == PB_NOBODY && (t->main || t->wait.kind == PB_WAIT_COLLECTIVE));
        truth(&c, t->python);
        truth(&c, t->gil);
        text(&c, pb_wait_name(t->wait.kind));
        text(&c, t->wait.text);
        text(&c, t->call);
        truth(&c, t->same);
        truth(&c, t->moved);
        number(&c, t->still, t->still >= 0);
        number(&c, t->cpu, true);
        text(&c, t->held);
        truth(&c, t->leaving);
        truth(&c, p->young);
        text(&c, t->wait.kind == PB_WAIT_COLLECTIVE ? t->wait.text : NULL);
        text(&c, t->wait.group);
        text(&c, t->signature);
        place(&c, &t->own);
        text(&c, t->top.function);
        text(&c, t->inside.function);
        put_circle(&c, job, i);
        truth(&c, t->wait.recursive);
        whole(&c, t->peer, t->peer >= 0);
        putc(')', out);
    }
    end(out, thread_columns, THREAD_COLUMNS);
}

static const char *const job_columns[][2] = {
    {"name", "VARCHAR"},      {"launcher", "INTEGER"}, {"world", "INTEGER"},        {"ranks", "BOOLEAN"},
    {"processes", "INTEGER"}, {"between", "DOUBLE"},   {"looked_again", "BOOLEAN"},
};
#define JOB_COLUMNS (sizeof(job_columns) / sizeof(job_columns[0]))

static void put_job(FILE *out, const struct pb_diag_job *job)
{
    struct columns c = {out, true};

    begin(out, "job", job_columns, JOB_COLUMNS);
    fputs(", ", out);
    text(&c, job->name[0] ? job->name : "?");
    whole(&c, job->launcher, job->launcher);
    whole(&c, job->world, job->world);
    truth(&c, job->ranks);
    whole(&c, (long long)job->nprocesses, true);
    number(&c, job->between, true);
    truth(&c, job->looked_again);
    putc(')', out);
    end(out, job_columns, JOB_COLUMNS);
}

static const char *const ended_columns[][2] = {
    {"n", "INTEGER"},
    {"pid", "INTEGER"},
    {"rank", "INTEGER"},
    {"living", "BOOLEAN"},
    {"has_run", "BOOLEAN"},
    {"unread", "BOOLEAN"},
    {"signal", "INTEGER"},
    {"known_status", "INTEGER"},
    {"wrote", "DOUBLE"},
    {"ago", "DOUBLE"},
    {"error", "VARCHAR"},
    {"lost_peer", "BOOLEAN"},
    {"fatal", "BOOLEAN"},
    {"kernel", "VARCHAR"},
    {"file", "VARCHAR"},
    {"line", "INTEGER"},
    {"function", "VARCHAR"},
    {"source", "VARCHAR"},
    {"place", "VARCHAR"},
    {"thread", "VARCHAR"},
    {"thread_error", "VARCHAR"},
    {"thread_file", "VARCHAR"},
    {"thread_line", "INTEGER"},
    {"thread_function", "VARCHAR"},
    {"thread_source", "VARCHAR"},
    {"thread_place", "VARCHAR"},
};
#define ENDED_COLUMNS (sizeof(ended_columns) / sizeof(ended_columns[0]))

static void put_ended(FILE *out, const struct pb_diag_job *job)
{
    begin(out, "ended", ended_columns, ENDED_COLUMNS);
    for (size_t i = 0; i < job->nended; i++) {
        const struct pb_diag_ended *e = &job->ended[i];
        struct columns c = {out, true};

        fputs(", ", out);
        whole(&c, (long long)i, true);
        whole(&c, e->pid, e->pid > 0);
        whole(&c, e->rank, e->rank >= 0);
        truth(&c, e->living);
        truth(&c, e->has_run);
        truth(&c, e->unread);
        whole(&c, e->signal, e->signal > 0);
        whole(&c, e->status, e->status >= 0);
        number(&c, e->wrote, e->wrote > 0);
        number(&c, e->ago, e->ago >= 0);
        text(&c, e->error);
        truth(&c, e->lost_peer);
        truth(&c, e->fatal);
        text(&c, e->kernel);
        place(&c, &e->place);
        text(&c, e->thread);
        text(&c, e->thread_error);
        place(&c, &e->thread_place);
        putc(')', out);
    }
    end(out, ended_columns, ENDED_COLUMNS);
}

static const char *const stall_columns[][2] = {
    {"what", "VARCHAR"},   {"group_name", "VARCHAR"}, {"op", "VARCHAR"},      {"number", "BIGINT"},
    {"seconds", "DOUBLE"}, {"gpu", "BOOLEAN"},        {"waiting", "VARCHAR"}, {"nwaiting", "INTEGER"},
    {"others", "VARCHAR"}, {"other", "INTEGER"},      {"unasked", "VARCHAR"}, {"difference", "VARCHAR"},
};
#define STALL_COLUMNS (sizeof(stall_columns) / sizeof(stall_columns[0]))

/* What stands by torch's Flight Recorder: a row, or none. */
static void put_stall(FILE *out, const struct pb_diag_job *job)
{
    const struct pb_stall *s = &job->stall;
    struct columns c = {out, true};
    int other = -1;
    char end_of_text;

    begin(out, "stall", stall_columns, STALL_COLUMNS);
    if (s->kind != PB_STALL_NONE) {
        bool one = sscanf(s->others, "%d%c", &other, &end_of_text) == 1;
        fputs(", ", out);
        text(&c, pb_diag_stall_name(s->kind));
        text(&c, s->group);
        text(&c, s->op);
        whole(&c, (long long)s->number, true);
        number(&c, s->seconds, true);
        truth(&c, s->gpu);
        text(&c, s->waiting);
        whole(&c, s->nwaiting, true);
        text(&c, s->others);
        whole(&c, other, one);
        text(&c, s->unasked);
        text(&c, s->difference);
        putc(')', out);
    }
    end(out, stall_columns, STALL_COLUMNS);
}

void pb_diag_put_tables(FILE *out, const struct pb_diag_job *job, const char *select)
{
    static const struct {
        const char *name;
        void (*put)(FILE *out, const struct pb_diag_job *job);
    } tables[] = {{"ends", put_ends},
                  {"threads", put_threads},
                  {"job", put_job},
                  {"ended", put_ended},
                  {"stall", put_stall}};
    const char *before = "WITH ";

    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (!strcasestr(select, tables[i].name))
            continue;
        fputs(before, out);
        tables[i].put(out, job);
        before = ", ";
    }
    putc(' ', out);
}
