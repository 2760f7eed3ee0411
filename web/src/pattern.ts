// In which steps a rank is slow, as a sentence: every tenth, most of them, or one.
import { count, ms, ranges, some } from "./format";
import { median } from "./steps";

export interface Of_rank {
  rank: string;
  steps: { step: number; is: number; usual: number; slow: boolean }[];
}

const ORDINALS = ["", "", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"];
const ordinal = (n: number) =>
  ORDINALS[n] ?? `${n}${n % 100 > 10 && n % 100 < 14 ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th")}`;

function most_frequent(values: number[]): { value: number; n: number } {
  const by = new Map<number, number>();
  for (const v of values) by.set(v, (by.get(v) ?? 0) + 1);
  const [value, n] = [...by].sort((a, b) => b[1] - a[1])[0] ?? [0, 0];
  return { value, n };
}

// The distance of slow steps, where most of them keep it and few of its places are left out; null: there is none. Some
// more that are slow for another reason do not hide it.
export function period_of(steps: number[]): number | null {
  if (steps.length < 3) return null;
  const { value: gap } = most_frequent(steps.flatMap((s, i) => steps.slice(i + 1, i + 4).map((t) => t - s)));
  if (gap < 2) return null;
  const { value: place, n } = most_frequent(steps.map((s) => s % gap)),
    kept = steps.filter((s) => s % gap === place),
    places = (kept[kept.length - 1] - kept[0]) / gap + 1;
  return n >= 3 && n >= 0.6 * steps.length && n >= 0.7 * places ? gap : null;
}

const slow_of = (r: Of_rank) => r.steps.filter((s) => s.slow);

export function pattern_words(ranks: Of_rank[], what: string): string {
  const sorted = [...ranks].sort((a, b) => slow_of(b).length - slow_of(a).length),
    [worst] = sorted,
    slow = worst ? slow_of(worst) : [];
  if (!slow.length) return "No rank is behind the others.";
  const others = sorted.slice(1).filter((r) => 2 * slow_of(r).length >= slow.length && slow_of(r).length > 1),
    period = period_of(slow.map((s) => s.step)),
    all = worst.steps.length;
  const when = period
    ? `in every ${ordinal(period)} step`
    : slow.length === 1
      ? `in step ${count(slow[0].step)} of the last ${all}`
      : `in ${slow.length} of ${some(all, "step")}`;
  const name = /^\d+$/.test(worst.rank) ? `Rank ${worst.rank}` : worst.rank,
    usual = ms(median(slow.map((s) => s.usual))),
    takes = `${ms(median(slow.map((s) => s.is)))} of ${what}, where the median is ${usual}`;
  const also = others.every((r) => /^\d+$/.test(r.rank)) ? ranges(others.map((r) => Number(r.rank))) : "";
  return (
    `${name} is slow ${when}: ${takes}.` +
    (others.length ? ` So ${others.length === 1 ? "is rank" : "are ranks"} ${also || others.length}.` : "")
  );
}
