// What is wrong with each job, as GET /api/v1/diagnosis found it. The page adds no judgement of its own: it only
// decides when a finding is shown, and when it goes.
export interface Place {
  file: string;
  line: number;
  function: string | null;
  source: string | null;
}
export interface Evidence {
  label: string;
  who: string;
  place: string;
  text: string;
}
export interface Finding {
  kind: string;
  cause: string | null;
  rank: number | null;
  ranks: string | null;
  pid: number | null;
  thread: string | null;
  sure: "remark" | "likely" | "certain";
  root: boolean;
  since_s: number | null;
  place: Place | null;
  says: string;
  evidence: Evidence[];
  why: string | null;
  next: string | null;
}
export interface RankOf {
  rank: number | null;
  pid: number | null;
  state: string;
  error: string | null;
}
export interface DiagnosedJob {
  job: string;
  verdict: string | null;
  ranks: RankOf[];
  findings: Finding[];
  checked: string[];
}
export interface Diagnosis {
  jobs: DiagnosedJob[];
  seconds: number;
}

// A job as it is shown. shown: its finding; pending: what the last answer found for the first time.
export interface Judged {
  name: string;
  ranks: RankOf[];
  checked: string[];
  shown: Finding | null;
  remarks: Finding[];
  at: number;
  pending: string;
  missed: number;
  changed: number;
}

const CALM_MS = 10000; // a headline stays for so long
const ANSWERS_TO_GO = 3;
const ENDS = new Set(["rank_gone", "rank_died", "worker_gone"]);

const id_of = (f: Finding) => `${f.kind} ${f.rank ?? ""} ${f.pid ?? ""}`;
const pids_of = (ranks: RankOf[]) => ranks.map((r) => r.pid).filter((pid): pid is number => pid !== null);

// Each answer holds two looks a second apart. What a mechanism proves is shown at once; what is only likely needs a
// second answer that agrees. It goes when three answers in a row do not have it. Another takes its place after ten
// seconds, or at once if something ended.
function settle_job(before: Judged | undefined, job: DiagnosedJob, at: number): Judged {
  const found = job.verdict ? (job.findings.find((f) => f.says === job.verdict) ?? null) : null,
    id = found ? id_of(found) : "";
  const old = before?.shown ?? null,
    base = { name: job.job, ranks: job.ranks, checked: job.checked, at };
  const remarks = job.findings.filter((f) => !f.root);
  const keep = { ...base, remarks, shown: old, pending: id, missed: 0, changed: before?.changed ?? 0 };
  if (found && old && id_of(old) === id) return { ...keep, shown: found };
  if (!found) {
    const missed = old ? (before?.missed ?? 0) + 1 : 0;
    return missed >= ANSWERS_TO_GO ? { ...keep, shown: null, changed: at } : { ...keep, missed };
  }
  const agreed = found.sure === "certain" || before?.pending === id;
  const calm = !old || at - keep.changed >= CALM_MS || ENDS.has(found.kind);
  return agreed && calm ? { ...keep, shown: found, changed: at } : keep;
}

// whole: the answer is about all jobs of the node, so that what is not in it has ended.
export function settle(before: Judged[], answer: Diagnosis, at: number, whole = true): Judged[] {
  const answered = new Set<Judged>();
  const now = answer.jobs.map((job) => {
    const pids = new Set(pids_of(job.ranks)),
      old = before.find((b) => pids_of(b.ranks).some((pid) => pids.has(pid)));
    if (old) answered.add(old);
    return settle_job(old, job, at);
  });
  return whole ? now : [...now, ...before.filter((b) => !answered.has(b))];
}

// Whether something waits for an answer that agrees: it is asked for sooner.
export const unsettled = (jobs: Judged[]) =>
  jobs.some((j) => !!j.pending && (!j.shown || id_of(j.shown) !== j.pending));

const STILL_S = 3;

// What a view sees that may be a fault, as a text that changes with it: a process that came, went or stands still.
export function stir_of(rows: { pid: number; since: number | null }[]): string {
  return rows
    .map((r) => `${r.pid}${(r.since ?? 0) >= STILL_S ? "!" : ""}`)
    .sort()
    .join();
}

export const has_pid = (job: Judged, pid: number) => job.ranks.some((r) => r.pid === pid);

// A state in a word, for the list of jobs. A wait that has an end is "stuck" with its age.
const WORDS: Record<string, string> = {
  slow_rank: "slow",
  slow_job: "slow",
  leak: "leaking",
  nan: "NaN",
  diverged: "diverged",
  stopped: "stopped",
  worker_stopped: "worker stopped",
  rank_gone: "rank ended",
  rank_died: "rank died",
  worker_gone: "worker ended",
};
const HANGS = new Set([
  "deadlock",
  "gil_held",
  "mismatch",
  "lock_held",
  "left_loop",
  "store_key",
  "queue_empty",
  "future_unset",
  "loop",
  "blocked_call",
  "not_joined",
  "hang",
]);

export type Mark = "fine" | "slow" | "stuck" | "numbers" | "leak" | "ended" | "stopped" | "finding";

export function mark_of(job: Judged): { mark: Mark; word: string; since: number | null } {
  const f = job.shown;
  if (!f) return { mark: "fine", word: "no problem found", since: null };
  if (HANGS.has(f.kind)) return { mark: "stuck", word: "stuck", since: f.since_s };
  const word = WORDS[f.kind] ?? f.kind.replaceAll("_", " ");
  const mark: Mark = /^slow/.test(f.kind)
    ? "slow"
    : f.kind === "leak"
      ? "leak"
      : /(gone|died)$/.test(f.kind)
        ? "ended"
        : /stopped$/.test(f.kind)
          ? "stopped"
          : /^(nan|diverged)$/.test(f.kind)
            ? "numbers"
            : "finding";
  return { mark, word, since: null };
}

// The gravest first: dead, stuck, numbers, slow, leaking; then what began first.
const GRAVE: Mark[] = ["ended", "stopped", "stuck", "numbers", "finding", "slow", "leak", "fine"];

export function by_gravity(jobs: Judged[]): Judged[] {
  const rank = (j: Judged) => GRAVE.indexOf(mark_of(j).mark);
  return [...jobs].sort((a, b) => rank(a) - rank(b) || (b.shown?.since_s ?? 0) - (a.shown?.since_s ?? 0));
}
