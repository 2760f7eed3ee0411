-- kind: slow_rank
-- needs: python.torch_step, python.comm_collective, resource_usage
-- asks: which rank the others wait for in most steps, and what costs it the time
-- sure: likely
-- says: {percent}% of every step is spent waiting for rank {rank}, {because}.
-- evidence: step | {step_ms} ms; {cost_ms} ms of it the others wait for rank {rank}, last in {k} of {n} steps
-- evidence: {label} | {witness}
-- why: Likely: the rank is last far more often than chance allows, and {reason}.
-- next: {next}
-- more: probing -t {pid} torch
--
-- Members of a collective end it together, so the one that took least waited least: it came last. Steps of ranks
-- whose recording began at different moments are paired by the moments at which their collectives end.
WITH ended AS (
    SELECT rank, target_pid AS pid, step, max(done) AS done, arg_max(duration_ms, done) AS took
    FROM python.comm_collective WHERE done IS NOT NULL AND rank IS NOT NULL AND duration_ms IS NOT NULL
    GROUP BY rank, target_pid, step QUALIFY step > max(step) OVER (PARTITION BY rank) - 200
), lengths AS (
    SELECT rank, step, duration_ms, data_ms, forward_ms, backward_ms, optimizer_ms, samples
    FROM python.torch_step
    WHERE duration_ms IS NOT NULL AND rank IS NOT NULL AND coalesce(kind, 'train') = 'train'
), usual AS (SELECT median(duration_ms) AS step_ms FROM lengths),
reference AS (SELECT step AS at_step, done + to_microseconds(CAST(500 * (SELECT step_ms FROM usual) AS BIGINT)) AS until
              FROM ended WHERE rank = (SELECT min(rank) FROM ended)),
shifted AS (
    SELECT e.rank, mode(e.step - r.at_step) AS shift FROM ended e ASOF JOIN reference r ON e.done >= r.until
    GROUP BY e.rank
), paired AS (
    SELECT e.rank, e.pid, e.took, l.*, e.step - s.shift AS common,
           l.duration_ms - l.data_ms - l.forward_ms - l.backward_ms - l.optimizer_ms AS rest_ms,
           greatest(l.backward_ms - e.took, 0) AS before_ms,
           row_number() OVER (PARTITION BY e.step - s.shift ORDER BY e.took) AS place
    FROM ended e JOIN shifted s USING (rank) JOIN lengths l ON l.rank = e.rank AND l.step = e.step
), whole AS (
    SELECT common, count(*) AS ranks, median(duration_ms) AS step_ms, arg_min(rank, took) AS last,
           median(took) FILTER (place > 1) - min(took) AS cost
    FROM paired GROUP BY common
), recent AS (
    SELECT *, row_number() OVER (ORDER BY common DESC) AS age FROM whole
    WHERE ranks = (SELECT count(DISTINCT rank) FROM ended) AND ranks > 1
      AND common >= (SELECT min(common) FROM whole) + 3
    QUALIFY age <= 50
), steps AS (SELECT * FROM recent WHERE step_ms <= 3 * (SELECT median(step_ms) FROM recent)), counted AS (
    SELECT last AS rank, count(*) AS k, (SELECT count(*) FROM steps) AS n, any_value(ranks) AS r,
           median(cost / step_ms) AS share, median(cost) AS cost, median(step_ms) AS step_ms,
           count(*) FILTER (age <= (SELECT count(*) FROM steps) / 3) AS newest
    FROM steps GROUP BY last
), slow AS (
    SELECT *, n / r + 4.2 * sqrt(n / r * (1 - 1 / r)) + CASE WHEN r < 8 THEN 1 ELSE 3 END AS least_k
    FROM counted
    WHERE n >= 20 AND k >= least_k AND share >= 0.1 AND cost >= 2 AND newest * 2 > n / 3
), parts AS (
    SELECT p.rank = s.rank AS its, median(data_ms) AS data, median(forward_ms) AS forward, median(before_ms) AS before,
           median(optimizer_ms) AS optimizer, median(rest_ms) AS rest, median(samples) AS samples
    FROM paired p, slow s WHERE p.common IN (SELECT common FROM steps) GROUP BY ALL
), excess AS (
    SELECT i.data - o.data AS data, i.forward - o.forward + i.before - o.before + i.optimizer - o.optimizer AS compute,
           i.rest - o.rest AS rest, i.data AS its_data, o.data AS others_data, i.samples AS its_samples,
           o.samples AS others_samples
    FROM parts i, parts o WHERE i.its AND NOT o.its
), waits AS (
    SELECT rank, least((max(delay_s) - min(delay_s)) / greatest(epoch(max(timestamp) - min(timestamp)), 1), 1) AS share
    FROM resource_usage WHERE timestamp > (SELECT max(timestamp) FROM resource_usage) - INTERVAL 15 SECOND
    GROUP BY rank
), starved AS (
    SELECT w.share AS its, (SELECT median(share) FROM waits o WHERE o.rank <> s.rank) AS others
    FROM waits w JOIN slow s USING (rank)
), throttled AS (
    SELECT (max(throttled_s) - min(throttled_s)) / greatest(epoch(max(timestamp) - min(timestamp)), 1) AS share
    FROM resource_usage u JOIN slow s USING (rank)
    WHERE timestamp > (SELECT max(timestamp) FROM resource_usage) - INTERVAL 15 SECOND
), taker AS (
    SELECT t.thread, t.place, t.source, t.file, t.line, t.function
    FROM threads t JOIN slow s ON t.rank = s.rank
    WHERE NOT t.main AND NOT t.child AND t.python AND t.place IS NOT NULL AND t.cpu >= 0.05
      AND t.cpu >= (SELECT max(m.cpu) FROM threads m WHERE m.main AND m.pid = t.pid)
    ORDER BY t.cpu DESC LIMIT 1
), judged AS (
    SELECT s.*, e.*, b.its AS its_delay, b.others AS others_delay, t.* ,
           CASE WHEN t.thread IS NOT NULL THEN 'gil'
                WHEN e.its_samples >= 1.2 * e.others_samples AND e.compute >= 0.5 * s.cost THEN 'more_work'
                WHEN e.data >= 0.5 * s.cost THEN 'data'
                WHEN coalesce(h.share, 0) >= 0.05 THEN 'quota'
                WHEN b.its >= 0.1 AND b.its >= 2 * b.others + 0.05 AND e.rest < 0.5 * s.cost THEN 'cpu_neighbour'
                WHEN e.rest >= 0.5 * s.cost OR e.compute < 0.5 * s.cost THEN 'python'
                ELSE 'other' END AS cause
    FROM slow s, excess e LEFT JOIN starved b ON true LEFT JOIN throttled h ON true LEFT JOIN taker t ON true
)
SELECT rank, cause, round(100 * share)::INTEGER AS percent, round(step_ms, 1) AS step_ms, round(cost, 1) AS cost_ms, k, n,
       share AS cost, r - 1 AS explains, (SELECT any_value(pid) FROM paired p WHERE p.rank = judged.rank) AS pid,
       CASE cause WHEN 'data' THEN 'which gets its data too slowly'
                  WHEN 'more_work' THEN 'which has more work than the others'
                  WHEN 'gil' THEN 'whose thread ' || thread || ' takes the GIL from it'
                  WHEN 'quota' THEN 'which is held back by the CPU limit of its control group'
                  WHEN 'cpu_neighbour' THEN 'whose CPU is taken by others'
                  WHEN 'python' THEN 'which spends the time in code of its own'
                  ELSE 'and its modules take longer there' END AS because,
       CASE cause WHEN 'data' THEN 'data' WHEN 'more_work' THEN 'samples' WHEN 'gil' THEN 'thread' WHEN 'python' THEN 'code'
                  WHEN 'other' THEN 'modules' ELSE 'cpu' END AS label,
       CASE cause WHEN 'data' THEN 'rank ' || rank || ' waits ' || round(its_data, 1) || ' ms a step for a batch, the others ' || round(others_data, 1) || ' ms'
                  WHEN 'more_work' THEN 'rank ' || rank || ' has ' || its_samples::INTEGER || ' samples a step, the others ' || others_samples::INTEGER
                  WHEN 'gil' THEN thread || ' computes at ' || place || '  ' || coalesce(source, '')
                  WHEN 'quota' THEN 'the limit of the control group held it'
                  WHEN 'cpu_neighbour' THEN 'its thread was ready and had no CPU for ' || round(100 * its_delay)::INTEGER || '% of the time, the others for ' || round(100 * others_delay)::INTEGER || '%'
                  WHEN 'python' THEN round(rest, 1) || ' ms a step more than the others outside of modules, data and optimizer'
                  ELSE round(compute, 1) || ' ms a step more than the others in its modules' END AS witness,
       CASE cause WHEN 'python' THEN 'the time is in none of the recorded phases' WHEN 'other' THEN 'its modules take longer'
                  ELSE 'that covers the delay' END AS reason,
       CASE cause WHEN 'data' THEN 'give that rank as many workers as the others, or make its reading faster.'
                  WHEN 'more_work' THEN 'share the samples evenly over the ranks.'
                  WHEN 'gil' THEN 'move that work to a process, or to the time between steps.'
                  WHEN 'quota' THEN 'raise the CPU limit of its container.'
                  WHEN 'cpu_neighbour' THEN 'pin the ranks apart, or move those that share its CPUs.'
                  ELSE 'look where the time goes: probing -t ' || (SELECT any_value(pid) FROM paired p WHERE p.rank = judged.rank) || ' flamegraph' END AS next,
       thread, file, line, function, source
FROM judged
