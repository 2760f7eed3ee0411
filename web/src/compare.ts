// One variable in the processes of a job: in which of them it differs. Only values that were read are compared.
import { some } from "./format";

export interface Held {
  label: string;
  pid: number;
  value: string | null;
  where: string;
  within?: string;
  error?: string;
}

export interface Compared {
  title: string;
  odd: Set<number>; // the processes whose value is not the usual one
  read: Set<number>;
  all_differ: boolean;
}

// What is read from outside of a tensor or an object is its kind, not what is in it.
export const is_opaque = (v: string) =>
  /^\w*(tensor|array|Parameter)\(/i.test(v) || /0x[0-9a-f]{6,}/.test(v) || /(\.\.\.|…)\W*$/.test(v);

function words_of(name: string, all: number, have: number, read: number, odd: Held[], all_differ: boolean): string {
  const of = read === all ? `all ${all}` : `the ${read} of ${all} that were read`;
  if (!have) return `No function that runs has ${name}.`;
  if (!read) return `${name} was not read: only its kind is known.`;
  if (odd.length) {
    const who = odd.length > 6 ? some(odd.length, "process", "processes") : odd.map((r) => r.label).join(", ");
    return `${name} differs in ${who}.`;
  }
  if (all_differ) return `${name} is different in each of ${of}.`;
  return read === 1 ? `${name} was read from one process.` : `${name} is the same in ${of}.`;
}

// numbers: what was read from inside the tensors of that name, by process; null: it could not be.
export function compare(name: string, rows: Held[], numbers: Map<number, string | null> | undefined): Compared {
  const values = new Map<number, string>(),
    tally = new Map<string, number>();
  for (const r of rows) {
    const inside = numbers?.get(r.pid),
      value = numbers?.has(r.pid) ? inside : r.value === null || is_opaque(r.value) ? null : r.value;
    if (r.error === undefined && value !== null && value !== undefined) values.set(r.pid, value);
  }
  for (const v of values.values()) tally.set(v, (tally.get(v) ?? 0) + 1);
  const [usual] = [...tally].sort((a, b) => b[1] - a[1])[0] ?? [],
    all_differ = tally.size === values.size && values.size > 2,
    odd = rows.filter((r) => values.has(r.pid) && !all_differ && values.get(r.pid) !== usual);
  const have = rows.filter((r) => r.value !== null).length;
  return {
    title: words_of(name, rows.length, have, values.size, odd, all_differ),
    odd: new Set(odd.map((r) => r.pid)),
    read: new Set(values.keys()),
    all_differ,
  };
}
