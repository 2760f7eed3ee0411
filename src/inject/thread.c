/* thread: see thread.h. */
#include "inject/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/procfs.h"
#include "base/time.h"

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

static _Thread_local struct {
    bool on, moved;
    int policy;
    struct sched_param priority;
    cpu_set_t cpus;
} hurried; /* of the calling thread, like priority and CPUs */

/* The CPU that the thread ran on last; -1: not known. */
static int cpu_of(pid_t pid, pid_t tid)
{
    char name[40], text[1024];
    snprintf(name, sizeof(name), "task/%d/stat", tid);
    const char *at = pb_proc_read(pid, name, text, sizeof(text)) < 0 ? NULL : strrchr(text, ')');
    for (int field = 2; at && field < 39; field++)
        at = strchr(at + 1, ' ');
    return at ? atoi(at + 1) : -1;
}

/* Moves us to the thread's CPU: handing over is then a task switch on an awake CPU; waking an idle one takes
 * 50 to 200 us on a virtual machine. */
static void move_beside(pid_t pid, pid_t tid)
{
    cpu_set_t beside;
    int cpu = cpu_of(pid, tid);
    if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof(hurried.cpus), &hurried.cpus) < 0)
        return;
    CPU_ZERO(&beside);
    CPU_SET(cpu, &beside);
    hurried.moved = CPU_ISSET(cpu, &hurried.cpus) && sched_setaffinity(0, sizeof(beside), &beside) == 0;
}

void pb_hurry_begin(pid_t pid, pid_t tid)
{
    struct sched_param ahead = {.sched_priority = 1};
    if (hurried.on || hurried.moved)
        return;
    hurried.policy = sched_getscheduler(0);
    if (hurried.policy < 0 || sched_getparam(0, &hurried.priority) < 0)
        return;
    hurried.on = sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &ahead) == 0;
    /* Without real-time priority we might wait on that CPU for other processes. */
    if (hurried.on)
        move_beside(pid, tid);
}

void pb_hurry_end(void)
{
    if (hurried.moved)
        sched_setaffinity(0, sizeof(hurried.cpus), &hurried.cpus);
    if (hurried.on)
        sched_setscheduler(0, hurried.policy, &hurried.priority);
    hurried.moved = hurried.on = false;
}

enum { TRACED_MAX = 4 }; /* at once: the held thread and one more, or the two that load */

static _Atomic pid_t traced[TRACED_MAX]; /* without main threads; 0: free. Process-wide, as the handler below
                                          * that reads it: one injection at a time (inject.h) */

static void note_traced(pid_t tid, bool is)
{
    for (int i = 0; i < TRACED_MAX; i++) {
        pid_t expected = is ? 0 : tid;
        if (atomic_compare_exchange_strong(&traced[i], &expected, is ? tid : 0))
            return;
    }
}

/* Signal-safe. */
static void reap_ended(int number)
{
    int saved = errno;
    for (int i = 0; i < TRACED_MAX; i++) {
        siginfo_t info = {.si_pid = 0};
        pid_t tid = traced[i];
        if (tid && waitid(P_PID, (id_t)tid, &info, WEXITED | WNOHANG | __WALL) == 0 && info.si_pid == tid)
            traced[i] = 0;
    }
    errno = saved;
}

/* A thread that execs ends all others and waits for them, holding a lock that PTRACE_SEIZE needs. A traced
 * thread is gone only when its tracer has waited for it: tool and job would wait for each other for ever. So
 * while another thread is traced, its end is collected during the seize, which SIGCHLD interrupts. (Main
 * threads need no wait then.) */
static int seize_thread(pid_t tid)
{
    struct sigaction action = {.sa_handler = reap_ended}, before;
    sigset_t set, mask;
    bool others = false;
    for (int i = 0; i < TRACED_MAX; i++)
        others = others || traced[i];
    others = others && sigaction(SIGCHLD, &action, &before) == 0;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    if (others)
        sigprocmask(SIG_UNBLOCK, &set, &mask);
    int r = ptrace(PTRACE_SEIZE, tid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC) < 0 ? -errno : 0;
    if (others) {
        sigprocmask(SIG_SETMASK, &mask, NULL);
        sigaction(SIGCHLD, &before, NULL);
    }
    return r;
}

int pb_thread_seize(pid_t pid, pid_t tid, struct pb_thread *ret)
{
    int r = seize_thread(tid);
    if (r < 0)
        return r;
    if (tid != pid)
        note_traced(tid, true);
    *ret = (struct pb_thread){.pid = pid, .tid = tid};
    return 0;
}

static enum pb_event classify(struct pb_thread *t, int status, int *ret_signal)
{
    *ret_signal = 0;
    if (!WIFSTOPPED(status)) {
        note_traced(t->tid, false);
        return PB_EVENT_EXIT;
    }
    t->stopped = true;
    t->stops++;
    int signal = WSTOPSIG(status);
    if (status >> 16 == PTRACE_EVENT_EXEC) {
        t->execed = true;
        return PB_EVENT_EXEC;
    }
    if (status >> 16 == PTRACE_EVENT_STOP) {
        t->group_stop = signal != SIGTRAP;
        return PB_EVENT_STOP;
    }
    if (signal == (SIGTRAP | 0x80))
        return PB_EVENT_SYSCALL;
    *ret_signal = signal;
    return PB_EVENT_SIGNAL;
}

bool pb_thread_interrupted(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && (sigismember(&pending, SIGINT) || sigismember(&pending, SIGTERM));
}

/* A stop raises SIGCHLD. If the caller ignores that signal, the slice bounds the wait. */
static void wait_for_child(uint64_t deadline)
{
    const uint64_t slice = PB_NS_PER_MS;
    uint64_t now = pb_now_ns(), left = deadline > now ? deadline - now : 0;
    struct timespec limit = {.tv_nsec = (long)(left < slice ? left : slice)};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigtimedwait(&set, NULL, &limit);
}

/* A thread that execs gets the process's pid; its old tid disappears without an event. */
static bool has_moved(const struct pb_thread *t)
{
    char text[2048];
    return t->tid != t->pid && pb_proc_read(t->pid, "status", text, sizeof(text)) > 0 &&
           pb_proc_number(text, "TracerPid", 10) == (uint64_t)getpid();
}

int pb_thread_wait(struct pb_thread *t, uint64_t deadline, bool interruptible, enum pb_event *ret,
                   int *ret_signal)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(t->tid, &status, __WALL | WNOHANG);
        if (pid < 0 && errno == ECHILD && has_moved(t)) {
            note_traced(t->tid, false);
            t->tid = t->pid;
            continue;
        }
        if (pid < 0 && errno == ECHILD)
            note_traced(t->tid, false);
        if (pid < 0 && errno != EINTR)
            return errno == ECHILD ? -ESRCH : -errno;
        if (pid == t->tid) {
            *ret = classify(t, status, ret_signal);
            return 0;
        }
        if (interruptible && pb_thread_interrupted())
            return -EINTR;
        if (pb_now_ns() >= deadline)
            return -ETIMEDOUT;
        wait_for_child(deadline);
    }
}

int pb_thread_resume(struct pb_thread *t, int request, int signal)
{
    t->stopped = false;
    if (ptrace(request, t->tid, 0, (void *)(long)signal) < 0) {
        t->stopped = errno != ESRCH;
        return -errno;
    }
    return 0;
}

int pb_thread_ask(struct pb_thread *t)
{
    return ptrace(PTRACE_INTERRUPT, t->tid, 0, 0) < 0 ? -errno : 0;
}

int pb_thread_stop(struct pb_thread *t, uint64_t deadline)
{
    t->since = pb_now_ns();
    int r = pb_thread_ask(t);
    while (r == 0) {
        enum pb_event event;
        int signal;
        r = pb_thread_wait(t, deadline, false, &event, &signal);
        if (r < 0)
            return r;
        if (event == PB_EVENT_STOP)
            return 0;
        if (event == PB_EVENT_EXIT || event == PB_EVENT_EXEC)
            return event == PB_EVENT_EXIT ? -ESRCH : -ESTALE;
        r = pb_thread_resume(t, PTRACE_CONT, signal);
    }
    return r;
}

/* A thread killed while it is held, by an exec in another, must be collected: until then that exec waits for
 * us, and our next seize would wait for the exec. */
uint64_t pb_thread_release(struct pb_thread *t)
{
    uint64_t deadline = pb_now_ns() + PB_NS_PER_S;
    enum pb_event event = PB_EVENT_STOP;
    int signal = t->owed;
    while (event != PB_EVENT_EXIT && ptrace(PTRACE_DETACH, t->tid, 0, (void *)(long)signal) < 0)
        if (errno != ESRCH || pb_thread_wait(t, deadline, false, &event, &signal) < 0)
            break;
    note_traced(t->tid, false);
    t->stopped = false;
    return t->since ? pb_now_ns() - t->since : 0;
}
