-- kind: slow_job
-- needs: python.torch_step
-- asks: whether all ranks lose most of each step to a lock that they take in turns
-- sure: likely
-- says: All ranks lose {percent}% of every step to {what} that they take in turns.
-- evidence: step | {step_ms} ms; {rest_ms} ms of it in none of torch's phases, on the median rank
-- evidence: waits | {waiters} | {place} | {source}
-- evidence: holds | {holder} | {holder_place} | {holder_source}
-- why: Likely: most of each step is in no phase on every rank, and ranks were seen to wait for each other there.
-- next: take the lock less often, or let one rank do it for all.
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
SELECT 'file_lock' AS cause, 'a file lock' AS what, round(100 * share)::INTEGER AS percent, round(step_ms)::INTEGER AS step_ms,
       round(rest_ms)::INTEGER AS rest_ms, 'ranks ' || (SELECT string_agg(rank::VARCHAR, ', ' ORDER BY rank) FROM waiting) AS waiters,
       w.place, w.source, w.file, w.line, w.function, 'rank ' || h.rank AS holder, h.place AS holder_place, h.source AS holder_source,
       whole.ranks AS explains
FROM whole, (SELECT * FROM waiting ORDER BY rank LIMIT 1) w LEFT JOIN holding h ON true
WHERE whole.ranks >= 2 AND whole.n >= 20 AND least >= 0.4 AND whole.rest_ms >= 10 AND w.nwaiting >= 2
