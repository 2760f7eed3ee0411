/* stacks_text: stacks for a person to read, the innermost frame first; see stacks.h. */
#include "cli/print/rows.h"
#include "cli/print/stacks_print.h"
#include "print/outlet.h"
#include "remote/core.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define EDGE_FRAMES 60 /* frames shown at each end of a deep stack */

static const char *tint(enum pb_style style)
{
    static int color = -1; /* computed once: it is a system call */

    if (color < 0)
        color = pb_color();
    return color ? pb_style(style) : "";
}

/* Names come from the target. */
static void put_text(const char *text, int len)
{
    pb_put_line(stdout, text, len < 0 ? strlen(text) : strnlen(text, (size_t)len));
}

static void put_locals(const struct pb_py_locals *l)
{
    const char *name = l ? l->text : NULL;

    for (uint32_t i = 0; l && i < l->n; i++) {
        const char *value = pb_py_locals_after(name);
        fputs("          ", stdout);
        put_text(name, -1);
        fputs(" = ", stdout);
        put_text(value, -1);
        putchar('\n');
        name = pb_py_locals_after(value);
    }
    if (l && l->more)
        printf("          .. %u more\n", l->more);
}

static void put_frame(const struct pb_shown_frame *f, struct pb_sources *sources)
{
    int len;

    fputs("    ", stdout);
    put_text(f->code->qualname, -1);
    fputs(tint(PB_DIM), stdout);
    fputs(" (", stdout);
    put_text(f->code->file, -1);
    if (f->line)
        printf(":%d", f->line);
    printf(")%s\n", tint(PB_PLAIN));
    const char *text = pb_sources_line(sources, f->code->file, f->line, &len);
    if (text) {
        fputs("        ", stdout);
        put_text(text, len);
        putchar('\n');
    }
    put_locals(f->locals);
}

#define NAME_FITS 100 /* a longer C++ name is shown without its template arguments and parameters */

/* The bracket that closes the one at p; NULL: there is none, or it is part of an operator's name. */
static const char *closing(const char *name, const char *p)
{
    int depth = 0;

    if ((p - name >= 8 && memcmp(p - 8, "operator", 8) == 0) || strncmp(p, "(anonymous namespace)", 21) == 0)
        return NULL;
    for (const char *q = p; *q; q++) {
        depth += *q == '<' || *q == '(';
        depth -= (*q == '>' && q[-1] != '-') || *q == ')';
        if (depth == 0)
            return q;
    }
    return NULL;
}

static void put_name(const char *name)
{
    const char *from = name;
    bool fits = strlen(name) <= NAME_FITS;

    for (const char *p = name; !fits && *p; p++) {
        const char *end = *p == '<' || *p == '(' ? closing(name, p) : NULL;
        if (!end || end == p + 1)
            continue;
        put_text(from, (int)(p + 1 - from));
        fputs("..", stdout);
        from = end;
        p = end - 1;
    }
    put_text(from, -1);
}

void pb_stacks_put_native(const struct pb_native_frame *f)
{
    const char *base = f->module ? strrchr(f->module, '/') : NULL;

    fputs("    ", stdout);
    if (f->function)
        put_name(f->function);
    else
        printf("0x%" PRIx64, f->pc);
    printf("%s [", tint(PB_DIM));
    put_text(base ? base + 1 : f->module ? f->module : "no file", -1);
    putchar(']');
    if (f->file) {
        fputs(" (", stdout);
        put_text(f->file, -1);
        if (f->line)
            printf(":%u", f->line);
        putchar(')');
    }
    puts(tint(PB_PLAIN));
}

void pb_stacks_put_unplaced(void)
{
    puts("    (where the Python frames belong among the native ones is not known; they are:)");
}

static void put_merged(const struct pb_shown_thread *t, struct pb_sources *sources)
{
    bool noted = t->merge != PB_MERGE_APART || !t->nnatives;

    for (size_t i = 0; i < t->nmerged; i++) {
        if (i == EDGE_FRAMES && t->nmerged > 2 * EDGE_FRAMES + 1) {
            printf("    %s.. %zu more frames ..%s\n", tint(PB_DIM), t->nmerged - 2 * EDGE_FRAMES,
                   tint(PB_PLAIN));
            i = t->nmerged - EDGE_FRAMES;
        }
        const struct pb_merged *m = &t->merged[i];
        if (!noted && m->python) {
            pb_stacks_put_unplaced();
            noted = true;
        }
        if (m->python)
            put_frame(&t->frames[m->index], sources);
        else
            pb_stacks_put_native(&t->natives[m->index]);
    }
    if (t->truncated || t->native_flags & PB_NATIVE_TRUNCATED)
        puts("    .. and more: deeper than could be read ..");
    if (t->native_flags & PB_NATIVE_BY_SCAN)
        puts("    (some of the native frames are guessed)");
}

static void put_frames(const struct pb_shown_thread *t, struct pb_sources *sources)
{
    if (t->nmerged) {
        put_merged(t, sources);
        return;
    }
    for (size_t i = 0; i < t->nframes; i++) {
        if (i == EDGE_FRAMES && t->nframes > 2 * EDGE_FRAMES + 1) {
            printf("    %s.. %zu more frames ..%s\n", tint(PB_DIM), t->nframes - 2 * EDGE_FRAMES,
                   tint(PB_PLAIN));
            i = t->nframes - EDGE_FRAMES;
        }
        put_frame(&t->frames[i], sources);
    }
    if (t->truncated)
        puts("    .. and more: deeper than is read ..");
}

static void put_head(const struct pb_shown_thread *t, const char *mark)
{
    char buf[64];

    printf("%sthread %d%s", tint(PB_BOLD), (int)t->native.tid, tint(PB_PLAIN));
    if (t->name[0] || t->native.name[0]) {
        fputs(" \"", stdout);
        put_text(t->name[0] ? t->name : t->native.name, -1);
        putchar('"');
    }
    if (t->python && t->py.interp != 0)
        printf(" of interpreter %" PRId64, t->py.interp);
    printf(": %s%s%s\n", pb_stacks_state(t, buf, sizeof(buf)), t->gil ? ", holds the GIL" : "", mark);
}

static void put_tasks(const struct pb_shown_thread *t, struct pb_sources *sources)
{
    for (size_t i = 0; i < t->ntasks; i++) {
        const struct pb_shown_task *task = &t->tasks[i];
        printf("  %stask%s \"", tint(PB_BOLD), tint(PB_PLAIN));
        put_text(task->name, -1);
        fputs(task->running ? "\": running" : "\"", stdout);
        if (task->waits_for[0]) {
            fputs(" waits for ", stdout);
            put_text(task->waits_for, -1);
        }
        putchar('\n');
        for (size_t k = 0; k < task->nframes; k++)
            put_frame(&task->frames[k], sources);
    }
}

static void put_refused(const struct pb_stacks *s, const struct pb_shown_thread *t)
{
    if (t->way == PB_WAY_DEAD)
        puts("    (it died while its Python stack was being changed, or that is damaged)");
    else if (s->about.by_agent)
        puts("    (permission denied: it runs, and reading its stack needs the right to stop it: be root, or "
             "have CAP_SYS_PTRACE)");
    else
        puts("    (it runs, and its stack cannot be read truly without stopping it: leave out --no-stop)");
}

static void put_thread(const struct pb_stacks *s, const struct pb_shown_thread *t, const char *mark,
                       struct pb_sources *sources)
{
    put_head(t, mark);
    if (!t->python)
        return;
    put_frames(t, sources);
    put_tasks(t, sources);
    if (t->failed == -EAGAIN)
        put_refused(s, t);
    else if (t->failed < 0)
        printf("    (its stack cannot be read: %s)\n", strerror(-t->failed));
    else if (t->raised[0])
        puts("    (it has left its frames: python.crash_frames has them)");
    else if (t->nframes == 0 && t->nmerged == 0)
        puts("    (no Python code)");
}

static bool same_natives(const struct pb_shown_thread *a, const struct pb_shown_thread *b)
{
    if (a->nnatives != b->nnatives)
        return false;
    for (size_t i = 0; i < a->nnatives; i++)
        if (a->natives[i].pc != b->natives[i].pc)
            return false;
    return true;
}

static void put_native_failed(const struct pb_stacks *s, const struct pb_shown_thread *t)
{
    if (s->about.native && t->failed == -EAGAIN)
        put_refused(s, t);
    else if (s->about.native && t->failed < 0)
        printf("    (its stack cannot be read: %s)\n", strerror(-t->failed));
}

/* Threads without Python that have the same name and wait in the same call at the same place are printed
 * once. */
static size_t put_natives(const struct pb_stacks *s, size_t i, const enum pb_change *change, const char *mark)
{
    const struct pb_shown_thread *t = &s->threads[i];
    size_t n = 1;

    while (i + n < s->n && !s->threads[i + n].python && (!change || change[i + n] == change[i]) &&
           s->threads[i + n].off_cpu == t->off_cpu && s->threads[i + n].syscall == t->syscall &&
           strcmp(s->threads[i + n].native.name, t->native.name) == 0 && same_natives(&s->threads[i + n], t))
        n++;
    if (n == 1) {
        put_head(t, mark);
        put_merged(t, NULL);
        put_native_failed(s, t);
        return 1;
    }
    char buf[64];
    printf("%s%zu threads%s \"", tint(PB_BOLD), n, tint(PB_PLAIN));
    put_text(t->native.name, -1);
    printf("\" (%d", (int)t->native.tid);
    for (size_t k = 1; k < n && k < 8; k++)
        printf(", %d", (int)s->threads[i + k].native.tid);
    printf("%s): %s%s\n", n > 8 ? ", .." : "", pb_stacks_state(t, buf, sizeof(buf)), mark);
    put_merged(t, NULL);
    put_native_failed(s, t);
    return n;
}

/* Notes on how the stacks were read. */
static void put_notes(const struct pb_stacks *s)
{
    const struct pb_core_info *core = s->about.core;

    if (s->about.by_agent)
        puts("read through the agent in it: permission denied for ptrace");
    if (s->note[0]) {
        put_text(s->note, -1);
        putchar('\n');
    }
    if (core && !core->signal)
        puts("it was alive when the core was taken");
    for (unsigned i = 0; core && i < core->nnotes; i++) {
        put_text(core->notes[i], -1);
        putchar('\n');
    }
}

static void put_process(const struct pb_stacks *s)
{
    size_t python = 0;

    for (size_t i = 0; i < s->n; i++)
        python += s->threads[i].python;
    printf("%s%sprocess %d%s", tint(PB_BOLD), s->about.core ? "core of " : "", (int)s->pid, tint(PB_PLAIN));
    if (s->labelled_by != PB_LABEL_BY_PID)
        pb_put_between(stdout, " (", s->label, ")");
    fputs(": ", stdout);
    put_text(s->command, -1);
    if (s->about.python) {
        uint32_t version = s->about.version;
        printf("\nCPython %u.%u", version >> 16, version >> 8 & 0xff);
        if ((version & 0xff) != 0xff)
            printf(".%u", version & 0xff);
        if (s->about.free_threaded)
            fputs(", free-threaded", stdout);
        if (!s->about.verified)
            fputs(" (read by a layout not verified for this version: it may be wrong)", stdout);
        printf(", %zu Python thread%s, %zu native\n", python, python == 1 ? "" : "s", s->n - python);
    } else {
        printf("\nno Python in it, %zu thread%s\n", s->n, s->n == 1 ? "" : "s");
    }
    if (s->verdict[0]) {
        pb_put_between(stdout, tint(PB_BOLD), s->verdict, tint(PB_PLAIN));
        putchar('\n');
    }
    put_notes(s);
}

static void put_ended(const struct pb_history *since)
{
    for (size_t i = 0; i < since->nended; i++)
        if (!since->ended[i].again)
            pb_put_between(stdout, "\nended: ", since->ended[i].name, "\n");
}

void pb_stacks_print(const struct pb_stacks *s, struct pb_sources *sources, const struct pb_history *since)
{
    const enum pb_change *change = since && since->times > 1 ? since->change : NULL;
    size_t unchanged = 0;

    put_process(s);
    for (size_t i = 0; i < s->n;) {
        const char *mark = change && change[i] == PB_NEW ? ", new" : "";
        if (change && change[i] == PB_AS_BEFORE) {
            unchanged++;
            i++;
        } else if (s->threads[i].python) {
            putchar('\n');
            put_thread(s, &s->threads[i++], mark, sources);
        } else {
            if (i == 0 || s->threads[i - 1].python || s->about.native)
                putchar('\n');
            i += put_natives(s, i, change, mark);
        }
    }
    if (change)
        put_ended(since);
    if (unchanged)
        printf("\n%zu thread%s as before\n", unchanged, unchanged == 1 ? "" : "s");
}
