-- kind: left_loop
-- asks: whether a rank is on its way out of the program while others wait for it
-- sure: likely
-- says: {Who} has left its loop and is on its way out, and keeps {others} waiting.
-- evidence: stands | {who} {thread} | {place} | {source}
-- evidence: so | {others} | {op_place} | waiting in {op}
-- why: Likely: it waits for its threads or its process group to end, and nothing moved for {waited} s.
-- next: find out why only {who} left: fewer batches, a break, or an exception that was caught; see its log.
SELECT 'atexit' AS cause, round(waiting)::INTEGER AS waited, waiting AS since, blocked AS explains, blocked_ranks AS ranks, *
FROM ends
WHERE (leaving OR waiter_leaving) AND how IN ('blocked', 'runs') AND blocked > 0 AND waiting >= 5 AND NOT waiters_moved
