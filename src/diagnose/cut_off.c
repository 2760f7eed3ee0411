/* cut_off: see cut_off.h. */
#include "diagnose/cut_off.h"

#include "base/procfs.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Signals whose handlers do not wake tasks: SIGINT, which asyncio.run() takes, and those of crashes. */
#define CRASHES (1u << 1 | 1u << 3 | 1u << 4 | 1u << 5 | 1u << 6 | 1u << 7 | 1u << 10)

/* In epoll, without a time limit. */
static bool waits_for_ever(const struct pb_shown_thread *t)
{
    const char *call = t->off_cpu && t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;

    if (!call)
        return false;
    if (strcmp(call, "epoll_wait") == 0 || strcmp(call, "epoll_pwait") == 0)
        return (int)t->syscall_args[3] < 0;
    return strcmp(call, "epoll_pwait2") == 0 && t->syscall_args[3] == 0;
}

/* How many descriptors it waits for; -1: unknown. */
static int count_watched(pid_t pid, int epoll)
{
    char path[48], text[4096];
    int n = 0;

    snprintf(path, sizeof(path), "fdinfo/%d", epoll);
    if (pb_proc_read(pid, path, text, sizeof(text)) < 0)
        return -1;
    for (const char *at = text; (at = strstr(at, "tfd:")); at += 4)
        n++;
    return n;
}

static bool handles_signals(pid_t pid)
{
    char status[4096];
    const char *caught =
        pb_proc_read(pid, "status", status, sizeof(status)) > 0 ? strstr(status, "SigCgt:") : NULL;

    /* Signals above 31 are the C library's own. */
    return !caught || (strtoull(caught + 7, NULL, 16) & 0x7fffffffu & ~CRASHES) != 0;
}

static bool is_ours(const struct pb_shown_thread *t)
{
    return strncmp(t->native.name, "probing", 7) == 0;
}

/* A thread that could call the loop: one of Python, or one that waits for something from outside. */
static bool has_other_threads(const struct pb_stacks *s, const struct pb_shown_thread *own)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct pb_shown_thread *t = &s->threads[i];
        const char *call = t->off_cpu && t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;
        if (t != own && !is_ours(t) && (t->python || !call || strcmp(call, "futex") != 0))
            return true;
    }
    return false;
}

/* Innermost own frame of a task that no other task is behind. */
static bool find_task(const struct pb_shown_thread *t, struct pb_diag_place *ret)
{
    for (size_t i = 0; i < t->ntasks; i++) {
        bool is_behind = t->tasks[i].running;
        for (size_t k = 0; k < t->ntasks; k++)
            is_behind |= t->tasks[k].parent && t->tasks[k].parent == t->tasks[i].id;
        for (size_t k = 0; k < t->tasks[i].nframes && !is_behind; k++) {
            const struct pb_shown_frame *f = &t->tasks[i].frames[k];
            if (!pb_stacks_is_own(f->code->file))
                continue;
            snprintf(ret->file, sizeof(ret->file), "%s", f->code->file);
            snprintf(ret->function, sizeof(ret->function), "%s", f->code->qualname);
            pb_text_clean(ret->file);
            pb_text_clean(ret->function);
            ret->line = f->line;
            return true;
        }
    }
    return false;
}

bool pb_diag_is_cut_off(const struct pb_stacks *s, const struct pb_shown_thread *t, struct pb_diag_place *ret)
{
    return waits_for_ever(t) && t->ntasks > 0 && find_task(t, ret) &&
           count_watched(s->pid, (int)t->syscall_args[0]) == 1 && !handles_signals(s->pid) &&
           !has_other_threads(s, t);
}
