/* stacks_merge: a set of stacks (ask/stackset.h) as text: equal stacks once, the rarest first. */
#include "ask/stackset.h"
#include "base/err.h"
#include "cli/print/stacks_print.h"
#include "print/outlet.h"

#include <errno.h>
#include <stdio.h>

#define EDGE_FRAMES 60 /* frames shown at each end of a deep stack */

/* "ranks 0-7, 9": where there are too many members to list each. */
static void put_ranks(const struct pb_set_stack *s)
{
    fputs(s->nranks == 1 && s->ranks[0].first == s->ranks[0].last ? ": rank " : ": ranks ", stdout);
    for (size_t i = 0; i < s->nranks; i++) {
        printf("%s%u", i ? ", " : "", s->ranks[i].first);
        if (s->ranks[i].last != s->ranks[i].first)
            printf("-%u", s->ranks[i].last);
    }
}

/* The members of a stack: 'rank 0 17 "MainThread", rank 1 18 "MainThread"'; each process once, or the threads
 * of the only process. */
static void put_members(const struct pb_set_stack *s, bool several)
{
    printf("%llu thread%s", (unsigned long long)s->threads, s->threads == 1 ? "" : "s");
    if (several && s->processes > s->nmembers && s->nranks) {
        put_ranks(s);
    } else {
        for (size_t i = 0; i < s->nmembers; i++) {
            const struct pb_set_member *m = &s->members[i];
            fputs(i ? ", " : ": ", stdout);
            if (several)
                pb_put_name(stdout, m->process);
            printf(several ? " %d \"" : "%d \"", (int)m->tid);
            pb_put_name(stdout, m->thread);
            putchar('"');
        }
        if (s->nmembers < (several ? s->processes : s->threads))
            fputs(", ..", stdout);
    }
    putchar('\n');
}

static void put_frame(const struct pb_set_frame *f)
{
    if (f->native) {
        pb_stacks_put_native(&(struct pb_native_frame){.pc = f->address,
                                                       .function = f->function,
                                                       .module = f->module,
                                                       .file = f->file,
                                                       .line = f->line});
        return;
    }
    fputs("    ", stdout);
    pb_put_name(stdout, f->function ? f->function : "?");
    fputs(" (", stdout);
    pb_put_name(stdout, f->file ? f->file : "?");
    if (f->line)
        printf(":%u", f->line);
    puts(")");
}

void pb_stacks_put_frames(const struct pb_stackset *set, const struct pb_set_stack *s)
{
    bool noted = !s->apart;

    for (uint32_t i = 0; i < s->nframes; i++) {
        struct pb_set_frame f;
        if (i == EDGE_FRAMES && s->nframes > 2 * EDGE_FRAMES + 1) {
            printf("    .. %u more frames ..\n", s->nframes - 2 * EDGE_FRAMES);
            i = s->nframes - EDGE_FRAMES;
        }
        pb_stackset_frame(set, s->frames[i], &f);
        if (!noted && !f.native) {
            pb_stacks_put_unplaced();
            noted = true;
        }
        put_frame(&f);
    }
}

void pb_stacks_print_merged(struct pb_stackset *set, const struct pb_stacks *const *all, size_t n)
{
    size_t processes = pb_stackset_processes(set), threads = pb_stackset_threads(set),
           stacks = pb_stackset_n(set), without = pb_stackset_without(set);
    bool native = false;

    for (size_t i = 0; i < n; i++)
        native |= all[i]->about.native;
    printf("%zu process%s, %zu thread%s%s, %zu different stack%s, the rarest first\n", processes,
           processes == 1 ? "" : "es", threads, threads == 1 ? "" : "s", native ? "" : " with Python code",
           stacks, stacks == 1 ? "" : "s");
    for (size_t i = 0; i < n; i++)
        if (all[i]->verdict[0]) {
            pb_put_between(stdout, "", all[i]->label, ": ");
            pb_put_between(stdout, "", all[i]->verdict, "\n");
        }
    for (size_t i = 0; i < stacks; i++) {
        struct pb_set_stack stack;
        pb_stackset_stack(set, i, &stack);
        putchar('\n');
        put_members(&stack, processes > 1);
        pb_stacks_put_frames(set, &stack);
    }
    if (without)
        printf("\n%zu thread%s without %s\n", without, without == 1 ? "" : "s",
               native ? "a stack that could be read" : "Python code");
}
