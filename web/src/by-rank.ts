// Rows of all ranks of a job as lines on one axis.
import type { Row } from "./api";
import { COLOURS } from "./colours";

export interface RankLine {
  key: string; // the process
  name: string;
  token: string;
  values: (number | null)[];
}

// Of more ranks than these, the lowest, the middle and the highest value at each place are drawn.
const LINES_MAX = 16;

export const rank_name = (r: Row) =>
  r.rank === null || r.rank === undefined ? `pid ${String(r.target_pid)}` : `rank ${String(r.rank)}`;

const middle = (v: number[]) => v[(v.length - 1) >> 1];

export function lines_by_rank(rows: Row[], at: string, of: string): { x: number[]; lines: RankLine[] } {
  const x = [...new Set(rows.map((r) => Number(r[at])))].sort((a, b) => a - b),
    place = new Map(x.map((v, i) => [v, i]));
  const by = new Map<string, { name: string; rank: number; values: (number | null)[] }>();
  for (const r of rows) {
    const key = String(r.target_pid);
    if (!by.has(key)) by.set(key, { name: rank_name(r), rank: Number(r.rank ?? key), values: x.map(() => null) });
    if (typeof r[of] === "number") by.get(key)!.values[place.get(Number(r[at]))!] = r[of];
  }
  const ranks = [...by].sort((a, b) => a[1].rank - b[1].rank);
  if (ranks.length <= LINES_MAX) {
    const line = ([key, r]: (typeof ranks)[0], i: number) => ({ key, token: COLOURS[i % COLOURS.length], ...r });
    return { x, lines: ranks.map(line).map(({ key, name, token, values }) => ({ key, name, token, values })) };
  }
  const each = x.map((_, i) =>
    ranks.flatMap(([, r]) => (r.values[i] === null ? [] : [r.values[i]!])).sort((a, b) => a - b),
  );
  const summed: [string, (v: number[]) => number | undefined][] = [
    ["highest", (v) => v.at(-1)],
    ["middle", middle],
    ["lowest", (v) => v[0]],
  ];
  return {
    x,
    lines: summed.map(([name, f], i) => ({
      key: name,
      name,
      token: COLOURS[i],
      values: each.map((v) => f(v) ?? null),
    })),
  };
}
