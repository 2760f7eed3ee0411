-- kind: gil_held
-- asks: whether a thread keeps the GIL in C code while others of its process ask for it
-- sure: certain
-- says: {Who} cannot run Python: {thread} keeps the GIL in C{so}.
-- evidence: holds | {who} {thread} | {place} | {source}
-- evidence: waits | {waiter} {waiter_thread} | {waiter_place} | {waiter_source}
-- evidence: so | {others} wait for {who} | {op_place} | in {op}
-- why: Certain: the interpreter names it as the holder twice; Python code would have let go after 5 ms.
-- next: call it in a process of its own, or in a version that releases the GIL.
-- Where those that wait for the rank go on, or have not waited for long, it may let go now and then: as a collector
-- does that runs in every step.
SELECT 'gil' AS cause, waiting AS since, blocked AS explains, blocked_ranks AS ranks,
       CASE WHEN others IS NOT NULL THEN '; ' || others || ' wait for that rank' ELSE '' END AS so, *
FROM ends WHERE how = 'gil' AND NOT waiters_moved AND (blocked = 0 OR waiting >= 5)
