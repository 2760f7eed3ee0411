/* wait_locks: which Python lock a thread waits for, and which thread holds it; see waits.h.
 *
 * The lock is known: the kernel has the address that the thread sleeps at, and the lock is on the stack of
 * its innermost frame. An RLock names its holder; a plain Lock does not, so the holder is inferred: the only
 * sleeping thread with an open `with` block of the lock. Where no thread or several have one, the holder is
 * unknown. */
#include "ask/stacks.h"
#include "ask/waits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAMES_LOOKED_AT 64
#define LOCKS_OF_FRAME   16
#define LOCKS_OF_THREAD  32
#define SUSPECTS_MAX     256

/* A lock whose `with` block is open, and the innermost frame of that block. */
struct entered {
    uint64_t lock;
    size_t frame;
};

struct suspect {
    const struct pb_shown_thread *t;
    struct pb_py_lock lock; /* that it waits for; addr 0: for none */
    struct entered entered[LOCKS_OF_THREAD];
    size_t nentered;
    int holder;     /* index of a suspect; -1: none */
    size_t held_in; /* frame of the holder that has the lock */
};

/* Waiting for work is no deadlock: conditions, queues and joins sleep in these functions. */
static bool waits_for_work(const struct pb_shown_frame *f)
{
    size_t n = strlen(f->code->file);

    return n >= 12 && strcmp(f->code->file + n - 12, "threading.py") == 0 &&
           (strcmp(f->code->name, "wait") == 0 || strcmp(f->code->name, "_wait_for_tstate_lock") == 0 ||
            strcmp(f->code->name, "join") == 0 || strcmp(f->code->name, "_shutdown") == 0);
}

static bool is_suspect(struct pb_stacks *s, const struct pb_shown_thread *t)
{
    const char *call = t->off_cpu && t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;

    return t->python && t->nframes && call && strncmp(call, "futex", 5) == 0 &&
           !waits_for_work(&t->frames[0]) && !pb_py_waits_for_gil(s->py, &t->py, t->syscall_args[0]);
}

/* The lock that a suspect sleeps for: the one whose semaphore the kernel names or, from 3.14 on, the one that
 * its lock structure names. */
static bool find_wanted(struct pb_stacks *s, struct suspect *x)
{
    struct pb_py_lock locks[LOCKS_OF_FRAME];
    int n = pb_py_frame_locks(s->py, &x->t->frames[0].at, locks, LOCKS_OF_FRAME);

    for (int i = n; i-- > 0;)
        if (locks[i].futex ? locks[i].futex == x->t->syscall_args[0] : locks[i].wanted) {
            x->lock = locks[i];
            return true;
        }
    return false;
}

/* Whether a frame with these locks on its stack is in a `with` block of the given lock. In the waiting frame
 * the top of the stack does not count: it holds the lock being acquired, a method or, up to 3.11, the exit
 * method of the block being entered. 3.11 does not tell which slots of that frame are in use, so it cannot be
 * decided there. */
static bool is_inside(struct pb_stacks *s, const struct pb_py_lock *locks, int n, uint64_t lock, bool waits)
{
    if (waits && pb_py_version(s->py) >> 8 == 0x030b)
        return false;
    for (int i = 0; i < n; i++) {
        if (locks[i].addr != lock)
            continue;
        if (!locks[i].entered)
            return false;
        if (locks[i].in_use)
            return true;
    }
    return false;
}

static const struct entered *find_entered(const struct suspect *x, uint64_t lock)
{
    for (size_t i = 0; i < x->nentered; i++)
        if (x->entered[i].lock == lock)
            return &x->entered[i];
    return NULL;
}

/* Finds all locks that a suspect has entered, once, so that its frames are not read again for every other
 * suspect. */
static void find_all_entered(struct pb_stacks *s, struct suspect *x)
{
    struct pb_py_lock locks[LOCKS_OF_FRAME];
    size_t frames = x->t->nframes < FRAMES_LOOKED_AT ? x->t->nframes : FRAMES_LOOKED_AT;

    for (size_t i = 0; i < frames; i++) {
        int n = pb_py_frame_locks(s->py, &x->t->frames[i].at, locks, LOCKS_OF_FRAME);
        for (int k = 0; k < n && x->nentered < LOCKS_OF_THREAD; k++) {
            uint64_t lock = locks[k].addr;
            if (!find_entered(x, lock) && is_inside(s, locks, n, lock, i == 0 && x->lock.addr == lock))
                x->entered[x->nentered++] = (struct entered){lock, i};
        }
    }
}

/* Two threads inside one lock would be a contradiction: then nothing is known. */
static void find_holder(const struct suspect *all, int n, struct suspect *x)
{
    x->holder = -1;
    for (int i = 0; i < n; i++) {
        const struct entered *e = find_entered(&all[i], x->lock.addr);
        if (x->lock.owner ? all[i].t->py.ident != x->lock.owner : !x->lock.locked || !e)
            continue;
        if (x->holder >= 0) {
            x->holder = -1;
            return;
        }
        x->holder = i;
        x->held_in = e ? e->frame : 0;
        if (x->lock.owner)
            return;
    }
}

/* Threads that wait for no lock may hold one. Returns the new number of suspects. */
static int add_holders(struct pb_stacks *s, struct suspect *all, int n)
{
    int waiting = n;

    for (size_t i = 0; waiting && i < s->n && n < SUSPECTS_MAX; i++) {
        bool known = false;
        for (int k = 0; k < waiting; k++)
            known |= all[k].t == &s->threads[i];
        if (!known && s->threads[i].python && s->threads[i].nframes)
            all[n++] = (struct suspect){.t = &s->threads[i]};
    }
    return n;
}

void pb_wait_python_locks(struct pb_stacks *s, struct pb_waits *w)
{
    int n = 0;

    if (!s->py)
        return;
    struct suspect *all = calloc(SUSPECTS_MAX, sizeof(*all));
    /* Threads of a circle are read again at the end: cached pages will do until then. */
    pb_source_keep(&s->source, 0);
    for (size_t i = 0; all && i < s->n && n < SUSPECTS_MAX; i++) {
        all[n] = (struct suspect){.t = &s->threads[i]};
        if (is_suspect(s, &s->threads[i]) && find_wanted(s, &all[n]))
            n++;
    }
    int waiting = n;
    n = all ? add_holders(s, all, n) : 0;
    /* A frame of a thread that runs may be gone meanwhile: only those that slept are searched. */
    for (int i = 0; i < n; i++)
        if (all[i].t->off_cpu)
            find_all_entered(s, &all[i]);
    for (int i = 0; i < waiting; i++) {
        struct pb_wait *wait = &w->at[all[i].t - s->threads];
        find_holder(all, n, &all[i]);
        wait->kind = PB_WAIT_PYTHON_LOCK;
        wait->object = all[i].lock.addr;
        wait->recursive = all[i].lock.recursive;
        if (all[i].holder < 0)
            continue;
        wait->holder_pid = s->pid;
        wait->holder_tid = all[all[i].holder].t->native.tid;
        wait->holder_frame = (int)all[i].held_in;
    }
    pb_source_forget(&s->source);
    free(all);
}
