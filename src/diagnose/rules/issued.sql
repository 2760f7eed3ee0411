-- kind: mismatch
-- asks: whether ranks have issued different collectives, or some have not issued what others wait for
-- says: {says}
-- evidence: issued | {waiting} | {call} | {ago}
-- evidence: {but} | {others} | {place} | {source}
-- evidence: not read | {unasked}
-- why: {reason}
-- next: {next}
--
-- From torch's Flight Recorder, for ranks whose stacks show no collective: calls that return at once. A rank that
-- has not issued one may still come, as for any other wait (not_joined).
WITH one AS (
    SELECT s.*, (SELECT any_value(pid) FROM threads t WHERE t.rank = s.other AND main AND NOT child) AS its_pid,
           'rank' || CASE WHEN waiting ~ '[,.-]' THEN 's ' ELSE ' ' END || waiting AS who,
           'rank' || CASE WHEN others ~ '[,.-]' THEN 's ' ELSE ' ' END || others AS whom
    FROM stall s
)
SELECT CASE WHEN what = 'not_joined' THEN 'not_joined' WHEN what = 'all_in' THEN 'hang' ELSE 'mismatch' END AS kind,
       CASE WHEN what = 'all_in' THEN 'backend' WHEN what = 'not_joined' THEN NULL WHEN what = 'dtype' THEN 'size' ELSE what END AS cause,
       CASE what WHEN 'not_joined' THEN upper(left(whom, 1)) || substr(whom, 2) || CASE WHEN other IS NULL THEN ' have' ELSE ' has' END
                      || ' not issued ' || op || ' number ' || number || ', for which ' || who || ' wait.'
                 WHEN 'all_in' THEN 'All ranks have issued ' || op || ' number ' || number || ' and it does not end: the network or the backend holds it up.'
                 ELSE 'The ranks disagree on ' || op || ' number ' || number || ': ' || whom || ' issued ' || difference || '.' END AS says,
       who AS waiting, op || ' number ' || number || ' of group ' || group_name AS call, round(seconds)::INTEGER || ' s ago' AS ago,
       CASE what WHEN 'not_joined' THEN 'not by' WHEN 'all_in' THEN NULL ELSE 'differs' END AS but,
       CASE WHEN what <> 'all_in' THEN whom END AS others, nullif(unasked, '') AS unasked,
       CASE WHEN what IN ('not_joined', 'all_in') THEN CASE WHEN seconds >= 60 THEN 'likely' ELSE 'remark' END
            WHEN others ~ '[,.-]' OR waiting ~ '[,.-]' OR other IS NOT NULL THEN 'certain' ELSE 'likely' END AS sure,
       CASE WHEN what IN ('not_joined', 'all_in') THEN 'Likely: torch''s Flight Recorder has it so, for ' || round(seconds)::INTEGER || ' s.'
            ELSE 'Certain that the calls differ: torch''s Flight Recorder of each rank has them.' END AS reason,
       CASE what WHEN 'not_joined' THEN 'look what ' || whom || ' does instead.'
                 WHEN 'all_in' THEN 'look at the network between the ranks, and at the log of the backend.'
                 ELSE 'compare that call of the ranks; all must make the same calls in the same order.' END AS next,
       other AS rank, its_pid AS pid, seconds AS since, waiting AS ranks, nwaiting AS explains,
       t.file, t.line, t.function, t.source, t.place
FROM one LEFT JOIN (SELECT rank AS its_rank, file, line, function, source, place FROM threads WHERE main AND NOT child) t
  ON t.its_rank = one.other
WHERE seconds >= 5 AND NOT EXISTS (SELECT 1 FROM threads WHERE subject AND peer IS NOT NULL)
