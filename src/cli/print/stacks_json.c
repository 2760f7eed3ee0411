/* stacks_json: stacks for a program to read; see stacks_print.h. */
#include "ask/stackset.h"
#include "base/json_write.h"
#include "cli/print/stacks_print.h"
#include "remote/core.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void put_locals(struct pb_json_writer *w, const struct pb_py_locals *l)
{
    const char *name = l->text;

    pb_json_open(w, "locals", '{');
    for (uint32_t i = 0; i < l->n; i++) {
        const char *value = pb_py_locals_after(name);
        pb_json_put_text(w, name, value);
        name = pb_py_locals_after(value);
    }
    pb_json_close(w);
}

static void put_line(struct pb_json_writer *w, long line)
{
    if (line)
        pb_json_put_number(w, "line", "%ld", line);
    else
        pb_json_put_null(w, "line");
}

static void put_frame(struct pb_json_writer *w, const struct pb_shown_frame *f)
{
    pb_json_open(w, NULL, '{');
    pb_json_put_text(w, "function", f->code->qualname);
    pb_json_put_text(w, "name", f->code->name);
    pb_json_put_text(w, "file", f->code->file);
    put_line(w, f->line);
    pb_json_put_number(w, "first_line", "%d", f->code->first_line);
    pb_json_put_bool(w, "own", pb_stacks_is_own(f->code->file));
    if (f->locals)
        put_locals(w, f->locals);
    pb_json_close(w);
}

static void put_frames(struct pb_json_writer *w, const struct pb_shown_frame *frames, size_t n)
{
    pb_json_open(w, "frames", '[');
    for (size_t i = 0; i < n; i++) {
        pb_json_line(w, 6);
        put_frame(w, &frames[i]);
    }
    pb_json_close(w);
}

static void put_native(struct pb_json_writer *w, const struct pb_native_frame *f)
{
    pb_json_put_text(w, "kind", "native");
    pb_json_put_text(w, "function", f->function);
    pb_json_put_text(w, "module", f->module);
    pb_json_put_text(w, "build_id", f->build_id);
    pb_json_put_text(w, "file", f->file);
    put_line(w, (long)f->line);
    pb_json_put_format(w, "pc", "0x%" PRIx64, f->pc);
    pb_json_put_format(w, "address", "0x%" PRIx64, f->address);
    pb_json_put_bool(w, "inlined", f->flags & PB_NATIVE_INLINED);
    pb_json_put_bool(w, "guessed", f->flags & PB_NATIVE_BY_SCAN);
}

/* Native frames in full; a Python frame as its index in "frames", with its name. */
static void put_merged(struct pb_json_writer *w, const struct pb_shown_thread *t)
{
    static const char *const how[] = {"full", "partial", "apart"};

    pb_json_put_text(w, "merge", how[t->merge]);
    pb_json_put_bool(w, "native_truncated", t->native_flags & PB_NATIVE_TRUNCATED);
    pb_json_open(w, "stack", '[');
    for (size_t i = 0; i < t->nmerged; i++) {
        const struct pb_merged *m = &t->merged[i];
        pb_json_line(w, 6);
        pb_json_open(w, NULL, '{');
        if (!m->python) {
            put_native(w, &t->natives[m->index]);
        } else {
            pb_json_put_text(w, "kind", "python");
            pb_json_put_text(w, "function", t->frames[m->index].code->qualname);
            pb_json_put_text(w, "file", t->frames[m->index].code->file);
            put_line(w, t->frames[m->index].line);
            pb_json_put_number(w, "frame", "%zu", m->index);
        }
        pb_json_close(w);
    }
    pb_json_close(w);
}

/* As text: numbers of JSON have 53 bits. */
static void put_task_id(struct pb_json_writer *w, const char *key, uint64_t id)
{
    char text[24];

    snprintf(text, sizeof(text), "%#" PRIx64, id);
    pb_json_put_text(w, key, id ? text : NULL);
}

static void put_tasks(struct pb_json_writer *w, const struct pb_shown_thread *t)
{
    pb_json_open(w, "tasks", '[');
    for (size_t i = 0; i < t->ntasks; i++) {
        pb_json_line(w, 5);
        pb_json_open(w, NULL, '{');
        pb_json_put_text(w, "name", t->tasks[i].name);
        put_task_id(w, "id", t->tasks[i].id);
        put_task_id(w, "awaited_by", t->tasks[i].parent);
        pb_json_put_bool(w, "running", t->tasks[i].running);
        pb_json_put_text(w, "waits_for", t->tasks[i].waits_for);
        put_frames(w, t->tasks[i].frames, t->tasks[i].nframes);
        pb_json_close(w);
    }
    pb_json_close(w);
}

/* A member that is there only where it is known. */
static void put_known(struct pb_json_writer *w, const char *key, const char *text)
{
    if (text[0])
        pb_json_put_text(w, key, text);
}

static void put_wait(struct pb_json_writer *w, const struct pb_wait *wait)
{
    if (wait->kind == PB_WAIT_NONE) {
        pb_json_put_null(w, "waits_for");
        return;
    }
    pb_json_open(w, "waits_for", '{');
    pb_json_put_text(w, "kind", pb_wait_name(wait->kind));
    if (wait->object)
        pb_json_put_number(w, "object", "%" PRIu64, wait->object);
    if (wait->fd >= 0)
        pb_json_put_number(w, "descriptor", "%d", wait->fd);
    put_known(w, "what", wait->text);
    if (wait->holder_pid)
        pb_json_put_number(w, "holder_pid", "%d", (int)wait->holder_pid);
    if (wait->holder_tid)
        pb_json_put_number(w, "holder_tid", "%d", (int)wait->holder_tid);
    put_known(w, "group", wait->group);
    if (wait->group_ranks) {
        pb_json_open(w, "group_ranks", '[');
        for (size_t i = 0; i < wait->ngroup_ranks; i++)
            pb_json_put_number(w, NULL, "%d", wait->group_ranks[i]);
        pb_json_close(w);
    }
    put_known(w, "absent_ranks", wait->absent);
    if (wait->seconds >= 0)
        pb_json_put_number(w, "seconds", "%.3f", wait->seconds);
    pb_json_close(w);
}

static void put_thread(struct pb_json_writer *w, const struct pb_shown_thread *t, const struct pb_wait *wait)
{
    const char *native_name = t->native.name;
    char buf[64];

    pb_json_open(w, NULL, '{');
    pb_json_put_number(w, "tid", "%d", (int)t->native.tid);
    pb_json_put_text(w, "name", t->name[0] ? t->name : native_name);
    pb_json_put_text(w, "native_name", native_name);
    pb_json_put_text(w, "state", pb_stacks_state(t, buf, sizeof(buf)));
    pb_json_put_bool(w, "running", !t->off_cpu);
    pb_json_put_text(w, "syscall", t->off_cpu && t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL);
    if (wait)
        put_wait(w, wait);
    pb_json_put_bool(w, "python", t->python);
    if (t->python) {
        pb_json_put_number(w, "ident", "%" PRIu64, t->py.ident);
        pb_json_put_number(w, "interpreter", "%" PRId64, t->py.interp);
        pb_json_put_bool(w, "gil", t->gil);
        pb_json_put_text(w, "read",
                         t->failed == -EAGAIN ? "refused"
                         : t->failed < 0      ? "failed"
                                              : pb_way_name(t->way));
        pb_json_put_bool(w, "truncated", t->truncated);
        put_frames(w, t->frames, t->nframes);
        if (t->ntasks)
            put_tasks(w, t);
    }
    if (t->nmerged)
        put_merged(w, t);
    pb_json_close(w);
}

/* How the memory was read, and what follows from that. */
static void put_source(struct pb_json_writer *w, const struct pb_stacks *s)
{
    const struct pb_core_info *core = s->about.core;
    char buf[32];

    pb_json_put_text(w, "source", s->about.source);
    if (core && core->signal) {
        pb_json_put_text(w, "signal", pb_stacks_signal(core->signal, buf, sizeof(buf)));
        pb_json_put_number(w, "died_in", "%d", (int)core->died_in);
    }
    pb_json_open(w, "notes", '[');
    if (s->note[0])
        pb_json_put_text(w, NULL, s->note);
    for (unsigned i = 0; core && i < core->nnotes; i++)
        pb_json_put_text(w, NULL, core->notes[i]);
    pb_json_close(w);
}

static void put_python(struct pb_json_writer *w, const struct pb_stacks *s)
{
    uint32_t version = s->about.version;
    unsigned major = version >> 16, minor = version >> 8 & 0xff, micro = version & 0xff;

    if (!s->about.python) {
        pb_json_put_null(w, "python");
        return;
    }
    if (micro == 0xff)
        pb_json_put_format(w, "python", "%u.%u", major, minor);
    else
        pb_json_put_format(w, "python", "%u.%u.%u", major, minor, micro);
    pb_json_put_bool(w, "free_threaded", s->about.free_threaded);
    pb_json_put_bool(w, "verified", s->about.verified);
}

static void put_process(struct pb_json_writer *w, const struct pb_stacks *s)
{
    pb_json_line(w, 2);
    pb_json_open(w, NULL, '{');
    pb_json_put_number(w, "pid", "%d", (int)s->pid);
    pb_json_put_text(w, "label", s->label);
    pb_json_put_text(w, "command", s->command);
    put_python(w, s);
    pb_json_put_text(w, "verdict", s->verdict[0] ? s->verdict : NULL);
    put_source(w, s);
    pb_json_open(w, "threads", '[');
    for (size_t i = 0; i < s->n; i++) {
        pb_json_line(w, 4);
        put_thread(w, &s->threads[i], s->waits.n ? &s->waits.at[i] : NULL);
    }
    pb_json_close(w);
    pb_json_close(w);
}

/* The last objects of the array, and its end. A consumer that walks threads meets none. */
static void put_failures(struct pb_json_writer *w, const struct pb_stacks_failure *failures, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        pb_json_line(w, 2);
        pb_json_open(w, NULL, '{');
        pb_json_put_number(w, "pid", "%d", (int)failures[i].pid);
        pb_json_put_text(w, "label", failures[i].label);
        pb_json_put_text(w, "error", failures[i].why);
        pb_json_open(w, "threads", '[');
        pb_json_close(w);
        pb_json_close(w);
    }
    pb_json_line(w, 0);
    pb_json_close(w);
    fputc('\n', w->out);
}

void pb_stacks_print_json(FILE *to, const struct pb_stacks *const *all, size_t n,
                          const struct pb_stacks_failure *failures, size_t nfailures)
{
    struct pb_json_writer w = {.out = to};

    pb_json_open(&w, NULL, '[');
    for (size_t i = 0; i < n; i++)
        put_process(&w, all[i]);
    put_failures(&w, failures, nfailures);
}

/* --- merged --- */

void pb_stacks_put_range(struct pb_json_writer *w, uint32_t first, uint32_t last)
{
    pb_json_open(w, NULL, '[');
    pb_json_put_number(w, NULL, "%" PRIu32, first);
    pb_json_put_number(w, NULL, "%" PRIu32, last);
    pb_json_close(w);
}

static void put_members(struct pb_json_writer *w, const struct pb_set_stack *s)
{
    pb_json_open(w, "members", '[');
    for (size_t i = 0; i < s->nmembers; i++) {
        pb_json_open(w, NULL, '{');
        pb_json_put_number(w, "tid", "%d", (int)s->members[i].tid);
        pb_json_put_text(w, "process", s->members[i].process);
        pb_json_put_text(w, "thread", s->members[i].thread);
        pb_json_close(w);
    }
    pb_json_close(w);
}

void pb_stacks_put_set_stack(struct pb_json_writer *w, struct pb_stackset *set, const struct pb_set_stack *s)
{
    struct pb_set_frame f;

    pb_json_put_number(w, "threads", "%" PRIu64, s->threads);
    pb_json_put_number(w, "processes", "%" PRIu64, s->processes);
    pb_json_put_bool(w, "apart", s->apart);
    pb_json_open(w, "ranks", '[');
    for (size_t i = 0; i < s->nranks; i++)
        pb_stacks_put_range(w, s->ranks[i].first, s->ranks[i].last);
    pb_json_close(w);
    put_members(w, s);
    pb_json_open(w, "frames", '[');
    for (uint32_t i = 0; i < s->nframes; i++) {
        pb_stackset_frame(set, s->frames[i], &f);
        pb_json_line(w, 4);
        pb_json_open(w, NULL, '{');
        pb_json_put_text(w, "kind", f.native ? "native" : "python");
        pb_json_put_text(w, "function", f.function);
        pb_json_put_text(w, "file", f.file);
        pb_json_put_text(w, "module", f.module);
        put_line(w, f.line);
        pb_json_close(w);
    }
    pb_json_close(w);
}

void pb_stacks_print_merged_json(struct pb_stackset *set, const struct pb_stacks_failure *failures,
                                 size_t nfailures)
{
    struct pb_json_writer w = {.out = stdout};
    size_t n = pb_stackset_n(set);

    pb_json_open(&w, NULL, '[');
    for (size_t i = 0; i < n; i++) {
        struct pb_set_stack one;
        pb_stackset_stack(set, i, &one);
        pb_json_line(&w, 2);
        pb_json_open(&w, NULL, '{');
        pb_stacks_put_set_stack(&w, set, &one);
        pb_json_close(&w);
    }
    put_failures(&w, failures, nfailures);
}
