-- kind: not_joined
-- asks: whether a rank that others wait for could not be read
-- says: {Who} does not answer{so}.
-- evidence: unread | {who} | | {why}
-- evidence: so | {others} | {op_place} | waiting in {op}
-- why: {reason}
-- next: ps -o stat,wchan -p {pid} shows the kernel's view; probing doctor -t {pid} the rights.
SELECT 'silent' AS cause,
       -- On a busy machine a look can be too slow, so a rank is accused only with the kernel's word that it is stuck.
       CASE WHEN state = 'D' AND blocked > 0 AND NOT waiters_moved AND waiting >= 5 THEN 'likely' ELSE 'remark' END AS sure,
       CASE WHEN others IS NOT NULL THEN ', and keeps ' || others || ' waiting' ELSE '' END AS so,
       'Likely: the others wait for it; it sleeps in the kernel, uninterruptibly.' AS reason,
       waiting AS since, blocked AS explains, blocked_ranks AS ranks, *
FROM ends WHERE how = 'silent'
