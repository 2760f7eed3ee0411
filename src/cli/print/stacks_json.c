/* stacks_json: stacks for a program to read; see stacks_print.h. */
#include "ask/stackset.h"
#include "cli/print/stacks_print.h"
#include "print/records.h"
#include "remote/core.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Up to a NUL: a thread name of the kernel may be shorter than its field. */
static void put_string_n(const char *text, size_t len)
{
    pb_put_json(stdout, text, strnlen(text, len));
}

static void put_string(const char *text)
{
    put_string_n(text, strlen(text));
}

static void put_locals(const char *lines)
{
    bool first = true;

    fputs(", \"locals\": {", stdout);
    while (*lines) {
        size_t n = strcspn(lines, "\n");
        const char *is = memmem(lines, n, " = ", 3);
        if (is) {
            fputs(first ? "" : ", ", stdout);
            put_string_n(lines, (size_t)(is - lines));
            fputs(": ", stdout);
            put_string_n(is + 3, n - (size_t)(is + 3 - lines));
            first = false;
        }
        lines += n + (lines[n] == '\n');
    }
    putchar('}');
}

static void put_line(long line)
{
    if (line)
        printf(", \"line\": %ld", line);
    else
        fputs(", \"line\": null", stdout);
}

static void put_frame(const struct pb_shown_frame *f)
{
    fputs("{\"function\": ", stdout);
    put_string(f->code->qualname);
    fputs(", \"name\": ", stdout);
    put_string(f->code->name);
    fputs(", \"file\": ", stdout);
    put_string(f->code->file);
    put_line(f->line);
    printf(", \"first_line\": %d, \"own\": %s", f->code->first_line,
           pb_stacks_is_own(f->code->file) ? "true" : "false");
    if (f->locals)
        put_locals(f->locals);
    putchar('}');
}

static void put_frames(const struct pb_shown_frame *frames, size_t n)
{
    putchar('[');
    for (size_t i = 0; i < n; i++) {
        fputs(i ? ",\n      " : "\n      ", stdout);
        put_frame(&frames[i]);
    }
    putchar(']');
}

static void put_or_null(const char *name, const char *text)
{
    printf(", \"%s\": ", name);
    if (text)
        put_string(text);
    else
        fputs("null", stdout);
}

static void put_native(const struct pb_native_frame *f)
{
    fputs("{\"kind\": \"native\"", stdout);
    put_or_null("function", f->function);
    put_or_null("module", f->module);
    put_or_null("build_id", f->build_id);
    put_or_null("file", f->file);
    put_line((long)f->line);
    printf(", \"pc\": \"0x%" PRIx64 "\", \"address\": \"0x%" PRIx64 "\", \"inlined\": %s, \"guessed\": %s}",
           f->pc, f->address, f->flags & PB_NATIVE_INLINED ? "true" : "false",
           f->flags & PB_NATIVE_BY_SCAN ? "true" : "false");
}

/* Native frames in full; a Python frame as its index in "frames", with its name. */
static void put_merged(const struct pb_shown_thread *t)
{
    static const char *const how[] = {"full", "partial", "apart"};

    printf(", \"merge\": \"%s\", \"native_truncated\": %s, \"stack\": [", how[t->merge],
           t->native_flags & PB_NATIVE_TRUNCATED ? "true" : "false");
    for (size_t i = 0; i < t->nmerged; i++) {
        const struct pb_merged *m = &t->merged[i];
        fputs(i ? ",\n      " : "\n      ", stdout);
        if (!m->python) {
            put_native(&t->natives[m->index]);
            continue;
        }
        fputs("{\"kind\": \"python\"", stdout);
        put_or_null("function", t->frames[m->index].code->qualname);
        put_or_null("file", t->frames[m->index].code->file);
        put_line(t->frames[m->index].line);
        printf(", \"frame\": %zu}", m->index);
    }
    putchar(']');
}

static void put_tasks(const struct pb_shown_thread *t)
{
    fputs(", \"tasks\": [", stdout);
    for (size_t i = 0; i < t->ntasks; i++) {
        fputs(i ? ",\n     {\"name\": " : "\n     {\"name\": ", stdout);
        put_string(t->tasks[i].name);
        printf(", \"running\": %s, \"waits_for\": ", t->tasks[i].running ? "true" : "false");
        put_string(t->tasks[i].waits_for);
        fputs(", \"frames\": ", stdout);
        put_frames(t->tasks[i].frames, t->tasks[i].nframes);
        putchar('}');
    }
    putchar(']');
}

static void put_wait(const struct pb_wait *w)
{
    fputs(", \"waits_for\": ", stdout);
    if (w->kind == PB_WAIT_NONE) {
        fputs("null", stdout);
        return;
    }
    printf("{\"kind\": \"%s\"", pb_wait_name(w->kind));
    if (w->object)
        printf(", \"object\": %" PRIu64, w->object);
    if (w->fd >= 0)
        printf(", \"descriptor\": %d", w->fd);
    if (w->text[0]) {
        fputs(", \"what\": ", stdout);
        put_string(w->text);
    }
    if (w->holder_pid)
        printf(", \"holder_pid\": %d", (int)w->holder_pid);
    if (w->holder_tid)
        printf(", \"holder_tid\": %d", (int)w->holder_tid);
    if (w->group[0]) {
        fputs(", \"group\": ", stdout);
        put_string(w->group);
    }
    if (w->group_ranks) {
        fputs(", \"group_ranks\": [", stdout);
        for (size_t i = 0; i < w->ngroup_ranks; i++)
            printf("%s%d", i ? ", " : "", w->group_ranks[i]);
        putchar(']');
    }
    if (w->absent[0]) {
        fputs(", \"absent_ranks\": ", stdout);
        put_string(w->absent);
    }
    if (w->seconds >= 0)
        printf(", \"seconds\": %.3f", w->seconds);
    putchar('}');
}

static void put_thread(const struct pb_shown_thread *t, const struct pb_wait *w)
{
    char buf[64];

    printf("{\"tid\": %d, \"name\": ", (int)t->native.tid);
    put_string(t->name[0] ? t->name : t->native.name);
    fputs(", \"native_name\": ", stdout);
    put_string(t->native.name);
    fputs(", \"state\": ", stdout);
    put_string(pb_stacks_state(t, buf, sizeof(buf)));
    printf(", \"running\": %s, \"syscall\": ", t->off_cpu ? "false" : "true");
    const char *call = t->off_cpu && t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;
    if (call)
        put_string(call);
    else
        fputs("null", stdout);
    if (w)
        put_wait(w);
    printf(", \"python\": %s", t->python ? "true" : "false");
    if (t->python) {
        printf(", \"ident\": %" PRIu64 ", \"interpreter\": %" PRId64 ", \"gil\": %s", t->py.ident,
               t->py.interp, t->gil ? "true" : "false");
        fputs(", \"read\": ", stdout);
        put_string(t->failed == -EAGAIN ? "refused" : t->failed < 0 ? "failed" : pb_way_name(t->way));
        printf(", \"truncated\": %s, \"frames\": ", t->truncated ? "true" : "false");
        put_frames(t->frames, t->nframes);
        if (t->ntasks)
            put_tasks(t);
    }
    if (t->nmerged)
        put_merged(t);
    putchar('}');
}

/* How the memory was read, and what follows from that. */
static void put_source(const struct pb_stacks *s)
{
    const struct pb_core_info *core = s->about.core;
    char buf[32];

    fputs(", \"source\": ", stdout);
    put_string(s->about.source);
    if (core && core->signal) {
        fputs(", \"signal\": ", stdout);
        put_string(pb_stacks_signal(core->signal, buf, sizeof(buf)));
        printf(", \"died_in\": %d", (int)core->died_in);
    }
    fputs(", \"notes\": [", stdout);
    if (s->note[0])
        put_string(s->note);
    for (unsigned i = 0; core && i < core->nnotes; i++) {
        fputs(i || s->note[0] ? ", " : "", stdout);
        put_string(core->notes[i]);
    }
    putchar(']');
}

static void put_process(const struct pb_stacks *s)
{
    printf("  {\"pid\": %d, \"label\": ", (int)s->pid);
    put_string(s->label);
    fputs(", \"command\": ", stdout);
    put_string(s->command);
    uint32_t version = s->about.version;
    if (!s->about.python)
        fputs(", \"python\": null", stdout);
    else if ((version & 0xff) == 0xff)
        printf(", \"python\": \"%u.%u\"", version >> 16, version >> 8 & 0xff);
    else
        printf(", \"python\": \"%u.%u.%u\"", version >> 16, version >> 8 & 0xff, version & 0xff);
    if (s->about.python)
        printf(", \"free_threaded\": %s, \"verified\": %s", s->about.free_threaded ? "true" : "false",
               s->about.verified ? "true" : "false");
    fputs(", \"verdict\": ", stdout);
    if (s->verdict[0])
        put_string(s->verdict);
    else
        fputs("null", stdout);
    put_source(s);
    fputs(", \"threads\": [", stdout);
    for (size_t i = 0; i < s->n; i++) {
        fputs(i ? ",\n    " : "\n    ", stdout);
        put_thread(&s->threads[i], s->waits.n ? &s->waits.at[i] : NULL);
    }
    fputs("]}", stdout);
}

/* Behind n objects of the array. A consumer that walks threads meets none. */
static void put_failures(size_t n, const struct pb_stacks_failure *failures, size_t nfailures)
{
    for (size_t i = 0; i < nfailures; i++) {
        printf("%s  {\"pid\": %d, \"label\": ", n + i ? ",\n" : "", (int)failures[i].pid);
        put_string(failures[i].label);
        fputs(", \"error\": ", stdout);
        put_string(failures[i].why);
        fputs(", \"threads\": []}", stdout);
    }
    puts(n + nfailures ? "\n]" : "]");
}

void pb_stacks_print_json(const struct pb_stacks *const *all, size_t n,
                          const struct pb_stacks_failure *failures, size_t nfailures)
{
    puts("[");
    for (size_t i = 0; i < n; i++) {
        fputs(i ? ",\n" : "", stdout);
        put_process(all[i]);
    }
    put_failures(n, failures, nfailures);
}

/* --- merged --- */

static void put_ranks(const struct pb_set_stack *s)
{
    fputs(", \"ranks\": [", stdout);
    for (size_t i = 0; i < s->nranks; i++)
        printf("%s[%" PRIu32 ", %" PRIu32 "]", i ? ", " : "", s->ranks[i].first, s->ranks[i].last);
    fputs("], \"members\": [", stdout);
    for (size_t i = 0; i < s->nmembers; i++) {
        printf("%s{\"tid\": %d", i ? ", " : "", (int)s->members[i].tid);
        put_or_null("process", s->members[i].process);
        put_or_null("thread", s->members[i].thread);
        putchar('}');
    }
    putchar(']');
}

static void put_set_stack(struct pb_stackset *set, size_t number)
{
    struct pb_set_stack s;
    struct pb_set_frame f;

    pb_stackset_stack(set, number, &s);
    printf("  {\"threads\": %" PRIu64 ", \"processes\": %" PRIu64 ", \"apart\": %s", s.threads, s.processes,
           s.apart ? "true" : "false");
    put_ranks(&s);
    fputs(", \"frames\": [", stdout);
    for (uint32_t i = 0; i < s.nframes; i++) {
        pb_stackset_frame(set, s.frames[i], &f);
        printf("%s\n    {\"kind\": \"%s\"", i ? "," : "", f.native ? "native" : "python");
        put_or_null("function", f.function);
        put_or_null("file", f.file);
        put_or_null("module", f.module);
        put_line(f.line);
        putchar('}');
    }
    fputs("]}", stdout);
}

void pb_stacks_print_merged_json(struct pb_stackset *set, const struct pb_stacks_failure *failures,
                                 size_t nfailures)
{
    size_t n = pb_stackset_n(set);

    puts("[");
    for (size_t i = 0; i < n; i++) {
        fputs(i ? ",\n" : "", stdout);
        put_set_stack(set, i);
    }
    put_failures(n, failures, nfailures);
}
