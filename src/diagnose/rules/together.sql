-- kind: hang
-- asks: whether all ranks of a group are in the same collective, and none goes on
-- sure: likely
-- says: All ranks are in {op} and none goes on: the network or the backend holds them up.
-- evidence: all | {others} | {op_place} | {op_source}
-- why: Likely: nobody is absent, all made the same call, and nothing moved for {waited} s.
-- next: look at the network between the ranks, and at the log of the backend (TORCH_DISTRIBUTED_DEBUG=DETAIL).
SELECT 'backend' AS cause, waiting AS since, round(waiting)::INTEGER AS waited, op_place AS place, blocked AS explains, *
FROM ends WHERE how = 'together' AND NOT waiters_moved AND NOT moved AND waiting >= 5 AND blocked + 1 >= (SELECT world FROM job)
LIMIT 1
