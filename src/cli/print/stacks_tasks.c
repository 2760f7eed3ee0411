/* stacks_tasks: the asyncio tasks of a process as a tree, over all of its threads. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/print/stacks_print.h"
#include "print/outlet.h"

#include <stdlib.h>

enum { DEPTH_MAX = 64 };

struct branch {
    const struct pb_shown_task *task;
    const struct pb_shown_thread *thread;
    bool shown;
};

struct forest {
    struct branch *at;
    size_t n;
    char indent[4 * DEPTH_MAX * 3 + 1]; /* three bytes each of at most four characters a level */
};

static void put_branch(const struct branch *b)
{
    const struct pb_shown_task *task = b->task;

    pb_put_between(stdout, "", task->name[0] ? task->name : "a task without a name", ": ");
    for (size_t i = 0; i < task->nframes; i++) {
        const struct pb_shown_frame *f = &task->frames[i];
        pb_put_between(stdout, i ? " < " : "", f->code->name, " (");
        const char *slash = strrchr(f->code->file, '/');
        pb_put_between(stdout, "", slash ? slash + 1 : f->code->file, "");
        printf(":%d)", f->line);
    }
    if (task->running)
        fputs("running", stdout);
    if (task->waits_for[0])
        pb_put_between(stdout, ", waits for ", task->waits_for, "");
    putchar('\n');
}

static bool is_below(const struct branch *b, uint64_t parent)
{
    return !b->shown && b->task->parent == parent;
}

static void put_below(struct forest *f, uint64_t parent, unsigned depth);

/* last: no brother follows. */
static void put_child(struct forest *f, struct branch *b, bool last, unsigned depth)
{
    size_t len = strlen(f->indent);

    b->shown = true;
    printf("%s%s", f->indent, last ? "\u2514\u2500\u2500 " : "\u251c\u2500\u2500 ");
    put_branch(b);
    if (depth < DEPTH_MAX) {
        strcat(f->indent, last ? "    " : "\u2502   ");
        put_below(f, b->task->id, depth + 1);
        f->indent[len] = '\0';
    }
}

static void put_below(struct forest *f, uint64_t parent, unsigned depth)
{
    for (size_t i = 0; i < f->n; i++) {
        bool last = true;
        if (!is_below(&f->at[i], parent))
            continue;
        for (size_t k = i + 1; k < f->n && last; k++)
            last = !is_below(&f->at[k], parent);
        put_child(f, &f->at[i], last, depth);
    }
}

static bool has_parent(const struct forest *f, const struct branch *b)
{
    for (size_t i = 0; b->task->parent && i < f->n; i++)
        if (f->at[i].task->id == b->task->parent && &f->at[i] != b)
            return true;
    return false;
}

static void put_root(struct forest *f, struct branch *b, const struct pb_shown_thread **last)
{
    const struct pb_shown_thread *t = b->thread;

    if (t != *last) {
        printf("\nthread %d", (int)t->native.tid);
        pb_put_between(stdout, " \"", t->name[0] ? t->name : t->native.name, "\"\n");
    }
    *last = t;
    b->shown = true;
    put_branch(b);
    put_below(f, b->task->id, 1);
}

void pb_stacks_print_tasks(const struct pb_stacks *s)
{
    const struct pb_shown_thread *last = NULL;
    struct forest f = {0};
    size_t loops = 0, n = 0;

    for (size_t i = 0; i < s->n; i++) {
        loops += s->threads[i].ntasks > 0;
        n += s->threads[i].ntasks;
    }
    _cleanup_free_ struct branch *all = calloc(n + 1, sizeof(*all));
    f.at = all;
    for (size_t i = 0; all && i < s->n; i++)
        for (size_t k = 0; k < s->threads[i].ntasks; k++)
            all[f.n++] = (struct branch){&s->threads[i].tasks[k], &s->threads[i], false};
    printf("process %d", (int)s->pid);
    pb_put_between(stdout, ": ", s->command, "");
    printf("\n%zu asyncio task%s in %zu thread%s\n", f.n, f.n == 1 ? "" : "s", loops, loops == 1 ? "" : "s");
    for (size_t i = 0; i < f.n; i++)
        if (!has_parent(&f, &all[i]))
            put_root(&f, &all[i], &last);
    /* Tasks that wait for each other in a circle have no root. */
    for (size_t i = 0; i < f.n; i++)
        if (!all[i].shown)
            put_root(&f, &all[i], &last);
}
