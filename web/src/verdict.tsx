// The sentence about the chosen job, above every view: from the findings of diagnosis.ts, with the way to the evidence.
import { useEffect, useRef, useState } from "preact/hooks";
import { with_args, type NowRow, type Target } from "./api";
import {
  by_gravity,
  has_pid,
  mark_of,
  settle,
  stir_of,
  unsettled,
  type Diagnosis,
  type Finding,
  type Judged,
  type Mark,
} from "./diagnosis";
import { seconds } from "./format";
import { useLive, type Live } from "./live";
import { href, useChosen, useRoute, type Chosen } from "./route";
import { cell, useCell } from "./store";
import { why } from "./ui";

// All jobs of which something is known.
export const judged = cell<Judged[]>([]);

// The verdict of the chosen job comes by the stream of events, at the pace of the service; EVERY_MS is without one. The
// other jobs are asked for.
const EVERY_MS = 15000,
  OTHERS_MS = 60000,
  SOON_MS = 1000;
// So many times as long as an answer took nothing is asked: on a machine with many jobs it takes long, and costs.
const REST = 5;

// What a view sees that may be a fault: a rank that came, went or stands still. When it changes, the chosen job is
// looked at without waiting for its turn.
export const stirred = cell("");

// Why the chosen job could not be judged; "": it could, or is still being looked at.
export const unjudged = cell("");

// Whether an answer has come, if only an error.
function useAnswers(path: string | null, every: number, whole: boolean): Live<Diagnosis> {
  const took = useRef(0),
    answer = useLive<Diagnosis>(path, Math.max(every, REST * took.current)),
    taken = useRef(0);
  took.current = 1000 * (answer.data?.seconds ?? 0);
  if (answer.data && answer.at > taken.current) {
    taken.current = answer.at;
    judged.set(settle(judged.get(), answer.data, answer.at, whole));
  }
  useEffect(() => {
    if (!answer.at || every > EVERY_MS || !unsettled(judged.get())) return;
    const soon = setTimeout(answer.again, Math.max(SOON_MS, took.current));
    return () => clearTimeout(soon);
  }, [answer.at]);
  return answer;
}

// Asks for the whole page, once: the frame of the page calls it. The chosen job is asked for by itself and first, since
// an answer about all jobs waits for the one that takes longest.
export function useDiagnosis(targets: Target[] | undefined) {
  const chosen = useChosen(),
    first = chosen && targets?.find((t) => is_chosen(chosen, t) && t.state !== "dead" && t.state !== "archived");
  const path = first ? with_args("/api/v1/diagnosis", { target: first.pid }) : null,
    own = useAnswers(path, EVERY_MS, false),
    come = !!own.at || !!own.error,
    stir = useCell(stirred),
    there = stir_of((targets ?? []).filter((t) => is_chosen(chosen, t)).map((t) => ({ pid: t.pid, since: null })));
  useEffect(() => {
    if (come) own.again();
  }, [stir, there]);
  const all = useAnswers(path && !come ? null : "/api/v1/diagnosis", chosen ? OTHERS_MS : EVERY_MS, true),
    error = (path ? own : all).error;
  useEffect(() => unjudged.set(error ? why(error) : ""), [error]);
}

type Known = Pick<Target | NowRow, "pid" | "command">;

export function is_chosen(chosen: Chosen | null, t: Known & { id?: string }): boolean {
  if (!chosen) return true;
  return String(t.pid) === chosen.target || t.id === chosen.target || (chosen.all && t.command.includes(chosen.target));
}

// The jobs that the chosen processes belong to, the gravest first: those that have ended only if they were chosen.
export function useJudged(known: (Known & { id?: string })[] | undefined): Judged[] {
  const jobs = useCell(judged),
    chosen = useChosen();
  const pids = (known ?? []).filter((t) => is_chosen(chosen, t)).map((t) => t.pid);
  return by_gravity(jobs.filter((j) => pids.some((pid) => has_pid(j, pid))));
}

// The culprit's stack, beside those of the others of its job.
export function stacks_of(job: Judged, f: Finding, known: Known[] | undefined): string {
  const pid = f.pid ?? job.ranks.find((r) => r.rank === f.rank)?.pid ?? job.ranks[0]?.pid;
  const command = known?.find((t) => has_pid(job, t.pid))?.command;
  const of =
    job.ranks.length > 1 && command ? { target: command, all: "1" } : { target: pid ? String(pid) : null, all: null };
  return href("activity", {
    ...of,
    ranks: null,
    culprit: pid ? String(pid) : null,
    thread: f.thread,
    threads: "all",
    idle: null,
    frame: null,
  });
}

const MARKS: Record<Mark, string> = {
  fine: "M5 0a5 5 0 1 0 0 10a5 5 0 1 0 0-10z",
  stuck: "M1 1h8v8H1z",
  slow: "M0 1L10 5L0 9z",
  numbers: "M5 0L10 5L5 10L0 5z",
  leak: "M5 0L10 10H0z",
  ended: "M1 1L9 9M9 1L1 9",
  stopped: "M1 0h3v10H1zM6 0h3v10H6z",
  finding: "M5 0L10 5L5 10L0 5z",
};

export function JobMark({ job }: { job: Judged }) {
  const { mark, word } = mark_of(job);
  return (
    <span class={`st-${mark === "fine" ? "compute" : mark === "ended" ? "dead" : "loader"}`} title={word}>
      <svg class="glyph" viewBox="0 0 10 10" aria-hidden="true">
        <path d={MARKS[mark]} />
      </svg>
      {mark === "fine" && <span class="sr">{word}</span>}
    </span>
  );
}

export function mark_text(job: Judged): string {
  const { word, since } = mark_of(job);
  return since === null ? word : `${word} for ${seconds(since)}`;
}

// Above a view other than Now: the sentence alone, when there is one.
export function VerdictBar({ targets }: { targets: Target[] | undefined }) {
  const chosen = useChosen(),
    { view } = useRoute(),
    jobs = useJudged(targets),
    worst = jobs.find((j) => j.shown);
  if (view === "now" || !chosen || !worst?.shown) return null;
  const f = worst.shown;
  return (
    <div class="note odd finding" title={f.why ?? undefined}>
      <span>
        <b>{f.says}</b>
      </span>
      {view !== "activity" && <a href={stacks_of(worst, f, targets)}>Its stack beside the others</a>}
      <a href={href("now")}>Evidence</a>
    </div>
  );
}

// What was found in one job: the sentence, its evidence, how sure it is and what to do. Spoken when it changes.
export function Found({ job, known, more }: { job: Judged; known: Known[] | undefined; more: string }) {
  const f = job.shown!,
    to = stacks_of(job, f, known);
  return (
    <>
      <div class="verdict">
        <span class="mark odd" />
        <div>
          <h1>{f.says}</h1>
          {f.why && <p>{f.why}</p>}
          {f.next && <p>Next: {f.next}</p>}
          {more && <p>{more}</p>}
        </div>
        <span class="gap" />
        <div class="acts">
          <a class="ctl main" href={to}>
            Open its stack
          </a>
        </div>
      </div>
      {f.evidence.length > 0 && (
        <table class="evidence">
          <thead class="sr">
            <tr>
              <th>Does</th>
              <th>Who</th>
              <th>Place</th>
              <th>What</th>
            </tr>
          </thead>
          <tbody>
            {f.evidence.map((e, i) => (
              <tr key={i}>
                <td class="dim">{e.label}</td>
                <td class="some">
                  <b>{e.who}</b>
                </td>
                <td class="mono some">{e.place}</td>
                <td class="mono wrap">{e.text}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}

// A change of the sentence is told once to who listens. Durations in it change, and are not told.
export function Told({ text }: { text: string }) {
  const bare = text.replace(/\d[\d.:]*/g, "#"),
    last = useRef(bare),
    [told, tell] = useState("");
  useEffect(() => {
    if (last.current !== bare) {
      last.current = bare;
      tell(text);
    }
  });
  return (
    <div class="sr" role="status">
      {told}
    </div>
  );
}
