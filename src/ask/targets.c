/* targets: see targets.h. */
#include "ask/targets.h"

#include "ask/archived.h"
#include "ask/ask.h"
#include "ask/process_settings.h"
#include "ask/processes.h"
#include "ask/running.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "base/text.h"
#include "control/identity.h"
#include "remote/procinfo.h"
#include "remote/runs.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LIMIT_MS = 60000,    /* for the whole question: several processes of the machine may hang, each taking: */
    ONE_LIMIT_MS = 1000, /* for one process; normally microseconds */
};

void pb_targets_done(struct pb_targets *targets)
{
    free(targets->at);
    *targets = (struct pb_targets){0};
}

int32_t pb_rank_parse(const char *text)
{
    char *end;
    long rank = strtol(text, &end, 10);

    return *text >= '0' && *text <= '9' && !*end && rank <= INT32_MAX ? (int32_t)rank : -1;
}

int32_t pb_target_rank(const struct pb_target *t)
{
    return t->labelled_by == PB_LABEL_BY_RANK ? t->rank : -1;
}

/* text: as the environment has it, a number or not. */
static void label_by_rank(struct pb_target *t, const char *text)
{
    t->labelled_by = PB_LABEL_BY_RANK;
    t->rank = pb_rank_parse(text);
    snprintf(t->label, sizeof(t->label), "rank %.*s", PB_LABEL_MAX - 6, text);
    pb_text_clean(t->label);
}

void pb_target_set_rank(struct pb_target *t, int32_t rank)
{
    t->labelled_by = PB_LABEL_BY_RANK;
    t->rank = rank;
    snprintf(t->label, sizeof(t->label), "rank %d", rank);
}

static void label_by_pid(struct pb_target *t)
{
    t->labelled_by = PB_LABEL_BY_PID;
    snprintf(t->label, sizeof(t->label), "pid %d", (int)t->pid);
}

static bool read_rank(pid_t pid, struct pb_identity *ret)
{
    _cleanup_free_ char *environment = NULL;
    size_t len;

    if (pb_proc_slurp(pb_proc_living(pid), "environ", &environment, &len) < 0)
        return false;
    pb_identity_read(environment, len, ret);
    return ret->value[PB_ID_RANK][0];
}

/* Python's multiprocessing has started it: its command line is its parent's, or one that only that writes. */
static bool is_multiprocessing(pid_t pid, pid_t parent)
{
    static const char words[] = "from multiprocessing.";
    _cleanup_free_ char *own = NULL, *other = NULL;
    size_t n, m;

    if (pb_proc_slurp(pb_proc_living(pid), "cmdline", &own, &n) < 0 ||
        pb_proc_slurp(pb_proc_living(parent), "cmdline", &other, &m) < 0)
        return false;
    return (n == m && memcmp(own, other, n) == 0) || memmem(own, n, words, sizeof(words) - 1);
}

void pb_target_label(struct pb_target *t)
{
    struct pb_identity id, parents;
    struct pb_procinfo info;

    label_by_pid(t);
    if (!read_rank(t->pid, &id))
        return;
    const char *rank = id.value[PB_ID_RANK];
    label_by_rank(t, rank);
    /* A worker of a rank's data loader has its environment, but is not the rank. */
    if (pb_procinfo_read(t->pid, &info, NULL) < 0 || !read_rank(info.ppid, &parents) ||
        strcmp(rank, parents.value[PB_ID_RANK]) != 0 || !is_multiprocessing(t->pid, info.ppid))
        return;
    t->labelled_by = PB_LABEL_BY_NAME;
    snprintf(t->label, sizeof(t->label), "rank %.10s pid %d", rank, (int)t->pid);
    pb_text_clean(t->label);
}

static int add_target(struct pb_targets *targets, pid_t pid)
{
    struct pb_target *more = realloc(targets->at, (targets->n + 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    targets->at = more;
    struct pb_target *t = &targets->at[targets->n++];
    *t = (struct pb_target){.pid = pid};
    label_by_pid(t);
    return 0;
}

/* The label of a single target is read here: the question as a whole has a deadline. */
static int add_labelled(struct pb_targets *targets, pid_t pid)
{
    int r = add_target(targets, pid);

    if (r == 0)
        pb_target_label(&targets->at[targets->n - 1]);
    return r;
}

static bool is_python(pid_t pid)
{
    struct pb_procinfo info;
    char path[32], name[32], exe[8];

    if (pb_procinfo_read(pid, &info, NULL) < 0)
        return false;
    if (info.python)
        return true;
    /* A process that may not be read stays in the list: its error is reported when it is read. */
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    return readlink(path, exe, sizeof(exe)) < 0 && errno == EACCES &&
           pb_proc_read(pid, "comm", name, sizeof(name)) > 0 && strncmp(name, "python", 6) == 0;
}

/* What the child has found of one target. */
struct target_description {
    bool python;
    struct pb_target target; /* with its label */
};

static int describe_one(const struct pb_ask *ask, void *arg, size_t i, struct pb_room *room, void **ret)
{
    const struct pb_targets *targets = arg;
    struct target_description *d = pb_room_alloc(room, sizeof(*d));

    if (!d)
        return -ENOSPC;
    d->python = is_python(targets->at[i].pid);
    d->target = targets->at[i];
    pb_target_label(&d->target);
    *ret = d;
    return 0;
}

/* Labels all of them, and keeps those that are Python; all where none is. One that hangs stays: its error is
 * reported when it is read. */
static int keep_python(const struct pb_ask *ask, struct pb_targets *targets, bool *ret_any)
{
    struct pb_each each = {.work = describe_one,
                           .arg = targets,
                           .n = targets->n,
                           .limit_ms = ONE_LIMIT_MS,
                           .room_size = targets->n * 2 * sizeof(struct target_description)};
    size_t kept = 0;

    int r = pb_each_run(ask, &each);
    for (size_t i = 0; r == 0 && i < targets->n; i++) {
        const struct target_description *d = each.at[i].answer;
        if (d)
            targets->at[i] = d->target;
        if (!d || d->python)
            targets->at[kept++] = targets->at[i];
    }
    *ret_any = kept;
    if (kept)
        targets->n = kept;
    pb_each_done(&each);
    return r;
}

void pb_targets_label(const struct pb_ask *ask, struct pb_targets *targets)
{
    if (targets->n != 1 || !targets->at[0].unlabelled)
        return;
    struct pb_each each = {.work = describe_one,
                           .arg = targets,
                           .n = 1,
                           .limit_ms = ONE_LIMIT_MS,
                           .room_size = 2 * sizeof(struct target_description)};
    if (pb_each_run(ask, &each) == 0 && each.at[0].answer)
        targets->at[0] = ((struct target_description *)each.at[0].answer)->target;
    targets->at[0].unlabelled = false;
    pb_each_done(&each);
}

/* A forked worker that has not called exec has its parent's command line. */
static bool is_forked_copy(const struct pb_processes *all, const struct pb_process *p)
{
    const struct pb_process *parent = pb_processes_find(all, p->ppid);
    return parent && strcmp(parent->command, p->command) == 0;
}

/* A launcher (torchrun train.py) has the pattern in its command line too, but its workers are meant. */
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
        /* The process that started us (a shell, a script) has the pattern in its command line too. */
        if (pb_process_below(all, pb_processes_find(all, getpid()), p->pid) && !is_python(p->pid))
            continue;
        if (launches(all, p, pattern) || (!every && is_forked_copy(all, p)))
            continue;
        r = add_target(ret, p->pid);
    }
    return r;
}

static int name_candidates(const struct pb_targets *t, const char *pattern, struct pb_err *err)
{
    char list[300] = "", command[41];
    size_t len = 0;

    for (size_t i = 0; i < t->n && len + 60 < sizeof(list); i++) {
        pb_redact_cmdline(t->at[i].pid, command, sizeof(command));
        pb_text_clean(command);
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%d (%s)", i ? ", " : "", (int)t->at[i].pid,
                                command);
    }
    return pb_fail(err, -EINVAL, "%zu processes match '%.60s': %s (give a pid, or --all)", t->n, pattern,
                   list);
}

static int resolve_pattern(const struct pb_ask *ask, const char *pattern, bool all, struct pb_targets *ret,
                           struct pb_err *err)
{
    _cleanup_(pb_processes_done) struct pb_processes processes = {0};
    _cleanup_(pb_targets_done) struct pb_targets found = {0};
    bool any;

    int r = pb_processes_read(ask, &processes, err);
    if (r == 0)
        r = match_pattern(&processes, pattern, all, &found);
    /* Editors and pagers name the script as well: where Python processes match, others are dropped. */
    if (r == 0)
        r = keep_python(ask, &found, &any);
    if (r < 0)
        return r;
    if (found.n == 0)
        return pb_fail(err, -ESRCH,
                       "no process has '%.100s' in its command line (probing list shows what can be probed)",
                       pattern);
    if (found.n > 1 && !all)
        return name_candidates(&found, pattern, err);
    *ret = found;
    found = (struct pb_targets){0};
    return 0;
}

/* A launcher (torchrun) has no RANK in its environment, but its children have one. */
static void leave_launcher(struct pb_targets *targets, pid_t pid)
{
    size_t kept = 0;
    bool ranks = false;

    for (size_t i = 0; i < targets->n; i++)
        ranks |= targets->at[i].labelled_by == PB_LABEL_BY_RANK;
    for (size_t i = 0; i < targets->n; i++)
        if (!ranks || targets->at[i].pid != pid || targets->at[i].labelled_by == PB_LABEL_BY_RANK)
            targets->at[kept++] = targets->at[i];
    targets->n = kept;
}

/* With --all a pid stands for itself and the Python processes below it, or for those alone where it is their
 * launcher. */
static int resolve_children(const struct pb_ask *ask, pid_t pid, struct pb_targets *ret, struct pb_err *err)
{
    _cleanup_(pb_processes_done) struct pb_processes processes = {0};

    int r = pb_processes_read(ask, &processes, err);
    if (r == 0)
        r = add_target(ret, pid);
    for (size_t i = 0; r == 0 && i < processes.n; i++)
        if (pb_process_below(&processes, &processes.at[i], pid))
            r = add_target(ret, processes.at[i].pid);
    bool any = false;
    if (r == 0)
        r = keep_python(ask, ret, &any);
    if (r == 0 && any)
        leave_launcher(ret, pid);
    if (r == 0 && !any) {
        ret->n = 0;
        r = add_labelled(ret, pid);
    }
    return r;
}

/* The ended processes with one pid: newest first, runs before recordings before archives. */
struct ended {
    struct pb_run_id at[16];
    size_t n;
};
enum { ENDED_MAX = sizeof(((struct ended *)0)->at) / sizeof(struct pb_run_id) };

static void add_ended(struct ended *to, const struct pb_run_id *id)
{
    for (size_t i = 0; i < to->n; i++)
        if (to->at[i].start_time == id->start_time)
            return;
    if (to->n < ENDED_MAX)
        to->at[to->n++] = *id;
}

static bool is_there(pid_t pid)
{
    return kill(pid, 0) == 0 || errno == EPERM;
}

bool pb_targets_is_running(const struct pb_run_id *id)
{
    struct pb_procinfo info;
    return is_there(id->pid) && !pb_proc_is_zombie(id->pid) && pb_procinfo_identify(id->pid, &info) == 0 &&
           info.start_time == id->start_time;
}

static void find_dead_runs(pid_t pid, struct ended *to)
{
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};

    if (pb_runs_scan(&runs, NULL) < 0)
        return;
    for (size_t i = 0; i < runs.n; i++)
        /* What a detach left in a process that runs is found by the pid itself. */
        if (runs.at[i].id.pid == pid && !runs.at[i].alive && to->n < ENDED_MAX &&
            !(runs.at[i].detached && pb_targets_is_running(&runs.at[i].id)))
            to->at[to->n++] = runs.at[i].id;
}

static void find_recorded(pid_t pid, struct ended *to)
{
    struct pb_recording found[PB_RUNS_RECORDINGS];

    int n = pb_runs_recordings(pid, 0, geteuid(), found, PB_RUNS_RECORDINGS);
    for (int i = 0; i < n; i++) {
        add_ended(to, &(struct pb_run_id){pid, found[i].start_time, 0});
        close(found[i].fd);
    }
}

static void find_archived(const struct pb_ask *ask, pid_t pid, struct ended *to)
{
    uint64_t starts[ENDED_MAX];

    size_t n = pb_archived_starts(ask, pid, starts, ENDED_MAX);
    for (size_t i = 0; i < n; i++)
        add_ended(to, &(struct pb_run_id){pid, starts[i], 0});
}

/* Notes which of several processes with the same pid was taken, and the names of the others. from: the first
 * of the others. */
static void note_others(const struct pb_ask *ask, const char *taken, const struct ended *ended, size_t from)
{
    enum { NAMED = 3 };
    char names[NAMED * (PB_RUN_ID_SIZE + 5)] = "", id[PB_RUN_ID_SIZE];
    size_t others = ended->n - from, len = 0;

    if (ended->n <= from)
        return;
    for (size_t i = 0; i < others && i < NAMED; i++)
        len += (size_t)snprintf(names + len, sizeof(names) - len, "%s-t %s", i ? ", " : "",
                                pb_run_id_text(&ended->at[from + i], id));
    pb_ask_note(ask, "%s; %zu%s ended run%s had the same pid: %s%s (probing list --dead)", taken, others,
                ended->n == ENDED_MAX ? " or more" : "", others == 1 ? "" : "s", names,
                others > NAMED ? ", ..." : "");
}

static int add_dead(struct pb_targets *ret, const struct pb_run_id *id)
{
    int r = add_target(ret, id->pid);

    if (r < 0)
        return r;
    struct pb_target *t = &ret->at[ret->n - 1];
    t->dead = true;
    t->start_time = id->start_time;
    t->program = id->program;
    return 0; /* labelled by pid: that may be another process's by now, so no environment is read */
}

static int refuse_dead(const struct pb_run_id *id, struct pb_err *err)
{
    char text[PB_RUN_ID_SIZE];

    return pb_fail(err, -ESRCH, "process %d has ended; what it left can still be read (probing -t %s tables)",
                   (int)id->pid, pb_run_id_text(id, text));
}

static int resolve_live(const struct pb_ask *ask, pid_t pid, bool all, bool dead, struct pb_targets *ret,
                        struct pb_err *err)
{
    struct ended ended = {0};
    char taken[64];

    if (all)
        return resolve_children(ask, pid, ret, err);
    int r = add_labelled(ret, pid);
    /* The archive is not searched here: it may be large, and the process runs. */
    if (r == 0 && dead) {
        find_dead_runs(pid, &ended);
        snprintf(taken, sizeof(taken), "process %d, which runs, was taken", (int)pid);
        note_others(ask, taken, &ended, 0);
    }
    return r;
}

/* A process that has ended and that its parent has not waited for: what it left can be read. */
static bool is_left_by_zombie(pid_t pid, const struct pb_run_id *id)
{
    struct pb_procinfo info;
    return pb_proc_is_zombie(pid) && pb_procinfo_identify(pid, &info) == 0 &&
           info.start_time == id->start_time;
}

static int resolve_pid(const struct pb_ask *ask, const char *text, bool all, bool dead,
                       struct pb_targets *ret, struct pb_err *err)
{
    struct ended ended = {0};
    char *end, taken[PB_RUN_ID_SIZE + 32], id[PB_RUN_ID_SIZE];
    long pid = strtol(text, &end, 10);

    if (pid <= 0 || pid > 1 << 22)
        return pb_fail(err, -ESRCH, "there is no process %s", text);
    bool there = is_there((pid_t)pid);
    if (there && !pb_proc_is_zombie((pid_t)pid))
        return resolve_live(ask, (pid_t)pid, all, dead, ret, err);
    find_dead_runs((pid_t)pid, &ended);
    find_recorded((pid_t)pid, &ended);
    find_archived(ask, (pid_t)pid, &ended);
    if (there && !(ended.n && is_left_by_zombie((pid_t)pid, &ended.at[0])))
        return resolve_live(ask, (pid_t)pid, all, dead, ret, err);
    if (ended.n == 0)
        return pb_fail(err, -ESRCH, "there is no process %ld (probing list shows what can be probed)", pid);
    if (!dead)
        return refuse_dead(&ended.at[0], err);
    snprintf(taken, sizeof(taken), "the newest, %s, was taken", pb_run_id_text(&ended.at[0], id));
    note_others(ask, taken, &ended, 1);
    return add_dead(ret, &ended.at[0]);
}

static int resolve_id(const struct pb_ask *ask, const struct pb_run_id *id, const char *text, bool all,
                      bool dead, struct pb_targets *ret, struct pb_err *err)
{
    struct ended ended = {0};

    /* A running process may have left the run of an earlier program under the same id. */
    find_dead_runs(id->pid, &ended);
    bool found = false;
    for (size_t i = 0; i < ended.n && !found; i++)
        found = ended.at[i].start_time == id->start_time && ended.at[i].program == id->program;
    if (!found && pb_targets_is_running(id))
        return all ? resolve_children(ask, id->pid, ret, err) : add_labelled(ret, id->pid);
    ended.n = 0;
    find_recorded(id->pid, &ended);
    find_archived(ask, id->pid, &ended);
    for (size_t i = 0; i < ended.n && !found; i++)
        found = ended.at[i].start_time == id->start_time && id->program == 0;
    if (!found)
        return pb_fail(err, -ESRCH, "there is no run %.40s (probing list --dead shows them)", text);
    return dead ? add_dead(ret, id) : refuse_dead(id, err);
}

struct resolving {
    const char *text;
    bool all, dead;
};

/* Runs in a child. The answer is the array, its length the result. */
static int resolve_in_child(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct resolving *q = arg;
    _cleanup_(pb_targets_done) struct pb_targets found = {0};
    struct pb_run_id id;
    int r;

    if (strspn(q->text, "0123456789") == strlen(q->text))
        r = resolve_pid(ask, q->text, q->all, q->dead, &found, err);
    else if (pb_run_id_parse(q->text, &id) == 0)
        r = resolve_id(ask, &id, q->text, q->all, q->dead, &found, err);
    else
        r = resolve_pattern(ask, q->text, q->all, &found, err);
    if (r < 0)
        return r;
    void *answer = pb_room_copy(room, found.at, found.n * sizeof(*found.at));
    pb_task_answer(room, answer);
    return answer ? (int)found.n : pb_fail(err, -ENOMEM, "out of memory");
}

/* A single process by its pid: reads nothing that may block. */
static bool resolve_at_once(const char *text, struct pb_targets *ret)
{
    long pid = strspn(text, "0123456789") == strlen(text) ? strtol(text, NULL, 10) : 0;

    *ret = (struct pb_targets){0};
    if (pid <= 0 || pid > 1 << 22 || !is_there((pid_t)pid) || add_target(ret, (pid_t)pid) < 0)
        return false;
    ret->at[0].unlabelled = true;
    return true;
}

int pb_targets_resolve(const struct pb_ask *ask, const char *text, bool all, bool dead,
                       struct pb_targets *ret, struct pb_err *err)
{
    struct resolving question = {text, all, dead};
    struct pb_task task = {.work = resolve_in_child,
                           .arg = &question,
                           .limit_ms = LIMIT_MS,
                           .room_size = 64 * sizeof(struct pb_target) << 10};

    if (!all && !dead && resolve_at_once(text, ret))
        return 0;
    int r = pb_task_run(ask, &task, err);
    if (r < 0)
        return r;
    struct pb_target *at = calloc((size_t)r + 1, sizeof(*at));
    if (at) {
        memcpy(at, pb_task_answer_of(&task), (size_t)r * sizeof(*at));
        *ret = (struct pb_targets){.at = at, .n = (size_t)r};
    }
    pb_room_free(task.room);
    return at ? 0 : pb_fail(err, -ENOMEM, "out of memory");
}

int pb_targets_probed(const struct pb_ask *ask, struct pb_targets *ret, struct pb_err *err)
{
    _cleanup_(pb_running_done) struct pb_running_list running = {0};
    struct pb_targets found = {.probed = true};

    int r = pb_running_read(ask, &running, err);
    for (size_t i = 0; r == 0 && i < running.n; i++) {
        const struct pb_running *p = &running.at[i];
        if (!p->probed)
            continue;
        r = add_target(&found, p->pid);
        if (r == 0 && p->rank[0])
            label_by_rank(&found.at[found.n - 1], p->rank);
    }
    if (r < 0) {
        pb_targets_done(&found);
        return r;
    }
    *ret = found;
    return 0;
}
