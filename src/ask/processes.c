/* processes: see processes.h. */
#include "ask/processes.h"

#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    ONE_LIMIT_MS = 1000, /* for one process; normally microseconds */
    ROOM = 64 << 20,     /* for command lines; when it is full another room is used */
};

void pb_processes_done(struct pb_processes *all)
{
    for (size_t i = 0; i < all->n; i++)
        free(all->at[i].command);
    free(all->at);
    *all = (struct pb_processes){0};
}

/* The parent's pid, field 4 of stat. Fields are counted from the end of the name, which may hold any
 * character. */
static pid_t parent_of(pid_t pid)
{
    char stat[512];

    if (pb_proc_read(pid, "stat", stat, sizeof(stat)) < 0)
        return 0;
    const char *p = strrchr(stat, ')');
    return p && strlen(p) > 4 ? (pid_t)strtol(p + 4, NULL, 10) : 0;
}

/* What the child has read of one process. */
struct process_entry {
    pid_t ppid;
    size_t len; /* 0: a kernel thread, or the process has ended */
    char command[];
};

/* Reading a command line takes a lock on the process's memory, which a process that hangs in a driver or a
 * file system may hold for ever (ps hangs then too). So this runs in a child. */
static int read_entry(const struct pb_ask *ask, void *arg, size_t i, struct pb_room *room, void **ret)
{
    const pid_t *pids = arg;
    _cleanup_free_ char *command = NULL;
    size_t len = 0;

    int r = pb_proc_slurp(pids[i], "cmdline", &command, &len);
    if (r == 0 && len == 0) { /* the main thread has ended: read it from another thread */
        pid_t living = pb_proc_living(pids[i]);
        free(command);
        command = NULL;
        r = living == pids[i] ? -ESRCH : pb_proc_slurp(living, "cmdline", &command, &len);
    }
    if (r < 0)
        len = 0;
    while (len > 0 && command[len - 1] == '\0')
        len--;
    struct process_entry *e = pb_room_alloc(room, sizeof(*e) + len + 1);
    if (!e)
        return -ENOSPC;
    e->len = len;
    e->ppid = len ? parent_of(pids[i]) : 0;
    for (size_t k = 0; k < len; k++)
        e->command[k] = command[k] ? command[k] : ' ';
    *ret = e;
    return 0;
}

static int add_process(struct pb_processes *all, pid_t pid, const struct process_entry *e)
{
    char *command = strndup(e->command, e->len);
    struct pb_process *more = command ? realloc(all->at, (all->n + 1) * sizeof(*more)) : NULL;

    if (!more) {
        free(command);
        return -ENOMEM;
    }
    all->at = more;
    all->at[all->n++] = (struct pb_process){.pid = pid, .ppid = e->ppid, .command = command};
    return 0;
}

static int by_pid(const void *a, const void *b)
{
    const struct pb_process *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

int pb_processes_pids(pid_t **ret, size_t *ret_n, struct pb_err *err)
{
    pid_t *pids = NULL;
    size_t n = 0, room = 0;

    DIR *dir = opendir("/proc");
    if (!dir)
        return pb_fail(err, -errno, "/proc cannot be read: %s", strerror(errno));
    for (struct dirent *e; (e = readdir(dir));) {
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        if (n == room) {
            room = 2 * room + 256;
            pid_t *more = reallocarray(pids, room, sizeof(*more));
            if (!more) {
                free(pids);
                closedir(dir);
                return pb_fail(err, -ENOMEM, "out of memory");
            }
            pids = more;
        }
        pids[n++] = (pid_t)atoi(e->d_name);
    }
    closedir(dir);
    *ret = pids;
    *ret_n = n;
    return 0;
}

int pb_processes_read(const struct pb_ask *ask, struct pb_processes *ret, struct pb_err *err)
{
    _cleanup_free_ pid_t *pids = NULL;
    struct pb_processes all = {0};
    struct pb_each each = {.work = read_entry, .limit_ms = ONE_LIMIT_MS, .room_size = ROOM};

    int r = pb_processes_pids(&pids, &each.n, err);
    if (r < 0)
        return r;
    each.arg = pids;
    r = pb_each_run(ask, &each);
    for (size_t i = 0; r == 0 && i < each.n; i++) {
        const struct process_entry *e = each.at[i].answer;
        if (each.at[i].result == -ETIMEDOUT)
            pb_ask_note(ask,
                        "process %d hangs in the kernel: its command line cannot be read, it is left out",
                        (int)pids[i]);
        else if (e && e->len)
            r = add_process(&all, pids[i], e);
    }
    pb_each_done(&each);
    if (r < 0) {
        pb_processes_done(&all);
        return pb_fail(err, r, r == -ECANCELED ? "cancelled" : "out of memory");
    }
    if (all.n)
        qsort(all.at, all.n, sizeof(*all.at), by_pid);
    *ret = all;
    return 0;
}

const struct pb_process *pb_processes_find(const struct pb_processes *all, pid_t pid)
{
    struct pb_process key = {.pid = pid};
    return all->n ? bsearch(&key, all->at, all->n, sizeof(key), by_pid) : NULL;
}

bool pb_process_below(const struct pb_processes *all, const struct pb_process *p, pid_t ancestor)
{
    /* Pids may be reused while we read, so that parents form a loop: it must end. */
    for (int depth = 0; p && depth < 64; depth++) {
        if (p->ppid == ancestor)
            return true;
        p = pb_processes_find(all, p->ppid);
    }
    return false;
}
