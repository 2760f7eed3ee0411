-- kind: slow_job
-- needs: python.torch_step
-- asks: whether all ranks lose most of each step for one reason: a lock that they take in turns, or their storage
-- sure: likely
-- says: All ranks lose {percent}% of every step, {because}.
-- evidence: step | {step_ms} ms; {rest_ms} ms of it in none of torch's phases, on the median rank
-- evidence: waits | {waiters} | {place} | {source}
-- evidence: holds | {holder} | {holder_place} | {holder_source}
-- why: Likely: most of each step is in no phase on every rank, and they were seen to wait for the same there.
-- next: {next}
--
-- Where the looks have not met two ranks at the lock, some more looks at one rank decide (recorded.c); what it does
-- then must be a wait too, since a rank may well compute outside of torch's phases.
WITH lengths AS (
    SELECT rank, target_pid AS pid, duration_ms, duration_ms - data_ms - forward_ms - backward_ms - optimizer_ms AS rest_ms,
           row_number() OVER (PARTITION BY target_pid ORDER BY timestamp DESC) AS age
    FROM python.torch_step WHERE coalesce(kind, 'train') = 'train' AND duration_ms > 0
), ranks AS (
    SELECT rank, pid, median(rest_ms / duration_ms) AS share, median(duration_ms) AS step_ms, median(rest_ms) AS rest_ms, count(*) AS n
    FROM lengths WHERE age <= 30 GROUP BY ALL
), whole AS (
    SELECT min(share) AS least, median(share) AS share, median(step_ms) AS step_ms, median(rest_ms) AS rest_ms, count(*) AS ranks, min(n) AS n FROM ranks
), waiting AS (
    SELECT *, count(*) OVER () AS nwaiting FROM threads WHERE main AND NOT child AND rank IS NOT NULL AND wait = 'file lock' AND file IS NOT NULL
), holding AS (
    SELECT * FROM threads h WHERE main AND NOT child AND wait IS DISTINCT FROM 'file lock'
    AND file IN (SELECT file FROM waiting) AND function IN (SELECT function FROM waiting) LIMIT 1
)
SELECT CASE WHEN nwaiting >= 2 THEN 'file_lock' ELSE 'python' END AS cause,
       'since they take a file lock in turns' AS because,
       'take the lock less often, or let one rank do it for all.' AS next,
       round(100 * share)::INTEGER AS percent, round(step_ms)::INTEGER AS step_ms, round(rest_ms)::INTEGER AS rest_ms,
       (SELECT any_value(pid) FROM ranks) AS pid,
       CASE WHEN nwaiting >= 2 THEN 'ranks ' || (SELECT string_agg(rank::VARCHAR, ', ' ORDER BY rank) FROM waiting) END AS waiters,
       w.* EXCLUDE (nwaiting), h.* , whole.ranks AS explains
FROM whole
LEFT JOIN (SELECT place, source, file, line, function, nwaiting FROM waiting WHERE nwaiting >= 2 ORDER BY rank LIMIT 1) w ON true
LEFT JOIN (SELECT 'rank ' || rank AS holder, place AS holder_place, source AS holder_source FROM holding) h ON true
WHERE whole.ranks >= 2 AND whole.n >= 20 AND least >= 0.4 AND whole.rest_ms >= 10
