/* follow: watches the threads that the stub started until their answer is read. See load.h and stub.h.
 *
 * No thread is held here. Our two threads are traced without being stopped, for one reason: a library that
 * crashes then ends only the thread that loads it, not the job. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>

#include "base/err.h"
#include "base/retry.h"
#include "inject/load.h"
#include "inject/step.h"
#include "remote/mem.h"

enum { CALLER, LOADER, THREADS };

#define PAUSE_FIRST (30 * 1000ull)
#define PAUSE_LAST  (PB_NS_PER_MS / 2)
#define END_LIMIT   (200 * PB_NS_PER_MS) /* for the threads to end once the answer is read */
#define LOCK_LIMIT  (200 * PB_NS_PER_MS)
#define LOAD_LIMIT  (600 * PB_NS_PER_S)

struct watch {
    struct pb_load *l;
    struct pb_thread thread[THREADS];
    bool traced[THREADS];
    bool provided, called;
    bool warned;
    uint64_t locked_since; /* when the loading thread began to wait for a lock, past the deadline; 0: not */
};

static uint64_t code_at(const struct pb_load *l, const unsigned char *symbol)
{
    return l->memory + (uint64_t)(symbol - pb_stub_begin);
}

static void begin_tracing(struct watch *w, int which, pid_t tid)
{
    if (tid > 0)
        w->traced[which] = pb_thread_seize(w->l->target.info.pid, tid, &w->thread[which]) == 0;
}

static bool is_crash(const struct pb_load *l, int signal)
{
    switch (signal) {
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGSYS:
    case SIGABRT:
        return !(l->target.info.caught >> (signal - 1) & 1);
    }
    return false;
}

/* Makes a crashed thread continue at the end of its code, on the stack that it began with. */
static int end_thread(struct watch *w, int which)
{
    struct pb_load *l = w->l;
    struct pb_arch_state *state = &l->hold.saved; /* reused: the borrowed thread was given back */
    pid_t tid = w->thread[which].tid;
    size_t at = which == CALLER ? offsetof(struct pb_stub_answer, caller_sp)
                                : offsetof(struct pb_stub_answer, loader_sp);
    uint64_t sp, code = code_at(l, which == CALLER ? pb_stub_caller_end : pb_stub_loader_end);
    uint64_t answer = l->memory + PB_STUB_CODE + PB_STUB_ARGUMENTS;
    int r = pb_mem_read(l->target.info.pid, answer + at, &sp, sizeof(sp));
    if (r == 0)
        r = pb_arch_save(tid, state);
    return r < 0 ? r : pb_arch_set_stub(tid, state, code, sp, l->memory + PB_STUB_CODE);
}

/* Handles one event of a traced thread and lets it run on. */
static void handle_event(struct watch *w, int which)
{
    struct pb_thread *t = &w->thread[which];
    enum pb_event event;
    int signal;
    if (!w->traced[which])
        return;
    int r = pb_thread_wait(t, 0, false, &event, &signal);
    if (r == -ESRCH)
        w->traced[which] = false;
    if (r < 0)
        return;
    if (event == PB_EVENT_EXIT || event == PB_EVENT_EXEC) {
        w->traced[which] = event == PB_EVENT_EXEC;
        return;
    }
    if (event == PB_EVENT_SIGNAL && is_crash(w->l, signal) && end_thread(w, which) == 0) {
        w->l->crashed = signal;
        signal = 0;
    }
    pb_thread_resume(t, PTRACE_CONT, signal);
}

/* Waits until both threads have ended, so that nothing of them is left in the process afterwards. */
static void wait_for_end(struct watch *w)
{
    struct pb_retry again = pb_retry_until(pb_now_ns() + END_LIMIT, PAUSE_FIRST, PAUSE_FIRST);

    while (w->traced[CALLER] || w->traced[LOADER]) {
        for (int i = 0; i < THREADS; i++)
            handle_event(w, i);
        if (!pb_retry_wait(&again))
            break;
    }
    for (int i = 0; i < THREADS; i++)
        if (w->traced[i] && pb_thread_stop(&w->thread[i], pb_now_ns() + END_LIMIT) != -ESRCH)
            pb_thread_release(&w->thread[i]);
}

static int provide(struct watch *w, struct pb_err *err)
{
    struct pb_load *l = w->l;
    pid_t loader = pb_load_tid(l, l->answer.loader_tid);
    pb_step("loader ready");
    begin_tracing(w, CALLER, pb_load_tid(l, l->answer.caller_tid));
    begin_tracing(w, LOADER, loader);
    w->provided = true;
    return pb_load_provide(l, loader, err);
}

/* Whether the loading thread has waited for a lock for a while, past the deadline. Its holder may never
 * release it. The thread cannot be taken out of dlopen: it continues when it gets the lock, and ends. */
static bool is_locked_out(struct watch *w, uint64_t now)
{
    struct pb_load *l = w->l;
    if (now < l->deadline || l->answer.state != PB_STUB_LOADING ||
        !pb_load_waits_for_lock(l, w->thread[LOADER].tid)) {
        w->locked_since = 0;
        return false;
    }
    if (!w->locked_since)
        w->locked_since = now;
    return now - w->locked_since > LOCK_LIMIT;
}

/* 0: keep waiting. Before the library loads the caller's deadline holds; after that the wait is only
 * reported. */
static int check_time(struct watch *w, struct pb_err *err)
{
    struct pb_load *l = w->l;
    pid_t pid = l->target.info.pid;
    uint64_t now = pb_now_ns();
    uint32_t give_up = PB_STUB_GIVE_UP;
    if (!w->provided && (now >= l->deadline || pb_thread_interrupted())) {
        pb_load_tell(l, offsetof(struct pb_stub_answer, go), &give_up, sizeof(give_up));
        return pb_fail(err, pb_thread_interrupted() ? -EINTR : -ETIMEDOUT,
                       "the loading thread of process %d did not come up in time; it ends by itself (is the "
                       "process out of CPU time?)",
                       pid);
    }
    if (pb_thread_interrupted() || now >= l->deadline + LOAD_LIMIT)
        return pb_fail(
            err, pb_thread_interrupted() ? -EINTR : -ETIMEDOUT,
            "gave up waiting: our thread in process %d is still loading the agent, which will not start",
            pid);
    if (is_locked_out(w, now))
        return pb_fail(err, -ETIMEDOUT,
                       "another thread of process %d holds the loader's lock (is it deadlocked?); our thread "
                       "ends when it gets that lock, and no agent starts",
                       pid);
    if (now >= l->deadline && !w->warned && !w->locked_since) {
        char text[160];
        snprintf(text, sizeof(text), "still loading in thread %d of process %d, waiting",
                 w->thread[LOADER].tid, pid);
        if (l->req->say)
            l->req->say(text, l->req->say_arg);
        w->warned = true;
    }
    return 0;
}

static int wait_for_answer(struct watch *w, struct pb_err *err)
{
    struct pb_load *l = w->l;
    /* No deadline here: check_time decides, depending on the step. */
    struct pb_retry again = pb_retry_until(0, PAUSE_FIRST, PAUSE_LAST);
    uint64_t answer = l->memory + PB_STUB_CODE + PB_STUB_ARGUMENTS;
    uint32_t call = 1;
    for (;;) {
        handle_event(w, LOADER);
        handle_event(w, CALLER);
        int r = pb_mem_read(l->target.info.pid, answer, &l->answer, sizeof(l->answer));
        if (l->crashed && r < 0) /* the caller thread was set to its end, and has unmapped it */
            return 0;
        if (r < 0)
            return pb_load_lost(l, r, err);
        if (l->answer.state == PB_STUB_DONE)
            return 0;
        if (l->answer.state == PB_STUB_READY && !w->provided) {
            provide(w, err); /* on failure the answer says so */
            again.pause = PAUSE_FIRST;
        }
        if (l->answer.state == PB_STUB_LOADED && !w->called) {
            w->called = true;
            pb_load_tell(l, offsetof(struct pb_stub_answer, call), &call, sizeof(call));
            again.pause = PAUSE_FIRST;
        }
        r = check_time(w, err);
        if (r < 0)
            return r;
        pb_retry_wait(&again);
    }
}

int pb_load_follow(struct pb_load *l, struct pb_err *err)
{
    struct watch w = {.l = l};
    uint32_t seen = 1;
    int r = wait_for_answer(&w, err);
    pb_step("answer read");
    if (r == 0) {
        pb_load_tell(l, offsetof(struct pb_stub_answer, seen), &seen, sizeof(seen));
        wait_for_end(&w);
        pb_step("threads ended");
        return 0;
    }
    for (int i = 0; i < THREADS; i++)
        if (w.traced[i] && pb_thread_stop(&w.thread[i], pb_now_ns() + END_LIMIT) != -ESRCH)
            pb_thread_release(&w.thread[i]);
    return r;
}
