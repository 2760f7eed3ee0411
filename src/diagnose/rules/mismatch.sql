-- kind: mismatch
-- asks: whether ranks that wait for each other are in different collectives
-- sure: certain
-- says: {says}
-- evidence: {many} | {many_op} | {many_place} | {many_source}
-- evidence: {few} | {few_op} | {few_place} | {few_source}
-- evidence: {third} | {third_op} | {third_place} | {third_source}
-- evidence: {many} | {many_args}
-- evidence: {few} | {few_args}
-- why: {reason}
-- next: find out why {few} gets to {few_place}; all ranks must make the same calls in the same order.
WITH standing AS (
    SELECT *, coalesce(group_name, max(group_name) OVER (PARTITION BY op)) AS its_group,
           coalesce(signature, max(signature) OVER (PARTITION BY op)) AS its_signature
    FROM threads WHERE subject AND op IS NOT NULL AND rank IS NOT NULL
), plain AS (SELECT count(DISTINCT op || coalesce(its_group, '')) = 1 AS same_call FROM standing),
calls AS (
    SELECT op, its_group, CASE WHEN same_call THEN its_signature END AS arguments, count(*) AS n,
           list(rank ORDER BY rank) AS its, arg_min(place, rank) AS place, arg_min(source, rank) AS source,
           arg_min(file, rank) AS file, arg_min(line, rank) AS line, arg_min(function, rank) AS function,
           min(still) AS still, bool_or(moved) AS moved
    FROM standing, plain GROUP BY 1, 2, 3
), ranked AS (SELECT *, row_number() OVER (ORDER BY n DESC, its[1]) AS pos,
                     CASE WHEN n = 1 THEN 'rank ' ELSE 'ranks ' END || array_to_string(its, ', ') AS who,
                     CASE WHEN n = 1 THEN ' calls ' ELSE ' call ' END || op AS does FROM calls),
several AS (SELECT max(pos) AS n, bool_or(moved) AS moved, min(still) AS still FROM ranked)
SELECT CASE WHEN a.op <> b.op THEN 'operation' WHEN a.its_group IS DISTINCT FROM b.its_group THEN 'group'
            ELSE 'size' END AS cause,
       CASE WHEN a.op <> b.op THEN 'The ranks disagree on the next collective: ' || b.who || b.does || ', ' || a.who || a.does || '.'
            WHEN a.its_group IS DISTINCT FROM b.its_group
            THEN 'The ranks call ' || a.op || ' in different groups: ' || b.who || ' in group ' || coalesce(b.its_group, '?')
                 || ', ' || a.who || ' in group ' || coalesce(a.its_group, '?') || '.'
            ELSE 'The ranks call ' || a.op || ' with tensors that differ: ' || b.who || ' differs from ' || a.who || '.' END AS says,
       'Certain that the calls differ' || CASE WHEN b.n < a.n THEN '; ' || b.who || ' is named because it is '
            || CASE WHEN b.n = 1 THEN 'alone.' ELSE 'in the minority.' END
            ELSE '; which side is wrong is open.' END AS reason,
       CASE WHEN b.n < a.n AND b.n = 1 THEN b.its[1] END AS rank,
       a.who AS many, a.op AS many_op, a.place AS many_place, a.source AS many_source, a.arguments AS many_args,
       b.who AS few, b.op AS few_op, b.place AS few_place, b.source AS few_source, b.arguments AS few_args,
       c.who AS third, c.op AS third_op, c.place AS third_place, c.source AS third_source,
       b.file, b.line, b.function, b.source, s.still AS since, array_to_string(a.its, ', ') AS ranks, a.n AS explains
FROM several s JOIN ranked a ON a.pos = 1 JOIN ranked b ON b.pos = s.n AND s.n > 1
LEFT JOIN ranked c ON c.pos = 2 AND s.n > 2
WHERE NOT s.moved AND NOT EXISTS (SELECT 1 FROM ends WHERE how NOT IN ('differs', 'together') AND NOT child)
  AND NOT EXISTS (SELECT 1 FROM threads WHERE subject AND peer IS NOT NULL)
  AND EXISTS (SELECT 1 FROM ends WHERE how IN ('differs', 'together') AND NOT waiters_moved)
