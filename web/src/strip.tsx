// Recorded time as a strip: what the main threads did. A drag chooses a range; the two fields beside do the same by
// keys.
import { useRef, useState } from "preact/hooks";
import { with_args, type Row } from "./api";
import { clock } from "./format";
import { useLive } from "./live";
import { type Recorded } from "./recorded";
import { moment, type Range } from "./route";

const N = 160;

function strip_sql(r: Recorded): string {
  const width = (r.until - r.from) / N || 1;
  const begin = moment(r.from),
    step = Math.round(width * 1e6);
  return (
    `SELECT i, sum(share) FILTER (WHERE NOT waiting) AS runs, sum(share) FILTER (WHERE waiting) AS waits FROM (\n` +
    `SELECT b.i, waiting, samples * CASE WHEN s.until > timestamp THEN
epoch(least(s.until, b.until) - greatest(timestamp, b.since)) / epoch(s.until - timestamp) ELSE 1 END AS share\n` +
    `FROM (SELECT range AS i, ${begin} + to_microseconds(CAST(range * ${step} AS BIGINT)) AS since,
${begin} + to_microseconds(CAST((range + 1) * ${step} AS BIGINT)) AS until
FROM range(${N})) b\n` +
    `JOIN python.samples s ON s.timestamp < b.until AND s.until >= b.since
WHERE tid = pid${r.pid === null ? "" : ` AND pid = ${r.pid}`}) GROUP BY i ORDER BY i`
  );
}

const pad = (n: number) => String(n).padStart(2, "0");
const hms = (t: number) => clock(t * 1000);

// "14:30:05" of the day of the recording.
function at_clock(text: string, near: number): number | null {
  const m = /^(\d{1,2}):(\d\d)(?::(\d\d(?:\.\d+)?))?$/.exec(text.trim()),
    day = new Date(near * 1000);
  return m
    ? new Date(day.getFullYear(), day.getMonth(), day.getDate(), Number(m[1]), Number(m[2])).getTime() / 1000 +
        Number(m[3] ?? 0)
    : null;
}

export interface Mark {
  name: string;
  range: Range;
  token: string;
}

export function Strip({
  of,
  marks,
  at,
  choose,
  label,
}: {
  of: Recorded;
  marks: Mark[];
  at?: number;
  choose(r: Range): void;
  label: string;
}) {
  const rows = useLive<Row[]>(with_args("/api/v1/query", { ...of.of }), 10000, strip_sql(of)),
    box = useRef<SVGSVGElement>(null),
    [drag, set] = useState<Range | null>(null),
    begin = useRef(0);
  const span = of.until - of.from || 1,
    x = (t: number) => Math.max(0, Math.min(1000, (1000 * (t - of.from)) / span)),
    most = Math.max(1e-9, ...(rows.data ?? []).map((r) => Number(r.runs ?? 0) + Number(r.waits ?? 0)));
  const time = (e: PointerEvent) => {
    const r = box.current!.getBoundingClientRect();
    return of.from + span * Math.max(0, Math.min(1, (e.clientX - r.left) / r.width));
  };
  const between = (a: number, b: number): Range => ({ from: Math.min(a, b), until: Math.max(a, b) });
  return (
    <div class="chart time">
      <svg
        ref={box}
        viewBox="0 0 1000 44"
        preserveAspectRatio="none"
        role="img"
        aria-label={label}
        onPointerDown={(e) => {
          begin.current = time(e);
          e.currentTarget.setPointerCapture(e.pointerId);
          set(between(begin.current, begin.current));
        }}
        onPointerMove={(e) => {
          if (drag) set(between(begin.current, time(e)));
        }}
        onPointerUp={(e) => {
          const r = between(begin.current, time(e));
          set(null);
          if (r.until - r.from > span / 500) choose(r);
        }}
      >
        <rect class="ground" width="1000" height="44" />
        {(rows.data ?? []).map((r) => {
          const w = 1000 / N,
            runs = (40 * Number(r.runs ?? 0)) / most,
            waits = (40 * Number(r.waits ?? 0)) / most;
          return (
            <g key={Number(r.i)}>
              <rect class="waits" x={Number(r.i) * w} width={w} y={44 - runs - waits} height={waits} />
              <rect class="runs" x={Number(r.i) * w} width={w} y={44 - runs} height={runs} />
            </g>
          );
        })}
        {[...marks, ...(drag ? [{ name: "", range: drag, token: "--focus" }] : [])].map((m, i) => (
          <rect
            key={i}
            x={x(m.range.from)}
            width={Math.max(1.5, x(m.range.until) - x(m.range.from))}
            y="0.5"
            height="43"
            fill={`var(${m.token})`}
            fill-opacity=".18"
            stroke={`var(${m.token})`}
            vector-effect="non-scaling-stroke"
          />
        ))}
        {at !== undefined && (
          <line
            x1={x(at)}
            x2={x(at)}
            y1="0"
            y2="44"
            stroke="var(--fg)"
            stroke-width="2"
            vector-effect="non-scaling-stroke"
          />
        )}
      </svg>
      <div class="ticks">
        <span>{hms(of.from)}</span>
        <span class="keys">
          <span class="key">
            <i class="runs" />
            running
          </span>
          <span class="key">
            <i class="waits" />
            waiting
          </span>
        </span>
        <span>{hms(of.until)}</span>
      </div>
    </div>
  );
}

export function Times({ name, of, within, set }: { name: string; of: Range; within: Recorded; set(r: Range): void }) {
  const take = (from: number | null, until: number | null) => {
    if (from !== null && until !== null && until > from) set({ from, until });
  };
  const text = (t: number) => {
    const d = new Date(t * 1000);
    return (
      `${pad(d.getHours())}:${pad(d.getMinutes())}` +
      `:${(d.getSeconds() + d.getMilliseconds() / 1000).toFixed(1).padStart(4, "0")}`
    );
  };
  return (
    <span class="times">
      <b>{name}</b>
      <input
        class="ctl"
        size={9}
        aria-label={`${name} from`}
        value={text(of.from)}
        onChange={(e) => take(at_clock(e.currentTarget.value, within.from), of.until)}
      />{" "}
      to
      <input
        class="ctl"
        size={9}
        aria-label={`${name} to`}
        value={text(of.until)}
        onChange={(e) => take(of.from, at_clock(e.currentTarget.value, within.until))}
      />
    </span>
  );
}
