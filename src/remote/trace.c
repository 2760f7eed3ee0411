/* trace: see trace.h. */
#include "remote/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/procfs.h"
#include "base/time.h"
#include "remote/interrupted.h"
#include "remote/transfer.h"

#ifndef sigev_notify_thread_id /* musl has the name, older glibcs the field only */
#define sigev_notify_thread_id _sigev_un._tid
#endif

#define SPIN_NS  20000          /* a thread on another CPU stops within this; being woken takes longer */
#define TURN_NS  (PB_NS_PER_MS) /* how long we sleep at a time while waiting for the stop */
#define LATE_MAX 64

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

/* Threads that did not stop in time; tid 0: free. Written by our tracing thread, read by the handler. */
static struct late {
    _Atomic pid_t tid;
    pid_t pid, tracer;
    struct pb_waiting before; /* the call it waited in when it was asked to stop */
} late[LATE_MAX];
static atomic_bool woke;

static pid_t self(void)
{
    return (pid_t)syscall(SYS_gettid);
}

/* Writes "/proc/PID/status" without printf, which the signal handler may have interrupted. */
static void write_path(char path[32], pid_t pid)
{
    char digits[16];
    int n = 0, at = 6;

    memcpy(path, "/proc/", 6);
    do
        digits[n++] = (char)('0' + pid % 10);
    while (pid /= 10);
    while (n)
        path[at++] = digits[--n];
    memcpy(path + at, "/status", sizeof("/status"));
}

/* A number from the status of a process; key as "\nPPid:". 0: it is gone, or has none. Signal-safe. */
static pid_t number_of(pid_t pid, const char *key)
{
    char path[32], text[4096];
    pid_t number = 0;

    write_path(path, pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *p = strstr(text, key);
    for (p = p ? p + strlen(key) : ""; *p == '\t' || (*p >= '0' && *p <= '9'); p++)
        number = *p == '\t' ? 0 : number * 10 + (*p - '0');
    return number;
}

/* The parent of a process that ended while traced is notified only after we have waited for it. If we are its
 * parent, the code that started it waits for it, not this. */
static void reap_thread(pid_t tid)
{
    if (number_of(tid, "\nPPid:") != getpid())
        waitpid(tid, NULL, __WALL | WNOHANG);
}

/* 1: it is stopped, and *ret_signal must be delivered; 0: not yet; -ESRCH: it ended, or is not traced. how:
 * WNOHANG: do not wait; 0: wait until a signal comes. */
static int look_for_stop(pid_t tid, int how, int *ret_signal)
{
    siginfo_t info = {.si_pid = 0};

    if (waitid(P_PID, (id_t)tid, &info, WSTOPPED | WEXITED | WNOWAIT | __WALL | how) < 0)
        return errno == EINTR ? 0 : -ESRCH;
    if (info.si_pid == 0)
        return 0;
    if (info.si_code != CLD_TRAPPED && info.si_code != CLD_STOPPED) {
        reap_thread(tid);
        return -ESRCH;
    }
    *ret_signal = info.si_status >> 8 == PTRACE_EVENT_STOP ? 0 : info.si_status & 0x7f;
    return 1;
}

static atomic_uint restarts;

unsigned pb_trace_restarts(void)
{
    return restarts;
}

static void mend(pid_t pid, pid_t tid, const struct pb_waiting *before, int signal)
{
    struct pb_interrupted was;

    if (pb_interrupted_mend(pid, tid, before, signal, &was) == 0 && was.was && was.finite)
        restarts++;
}

/* Releases a thread that is or will be stopped. True: nothing is left to do. */
static bool release_late(pid_t pid, pid_t tid, const struct pb_waiting *before)
{
    int signal;

    int r = look_for_stop(tid, WNOHANG, &signal);
    /* A thread that calls execve continues under the id of its process. */
    if (r == -ESRCH && tid != pid && number_of(pid, "\nTracerPid:") == self()) {
        tid = pid;
        r = look_for_stop(tid, WNOHANG, &signal);
    }
    if (r == 1)
        mend(pid, tid, before, signal);
    if (r == 1)
        return ptrace(PTRACE_DETACH, tid, NULL, (void *)(intptr_t)signal) == 0;
    return r < 0;
}

/* Any thread of ours may get the signal; only the tracing one can act on it. */
static void settle_late(int number, siginfo_t *info, void *context)
{
    int saved = errno;

    for (int i = 0; i < LATE_MAX; i++) {
        struct late *l = &late[i];
        pid_t tid = l->tid;
        if (!tid)
            continue;
        if (l->tracer == self()) {
            if (release_late(l->pid, tid, &l->before))
                l->tid = 0;
        } else if (info && info->si_code != SI_TKILL) {
            syscall(SYS_tgkill, getpid(), l->tracer, SIGCHLD);
        }
    }
    woke = info != NULL || woke;
    errno = saved;
}

bool pb_trace_woke_us(void)
{
    return atomic_exchange(&woke, false);
}

static bool listen_for_stops(void)
{
    static atomic_bool done;
    struct sigaction action = {.sa_sigaction = settle_late, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigset_t set;

    if (!done)
        done = sigaction(SIGCHLD, &action, NULL) == 0;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    return done && pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0;
}

/* Whether it still has not stopped since an earlier request; or there is no room to remember one more. */
static bool is_late(pid_t tid)
{
    bool full = true;

    for (int i = 0; i < LATE_MAX; i++) {
        if (late[i].tid == tid)
            return true;
        full = full && late[i].tid;
    }
    return full;
}

static void leave_to_handler(pid_t pid, pid_t tid, const struct pb_waiting *before)
{
    if (!listen_for_stops())
        return;
    for (int i = 0; i < LATE_MAX; i++) {
        if (late[i].tid)
            continue;
        late[i].pid = pid;
        late[i].tracer = self();
        late[i].before = *before;
        late[i].tid = tid;
        break;
    }
    /* It may have stopped before it was in the list. */
    settle_late(SIGCHLD, NULL, NULL);
}

static void end_turn(int number)
{
}

/* A timer of the calling thread that ends its waits, since waitid has no timeout. It repeats until disarmed,
 * so that none is missed between two waits. */
static timer_t *turn_timer(void)
{
    static _Thread_local timer_t timer;
    static _Thread_local enum { UNTRIED, FAILED, MADE } state;
    struct sigaction action = {.sa_handler = end_turn};
    sigset_t set;

    if (state == UNTRIED) {
        struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMAX};
        event.sigev_notify_thread_id = self();
        sigemptyset(&set);
        sigaddset(&set, SIGRTMAX);
        state = sigaction(SIGRTMAX, &action, NULL) == 0 && pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0 &&
                        timer_create(CLOCK_MONOTONIC, &event, &timer) == 0
                    ? MADE
                    : FAILED;
    }
    return state == MADE ? &timer : NULL;
}

static void set_timer(timer_t *timer, uint64_t ns)
{
    struct timespec t = {.tv_nsec = (long)ns};
    (void)timer_settime(*timer, 0, &(struct itimerspec){t, t}, NULL);
}

/* Sleeps until it stops: the kernel wakes us then, and it may use our CPU meanwhile. */
static int sleep_until_stop(pid_t tid, uint64_t until, int *ret_signal)
{
    timer_t *timer = turn_timer();
    int r;

    if (timer)
        set_timer(timer, TURN_NS);
    while ((r = look_for_stop(tid, timer ? 0 : WNOHANG, ret_signal)) == 0 && pb_now_ns() < until)
        if (!timer)
            pb_sleep_ns(SPIN_NS);
    if (timer)
        set_timer(timer, 0);
    return r ? r : -ETIMEDOUT;
}

/* With one CPU, the thread that must stop runs only when we do not. */
static bool may_spin(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 1;
}

/* A thread that runs on another CPU stops within microseconds, and waits until we see it: for these we poll
 * without sleeping. If it has not stopped by then it waits for a CPU, perhaps ours. No sched_yield: with
 * real-time priority it yields to no thread of lower priority. */
static int wait_for_stop(pid_t tid, uint64_t within_ns, int *ret_signal)
{
    uint64_t began = pb_now_ns();
    int r = 0;

    if (may_spin())
        while ((r = look_for_stop(tid, WNOHANG, ret_signal)) == 0 && pb_now_ns() < began + SPIN_NS)
            ;
    if (r == 0)
        r = sleep_until_stop(tid, began + within_ns, ret_signal);
    return r < 0 ? r : 0;
}

/* Ctrl-Z must not stop us while we hold a thread: it would stay stopped until this command is continued. */
static void hold_back_ctrl_z(bool hold)
{
    static _Thread_local unsigned held;
    static _Thread_local bool ours;
    sigset_t set, before;

    sigemptyset(&set);
    sigaddset(&set, SIGTSTP);
    if (hold && held++ == 0)
        ours = pthread_sigmask(SIG_BLOCK, &set, &before) == 0 && !sigismember(&before, SIGTSTP);
    else if (!hold && --held == 0 && ours)
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* For a zombie the kernel returns EPERM. */
static bool has_ended(pid_t tid)
{
    char text[4096];
    const char *state =
        pb_proc_read(tid, "status", text, sizeof(text)) > 0 ? pb_proc_field(text, "State") : NULL;

    return !state || *state == 'Z' || *state == 'X';
}

static bool may_be_stopped(pid_t pid, pid_t tid, const struct pb_waiting *w, bool once)
{
    return ((once && pb_waiting_keeps_its_time(w)) || !pb_waiting_would_begin_anew(pid, w)) &&
           !pb_transfer_waits(pid, tid, w);
}

static int stop_thread(pid_t pid, pid_t tid, int syscall_fd, bool once, uint64_t within_ns, int *ret_signal)
{
    struct pb_waiting before = {.number = -1};

    if (is_late(tid))
        return -EBUSY;
    if (pb_waiting_read(pid, tid, syscall_fd, &before) == 1 && !may_be_stopped(pid, tid, &before, once))
        return -EINPROGRESS;
    if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) < 0)
        return errno == EPERM && has_ended(tid) ? -ESRCH : -errno;
    /* Any stop is good enough, the requested one or a signal's: the release cancels the request. */
    int r =
        ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) < 0 ? -errno : wait_for_stop(tid, within_ns, ret_signal);
    if (r < 0)
        leave_to_handler(pid, tid, &before);
    else /* before anything else: if we die now, it continues correctly */
        mend(pid, tid, &before, *ret_signal);
    return r;
}

static int stop_without_ctrl_z(pid_t pid, pid_t tid, int syscall_fd, bool once, uint64_t within_ns,
                               int *ret_signal)
{
    hold_back_ctrl_z(true);
    int r = stop_thread(pid, tid, syscall_fd, once, within_ns, ret_signal);
    if (r < 0)
        hold_back_ctrl_z(false);
    return r;
}

int pb_trace_stop(pid_t pid, pid_t tid, int syscall_fd, uint64_t within_ns, int *ret_signal)
{
    return stop_without_ctrl_z(pid, tid, syscall_fd, false, within_ns, ret_signal);
}

int pb_trace_stop_once(pid_t pid, pid_t tid, uint64_t within_ns, int *ret_signal)
{
    return stop_without_ctrl_z(pid, tid, -1, true, within_ns, ret_signal);
}

void pb_trace_let_go(pid_t pid, pid_t tid, int signal)
{
    static const struct pb_waiting nothing = {.number = -1};

    /* A thread that was killed meanwhile cannot be released: its end must be waited for. */
    if (ptrace(PTRACE_DETACH, tid, NULL, (void *)(intptr_t)signal) < 0)
        leave_to_handler(pid, tid, &nothing);
    hold_back_ctrl_z(false);
}
