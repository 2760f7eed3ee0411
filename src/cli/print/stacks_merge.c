/* stacks_merge: equal stacks folded over threads and processes, the rarest first: the odd one out is seen at
 * once. See stacks.h. */
#include "cli/print/rows.h"
#include "cli/print/stacks_print.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED_MAX   16
#define EDGE_FRAMES 60 /* of a deep stack, at both ends */

struct member {
    const struct pb_stacks *s;
    const struct pb_shown_thread *t;
};

/* Stacks of different processes have different code pointers: they are equal by what a person reads. */
static int compare_frames(const struct pb_shown_frame *a, const struct pb_shown_frame *b)
{
    int d = a->line - b->line;

    if (d == 0 && a->code != b->code)
        d = strcmp(a->code->file, b->code->file);
    if (d == 0 && a->code != b->code)
        d = strcmp(a->code->qualname, b->code->qualname);
    return d;
}

static int compare_texts(const char *a, const char *b)
{
    return a == b ? 0 : !a ? -1 : !b ? 1 : strcmp(a, b);
}

static int compare_natives(const struct pb_native_frame *a, const struct pb_native_frame *b)
{
    int d = compare_texts(a->function, b->function);

    if (d == 0)
        d = compare_texts(a->module, b->module);
    if (d == 0)
        d = compare_texts(a->file, b->file);
    if (d == 0)
        d = (a->line > b->line) - (a->line < b->line);
    /* What has no name is told apart by its place in its file; ranks load it at different addresses. */
    if (d == 0 && !a->function)
        d = (a->address > b->address) - (a->address < b->address);
    return d;
}

/* How many frames a stack has, as it is shown. */
static size_t length(const struct pb_shown_thread *t)
{
    return t->nmerged ? t->nmerged : t->nframes;
}

static const struct pb_native_frame *native_at(const struct pb_shown_thread *t, size_t i)
{
    return t->nmerged && !t->merged[i].python ? &t->natives[t->merged[i].index] : NULL;
}

static const struct pb_shown_frame *python_at(const struct pb_shown_thread *t, size_t i)
{
    return &t->frames[t->nmerged ? t->merged[i].index : i];
}

static int compare_stacks(const struct pb_shown_thread *a, const struct pb_shown_thread *b)
{
    if (length(a) != length(b))
        return length(a) < length(b) ? -1 : 1;
    for (size_t i = 0; i < length(a); i++) {
        const struct pb_native_frame *x = native_at(a, i), *y = native_at(b, i);
        int d = !x != !y ? (x ? 1 : -1)
                : x      ? compare_natives(x, y)
                         : compare_frames(python_at(a, i), python_at(b, i));
        if (d)
            return d;
    }
    return 0;
}

static int by_stack(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    int d = compare_stacks(x->t, y->t);

    if (d == 0)
        d = (x->s->pid > y->s->pid) - (x->s->pid < y->s->pid);
    return d ? d : (x->t->native.tid > y->t->native.tid) - (x->t->native.tid < y->t->native.tid);
}

static size_t same(const struct member *at, size_t n)
{
    size_t count = 1;
    while (count < n && compare_stacks(at[0].t, at[count].t) == 0)
        count++;
    return count;
}

struct group {
    const struct member *at;
    size_t n;
};

static int smallest_first(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    size_t a_length = length(x->at[0].t), b_length = length(y->at[0].t);
    return a_length < b_length ? 1 : a_length > b_length ? -1 : 0;
}

static void put_safe(const char *text)
{
    for (; *text; text++)
        putchar((unsigned char)*text < ' ' || *text == 127 ? '?' : *text);
}

/* "rank 0, rank 1: MainThread": the processes, each once, and the names of threads where they differ. */
static void put_members(const struct group *g, size_t nprocesses)
{
    const struct pb_stacks *last = NULL;
    size_t named = 0;

    printf("%zu thread%s", g->n, g->n == 1 ? "" : "s");
    for (size_t i = 0; i < g->n; i++) {
        const struct member *m = &g->at[i];
        if (nprocesses > 1 && m->s == last)
            continue;
        if (named++ == NAMED_MAX) {
            fputs(", ..", stdout);
            break;
        }
        fputs(named == 1 ? ": " : ", ", stdout);
        if (nprocesses > 1)
            printf("%s ", m->s->label);
        printf("%d \"", (int)m->t->native.tid);
        put_safe(m->t->name[0] ? m->t->name : m->t->native.name);
        putchar('"');
        last = m->s;
    }
    putchar('\n');
}

static void put_python(const struct pb_shown_frame *f)
{
    fputs("    ", stdout);
    put_safe(f->code->qualname);
    fputs(" (", stdout);
    put_safe(f->code->file);
    if (f->line)
        printf(":%d", f->line);
    puts(")");
}

static void put_group(const struct group *g, size_t nprocesses)
{
    const struct pb_shown_thread *t = g->at[0].t;
    size_t n = length(t);
    bool said = false;

    put_members(g, nprocesses);
    for (size_t i = 0; i < n; i++) {
        if (i == EDGE_FRAMES && n > 2 * EDGE_FRAMES + 1) {
            printf("    .. %zu more frames ..\n", n - 2 * EDGE_FRAMES);
            i = n - EDGE_FRAMES;
        }
        if (t->nmerged)
            pb_stacks_put_apart(t, i, &said);
        if (native_at(t, i))
            pb_stacks_put_native(native_at(t, i));
        else
            put_python(python_at(t, i));
    }
}

static size_t collect(const struct pb_stacks *const *all, size_t n, struct member *ret, size_t *ret_without)
{
    size_t count = 0;

    *ret_without = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < all[i]->n; k++) {
            const struct pb_shown_thread *t = &all[i]->threads[k];
            if (length(t) == 0)
                ++*ret_without;
            else
                ret[count++] = (struct member){all[i], t};
        }
    return count;
}

int pb_stacks_print_merged(const struct pb_stacks *const *all, size_t n, struct pb_err *err)
{
    size_t total = 0, without, ngroups = 0;

    for (size_t i = 0; i < n; i++)
        total += all[i]->n;
    struct member *members = calloc(total + 1, sizeof(*members));
    struct group *groups = calloc(total + 1, sizeof(*groups));
    if (!members || !groups) {
        free(members);
        free(groups);
        return pb_fail(err, -ENOMEM, "out of memory");
    }
    size_t count = collect(all, n, members, &without);
    qsort(members, count, sizeof(*members), by_stack);
    for (size_t i = 0; i < count; i += groups[ngroups++].n)
        groups[ngroups] = (struct group){&members[i], same(&members[i], count - i)};
    qsort(groups, ngroups, sizeof(*groups), smallest_first);

    bool native = false;
    for (size_t i = 0; i < n; i++)
        native |= all[i]->native != NULL;
    printf("%zu process%s, %zu thread%s%s, %zu different stack%s, the rarest first\n", n, n == 1 ? "" : "es",
           count, count == 1 ? "" : "s", native ? "" : " with Python code", ngroups, ngroups == 1 ? "" : "s");
    for (size_t i = 0; i < n; i++)
        if (all[i]->verdict[0])
            printf("%s: %s\n", all[i]->label, all[i]->verdict);
    for (size_t i = 0; i < ngroups; i++) {
        putchar('\n');
        put_group(&groups[i], n);
    }
    if (without)
        printf("\n%zu thread%s without %s\n", without, without == 1 ? "" : "s",
               native ? "a stack that could be read" : "Python code");
    free(members);
    free(groups);
    return 0;
}
