/* inject: see inject.h. The order of things:
 *
 *   look       the checks of doctor.h, symbols, the agent's bytes                      target untouched
 *   prepare    any thread is held for three system calls: memory for a stack and the stub, a memfd
 *   fill       the agent is written into the memfd, the stub and its arguments into the memory   not held
 *   load       a thread at a safe point runs the stub (dlopen, entry point), is restored, unmaps the memory
 *
 * Whatever fails before the stub runs is undone by the same two system calls, in any thread. */
#include "inject/inject.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "inject/doctor.h"
#include "inject/hold.h"
#include "inject/place.h"
#include "inject/remote_debug.h"
#include "inject/step.h"
#include "inject/target.h"
#include "remote/mem.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x10u
#endif

enum {
    DEFAULT_TIMEOUT_MS = 10000,
    MAX_OPTIONS = 4095,
    CODE_SIZE = 4096,
    DATA_SIZE = 12288,
    MEMORY_SIZE = 256 << 10, /* code, data, and the rest a stack; only what is touched costs anything */
};

/* A load that has started is never abandoned before this: a library on a slow file system takes its time. */
#define LOAD_LIMIT (600 * PB_NS_PER_S)

/* How long a process may look like one that is starting before it is taken for what it looks like. */
#define STARTING PB_NS_PER_S

/* What lies behind the code in the memory that we map in the target. */
struct data {
    struct pb_stub stub;
    char symbol[32], name[64], path[160], text[256];
    char options[MAX_OPTIONS + 1];
};
_Static_assert(sizeof(struct data) <= DATA_SIZE, "the stub's arguments fit");

struct session {
    const struct pb_inject_request *req;
    uint64_t deadline;
    struct pb_target target;
    struct pb_agent agent;
    struct pb_place place;
    struct pb_hold_stats stats;
    uint64_t memory; /* in the target; 0: not mapped */
    int fd;          /* in the target; -1: none */
    uint64_t entry;  /* of an agent that is there already; 0: none */
    struct pb_hold hold;
};

static void session_free(struct session **s)
{
    if (!*s)
        return;
    pb_target_done(&(*s)->target);
    pb_agent_done(&(*s)->agent);
    pb_place_done(&(*s)->place);
    free(*s);
}

static int remote_mmap(struct session *s, uint64_t addr, size_t len, int prot, int flags, uint64_t *ret)
{
    uint64_t args[6] = {addr, len, (uint64_t)prot, (uint64_t)(flags | MAP_PRIVATE | MAP_ANONYMOUS), ~0ull, 0};
    int64_t value;
    int r = pb_hold_syscall(&s->hold, SYS_mmap, args, &value);
    if (r < 0)
        return r;
    if (value < 0 && value > -4096)
        return (int)value;
    *ret = (uint64_t)value;
    return 0;
}

/* Never writable and executable at once: hardened processes refuse that. The first page becomes code that
 * only a tracer can write. */
static int map_memory(struct session *s, struct pb_err *err)
{
    uint64_t code;
    pid_t pid = s->target.info.pid;
    int r = remote_mmap(s, 0, MEMORY_SIZE, PROT_READ | PROT_WRITE, MAP_NORESERVE | MAP_STACK, &s->memory);
    if (r < 0)
        return pb_fail(err, r, "process %d cannot map %d KB: %s", pid, MEMORY_SIZE >> 10, strerror(-r));
    r = remote_mmap(s, s->memory, CODE_SIZE, PROT_READ | PROT_EXEC, MAP_FIXED, &code);
    if (r == 0)
        r = pb_image_write(s->target.image, s->memory, pb_arch_stub,
                           (size_t)(pb_arch_stub_end - pb_arch_stub));
    if (r < 0)
        return pb_fail(err, r,
                       "process %d may not map executable memory: %s (SELinux execmem or a seccomp filter)",
                       pid, strerror(-r));
    return 0;
}

/* Returns -ENOSYS, -EACCES, ... of the target where it has no memfd for us: then a file must do. */
static int make_memfd(struct session *s)
{
    uint64_t name = s->memory + CODE_SIZE + offsetof(struct data, name);
    uint64_t args[6] = {name, MFD_CLOEXEC | MFD_EXEC};
    int64_t fd;
    int r = pb_image_write(s->target.image, name, s->agent.name, sizeof(s->agent.name));
    if (r == 0)
        r = pb_hold_syscall(&s->hold, SYS_memfd_create, args, &fd);
    if (r == 0 && fd == -EINVAL) { /* a kernel before 6.3 does not know MFD_EXEC */
        args[1] = MFD_CLOEXEC;
        r = pb_hold_syscall(&s->hold, SYS_memfd_create, args, &fd);
    }
    if (r < 0)
        return r;
    if (fd < 0)
        return (int)fd;
    s->fd = (int)fd;
    return 0;
}

/* A filter may kill for a call it does not know: behind one, a file is tried first. */
static bool wants_memfd(const struct session *s)
{
    return !s->entry && !s->place.path[0] && pb_place_has_proc(s->target.info.pid);
}

static int prepare(struct session *s, struct pb_err *err)
{
    if (!s->entry && s->target.info.seccomp == 2)
        pb_place_file(&s->target.info, &s->agent, &s->place, NULL);
    int r = pb_hold_begin(&s->hold, &s->target, PB_HOLD_ANY, s->deadline, &s->stats, err);
    if (r < 0)
        return r;
    r = map_memory(s, err);
    if (r == 0 && wants_memfd(s))
        make_memfd(s);
    pb_hold_end(&s->hold);
    if (r < 0 || s->entry || s->place.path[0])
        return r;
    if (s->fd >= 0 && pb_place_fill(s->target.info.pid, s->fd, &s->agent, &s->place, err) == 0)
        return 0;
    return pb_place_file(&s->target.info, &s->agent, &s->place, err);
}

static int write_data(struct session *s, struct pb_err *err)
{
    static struct data d; /* one injection at a time; zeroed anew below */
    uint64_t at = s->memory + CODE_SIZE;
    d = (struct data){.stub = {.errno_location = s->target.errno_location,
                               .dlopen = s->target.dlopen,
                               .dlsym = s->target.dlsym,
                               .dlerror = s->target.dlerror,
                               .dlclose = s->target.dlclose,
                               .entry = s->entry,
                               .path = at + offsetof(struct data, path),
                               .symbol = at + offsetof(struct data, symbol),
                               .options = at + offsetof(struct data, options),
                               .flags = s->target.flags,
                               .fd = s->fd,
                               .signal = (uint32_t)s->target.signal,
                               .text = at + offsetof(struct data, text)},
                      .symbol = "pb_agent_start"};
    snprintf(d.path, sizeof(d.path), "%s", s->place.path);
    snprintf(d.options, sizeof(d.options), "%s", s->req->options ? s->req->options : "");
    int r = pb_image_write(s->target.image, at, &d, sizeof(d));
    if (r < 0)
        return pb_fail(err, r, "cannot write into process %d: %s", s->target.info.pid, strerror(-r));
    pb_step("arguments written");
    return 0;
}

/* In the held thread, which is itself again: the memory and, where the stub did not, the descriptor go. */
static void undo_in(struct session *s)
{
    int64_t ignored;
    if (s->fd >= 0 && pb_hold_syscall(&s->hold, SYS_close, (uint64_t[6]){(uint64_t)s->fd}, &ignored) == 0)
        s->fd = -1;
    if (s->memory &&
        pb_hold_syscall(&s->hold, SYS_munmap, (uint64_t[6]){s->memory, MEMORY_SIZE}, &ignored) == 0)
        s->memory = 0;
}

static void undo(struct session *s)
{
    if (s->fd < 0 && !s->memory)
        return;
    uint64_t deadline = pb_now_ns() + PB_NS_PER_S;
    if (pb_hold_begin(&s->hold, &s->target, PB_HOLD_ANY, deadline, &s->stats, NULL) < 0)
        return;
    undo_in(s);
    pb_hold_end(&s->hold);
}

/* The loader names the path it was given, which nobody can make anything of. */
static void read_reason(const struct session *s, uint64_t addr, char *buf, size_t size)
{
    size_t len = strlen(s->place.path);
    if (pb_mem_read_str(s->target.info.pid, addr, buf, size) < 0) {
        snprintf(buf, size, "its reason cannot be read");
        return;
    }
    char *path = len ? strstr(buf, s->place.path) : NULL;
    if (!path)
        return;
    const char *instead = path == buf ? "" : "the agent"; /* shorter than any path of ours */
    len += path == buf ? strspn(path + len, ": ") : 0;
    memcpy(path, instead, strlen(instead));
    memmove(path + strlen(instead), path + len, strlen(path + len) + 1);
}

/* What the stub answered, in a person's words where it is a failure. */
static int judge_answer(struct session *s, const struct pb_stub *stub, struct pb_inject_result *ret,
                        struct pb_err *err)
{
    pid_t pid = s->target.info.pid;
    char why[300] = "it gives no reason";
    if (stub->result) {
        ret->status_address = stub->result;
        return 0;
    }
    if (stub->error)
        read_reason(s, stub->error, why, sizeof(why));
    if (!stub->handle && !s->entry)
        return pb_fail(err, -ENOEXEC, "the agent does not load in process %d: %s", pid, why);
    if (stub->error)
        return pb_fail(err, -ENOEXEC, "the agent has no entry point: %s", why);
    return pb_fail(err, -ECANCELED, "the agent did not start in process %d: its entry point returned nothing",
                   pid);
}

static const char *signal_name(int signal)
{
    switch (signal) {
    case SIGSEGV:
        return "SIGSEGV";
    case SIGBUS:
        return "SIGBUS";
    case SIGILL:
        return "SIGILL";
    case SIGABRT:
        return "SIGABRT";
    case SIGSYS:
        return "SIGSYS";
    }
    return strsignal(signal);
}

static int crashed(struct session *s, int signal, struct pb_err *err)
{
    return pb_fail(err, -EFAULT,
                   "the agent crashed with %s while it was loaded into thread %d of process %d; the thread "
                   "was restored and goes on",
                   signal_name(signal), s->hold.thread.tid, s->target.info.pid);
}

/* Waits for the stub. From here on there is no way back but its own end. */
static int run_stub(struct session *s, struct pb_err *err)
{
    uint64_t stub = s->memory + CODE_SIZE, stack = s->memory + MEMORY_SIZE;
    uint64_t frame = pb_arch_stub_frame(s->hold.frame_sp);
    int signal = 0;
    pid_t pid = s->target.info.pid;
    int r = pb_image_write(s->target.image, stub + offsetof(struct pb_stub, frame), &frame, sizeof(frame));
    if (r < 0)
        return r;
    r = pb_hold_run(&s->hold, true, s->memory, stack, stub, s->deadline, &signal);
    if (r == -ETIMEDOUT) {
        if (s->req->say) {
            char text[128];
            snprintf(text, sizeof(text), "still loading in thread %d of process %d, waiting",
                     s->hold.thread.tid, pid);
            s->req->say(text, s->req->say_arg);
        }
        r = pb_hold_run(&s->hold, false, s->memory, stack, stub, pb_now_ns() + LOAD_LIMIT, &signal);
    }
    if (r == -EFAULT && signal)
        return crashed(s, signal, err);
    if (r == -ETIMEDOUT || r == -EINTR)
        return pb_fail(err, r, "gave up waiting: the agent goes on loading in thread %d of process %d",
                       s->hold.thread.tid, pid);
    if (r < 0)
        return pb_fail(err, r, "process %d ended while the agent was loaded", pid);
    pb_step("stub done");
    return 0;
}

static int load(struct session *s, struct pb_inject_result *ret, struct pb_err *err)
{
    struct pb_stub stub;
    int r = pb_hold_begin(&s->hold, &s->target, PB_HOLD_SAFE, s->deadline, &s->stats, err);
    if (r < 0)
        return r;
    r = run_stub(s, err);
    if (r == -ETIMEDOUT || r == -EINTR || r == -ESRCH || r == -ESTALE) {
        pb_hold_abandon(&s->hold);
        s->memory = 0; /* in use there */
        s->fd = -1;
        return r;
    }
    if (r == 0) {
        s->fd = -1; /* the stub closed it */
        r = pb_mem_read(s->target.info.pid, s->memory + CODE_SIZE, &stub, sizeof(stub));
    }
    if (r == 0)
        r = judge_answer(s, &stub, ret, err);
    undo_in(s);
    pb_hold_end(&s->hold);
    return r;
}

static void count(const struct pb_hold_stats *stats, struct pb_inject_result *ret)
{
    ret->stopped_ns += stats->total_ns;
    if (stats->longest_ns > ret->longest_ns)
        ret->longest_ns = stats->longest_ns;
    ret->unsafe_looks += stats->unsafe_looks;
    ret->unsafe_rounds += stats->unsafe_rounds;
    ret->process_stopped = stats->process_stopped;
}

static int by_ptrace(struct session *s, const struct pb_procinfo *info, const struct pb_image *image,
                     struct pb_inject_result *ret, struct pb_err *err)
{
    int r = pb_target_open(info, image, &s->target, err);
    if (r < 0)
        return r;
    s->entry = 0;
    pb_target_find_agent(&s->target, s->agent.name, &s->entry);
    r = prepare(s, err);
    if (r == 0)
        r = write_data(s, err);
    if (r == 0)
        r = load(s, ret, err);
    undo(s);
    ret->reused = s->entry != 0;
    count(&s->stats, ret);
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

/* With the image open, or -1 in it where it is not ours to open. young: for a program that begins it is in
 * order to have no C library yet. -ESTALE: look again. */
static int attempt(const struct pb_inject_request *req, uint64_t deadline, const struct pb_image *image,
                   bool young, struct pb_inject_result *ret, struct pb_err *err)
{
    struct pb_check checks[PB_CHECKS_MAX];
    struct pb_procinfo info;
    int r = pb_procinfo_read(req->pid, &info, err);
    if (r < 0)
        return r;
    if (pb_image_is_borrowed(info.pid, info.ppid))
        return pb_fail(err, -ESTALE,
                       "process %d runs in the memory of its parent, process %d, and has not "
                       "begun a program of its own",
                       info.pid, info.ppid);
    int n = pb_inject_check_info(&info, checks, PB_CHECKS_MAX);
    const struct pb_check *failure = first_failure(checks, n);
    if (failure && info.libc == PB_LIBC_NONE && young && pb_target_has_loader(info.pid))
        return -ESTALE;
    /* Only ptrace itself being refused leaves the other way open. */
    bool refused = failure && (strcmp(failure->name, "tracer") == 0 || strcmp(failure->name, "ptrace") == 0);
    if (failure && !(refused && pb_remote_debug_offered(req->pid)))
        return pb_fail(err, failure->error, "%s%s%s%s", failure->found, failure->remedy[0] ? " (" : "",
                       failure->remedy, failure->remedy[0] ? ")" : "");

    _cleanup_(session_free) struct session *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->req = req;
    s->fd = s->place.dir = s->place.root = -1;
    s->deadline = deadline;
    r = pb_agent_open(req->agent_dir, info.libc, &s->agent, err);
    if (r < 0)
        return r;
    if (!refused && image->mem < 0)
        return pb_fail(err, -EACCES, "the memory of process %d is not ours to open", info.pid);
    if (!refused)
        return by_ptrace(s, &info, image, ret, err);
    ret->by_remote_debug = true;
    return pb_remote_debug_load(&info, &s->agent, req->options, s->deadline, &ret->status_address, err);
}

/* Where a process has no memory to look at and is not gone: an exec lets all threads end but one. */
static bool is_between(pid_t pid)
{
    struct pb_procinfo info;
    return pb_procinfo_read(pid, &info, NULL) == 0 && (info.threads > 1 || !strchr("ZX", info.state));
}

/* Whether a failure says nothing about the process but that it is on its way to another program: a thread
 * that vanished, an address that is another. */
static bool is_passing(pid_t pid, const struct pb_image *image, int failure, bool young)
{
    int r = image->mem < 0 ? 0 : pb_image_check(image, pid);
    return failure == -ESTALE || r == -ESTALE ||
           (young && (failure == -ESRCH || r == -ESRCH) && is_between(pid));
}

/* A process that execs while we look (a shell's child on its way to its program) is looked at anew. */
static int run(const struct pb_inject_request *req, struct pb_inject_result *ret, struct pb_err *err)
{
    uint64_t start = pb_now_ns();
    uint64_t deadline = start + (req->timeout_ms ? req->timeout_ms : DEFAULT_TIMEOUT_MS) * PB_NS_PER_MS;

    for (;;) {
        struct pb_image image = {.mem = -1};
        bool young = pb_now_ns() - start < STARTING;
        int r = pb_image_open(req->pid, &image);
        if (r == 0 && pb_image_lock(&image, deadline) == -ETIMEDOUT) {
            pb_image_done(&image);
            return pb_fail(err, -EBUSY, "another injection into process %d is under way (try again)",
                           req->pid);
        }
        if (r == -ESTALE)
            pb_fail(err, r, "process %d is about to begin another program", req->pid);
        else /* where it is refused, the checks know why */
            r = attempt(req, deadline, &image, young, ret, err);
        bool again = r < 0 && is_passing(req->pid, &image, r, young);
        pb_image_done(&image);
        if (!again)
            return r;
        if (pb_now_ns() >= deadline)
            return pb_fail(err, -EAGAIN,
                           "process %d was on its way to another program each time we looked; nothing was "
                           "changed (try again)",
                           req->pid);
        pb_sleep_ns(PB_NS_PER_MS / 2);
    }
}

/* A held thread waits for us at each step: on a busy machine that is most of the time it is held. Where we
 * may, we run ahead of others for these few milliseconds, most of which we sleep. False: we may not. */
static bool hurry(int *ret_policy, struct sched_param *ret_priority)
{
    struct sched_param ahead = {.sched_priority = 1};
    *ret_policy = sched_getscheduler(0);
    if (*ret_policy < 0 || sched_getparam(0, ret_priority) < 0)
        return false;
    return sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &ahead) == 0;
}

int pb_inject(const struct pb_inject_request *req, struct pb_inject_result *ret, struct pb_err *err)
{
    struct pb_inject_result result = {0};
    struct sched_param priority;
    sigset_t ours, before;
    int policy;

    if (req->options && strlen(req->options) > MAX_OPTIONS)
        return pb_fail(err, -E2BIG, "the options for the agent are longer than %d bytes", MAX_OPTIONS);
    sigemptyset(&ours);
    sigaddset(&ours, SIGCHLD);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    sigprocmask(SIG_BLOCK, &ours, &before);
    bool hurried = hurry(&policy, &priority);
    int r = run(req, &result, err);
    if (hurried)
        sched_setscheduler(0, policy, &priority);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (r < 0)
        return r;
    *ret = result;
    return 0;
}
