-- kind: loop
-- asks: whether ranks wait for a rank that polls: it sleeps again and again on one line
-- sure: likely
-- says: {Who} holds up the job: {function} polls for something that does not happen, and keeps {others} waiting.
-- evidence: polls | {who} {thread} | {place} | {source}
-- evidence: so | {others} | {op_place} | waiting in {op}
-- why: Likely: it slept on this line in both looks and ran between them, and the others wait for {waited} s.
-- next: look what should end this loop, and give it a limit.
SELECT 'polling' AS cause, round(waiting)::INTEGER AS waited, waiting AS since, blocked AS explains,
       blocked_ranks AS ranks, *
FROM ends
WHERE how = 'blocked' AND wait = 'sleep' AND moved AND same AND top_own AND blocked > 0 AND waiting >= 10
  AND NOT waiters_moved AND NOT leaving
