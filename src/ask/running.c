/* running: see running.h. */
#include "ask/running.h"

#include "ask/process_settings.h"
#include "ask/processes.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "control/identity.h"
#include "inject/session.h"
#include "remote/procinfo.h"
#include "remote/runs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ONE_LIMIT_MS = 2000, /* for one process; normally less than a millisecond */
    ROOM = 16 << 20,
    COMMAND_MAX = 1 << 16,
};

/* Input of the child. caller: left out of the list. */
struct running_look {
    const struct pb_processes *all;
    pid_t caller;
};

void pb_running_done(struct pb_running_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->at[i].command);
    free(list->at);
    *list = (struct pb_running_list){0};
}

static void read_version(const struct pb_procinfo *info, const struct pb_run_info *run, char *ret,
                         size_t size)
{
    ret[0] = '\0';
    if (run)
        pb_run_get(run, "python", ret, size);
    if (!ret[0] && info->python_version)
        snprintf(ret, size, "%d.%d", info->python_version >> 8, info->python_version & 0xff);
    else if (!ret[0] && info->python)
        snprintf(ret, size, "?");
}

static void read_rank(pid_t pid, char *ret, size_t size)
{
    _cleanup_free_ char *environment = NULL;
    struct pb_identity id = {0};
    size_t len;

    if (pb_proc_slurp(pid, "environ", &environment, &len) == 0)
        pb_identity_read(environment, len, &id);
    snprintf(ret, size, "%s", id.value[PB_ID_RANK]);
}

static double read_memory(pid_t pid)
{
    char statm[128];
    long total, resident;

    return pb_proc_read(pid, "statm", statm, sizeof(statm)) > 0 &&
                   sscanf(statm, "%ld %ld", &total, &resident) == 2
               ? (double)resident * (double)sysconf(_SC_PAGESIZE) / (1 << 20)
               : -1;
}

/* No answer means: neither probed nor Python, so not in the list. */
static int look_at_process(const struct pb_ask *ask, void *arg, size_t i, struct pb_room *room, void **ret)
{
    _cleanup_(pb_run_done) struct pb_run_info run = {.dir_fd = -1};
    const struct running_look *l = arg;
    struct pb_running r = {.pid = l->all->at[i].pid};
    struct pb_procinfo info;
    char command[COMMAND_MAX];

    if (r.pid == l->caller || r.pid == getpid() || pb_procinfo_read(r.pid, &info, NULL) < 0)
        return 0;
    bool described = pb_run_of(&info, &run) == 0;
    if (!described && !info.python)
        return 0;
    r.probed = described || pb_session_probed(&info);
    read_version(&info, described ? &run : NULL, r.python, sizeof(r.python));
    read_rank(info.living, r.rank, sizeof(r.rank));
    r.start_time = info.start_time;
    r.memory_mb = read_memory(info.living);
    pb_redact_cmdline(r.pid, command, sizeof(command));
    r.command = pb_room_text(room, command);
    *ret = r.command ? pb_room_copy(room, &r, sizeof(r)) : NULL;
    return *ret ? 0 : -ENOSPC;
}

static int keep_running(struct pb_running_list *list, const struct pb_running *r)
{
    char *command = strdup(r->command);
    struct pb_running *more = command ? reallocarray(list->at, list->n + 1, sizeof(*more)) : NULL;

    if (!more) {
        free(command);
        return -ENOMEM;
    }
    list->at = more;
    list->at[list->n] = *r;
    list->at[list->n++].command = command;
    return 0;
}

int pb_running_read(const struct pb_ask *ask, struct pb_running_list *ret, struct pb_err *err)
{
    _cleanup_(pb_processes_done) struct pb_processes all = {0};
    struct running_look looking = {&all, getpid()};
    struct pb_running_list list = {0};
    struct pb_each each = {
        .work = look_at_process, .arg = &looking, .limit_ms = ONE_LIMIT_MS, .room_size = ROOM};

    int r = pb_processes_read(ask, &all, err);
    if (r < 0)
        return r;
    each.n = all.n;
    r = pb_each_run(ask, &each);
    for (size_t i = 0; r == 0 && i < each.n; i++) {
        if (each.at[i].result == -ETIMEDOUT)
            pb_ask_note(ask, "process %d hangs in the kernel and is left out", (int)all.at[i].pid);
        else if (each.at[i].answer)
            r = keep_running(&list, each.at[i].answer);
    }
    pb_each_done(&each);
    if (r < 0) {
        pb_running_done(&list);
        return pb_fail(err, r, r == -ECANCELED ? "cancelled" : "out of memory");
    }
    *ret = list;
    return 0;
}
