/* hold: see hold.h. */
#include "inject/hold.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "base/err.h"
#include "base/time.h"
#include "inject/find.h"
#include "inject/seccomp.h"
#include "inject/step.h"
#include "inject/target.h"
#include "remote/mem.h"

/* Our system calls do not block; this only keeps a broken kernel from hanging the tool. */
#define SYSCALL_LIMIT (60 * PB_NS_PER_S)

#define PATIENCE (500 * PB_NS_PER_MS)

#define BIT(signal) (1ull << ((signal)-1))

/* Faults stay unblocked: a crash in our code must reach us as a stop, instead of killing the process. */
static const uint64_t faults =
    BIT(SIGSEGV) | BIT(SIGBUS) | BIT(SIGFPE) | BIT(SIGILL) | BIT(SIGTRAP) | BIT(SIGSYS) | BIT(SIGABRT);

/* Blocks all other signals until the thread is restored: a handler that ran inside the stub might leave it by
 * longjmp. Threads that the stub starts inherit the mask. */
static int block_signals(struct pb_hold *h)
{
    uint64_t mask = ~faults;
    return ptrace(PTRACE_SETSIGMASK, h->thread.tid, sizeof(mask), &mask) < 0 ? -errno : 0;
}

uint64_t pb_hold_signal_of_libc(const struct pb_inject_target *target)
{
    return target->info.libc == PB_LIBC_MUSL ? BIT(34) : BIT(33);
}

/* The thread is stopped and its registers are in h->saved. */
static int put_frame(struct pb_hold *h)
{
    pid_t pid = h->thread.pid;
    h->frame_len = pb_arch_frame(&h->saved, h->target->restorer, &h->undo, h->frame, &h->frame_addr,
                                 &h->frame_sp, &h->undo_sp);
    int r = pb_mem_read(pid, h->frame_addr, h->under, h->frame_len);
    if (r < 0)
        return r;
    r = pb_image_write(h->target->image, h->frame_addr, h->frame, h->frame_len);
    if (r < 0)
        return r;
    pb_step("frame written");
    h->active = true;
    return 0;
}

struct pb_hold *pb_hold_alloc(void)
{
    struct pb_hold *h = aligned_alloc(_Alignof(struct pb_hold), sizeof(*h));
    return h ? memset(h, 0, sizeof(*h)) : NULL;
}

int pb_hold_begin(struct pb_hold *h, const struct pb_inject_target *target, uint64_t memory, size_t size,
                  uint64_t deadline, struct pb_hold_stats *stats, struct pb_err *err)
{
    h->target = target;
    h->stats = stats;
    h->active = false;
    h->undo = (struct pb_arch_undo){memory, size, target->syscall_code, ~faults};
    char names[100];
    int r = pb_find_thread(h, deadline, err);
    if (r < 0)
        return r;
    pb_step("thread stopped");
    /* Where filters cannot be read, the checks before have decided. */
    int kills = target->info.seccomp == 2 ? pb_seccomp_check_stopped(h->thread.tid, names, sizeof(names)) : 0;
    if (kills > 0) {
        pb_hold_end(h);
        return pb_fail(
            err, -EPERM,
            "the seccomp filter of thread %d of process %d kills for %s (allow %s in the filter, or "
            "let it return an error)",
            h->thread.tid, target->info.pid, names, kills == 1 ? "it" : "these calls");
    }
    r = put_frame(h);
    if (r < 0) {
        pb_hold_end(h);
        return pb_fail(err, r, "process %d: no room on the stack of thread %d: %s", target->info.pid,
                       h->thread.tid, strerror(-r));
    }
    return 0;
}

/* Runs the thread until the wanted event. Job-control stops and signals meanwhile (only SIGSTOP and faults
 * can come) are passed on with the same request. */
static int run_until(struct pb_hold *h, int request, enum pb_event wanted)
{
    uint64_t deadline = pb_now_ns() + SYSCALL_LIMIT;
    int signal = 0;
    for (;;) {
        enum pb_event event;
        int r = pb_thread_resume(&h->thread, request, signal);
        if (r == 0)
            r = pb_thread_wait(&h->thread, deadline, false, &event, &signal);
        if (r < 0)
            return r;
        if (event == PB_EVENT_EXIT || event == PB_EVENT_EXEC)
            return event == PB_EVENT_EXIT ? -ESRCH : -ESTALE;
        if (event == wanted)
            return 0;
    }
}

/* Enters the call with PTRACE_SYSCALL and leaves it with an interrupt: registers may be restored only in a
 * stop of that kind, where the kernel still decides about restarting the call that we interrupted first. */
int pb_hold_syscall(struct pb_hold *h, long nr, const uint64_t args[6], int64_t *ret)
{
    const struct pb_inject_target *t = h->target;
    if (h->thread.execed)
        return -ESTALE;
    /* If we die before the stub runs, undo_sp makes the thread unmap the memory just mapped. */
    uint64_t pc, sp = nr == SYS_mmap ? h->undo_sp : h->frame_sp;
    int r = pb_arch_set_syscall(h->thread.tid, &h->saved, t->syscall_code, sp, t->restorer, nr, args);
    /* Only once the thread is on its frame, which has its own mask: if we died in between, it would continue
     * with its signals blocked. */
    if (r == 0)
        r = block_signals(h);
    if (r < 0)
        return r;
    pb_step("signals blocked");
    r = run_until(h, PTRACE_SYSCALL, PB_EVENT_SYSCALL);
    if (r < 0)
        return r;
    pb_step("system call entered");
    r = pb_thread_ask(&h->thread);
    if (r == 0)
        r = run_until(h, PTRACE_CONT, PB_EVENT_STOP);
    if (r < 0)
        return r;
    pb_step("system call done");
    return pb_arch_result(h->thread.tid, ret, &pc);
}

/* The signal is either the stub's request, or one of the same number that the program got meanwhile, which is
 * delivered at the end. */
static void keep_signal_of_others(struct pb_hold *h, int signal)
{
    siginfo_t info;
    if (ptrace(PTRACE_GETSIGINFO, h->thread.tid, 0, &info) == 0 &&
        (info.si_code != SI_TKILL || info.si_pid != h->target->info.ns_pid))
        h->thread.owed = signal;
}

/* The stub has ended when the C library's system call instruction has run; before that the pc is in the
 * stub. */
static int is_at_end(struct pb_hold *h, bool *ret)
{
    int64_t value;
    uint64_t pc;
    int r = pb_arch_result(h->thread.tid, &value, &pc);
    *ret = r == 0 && pc - h->target->syscall_code < pb_arch_syscall_len;
    return r;
}

/* A fault for which the program has a handler is not a crash (garbage collectors protect pages). */
static bool is_crash(const struct pb_hold *h, int signal)
{
    return (faults & BIT(signal)) && !(h->target->info.caught & BIT(signal));
}

int pb_hold_run(struct pb_hold *h, bool start, uint64_t code, uint64_t stack, uint64_t stub,
                uint64_t deadline, int *ret_signal)
{
    /* A thread left to its frame ends its sleep with EINTR. A stub that starts threads is done in
     * milliseconds, so it is waited for even after Ctrl-C. */
    const uint64_t soon = pb_now_ns() + PATIENCE, patience = soon < deadline ? soon : deadline;
    int signal = 0, r = 0;
    if (start) {
        r = pb_arch_set_stub(h->thread.tid, &h->saved, code, stack, stub);
        pb_step("stub set");
        if (r == 0)
            r = pb_thread_resume(&h->thread, PTRACE_CONT, 0);
        pb_step("stub running");
    } else if (h->thread.stopped) { /* the stub asked, and was answered */
        r = pb_thread_resume(&h->thread, PTRACE_CONT, 0);
    }
    while (r == 0) {
        enum pb_event event;
        r = pb_thread_wait(&h->thread, patience, false, &event, &signal);
        if (r == -ETIMEDOUT && patience < deadline)
            r = pb_thread_wait(&h->thread, deadline, true, &event, &signal);
        if (r < 0)
            return r;
        if (event == PB_EVENT_EXIT || event == PB_EVENT_EXEC)
            return event == PB_EVENT_EXIT ? -ESRCH : -ESTALE;
        if (event == PB_EVENT_SIGNAL && signal == h->target->signal) {
            bool end;
            r = is_at_end(h, &end);
            keep_signal_of_others(h, signal);
            return r < 0 ? r : end ? 0 : 1;
        }
        if (event == PB_EVENT_SIGNAL && is_crash(h, signal)) {
            *ret_signal = signal;
            return -EFAULT;
        }
        r = pb_thread_resume(&h->thread, PTRACE_CONT, signal);
    }
    return r;
}

/* Restores the thread, registers last; it stays stopped. */
static int restore_thread(struct pb_hold *h)
{
    if (!h->active || h->thread.execed)
        return 0;
    int r = pb_arch_restore(h->thread.tid, &h->saved);
    if (r < 0)
        return r;
    pb_step("registers restored");
    h->active = false;
    return pb_image_write(h->target->image, h->frame_addr, h->under, h->frame_len);
}

static void let_go(struct pb_hold *h)
{
    h->stats->process_stopped = h->thread.group_stop;
    h->stats->stops = h->thread.stops;
    uint64_t ns = pb_thread_release(&h->thread);
    pb_hurry_end();
    h->stats->total_ns += ns;
    if (ns > h->stats->longest_ns)
        h->stats->longest_ns = ns;
}

void pb_hold_end(struct pb_hold *h)
{
    restore_thread(h);
    let_go(h);
    pb_step("thread released");
}

void pb_hold_abandon(struct pb_hold *h)
{
    if (!h->thread.stopped && pb_thread_ask(&h->thread) == 0) {
        enum pb_event event;
        int signal;
        pb_thread_wait(&h->thread, pb_now_ns() + PB_NS_PER_S, false, &event, &signal);
    }
    let_go(h);
}
