/* find: see find.h. */
#include "inject/find.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "base/time.h"
#include "inject/spans.h"
#include "inject/step.h"
#include "inject/target.h"

enum {
    MAX_THREADS = 256, /* looked at in one round; of thousands the sleeping ones come first */
    ENOUGH = 4,        /* sleeping threads: in the first round no more are looked for */
    PAUSE_FIRST = 50,  /* us between rounds, doubled up to the last: the process must get on meanwhile */
    PAUSE_LAST = 400,
};

/* A thread that was asked to stop cannot be let go before it has: short of a deadline it gets this long. */
#define STOP_LIMIT (100 * PB_NS_PER_MS)
#define SETTLE     (2 * PB_NS_PER_MS) /* how long a doubt must stay one before it counts as stale words */

struct candidate {
    pid_t tid;
    int rank;                /* lower is better */
    uint64_t doubtful_since; /* 0: not */
};

struct candidates {
    struct candidate at[MAX_THREADS];
    size_t n;
};

static void done_dir(DIR **dir)
{
    if (*dir)
        closedir(*dir);
}

/* Sleeping threads first: they are at a safe point as a rule. Uninterruptible ones would keep us waiting. */
static int rank_of(pid_t pid, pid_t tid)
{
    char name[32], text[512];
    snprintf(name, sizeof(name), "task/%d/stat", tid);
    if (pb_proc_read(pid, name, text, sizeof(text)) < 0)
        return -1;
    const char *close = strrchr(text, ')');
    switch (close ? close[2] : 'X') {
    case 'S':
        return tid == pid ? 0 : 1;
    case 'R':
    case 'T':
    case 't':
        return 2;
    case 'D':
        return 3;
    }
    return -1;
}

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->rank != y->rank ? x->rank - y->rank : (x->tid > y->tid) - (x->tid < y->tid);
}

static uint64_t doubt_of(const struct candidates *c, pid_t tid)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->at[i].tid == tid)
            return c->at[i].doubtful_since;
    return 0;
}

/* Lists the threads anew, keeping what is known of those that are still there, until enough of them sleep. In
 * a stopped process none does, and all are listed: check_others needs them. */
static int list(pid_t pid, size_t enough, struct candidates *c)
{
    size_t asleep = 0;
    struct candidates now = {.n = 0};
    char path[32];
    snprintf(path, sizeof(path), "/proc/%d/task", pid);
    _cleanup_(done_dir) DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT ? -ESRCH : -errno;
    for (struct dirent *d; (d = readdir(dir)) && now.n < MAX_THREADS && asleep < enough;) {
        pid_t tid = (pid_t)atoi(d->d_name);
        int rank = tid > 0 ? rank_of(pid, tid) : -1;
        asleep += rank == 0 || rank == 1;
        if (rank >= 0)
            now.at[now.n++] = (struct candidate){tid, rank, doubt_of(c, tid)};
    }
    if (now.n == 0)
        return -ESRCH;
    qsort(now.at, now.n, sizeof(now.at[0]), by_rank);
    *c = now;
    return 0;
}

static enum pb_safety look(struct pb_hold *h)
{
    return pb_spans_judge(&h->target->spans, h->thread.pid, h->thread.tid, &h->saved);
}

/* Stops the thread and reads its registers. */
static int grab(struct pb_hold *h, pid_t tid, uint64_t deadline)
{
    int r = pb_thread_seize(h->target->info.pid, tid, &h->thread);
    if (r < 0)
        return r;
    pb_step("seized");
    pb_hurry_begin();
    uint64_t limit = pb_now_ns() + STOP_LIMIT;
    r = pb_thread_stop(&h->thread, limit > deadline ? limit : deadline);
    if (r == -ESTALE)
        pb_thread_release(&h->thread);
    if (r == 0) {
        r = pb_arch_save(tid, &h->saved);
        if (r < 0)
            pb_thread_release(&h->thread);
    }
    if (r < 0)
        pb_hurry_end();
    return r;
}

static void put_back(struct pb_hold *h)
{
    uint64_t ns = pb_thread_release(&h->thread);
    pb_hurry_end();
    h->stats->total_ns += ns;
    if (ns > h->stats->longest_ns)
        h->stats->longest_ns = ns;
}

/* From here on the thread cannot exec, and what is planned for it is true of it. */
static int take(struct pb_hold *h)
{
    int r = pb_image_check(h->target->image, h->thread.pid);
    if (r < 0)
        put_back(h);
    return r < 0 ? r : 1;
}

/* Returns 1 when the thread is ours, 0 when it was let go again. */
static int try_thread(struct pb_hold *h, struct candidate *c, uint64_t deadline)
{
    int r = grab(h, c->tid, deadline);
    if (r < 0)
        return r;
    enum pb_safety safety = look(h);
    if (safety == PB_SAFE)
        return take(h);
    if (safety == PB_PERHAPS) {
        uint64_t now = pb_now_ns();
        if (c->doubtful_since && now - c->doubtful_since >= SETTLE)
            return take(h);
        if (!c->doubtful_since)
            c->doubtful_since = now;
    } else {
        c->doubtful_since = 0;
        h->stats->unsafe_looks++;
    }
    put_back(h);
    /* In a job-control stop it will not move on while we look. */
    return safety == PB_UNSAFE && h->thread.group_stop ? -EAGAIN : 0;
}

static int stuck(pid_t pid, pid_t tid, struct pb_err *err)
{
    return pb_fail(
        err, -EAGAIN,
        "process %d is stopped while its thread %d is inside the allocator or loader (continue it with "
        "kill -CONT %d)",
        pid, tid, pid);
}

/* In a stopped process nobody will release a lock: all threads must be clear of them, not just the one. */
static int check_others(struct pb_hold *h, const struct candidates *c, struct pb_err *err)
{
    static struct pb_hold other; /* tens of KB; one injection runs at a time */
    for (size_t i = 0; i < c->n; i++) {
        if (c->at[i].tid == h->thread.tid)
            continue;
        other.target = h->target;
        other.stats = h->stats;
        if (grab(&other, c->at[i].tid, pb_now_ns() + PB_NS_PER_S) < 0)
            continue;
        enum pb_safety safety = look(&other);
        put_back(&other);
        if (safety == PB_UNSAFE)
            return stuck(h->thread.pid, c->at[i].tid, err);
    }
    return 0;
}

static int refuse(const struct pb_hold *h, int r, struct pb_err *err)
{
    pid_t pid = h->target->info.pid;
    if (r == -ESRCH)
        return pb_fail(err, r, "process %d ended", pid);
    if (r == -ESTALE)
        return pb_fail(err, r, "process %d began another program meanwhile", pid);
    if (r == -EAGAIN)
        return stuck(pid, h->thread.tid, err);
    if (r == -ETIMEDOUT)
        return pb_fail(err, r, "no thread of process %d can be stopped (uninterruptible wait; try again)",
                       pid);
    return pb_fail(err, r, "cannot trace process %d: %s (run `probing doctor` on it)", pid, strerror(-r));
}

/* One look at every thread. 1: found. */
static int round_of(struct pb_hold *h, struct candidates *c, uint64_t deadline, struct pb_err *err)
{
    int last = 0;
    unsigned met = 0, unsafe_before = h->stats->unsafe_looks;
    for (size_t i = 0; i < c->n; i++) {
        int r = try_thread(h, &c->at[i], deadline);
        if (r == 1) {
            r = h->thread.group_stop ? check_others(h, c, err) : 0;
            if (r < 0)
                put_back(h);
            return r < 0 ? r : 1;
        }
        if (r == 0)
            met++;
        else if (r != -ESRCH) /* a thread may end under our hands; the others are still there */
            return refuse(h, r, err);
        else
            last = r;
    }
    if (met && h->stats->unsafe_looks - unsafe_before == met)
        h->stats->unsafe_rounds++;
    return met ? 0 : last;
}

int pb_find_thread(struct pb_hold *h, uint64_t deadline, struct pb_err *err)
{
    struct candidates c = {.n = 0};
    pid_t pid = h->target->info.pid;
    unsigned pause = PAUSE_FIRST;
    for (size_t enough = ENOUGH;; enough = MAX_THREADS) {
        int r = list(pid, enough, &c);
        if (r < 0)
            return refuse(h, r, err);
        r = round_of(h, &c, deadline, err);
        if (r == 1)
            return 0;
        if (r < 0 && r != -ESRCH)
            return r;
        if (pb_now_ns() >= deadline)
            return pb_fail(
                err, -ETIMEDOUT,
                "every thread of process %d was inside its allocator or loader each of the %u times "
                "we looked; nothing was changed (try again, or with a longer timeout)",
                pid, h->stats->unsafe_rounds);
        pb_sleep_ns(pause * 1000ull);
        if (pause < PAUSE_LAST)
            pause *= 2;
    }
}
