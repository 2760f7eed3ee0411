// How a result is drawn: which column is across, which is up, and what makes a line of its own.
import { COLOURS } from "./colours";
import { is_numeric, type Table } from "./grid-rows";

export interface Axes {
  x: number | null; // null: the order of the rows
  y: number;
  by: number | null; // a line each value
  kind: "time" | "number" | "label";
}

const IDS = /^(rank|pid|target_pid|tid|thread_id|id|depth|line|lineno)$/;
const ACROSS = /^(step|epoch|iteration)$/i;
const DRAWN = 100_000;
const LINES_MAX = 16;
const LABELS_MAX = 60;

const is_time = (v: unknown) => typeof v === "string" && /^\d{4}-\d\d-\d\d[ T]\d\d:/.test(v);
const time_of = (v: unknown) => Date.parse(`${String(v).replace(" ", "T")}Z`) / 1000;

export function axes_of(table: Table, wanted: { x?: number | null; y?: number | null } = {}): Axes | null {
  const all = table.columns.map((_, i) => i),
    numeric = all.filter((i) => is_numeric(table, i)),
    times = all.find((i) => is_time(table.rows[0]?.[i])),
    label = all.find((i) => i !== times && !numeric.includes(i)),
    named = (is: RegExp) => numeric.find((i) => is.test(table.columns[i]));
  if (!numeric.length) return null;
  const few = table.rows.length <= LABELS_MAX && label !== undefined && times === undefined;
  const x = wanted.x !== undefined ? wanted.x : (times ?? named(ACROSS) ?? (few ? label : null)),
    free = numeric.filter((i) => i !== x),
    y = wanted.y ?? free.find((i) => !IDS.test(table.columns[i]) && !ACROSS.test(table.columns[i])) ?? free[0];
  if (y === undefined) return null;
  const ranks = all.find((i) => table.columns[i] === "rank" || table.columns[i] === "target_pid"),
    kind = x === times && x !== undefined ? "time" : x !== null && !numeric.includes(x!) ? "label" : "number";
  return {
    x: x ?? null,
    y,
    by: kind !== "label" && ranks !== undefined && ranks !== x && ranks !== y ? ranks : null,
    kind,
  };
}

export interface Drawn_line {
  name: string;
  token: string;
  values: (number | null)[];
}

// The lines over one x. More than these are not told apart: the first are drawn, and how many are left out is told.
export function lines_of(table: Table, axes: Axes): { x: number[]; lines: Drawn_line[]; left: number } {
  const at = (r: unknown[], i: number) =>
    axes.x === null ? i : axes.kind === "time" ? time_of(r[axes.x]) : (r[axes.x] as number | null);
  const rows = table.rows.slice(0, DRAWN).map((r, i) => [at(r, i), r] as const),
    kept = rows.filter(([v]) => typeof v === "number" && !Number.isNaN(v)) as [number, unknown[]][];
  const x = [...new Set(kept.map(([v]) => v))].sort((a, b) => a - b),
    place = new Map(x.map((v, i) => [v, i])),
    by = new Map<string, (number | null)[]>();
  for (const [v, r] of kept) {
    const key = axes.by === null ? table.columns[axes.y] : `${table.columns[axes.by]} ${String(r[axes.by])}`;
    if (!by.has(key)) by.set(key, new Array<number | null>(x.length).fill(null));
    by.get(key)![place.get(v)!] = typeof r[axes.y] === "number" ? (r[axes.y] as number) : null;
  }
  const lines = [...by]
    .sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true }))
    .slice(0, LINES_MAX)
    .map(([name, values], i) => ({ name, token: COLOURS[i % COLOURS.length], values }));
  return { x, lines, left: by.size - lines.length };
}
