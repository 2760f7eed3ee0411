-- kind: stopped
-- asks: whether a process that others wait for is stopped, by a signal or by a debugger
-- sure: certain
-- says: {Who} is stopped {by}{so}.
-- evidence: stopped | {who} {thread} | {place} | {source}
-- evidence: {waits} | {waiter} {waiter_thread} | {waiter_place} | {waiter_source}
-- evidence: so | {others} | {op_place} | waiting in {op}
-- why: Certain: the kernel says that it is stopped.
-- next: {next}
SELECT CASE WHEN child THEN 'worker_stopped' ELSE 'stopped' END AS kind,
       CASE WHEN tracer IS NOT NULL THEN 'traced' ELSE 'stopped' END AS cause,
       CASE WHEN tracer IS NOT NULL THEN 'by its tracer, process ' || tracer ELSE 'by a signal' END AS by,
       CASE WHEN others IS NOT NULL THEN ', and keeps ' || others || ' waiting' ELSE '' END AS so,
       CASE WHEN child THEN 'waits' END AS waits,
       CASE WHEN tracer IS NOT NULL THEN 'let the debugger go on, or end it (pid ' || tracer || ').'
            ELSE 'find out who stopped it; kill -CONT ' || pid || ' lets it go on.' END AS next,
       waiting AS since, blocked AS explains, blocked_ranks AS ranks, *
FROM ends
WHERE how = 'stopped' AND (NOT child OR waiter IS NOT NULL)
