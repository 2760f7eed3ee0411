/* load: see load.h. The held thread stops four times: at first, entering mmap, leaving it, and after the
 * stub. */
#include "inject/load.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "base/retry.h"
#include "inject/judge.h"
#include "inject/step.h"
#include "remote/interrupted.h"
#include "remote/mem.h"
#include "remote/threads.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum {
    THREAD_STACK = 256 << 10, /* beside the program's static TLS */
    FD_LIMIT = 1 << 16,
    WORKERS_MAX = 16,
};

/* A load that has started is waited for at least this long: the library may be on a slow file system. */
#define LOAD_LIMIT (600 * PB_NS_PER_S)

#define LOCK_PAUSE (20 * PB_NS_PER_MS) /* between looks at a thread that waits for a lock, */
enum { LOCK_LOOKS = 10 };              /* and how many of them in a row count */

/* For the thread that unmaps our memory. */
#define CLEAN_LIMIT (200 * PB_NS_PER_MS)
#define CLEAN_PAUSE (PB_NS_PER_MS / 20)

void pb_load_free(struct pb_load **l)
{
    if (!*l)
        return;
    pb_inject_target_done(&(*l)->target);
    pb_agent_file_done(&(*l)->agent);
    pb_place_done(&(*l)->place);
    free(*l);
}

static uint64_t answer_at(const struct pb_load *l)
{
    return l->memory + PB_STUB_CODE + PB_STUB_ARGUMENTS;
}

int pb_load_tell(const struct pb_load *l, size_t offset, const void *value, size_t len)
{
    return pb_image_write(l->target.image, answer_at(l) + offset, value, len);
}

static int read_answer(struct pb_load *l)
{
    return pb_mem_read(l->target.info.pid, answer_at(l), &l->answer, sizeof(l->answer));
}

pid_t pb_load_tid(const struct pb_load *l, pid_t ns_tid)
{
    _cleanup_(pb_native_threads_done) struct pb_native_threads threads = {0};
    if (ns_tid > 0 && l->target.info.ns_pid == l->target.info.pid)
        return ns_tid;
    if (ns_tid <= 0 || pb_native_threads_read(l->target.info.pid, &threads, NULL) < 0)
        return 0;
    const struct pb_native_thread *t = pb_native_threads_find_ns(&threads, ns_tid);
    return t ? t->tid : 0;
}

bool pb_load_waits_for_lock(const struct pb_load *l, pid_t tid)
{
    struct pb_waiting w;
    return pb_waiting_read(l->target.info.pid, tid, -1, &w) == 1 && pb_judge_may_be_lock(w.number, w.args[1]);
}

/* Our threads wait two seconds for the tool. A tool that gets no CPU for longer, or is stopped, finds that
 * they have ended. */
static int fail_late(const struct pb_load *l, struct pb_err *err)
{
    return pb_fail(err, -ETIME,
                   "our thread in process %d waited two seconds for this command, then ended; the process is "
                   "unharmed (is the machine out of CPU time? try again)",
                   l->target.info.pid);
}

int pb_load_lost(const struct pb_load *l, int r, struct pb_err *err)
{
    pid_t pid = l->target.info.pid;
    int image = pb_image_check(l->target.image, pid);
    if (r == -EFAULT && image == 0)
        return fail_late(l, err);
    return pb_fail(err, image == -ESTALE ? -ESTALE : -ESRCH, "process %d ended while the agent was loaded",
                   pid);
}

static int put_agent(struct pb_load *l, pid_t tid, struct pb_err *err)
{
    const struct pb_procinfo *info = &l->target.info;
    if (l->entry || l->place.path[0])
        return 0;
    if (l->answer.fd >= 0 && pb_place_fill(info, tid, l->answer.fd, &l->agent, &l->place, NULL) == 0)
        return 0;
    return pb_place_file(info, &l->agent, &l->place, err);
}

int pb_load_provide(struct pb_load *l, pid_t tid, struct pb_err *err)
{
    uint32_t go = 1, give_up = PB_STUB_GIVE_UP;
    int r = put_agent(l, tid, err);
    if (r == 0)
        r = pb_load_tell(l, offsetof(struct pb_stub_answer, path), l->place.path, sizeof(l->place.path));
    pb_step("agent in place");
    pb_load_tell(l, offsetof(struct pb_stub_answer, go), r == 0 ? &go : &give_up, sizeof(go));
    pb_step("told to go on");
    l->failure = r;
    return r;
}

static uint64_t code_at(const struct pb_load *l, const unsigned char *symbol)
{
    return l->memory + (uint64_t)(symbol - pb_stub_begin);
}

/* Code and arguments, in one write: the pages are executable and not writable, so only a tracer can write. */
static int write_stub(struct pb_load *l)
{
    static struct {
        unsigned char code[PB_STUB_CODE];
        struct pb_stub stub;
    } parts; /* one injection at a time; too much for a stack */
    const struct pb_inject_target *t = &l->target;
    size_t len = (size_t)(pb_stub_end - pb_stub_begin);
    if (len > sizeof(parts.code))
        return -E2BIG;
    memset(&parts, 0, sizeof(parts));
    memcpy(parts.code, pb_stub_begin, len);
    parts.stub = (struct pb_stub){
        .memory = l->memory,
        .size = PB_STUB_MEMORY,
        .answer = answer_at(l),
        .data_size = PB_STUB_ANSWER + PB_STUB_STACK,
        .syscall_code = t->syscall_code,
        .restorer = t->restorer,
        .frame_sp = l->hold.frame_sp,
        .undo_sp = l->hold.undo_sp,
        .unblock = 1ull << (t->signal - 1),
        .signal = (uint64_t)t->signal,
        .caller_code = code_at(l, pb_stub_caller),
        .loader_code = code_at(l, pb_stub_loader),
        .errno_location = t->errno_location,
        .pthread_create = t->pthread_create,
        .attr_init = t->attr_init,
        .attr_setdetachstate = t->attr_setdetachstate,
        .attr_setstacksize = t->attr_setstacksize,
        .get_minstack = t->get_minstack,
        .stack_size = THREAD_STACK,
        .libc_signal = pb_hold_signal_of_libc(t),
        .dlopen = t->dlopen,
        .dlsym = t->dlsym,
        .dlclose = t->dlclose,
        .dlerror = t->dlerror,
        .entry = l->entry,
        .dlopen_flags = t->flags,
        .memfd = l->memfd,
        .fd_limit = l->descriptors,
        .direct = l->direct,
        .cleaner = l->direct && !l->hold.thread.group_stop && t->pthread_create,
        .symbol = "pb_agent_start",
    };
    snprintf(parts.stub.name, sizeof(parts.stub.name), "%s", l->agent.name);
    snprintf(parts.stub.options, sizeof(parts.stub.options), "%s", l->req->options ? l->req->options : "");
    return pb_image_write(t->image, l->memory, &parts, sizeof(parts));
}

/* Never writable and executable at once: hardened processes refuse that. */
static int map_memory(struct pb_load *l, struct pb_err *err)
{
    pid_t pid = l->target.info.pid;
    uint64_t args[6] = {l->memory,
                        PB_STUB_MEMORY,
                        PROT_READ | PROT_EXEC,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
                        ~0ull,
                        0};
    int64_t value, ignored;
    int r = pb_hold_syscall(&l->hold, SYS_mmap, args, &value);
    if (r == 0 && value < 0 && value > -4096)
        r = (int)value;
    else if (r == 0 && (uint64_t)value != l->memory) { /* an old kernel, and the address was in use */
        pb_hold_syscall(&l->hold, SYS_munmap, (uint64_t[6]){(uint64_t)value, PB_STUB_MEMORY}, &ignored);
        r = -EEXIST;
    }
    if (r < 0)
        return pb_fail(err, r, "process %d may not map %d KB of executable memory: %s%s", pid,
                       PB_STUB_MEMORY >> 10, strerror(-r),
                       r == -ENOMEM || r == -EEXIST ? "" : " (SELinux execmem or a seccomp filter)");
    l->mapped = true;
    pb_step("memory mapped");
    return 0;
}

/* In the held thread: unmaps the memory if the stub did not. */
static void unmap_memory(struct pb_load *l)
{
    int64_t ignored;
    if (l->mapped &&
        pb_hold_syscall(&l->hold, SYS_munmap, (uint64_t[6]){l->memory, PB_STUB_MEMORY}, &ignored) == 0)
        l->mapped = false;
}

/* The threads that run code of the process. If it has only one, that one is held. */
static size_t count_threads(pid_t pid)
{
    _cleanup_(pb_native_threads_done) struct pb_native_threads threads = {0};
    return pb_native_threads_read(pid, &threads, NULL) < 0 ? 2 : threads.n;
}

static void read_sizes(struct pb_load *l)
{
    char text[8192];
    if (pb_proc_read(l->target.info.pid, "status", text, sizeof(text)) < 0)
        return;
    uint64_t descriptors = pb_proc_number(text, "FDSize", 10);
    l->descriptors = descriptors < FD_LIMIT ? (uint32_t)descriptors : FD_LIMIT;
    uint64_t threads = pb_proc_number(text, "Threads", 10);
    /* `threads` may include kernel threads, of which there are few: count again without those. */
    l->direct = l->hold.thread.group_stop || threads == 1 ||
                (threads <= WORKERS_MAX && count_threads(l->target.info.pid) == 1);
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

static int say_crash(const struct pb_load *l, int signal, struct pb_err *err)
{
    return pb_fail(err, -EFAULT,
                   "the agent crashed with %s while it was loaded into process %d; the process goes on",
                   signal_name(signal), l->target.info.pid);
}

/* For the borrowed thread, past the deadline. It starts a thread at once, unless it has no CPU or waits for a
 * lock. A lock is not waited for longer: the thread continues by itself when it gets it. */
static int wait_longer(struct pb_load *l, uint64_t code, uint64_t stack, uint64_t stub, int *ret_signal)
{
    uint64_t limit = pb_now_ns() + LOAD_LIMIT;
    if (l->direct)
        return pb_hold_run(&l->hold, false, code, stack, stub, limit, ret_signal);
    int r = -ETIMEDOUT;
    for (int sleeps = 0; r == -ETIMEDOUT && sleeps < LOCK_LOOKS && pb_now_ns() < limit;) {
        r = pb_hold_run(&l->hold, false, code, stack, stub, pb_now_ns() + LOCK_PAUSE, ret_signal);
        sleeps = pb_load_waits_for_lock(l, l->hold.thread.tid) ? sleeps + 1 : 0;
    }
    return r;
}

static void say_waiting(const struct pb_load *l)
{
    char text[128];
    snprintf(text, sizeof(text), "still loading in thread %d of process %d, waiting", l->hold.thread.tid,
             l->target.info.pid);
    if (l->req->say)
        l->req->say(text, l->req->say_arg);
}

/* Runs the stub to its end, and serves its requests when it loads in this thread. Once started, only its own
 * end stops it. */
static int run_stub(struct pb_load *l, struct pb_err *err)
{
    uint64_t stub = l->memory + PB_STUB_CODE, stack = l->memory + PB_STUB_MEMORY, limit = l->deadline;
    uint64_t code = code_at(l, pb_stub_borrowed);
    int signal = 0;
    pid_t pid = l->target.info.pid;
    int r = pb_hold_run(&l->hold, true, code, stack, stub, limit, &signal);
    while (r == 1 || (r == -ETIMEDOUT && limit == l->deadline)) {
        if (r == 1) {
            r = read_answer(l);
            if (r == 0)
                pb_load_provide(l, l->hold.thread.tid, err);
            r = pb_hold_run(&l->hold, false, code, stack, stub, limit, &signal);
        } else {
            if (l->direct)
                say_waiting(l);
            limit = 0;
            r = wait_longer(l, code, stack, stub, &signal);
        }
    }
    if (r == -EFAULT && signal) {
        l->crashed = signal;
        return say_crash(l, signal, err);
    }
    if (r == -ETIMEDOUT && !l->direct)
        return pb_fail(err, r,
                       "thread %d of process %d, which was starting our thread, waits for a lock of its C "
                       "library; it continues when it gets the lock, and no agent starts",
                       l->hold.thread.tid, pid);
    if (r == -ETIMEDOUT || r == -EINTR)
        return pb_fail(err, r, "gave up waiting: thread %d of process %d is still loading the agent",
                       l->hold.thread.tid, pid);
    if (r < 0)
        return pb_fail(err, r, "process %d ended while the agent was loaded", pid);
    pb_step("stub done");
    r = read_answer(l);
    if (r < 0) {
        l->mapped = false;
        return pb_load_lost(l, r, err);
    }
    if (!l->answer.left)
        r = pb_fail(err, -EACCES, "process %d may not change the protection of its memory", pid);
    return r;
}

/* In the held thread, which stays held on success. */
static int prepare_stub(struct pb_load *l, struct pb_err *err)
{
    pid_t pid = l->target.info.pid;
    int r = map_memory(l, err);
    if (r < 0)
        return r;
    read_sizes(l);
    if (!l->direct && !l->target.pthread_create)
        return pb_fail(err, -ENOTSUP, "process %d has threads, but not those of its C library", pid);
    r = write_stub(l);
    if (r < 0)
        return pb_fail(err, r, "cannot write into process %d: %s", pid, strerror(-r));
    pb_step("stub written");
    return 0;
}

/* Waits until the thread that unmaps our memory has ended, so that nothing of it is left afterwards. */
static void wait_for_cleaner(struct pb_load *l)
{
    char name[40], text[16];
    uint32_t seen = 1;
    pid_t tid = pb_load_tid(l, l->answer.caller_tid);
    struct pb_retry again = pb_retry_until(pb_now_ns() + CLEAN_LIMIT, CLEAN_PAUSE, CLEAN_PAUSE);
    pb_load_tell(l, offsetof(struct pb_stub_answer, seen), &seen, sizeof(seen));
    pb_step("told to clean");
    snprintf(name, sizeof(name), "task/%d/comm", tid);
    while ((read_answer(l) == 0 ||
            (tid > 0 && pb_proc_read(l->target.info.pid, name, text, sizeof(text)) > 0)) &&
           pb_retry_wait(&again))
        ;
    pb_step("thread ended");
}

static int borrow(struct pb_load *l, struct pb_err *err)
{
    int r = pb_hold_begin(&l->hold, &l->target, l->memory, PB_STUB_MEMORY, l->deadline, &l->stats, err);
    if (r < 0)
        return r;
    r = prepare_stub(l, err);
    if (r == 0)
        r = run_stub(l, err);
    if (r == -ETIMEDOUT || r == -EINTR || r == -ESRCH || r == -ESTALE) {
        pb_hold_abandon(&l->hold);
        return r;
    }
    if (r == 0 && l->answer.error)
        r = pb_fail(err, -l->answer.error, "process %d cannot start a thread: %s", l->target.info.pid,
                    strerror(l->answer.error));
    /* Threads started by the stub unmap the memory; without any we do. */
    bool cleaned = r == 0 && l->direct && l->answer.cleaning;
    if (r < 0 || (l->direct && !cleaned))
        unmap_memory(l);
    pb_hold_end(&l->hold);
    if (cleaned)
        wait_for_cleaner(l);
    return r;
}

/* Replaces the path in the loader's message: a memfd's path means nothing to a person. */
static void clean_reason(const struct pb_load *l, char *text)
{
    size_t len = strlen(l->place.path);
    char *path = len ? strstr(text, l->place.path) : NULL;
    if (!path)
        return;
    const char *instead = path == text ? "" : "the agent"; /* shorter than any path of ours */
    len += path == text ? strspn(path + len, ": ") : 0;
    memcpy(path, instead, strlen(instead));
    memmove(path + strlen(instead), path + len, strlen(path + len) + 1);
}

/* Turns the answer of the entry point into a result, with a sentence for a failure. */
static int judge_answer(struct pb_load *l, struct pb_inject_result *ret, struct pb_err *err)
{
    pid_t pid = l->target.info.pid;
    struct pb_stub_answer *a = &l->answer;
    if (l->crashed)
        return say_crash(l, l->crashed, err);
    if (a->result) {
        ret->status_address = a->result;
        return 0;
    }
    if (a->error)
        return pb_fail(err, -a->error, "process %d cannot start a second thread: %s", pid,
                       strerror(a->error));
    if (l->failure) /* it was ordered to give up; err says why */
        return l->failure;
    if (a->late)
        return fail_late(l, err);
    a->text[sizeof(a->text) - 1] = '\0';
    clean_reason(l, a->text);
    if (!l->entry && !a->loaded)
        return pb_fail(err, -ENOEXEC, "the agent does not load in process %d: %s", pid,
                       a->text[0] ? a->text : "it gives no reason");
    if (!l->entry && !a->entry)
        return pb_fail(err, -ENOEXEC, "the agent has no entry point: %s", a->text);
    return pb_fail(err, -ECANCELED, "the agent did not start in process %d: its entry point returned nothing",
                   pid);
}

int pb_load_run(struct pb_load *l, struct pb_inject_result *ret, struct pb_err *err)
{
    l->entry = 0;
    pb_inject_target_find_agent(&l->target, l->agent.name, &l->entry);
    int r = pb_inject_target_free_place(&l->target, PB_STUB_MEMORY, &l->memory);
    if (r < 0)
        return pb_fail(err, r, "process %d has no free addresses", l->target.info.pid);
    l->memfd = !l->entry && pb_place_has_proc(l->target.info.pid);
    r = borrow(l, err);
    if (r == 0 && !l->direct)
        r = pb_load_follow(l, err);
    if (r == 0)
        r = judge_answer(l, ret, err);
    ret->reused = l->entry != 0;
    ret->direct = l->direct;
    ret->stops = l->stats.stops;
    return r;
}
