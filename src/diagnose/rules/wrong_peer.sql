-- kind: mismatch
-- asks: whether a rank receives from one rank while another one sends to it, or the reverse
-- sure: certain
-- says: {Who} waits for rank {peer} in {op}, but rank {sender} waits for it in {their_op}.
-- evidence: waits | {who} {thread} | {place} | {source}
-- evidence: waits | rank {sender} | {their_place} | {their_source}
-- evidence: not | rank {peer} | {other_place} | {other_source}
-- why: Certain that the pairs differ: the other rank was read from the variables of each call.
-- next: compare the ranks in both calls; a send and its receive must name each other.
SELECT 'peer' AS cause, t.*, s.rank AS sender, s.op AS their_op, s.place AS their_place, s.source AS their_source,
       o.place AS other_place, o.source AS other_source, t.still AS since,
       (SELECT count(*) FROM threads WHERE subject AND op IS NOT NULL) - 1 AS explains
FROM threads t JOIN threads s ON s.subject AND s.peer = t.rank AND s.rank <> t.peer AND (s.op LIKE '%send%') <> (t.op LIKE '%send%')
JOIN threads o ON o.main AND NOT o.child AND o.rank = t.peer
  AND NOT coalesce(o.peer = t.rank AND (o.op LIKE '%send%') <> (t.op LIKE '%send%'), false)
WHERE t.subject AND t.peer IS NOT NULL AND NOT t.moved AND NOT s.moved
