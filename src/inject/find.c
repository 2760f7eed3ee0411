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
#include "base/retry.h"
#include "inject/clear.h"
#include "inject/judge.h"
#include "inject/spans.h"
#include "inject/step.h"
#include "inject/target.h"
#include "remote/interrupted.h"
#include "remote/threads.h"
#include "remote/transfer.h"

enum {
    MAX_THREADS = 256, /* looked at in one round; of thousands the sleeping ones come first */
    ENOUGH = 4,        /* sleeping threads: in the first round no more are looked for */
    PAUSE_FIRST = 50,  /* us between rounds, doubled up to the last: the process must run meanwhile */
    PAUSE_LAST = 400,
};

/* How much longer a wait may become. A call that began less than this ago may restart with its whole timeout.
 * */
#define FRESH (8 * PB_NS_PER_MS)

/* A thread that has run for so long since it was seen in a call has left it. */
#define SURELY_OUT (PB_NS_PER_MS / 5)

#define MASKED_LONG PB_NS_PER_S

/* So long is waited for a thread that is in no transfer, before one is borrowed that finishes its transfer
 * afterwards. */
#define OTHERS_FIRST (100 * PB_NS_PER_MS)

/* The least time that a thread gets to stop, whatever the deadline: after the request it cannot be released
 * before it has stopped. */
#define STOP_LIMIT (100 * PB_NS_PER_MS)
#define SETTLE                                                                                               \
    (2 *                                                                                                     \
     PB_NS_PER_MS) /* how long a doubtful word must stay unchanged on the stack before it                \
                        * counts as stale */

enum {
    RANK_RUNS = 2,
    RANK_STOPPED = 4,
    RANK_FRAGILE = 8, /* in a call that a stop would make longer, or cut short: the last choice */
};

struct stack_candidate {
    pid_t tid;
    int rank;                /* lower is better */
    uint64_t doubtful_since; /* 0: not */
    struct pb_waiting waiting;
    bool fragile;        /* it waits in a call that restarts with its whole timeout when it is stopped */
    bool transfers;      /* it waits in a call that a stop would cut short (remote/transfer.h) */
    bool knows_eintr;    /* its code continues correctly after EINTR: better than a call that restarts */
    uint64_t looked;     /* when that was read */
    uint64_t slices;     /* how often it had run by then, */
    uint64_t ran;        /* and how long */
    uint64_t ran_before; /* the same when it was last in such a call, or first seen */
    uint64_t let_go;     /* when we stopped it last and let it go; 0: long ago */
    uint64_t outside;    /* when it was last known to be outside its present call; 0: never */
    uint64_t tls;        /* 0: it was not stopped yet */
    uint64_t masked;     /* since when the C library's own signal was blocked in it; 0: it is not */
};

struct stack_candidates {
    struct stack_candidate at[MAX_THREADS];
    size_t n;
};

static void done_dir(DIR **dir)
{
    if (*dir)
        closedir(*dir);
}

/* Sleeping threads first: they are usually at a safe point. Uninterruptible ones would make us wait. */
static int rank_of(pid_t pid, pid_t tid)
{
    char name[32], text[512];
    snprintf(name, sizeof(name), "task/%d/stat", tid);
    if (pb_proc_read(pid, name, text, sizeof(text)) < 0)
        return -1;
    const char *close = pb_proc_is_worker(text) ? NULL : strrchr(text, ')');
    switch (close ? close[2] : 'X') {
    case 'S':
        return tid == pid ? 0 : 1;
    case 'R':
        return RANK_RUNS;
    case 'D':
        return RANK_RUNS + 1;
    case 'T': /* a job-control stop: what it waited in has ended already */
    case 't':
        return RANK_STOPPED;
    }
    return -1;
}

static int by_rank(const void *a, const void *b)
{
    const struct stack_candidate *x = a, *y = b;
    return x->rank != y->rank ? x->rank - y->rank : (x->tid > y->tid) - (x->tid < y->tid);
}

static const struct stack_candidate *known(const struct stack_candidates *c, pid_t tid)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->at[i].tid == tid)
            return &c->at[i];
    return NULL;
}

/* How often the thread was given a CPU, and for how long in all. */
static void read_schedstat(pid_t pid, pid_t tid, uint64_t *ret_slices, uint64_t *ret_ran)
{
    char name[40], text[96];
    unsigned long long ran, waited, slices;
    snprintf(name, sizeof(name), "task/%d/schedstat", tid);
    if (pb_proc_read(pid, name, text, sizeof(text)) < 0 ||
        sscanf(text, "%llu %llu %llu", &ran, &waited, &slices) != 3)
        return;
    *ret_slices = slices;
    *ret_ran = ran;
}

/* A thread whose timeout a stop would restart is known to have left its call when it has run since the last
 * look. (A spurious wake-up would look the same, and its wait would get longer. Threads with such wake-ups
 * share them with others, which are chosen first.) */
static void look_at_wait(pid_t pid, struct stack_candidate *now, const struct stack_candidate *before)
{
    now->looked = pb_now_ns();
    int waits = pb_waiting_read(pid, now->tid, -1, &now->waiting);
    read_schedstat(pid, now->tid, &now->slices, &now->ran);
    now->fragile = waits == 1 && !pb_waiting_keeps_its_time(&now->waiting) &&
                   pb_waiting_would_begin_anew(pid, &now->waiting);
    now->transfers = waits == 1 && pb_transfer_waits(pid, now->tid, &now->waiting);
    now->ran_before = before ? before->ran_before : now->ran;
    if (now->transfers && !now->fragile)
        now->rank += RANK_FRAGILE;
    if (!now->fragile && (waits == 1 || now->ran - now->ran_before >= SURELY_OUT)) {
        now->outside = now->looked;
        return;
    }
    now->rank += RANK_FRAGILE;
    if (!now->fragile) /* it runs, perhaps on its way out of such a call, which a stop would end with EINTR */
        return;
    now->ran_before = now->ran;
    if (!before)
        return;
    /* It may have run only because of our own stop and still be in the same wait, restarted once: not
     * again. */
    bool by_us = before->let_go && now->looked - before->let_go < FRESH;
    bool same = before->fragile && (by_us || before->slices == now->slices);
    now->outside = same ? before->outside : before->looked;
    now->let_go = by_us ? before->let_go : 0;
}

/* Lists the threads again (in `now`, then in c), keeping what is known of threads that still exist, until
 * enough of them sleep. In a stopped process none does, and all are listed: check_others needs them. */
static int list_candidates(pid_t pid, size_t enough, struct stack_candidates *c, struct stack_candidates *now)
{
    size_t asleep = 0;
    now->n = 0;
    char path[32];
    snprintf(path, sizeof(path), "/proc/%d/task", pid);
    _cleanup_(done_dir) DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT ? -ESRCH : -errno;
    for (struct dirent *d; (d = readdir(dir)) && now->n < MAX_THREADS && asleep < enough;) {
        pid_t tid = (pid_t)atoi(d->d_name);
        int rank = tid > 0 ? rank_of(pid, tid) : -1;
        if (rank < 0)
            continue;
        const struct stack_candidate *before = known(c, tid);
        struct stack_candidate *new = &now->at[now->n++];
        *new = (struct stack_candidate){.tid = tid,
                                        .rank = rank,
                                        .doubtful_since = before ? before->doubtful_since : 0,
                                        .tls = before ? before->tls : 0,
                                        .masked = before ? before->masked : 0,
                                        .waiting = {.number = -1}};
        if (rank != RANK_STOPPED)
            look_at_wait(pid, new, before);
        asleep += new->rank == 0 || new->rank == 1;
    }
    if (now->n == 0)
        return -ESRCH;
    qsort(now->at, now->n, sizeof(now->at[0]), by_rank);
    *c = *now;
    return 0;
}

static enum pb_safety judge_safety(struct pb_hold *h)
{
    return pb_judge_thread(h->judge, &h->target->spans, h->thread.pid, h->thread.tid, &h->saved);
}

/* Undoes what the stop did to a system call: the call restarts, unless the thread's code handles EINTR
 * better (and is still in the wait that we saw). In a job-control stop the call had ended before. */
static int mend_call(struct pb_hold *h, const struct stack_candidate *c)
{
    if (h->thread.group_stop)
        return 0;
    if (c->knows_eintr) {
        int r = pb_arch_save(c->tid, &h->saved);
        if (r < 0 ||
            (pb_arch_ended_by_stop(&h->saved, c->waiting.number) && pb_arch_sp(&h->saved) == c->waiting.sp))
            return r;
    }
    return pb_interrupted_mend(h->thread.pid, c->tid, &c->waiting, 0, NULL);
}

/* Stops the thread and reads its registers. */
static int stop_candidate(struct pb_hold *h, const struct stack_candidate *c, uint64_t deadline)
{
    pid_t tid = c->tid;
    int r = pb_thread_seize(h->target->info.pid, tid, &h->thread);
    if (r < 0)
        return r;
    pb_step("seized");
    uint64_t limit = pb_now_ns() + STOP_LIMIT;
    r = pb_thread_stop(&h->thread, limit > deadline ? limit : deadline);
    if (r == -ESTALE)
        pb_thread_release(&h->thread);
    if (r == 0) {
        r = mend_call(h, c);
        if (r == 0)
            r = pb_arch_save(tid, &h->saved);
        if (r < 0)
            pb_thread_release(&h->thread);
    }
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

/* From here on the thread cannot exec, and the plan made for it stays valid. */
static int hold_thread(struct pb_hold *h)
{
    int r = pb_image_check(h->target->image, h->thread.pid);
    if (r < 0)
        put_back(h);
    return r < 0 ? r : 1;
}

/* A thread that has the C library's own signal blocked is usually in its handler: another thread changes the
 * user of all threads (setuid), holds a lock that pthread_create needs, and waits for this one. The C library
 * lets no program block that signal; a thread that has it blocked for long did so itself. */
static bool answers_libc(const struct pb_hold *h, struct stack_candidate *c)
{
    if (!(h->saved.sigmask & pb_hold_signal_of_libc(h->target))) {
        c->masked = 0;
        return true;
    }
    uint64_t now = pb_now_ns();
    if (!c->masked)
        c->masked = now;
    return now - c->masked > MASKED_LONG;
}

/* Returns 1 when the thread is held, 0 when it was released again. */
static int try_thread(struct pb_hold *h, struct stack_candidate *c, uint64_t deadline)
{
    /* With priority from here on, so that the state just read still holds when the thread stops. */
    pb_hurry_begin(h->target->info.pid, c->tid);
    if (c->rank != RANK_STOPPED && !c->knows_eintr && pb_now_ns() - c->outside >= FRESH) {
        pb_hurry_end();
        return 0;
    }
    int r = stop_candidate(h, c, deadline);
    if (r < 0) {
        pb_hurry_end();
        return r;
    }
    enum pb_safety safety = judge_safety(h);
    c->tls = pb_arch_tls(c->tid, &h->saved);
    bool own = pb_judge_on_own_stack(h->judge, c->tid, pb_arch_sp(&h->saved), c->tls) && answers_libc(h, c);
    if (own && safety == PB_SAFE)
        return hold_thread(h);
    if (own && safety == PB_PERHAPS) {
        uint64_t now = pb_now_ns();
        if (c->doubtful_since && now - c->doubtful_since >= SETTLE)
            return hold_thread(h);
        if (!c->doubtful_since)
            c->doubtful_since = now;
    } else {
        c->doubtful_since = 0;
        h->stats->unsafe_looks += safety == PB_UNSAFE;
    }
    put_back(h);
    c->let_go = pb_now_ns();
    /* In a job-control stop the thread will not move on while we wait. */
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

/* In a stopped process no thread releases a lock: all threads must be outside of allocators, not just the
 * borrowed one. */
static int check_others(struct pb_hold *h, const struct stack_candidates *c, struct pb_err *err)
{
    _cleanup_free_ struct pb_hold *other = pb_hold_alloc(); /* tens of KB */
    if (!other)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < c->n; i++) {
        if (c->at[i].tid == h->thread.tid)
            continue;
        other->target = h->target;
        other->stats = h->stats;
        other->judge = h->judge;
        if (stop_candidate(other, &c->at[i], pb_now_ns() + PB_NS_PER_S) < 0)
            continue;
        enum pb_safety safety = judge_safety(other);
        put_back(other);
        if (safety == PB_UNSAFE)
            return stuck(h->thread.pid, c->at[i].tid, err);
    }
    return 0;
}

static int report_refusal(const struct pb_hold *h, int r, struct pb_err *err)
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

/* Checks without a stop: whether a sleeping thread is inside an allocator, or in a wait that must not be
 * disturbed now. Also reads the unwind tables that a stop will need. */
static bool may_stop(struct pb_hold *h, struct stack_candidate *c, uint64_t since)
{
    pid_t pid = h->target->info.pid;
    if (c->rank == RANK_STOPPED)
        return true;
    if (pb_now_ns() - c->looked > FRESH / 4) { /* the threads before it took some time */
        struct stack_candidate now = *c;
        now.rank %= RANK_FRAGILE;
        look_at_wait(pid, &now, c);
        *c = now;
    }
    if (c->rank % RANK_FRAGILE >= RANK_RUNS)
        return c->outside == c->looked;
    if (c->transfers &&
        (pb_now_ns() - since < OTHERS_FIRST || !pb_transfer_may_finish(pid, c->tid, &c->waiting)))
        return false;
    if (c->tls && c->waiting.sp && !pb_judge_on_own_stack(h->judge, c->tid, c->waiting.sp, c->tls))
        return false;
    if (pb_judge_asleep(h->judge, &h->target->spans, pid, c->tid) == PB_UNSAFE) {
        h->stats->unsafe_looks++;
        return false;
    }
    if (!c->fragile)
        return true;
    c->knows_eintr = pb_judge_knows_eintr(h->judge, &h->target->info, c->waiting.number);
    return c->knows_eintr || c->outside;
}

/* One look at every thread. 1: found. */
static int try_all_threads(struct pb_hold *h, struct stack_candidates *c, uint64_t since, uint64_t deadline,
                           struct pb_err *err)
{
    int last = 0;
    unsigned met = 0, unsafe_before = h->stats->unsafe_looks;
    for (size_t i = 0; i < c->n; i++) {
        if (!may_stop(h, &c->at[i], since)) {
            met++;
            continue;
        }
        int r = try_thread(h, &c->at[i], deadline);
        if (r == 1) {
            r = h->thread.group_stop ? check_others(h, c, err) : 0;
            if (r < 0)
                put_back(h);
            return r < 0 ? r : 1;
        }
        if (r == 0)
            met++;
        else if (r != -ESRCH) /* the thread ended while we looked at it; the others are still there */
            return report_refusal(h, r, err);
        else
            last = r;
    }
    if (met && h->stats->unsafe_looks - unsafe_before == met)
        h->stats->unsafe_rounds++;
    return met ? 0 : last;
}

/* At the deadline: reports the obstacle. */
static int report_timeout(const struct pb_hold *h, const struct stack_candidates *c, struct pb_err *err)
{
    pid_t pid = h->target->info.pid;
    char where[160];
    for (size_t i = 0; i < c->n; i++) {
        const char *moves = c->at[i].transfers ? pb_syscall_name((int)c->at[i].waiting.number) : NULL;
        if (moves)
            return pb_fail(
                err, -ETIMEDOUT,
                "thread %d of process %d waits in %s, which a stop would end with a part of its data "
                "moved, and no other thread can be used; nothing was changed (a --timeout longer than "
                "that wait lets it end first; backtrace, flamegraph and record need no agent)",
                c->at[i].tid, pid, moves);
        const char *call = c->at[i].fragile ? pb_syscall_name((int)c->at[i].waiting.number) : NULL;
        if (call && h->judge->unsafe_tid != c->at[i].tid)
            return pb_fail(
                err, -ETIMEDOUT,
                "thread %d of process %d waits in %s with a timeout, which a stop would make longer, and "
                "no other thread can be used; nothing was changed (a --timeout longer than that wait lets it "
                "end first; backtrace, flamegraph and record need no agent)",
                c->at[i].tid, pid, call);
    }
    if (h->judge->strange_tid && !h->stats->unsafe_rounds)
        return pb_fail(
            err, -ETIMEDOUT,
            "thread %d of process %d was on a stack that is not the thread's own each time we looked (a "
            "coroutine, a signal handler on a stack of its own), where there may be no room, and no other "
            "thread can be used; nothing was changed (try again, or with a longer timeout)",
            h->judge->strange_tid, pid);
    pb_judge_name(h->judge, where, sizeof(where));
    return pb_fail(
        err, -ETIMEDOUT,
        "every thread of process %d was inside its allocator or loader each of the %u times we looked, "
        "thread %d last in %s; nothing was changed (try again, or with a longer timeout)",
        pid, h->stats->unsafe_rounds, h->judge->unsafe_tid, where);
}

static int find_safe_thread(struct pb_hold *h, uint64_t deadline, struct pb_err *err)
{
    _cleanup_free_ struct stack_candidates *c =
        calloc(2, sizeof(*c)); /* tens of KB, and a second for list() */
    pid_t pid = h->target->info.pid;
    struct pb_retry again = pb_retry_until(deadline, PAUSE_FIRST * 1000ull, PAUSE_LAST * 1000ull);
    uint64_t since = pb_now_ns();
    if (!c)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t enough = ENOUGH;; enough = MAX_THREADS) {
        if (pb_thread_interrupted())
            return pb_fail(err, -EINTR,
                           "interrupted before a thread of process %d was used; nothing was changed", pid);
        int r = list_candidates(pid, enough, c, c + 1);
        if (r < 0)
            return report_refusal(h, r, err);
        pb_judge_refresh(h->judge, pid);
        r = try_all_threads(h, c, since, deadline, err);
        if (r == 1)
            return 0;
        if (r < 0 && r != -ESRCH)
            return r;
        if (!pb_retry_wait(&again))
            return report_timeout(h, c, err);
    }
}

int pb_find_thread(struct pb_hold *h, uint64_t deadline, struct pb_err *err)
{
    _cleanup_(pb_judge_done) struct pb_judge judge = {0};
    pb_judge_open(&judge, h->target->info.pid);
    h->judge = &judge;
    int r = pb_clear_wait(&judge, h->target, deadline, err);
    if (r == 0)
        r = find_safe_thread(h, deadline, err);
    h->judge = NULL;
    return r;
}
