-- kind: lock_held
-- asks: whether ranks wait for a rank that waits for a lock, and what the holder of the lock does
-- says: {Waiter_rank} holds up the job: it waits for {what} that {holder} holds.
-- evidence: waits | {waiter} {waiter_thread} | {waiter_place} | {waiter_source}
-- evidence: holds | {who} {thread} | {place} | {source}
-- evidence: so | {others} | {op_place} | waiting in {op}
-- why: {reason}
-- next: let the holder work outside of the lock, or find out why its work does not end.
SELECT CASE WHEN waiter_wait = 'file lock' THEN 'file_lock' ELSE 'lock' END AS cause,
       CASE WHEN rank IS NULL THEN who ELSE 'rank ' || rank END AS waiter_rank,
       CASE WHEN waiter_wait = 'file lock' THEN 'a file lock' WHEN waiter_wait = 'mutex' THEN 'a mutex' ELSE 'a lock' END AS what,
       CASE WHEN waiter_same_process THEN 'its own thread "' || thread || '"' ELSE who END AS holder,
       CASE WHEN guessed THEN 'likely' ELSE 'certain' END AS sure,
       CASE WHEN guessed THEN 'Likely: a part of the chain was inferred.'
            ELSE 'Certain: the holder was read, and nothing moved for ' || round(waiting)::INTEGER || ' s.' END AS reason,
       waiting AS since, blocked AS explains, blocked_ranks AS ranks, *
FROM ends
WHERE how IN ('blocked', 'runs', 'together') AND waiter_wait IN ('python lock', 'mutex', 'file lock')
  AND blocked > 0 AND waiting >= 5 AND NOT waiters_moved
