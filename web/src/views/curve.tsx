// A curve of a training with what can be done to it: smoothing, a limit, another run laid over.
import { useState } from "preact/hooks";
import { with_args, type Row, type Target } from "../api";
import { both, crossed, laid_over, smoothed } from "../curves";
import { count, job_name } from "../format";
import { useLive } from "../live";
import { Plot, type Series } from "../plot";
import { Legend } from "../plot-parts";
import { href, put, useRoute } from "../route";

const OTHER = "SELECT * FROM training_logs ORDER BY timestamp DESC LIMIT 2000";

export interface Other {
  name: string;
  rows: Row[];
}

// Above all curves of the view: how smooth they are, and which run is laid over. Both are part of the link.
export function CurveBar({ runs, mine }: { runs: Target[]; mine: string }) {
  const { args } = useRoute(),
    smooth = args.get("smooth") ?? "0";
  return (
    <div class="bar">
      <label class="mid">
        Smoothing{" "}
        <input
          type="range"
          min="0"
          max="0.99"
          step="0.01"
          value={smooth}
          onInput={(e) => put({ smooth: Number(e.currentTarget.value) ? e.currentTarget.value : null })}
        />{" "}
        <b>{Number(smooth).toFixed(2)}</b>
      </label>
      {runs.length > 0 && (
        <select
          class="ctl"
          aria-label="Another run, laid over"
          value={args.get("with") ?? ""}
          onChange={(e) => put({ with: e.currentTarget.value })}
        >
          <option value="">Lay another run over</option>
          {runs
            .filter((t) => t.id !== mine && String(t.pid) !== mine && t.state !== "python")
            .map((t) => (
              <option key={t.id} value={t.state === "probed" ? String(t.pid) : t.id}>
                {t.rank !== null ? `rank ${t.rank}, ` : ""}
                {job_name(t.command)}, {t.id}
              </option>
            ))}
        </select>
      )}
    </div>
  );
}

export function useOther(runs: Target[]): Other | null {
  const id = useRoute().args.get("with"),
    rows = useLive<Row[]>(id ? with_args("/api/v1/query", { target: id }) : null, 10000, OTHER),
    run = runs.find((t) => t.id === id || String(t.pid) === id);
  return id && rows.data
    ? { name: run ? `${job_name(run.command)}, ${run.id}` : id, rows: [...rows.data].reverse() }
    : null;
}

const limits = (): Record<string, number> => {
  try {
    return JSON.parse(localStorage.getItem("limits") ?? "{}");
  } catch {
    return {};
  }
};

// A limit of a name, kept by this browser.
function useLimit(name: string): [number | null, (v: number | null) => void] {
  const [limit, set] = useState<number | null>(limits()[name] ?? null);
  return [
    limit,
    (v) => {
      const all = limits();
      if (v === null) delete all[name];
      else all[name] = v;
      localStorage.setItem("limits", JSON.stringify(all));
      set(v);
    },
  ];
}

interface CurveProps {
  name: string;
  x: number[];
  values: (number | null)[];
  token: string;
  say: string;
  other: Other | null;
  range?(from: number, to: number): void;
  marks?: { at: number; name: string; token?: string }[];
}

export function Curve({ name, x, values, token, say, other, range, marks }: CurveProps) {
  const weight = Number(useRoute().args.get("smooth") ?? 0),
    [limit, hold] = useLimit(name),
    number = (v: unknown) => (typeof v === "number" ? v : null);
  const steps = (other?.rows ?? []).map((r) => number(r.step)).map((s, i) => s ?? i),
    theirs = (other?.rows ?? []).map((r) => number(r[name])),
    compared = theirs.some((v) => v !== null),
    wide = compared ? both(x, steps) : x,
    mine = compared ? laid_over(wide, x, values) : values;
  const series: Series[] = [
    ...(compared
      ? [{ name: other!.name, token: "--fg-3", values: smoothed(laid_over(wide, steps, theirs), weight) }]
      : []),
    { name: compared ? "this run" : name, token, values: smoothed(mine, weight) },
    ...(limit === null ? [] : [{ name: `limit ${limit}`, token: "--bad", values: wide.map(() => limit) }]),
  ];
  const over = limit === null ? null : crossed(x, values, limit);
  return (
    <div>
      <div class="sec">
        <h2>{name}</h2>
        <span class="say">
          {say}
          {weight ? `; smoothed by ${weight}` : ""}
          {over &&
            (over.n
              ? `; over ${limit} in ${count(over.n)}, first in step ${count(over.first!)}`
              : `; never over ${limit}`)}
        </span>
        <span class="gap" />
        {series.length > 1 && <Legend of={series} />}
        <input
          class="ctl limit"
          inputMode="decimal"
          size={8}
          aria-label={`Limit of ${name}`}
          placeholder="Limit"
          value={limit ?? ""}
          onChange={(e) => {
            const v = e.currentTarget.value.trim();
            hold(v && Number.isFinite(Number(v)) ? Number(v) : null);
          }}
        />
        <a href={href("sql", { q: `SELECT step, "${name}" FROM training_logs ORDER BY step` })}>As SQL</a>
      </div>
      <Plot x={wide} spans={compared} height={150} range={range} label={name} series={series} marks={marks} />
    </div>
  );
}
