-- kind: blocked_call
-- asks: whether ranks wait for a rank that sleeps in a call, and in which
-- sure: likely
-- says: {Who} holds up the job: it has {done} for {waited} s and keeps {others} waiting.
-- evidence: waits | {who} {thread} | {place} | {source}
-- evidence: for | {wait_text} | | {call}
-- evidence: rank | {waiter} {waiter_thread} | {waiter_place} | {waiter_source}
-- evidence: so | {others} | {op_place} | waiting in {op}
-- why: {reason}
-- next: {next}
SELECT CASE wait WHEN 'sleep' THEN 'sleep' WHEN 'socket' THEN 'socket' WHEN 'pipe' THEN 'pipe' WHEN 'child' THEN 'child'
                 WHEN 'file lock' THEN 'file_lock'
                 WHEN 'file' THEN CASE WHEN wait_text LIKE '/dev/%' THEN 'io' ELSE 'fifo' END
                 ELSE CASE WHEN state = 'D' THEN 'disk' WHEN call LIKE 'open%' THEN 'fifo' WHEN call = 'poll' OR call LIKE 'epoll%' OR call LIKE '%select%' THEN 'socket' ELSE 'other' END END AS cause,
       CASE WHEN serves THEN 'waited for clients' ELSE CASE wait WHEN 'sleep' THEN 'slept'
                 WHEN 'socket' THEN 'waited to ' || CASE WHEN writes THEN 'write to ' ELSE 'read from ' END || coalesce(wait_text, 'a socket')
                 WHEN 'pipe' THEN 'waited to ' || CASE WHEN writes THEN 'write to ' ELSE 'read from ' END || coalesce(wait_text, 'a pipe')
                 WHEN 'file' THEN 'waited to ' || CASE WHEN writes THEN 'write to ' ELSE 'read from ' END || coalesce(wait_text, 'a file')
                 WHEN 'child' THEN 'waited for a child'
                 WHEN 'file lock' THEN 'waited for a file lock'
                 WHEN 'poll' THEN 'waited in ' || call
                 ELSE CASE WHEN state = 'D' THEN 'been blocked in the kernel' WHEN call LIKE 'open%' THEN 'waited for the other end of a FIFO'
                           WHEN call IS NOT NULL THEN 'waited in ' || call ELSE 'waited' END END END AS done,
       -- Nobody has to call a server, and a child that is at work may take its time. Who reads both its outputs polls.
       CASE WHEN own_end THEN 'certain' WHEN serves OR (child_moves AND (wait IN ('child', 'pipe') OR (wait = 'poll' AND inside_file LIKE '%/subprocess.py'))) THEN 'remark'
            ELSE 'likely' END AS sure,
       CASE WHEN own_end THEN 'Certain: only it has the other end, so nobody can answer.'
            ELSE 'Likely: nothing moved between the looks, and all others have waited for it for ' || round(waiting)::INTEGER || ' s.' END AS reason,
       CASE wait WHEN 'sleep' THEN 'find out what it sleeps for; nobody else can end this.'
                 WHEN 'child' THEN 'look at the child: it does not end.'
                 ELSE 'give the call a timeout, and look at the other end.' END AS next,
       round(waiting)::INTEGER AS waited, waiting AS since, blocked AS explains, blocked_ranks AS ranks, * EXCLUDE (wait_text, call, waiter, waiter_thread, waiter_place, waiter_source),
       CASE WHEN child THEN waiter END AS waiter, waiter_thread, waiter_place, waiter_source,
       CASE WHEN wait IN ('socket', 'pipe', 'file') THEN wait_text END AS wait_text, call
FROM ends
WHERE how = 'blocked' AND blocked > 0 AND waiting >= 5 AND NOT waiters_moved AND NOT moved AND NOT leaving AND NOT coalesce(waiter_leaving, false)
  AND coalesce(waiter_wait, '') NOT IN ('python lock', 'mutex', 'file lock')
  AND NOT coalesce(inside_file LIKE '%concurrent/futures%' OR inside_file LIKE '%/threading.py' OR inside_file LIKE '%/queue.py'
       OR inside_file LIKE '%multiprocessing/queues.py' OR inside_file LIKE '%multiprocessing/synchronize.py', false)
