/* retry: the one loop of "try, wait, try again until the time is over". Tools only.
 *
 *   struct pb_retry again = pb_retry_until(deadline, PB_NS_PER_MS / 4, 10 * PB_NS_PER_MS);
 *   while ((r = connect_agent(..)) == -EAGAIN && pb_retry_wait(&again))
 *       ;
 *
 * The first try comes before the first wait, and one more after the last: a deadline that passed while the
 * caller slept still gets its answer.
 *
 * Loops that are not this, and why:
 *   pb_moment_read (remote/moment.h)  tries a reading until it is proved. How depends on what the thread
 *                                     does, and a try costs the target: tries are counted. The sampler does
 *                                     the same as a machine of steps (profile/steps.h).
 *   begin_through (remote/moment.c)   counts as well: each look asks the target's agent.
 *   wait_for_stop (remote/trace.c)    spins, then sleeps until the kernel wakes it: a stopped thread stands
 *                                     still for as long as its stop is not noticed.
 *   archive_commit.c, archive_list.c  look once or twice more, without a wait: the race they lost is over.
 *   src/agent/                        uses nothing of base/. */
#pragma once

#include "base/time.h"

#include <stdbool.h>

struct pb_retry {
    uint64_t until;          /* on the monotonic clock; 0: for ever */
    uint64_t pause, longest; /* the next wait, and what waits grow to, doubling */
    bool uneven;             /* waits are longer by a part that differs: callers that began together part */
};

static inline struct pb_retry pb_retry_until(uint64_t until, uint64_t pause, uint64_t longest)
{
    return (struct pb_retry){.until = until, .pause = pause, .longest = longest};
}

/* Waits before the next try. False, without a wait: the time is over. */
static inline bool pb_retry_wait(struct pb_retry *r)
{
    uint64_t now = r->until || r->uneven ? pb_now_ns() : 0, pause = r->pause;

    if (r->until && now >= r->until)
        return false;
    /* The low digits of the clock are random enough here, and differ between callers. */
    if (r->uneven)
        pause += now / 16 % r->pause;
    pb_sleep_ns(r->until && r->until - now < pause ? r->until - now : pause);
    r->pause = 2 * r->pause < r->longest ? 2 * r->pause : r->longest;
    return true;
}
