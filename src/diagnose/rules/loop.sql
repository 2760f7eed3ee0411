-- kind: loop
-- asks: whether ranks wait for a rank that runs, and never leaves one function
-- sure: likely
-- says: {Who} holds up the job: it runs in {function} without end and has kept {others} waiting for {waited} s.
-- evidence: runs | {who} {thread} | {place} | {source}
-- evidence: cpu | {percent}% of a CPU | | {native}
-- evidence: so | {others} | {op_place} | waiting in {op}
-- why: {reason}
-- next: look what should end this loop; probing -t {pid} flamegraph shows where its time goes.
SELECT CASE WHEN top_own THEN 'python' ELSE 'native' END AS cause,
       round(100 * cpu)::INTEGER AS percent, round(waiting)::INTEGER AS waited,
       CASE WHEN NOT top_own THEN 'in ' || top_place END AS native,
       CASE WHEN top_own THEN 'Likely: it was in this function in both looks and called nothing else.'
            ELSE 'Likely: it was at this very line in both looks.' END AS reason,
       waiting AS since, blocked AS explains, blocked_ranks AS ranks, *
FROM ends
WHERE how = 'runs' AND blocked > 0 AND waiting >= 5 AND NOT waiters_moved AND NOT young
  AND coalesce(waiter_wait, '') NOT IN ('python lock', 'mutex', 'file lock') AND (top_own OR same) AND function IS NOT NULL
  AND NOT leaving AND NOT coalesce(waiter_leaving, false)
