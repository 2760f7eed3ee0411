/* clear: see clear.h. */
#include "inject/clear.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/procfs.h"
#include "base/retry.h"
#include "inject/judge.h"
#include "inject/target.h"
#include "inject/thread.h"

enum {
    LOOKS = 256, /* threads looked at: of thousands that hang, some are among the first */
    KEPT = 16,
};

struct sleeper {
    pid_t tid;
    uint64_t slices; /* how often it had run on a CPU by then */
    uint64_t pc;     /* where it sleeps, for its name */
};

static bool is_asleep(pid_t pid, pid_t tid)
{
    char name[32], text[512];
    snprintf(name, sizeof(name), "task/%d/stat", tid);
    const char *close = pb_proc_read(pid, name, text, sizeof(text)) < 0 ? NULL : strrchr(text, ')');
    return close && close[1] == ' ' && (close[2] == 'S' || close[2] == 'D');
}

/* How often the thread was given a CPU. 0: not known, or it is gone. */
static uint64_t slices_of(pid_t pid, pid_t tid)
{
    char name[40], text[96];
    unsigned long long ran, waited, slices;
    snprintf(name, sizeof(name), "task/%d/schedstat", tid);
    if (pb_proc_read(pid, name, text, sizeof(text)) < 0 ||
        sscanf(text, "%llu %llu %llu", &ran, &waited, &slices) != 3)
        return 0;
    return slices;
}

static size_t find_sleepers(struct pb_judge *j, const struct pb_inject_target *t, struct sleeper *ret)
{
    pid_t pid = t->info.pid;
    char path[32];
    size_t n = 0;
    snprintf(path, sizeof(path), "/proc/%d/task", pid);
    DIR *dir = opendir(path);
    int left = LOOKS;
    for (struct dirent *d; dir && n < KEPT && left > 0 && (d = readdir(dir));) {
        pid_t tid = (pid_t)atoi(d->d_name);
        if (tid <= 0 || !is_asleep(pid, tid))
            continue;
        left--;
        uint64_t slices = slices_of(pid, tid); /* before the stack: it may run meanwhile (drop_awake) */
        if (slices && pb_judge_is_in_the_way(j, &t->spans, tid))
            ret[n++] = (struct sleeper){tid, slices, j->unsafe_pc};
    }
    if (dir)
        closedir(dir);
    return n;
}

/* Removes threads that have run again: they were not waiting for ever. Only the threads found asleep at first
 * are waited for: with contended locks some thread is always asleep. */
static size_t drop_awake(pid_t pid, struct sleeper *s, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (slices_of(pid, s[i].tid) == s[i].slices)
            s[kept++] = s[i];
    return kept;
}

int pb_clear_wait(struct pb_judge *j, const struct pb_inject_target *target, uint64_t deadline,
                  struct pb_err *err)
{
    struct sleeper sleepers[KEPT];
    struct pb_retry again = pb_retry_until(deadline, PB_NS_PER_MS / 4, 10 * PB_NS_PER_MS);
    pid_t pid = target->info.pid;
    char where[160];

    size_t n = find_sleepers(j, target, sleepers);
    while ((n = drop_awake(pid, sleepers, n)) > 0) {
        if (pb_thread_interrupted())
            return pb_fail(err, -EINTR,
                           "interrupted before a thread of process %d was used; nothing was changed", pid);
        if (pb_retry_wait(&again))
            continue;
        j->unsafe_pc = sleepers[0].pc;
        pb_judge_name(j, where, sizeof(where));
        return pb_fail(
            err, -ETIMEDOUT,
            "thread %d of process %d sleeps in %s with, or for, a lock that an injection needs, and did not "
            "continue until the deadline (is it deadlocked?); nothing was changed (`probing -t %d "
            "backtrace --native` shows its threads, and needs no agent)",
            sleepers[0].tid, pid, where, pid);
    }
    return 0;
}
