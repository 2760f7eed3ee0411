-- kind: nan
-- needs: python.torch_step
-- asks: which rank's loss was the first that is not finite, and what it comes from
-- sure: likely
-- says: The loss is {value} since step {step}{where_from}.
-- evidence: first | {who}: {value} at step {step} | {place} | {cause_text}
-- evidence: before | {before}
-- evidence: then | {others}
-- why: {reason}
-- next: {next}
-- more: probing -t {pid} query "SELECT step, loss, batch_finite FROM python.torch_step ORDER BY step DESC LIMIT 20"
--
-- Each rank records the loss of its backward before gradients are summed over the ranks. So the rank whose batch or
-- code is at fault is not finite a step before the others, unless all go there together: then the weights did.
WITH losses AS (
    SELECT rank, target_pid AS pid, step, timestamp AS moment, loss, isfinite(loss) AS good, batch_finite, loss_cause, loss_place
    FROM python.torch_step
    WHERE loss IS NOT NULL AND coalesce(kind, 'train') = 'train' AND NOT coalesce(skipped, false)
), last_good AS (SELECT pid, max(moment) AS moment, arg_max(step, moment) AS step, arg_max(loss, moment) AS loss FROM losses WHERE good GROUP BY pid),
bad AS (
    -- Since the last good one, and for three steps: a scaler leaves out a single bad one.
    SELECT l.*, g.step AS good_step, g.loss AS good_loss, count(*) OVER (PARTITION BY l.pid) AS n
    FROM losses l LEFT JOIN last_good g USING (pid) WHERE NOT l.good AND (g.moment IS NULL OR l.moment > g.moment)
    QUALIFY row_number() OVER (PARTITION BY l.pid ORDER BY l.moment) = 1
), usual AS (
    -- How much the last three finite losses of each rank exceed those before them.
    SELECT pid, max(abs(loss)) FILTER (pos <= 3) AS late, median(abs(loss)) FILTER (pos > 3) AS early
    FROM (SELECT *, row_number() OVER (PARTITION BY pid ORDER BY moment DESC) AS pos FROM losses WHERE good) WHERE pos <= 50 GROUP BY pid
), together AS (
    SELECT count(*) FILTER (late > 100 * early) AS grown, count(*) AS ranks FROM usual JOIN bad USING (pid)
), firsts AS (
    SELECT b.*, row_number() OVER (ORDER BY moment) AS pos, count(*) OVER () AS nbad,
           (SELECT grown * 2 > ranks FROM together) AS all_grew
    FROM bad b WHERE n >= 3
), judged AS (
    SELECT *, CASE WHEN batch_finite = false THEN 'data' WHEN all_grew THEN 'learning_rate' ELSE coalesce(loss_cause, 'unknown') END AS cause
    FROM firsts WHERE pos = 1
)
SELECT cause, CASE WHEN cause <> 'learning_rate' THEN rank END AS rank, pid, step,
       CASE WHEN isnan(loss) THEN 'nan' ELSE 'infinite' END AS value,
       CASE WHEN rank IS NULL THEN 'process ' || pid ELSE 'rank ' || rank END AS who,
       CASE WHEN cause = 'learning_rate' THEN ', after it grew on all ranks: the learning rate is too high'
            WHEN rank IS NULL THEN CASE cause WHEN 'data' THEN ': its batch was not finite' WHEN 'division' THEN ': a division by zero'
                                              WHEN 'overflow' THEN ': an overflow' ELSE '' END
            ELSE '. It came from rank ' || rank || '''s own ' || CASE cause WHEN 'data' THEN 'batch' WHEN 'division' THEN 'division by zero'
                 WHEN 'overflow' THEN 'overflow' ELSE 'step' END || CASE WHEN nbad > 1 THEN ' and reached the others by the gradients' ELSE '' END END AS where_from,
       CASE cause WHEN 'data' THEN 'its batch was not finite' WHEN 'division' THEN 'a divisor in its graph is 0'
                  WHEN 'overflow' THEN 'a value in its graph is infinite' || CASE WHEN batch_finite THEN ', its batch is finite' ELSE '' END
                  ELSE CASE WHEN batch_finite THEN 'its batch was finite' ELSE 'its batch was not read whole' END END AS cause_text,
       CASE WHEN good_step IS NOT NULL THEN 'step ' || good_step || ': loss ' || printf('%.4g', good_loss)
            || CASE WHEN cause = 'learning_rate' THEN ', usually ' || printf('%.4g', (SELECT median(early) FROM usual)) ELSE '' END END AS before,
       CASE WHEN nbad > 1 THEN nbad - 1 || ' other ranks are not finite either' END AS others,
       CASE cause WHEN 'learning_rate' THEN 'Likely: the losses of most ranks had grown a hundredfold just before.'
                  WHEN 'unknown' THEN 'Likely: this rank was the first; what made it so was not seen.'
                  ELSE 'Likely: this rank was the first, and the cause was read in its step.' END AS reason,
       CASE cause WHEN 'data' THEN 'look at that batch; weights are good up to step ' || coalesce(good_step::VARCHAR, '?') || '.'
                  WHEN 'division' THEN 'keep the divisor away from 0, as by clamp(min=1).'
                  WHEN 'overflow' THEN 'subtract the maximum first, as logsumexp does, or scale the input.'
                  WHEN 'learning_rate' THEN 'lower the learning rate, or clip gradients; go on from a checkpoint before step ' || coalesce(good_step::VARCHAR, '?') || '.'
                  ELSE 'probing -t ' || pid || ' inspect VARIABLE@FUNCTION shows where values are not finite.' END AS next,
       regexp_extract(loss_place, '^(.*):([0-9]+) (.*)$', 1) AS file,
       try_cast(nullif(regexp_extract(loss_place, '^(.*):([0-9]+) (.*)$', 2), '') AS INTEGER) AS line,
       regexp_extract(loss_place, '^(.*):([0-9]+) (.*)$', 3) AS function,
       nullif(regexp_replace(regexp_extract(loss_place, '^(.*:[0-9]+) ', 1), '^.*/', ''), '') AS place,
       nbad - 1 AS explains
FROM judged
