/* fork_gate: see fork_gate.h. */
#include "agent/core/fork_gate.h"

#include "agent/core/agent_clock.h"
#include "agent/core/futex.h"

/* Longer than a thread that was preempted inside the gate waits for a CPU. */
#define MOST_MS 20

static uint32_t inside;  /* threads of ours */
static uint32_t forking; /* threads of the program */

void pb_fork_gate_enter(void)
{
    for (;;) {
        __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
        uint32_t forks = __atomic_load_n(&forking, __ATOMIC_SEQ_CST);
        if (!forks)
            return;
        pb_fork_gate_leave();
        pb_futex_wait(&forking, forks);
    }
}

void pb_fork_gate_leave(void)
{
    if (__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST) == 0)
        pb_futex_wake(&inside);
}

int pb_fork_gate_each_object(int (*callback)(struct dl_phdr_info *, size_t, void *), void *argument)
{
    pb_fork_gate_enter();
    int r = dl_iterate_phdr(callback, argument);
    pb_fork_gate_leave();
    return r;
}

void pb_fork_gate_close(void)
{
    const int saved = errno;
    uint64_t until = 0;

    __atomic_add_fetch(&forking, 1, __ATOMIC_SEQ_CST);
    for (uint32_t n; (n = __atomic_load_n(&inside, __ATOMIC_SEQ_CST));) {
        const uint64_t now = pb_now_ns();
        until = until ? until : now + MOST_MS * PB_NS_PER_MS;
        if (now >= until)
            break;
        pb_futex_wait_ms(&inside, n, MOST_MS);
    }
    errno = saved;
}

void pb_fork_gate_open(void)
{
    if (__atomic_sub_fetch(&forking, 1, __ATOMIC_SEQ_CST) == 0)
        pb_futex_wake(&forking);
}

void pb_fork_gate_forget(void)
{
    inside = forking = 0;
}
