-- kind: worker_gone
-- asks: whether a worker that a data loader or a pool waits for has ended
-- sure: certain
-- says: {Who} has ended{ended}, and {waiter} waits for it{so}.
-- evidence: ended | {who} | | {command}
-- evidence: waits | {waiter} {waiter_thread} | {waiter_place} | {waiter_source}
-- evidence: so | {others} wait for {waiter} | {op_place} | in {op}
-- why: {reason}
-- next: find out why the worker ended: its memory, or an exception in its own log.
SELECT CASE WHEN waiter_wait = 'data loader worker' THEN 'certain' ELSE 'likely' END AS sure,
       CASE WHEN signal = 9 THEN 'killed' WHEN signal IS NOT NULL THEN 'signal' ELSE 'exit' END AS cause,
       CASE WHEN signal = 9 THEN ' (killed, SIGKILL)' WHEN signal IS NOT NULL THEN ' (signal ' || signal || ')'
            WHEN status <> 0 THEN ' (exit status ' || status || ')' ELSE '' END AS ended,
       CASE WHEN waiter_wait = 'data loader worker' THEN 'Certain: the kernel still has how it ended.'
            ELSE 'Likely: the kernel still has how it ended, and nothing else that could end the wait was found.' END AS reason,
       CASE WHEN others IS NOT NULL THEN '; ' || others || ' wait for that rank' ELSE '' END AS so,
       waiting AS since, blocked AS explains, blocked_ranks AS ranks,
       coalesce(e.file, t.file) AS file, coalesce(e.line, t.line) AS line,
       coalesce(e.function, t.function) AS function, coalesce(e.source, t.source) AS source, e.* EXCLUDE (file, line, function, source)
FROM ends e LEFT JOIN (SELECT rank AS its, file, line, function, source FROM threads WHERE main AND NOT child) t
  ON t.its IS NOT DISTINCT FROM e.rank
WHERE how = 'dead' AND child AND (waiter_wait = 'data loader worker' OR (signal IS NOT NULL AND blocked > 0 AND NOT waiters_moved))
