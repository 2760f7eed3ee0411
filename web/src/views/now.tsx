// Now: what is wrong with each job, and a line a process. A process that a finding names comes first.
import { useEffect, useRef, useState } from "preact/hooks";
import { command, curl, with_args, type NowRow, type Row, type Target } from "../api";
import { stir_of, type Judged } from "../diagnosis";
import { clock, some } from "../format";
import { useKeys } from "../keys";
import { useLive } from "../live";
import { go, put, useChosen, useRanks, useRoute } from "../route";
import { Glyph, row_state, WORDS, type State } from "../states";
import { useCell } from "../store";
import { Foot, Loading, Trouble } from "../ui";
import { Found, is_chosen, judged, stirred, Told, unjudged, useJudged } from "../verdict";
import { Lanes } from "./lanes";
import { Nobody } from "./now-empty";
import { GPU, gpu_of, Lines, name_of, one, steps_of, type Line } from "./now-rows";

// The same figures as rows: with a process or a job chosen, of those.
const SQL = `SELECT p.*, b.func, b.file, b.lineno, b.state FROM system.process p
LEFT JOIN (SELECT * FROM python.backtrace WHERE depth = 0) b ON b.tid = p.pid`;

const ORDER: State[] = ["loader", "coll", "compute", "gil", "lock", "io", "wait", "stopped", "unknown"];
const USUAL: State[] = ["loader", "coll", "compute", "gil", "stopped"];

function tally_of(lines: Line[]): string {
  const by = new Map<string, number>();
  for (const l of lines) by.set(l.word, (by.get(l.word) ?? 0) + 1);
  const words = [...by]
    .sort((a, b) => b[1] - a[1])
    .map(([word, n]) => `${n} ${word}`)
    .join(", ");
  return `${some(lines.length, "process", "processes")}: ${words}.`;
}

// Nothing was found: who answered, and what was looked at. Before the first answer: what is seen, and no more.
function quiet_words(jobs: Judged[], lines: Line[], error: string): { title: string; more: string } {
  const tally = tally_of(lines),
    [first] = lines;
  if (!jobs.length)
    return {
      title: tally,
      more: error
        ? `Whether something is wrong could not be found out: ${error}`
        : "Looking whether something is wrong.",
    };
  const ranks = jobs.flatMap((j) => j.ranks),
    read = ranks.filter((r) => !r.error).length;
  const names = [...new Set(jobs.map((j) => j.name))],
    of = names.length === 1 ? ` in ${names[0]}` : "";
  const answered = `${read} of ${some(ranks.length, "process", "processes")} answered`;
  const doing = lines.length === 1 && first.function ? `It is ${first.word} in ${first.function}.` : tally;
  return { title: `No problem found${of}.`, more: `${doing} ${answered}; looked at: ${jobs[0].checked.join(", ")}.` };
}

function Verdicts({ jobs, lines, all, at }: { jobs: Judged[]; lines: Line[]; all: NowRow[]; at: number }) {
  const found = jobs.filter((j) => j.shown),
    quiet = quiet_words(jobs, lines, useCell(unjudged)),
    as_of = at ? `As of ${clock(at)}.` : "";
  if (!found.length) {
    return (
      <>
        <div class="verdict">
          <span class={`mark${jobs.length ? "" : " none"}`} />
          <div>
            <h1>{quiet.title}</h1>
            <p>
              {quiet.more} {as_of}
            </p>
          </div>
        </div>
        {jobs
          .flatMap((j) => j.remarks)
          .slice(0, 3)
          .map((f) => (
            <p key={f.says} class="note info">
              Remark: {f.says}
            </p>
          ))}
        <Told text={quiet.title} />
      </>
    );
  }
  const more = (i: number) => (i ? "" : `${tally_of(lines)} ${as_of}`);
  return (
    <>
      {found.slice(0, 4).map((j, i) => (
        <Found key={j.ranks[0]?.pid ?? i} job={j} known={all} more={more(i)} />
      ))}
      {found.length > 4 && <p class="note odd">{some(found.length - 4, "more job")} with a finding: choose one.</p>}
      <Told text={found[0].shown!.says} />
    </>
  );
}

function fits(l: Line, words: string[]): boolean {
  const text = `${name_of(l)} ${l.pid} ${l.command} ${l.word} ${l.function ?? ""}`.toLowerCase();
  return words.every((w) => text.includes(w));
}

// Rows do not move while the pointer is over them: what was sorted stays so until it leaves.
function useCalm<T extends { id: string }>(
  lines: T[],
): { lines: T[]; on: { onMouseEnter(): void; onMouseLeave(): void } } {
  const [still, set] = useState(false),
    order = useRef<string[]>([]),
    place = (l: T) => order.current.indexOf(l.id) + 1 || 1e9;
  if (still) lines = [...lines].sort((a, b) => place(a) - place(b));
  order.current = lines.map((l) => l.id);
  return { lines, on: { onMouseEnter: () => set(true), onMouseLeave: () => set(false) } };
}

function Tally({ lines, only, search }: { lines: Line[]; only: string | null; search: string }) {
  return (
    <div class="bar tally" role="group" aria-label="By state">
      {ORDER.map((s) => {
        const n = lines.filter((l) => l.st === s).length;
        if (!n && only !== s && !USUAL.includes(s)) return null;
        return (
          <button
            key={s}
            class={`ctl${n ? "" : " zero"}`}
            aria-pressed={only === s}
            onClick={() => put({ state: only === s ? null : s })}
          >
            <span class={`st-${s}`}>
              <Glyph state={s} />
            </span>
            {WORDS[s]} <b>{n}</b>
          </button>
        );
      })}
      <span class="gap" />
      <input
        class="ctl"
        data-search
        placeholder="Filter ( / )"
        aria-label="Filter processes"
        value={search}
        onInput={(e) => put({ find: e.currentTarget.value })}
      />
    </div>
  );
}

function useLines(rows: NowRow[] | undefined): Line[] {
  const { args } = useRoute(),
    chosen = useChosen(),
    wanted = useRanks(),
    found = useCell(judged).flatMap((j) => j.shown ?? []);
  // Only a recording has GPUs: without one the question would be an error.
  const kept = useLive<Row[]>("/api/v1/recordings", 30000),
    records = kept.data?.some((r) => r.state !== "ended");
  const gpus = useLive<Row[]>(
    records ? with_args("/api/v1/query", { target: chosen?.target, all: true }) : null,
    30000,
    GPU,
  );
  const culprits = new Set(found.map((f) => f.pid));
  return (rows ?? [])
    .filter((r) => is_chosen(chosen, r))
    .filter((r) => !args.get("ranks") || wanted(r.rank))
    .map((r) => {
      const { state, word } = row_state(r.state, r.waits === undefined ? r.verdict : r.waits);
      return { ...r, st: state, word, culprit: culprits.has(r.pid), gpu: gpu_of(gpus.data, r.pid), steps: steps_of(r) };
    });
}

export default function Now() {
  const { args } = useRoute(),
    chosen = useChosen(),
    [picked, pick] = useState(-1),
    search = args.get("find") ?? "",
    only = args.get("state");
  const now = useLive<NowRow[]>("/api/v1/now", 1000),
    targets = useLive<Target[]>("/api/v1/targets", 2000);
  useEffect(() => stirred.set(stir_of((now.data ?? []).filter((r) => is_chosen(chosen, r)))), [now.at]);
  const all = useLines(now.data),
    jobs = useJudged(now.data),
    words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const sorted = all
    .filter((l) => (!only || l.st === only) && fits(l, words))
    .sort(
      (a, b) => Number(b.culprit) - Number(a.culprit) || Number(a.rank ?? 1e9) - Number(b.rank ?? 1e9) || b.pid - a.pid,
    );
  const { lines, on } = useCalm(sorted),
    first = lines.filter((l) => l.culprit),
    rest = lines.filter((l) => !l.culprit);

  useKeys({
    j: () => pick(Math.min(lines.length - 1, picked + 1)),
    k: () => pick(Math.max(0, picked - 1)),
    Enter: () => {
      if (lines[picked]) go("activity", one(lines[picked]));
    },
    Escape: () => put({ find: null, state: null }),
  });
  if (!now.data && !now.error) return <Loading what="Looking for Python processes." />;
  return (
    <>
      <Trouble of={now} />
      <div class="body">
        {!all.length && !now.error ? (
          <Nobody chosen={chosen} targets={targets.data} />
        ) : (
          <>
            <Verdicts jobs={jobs} lines={all} all={now.data ?? []} at={now.at} />
            <Tally lines={all} only={only} search={search} />
            <div {...on}>
              <Lines title="Named by a finding" lines={first} at={0} picked={picked} />
              <Lines title={first.length ? "The rest" : "Processes"} lines={rest} at={first.length} picked={picked} />
            </div>
            <Lanes
              lines={lines}
              at={now.at}
              probed={(targets.data ?? []).flatMap((t) =>
                t.state === "probed" && is_chosen(chosen, t) ? [t.pid] : [],
              )}
            />
          </>
        )}
      </div>
      <Foot
        command={chosen ? command("-t", chosen.target, chosen.all && "--all", "now") : command("now")}
        curl={curl("/api/v1/now")}
        sql={SQL}
      />
    </>
  );
}
