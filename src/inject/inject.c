/* inject: see inject.h. This file: the checks that come first, and the retry when the process execs
 * meanwhile. load.h has the injection by ptrace. */
#include "inject/inject.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "base/retry.h"
#include "inject/doctor.h"
#include "inject/load.h"
#include "inject/remote_debug.h"

enum {
    DEFAULT_TIMEOUT_MS = 10000,
    MAX_OPTIONS = PB_STUB_OPTIONS - 1,
};

/* How long a process may look like one that is starting before that is reported as an error. */
#define STARTING PB_NS_PER_S

static void add_stats(const struct pb_hold_stats *stats, struct pb_inject_result *ret)
{
    ret->stopped_ns += stats->total_ns;
    if (stats->longest_ns > ret->longest_ns)
        ret->longest_ns = stats->longest_ns;
    ret->unsafe_looks += stats->unsafe_looks;
    ret->unsafe_rounds += stats->unsafe_rounds;
    ret->process_stopped = stats->process_stopped;
}

static int by_ptrace(struct pb_load *l, const struct pb_procinfo *info, const struct pb_image *image,
                     struct pb_inject_result *ret, struct pb_err *err)
{
    int r = pb_inject_target_open(info, image, &l->target, err);
    if (r == 0)
        r = pb_load_run(l, ret, err);
    add_stats(&l->stats, ret);
    return r;
}

/* The first check that fails, or NULL. */
static const struct pb_check *first_failure(const struct pb_check *checks, int n)
{
    for (int i = 0; i < n; i++)
        if (checks[i].state == PB_CHECK_FAIL)
            return &checks[i];
    return NULL;
}

/* One attempt. image.mem is -1 where the image may not be opened. young: a program that is starting may have
 * no C library yet. -ESTALE: try again. */
static int inject_once(const struct pb_inject_request *req, uint64_t deadline, const struct pb_image *image,
                       bool young, struct pb_inject_result *ret, struct pb_err *err)
{
    struct pb_check checks[PB_CHECKS_MAX];
    struct pb_procinfo info;
    int r = pb_procinfo_read(req->pid, &info, err);
    if (r < 0)
        return r;
    info.pid = info.living; /* from here on everything goes through a living thread */
    if (pb_image_is_borrowed(info.pid, info.ppid))
        return pb_fail(err, -ESTALE,
                       "process %d still runs in the memory of its parent, process %d (vfork before exec)",
                       info.pid, info.ppid);
    int n = pb_inject_check_info(&info, checks, PB_CHECKS_MAX);
    const struct pb_check *failure = first_failure(checks, n);
    if (failure && info.libc == PB_LIBC_NONE && young && pb_inject_target_has_loader(info.pid))
        return -ESTALE;
    /* Remote debugging can replace ptrace only where ptrace itself is refused. */
    bool refused = failure && (strcmp(failure->name, "tracer") == 0 || strcmp(failure->name, "ptrace") == 0);
    if (failure && !(refused && pb_remote_debug_offered(req->pid)))
        return pb_fail(err, failure->error, "%s%s%s%s", failure->found, failure->remedy[0] ? " (" : "",
                       failure->remedy, failure->remedy[0] ? ")" : "");

    _cleanup_(pb_load_free) struct pb_load *s = aligned_alloc(_Alignof(struct pb_load), sizeof(*s));
    if (!s)
        return -ENOMEM;
    memset(s, 0, sizeof(*s));
    s->req = req;
    s->place.dir = s->place.root = -1;
    s->deadline = deadline;
    r = pb_agent_file_open(req->agent_dir, info.libc, &s->agent, err);
    if (r < 0)
        return r;
    if (!refused && image->mem < 0)
        return pb_fail(err, -EACCES, "permission denied: the memory of process %d cannot be opened",
                       info.pid);
    if (!refused)
        return by_ptrace(s, &info, image, ret, err);
    ret->by_remote_debug = true;
    return pb_remote_debug_load(&info, &s->agent, req->options, s->deadline, &ret->status_address, err);
}

/* The process exists but has no memory to read: during an exec all threads but one end. */
static bool is_in_exec(pid_t pid)
{
    struct pb_procinfo info;
    return pb_procinfo_read(pid, &info, NULL) == 0 && (info.threads > 1 || !strchr("ZX", info.state));
}

/* Whether the failure only means that the process is about to run another program: a thread that vanished, an
 * address that changed. */
static bool is_starting_program(pid_t pid, const struct pb_image *image, int failure, bool young)
{
    int r = image->mem < 0 ? 0 : pb_image_check(image, pid);
    return failure == -ESTALE || r == -ESTALE ||
           (young && (failure == -ESRCH || r == -ESRCH) && is_in_exec(pid));
}

/* Tries again when the process execs meanwhile (a shell's child that starts its program), and when this tool
 * got no CPU for so long that our threads in the process stopped waiting for it. */
static int inject_with_retry(const struct pb_inject_request *req, struct pb_inject_result *ret,
                             struct pb_err *err)
{
    uint64_t start = pb_now_ns();
    uint64_t deadline = start + (req->timeout_ms ? req->timeout_ms : DEFAULT_TIMEOUT_MS) * PB_NS_PER_MS;
    struct pb_retry wait = pb_retry_until(deadline, PB_NS_PER_MS / 2, PB_NS_PER_MS / 2);

    for (;;) {
        struct pb_image image = {.mem = -1};
        bool young = pb_now_ns() - start < STARTING;
        int r = pb_image_open(pb_proc_living(req->pid), &image);
        if (r == 0 && pb_image_lock(&image, deadline) == -ETIMEDOUT) {
            pb_image_done(&image);
            return pb_fail(err, -EBUSY, "another injection into process %d is under way (try again)",
                           req->pid);
        }
        if (r == -ESTALE)
            pb_fail(err, r, "process %d is about to begin another program", req->pid);
        else /* where opening is refused, the checks give the reason */
            r = inject_once(req, deadline, &image, young, ret, err);
        bool again = r < 0 && is_starting_program(pb_proc_living(req->pid), &image, r, young);
        bool late = r == -ETIME && pb_now_ns() < deadline;
        pb_image_done(&image);
        if (late)
            continue;
        if (!again)
            return r;
        if (!pb_retry_wait(&wait))
            return pb_fail(err, -EAGAIN,
                           "process %d was on its way to another program each time we looked; nothing was "
                           "changed (try again)",
                           req->pid);
    }
}

int pb_inject(const struct pb_inject_request *req, struct pb_inject_result *ret, struct pb_err *err)
{
    struct pb_inject_result result = {0};
    sigset_t ours, before;

    if (req->options && strlen(req->options) > MAX_OPTIONS)
        return pb_fail(err, -E2BIG, "the options for the agent are longer than %d bytes", MAX_OPTIONS);
    sigemptyset(&ours);
    sigaddset(&ours, SIGCHLD);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    sigprocmask(SIG_BLOCK, &ours, &before);
    int r = inject_with_retry(req, &result, err);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (r < 0)
        return r;
    *ret = result;
    return 0;
}
