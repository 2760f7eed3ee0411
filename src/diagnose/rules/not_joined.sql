-- kind: not_joined
-- asks: whether ranks wait for long for a rank that is at work elsewhere
-- says: {Who} has not joined {others} in {op}: it runs {place} and moves.
-- evidence: runs | {who} {thread} | {place} | {source}
-- evidence: so | {others} | {op_place} | {op_source}
-- why: {reason}
-- next: probing -t {pid} flamegraph shows what it does.
SELECT CASE WHEN waiting >= 60 THEN 'likely' ELSE 'remark' END AS sure,
       'Likely: the others wait for ' || round(waiting)::INTEGER || ' s; why it is late is open.' AS reason,
       waiting AS since, blocked AS explains, blocked_ranks AS ranks, *
FROM ends
WHERE how = 'runs' AND blocked > 0 AND waiting >= 5 AND NOT waiters_moved AND op IS NOT NULL
