/* crash: see crash.h. The handler calls only async-signal-safe functions, takes no lock, allocates nothing
 * and needs a few hundred bytes of stack: it may run on a signal stack of 8 KB, in a thread that holds any
 * lock. */
#include "agent/crash/crash.h"

#include "agent/core/agent_clock.h"
#include "agent/core/futex.h"
#include "agent/core/wake.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
#define SIGNALS ((int)(sizeof(signals) / sizeof(signals[0])))

#define MEMORY_FAILED_LATER 5 /* BUS_MCEERR_AO: reports a bad page, not a fault of this thread */

/* In this order, except that it is armed again after a crash that the program survived, and may be off at any
 * time. The thread that goes from ARMED to FILLING writes `dying`. */
enum { OFF, ARMED, FILLING, WAITING, REPORTED, HANDLED };

static uint32_t state;
static int32_t process; /* the process that set these handlers: a child made by clone() has them too */
static struct pb_crash dying;
/* A handler set after ours may have saved ours, and pass the signal to it at any later time. Ours then passes
 * it to the handler that was below ours when the other was set; never to itself, although ours may have been
 * set again above. */
static struct {
    struct sigaction before; /* used once, when the kernel calls ours */
    struct sigaction below;  /* used for calls by a later handler, and for a second call */
    int set;                 /* ours was set, and not removed by us */
    int passed;              /* the handler restored `before` */
    int buried;              /* the program set its own handler after ours */
    int lived_on;            /* the program survived `before`: its own handler copes with this signal */
    const char *left_out;    /* why it has no handler of ours; NULL: it has */
} slots[SIGNALS];

static void on_signal(int number, siginfo_t *info, void *context);

static int is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_signal;
}

static int slot_of(int number)
{
    int i = 0;

    while (i < SIGNALS - 1 && signals[i] != number)
        i++;
    return i;
}

/* --- in the thread that fails --------------------------------------------------------------------- */

static void change_state(uint32_t from, uint32_t to)
{
    if (__atomic_compare_exchange_n(&state, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        pb_futex_wake(&state);
}

static void wait_for_keeper(void)
{
    uint64_t now = pb_now_ns(), end = now + PB_CRASH_WAIT_MS * PB_NS_PER_MS;

    for (; now < end; now = pb_now_ns()) {
        uint32_t is = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
        if (is != FILLING && is != WAITING && is != REPORTED)
            return;
        pb_futex_wait_ms(&state, is, (long)((end - now) / PB_NS_PER_MS) + 1);
    }
    /* The keeper had its time: the next thread that fails does not wait for the same scene. */
    change_state(WAITING, HANDLED);
    change_state(REPORTED, HANDLED);
}

static void keep_scene(int number, const siginfo_t *info)
{
    uint32_t armed = ARMED;

    if (__atomic_compare_exchange_n(&state, &armed, FILLING, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        int is_fault = info->si_code > 0;
        dying = (struct pb_crash){.tid = (int32_t)syscall(SYS_gettid),
                                  .signal = number,
                                  .code = info->si_code,
                                  .sender = is_fault ? 0 : info->si_pid,
                                  .address = is_fault ? (uint64_t)(uintptr_t)info->si_addr : 0};
        __atomic_store_n(&state, WAITING, __ATOMIC_RELEASE);
        pb_wake();
    }
    /* A second thread that fails meanwhile waits too: otherwise it would end the process while the keeper
     * reads it. */
    wait_for_keeper();
}

/* Sends the signal to this thread again, with the same information: it comes when the handler returns. */
static void send_again(int number, siginfo_t *info)
{
    long pid = syscall(SYS_getpid), tid = syscall(SYS_gettid);

    if (syscall(SYS_rt_tgsigqueueinfo, pid, tid, number, info) < 0)
        syscall(SYS_tgkill, pid, tid, number);
}

static void call_before(const struct sigaction *before, int number, siginfo_t *info, void *context)
{
    if (before->sa_flags & SA_SIGINFO)
        before->sa_sigaction(number, info, context);
    else
        before->sa_handler(number);
}

static int is_function(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) ||
           (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

static int is_fault(int number, const siginfo_t *info)
{
    return info->si_code > 0 && number != SIGABRT &&
           !(number == SIGBUS && info->si_code == MEMORY_FAILED_LATER);
}

static void happen_again(int number, siginfo_t *info, const struct sigaction *next)
{
    sigaction(number, next, NULL);
    if (!is_fault(number, info))
        send_again(number, info);
}

/* Called by the kernel: restores the former handler and makes the signal happen again. Called by a handler
 * that was set after ours: calls the handler below, as that one expects. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    int i = slot_of(number);
    int first = !__atomic_exchange_n(&slots[i].passed, 1, __ATOMIC_ACQ_REL);
    const struct sigaction *next = first ? &slots[i].before : &slots[i].below;
    struct sigaction now;

    if (sigaction(number, NULL, &now) == 0 && !is_ours(&now)) {
        next = &slots[i].below;
        if (is_function(next))
            call_before(next, number, info, context);
        if (is_function(next) || next->sa_handler == SIG_IGN)
            return;
    }
    slots[i].set = 0;
    happen_again(number, info, next);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    int saved = errno;

    if (process != (int32_t)syscall(SYS_getpid)) {
        /* A child of vfork: its handlers are its own, but these variables are its parent's. */
        happen_again(number, info, &slots[slot_of(number)].before);
    } else {
        keep_scene(number, info);
        errno = saved;
        pass_on(number, info, context);
    }
    errno = saved;
}

/* --- in the resident thread ------------------------------------------------------------------------ */

static int same_handler(const struct sigaction *a, const struct sigaction *b)
{
    return ((a->sa_flags ^ b->sa_flags) & SA_SIGINFO) == 0 &&
           (a->sa_flags & SA_SIGINFO ? a->sa_sigaction == b->sa_sigaction : a->sa_handler == b->sa_handler);
}

static const char *reason_against(int i, const struct sigaction *now)
{
    if (!is_function(now) && now->sa_handler == SIG_IGN)
        return "the program ignores it";
    if (slots[i].lived_on && same_handler(now, &slots[i].before))
        return "the program's own handler deals with it";
    return NULL;
}

/* Like the former handler: the same stack and restarts. Other signals are blocked, except faults, which
 * cannot be. */
static void describe_ours(int i, const struct sigaction *now, struct sigaction *ret)
{
    *ret = (struct sigaction){.sa_sigaction = on_signal};
    ret->sa_flags = SA_SIGINFO | (is_function(now) ? now->sa_flags & (SA_ONSTACK | SA_RESTART) : SA_ONSTACK);
    sigfillset(&ret->sa_mask);
    for (int k = 0; k < SIGNALS; k++)
        if (k != i)
            sigdelset(&ret->sa_mask, signals[k]);
}

static int set_handler(int i)
{
    struct sigaction ours, now, replaced;

    if (sigaction(signals[i], NULL, &now) < 0)
        return -errno;
    slots[i].buried |= slots[i].set && !is_ours(&now);
    if (is_ours(&now))
        return 0;
    /* A thread of the program may set its own handler between two of these calls: that one counts. */
    for (;;) {
        slots[i].left_out = reason_against(i, &now);
        if (slots[i].left_out)
            return 0;
        slots[i].before = now;
        if (!slots[i].buried)
            slots[i].below = now;
        slots[i].passed = slots[i].lived_on = 0;
        slots[i].set = 1;
        describe_ours(i, &now, &ours);
        if (sigaction(signals[i], &ours, &replaced) < 0) {
            slots[i].set = 0;
            return -errno;
        }
        if (same_handler(&replaced, &now))
            return 0;
        sigaction(signals[i], &replaced, NULL);
        slots[i].set = 0;
        now = replaced;
    }
}

int pb_crash_arm(void)
{
    int r = 0;

    process = (int32_t)syscall(SYS_getpid);
    for (int i = 0; r == 0 && i < SIGNALS; i++)
        r = set_handler(i);
    if (r < 0) {
        pb_crash_disarm();
        return r;
    }
    __atomic_store_n(&state, ARMED, __ATOMIC_RELEASE);
    return 0;
}

int pb_crash_left_out(int i, const char **ret_why)
{
    if (i >= SIGNALS)
        return -1;
    *ret_why = slots[i].left_out;
    return signals[i];
}

static void give_back(void)
{
    struct sigaction now;

    for (int i = 0; i < SIGNALS; i++) {
        if (slots[i].set && sigaction(signals[i], NULL, &now) == 0) {
            if (!is_ours(&now))
                slots[i].buried = 1;
            /* A handler that the program has set since stays. */
            else if (sigaction(signals[i], &slots[i].before, &now) == 0 && !is_ours(&now))
                sigaction(signals[i], &now, NULL);
        }
        slots[i].set = 0;
    }
}

void pb_crash_disarm(void)
{
    give_back();
    __atomic_store_n(&state, OFF, __ATOMIC_RELEASE);
    pb_futex_wake(&state);
}

int pb_crash_is_handled(void)
{
    return __atomic_load_n(&state, __ATOMIC_ACQUIRE) == HANDLED;
}

int pb_crash_survived(void)
{
    int signal = dying.signal, i = slot_of(signal);

    slots[i].lived_on = 1;
    slots[i].left_out = "the program's own handler deals with it";
    change_state(HANDLED, ARMED);
    return signal;
}

int pb_crash_take(struct pb_crash *ret)
{
    uint32_t waiting = WAITING;

    if (!__atomic_compare_exchange_n(&state, &waiting, REPORTED, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return 0;
    *ret = dying;
    return 1;
}

void pb_crash_release(void)
{
    change_state(REPORTED, HANDLED);
}

void pb_crash_forget(void)
{
    give_back();
    state = OFF;
}
