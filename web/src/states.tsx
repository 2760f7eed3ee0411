// States of threads and processes: a shape, a word and a colour each.
import type { Process, Thread } from "./api";
import { call_words } from "./state-words";

export type State = "compute" | "coll" | "loader" | "gil" | "lock" | "io" | "wait" | "stopped" | "unknown" | "dead";

export const WORDS: Record<State, string> = {
  loader: "data loader",
  coll: "in collective",
  compute: "computing",
  gil: "waiting for GIL",
  lock: "waiting for a lock",
  io: "I/O",
  wait: "waiting",
  stopped: "stopped",
  unknown: "not read",
  dead: "ended",
};

const SHAPES: Record<State, string> = {
  compute: "M5 0a5 5 0 1 0 0 10a5 5 0 1 0 0-10z",
  coll: "M5 1a4 4 0 1 0 0 8a4 4 0 1 0 0-8z",
  loader: "M5 0L10 10H0z",
  gil: "M1 1h8v8H1z",
  lock: "M1.5 1.5h7v7h-7z",
  io: "M5 0L10 5L5 10L0 5z",
  wait: "M5 2.5a2.5 2.5 0 1 0 0 5a2.5 2.5 0 1 0 0-5z",
  stopped: "M1 0h3v10H1zM6 0h3v10H6z",
  unknown: "M1 5h8",
  dead: "M1 1L9 9M9 1L1 9",
};

export const LANES: Record<State, string> = {
  compute: "--ln-compute",
  coll: "--ln-coll",
  loader: "--st-loader",
  gil: "--st-gil",
  lock: "--st-gil",
  io: "--ln-io",
  wait: "--ln-wait",
  stopped: "--st-stopped",
  unknown: "--bg-3",
  dead: "--st-dead",
};

const KINDS: Record<string, State> = {
  gil: "gil",
  "python lock": "lock",
  mutex: "lock",
  "file lock": "lock",
  collective: "coll",
  "data loader worker": "loader",
  pipe: "io",
  socket: "io",
  file: "io",
  stopped: "stopped",
};

export function thread_state(t: Thread): State {
  if (t.running) return "compute";
  return t.waits_for ? (KINDS[t.waits_for.kind] ?? "wait") : "wait";
}

export function wait_words(t: Thread): string {
  const w = t.waits_for;
  if (!w) return call_words(t.state);
  const group = w.group ? ` of ${w.group}` : "";
  if (w.kind === "futex" || w.kind === "system call") return `${call_words(t.state)}${group}`;
  return `${w.what ? `${w.kind}: ${w.what}` : w.kind}${group}`;
}

const WAITS: Record<string, string> = { sleep: "sleeping", poll: "polling", child: "waiting for a child" };

// The state of a thread in a word or two.
export function state_word(state: State, t: Thread | undefined): string {
  return (state === "wait" && WAITS[t?.waits_for?.kind ?? ""]) || WORDS[state];
}

export function main_thread(p: Process): Thread | undefined {
  return p.threads.find((t) => t.tid === p.pid) ?? p.threads.find((t) => t.python) ?? p.threads[0];
}

const CALLS: [RegExp, State, string?][] = [
  [/^running/, "compute"],
  [/^stopped/, "stopped"],
  [/^(ended|died)/, "dead"],
  [/^blocked in/, "io"],
  [/ in (clock_)?nanosleep/, "wait", "sleeping"],
  [/ in e?p?(poll|select)/, "wait", "polling"],
  [/ in wait(4|id)/, "wait", "waiting for a child"],
  [/ in (p?read|p?write|recv|send|accept|connect|fsync|flock)/, "io"],
];
const VERDICTS: [RegExp, State][] = [
  [/collective|all_?reduce|all_?gather|barrier|broadcast/i, "coll"],
  [/data ?loader/i, "loader"],
  [/\bGIL\b/, "gil"],
  [/\block\b|mutex|deadlock/i, "lock"],
];

// The words of a line of `probing now` as a state: what it waits for tells more than the call in which it does.
export function row_state(state: string, verdict: string | null): { state: State; word: string } {
  const said = verdict && VERDICTS.find(([is]) => is.test(verdict));
  if (said) return { state: said[1], word: WORDS[said[1]] };
  const call = CALLS.find(([is]) => is.test(state));
  if (!call && /^waiting in \w+$/.test(state)) return { state: "wait", word: WORDS.wait };
  return call
    ? { state: call[1], word: call[2] ?? WORDS[call[1]] }
    : { state: "wait", word: state.length < 30 ? state : WORDS.wait };
}

export function Glyph({ state }: { state: State }) {
  return (
    <svg class="glyph" viewBox="0 0 10 10" aria-hidden="true">
      <path d={SHAPES[state]} />
    </svg>
  );
}

export function StateTag({ state, word, title }: { state: State; word?: string; title?: string }) {
  return (
    <span class={`st st-${state}`} title={title}>
      <Glyph state={state} />
      {word ?? WORDS[state]}
    </span>
  );
}
