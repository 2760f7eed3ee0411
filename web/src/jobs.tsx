// The jobs of the node: what is one, its mark and its state, and the picker in the header.
import { useEffect, useRef, useState } from "preact/hooks";
import { with_args, type Row, type Target } from "./api";
import { has_pid, type Judged } from "./diagnosis";
import { ENDED_SQL, ending_of, type Ending } from "./ended";
import { bytes, job_name, some } from "./format";
import { useKeys } from "./keys";
import { useLive } from "./live";
import { href, useChosen, useRoute } from "./route";
import { Glyph } from "./states";
import { useCell } from "./store";
import { JobMark, judged, mark_text } from "./verdict";

export interface Job {
  command: string;
  targets: Target[];
}

// Processes with one command line are one job: its ranks, or its workers.
export function jobs_of(targets: Target[]): Job[] {
  const by = new Map<string, Job>();
  for (const t of targets) {
    const key = t.state === "dead" || t.state === "archived" ? `${t.id}` : t.command;
    const job = by.get(key);
    if (job) job.targets.push(t);
    else by.set(key, { command: t.command, targets: [t] });
  }
  return [...by.values()];
}

export function job_link(job: Job): Record<string, string | null> {
  const [t] = job.targets;
  return job.targets.length > 1
    ? { target: job.command, all: "1" }
    : { target: t.state === "dead" || t.state === "archived" ? t.id : String(t.pid), all: null };
}

const is_live = (t: Target) => t.state === "probed" || t.state === "python";

// What diagnose says of the processes of a job. Of several jobs with one command line: the first with a finding.
export function judged_of(job: Job, all: Judged[]): Judged | undefined {
  const live = new Set(job.targets.filter(is_live).map((t) => t.pid)),
    of = all.filter((j) => [...live].some((pid) => has_pid(j, pid)));
  return of.find((j) => j.shown) ?? of[0];
}

// A run that has ended: how, from the tables that it left; they change no more.
function useEnding(t: Target): Ending {
  const rows = useLive<Row[]>(
    t.state === "dead" ? with_args("/api/v1/query", { target: t.id }) : null,
    Infinity,
    ENDED_SQL,
  );
  return ending_of(rows.data?.[0]);
}

function EndedSays({ of }: { of: Target }) {
  const { word, title } = useEnding(of);
  return <span title={title}>{of.state === "archived" ? "archived" : word}</span>;
}

export function JobSays({ job, found }: { job: Job; found: Judged | undefined }) {
  const [t] = job.targets;
  if (!is_live(t)) return <EndedSays of={t} />;
  if (found?.shown) return <>{mark_text(found)}</>;
  return (
    <>
      {job.targets.length > 1
        ? some(job.targets.length, "process", "processes")
        : `pid ${t.pid}, ${bytes((t.memory_mb ?? 0) * 2 ** 20)}`}
    </>
  );
}

function EndedGlyph({ of }: { of: Target }) {
  return (
    <span class={`st-dead${useEnding(of).well ? "" : " failed"}`}>
      <Glyph state="dead" />
    </span>
  );
}

// The state of the job. A live one of which nothing is known yet has no mark of its own.
export function JobGlyph({ job, found }: { job: Job; found: Judged | undefined }) {
  if (!is_live(job.targets[0])) return <EndedGlyph of={job.targets[0]} />;
  return found ? (
    <JobMark job={found} />
  ) : (
    <span class="st-unknown">
      <Glyph state="unknown" />
    </span>
  );
}

export function Picker({ jobs }: { jobs: Job[] }) {
  const all = useCell(judged),
    [open, set] = useState(false),
    chosen = useChosen(),
    { view } = useRoute(),
    box = useRef<HTMLDivElement>(null);
  const found =
    chosen &&
    jobs.find(
      (j) =>
        job_link(j).target === chosen.target ||
        (!chosen.all && j.targets.some((t) => String(t.pid) === chosen.target || t.id === chosen.target)),
    );
  const one =
    found && found.targets.length > 1 ? found.targets.find((t) => String(t.pid) === chosen?.target) : undefined;
  useKeys({ t: () => set(!open), ...(open ? { Escape: () => set(false) } : {}) });
  useEffect(() => {
    if (open) box.current?.querySelector<HTMLElement>(".pop a")?.focus();
  }, [open]);
  useEffect(() => set(false), [chosen?.target]);
  return (
    <div class="picker" ref={box}>
      <button
        class="ctl"
        aria-expanded={open}
        aria-haspopup="true"
        onClick={() => set(!open)}
        title="Which processes (t)"
      >
        <b>{chosen ? (found ? job_name(found.command) : chosen.target) : "All processes"}</b>
        <span class="dim">
          {one ? (
            `${one.rank !== null ? `rank ${one.rank}, ` : ""}pid ${one.pid}`
          ) : found ? (
            <JobSays job={found} found={judged_of(found, all)} />
          ) : chosen ? (
            ""
          ) : (
            "of this node"
          )}
        </span>
        <span class="dim" aria-hidden="true">
          ▾
        </span>
      </button>
      {open && (
        <div class="pop">
          <a href={href(view, { target: null, all: null })} onClick={() => set(false)}>
            All processes of this node
          </a>
          {jobs.map((j) => (
            <a key={j.targets[0].id} href={href(view, job_link(j))} onClick={() => set(false)} title={j.command}>
              <JobGlyph job={j} found={judged_of(j, all)} />
              <span class="cut">{job_name(j.command)}</span>
              <span class="gap" />
              <span class="dim">
                <JobSays job={j} found={judged_of(j, all)} />
              </span>
            </a>
          ))}
        </div>
      )}
    </div>
  );
}
