// A flame graph as flat arrays in depth-first order: what is drawn is found without walking a tree of objects.
import { call_words } from "./state-words";

export interface Flame {
  names: string[];
  name: Int32Array;
  depth: Int32Array;
  start: Float64Array;
  weight: Float64Array;
  self: Float64Array;
  end: Int32Array;
  parent: Int32Array;
  n: number;
  total: number;
  deepest: number;
  heavy: boolean;
  kinds: Kind[];
  diff?: { a: Float64Array; b: Float64Array; of_a: number; of_b: number };
}

interface Build {
  name: string;
  weight: number;
  self: number;
  a: number;
  children: Map<string, Build>;
}
export type Order = "heavy" | "name";

function add(root: Build, text: string, scale: number, before: boolean) {
  for (const line of text.split("\n")) {
    const cut = line.lastIndexOf(" "),
      count = scale * Number(line.slice(cut + 1));
    if (cut < 1 || !(count > 0)) continue;
    let at = root;
    at.weight += count;
    if (before) at.a += count;
    for (const name of line.slice(0, cut).split(";")) {
      let next = at.children.get(name);
      if (!next) at.children.set(name, (next = { name, weight: 0, self: 0, a: 0, children: new Map() }));
      next.weight += count;
      if (before) next.a += count;
      at = next;
    }
    at.self += count;
  }
}

const empty = (): Build => ({ name: "all", weight: 0, self: 0, a: 0, children: new Map() });

// Lines of "outermost;..;innermost COUNT".
export function parse_folded(text: string, order: Order = "heavy"): Flame {
  const root = empty();
  add(root, text, 1, false);
  return flatten(root, order);
}

const total_of = (text: string) =>
  text.split("\n").reduce((sum, line) => sum + (Number(line.slice(line.lastIndexOf(" ") + 1)) || 0), 0);

// Two in one: a box is as wide as its share of A and its share of B together, so that what is only in one of them is
// there too.
export function diff_folded(before: string, after: string, order: Order = "heavy"): Flame {
  const root = empty(),
    of_a = total_of(before),
    of_b = total_of(after);
  if (of_a > 0) add(root, before, 0.5 / of_a, true);
  if (of_b > 0) add(root, after, 0.5 / of_b, false);
  const f = flatten(root, order),
    a = new Float64Array(f.n),
    b = new Float64Array(f.n);
  let at = 0;
  const walk = (n: Build) => {
    const i = at++;
    a[i] = 2 * n.a;
    b[i] = 2 * (n.weight - n.a);
    for (const c of sorted(n, order)) walk(c);
  };
  walk(root);
  return { ...f, diff: { a, b, of_a, of_b } };
}

const sorted = (b: Build, order: Order) =>
  [...b.children.values()].sort((x, y) =>
    order === "heavy" ? y.weight - x.weight || (x.name < y.name ? -1 : 1) : x.name < y.name ? -1 : 1,
  );

function flatten(root: Build, order: Order): Flame {
  let n = 0;
  const size = (b: Build) => {
    n++;
    for (const c of b.children.values()) size(c);
  };
  size(root);
  const f: Flame = {
    names: [],
    name: new Int32Array(n),
    depth: new Int32Array(n),
    start: new Float64Array(n),
    weight: new Float64Array(n),
    self: new Float64Array(n),
    end: new Int32Array(n),
    parent: new Int32Array(n),
    n,
    total: root.weight,
    deepest: 0,
    heavy: order === "heavy",
    kinds: [],
  };
  const known = new Map<string, number>();
  let next = 0;
  const put = (b: Build, depth: number, start: number, parent: number) => {
    const i = next++;
    let name = known.get(b.name);
    if (name === undefined) {
      known.set(b.name, (name = f.names.length));
      f.names.push(b.name);
    }
    f.name[i] = name;
    f.depth[i] = depth;
    f.start[i] = start;
    f.weight[i] = b.weight;
    f.self[i] = b.self;
    f.parent[i] = parent;
    f.deepest = Math.max(f.deepest, depth);
    let at = start;
    for (const c of sorted(b, order)) {
      put(c, depth + 1, at, i);
      at += c.weight;
    }
    f.end[i] = next;
  };
  put(root, 0, 0, -1);
  f.kinds = f.names.map(kind_of); // once: every frame that is drawn asks for them
  return f;
}

export type Kind = "all" | "own" | "lib" | "nat" | "wait";

export function kind_of(name: string): Kind {
  return name === "all"
    ? "all"
    : /^\[.*\]$/.test(name)
      ? "wait"
      : / \[[^\]]*\]$|\.so[\w.]*\)?$/.test(name)
        ? "nat"
        : /\([^)]*\/[^)]*\)$/.test(name)
          ? "lib"
          : "own";
}

export interface Top {
  name: string;
  self: number;
  total: number;
  a: number;
  b: number;
}

export function tops(f: Flame, most = 200): Top[] {
  const by = new Map<number, Top>();
  const open: number[] = []; // names above a node: a function that calls itself counts once
  for (let i = 1; i < f.n; i++) {
    open.length = f.depth[i];
    const t = by.get(f.name[i]) ?? { name: f.names[f.name[i]], self: 0, total: 0, a: 0, b: 0 };
    t.self += f.self[i];
    if (!open.includes(f.name[i])) {
      t.total += f.weight[i];
      if (f.diff) {
        t.a += f.diff.a[i];
        t.b += f.diff.b[i];
      }
    }
    open[f.depth[i]] = f.name[i];
    by.set(f.name[i], t);
  }
  return [...by.values()]
    .sort((a, b) => (f.diff ? Math.abs(b.b - b.a) - Math.abs(a.b - a.a) : b.self - a.self || b.total - a.total))
    .slice(0, most);
}

export interface Spent {
  name: string;
  time: number;
  waits: Map<string, number>; // of that, by how it waits
}

// Time by the function that it is spent in: a wait is its caller's.
export function spent_of(f: Flame): Spent[] {
  const by = new Map<number, Spent>();
  for (let i = 1; i < f.n; i++) {
    const waits = f.kinds[f.name[i]] === "wait",
      at = waits ? f.parent[i] : i;
    if (at < 1 || (!waits && !f.self[i])) continue;
    const s = by.get(f.name[at]) ?? { name: f.names[f.name[at]], time: 0, waits: new Map<string, number>() },
      state = f.names[f.name[i]].replace(/^\[|\]$/g, "");
    s.time += f.self[i];
    if (waits) s.waits.set(state, (s.waits.get(state) ?? 0) + f.self[i]);
    by.set(f.name[at], s);
  }
  return [...by.values()].sort((a, b) => b.time - a.time);
}

// Where the time goes, in a sentence: the functions that take most themselves, and of the program's own code the one
// that takes most with all that it calls.
export function flame_words(f: Flame): string {
  const whole = f.weight[0] || 1,
    percent = (v: number) => `${((100 * v) / whole).toFixed(0)}%`,
    most = spent_of(f)
      .filter((s) => s.time >= whole / 20)
      .slice(0, 3);
  if (!most.length) return "No function takes more than 5% of the time itself.";
  const parts = most.map((s) => {
    const [state, waited] = [...s.waits].sort((a, b) => b[1] - a[1])[0] ?? ["", 0];
    return `${percent(s.time)} in ${s.name}${2 * waited > s.time ? `, ${call_words(state)}` : ""}`;
  });
  const above = tops(f, Infinity)
    .filter((t) => kind_of(t.name) === "own" && t.name.endsWith(")") && t.total < whole * 0.98)
    .sort((a, b) => b.total - a.total)[0];
  const tell = above && above.total >= whole / 5 && !most.some((s) => s.name === above.name);
  return (
    `The time goes: ${parts.join("; ")}.` +
    (tell ? ` ${above.name} and what it calls take ${percent(above.total)}.` : "")
  );
}

export const ROW = 20;

// Which names fit a search: of each name once, not of each box.
export function hits_of(f: Flame, find: string): boolean[] | null {
  return find ? f.names.map((name) => name.toLowerCase().includes(find)) : null;
}

// The share of a box's time that is within boxes that fit.
export function share_of(f: Flame, root: number, hits: boolean[] | null): number {
  let found = 0;
  if (hits)
    for (let i = root; i < f.end[root];) {
      if (hits[f.name[i]]) {
        found += f.weight[i];
        i = f.end[i];
      } else i++;
    }
  return found / f.weight[root];
}

// up: the outermost function is at the foot, as in a fire; else at the top, as an icicle hangs.
export interface Paint {
  colours: Record<string, string>;
  root: number;
  picked: number;
  hits: boolean[] | null;
  top: number;
  up: boolean;
}

const y_of = (f: Flame, depth: number, up: boolean) => (up ? f.deepest - depth : depth) * ROW;

// Draws the rows that are in sight; boxes under half a pixel are skipped with all that is below them.
export function draw(x: CanvasRenderingContext2D, f: Flame, width: number, height: number, p: Paint) {
  const scale = width / f.weight[p.root],
    from = f.start[p.root],
    last = f.end[p.root],
    { hits } = p,
    least = 0.5 / scale;
  const deepest = p.up ? f.deepest : Math.floor((p.top + height) / ROW);
  x.clearRect(0, 0, width, height);
  x.font = "11px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
  x.textBaseline = "middle";
  const box = (i: number, left: number, w: number) => {
    const y = y_of(f, f.depth[i], p.up) - p.top;
    if (y + ROW < 0 || y > height) return;
    const name = f.names[f.name[i]],
      kind = f.kinds[f.name[i]],
      is = hits?.[f.name[i]];
    x.globalAlpha = hits && !is ? 0.35 : 1;
    const more = f.diff ? f.diff.b[i] - f.diff.a[i] : 0;
    x.fillStyle = f.diff
      ? p.colours[Math.abs(more) < 0.005 ? "same" : `${more > 0 ? "more" : "less"}${Math.abs(more) < 0.05 ? 0 : 1}`]
      : p.colours[kind === "all" || kind === "wait" ? kind : `${kind}${f.name[i] & 1}`];
    x.fillRect(left, y, Math.max(0.5, w - 0.7), ROW - 1);
    x.globalAlpha = 1;
    if (i === p.picked || is) {
      x.strokeStyle = i === p.picked ? p.colours.text : p.colours.hit;
      x.lineWidth = i === p.picked ? 2 : 1;
      x.strokeRect(left + 1, y + 1, Math.max(1, w - 3), ROW - 3);
    }
    if (w < 28) return;
    x.fillStyle = p.colours.text;
    // The font has one width: nothing is measured.
    const fit = Math.floor((w - 8) / 6.7),
      tail = f.diff && Math.abs(more) >= 0.005 ? ` ${more > 0 ? "+" : "−"}${Math.abs(100 * more).toFixed(1)}` : "";
    if (tail && fit > tail.length + 8) {
      const room = fit - tail.length;
      x.fillText((name.length > room ? `${name.slice(0, room - 1)}…` : name) + tail, left + 4, y + ROW / 2);
      return;
    }
    x.fillText(name.length > fit ? `${name.slice(0, Math.max(1, fit - 1))}…` : name, left + 4, y + ROW / 2);
  };
  for (let i = f.parent[p.root]; i >= 0; i = f.parent[i]) box(i, 0, width);
  for (let i = p.root; i < last;) {
    const w = f.weight[i];
    // Where the heaviest come first, all behind one that is too small are too small.
    if (w < least) {
      i = f.heavy ? f.end[f.parent[i]] : f.end[i];
      continue;
    }
    if (f.depth[i] > deepest) {
      i = f.end[i];
      continue;
    }
    box(i, (f.start[i] - from) * scale, w * scale);
    i++;
  }
}

export function at_point(f: Flame, root: number, width: number, px: number, py: number, up: boolean): number {
  const row = Math.floor(py / ROW),
    depth = up ? f.deepest - row : row;
  if (depth < f.depth[root]) {
    let i = root;
    while (i >= 0 && f.depth[i] !== depth) i = f.parent[i];
    return i;
  }
  const at = f.start[root] + (px / width) * f.weight[root];
  for (let i = root; i < f.end[root];) {
    if (at < f.start[i] || at >= f.start[i] + f.weight[i]) {
      i = f.end[i];
      continue;
    }
    if (f.depth[i] === depth) return i;
    i++;
  }
  return -1;
}
