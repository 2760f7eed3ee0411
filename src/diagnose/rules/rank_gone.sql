-- kind: rank_gone
-- asks: whether a rank has ended while others of its job still wait for it
-- says: {Who} {ended}{so}.
-- evidence: ended | {who}, pid {pid} | | {how_ended}
-- evidence: so | {others} | {op_place} | waiting in {op}
-- why: {reason}
-- next: end the job, the others cannot go on; the log of {who} has the reason.
SELECT CASE WHEN signal = 9 THEN 'killed' WHEN signal IS NOT NULL THEN 'signal' WHEN status IS NOT NULL THEN 'exit' END AS cause,
       CASE WHEN signal = 9 THEN 'was killed (SIGKILL)'
            WHEN signal IS NOT NULL THEN 'died of signal ' || signal
            WHEN status IS NOT NULL THEN 'has ended with exit status ' || status
            ELSE 'is gone: no process of it is left' END AS ended,
       CASE WHEN signal IS NOT NULL THEN 'by signal ' || signal
            WHEN status IS NOT NULL THEN 'with exit status ' || status END AS how_ended,
       CASE WHEN others IS NOT NULL THEN ', and ' || others || CASE WHEN blocked = 1 THEN ' waits' ELSE ' wait' END
            || ' for it' ELSE '' END AS so,
       CASE WHEN state = 'Z' THEN 'certain' ELSE 'likely' END AS sure,
       CASE WHEN state = 'Z' THEN 'Certain: the kernel still has how it ended.'
            ELSE 'Likely: the job has ' || (SELECT world FROM job) || ' ranks, and this one is not there; how it ended is not known.' END
         AS reason,
       waiting AS since, blocked AS explains, blocked_ranks AS ranks, *
FROM ends
WHERE how = 'dead' AND NOT child AND NOT lone
  -- one that has recorded its end is judged by that (rank_died), unless others wait for it
  AND (blocked > 0 OR NOT EXISTS (SELECT 1 FROM ended d WHERE d.rank = ends.rank AND d.has_run))
  AND ((state = 'Z' AND (signal IS NOT NULL OR status <> 0))
       -- of one that left nothing: the others wait, or are still there some seconds later, and none begins yet
       OR (((blocked > 0 AND NOT waiters_moved)
            OR ((SELECT looked_again FROM job) AND EXISTS (SELECT 1 FROM threads WHERE main AND NOT child)))
           AND NOT EXISTS (SELECT 1 FROM threads WHERE NOT child
                           AND (young OR op IN ('init_process_group', '_store_based_barrier', '_new_process_group_helper')))))
