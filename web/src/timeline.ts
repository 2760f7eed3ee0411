// What processes were doing over time: from what their agents recorded, and from the looks of this page, which are
// finer and take the place of what was recorded of the same time.
import type { State } from "./states";

export const LAST_S = 900;
const CELL_S = 5;

const bucket = `${CELL_S} * CAST(floor(epoch(timestamp) / ${CELL_S}) AS BIGINT)`;

const of = (one: number | null) => (one === null ? "target_pid" : `${one} AS target_pid`);

// within: an SQL condition on timestamp. A cell is named after what took most of it: the data loader, a collective,
// else by the CPU time of the process. one: the process, where it is the only one: its rows do not tell it.
export const timeline_sql = (within: string, one: number | null) => `WITH cpu AS (
  SELECT ${of(one)}, ${bucket} AS t, max(cpu_user_s + cpu_system_s) - min(cpu_user_s + cpu_system_s) AS used,
    epoch(max(timestamp)) - epoch(min(timestamp)) AS span
  FROM memory_usage WHERE ${within} GROUP BY ALL),
steps AS (SELECT ${of(one)}, ${bucket} AS t, sum(data_ms) AS data, sum(duration_ms) AS whole
  FROM python.torch_step WHERE ${within} GROUP BY ALL),
comm AS (SELECT ${of(one)}, ${bucket} AS t, sum(duration_ms) AS ms
  FROM python.comm_collective WHERE ${within} GROUP BY ALL)
SELECT target_pid AS pid, t, CASE WHEN 2 * data > whole THEN 'loader' WHEN ms > ${500 * CELL_S} THEN 'coll'
  WHEN 2 * used > span THEN 'compute' ELSE 'wait' END AS state
FROM cpu LEFT JOIN steps USING (target_pid, t) LEFT JOIN comm USING (target_pid, t) ORDER BY pid, t`;

export interface Recorded_cell {
  pid: number;
  t: number;
  state: State;
}
export interface Look {
  at: number; // seconds since 1970
  states: Map<number, State>;
}
export interface Stretch {
  from: number;
  until: number;
  state: State;
  recorded: boolean;
}

function append(to: Stretch[], next: Stretch) {
  const last = to.at(-1);
  if (last && last.state === next.state && last.recorded === next.recorded && next.from - last.until < 0.5)
    last.until = next.until;
  else to.push(next);
}

// A look stands for the time until the next one, two seconds at most: the page may have been hidden.
export function stretches_of(pid: number, cells: Recorded_cell[], looks: Look[]): Stretch[] {
  const seen: Stretch[] = [],
    found: Stretch[] = [];
  looks.forEach((look, i) => {
    const state = look.states.get(pid),
      next = looks[i + 1]?.at ?? look.at + 1;
    if (state) append(seen, { from: look.at, until: Math.min(next, look.at + 2), state, recorded: false });
  });
  let k = 0;
  for (const c of cells) {
    if (c.pid !== pid) continue;
    let from = c.t;
    const until = c.t + CELL_S;
    while (k < seen.length && seen[k].until <= from) append(found, seen[k++]);
    while (k < seen.length && seen[k].from < until) {
      if (seen[k].from > from) append(found, { from, until: seen[k].from, state: c.state, recorded: true });
      from = Math.max(from, seen[k].until);
      if (seen[k].until > until) break;
      append(found, seen[k++]);
    }
    if (from < until) append(found, { from, until, state: c.state, recorded: true });
  }
  while (k < seen.length) append(found, seen[k++]);
  return found;
}

// --- moving along the axis ---

export interface Span {
  from: number;
  until: number;
}

// W and S zoom, A and D move, as in Perfetto; never beyond now.
export function moved(span: Span, key: "w" | "a" | "s" | "d", now: number): Span {
  const size = span.until - span.from,
    middle = (span.from + span.until) / 2;
  if (key === "w") return size < 2 ? span : { from: middle - size / 4, until: middle + size / 4 };
  const by = key === "a" ? -size / 4 : key === "d" ? size / 4 : 0,
    wide = key === "s" ? size : size / 2;
  const until = Math.min(now, middle + by + wide);
  return { from: until - 2 * wide, until };
}
