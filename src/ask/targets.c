/* targets: see targets.h. */
#include "ask/targets.h"

#include "ask/archived.h"
#include "ask/ask.h"
#include "ask/processes.h"
#include "ask/settings.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "control/identity.h"
#include "remote/procinfo.h"
#include "remote/runs.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void pb_targets_done(struct pb_targets *targets)
{
    free(targets->at);
    *targets = (struct pb_targets){0};
}

/* A command line or an environment is another user's text, and may hold anything. */
static void one_line(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        if (*p < 0x20 || *p == 0x7f)
            *p = '?';
}

void pb_target_label(pid_t pid, char *ret, size_t size)
{
    _cleanup_free_ char *environment = NULL;
    struct pb_identity id;
    size_t len;

    snprintf(ret, size, "pid %d", (int)pid);
    if (pb_proc_slurp(pid, "environ", &environment, &len) < 0)
        return;
    pb_identity_read(environment, len, &id);
    if (id.value[PB_ID_RANK][0])
        snprintf(ret, size, "rank %s", id.value[PB_ID_RANK]);
    one_line(ret);
}

int32_t pb_label_rank(const char *label)
{
    return strncmp(label, "rank ", 5) == 0 ? atoi(label + 5) : -1;
}

static int add(struct pb_targets *targets, pid_t pid)
{
    struct pb_target *more = realloc(targets->at, (targets->n + 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    targets->at = more;
    struct pb_target *t = &targets->at[targets->n++];
    *t = (struct pb_target){.pid = pid};
    pb_target_label(pid, t->label, sizeof(t->label));
    return 0;
}

static bool is_python(pid_t pid)
{
    struct pb_procinfo info;
    char path[32], name[32], exe[8];

    if (pb_procinfo_read(pid, &info, NULL) < 0)
        return false;
    if (info.python)
        return true;
    /* A process that may not be looked into is not left out for that: it is named where reading it fails. */
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    return readlink(path, exe, sizeof(exe)) < 0 && errno == EACCES &&
           pb_proc_read(pid, "comm", name, sizeof(name)) > 0 && strncmp(name, "python", 6) == 0;
}

/* A worker that was forked and runs no program of its own has its parent's command line. */
static bool is_forked_copy(const struct pb_processes *all, const struct pb_process *p)
{
    const struct pb_process *parent = pb_processes_find(all, p->ppid);
    return parent && strcmp(parent->command, p->command) == 0;
}

/* A launcher (torchrun train.py) has the pattern in its command line too; its workers are what is meant. */
static bool launches(const struct pb_processes *all, const struct pb_process *p, const char *pattern)
{
    for (size_t i = 0; i < all->n; i++)
        if (strstr(all->at[i].command, pattern) && strcmp(all->at[i].command, p->command) != 0 &&
            pb_process_below(all, &all->at[i], p->pid))
            return true;
    return false;
}

static int match_pattern(const struct pb_processes *all, const char *pattern, bool every,
                         struct pb_targets *ret)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < all->n; i++) {
        const struct pb_process *p = &all->at[i];
        if (p->pid == getpid() || !strstr(p->command, pattern))
            continue;
        /* Whoever called us (a shell, a script) has the pattern in its command line as well. */
        if (pb_process_below(all, pb_processes_find(all, getpid()), p->pid) && !is_python(p->pid))
            continue;
        if (launches(all, p, pattern) || (!every && is_forked_copy(all, p)))
            continue;
        r = add(ret, p->pid);
    }
    return r;
}

static int name_candidates(const struct pb_targets *t, const char *pattern, struct pb_err *err)
{
    char list[300] = "", command[41];
    size_t len = 0;

    for (size_t i = 0; i < t->n && len + 60 < sizeof(list); i++) {
        pb_redact_cmdline(t->at[i].pid, command, sizeof(command));
        one_line(command);
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%d (%s)", i ? ", " : "", (int)t->at[i].pid,
                                command);
    }
    return pb_fail(err, -EINVAL, "%zu processes match '%.60s': %s (give a pid, or --all)", t->n, pattern,
                   list);
}

static int resolve_pattern(const char *pattern, bool all, struct pb_targets *ret, struct pb_err *err)
{
    _cleanup_(pb_processes_done) struct pb_processes processes = {0};
    _cleanup_(pb_targets_done) struct pb_targets found = {0};

    int r = pb_processes_read(&processes, err);
    if (r == 0)
        r = match_pattern(&processes, pattern, all, &found);
    if (r < 0)
        return r;
    /* Editors and pagers name the script as well: where Python processes match, the others are not meant. */
    size_t kept = 0;
    for (size_t i = 0; i < found.n; i++)
        if (is_python(found.at[i].pid))
            found.at[kept++] = found.at[i];
    if (kept)
        found.n = kept;
    if (found.n == 0)
        return pb_fail(
            err, -ESRCH,
            "no process has '%.100s' in its command line (probing list shows what could be probed)", pattern);
    if (found.n > 1 && !all)
        return name_candidates(&found, pattern, err);
    *ret = found;
    found = (struct pb_targets){0};
    return 0;
}

/* With --all a pid stands for the Python processes below it: the workers of a launcher; or itself when it has
 * none. */
static int resolve_children(pid_t pid, struct pb_targets *ret, struct pb_err *err)
{
    _cleanup_(pb_processes_done) struct pb_processes processes = {0};

    int r = pb_processes_read(&processes, err);
    for (size_t i = 0; r == 0 && i < processes.n; i++)
        if (pb_process_below(&processes, &processes.at[i], pid) && is_python(processes.at[i].pid))
            r = add(ret, processes.at[i].pid);
    if (r == 0 && ret->n == 0)
        r = add(ret, pid);
    return r;
}

static bool has_dead_run(pid_t pid)
{
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};

    if (pb_runs_scan(&runs, NULL) < 0)
        return false;
    for (size_t i = 0; i < runs.n; i++)
        if (runs.at[i].pid == pid && !runs.at[i].alive)
            return true;
    /* Or somebody recorded it. */
    struct pb_recording recording;
    int n = pb_runs_recordings(pid, 0, geteuid(), &recording, 1);
    if (n)
        close(recording.fd);
    return n;
}

static bool has_archive(const struct pb_ask *ask, pid_t pid)
{
    struct pb_archive_run run;
    return pb_archived_run(ask, pid, &run) == 0;
}

static int resolve_pid(const struct pb_ask *ask, const char *text, bool all, bool dead,
                       struct pb_targets *ret, struct pb_err *err)
{
    char *end;
    long pid = strtol(text, &end, 10);

    if (pid <= 0 || pid > 1 << 22)
        return pb_fail(err, -ESRCH, "there is no process %s", text);
    bool there = kill((pid_t)pid, 0) == 0 || errno == EPERM;
    if (there && all)
        return resolve_children((pid_t)pid, ret, err);
    bool left = !there && (has_dead_run((pid_t)pid) || has_archive(ask, (pid_t)pid));
    if (!there && !left)
        return pb_fail(err, -ESRCH, "there is no process %ld (probing list shows what could be probed)", pid);
    if (left && !dead)
        return pb_fail(err, -ESRCH,
                       "process %ld has ended; what it left can still be read (probing -t %ld tables)", pid,
                       pid);
    int r = add(ret, (pid_t)pid);
    if (r == 0)
        ret->at[0].dead = left;
    return r;
}

int pb_targets_resolve(const struct pb_ask *ask, const char *text, bool all, bool dead,
                       struct pb_targets *ret, struct pb_err *err)
{
    struct pb_targets found = {0};
    const char *colon = strrchr(text, ':');
    int r;

    if (colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1))
        return pb_fail(
            err, -ENOTSUP,
            "%s is on another machine or behind a service, which this release cannot reach yet (give a pid)",
            text);
    if (strspn(text, "0123456789") == strlen(text))
        r = resolve_pid(ask, text, all, dead, &found, err);
    else
        r = resolve_pattern(text, all, &found, err);
    if (r < 0) {
        pb_targets_done(&found);
        return r;
    }
    *ret = found;
    return 0;
}
