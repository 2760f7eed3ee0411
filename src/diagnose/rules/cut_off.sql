-- kind: future_unset
-- asks: whether an event loop waits for ever: no timer, no descriptor and no thread is left that could wake it
-- sure: likely
-- says: {Who} waits for ever: its tasks await what nobody can set{so}.
-- evidence: awaits | {who} {thread} | {place} | {source}
-- evidence: so | {others} | {op_place} | waiting in {op}
-- why: Likely: its event loop has no timer, watches nothing from outside, and no other thread or signal can call it.
-- next: find out who should have set that future: a task that ended, or an error that was swallowed.
SELECT 'asyncio' AS cause, still AS since, blocked AS explains, blocked_ranks AS ranks,
       CASE WHEN others IS NOT NULL THEN ', and ' || others || ' wait for it' ELSE '' END AS so,
       task_file AS file, task_line AS line, task_function AS function, task_source AS source, task_place AS place,
       * EXCLUDE (file, line, function, source, place)
FROM ends WHERE how = 'blocked' AND cut_off AND NOT moved AND still >= 5
