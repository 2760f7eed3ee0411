/* processes: see processes.h. */
#include "ask/processes.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void pb_processes_done(struct pb_processes *all)
{
    for (size_t i = 0; i < all->n; i++)
        free(all->at[i].command);
    free(all->at);
    *all = (struct pb_processes){0};
}

/* The parent, from stat: field 4, counted from the end of the name, which may hold anything. */
static pid_t parent_of(pid_t pid)
{
    char stat[512];

    if (pb_proc_read(pid, "stat", stat, sizeof(stat)) < 0)
        return 0;
    const char *p = strrchr(stat, ')');
    return p && strlen(p) > 4 ? (pid_t)strtol(p + 4, NULL, 10) : 0;
}

static int add(struct pb_processes *all, pid_t pid)
{
    _cleanup_free_ char *command = NULL;
    size_t len;

    if (pb_proc_slurp(pid, "cmdline", &command, &len) < 0 || len == 0)
        return 0;
    while (len > 0 && command[len - 1] == '\0')
        len--;
    for (size_t i = 0; i < len; i++)
        if (command[i] == '\0')
            command[i] = ' ';
    struct pb_process *more = realloc(all->at, (all->n + 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    all->at = more;
    all->at[all->n++] =
        (struct pb_process){.pid = pid, .ppid = parent_of(pid), .command = pb_take_ptr(command)};
    return 0;
}

static int by_pid(const void *a, const void *b)
{
    const struct pb_process *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

int pb_processes_read(struct pb_processes *ret, struct pb_err *err)
{
    struct pb_processes all = {0};
    int r = 0;

    DIR *dir = opendir("/proc");
    if (!dir)
        return pb_fail(err, -errno, "/proc cannot be read: %s", strerror(errno));
    for (struct dirent *e; r == 0 && (e = readdir(dir));)
        if (isdigit((unsigned char)e->d_name[0]))
            r = add(&all, (pid_t)atoi(e->d_name));
    closedir(dir);
    if (r < 0) {
        pb_processes_done(&all);
        return r;
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
    /* A pid may have been reused while we read: a loop of parents must end. */
    for (int depth = 0; p && depth < 64; depth++) {
        if (p->ppid == ancestor)
            return true;
        p = pb_processes_find(all, p->ppid);
    }
    return false;
}
