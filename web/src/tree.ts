// Stacks of many threads as one tree: equal frames once, with who has them.
import type { Frame, Native, Process, Thread } from "./api";
import { short_file } from "./format";
import { main_thread } from "./states";

export interface Who {
  process: Process;
  thread: Thread;
  index: number;
}
export interface Node {
  key: string;
  name: string;
  where: string;
  kind: "own" | "lib" | "nat";
  frame: Frame | undefined;
  native: Native | undefined;
  depth: number;
  who: Who[];
  processes: number;
  children: Node[];
  ends: Who[];
}

export interface Choice {
  lines: boolean;
  threads: boolean;
  idle: boolean;
}

const WAITS_FOR_WORK = new Set(["worker", "wait", "get", "_worker", "run", "select", "accept"]);

// A thread of a pool that has nothing to do: nobody looks for it first.
function is_idle(t: Thread): boolean {
  return (
    !t.running &&
    t.python &&
    (t.waits_for?.kind === "futex" || t.waits_for?.kind === "poll") &&
    !t.frames?.some((f) => f.own) &&
    WAITS_FOR_WORK.has(t.frames?.[0]?.name ?? "")
  );
}

interface Step {
  key: string;
  name: string;
  where: string;
  kind: Node["kind"];
  frame?: Frame;
  native?: Native;
}

function python_step(f: Frame, lines: boolean): Step {
  return {
    key: `${f.function}\n${f.file}${lines ? `\n${f.line}` : ""}`,
    name: f.function,
    where: `${short_file(f.file)}:${f.line ?? "?"}`,
    kind: f.own ? "own" : "lib",
    frame: f,
  };
}

function native_step(n: Native, lines: boolean): Step {
  const name = n.function ?? n.pc,
    module = n.module ? n.module.slice(n.module.lastIndexOf("/") + 1) : "";
  return {
    key: `${name}\n${module}${lines ? `\n${n.line}` : ""}`,
    name,
    where: n.file && n.line ? `${short_file(n.file)}:${n.line}` : module,
    kind: "nat",
    native: n,
  };
}

// Outermost first.
function steps_of(t: Thread, lines: boolean): Step[] {
  if (!t.stack) return [...(t.frames ?? [])].reverse().map((f) => python_step(f, lines));
  return [...t.stack]
    .reverse()
    .map((s) => (s.kind === "native" ? native_step(s, lines) : python_step(t.frames![s.frame], lines)));
}

// The nodes of a stack from the outermost on, made where they are missing.
function place(root: Node[], steps: Step[]): Node[] {
  let level = root;
  return steps.map((s, depth) => {
    let node = level.find((n) => n.key === s.key);
    if (!node)
      level.push(
        (node = {
          key: s.key,
          name: s.name,
          where: s.where,
          kind: s.kind,
          frame: s.frame,
          native: s.native,
          depth,
          who: [],
          processes: 0,
          children: [],
          ends: [],
        }),
      );
    level = node.children;
    return node;
  });
}

export function merge(processes: Process[], choice: Choice): { root: Node[]; who: Who[]; hidden: number } {
  // Ranks of a cluster share the thread of their class, which has its place found once.
  const root: Node[] = [],
    who: Who[] = [],
    places = new Map<Thread, Node[]>();
  let hidden = 0;
  processes.forEach((process, index) => {
    const main = main_thread(process);
    for (const thread of process.threads) {
      if (!choice.threads && thread !== main) {
        hidden++;
        continue;
      }
      if (choice.threads && !choice.idle && thread !== main && is_idle(thread)) {
        hidden++;
        continue;
      }
      const one = { process, thread, index },
        path = places.get(thread) ?? place(root, steps_of(thread, choice.lines));
      places.set(thread, path);
      if (!path.length) {
        hidden++;
        continue;
      } // in no code that is shown: it can stand nowhere in the tree
      who.push(one);
      for (const node of path) {
        if (node.who[node.who.length - 1]?.process !== process) node.processes++;
        node.who.push(one);
      }
      path[path.length - 1].ends.push(one);
    }
  });
  // The rarest first: that is what one looks for.
  const sort = (level: Node[]) => {
    level.sort((a, b) => a.who.length - b.who.length);
    for (const n of level) sort(n.children);
  };
  sort(root);
  return { root, who, hidden };
}

// A place that few of the processes are at.
export const is_odd = (node: Node, processes: number) =>
  processes > 2 && node.processes * 3 <= processes && (processes < 40 || node.processes * 20 <= processes);

// The end of a stack that one wants to see first: that of a culprit, else the rarest of the odd ones. Where all are at
// the same place there is none, and of one process its tree says enough.
export function first_end<T extends { node: Node }>(
  rows: T[],
  processes: number,
  culprits: Set<number>,
): T | undefined {
  const is_culprit = (r: T) =>
      r.node.ends.some((w) => culprits.has(w.process.pid) && w.thread === main_thread(w.process)),
    odd = rows.filter((r) => r.node.ends.length && is_odd(r.node, processes));
  return rows.find(is_culprit) ?? odd.sort((a, b) => a.node.who.length - b.node.who.length)[0];
}
