// Steps of a training as they are kept: which one a link means, and which took long.
import type { Row } from "./api";

export const median = (v: number[]) => (v.length ? [...v].sort((a, b) => a - b)[v.length >> 1] : 0);

// Above it a step is longer than usual: half as long again as the median.
const LONG = 1.5;

export interface Steps {
  rows: Row[];
  durations: number[];
  usual: number;
}

export function steps_of(rows: Row[]): Steps {
  const durations = rows.map((r) => Number(r.duration_ms));
  return { rows, durations, usual: median(durations) };
}

export const took_long = (of: Steps, at: number) => of.durations[at] > LONG * of.usual;

// The place of the step that was asked for, or of the longest if none was. A step that is not kept has none: nearest is
// the one to offer.
export function find_step(
  of: Steps,
  picked: number | null,
): { at: number; nearest: number } | { at: null; nearest: number } {
  if (picked === null) {
    const at = of.durations.indexOf(Math.max(...of.durations));
    return { at, nearest: Number(of.rows[at].step) };
  }
  const numbers = of.rows.map((r) => Number(r.step)),
    at = numbers.indexOf(picked),
    nearest = numbers.reduce((a, b) => (Math.abs(b - picked) < Math.abs(a - picked) ? b : a));
  return { at: at < 0 ? null : at, nearest };
}

// From the begin of the first step to the end of the last.
export function times_of(rows: Row[]): { from: number; until: number } {
  const begin = rows.map((r) => Number(r.t) - Number(r.duration_ms) / 1000),
    end = rows.map((r) => Number(r.t));
  return rows.length ? { from: Math.min(...begin), until: Math.max(...end) } : { from: 0, until: 0 };
}
