// What `probing record` keeps of a process, live or dead: python.samples and python.stacks, asked by SQL. From them a
// flame graph of any time, and the stacks of any moment. Numbers of stacks are larger than what JavaScript counts
// exactly: they come as text.
import { query, type Frame, type Process, type Row, type Target, type Thread } from "./api";
import { short_file } from "./format";
import { useLive } from "./live";
import { with_args } from "./api";
import { moment, type Chosen, type Range } from "./route";

export interface Recorded {
  of: Chosen;
  pid: number | null;
  from: number;
  until: number;
  samples: number;
}

const of_pid = (pid: number | null) => (pid === null ? "" : ` AND pid = ${pid}`);
const span_sql = (pid: number | null) =>
  `SELECT epoch(min(timestamp)) AS a, epoch(max(until)) AS b, sum(samples) AS n FROM python.samples
WHERE true${of_pid(pid)}`;

// A recording of several ranks belongs to the first of them: for another rank the whole job is asked.
export function useRecorded(
  chosen: Chosen | undefined,
  target: Target | undefined,
  every = Infinity,
): { recorded: Recorded | null; known: boolean } {
  const pid = chosen && !chosen.all ? Number(/^\d+/.exec(chosen.target)?.[0] ?? NaN) : NaN,
    one = Number.isNaN(pid) ? null : pid;
  const dead = target?.state === "dead" || target?.state === "archived",
    job = target && !chosen?.all && !dead ? { target: target.command, all: true } : null;
  const own = useLive<Row[]>(
      chosen ? with_args("/api/v1/query", { target: chosen.target, all: chosen.all }) : null,
      every,
      span_sql(one),
    ),
    none = own.data && !own.data[0]?.n;
  const wide = useLive<Row[]>(none && job ? with_args("/api/v1/query", job) : null, every, span_sql(one));
  const row = (none ? wide : own).data?.[0],
    of = none ? job : chosen;
  return {
    known: !!own.error || (!!own.data && (!none || !job || !!wide.data || !!wide.error)),
    recorded: row?.n && of ? { of, pid: one, from: Number(row.a), until: Number(row.b), samples: Number(row.n) } : null,
  };
}

export type Way = "wall" | "cpu" | "off" | "gil";
const WAYS: Record<Way, string> = { wall: "", cpu: " AND NOT waiting", off: " AND waiting", gil: " AND gil" };

// A row stands for all samples from its timestamp to its until: of one that reaches out of the range, the part within.
export function profile_sql(r: Recorded, range: Range, way: Way): string {
  const a = moment(range.from),
    b = moment(range.until);
  return (
    `SELECT CAST(stack AS VARCHAR) AS stack, process, pid, tid, bool_or(ran) AS ran,
sum(CASE WHEN until > timestamp THEN samples *
epoch(least(until, ${b}) - greatest(timestamp, ${a})) / epoch(until - timestamp) ELSE samples END) AS n\n` +
    `FROM python.samples WHERE timestamp <= ${b} AND until >= ${a}${of_pid(r.pid)}${WAYS[way]} GROUP BY ALL`
  );
}

const STACKS = `SELECT CAST(stack AS VARCHAR) AS stack, CAST(any_value(parent) AS VARCHAR) AS parent,
  any_value(function) AS function,
any_value(file) AS file, any_value(line) AS line, any_value(kind) AS kind FROM python.stacks GROUP BY stack`;
interface Step {
  parent: string;
  function: string;
  file: string;
  line: number | null;
  kind: number;
}
type Steps = Map<string, Step>;

async function steps_of(of: Chosen, signal?: AbortSignal): Promise<Steps> {
  const steps: Steps = new Map();
  for (const row of await query(STACKS, of.target, of.all, signal))
    steps.set(String(row.stack), row as unknown as Step);
  return steps;
}

const label = (s: Step) => (s.file ? `${s.function} (${short_file(s.file)})` : s.function).replaceAll(";", ":");

// As the lines that a live profile comes in: "outermost;..;innermost COUNT".
export async function recorded_folded(
  r: Recorded,
  range: Range,
  way: Way,
  idle: boolean,
  signal?: AbortSignal,
): Promise<string> {
  const [rows, steps] = await Promise.all([
    query(profile_sql(r, range, way), r.of.target, r.of.all, signal),
    steps_of(r.of, signal),
  ]);
  const paths = new Map<string, string>(),
    several = new Set(rows.map((row) => row.pid)).size > 1;
  const path = (stack: string): string => {
    const known = paths.get(stack),
      step = steps.get(stack);
    if (known !== undefined) return known;
    if (!step) return "(a stack that is not kept any more)";
    const above = step.parent === "0" ? "" : `${path(step.parent)};`;
    paths.set(stack, above + label(step));
    return above + label(step);
  };
  // Threads that never ran are left out, unless none did.
  const ran = new Set(rows.filter((row) => row.ran).map((row) => `${row.pid} ${row.tid}`));
  return rows
    .filter((row) => idle || way === "off" || !ran.size || ran.has(`${row.pid} ${row.tid}`))
    .map(
      (row) =>
        `${several ? `${String(row.process).replaceAll(";", ":")};` : ""}${path(String(row.stack))} ${Number(row.n)}`,
    )
    .join("\n");
}

// --- the stacks of a moment ---

// A moment is as long as a frame of a film: the first one has what began in it.
export function moment_sql(r: Recorded, at: number): string {
  return (
    `SELECT pid, tid, thread, process, CAST(stack AS VARCHAR) AS stack, waiting, gil, epoch(timestamp) AS since
FROM python.samples\n` +
    `WHERE timestamp <= ${moment(at + 0.05)} AND until >= ${moment(at - 2)}${of_pid(r.pid)} QUALIFY ` +
    `row_number() OVER (PARTITION BY pid, tid ORDER BY timestamp DESC) = 1`
  );
}

let kept: { key: string; at: number; steps: Promise<Steps> } | undefined;

export async function stacks_at(r: Recorded, at: number, command: string): Promise<Process[]> {
  const key = `${r.of.target} ${r.of.all}`;
  if (kept?.key !== key || Date.now() - kept.at > 10000) kept = { key, at: Date.now(), steps: steps_of(r.of) };
  const [rows, steps] = await Promise.all([query(moment_sql(r, at), r.of.target, r.of.all), kept.steps]),
    by = new Map<number, Process>();
  for (const row of rows) {
    const pid = Number(row.pid),
      frames: Frame[] = [];
    let state = row.waiting ? "waiting" : "running";
    for (let s = steps.get(String(row.stack)); s; s = steps.get(s.parent)) {
      if (s.kind === 2) state = s.function.replace(/^\[|\]$/g, "");
      else {
        const short = short_file(s.file);
        frames.push({
          function: s.function,
          name: s.function.split(".").pop()!,
          file: s.file,
          line: s.line,
          first_line: 0,
          own: !!s.file && !short.includes("/") && !s.file.startsWith("<"),
        });
      }
    }
    const thread: Thread = {
      tid: Number(row.tid),
      name: String(row.thread),
      native_name: String(row.thread),
      state,
      running: !row.waiting,
      python: true,
      gil: Boolean(row.gil),
      frames,
      waits_for: row.waiting
        ? { kind: "system call", what: state, seconds: Math.max(0, at - Number(row.since)) }
        : null,
    };
    const process = by.get(pid) ?? {
      pid,
      label: String(row.process),
      command,
      python: null,
      verdict: null,
      notes: [],
      threads: [],
    };
    process.threads.push(thread);
    by.set(pid, process);
  }
  return [...by.values()];
}
