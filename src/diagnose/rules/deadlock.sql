-- kind: deadlock
-- asks: whether threads wait in a circle, each for what the next one holds
-- says: {Whose} deadlocked{what}{so}.
-- evidence: waits | {w0} | {p0} | {s0}
-- evidence: waits | {w1} | {p1} | {s1}
-- evidence: waits | {w2} | {p2} | {s2}
-- evidence: waits | {w3} | {p3} | {s3}
-- evidence: so | {others} | {op_place} | waiting in {op}
-- why: {reason}
-- next: {next}
SELECT 'lock' AS cause, CASE WHEN guessed THEN 'likely' ELSE 'certain' END AS sure,
       CASE WHEN guessed THEN 'Likely: no other thread that could release the lock was found, and nothing moved.'
            ELSE 'Certain: the holders were read from memory, and nothing moved between the looks.' END AS reason,
       CASE WHEN circle = 1 THEN c0.who || ' has' WHEN circle_processes = 1 THEN circle || ' threads of ' || c0.who || ' are'
            ELSE 'ranks ' || (SELECT string_agg(DISTINCT rank::VARCHAR, ', ' ORDER BY rank::VARCHAR) FROM threads m WHERE m.in_circle = e.n)
                 || ' are' END AS whose,
       CASE WHEN circle = 1 THEN ' itself: ' || c0.thread || ' waits for a lock that it holds'
            WHEN circle_processes = 1 THEN ': each waits for a lock that the next one holds'
            ELSE ': each waits for what the next one holds' END AS what,
       CASE WHEN others IS NOT NULL AND circle_processes = 1 THEN '; this keeps ' || others || ' waiting' ELSE '' END AS so,
       CASE WHEN circle = 1 THEN 'take the lock once, or make it an RLock.'
            ELSE 'take the locks in the same order everywhere.' END AS next,
       c0.who || ' ' || c0.thread AS w0, c0.place AS p0, c0.source AS s0,
       c1.who || ' ' || c1.thread AS w1, c1.place AS p1, c1.source AS s1,
       c2.who || ' ' || c2.thread AS w2, c2.place AS p2, c2.source AS s2,
       c3.who || ' ' || c3.thread AS w3, c3.place AS p3, c3.source AS s3,
       c0.file, c0.line, c0.function, c0.source, c0.rank, c0.pid, c0.thread,
       coalesce(waiting, c0.still) AS since, blocked AS explains, blocked_ranks AS ranks, others, e.op, op_place
FROM ends e JOIN threads c0 ON c0.in_circle = e.n AND c0.circle_at = 0
LEFT JOIN threads c1 ON c1.in_circle = e.n AND c1.circle_at = 1
LEFT JOIN threads c2 ON c2.in_circle = e.n AND c2.circle_at = 2
LEFT JOIN threads c3 ON c3.in_circle = e.n AND c3.circle_at = 3
WHERE how = 'circle' AND NOT waiters_moved
