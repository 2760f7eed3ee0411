/* archive_parts: see archive_parts.h. */
#include "ask/archive_parts.h"

#include "ask/process_settings.h"
#include "ask/targets.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "control/identity.h"
#include "engine/archive/archive_list.h"
#include "inject/session.h"
#include "remote/procinfo.h"
#include "remote/runs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static void close_part(struct pb_archive_part *part)
{
    if (part->recorder)
        pb_archiver_close(part->recorder);
    if (part->fd >= 0)
        close(part->fd);
    part->recorder = NULL;
    part->fd = -1;
}

void pb_archive_parts_done(struct pb_archive_parts *p)
{
    for (size_t i = 0; i < p->n; i++)
        close_part(&p->at[i]);
    free(p->at);
    p->at = NULL;
    p->n = 0;
}

/* The description of a recording is that of the process which it records. */
static char *describe_recording(const struct pb_archive_parts *p, uint64_t start_time)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    fprintf(out, "pid=%d\nstart_time=%llu\nrecording=1\n", (int)p->pid, (unsigned long long)start_time);
    for (const char *line = p->about; *line;) {
        int n = (int)strcspn(line, "\n");
        if (strncmp(line, "pid=", 4) != 0 && strncmp(line, "start_time=", 11) != 0)
            fprintf(out, "%.*s\n", n, line);
        line += n + (line[n] == '\n');
    }
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* Owns fd on success. recorded: NULL unless it is a recording. */
static int add_part(struct pb_archive_parts *p, int fd, const char *about, const char *recorded,
                    struct pb_err *err)
{
    const struct pb_archiver_options o = {.folder = p->folder,
                                          .arena_fd = fd,
                                          .about = about,
                                          .recorded = recorded,
                                          .compression = p->compression,
                                          .pid = p->pid};
    struct pb_archive_part part = {.fd = fd, .recording = recorded};

    struct pb_archive_part *more = realloc(p->at, (p->n + 1) * sizeof(*more));
    if (!more)
        return pb_fail(err, -ENOMEM, "out of memory");
    p->at = more;
    int r = pb_archive_run_id(fd, part.id);
    if (r < 0)
        return pb_fail(err, r, "the tables of process %d cannot be read: %s", (int)p->pid, strerror(-r));
    r = pb_archiver_open(&o, &part.recorder, err);
    if (r == 0)
        p->at[p->n++] = part;
    return r;
}

/* Fills in a description from /proc for a process that wrote none. */
static void describe_from_proc(const struct pb_procinfo *info, struct pb_run_info *ret)
{
    _cleanup_free_ char *environment = NULL;
    struct pb_identity id = {0};
    struct utsname host;
    char command[1024];
    size_t size;

    ret->dir_fd = -1;
    if (pb_proc_slurp(info->pid, "environ", &environment, &size) == 0)
        pb_identity_read(environment, size, &id);
    if (!id.value[PB_ID_NODE][0] && uname(&host) == 0)
        snprintf(id.value[PB_ID_NODE], sizeof(id.value[PB_ID_NODE]), "%s", host.nodename);
    pb_redact_cmdline(info->pid, command, sizeof(command));
    command[strcspn(command, "\n\\")] = '\0';
    size_t n = (size_t)snprintf(ret->about, sizeof(ret->about), "pid=%d\nstart_time=%llu\ncommand=%s\n",
                                (int)info->pid, (unsigned long long)info->start_time, command);
    for (int i = 0; i < PB_ID_FIELDS && n < sizeof(ret->about); i++)
        if (id.value[i][0] && !strpbrk(id.value[i], "\n\\"))
            n += (size_t)snprintf(ret->about + n, sizeof(ret->about) - n, "%s=%s\n", pb_identity_name(i),
                                  id.value[i]);
}

static int find_dead(struct pb_archive_parts *p, const struct pb_target *target, struct pb_run_info *ret_run,
                     struct pb_err *err)
{
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};
    const struct pb_run_id id = {target->pid, target->start_time, target->program};
    char start[32];

    p->uid = geteuid();
    p->start_time = id.start_time;
    int r = pb_runs_scan(&runs, err);
    if (r < 0)
        return r;
    const struct pb_run_info *run = pb_runs_find_dead(&runs, &id);
    if (!run)
        return -ENOENT;
    *ret_run = *run;
    p->uid = run->uid;
    p->start_time = strtoull(pb_run_get(run, "start_time", start, sizeof(start)), NULL, 10);
    return pb_run_open_arena(run, err);
}

int pb_archive_parts_find(struct pb_archive_parts *p, const struct pb_target *target,
                          struct pb_run_info *ret_run, struct pb_err *err)
{
    struct pb_procinfo info;

    p->pid = target->pid;
    if (target->dead)
        return find_dead(p, target, ret_run, err);
    int r = pb_procinfo_read(target->pid, &info, err);
    if (r < 0)
        return r;
    p->start_time = info.start_time;
    p->uid = info.euid;
    if (pb_run_of(&info, ret_run) < 0)
        describe_from_proc(&info, ret_run);
    return pb_session_open_arena(target->pid, (char[256]){""}, err);
}

int pb_archive_parts_own(struct pb_archive_parts *p, int fd, struct pb_err *err)
{
    int r = add_part(p, fd, p->about, NULL, err);
    if (r < 0)
        close(fd);
    return r;
}

static struct pb_archive_part *find_part(const struct pb_archive_parts *p, int fd)
{
    char id[PB_ARCHIVE_RUN];

    int r = pb_archive_run_id(fd, id);
    for (size_t i = 0; r == 0 && i < p->n; i++)
        if (strcmp(p->at[i].id, id) == 0)
            return &p->at[i];
    return NULL;
}

static int add_recording(struct pb_archive_parts *p, const struct pb_recording *found, struct pb_err *err)
{
    _cleanup_free_ char *about = describe_recording(p, found->start_time);
    char recorded[48];

    if (!about)
        return pb_fail(err, -ENOMEM, "out of memory");
    snprintf(recorded, sizeof(recorded), "%d-%llu", (int)p->pid, (unsigned long long)found->start_time);
    int r = add_part(p, found->fd, about, recorded, err);
    if (r == 0)
        p->at[p->n - 1].ended = !found->alive;
    return r;
}

int pb_archive_parts_look(struct pb_archive_parts *p, struct pb_err *err)
{
    struct pb_recording found[PB_RUNS_RECORDINGS];
    bool seen[PB_RUNS_RECORDINGS] = {0};
    int r = 0;

    int n = pb_runs_recordings(p->pid, p->start_time, p->uid, found, PB_RUNS_RECORDINGS);
    if (n < 0)
        return pb_fail(err, n, "recordings cannot be looked for: %s", strerror(-n));
    for (size_t k = 0; k < p->n; k++) {
        bool alive = false;
        for (int i = 0; i < n; i++)
            if (find_part(p, found[i].fd) == &p->at[k]) {
                seen[i] = true;
                alive = found[i].alive;
            }
        p->at[k].ended = p->at[k].recording && !alive;
    }
    for (int i = 0; i < n; i++) {
        struct pb_err why = {0};
        int added = seen[i] ? -EEXIST : add_recording(p, &found[i], &why);
        if (added < 0)
            close(found[i].fd);
        if (added < 0 && !seen[i] && r == 0) {
            r = added;
            *err = why;
        }
    }
    return r;
}

bool pb_archive_parts_recorded(const struct pb_archive_parts *p)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->at[i].recording && !p->at[i].ended)
            return true;
    return false;
}

int pb_archive_parts_pending(const struct pb_archive_parts *p, unsigned *ret_percent)
{
    int most = 0, r = 0;
    bool any = false;

    *ret_percent = 0;
    for (size_t i = 0; i < p->n; i++) {
        unsigned percent = 0;
        int n = p->at[i].recorder ? pb_archiver_pending(p->at[i].recorder, &percent) : 0;
        if (n < 0) {
            r = n; /* keeps the first failure of a part */
            continue;
        }
        any = true;
        most = n > most ? n : most;
        *ret_percent = percent > *ret_percent ? percent : *ret_percent;
    }
    return any || r == 0 ? most : r;
}

int pb_archive_parts_round(struct pb_archive_parts *p, bool ended,
                           void (*each)(void *arg, const struct pb_archiver_table *table), void *arg,
                           struct pb_err *err)
{
    int r = 0;

    for (size_t i = 0; i < p->n; i++) {
        struct pb_archive_part *part = &p->at[i];
        struct pb_err why = {0};
        bool last = part->recording ? part->ended : ended;
        int one = part->recorder ? pb_archiver_round(part->recorder, last, each, arg, &why) : 0;
        if (one == 0 && part->recording && last)
            close_part(part);
        if (one < 0 && r == 0) {
            r = one;
            *err = why;
        }
    }
    return r;
}
