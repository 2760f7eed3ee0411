-- kind: diverged
-- needs: python.torch_step
-- asks: whether the losses of ranks that agreed differ since some step
-- sure: likely
-- says: Rank {rank}'s loss is {factor} that of the others since step {step}, and was like theirs before.
-- evidence: since | step {step}: rank {rank} {its}, the others {theirs}
-- evidence: before | {n_before} steps: rank {rank} {its_before}, the others {theirs_before}
-- why: Likely: all of its last {n_after} steps differ by more than half, and none of those before did.
-- next: compare its weights with another rank's (probing -t {pid} inspect); something changed them, or its data, on that rank alone.
--
-- The newest step of each rank is paired with that of the others, and so on backwards. With two ranks neither is the
-- odd one, so three are needed.
WITH losses AS (
    SELECT rank, target_pid AS pid, step, loss,
           row_number() OVER (PARTITION BY target_pid ORDER BY timestamp DESC) AS age
    FROM python.torch_step
    WHERE loss > 0 AND isfinite(loss) AND rank IS NOT NULL AND coalesce(kind, 'train') = 'train' QUALIFY age <= 400
), paired AS (
    SELECT *, median(loss) OVER (PARTITION BY age) AS usual, count(*) OVER (PARTITION BY age) AS ranks FROM losses
), off AS (SELECT *, abs(ln(loss / usual)) AS off FROM paired WHERE ranks >= 3 AND usual > 0),
split AS (
    -- The newest step at which a rank was like the others.
    SELECT pid, coalesce(min(age) FILTER (off < ln(1.5)), max(age) + 1) AS like_at FROM off GROUP BY pid
), judged AS (
    SELECT o.pid, any_value(o.rank) AS rank, min(o.step) FILTER (age < like_at) AS step,
           count(*) FILTER (age < like_at) AS n_after, count(*) FILTER (age >= like_at) AS n_before,
           median(o.loss) FILTER (age < like_at) AS its, median(usual) FILTER (age < like_at) AS theirs,
           median(o.loss) FILTER (age >= like_at) AS its_before, median(usual) FILTER (age >= like_at) AS theirs_before,
           count(*) FILTER (age > like_at AND off < ln(1.5)) AS like_before
    FROM off o JOIN split USING (pid) GROUP BY o.pid
)
SELECT rank, pid, step, n_after, n_before,
       CASE WHEN its > theirs THEN printf('%.1f times', its / theirs) ELSE printf('%.0f%% of', 100 * its / theirs) END AS factor,
       printf('%.4g', its) AS its, printf('%.4g', theirs) AS theirs,
       printf('%.4g', its_before) AS its_before, printf('%.4g', theirs_before) AS theirs_before
FROM judged
WHERE n_after >= 10 AND n_before >= 3 AND like_before >= 0.9 * (n_before - 1)
  AND (SELECT count(*) FROM judged WHERE n_after >= 10) = 1
