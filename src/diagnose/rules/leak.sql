-- kind: leak
-- needs: memory_usage, resource_usage, memory_allocations
-- asks: what a process holds more and more of, and where it is allocated
-- sure: likely
-- says: {Who} {leaks}: {grown} in {seconds} s, steadily{so}.
-- evidence: {what} | from {first} to {last} {unit}
-- evidence: limit | {limit}
-- evidence: line | {place} | | {alive_mb} MB from there are alive
-- evidence: others | {others}
-- why: Likely: it grew in every quarter of that time, the last part as fast as the first, and {reason}.
-- next: {next}
-- more: probing -t {pid} memory
--
-- A series is a leak if the medians of its quarters rise and its second half grows at least half as fast as the
-- whole: what reaches a plateau does not. A start looks like that too, on all ranks alike; so what all ranks do, or
-- a process without ranks, must have gone on for a minute, and what one rank does for 16 s. Memory needs a second
-- witness: blocks that are alive and came lately, or shared memory that grows with it. Where it grows by little, only
-- results that are kept with their graphs count (cause "small"; recorded.c looks for them).
WITH series AS (
    SELECT rank, target_pid AS pid, timestamp AS moment, 'memory' AS what, memory_mb AS value FROM memory_usage
    UNION ALL SELECT rank, target_pid, timestamp, 'threads', threads FROM memory_usage
    UNION ALL SELECT rank, target_pid, timestamp, 'descriptors', descriptors FROM resource_usage
    UNION ALL SELECT rank, target_pid, timestamp, 'children', children FROM resource_usage
    UNION ALL SELECT rank, target_pid, timestamp, 'shared memory', shared_mb FROM resource_usage
), placed AS (
    SELECT *, ntile(5) OVER (PARTITION BY pid, what ORDER BY moment) AS fifth,
           max(moment) OVER (PARTITION BY pid, what) AS newest FROM series WHERE value IS NOT NULL
), late AS (
    SELECT *, ntile(4) OVER (PARTITION BY pid, what ORDER BY moment) AS quarter, epoch(moment) AS t
    FROM placed WHERE fifth > 1 AND moment > newest - INTERVAL 10 MINUTE
), summed AS (
    SELECT rank, pid, what, count(*) AS n, epoch(max(moment) - min(moment)) AS seconds, arg_min(value, moment) AS first,
           arg_max(value, moment) AS last,
           median(value) FILTER (quarter = 1) AS q1, median(value) FILTER (quarter = 2) AS q2,
           median(value) FILTER (quarter = 3) AS q3, median(value) FILTER (quarter = 4) AS q4,
           regr_slope(value, t) AS slope, regr_slope(value, t) FILTER (quarter > 2) AS late_slope
    FROM late GROUP BY rank, pid, what
), grows AS (
    SELECT *, last - first AS grown FROM summed
    WHERE n >= 16 AND seconds >= 16 AND q1 < q2 AND q2 < q3 AND q3 < q4 AND late_slope >= 0.5 * slope
      AND last - first >= CASE what WHEN 'memory' THEN 0.02 ELSE 0.05 END * first
      AND last - first >= CASE what WHEN 'memory' THEN 8 WHEN 'shared memory' THEN 32 WHEN 'descriptors' THEN 50
                                    WHEN 'threads' THEN 20 ELSE 8 END
), lasting AS (
    SELECT g.* FROM grows g
    WHERE g.seconds >= 60 OR EXISTS (SELECT 1 FROM summed o WHERE o.what = g.what AND o.pid <> g.pid
                                     AND o.last - o.first < 0.5 * g.grown)
), alive AS (
    SELECT target_pid AS pid, rank, caller, kind, sum(allocated_bytes) / 1e6 AS mb, count(*) AS blocks,
           any_value(function_name) AS function, any_value(file) AS file, any_value(lineno) AS line,
           median(epoch(timestamp)) AS middle
    FROM memory_allocations WHERE freed IS NULL AND followed GROUP BY ALL
), lately AS (
    SELECT a.*, row_number() OVER (PARTITION BY a.pid ORDER BY a.mb DESC) AS pos FROM alive a
    WHERE a.blocks >= 5 AND a.middle > (SELECT min(epoch(moment)) FROM placed p WHERE p.pid = a.pid)
), witnessed AS (
    SELECT g.*, l.caller, l.kind AS of, l.mb, l.function, l.file, l.line,
           EXISTS (SELECT 1 FROM grows o WHERE o.pid = g.pid AND o.what = 'shared memory' AND o.grown >= 0.5 * g.grown)
               AS by_shared,
           EXISTS (SELECT 1 FROM grows o WHERE o.pid = g.pid AND o.what = 'threads') AS by_threads,
           (SELECT string_agg('rank ' || o.rank || ' ' || round(o.last - o.first)::INTEGER, ', ' ORDER BY o.rank)
            FROM summed o WHERE o.what = g.what AND o.pid <> g.pid) AS of_others
    FROM (SELECT *, what = 'memory' AND (grown < 32 OR grown < 0.05 * first) AS small FROM lasting) g
    LEFT JOIN lately l ON l.pid = g.pid AND l.pos = 1 AND g.what = 'memory' AND l.mb >= 0.3 * g.grown AND NOT g.small
), standing AS (
    SELECT pid, arg_max(function, n) AS function, arg_max(file, n) AS file, arg_max(line, n) AS line,
           arg_max(place, n) AS place, arg_max(source, n) AS source
    FROM (SELECT pid, function, file, line, place, source, count(*) AS n FROM threads
          WHERE NOT main AND NOT child AND place IS NOT NULL GROUP BY ALL HAVING count(*) >= 10) GROUP BY pid
)
SELECT CASE what WHEN 'shared memory' THEN 'shared_memory' WHEN 'memory' THEN CASE WHEN small THEN 'small' WHEN of = 'python' THEN 'heap' ELSE 'tensors' END
                 ELSE what END AS cause,
       w.rank, w.pid, what, CASE WHEN w.rank IS NULL THEN 'process ' || w.pid ELSE 'rank ' || w.rank END AS who,
       CASE what WHEN 'memory' THEN 'keeps more and more memory' WHEN 'shared memory' THEN 'keeps more and more shared memory'
                 WHEN 'descriptors' THEN 'opens descriptors and keeps them' WHEN 'threads' THEN 'starts threads that do not end'
                 ELSE 'starts children that do not end' END AS leaks,
       CASE WHEN what IN ('memory', 'shared memory') THEN 'MB' ELSE what END AS unit,
       round(grown)::INTEGER || CASE WHEN what IN ('memory', 'shared memory') THEN ' MB more' ELSE ' more' END AS grown,
       round(seconds)::INTEGER AS seconds, round(first)::INTEGER AS first, round(last)::INTEGER AS last,
       CASE WHEN caller IS NOT NULL THEN ', allocated at ' || regexp_replace(caller, '^.*/', '') ELSE '' END AS so,
       (SELECT max(descriptor_limit) || ' descriptors' FROM resource_usage u WHERE u.target_pid = w.pid AND what = 'descriptors') AS limit,
       coalesce(regexp_replace(caller, '^.*/', ''), CASE WHEN what = 'threads' THEN s.place END) AS place,
       round(mb)::INTEGER AS alive_mb,
       CASE WHEN of_others IS NOT NULL THEN 'grew by: ' || of_others END AS others,
       CASE WHEN what = 'memory' THEN 'blocks from that line are alive' ELSE 'nothing was given back' END AS reason,
       CASE what WHEN 'memory' THEN 'look who keeps what that line allocates: a list, a cache, a loss with its graph.'
                 WHEN 'descriptors' THEN 'close what is opened: probing -t ' || w.pid || ' query "SELECT kind, path FROM system.fds"'
                 WHEN 'threads' THEN 'let the threads end, or use a pool.' WHEN 'children' THEN 'wait for the children, or end them.'
                 ELSE 'unlink the blocks when their reader is done.' END AS next,
       CASE WHEN what = 'memory' AND mb IS NULL OR what = 'memory' AND (by_shared OR by_threads) THEN 'remark' ELSE 'likely' END AS sure,
       CASE WHEN what = 'threads' THEN s.function ELSE w.function END AS function,
       CASE WHEN what = 'threads' THEN s.file ELSE regexp_replace(caller, ':[0-9]+$', '') END AS file,
       CASE WHEN what = 'threads' THEN s.line ELSE try_cast(regexp_extract(caller, ':([0-9]+)$', 1) AS INTEGER) END AS line,
       CASE WHEN what = 'threads' THEN s.source END AS source
FROM witnessed w LEFT JOIN standing s ON s.pid = w.pid
ORDER BY w.grown / w.seconds DESC
