/* neighbours: see neighbours.h. The kernel counts CPU time of whole processes, and knows of each thread which
 * CPU it ran on last. So a process that used CPU between two looks, and has a thread there, is a neighbour.
 */
#include "diagnose/neighbours.h"

#include "ask/task.h"
#include "base/procfs.h"
#include "base/text.h"
#include "base/time.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BETWEEN_MS = 500, LIMIT_MS = 3000, MOST = 32768, SHOWN = 3, WORTH_PERCENT = 5, ROOM = 4096 };

struct neighbour {
    pid_t pid;
    uint64_t ticks; /* of CPU, of all its threads */
    char name[32];
};

struct neighbours {
    struct neighbour *at;
    size_t n;
};

/* Fields of stat from the third on: time in user mode and in the kernel, and the CPU that it ran on last. */
static int read_stat(pid_t pid, const char *path, uint64_t *ret_ticks, int *ret_cpu, char *name, size_t size)
{
    char stat[1024];
    unsigned long long user, kernel;

    int r = pb_proc_read(pid, path, stat, sizeof(stat));
    const char *open = r < 0 ? NULL : strchr(stat, '('), *close = open ? strrchr(open, ')') : NULL;
    if (!close || sscanf(close,
                         ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d "
                         "%*u %*u %*d %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*d %d",
                         &user, &kernel, ret_cpu) != 3)
        return -1;
    *ret_ticks = user + kernel;
    if (name) {
        snprintf(name, size, "%.*s", (int)(close - open - 1), open + 1);
        pb_text_clean(name);
    }
    return 0;
}

static struct neighbours see_all(pid_t except)
{
    struct neighbours all = {.at = calloc(MOST, sizeof(*all.at))};
    DIR *dir = opendir("/proc");
    int cpu;

    for (struct dirent *e; dir && all.at && all.n < MOST && (e = readdir(dir));) {
        struct neighbour *one = &all.at[all.n];
        one->pid = (pid_t)atoi(e->d_name);
        if (one->pid > 0 && one->pid != except && one->pid != getpid() &&
            read_stat(one->pid, "stat", &one->ticks, &cpu, one->name, sizeof(one->name)) == 0)
            all.n++;
    }
    if (dir)
        closedir(dir);
    return all;
}

/* A thread of it that ran on these CPUs last. */
static bool is_there(pid_t pid, const cpu_set_t *cpus)
{
    char path[64];
    uint64_t ticks;
    bool found = false;
    int cpu;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        snprintf(path, sizeof(path), "task/%d/stat", atoi(e->d_name));
        found = e->d_name[0] != '.' && read_stat(pid, path, &ticks, &cpu, NULL, 0) == 0 && cpu >= 0 &&
                cpu < CPU_SETSIZE && CPU_ISSET(cpu, cpus);
    }
    if (dir)
        closedir(dir);
    return found;
}

static int busiest_first(const void *a, const void *b)
{
    const struct neighbour *x = a, *y = b;

    return x->ticks < y->ticks ? 1 : x->ticks > y->ticks ? -1 : x->pid - y->pid;
}

/* Leaves what each used meanwhile, the busiest first. The kernel lists processes by pid. */
static void subtract(struct neighbours *now, const struct neighbours *before)
{
    for (size_t i = 0, k = 0; i < now->n; i++) {
        while (k < before->n && before->at[k].pid < now->at[i].pid)
            k++;
        bool known =
            k < before->n && before->at[k].pid == now->at[i].pid && before->at[k].ticks <= now->at[i].ticks;
        now->at[i].ticks = known ? now->at[i].ticks - before->at[k].ticks : 0;
    }
    qsort(now->at, now->n, sizeof(*now->at), busiest_first);
}

static void put_cpus(const cpu_set_t *cpus, char *ret, size_t size)
{
    int n = CPU_COUNT(cpus), first = 0;

    while (first < CPU_SETSIZE && !CPU_ISSET(first, cpus))
        first++;
    if (n == 1)
        snprintf(ret, size, "CPU %d", first);
    else
        snprintf(ret, size, "its %d CPUs", n);
}

/* Runs in a child. */
static int find_neighbours(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    pid_t pid = *(const pid_t *)arg;
    double tick_s = 1 / (double)sysconf(_SC_CLK_TCK);
    char text[256] = "", where[32];
    cpu_set_t cpus;
    size_t len = 0;
    int shown = 0;
    (void)ask;
    (void)err;

    if (sched_getaffinity(pid, sizeof(cpus), &cpus) < 0)
        return 0;
    struct neighbours before = see_all(pid);
    uint64_t from = pb_now_ns();
    pb_sleep_ns(BETWEEN_MS * PB_NS_PER_MS);
    struct neighbours now = see_all(pid);
    double seconds = (double)(pb_now_ns() - from) / 1e9;
    subtract(&now, &before);
    for (size_t i = 0; i < now.n && shown < SHOWN && len < sizeof(text); i++) {
        double percent = 100 * (double)now.at[i].ticks * tick_s / seconds;
        if (percent < WORTH_PERCENT)
            break;
        if (!is_there(now.at[i].pid, &cpus))
            continue;
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%sprocess %d (%s) %.0f%%",
                                shown++ ? ", " : "", (int)now.at[i].pid, now.at[i].name, percent);
    }
    put_cpus(&cpus, where, sizeof(where));
    if (shown && len < sizeof(text))
        snprintf(text + len, sizeof(text) - len, " on %s", where);
    free(before.at);
    free(now.at);
    pb_task_answer(room, pb_room_text(room, text));
    return 0;
}

void pb_diag_neighbours(const struct pb_ask *ask, pid_t pid, char *ret, size_t size)
{
    struct pb_task task = {
        .work = find_neighbours, .arg = &pid, .pid = pid, .limit_ms = LIMIT_MS, .room_size = ROOM};
    struct pb_err ignored;

    ret[0] = '\0';
    if (pb_task_run(ask, &task, &ignored) < 0)
        return;
    const char *text = pb_task_answer_of(&task);
    snprintf(ret, size, "%s", text ? text : "");
    pb_room_free(task.room);
}
