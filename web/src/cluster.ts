// The stacks of all ranks of a cluster (`probing -t cluster backtrace --json`), as those of processes. Nodes send
// equal stacks once, so a stack has ranks and no thread: what a single thread waits for is not known here.
import type { Frame, Merged, Native, Process, Thread, Unread } from "./api";

interface ClusterFrame {
  kind: "python" | "native";
  function: string | null;
  file: string | null;
  module?: string | null;
  line: number | null;
}
interface Class {
  threads: number;
  ranks: [number, number][];
  role: string | null;
  frames: ClusterFrame[];
}
export interface ClusterStacks {
  asked: number;
  answered: number;
  ms: number;
  nodes: { node: string; state: string; why: string | null }[];
  failed: { rank: number; why: string | null }[];
  classes: Class[];
}

export function is_cluster(target: string): boolean {
  return /^cluster(:|$)/.test(target);
}

const NOT_OWN = /\/(site|dist)-packages\/|\/lib\/python\d|^</;

function frame_of(f: ClusterFrame): Frame {
  const name = f.function ?? "?",
    file = f.file ?? "";
  return {
    function: name,
    name: name.slice(name.lastIndexOf(".") + 1),
    file,
    line: f.line,
    first_line: 0,
    own: !NOT_OWN.test(file),
  };
}

function thread_of(c: Class, tid: number): Thread {
  const frames: Frame[] = [],
    stack: (Native | Merged)[] = [];
  for (const f of c.frames) {
    if (f.kind === "native") {
      stack.push({
        kind: "native",
        function: f.function,
        module: f.module ?? null,
        file: f.file,
        line: f.line,
        pc: "?",
      });
      continue;
    }
    stack.push({ kind: "python", function: f.function ?? "?", file: f.file ?? "", line: f.line, frame: frames.length });
    frames.push(frame_of(f));
  }
  return {
    tid,
    name: "",
    native_name: "",
    state: "",
    running: false,
    python: frames.length > 0,
    frames,
    stack: frames.length < stack.length ? stack : undefined,
  };
}

// By rank. The thread of a class is one object, however many ranks share it.
export function processes_of(answer: ClusterStacks): (Process | Unread)[] {
  const of = new Map<number, Process>(),
    unread: Unread[] = answer.failed.map((f) => ({ pid: f.rank, label: `rank ${f.rank}`, error: f.why ?? "not read" }));
  answer.classes.forEach((c, i) => {
    const thread = thread_of(c, -1 - i);
    for (const [first, last] of c.ranks)
      for (let rank = first; rank <= last; rank++) {
        let p = of.get(rank);
        if (!p)
          of.set(
            rank,
            (p = {
              pid: rank,
              label: `rank ${rank}`,
              command: "",
              python: null,
              verdict: null,
              notes: [],
              threads: [],
            }),
          );
        p.threads.push(thread);
      }
  });
  for (const n of answer.nodes)
    if (n.state !== "answered")
      unread.push({ pid: -1, label: n.node, error: `${n.state}${n.why ? `: ${n.why}` : ""}` });
  return [...[...of.values()].sort((a, b) => a.pid - b.pid), ...unread];
}
