// Where the page is: #/view?target=...&... Everything that a view shows can be had again from its address.
import { clock } from "./format";
import { cell, useCell } from "./store";
import { LAST_S, type Span } from "./timeline";

export interface Route {
  view: string;
  args: URLSearchParams;
}

function read(): Route {
  const [view, args] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: view || "now", args: new URLSearchParams(args ?? "") };
}

const here = cell(read());
addEventListener("hashchange", () => here.set(read()));

export const useRoute = (): Route => useCell(here);
export const current = (): Route => here.get();

// What stays when one goes from view to view.
const KEPT = ["target", "all", "ranks", "range"];

export function href(view: string, args: Record<string, string | null | undefined> = {}): string {
  const q = new URLSearchParams();
  for (const name of KEPT) {
    const value = here.get().args.get(name);
    if (value !== null) q.set(name, value);
  }
  for (const [name, value] of Object.entries(args))
    if (value === null || value === undefined || value === "") q.delete(name);
    else q.set(name, value);
  return `#/${view}${q.size ? `?${q}` : ""}`;
}

export function go(view: string, args: Record<string, string | null | undefined> = {}) {
  location.hash = href(view, args);
}

// Changes arguments of the view that is shown, without a step in the history.
export function put(args: Record<string, string | null | undefined>) {
  const route = here.get(),
    q = new URLSearchParams(route.args);
  for (const [name, value] of Object.entries(args))
    if (value === null || value === undefined || value === "") q.delete(name);
    else q.set(name, value);
  history.replaceState(null, "", `#/${route.view}${q.size ? `?${q}` : ""}`);
  here.set(read());
}

// The processes that a question is about: ?target= as the API has it, ?all= where it stands for several.
export type Chosen = { target: string; all: boolean };
export function useChosen(): Chosen | null {
  const { args } = useRoute();
  const target = args.get("target");
  return target ? { target, all: args.get("all") === "1" } : null;
}

// ?ranks=0-3,7: of the ranks of a job, those that are looked at. A process without a rank is left out where some are
// chosen.
export function useRanks(): (rank: unknown) => boolean {
  const text = useRoute().args.get("ranks") ?? "",
    parts = text
      .split(",")
      .map((p) => /^\s*(\d+)(?:\s*(?:-|to)\s*(\d+))?\s*$/.exec(p))
      .filter((m) => !!m);
  return (rank) =>
    !parts.length ||
    (rank !== null &&
      rank !== undefined &&
      parts.some((m) => Number(rank) >= Number(m[1]) && Number(rank) <= Number(m[2] ?? m[1])));
}

export interface Range {
  from: number;
  until: number;
} // seconds since 1970

export function parse_range(text: string | null): Range | null {
  const m = /^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/.exec(text ?? "");
  return m && Number(m[2]) > Number(m[1]) ? { from: Number(m[1]), until: Number(m[2]) } : null;
}
export const range_text = (r: Range) => `${r.from.toFixed(3)}-${r.until.toFixed(3)}`;
export const moment = (t: number) => `TIMESTAMP '${new Date(t * 1000).toISOString().replace("T", " ").slice(0, 23)}'`;

// ?range=300: the last 300 seconds; ?range=FROM-UNTIL in seconds since 1970; none: all that is kept. where is the
// same in SQL: the last seconds of what has ended are counted from its end. A constant would change the question
// every second, so now() is left to the engine.
export interface Chosen_range {
  text: string;
  last: number | null;
  from: number | null;
  until: number | null;
  where: string;
  and: string;
}
export function useRange(dead = false, table = "memory_usage"): Chosen_range {
  const text = useRoute().args.get("range") ?? "",
    fixed = parse_range(text),
    last = /^\d+$/.test(text) && Number(text) > 0 ? Number(text) : null;
  const test = fixed
    ? `timestamp BETWEEN ${moment(fixed.from)} AND ${moment(fixed.until)}`
    : last
      ? `timestamp > ${dead ? `(SELECT max(timestamp) FROM ${table})` : "now()"} - INTERVAL ${last} SECONDS`
      : "";
  return {
    text,
    last,
    from: fixed?.from ?? null,
    until: fixed?.until ?? null,
    where: test ? ` WHERE ${test}` : "",
    and: test ? ` AND ${test}` : "",
  };
}

// The time that a view shows, in seconds since 1970. live: it ends now, and moves on.
export function span_of(text: string, now: number): Span & { live: boolean; text: string } {
  const fixed = parse_range(text);
  if (fixed) return { ...fixed, live: false, text: `${clock(fixed.from * 1000)} to ${clock(fixed.until * 1000)}` };
  const last = Number(text) || LAST_S,
    words = last % 3600 === 0 ? `${last / 3600} h` : last % 60 === 0 ? `${last / 60} min` : `${last} s`;
  return { from: now - last, until: now, live: true, text: `The last ${words}` };
}
export const useSpan = (now: number) => span_of(useRoute().args.get("range") ?? "", now);
