-- kind: queue_empty
-- asks: whether ranks wait for a rank that waits for something that nobody puts, sets or releases
-- sure: likely
-- says: {Who} holds up the job: it has waited for {what} for {waited} s.
-- evidence: waits | {who} {thread} | {place} | {source}
-- evidence: so | {others} | {op_place} | waiting in {op}
-- why: Likely: nothing moved, and no thread of it that could end the wait was found at work.
-- next: find out who should have ended this wait: a thread or process that died, or an error that was swallowed.
SELECT CASE WHEN inside_file LIKE '%concurrent/futures%' OR function IS NULL THEN 'future_unset'
            WHEN inside_function IN ('join', '_wait_for_tstate_lock') AND inside_file NOT LIKE '%queue.py' THEN 'blocked_call'
            ELSE 'queue_empty' END AS kind,
       CASE WHEN inside_file LIKE '%concurrent/futures%' THEN 'future'
            WHEN inside_file LIKE '%multiprocessing/synchronize.py' AND inside_function IN ('__enter__', 'acquire') THEN 'mp_lock'
            WHEN inside_file LIKE '%multiprocessing/%' THEN 'mp_queue'
            WHEN inside_file LIKE '%queue.py' THEN 'queue'
            WHEN inside_function IN ('join', '_wait_for_tstate_lock') THEN 'thread'
            WHEN wait = 'python lock' THEN 'lock' ELSE 'condition' END AS cause,
       CASE WHEN inside_file LIKE '%concurrent/futures%' THEN 'a future that nobody has set'
            WHEN inside_file LIKE '%multiprocessing/synchronize.py' AND inside_function IN ('__enter__', 'acquire')
            THEN 'a lock of multiprocessing that no process releases'
            WHEN inside_function = 'join' AND inside_file LIKE '%queue.py' THEN 'a queue that nobody works off'
            WHEN inside_file LIKE '%queue.py' OR inside_file LIKE '%multiprocessing/%' THEN 'a queue that nobody fills'
            WHEN inside_function IN ('join', '_wait_for_tstate_lock') THEN 'a thread that does not end'
            ELSE 'an event, a condition or a semaphore that nobody sets' END AS what,
       round(waiting)::INTEGER AS waited, waiting AS since, blocked AS explains, blocked_ranks AS ranks, *
FROM ends
WHERE how = 'blocked' AND blocked > 0 AND waiting >= 5 AND NOT waiters_moved AND NOT moved AND NOT child AND NOT leaving AND NOT coalesce(waiter_leaving, false)
  AND coalesce(waiter_wait, '') NOT IN ('python lock', 'mutex', 'file lock')
  AND (inside_file LIKE '%concurrent/futures%' OR inside_file LIKE '%/threading.py' OR inside_file LIKE '%/queue.py'
       OR inside_file LIKE '%multiprocessing/queues.py' OR inside_file LIKE '%multiprocessing/synchronize.py')
