/* bundle_collect: asks for all parts of an incident's file at once. Each is a task with a deadline
 * (ask/task.h): a rank that hangs costs its own parts only, and they are named. */
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/process.h"
#include "base/program.h"
#include "base/text.h"
#include "cli/bundle/bundle.h"
#include "cli/values.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { AT_ONCE = 8, WORDS = 16, ROOM = 1 << 16 };

/* Parts that a command prints. SQL here is over tables that are made when they are asked for; secrets are
 * masked in them. */
static const struct printed {
    const char *name;
    const char *words[6]; /* %: the path of the part */
    bool job;             /* it is about the whole job anyway */
} printed[] = {
    {"findings.txt", {"diagnose"}, true},
    {"findings.json", {"diagnose", "--json"}, true},
    {"stacks.txt", {"backtrace", "--locals"}, false},
    {"stacks.json", {"backtrace", "--locals", "--json"}, false},
    {"stacks-merged.txt", {"backtrace", "--merge"}, false},
    {"profile.folded", {"flamegraph", "--duration", "1", "-o", "%"}, false},
    {"settings.txt", {"config"}, false},
    {"settings.json", {"config", "--json"}, false},
    {"processes.json", {"query", "--format", "json", "FROM system.process"}, false},
    {"environment.json", {"query", "--format", "json", "FROM system.envs"}, false},
    {"cgroup.json", {"query", "--format", "json", "FROM system.cgroup"}, false},
    {"threads.json", {"query", "--format", "json", "FROM system.threads"}, false},
    {"descriptors.json", {"query", "--format", "json", "FROM system.fds"}, false},
};
enum { PRINTED = sizeof(printed) / sizeof(printed[0]) };

enum part_kind { COMMAND, ROWS, VERSIONS, MACHINE };

struct part {
    enum part_kind kind;
    const struct pb_call *call;
    const struct pb_bundle *b;
    const struct printed *printed;
    const struct pb_target *target;
};

/* The first line of what a command printed on stderr. */
static void read_errors(int fd, char *ret, size_t size)
{
    ssize_t n = pread(fd, ret, size - 1, 0);

    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
    pb_text_clean(ret);
}

/* Fails where it printed nothing; where it printed something and failed, the answer is why. 1: diagnose has
 * found something. */
static int run_command(const struct part *part, struct pb_room *room, struct pb_err *err)
{
    const struct printed *p = part->printed;
    const char *argv[WORDS] = {PB_PROGRAM_SELF, "-t", part->call->target};
    char path[2 * PATH_MAX], errors[2 * PATH_MAX], message[PB_BUNDLE_NOTE] = "";
    size_t n = 3;
    struct stat st;

    snprintf(path, sizeof(path), "%s/%s", part->b->folder, p->name);
    snprintf(errors, sizeof(errors), "%s/.%s.errors", part->b->folder, p->name);
    if (part->call->all && !p->job)
        argv[n++] = "--all";
    bool writes = false;
    for (size_t i = 0; i < 6 && p->words[i]; i++) {
        bool place = strcmp(p->words[i], "%") == 0;
        writes |= place;
        argv[n++] = place ? path : p->words[i];
    }
    _cleanup_close_ int out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    _cleanup_close_ int errors_fd = open(errors, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0 || errors_fd < 0)
        return pb_fail(err, -errno, "%s cannot be written: %s", path, strerror(errno));
    unlink(errors);
    const struct pb_process_plan plan = {.argv = argv,
                                         .in = errors_fd,
                                         .out = writes ? errors_fd : out,
                                         .errors = errors_fd,
                                         .end_with_caller = SIGKILL};
    pid_t pid = pb_process_start(&plan);
    if (pid < 0)
        return pb_fail(err, pid, "the command cannot be started: %s", strerror(-pid));
    int status = pb_process_wait(pid);
    read_errors(errors_fd, message, sizeof(message));
    if (stat(path, &st) < 0 || st.st_size == 0) {
        unlink(path);
        return pb_fail(err, -ENODATA, "%s",
                       message[0] ? pb_err_without_program(message) : "nothing was printed");
    }
    bool failed = status != 0 && status != PB_EXIT_FOUND;
    pb_task_answer(room, failed && message[0] ? pb_room_text(room, pb_err_without_program(message)) : NULL);
    return status == PB_EXIT_FOUND;
}

static int collect_part(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct part *part = arg;

    switch (part->kind) {
    case COMMAND:
        return run_command(part, room, err);
    case ROWS:
        return pb_bundle_put_rows(ask, part->b, part->target, err);
    case VERSIONS:
        return pb_bundle_put_versions(part->b, part->target, err);
    case MACHINE:
        return pb_bundle_put_machine(part->b, err);
    }
    return -EINVAL;
}

static void name_part(const struct part *part, char ret[PATH_MAX])
{
    static const char *const names[] = {[ROWS] = "rows", [VERSIONS] = "versions"};

    if (part->kind == COMMAND)
        snprintf(ret, PATH_MAX, "%s", part->printed->name);
    else if (part->kind == MACHINE)
        snprintf(ret, PATH_MAX, "machine");
    else
        snprintf(ret, PATH_MAX, "%s of %s", names[part->kind], part->target->label);
}

/* What failed is left out, and named. */
static int note_results(struct pb_bundle *b, const struct part *parts, const struct pb_task *tasks, size_t n)
{
    char name[PATH_MAX];
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i++) {
        name_part(&parts[i], name);
        b->found |= tasks[i].result == 1;
        const char *message = tasks[i].result >= 0 ? pb_task_answer_of(&tasks[i]) : NULL;
        if (tasks[i].result < 0)
            r = pb_bundle_leave_out(b, name, pb_err_text(&tasks[i].err, tasks[i].result));
        else if (message)
            r = pb_bundle_note(b, name, message);
    }
    return r;
}

static size_t list_parts(const struct pb_call *call, const struct pb_bundle *b, struct part *ret)
{
    size_t n = 0;

    for (size_t i = 0; i < PRINTED; i++)
        ret[n++] = (struct part){.kind = COMMAND, .call = call, .b = b, .printed = &printed[i]};
    ret[n++] = (struct part){.kind = MACHINE, .b = b};
    for (size_t i = 0; i < b->nprocesses; i++) {
        const struct pb_target *target = &b->processes[i].target;
        ret[n++] = (struct part){.kind = ROWS, .b = b, .target = target};
        if (!target->dead)
            ret[n++] = (struct part){.kind = VERSIONS, .b = b, .target = target};
    }
    return n;
}

int pb_bundle_collect(const struct pb_call *call, struct pb_bundle *b, struct pb_err *err)
{
    size_t most = PRINTED + 1 + 2 * b->nprocesses;
    _cleanup_free_ struct part *parts = calloc(most, sizeof(*parts));
    _cleanup_free_ struct pb_task *tasks = calloc(most, sizeof(*tasks));
    struct pb_ask ask = call->ask;

    if (!parts || !tasks)
        return pb_fail(err, -ENOMEM, "out of memory");
    ask.note = NULL; /* commands say what is wrong, for the manifest */
    size_t n = list_parts(call, b, parts);
    for (size_t i = 0; i < n; i++)
        tasks[i] = (struct pb_task){.work = collect_part,
                                    .arg = &parts[i],
                                    .pid = parts[i].target ? parts[i].target->pid : 0,
                                    .limit_ms = pb_call_ms(call, "timeout"),
                                    .room_size = ROOM};
    pb_tasks_run(&ask, tasks, n, AT_ONCE);
    int r = note_results(b, parts, tasks, n);
    for (size_t i = 0; i < n; i++)
        if (tasks[i].result >= 0)
            pb_room_free(tasks[i].room);
    return r < 0 ? pb_fail(err, r, "out of memory") : 0;
}
