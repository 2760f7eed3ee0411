-- kind: blocked_call
-- asks: whether a call that blocks stands in an event loop, so that all its other tasks wait
-- sure: likely
-- says: {Who} serves nobody: its event loop has been blocked in {call} for {waited} s, in {function}.
-- evidence: waits | {who} {thread} | {place} | {source}
-- evidence: for | {wait_text}
-- why: Likely: the loop called this code and has not run since; a call that blocks does not let it go on.
-- next: await it, or give it to a thread: loop.run_in_executor().
SELECT CASE WHEN wait IN ('socket', 'sleep', 'pipe', 'child') THEN wait ELSE 'event_loop' END AS cause,
       round(still)::INTEGER AS waited, still AS since, *
FROM ends WHERE how = 'blocked' AND in_event_loop AND NOT moved AND still >= 5 AND call IS NOT NULL
