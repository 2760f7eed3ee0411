/* retry: the one loop of "try, wait, try again until the time is over". Tools only.
 *
 *   struct pb_retry again = pb_retry_until(deadline, PB_NS_PER_MS / 4, 10 * PB_NS_PER_MS);
 *   while ((r = connect_agent(..)) == -EAGAIN && pb_retry_wait(&again))
 *       ;
 *
 * The first try comes before the first wait, and one more after the last: a deadline that passed while the
 * caller slept still gets its answer. */
#pragma once

#include "base/time.h"

#include <stdbool.h>

struct pb_retry {
    uint64_t until;          /* on the monotonic clock; 0: for ever */
    uint64_t pause, longest; /* the next wait, and what waits grow to, doubling */
};

static inline struct pb_retry pb_retry_until(uint64_t until, uint64_t pause, uint64_t longest)
{
    return (struct pb_retry){until, pause, longest};
}

/* Waits before the next try. False, without a wait: the time is over. */
static inline bool pb_retry_wait(struct pb_retry *r)
{
    uint64_t now = r->until ? pb_now_ns() : 0;

    if (r->until && now >= r->until)
        return false;
    pb_sleep_ns(r->until && r->until - now < r->pause ? r->until - now : r->pause);
    r->pause = 2 * r->pause < r->longest ? 2 * r->pause : r->longest;
    return true;
}
