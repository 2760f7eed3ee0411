-- kind: rank_gone
-- needs: process_end, memory_usage, resource_usage, python.exceptions, python.crash_frames
-- asks: which rank of a job died first, of what, and who died of it
-- says: {Who} {first}{ended}{so}.
-- evidence: died | {who}, {pid_text} | {place} | {source}
-- evidence: error | {message}
-- evidence: before | thread {thread} | {thread_place} | {thread_error}
-- evidence: memory | {memory}
-- evidence: others | {consequences}
-- evidence: waits | {others} | {op_place} | waiting in {op}
-- why: {reason}
-- next: {next}
-- more: probing -t {pid} query "SELECT * FROM python.exceptions"
--
-- A process that ends by itself leaves a row of process_end; one that is killed leaves none. A rank that dies of a
-- lost peer is a consequence, and so is one that was killed after another had failed by itself: launchers do that.
WITH own AS (
    -- The innermost frame that is no library's.
    SELECT target_pid AS pid, id, arg_min(file, depth) AS file, arg_min(line, depth) AS line, arg_min(function, depth) AS function
    FROM python.crash_frames
    WHERE failed AND language = 'python' AND NOT regexp_matches(file, '/(site|dist)-packages/|/lib/python3[^/]*/|^<') GROUP BY ALL
), kept AS (
    SELECT e.target_pid AS pid, arg_max(e.kind, timestamp) AS kind, arg_max(e.type, timestamp) AS type,
           arg_max(e.message, timestamp) AS message, arg_max(coalesce(o.function, e.function), timestamp) AS function,
           arg_max(coalesce(o.file, e.file), timestamp) AS file, arg_max(coalesce(o.line, e.line), timestamp) AS line
    FROM python.exceptions e LEFT JOIN own o ON o.pid = e.target_pid AND o.id = e.id
    WHERE e.kind IN ('exception', 'signal') GROUP BY ALL
), exits AS (SELECT target_pid AS pid, max(timestamp) AS moment, arg_max(status, timestamp) AS status FROM process_end GROUP BY ALL),
last_rows AS (
    SELECT target_pid AS pid, max(timestamp) AS moment, arg_max(memory_mb, timestamp) AS mb,
           arg_max(memory_mb, timestamp) - arg_min(memory_mb, timestamp) FILTER (timestamp > newest - INTERVAL 60 SECOND) AS grown
    FROM (SELECT *, max(timestamp) OVER (PARTITION BY target_pid) AS newest FROM memory_usage) GROUP BY ALL
), kills AS (
    -- The counter is the control group's, so that a rank that lives on may have seen it rise.
    SELECT max(oom_kills) - min(oom_kills) AS rose, max(group_limit_mb) AS limit_mb FROM resource_usage
), died AS (
    SELECT d.* EXCLUDE (file, line, function, source, place), coalesce(x.status, d.known_status) AS status, x.moment AS left_at,
           d.signal IS NULL AND (x.pid IS NOT NULL OR d.known_status IS NOT NULL OR living) AS by_itself,
           d.signal IS NOT NULL OR x.pid IS NOT NULL OR d.known_status IS NOT NULL OR has_run OR living AS is_known,
           least(epoch(coalesce(x.moment, l.moment)), d.wrote) AS moment, l.mb, l.grown, k.kind AS kept,
           k.type || coalesce(': ' || nullif(k.message, ''), '') AS kept_error,
           coalesce(k.file, d.file) AS file, coalesce(k.line, d.line) AS line,
           coalesce(k.function, d.function) AS function, CASE WHEN k.file IS NULL OR k.line = d.line THEN d.source END AS source,
           CASE WHEN k.file IS NULL THEN d.place ELSE regexp_replace(k.file, '^.*/', '') || ':' || k.line END AS place
    FROM ended d LEFT JOIN kept k USING (pid) LEFT JOIN exits x USING (pid) LEFT JOIN last_rows l USING (pid)
), judged AS (
    SELECT *, CASE WHEN kept = 'signal' OR (NOT by_itself AND (fatal OR kernel = 'SIGSEGV' OR (signal <> 9 AND signal <> 15))) THEN 'signal'
                   WHEN NOT by_itself AND (kernel = 'oom' OR (SELECT rose FROM kills) > 0) THEN 'oom'
                   WHEN NOT by_itself THEN 'killed'
                   WHEN coalesce(kept_error, error) LIKE 'KeyboardInterrupt%' THEN 'well' -- somebody ended it
                   WHEN coalesce(status, 1) = 1 AND (kept IS NOT NULL OR (error IS NOT NULL AND NOT fatal)) THEN 'exception'
                   WHEN status <> 0 THEN 'exit' ELSE 'well' END AS cause,
           coalesce(kept_error, error) AS said
    FROM died
), classed AS (
    SELECT *, CASE WHEN cause = 'well' THEN 9
                   WHEN cause = 'exception' AND lost_peer THEN 3
                   -- No interpreter was found in it: that it ends is known by others that lost it.
                   WHEN unread AND status IS NULL AND NOT EXISTS (SELECT 1 FROM judged l WHERE l.lost_peer) THEN 9
                   WHEN cause IN ('killed', 'oom') THEN 2 ELSE 1 END AS class
    FROM judged
), firsts AS (
    SELECT *, -- rows are written each second: of a killed rank the last one may be older than its end
           CASE WHEN class = 2 THEN moment + 2.5 ELSE moment END AS at_most,
           count(*) FILTER (class = 3) OVER () AS nlost FROM classed
), root AS (
    SELECT * FROM firsts WHERE (class IN (1, 2) AND (is_known OR nlost > 0)) OR (class = 9 AND nlost > 0)
    ORDER BY CASE WHEN class = 9 THEN 1 ELSE 0 END, at_most NULLS LAST, rank LIMIT 1
), lost AS (
    -- Not the first, and nobody else is known: the first to tell of a lost peer.
    SELECT * FROM firsts WHERE class = 3 AND NOT EXISTS (SELECT 1 FROM root) ORDER BY moment LIMIT 1
), chosen AS (SELECT *, true AS is_root FROM root UNION ALL SELECT *, false FROM lost),
rest AS (
    SELECT count(*) AS n, string_agg(f.rank::VARCHAR, ', ' ORDER BY f.rank) AS ranks,
           count(*) FILTER (f.class = 3) AS nlost, count(*) FILTER (f.class = 2) AS nkilled
    FROM firsts f, chosen c WHERE f.n <> c.n AND f.class <> 9
), waiting AS (
    SELECT max(blocked) AS blocked, max(blocked_ranks) AS blocked_ranks, arg_max(others, blocked) AS others,
           arg_max(op, blocked) AS op, arg_max(op_place, blocked) AS op_place
    FROM ends WHERE how = 'dead' AND NOT child
)
SELECT CASE WHEN cause = 'well' THEN 'exit' WHEN is_known THEN cause END AS cause, c.rank, c.pid, c.ago AS since,
       coalesce('pid ' || c.pid, 'gone') AS pid_text,
       CASE WHEN c.rank IS NULL THEN 'process ' || c.pid ELSE 'rank ' || c.rank END AS who,
       CASE WHEN rest.n > 0 AND is_root THEN 'was the first to die: it ' ELSE '' END AS first,
       CASE cause WHEN 'exception' THEN 'ended by an exception' || coalesce(', ' || left(said, 120), '')
                  WHEN 'signal' THEN 'died of ' || CASE WHEN c.signal IS NOT NULL THEN 'signal ' || c.signal WHEN kept = 'signal' THEN said WHEN fatal THEN 'a signal, ' || error ELSE kernel END
                  WHEN 'oom' THEN 'was killed by the kernel, because memory was short'
                  WHEN 'killed' THEN CASE WHEN c.signal = 9 THEN 'was killed (SIGKILL)' WHEN c.signal IS NOT NULL THEN 'was ended by signal ' || c.signal
                                          WHEN is_known THEN 'was killed by a signal' ELSE 'is gone' END
                  WHEN 'exit' THEN 'ended itself with exit status ' || status ELSE CASE WHEN living THEN 'ends' ELSE 'ended' END || ', without an error, before the others' END AS ended,
       CASE WHEN rest.n > 0 AND is_root THEN '; ' || CASE WHEN rest.n = 1 THEN 'rank ' ELSE 'ranks ' END || rest.ranks
                 || CASE WHEN rest.nlost = rest.n THEN ' died of the lost connection' ELSE ' ended after it' END
            WHEN w.others IS NOT NULL THEN '; ' || w.others || CASE WHEN w.blocked = 1 THEN ' waits' ELSE ' wait' END || ' for it'
            ELSE '' END AS so,
       CASE WHEN cause <> 'exception' OR length(said) > 120 THEN said END AS message,
       c.file, c.line, c.function, c.source, c.place, c.thread, c.thread_place, c.thread_error,
       CASE WHEN cause IN ('killed', 'oom') THEN round(mb)::INTEGER || ' MB in its last row'
            || CASE WHEN abs(grown) >= 32 THEN ', ' || round(grown)::INTEGER || ' MB in a minute' ELSE ', steady' END
            || coalesce(' of a limit of ' || round((SELECT limit_mb FROM kills))::INTEGER || ' MB', '') END AS memory,
       CASE WHEN rest.n > 0 THEN CASE WHEN rest.n = 1 THEN 'rank ' ELSE 'ranks ' END || rest.ranks || ': ' || rest.nlost
            || ' of a lost connection, ' || rest.nkilled || ' killed' END AS consequences,
       w.others, w.op, w.op_place,
       CASE WHEN cause = 'oom' THEN 'certain' -- The first one may be among those that still end.
            WHEN NOT is_root THEN CASE WHEN (SELECT looked_again FROM job) OR (SELECT count(*) FROM ended) >= (SELECT world FROM job) THEN 'likely' ELSE 'remark' END
            -- All were killed, and none of a lost peer: that is how somebody ends a job.
            WHEN c.class = 2 AND c.signal IS NULL AND c.nlost = 0 AND rest.nkilled = rest.n AND rest.n > 0 THEN 'remark'
           WHEN kept IS NOT NULL OR status IS NOT NULL OR c.signal IS NOT NULL OR (NOT by_itself AND kernel IS NOT NULL) THEN 'certain' ELSE 'likely' END AS sure,
       CASE WHEN NOT is_root THEN 'Likely: all that is known have lost a peer; this one was the first of them, its peer left nothing.'
            WHEN kept IS NOT NULL THEN 'Certain: the agent kept the moment (probing catch).'
            WHEN c.signal IS NOT NULL THEN 'Certain: the kernel still has how it ended.'
            WHEN NOT is_known THEN 'Likely: it left nothing, and the others lost their connection to it.'
            WHEN NOT by_itself AND kernel IS NOT NULL THEN 'Certain: the kernel''s log names this process.'
            WHEN cause = 'oom' THEN 'Certain: the count of OOM kills of its control group rose, and it left no exit status.'
            WHEN living THEN 'Likely: its interpreter ends now' || CASE WHEN cause = 'exception' THEN ', and the error is the last that it printed.' ELSE '.' END
            WHEN status IS NOT NULL THEN 'Certain: it recorded its exit status'
                 || CASE WHEN cause = 'exception' THEN '; the error is the last that it printed.' ELSE '.' END
            ELSE 'Likely: a process that ends by itself records its exit, and this one did not; which signal is not known.' END AS reason,
       CASE cause WHEN 'exception' THEN 'repair what raised; the others'' errors are consequences.'
                  WHEN 'oom' THEN 'find what grew: probing -t ' || c.pid || ' query "SELECT * FROM memory_usage".'
                  WHEN 'killed' THEN 'ask who killed it: the launcher''s log, the scheduler, or dmesg for the OOM killer.'
                  WHEN 'signal' THEN 'look at the native code at that line; `probing catch` keeps all stacks of such a moment.'
                  ELSE 'find what called exit, or left the loop.' END AS next,
       greatest(rest.n, coalesce(w.blocked, 0)) AS explains,
       coalesce(rest.ranks, w.blocked_ranks) AS ranks
FROM chosen c, rest, waiting w
