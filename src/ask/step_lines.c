/* step_lines: see step_lines.h. */
#include "ask/step_lines.h"

#include "ask/few.h"
#include "ask/sources.h"
#include "ask/stacks.h"
#include "ask/task.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOOKS = 50, PAUSE_MS = 20, LIMIT_MS = 10000, LINES = 32, LEAST_HITS = 10 };
#define WORTH_PERCENT 5 /* less of the steps than that needs no line */

/* Files whose frames are torch's phases: what they call belongs to the phase. */
static const char *const phases[] = {"/torch/nn/modules/module.py", "/torch/autograd/", "/torch/_tensor.py",
                                     "/torch/optim/", "/torch/utils/data/"};
enum { NPHASES = sizeof(phases) / sizeof(phases[0]) }; /* the last one is the data loader */

/* The thread that stepped last, and how much of its steps is in no phase, and in the data loader. */
static const char sql[] =
    "WITH last AS (SELECT * FROM python.torch_step WHERE coalesce(kind, 'train') = 'train'"
    " ORDER BY timestamp DESC LIMIT 200)"
    " SELECT arg_max(thread_id, timestamp), 100 * (1 - sum(data_ms + forward_ms + backward_ms + optimizer_ms)"
    " / sum(duration_ms)), 100 * sum(data_ms) / sum(duration_ms) FROM last";

struct code_question {
    struct pb_target target;
    enum pb_own_part part;
};

struct tally {
    const struct pb_py_code *code[LINES];
    int line[LINES];
    unsigned hits[LINES], storage[LINES], locks[LINES], n;
};

static bool is_in_part(const struct pb_shown_thread *t, enum pb_own_part part)
{
    size_t first = part == PB_OWN_DATA ? NPHASES - 1 : 0;
    bool found = false;

    for (size_t i = 0; i < t->nframes && !found; i++)
        for (size_t k = first; k < NPHASES && !found; k++)
            found = strstr(t->frames[i].code->file, phases[k]);
    return found == (part == PB_OWN_DATA);
}

/* In a call for a file, and not for a socket or pipe; or where the kernel waits for a device, as for a page
 * of a mapped file. Who starts a child, or asks a driver, is in state D for another reason. */
static bool is_at_storage(const struct pb_shown_thread *t, pid_t pid)
{
    static const char *const syncs[] = {"fsync", "fdatasync", "sync_file_range", "msync", "syncfs"};
    static const char *const moves[] = {"read", "write", "pread64", "pwrite64", "readv", "writev"};
    const char *call = t->off_cpu && t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;
    static const char *const others[] = {"vfork", "clone", "clone3", "ioctl"};
    char path[48], link[64];

    for (size_t i = 0; call && i < sizeof(others) / sizeof(others[0]); i++)
        if (strcmp(call, others[i]) == 0)
            return false;
    if (t->native.state == 'D')
        return true;
    for (size_t i = 0; call && i < sizeof(syncs) / sizeof(syncs[0]); i++)
        if (strcmp(call, syncs[i]) == 0)
            return true;
    for (size_t i = 0; call && i < sizeof(moves) / sizeof(moves[0]); i++)
        if (strcmp(call, moves[i]) == 0) {
            snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, (int)t->syscall_args[0]);
            return readlink(path, link, sizeof(link)) > 0 && link[0] == '/' && strncmp(link, "/dev/", 5) != 0;
        }
    return false;
}

static bool is_at_file_lock(const struct pb_shown_thread *t)
{
    const char *call = t->off_cpu && t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;

    return call && (strcmp(call, "flock") == 0 ||
                    (strcmp(call, "fcntl") == 0 &&
                     (t->syscall_args[1] == F_SETLKW || t->syscall_args[1] == F_OFD_SETLKW)));
}

/* Frame 0 is the innermost. */
static void count_line(struct tally *to, const struct pb_shown_thread *t, pid_t pid)
{
    const struct pb_shown_frame *own = pb_stacks_own_frame(t);
    unsigned k = 0;

    if (!own)
        return;
    while (k < to->n && (strcmp(to->code[k]->file, own->code->file) != 0 || to->line[k] != own->line))
        k++;
    if (k == LINES)
        return;
    if (k == to->n) {
        to->n++;
        to->code[k] = own->code;
        to->line[k] = own->line;
    }
    to->hits[k]++;
    to->storage[k] += is_at_storage(t, pid);
    to->locks[k] += is_at_file_lock(t);
}

static int look(struct pb_stacks *s, pid_t tid, enum pb_own_part part, struct tally *to,
                struct pb_own_code *ret, struct pb_err *err)
{
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    const struct pb_stacks_options options = {0};
    int r = 0;

    for (int i = 0; r == 0 && i < LOOKS; i++) {
        nanosleep(&pause, NULL);
        r = pb_stacks_take(s, &options, err);
        for (size_t k = 0; r == 0 && k < s->n; k++) {
            const struct pb_shown_thread *t = &s->threads[k];
            if (t->native.tid != tid || !t->nframes)
                continue;
            ret->looks++;
            if (is_in_part(t, part)) {
                ret->outside++;
                count_line(to, t, s->pid);
            }
        }
    }
    return r;
}

static void put_source(struct pb_stacks *s, struct pb_own_code *ret)
{
    struct pb_sources *sources = pb_sources_new(s);
    int n = 0;
    const char *line = sources ? pb_sources_line(sources, ret->file, ret->line, &n) : NULL;

    if (line)
        snprintf(ret->source, sizeof(ret->source), "%.*s", n, line);
    pb_sources_free(sources);
}

static int find_line(const struct pb_ask *ask, const struct code_question *question, pid_t tid,
                     struct pb_own_code *ret, struct pb_err *err)
{
    const struct pb_stacks_options options = {0};
    struct tally tally = {0};
    struct pb_stacks s;
    unsigned best = 0;

    int r = pb_stacks_open(ask, &question->target, &options, &s, err);
    if (r < 0)
        return r;
    r = look(&s, tid, question->part, &tally, ret, err);
    for (unsigned k = 1; k < tally.n; k++)
        best = tally.hits[k] > tally.hits[best] ? k : best;
    if (r == 0 && tally.n) {
        snprintf(ret->function, sizeof(ret->function), "%s", tally.code[best]->qualname);
        snprintf(ret->file, sizeof(ret->file), "%s", tally.code[best]->file);
        ret->line = tally.line[best];
        ret->hits = tally.hits[best];
        ret->storage = tally.storage[best];
        ret->locks = tally.locks[best];
        put_source(&s, ret);
    }
    pb_stacks_done(&s);
    return r < 0 ? r : tally.n ? 0 : -ENODATA;
}

/* Runs in a child. */
static int answer(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    _cleanup_(pb_query_sources_done) struct pb_query_sources sources = {0};
    _cleanup_free_ struct pb_few *few = calloc(1, sizeof(*few));
    struct pb_own_code found = {0};
    struct code_question question = *(const struct code_question *)arg;

    int r = few ? 0 : pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = pb_sources_open(ask, &(struct pb_targets){.at = &question.target, .n = 1}, &sources, err);
    if (r == 0)
        r = pb_few_ask(&sources, sql, few, err);
    if (r == 0 && !(pb_few_number(few, 0, question.part == PB_OWN_DATA ? 2 : 1) >= WORTH_PERCENT))
        r = -ENODATA;
    if (r == 0)
        r = find_line(ask, &question, (pid_t)pb_few_count(few, 0, 0), &found, err);
    if (r < 0)
        return r;
    struct pb_own_code *copy = pb_room_copy(room, &found, sizeof(found));
    pb_task_answer(room, copy);
    return copy ? 0 : pb_fail(err, -ENOMEM, "out of memory");
}

bool pb_own_code_is_mostly(const struct pb_own_code *code, unsigned hits)
{
    return code->hits >= LEAST_HITS && code->hits * 3 >= code->outside && hits * 2 >= code->hits;
}

int pb_own_code_ask(const struct pb_ask *ask, const struct pb_target *target, enum pb_own_part part,
                    struct pb_own_code *ret, struct pb_err *err)
{
    struct code_question question = {*target, part};
    struct pb_task task = {.work = answer, .arg = &question, .pid = target->pid, .limit_ms = LIMIT_MS};

    return pb_task_fetch(ask, &task, ret, sizeof(*ret), err);
}
