// Now: a line a process. Those that differ from the rest of their job come first.
import { useEffect, useRef, useState } from "preact/hooks";
import { command, curl, with_args, type NowRow, type Row, type Target } from "../api";
import { bytes, clock, count, job_name, ranges, seconds, short_file, some } from "../format";
import { useKeys } from "../keys";
import { useLive } from "../live";
import { go, href, put, useChosen, useRanks, useRoute } from "../route";
import { Glyph, row_state, StateTag, WORDS, type State } from "../states";
import { Blank, Command, Foot, Loading, Trouble } from "../ui";
import { Lanes } from "./lanes";

export interface Line extends NowRow { st: State; word: string; odd: string | null; gpu: string | null }

// What a recording has of GPUs (NVML, from outside): the newest of each process, and how busy they are.
const GPU = `SELECT m.pid, m.bytes, (SELECT round(avg(gpu_util)) FROM gpu_metrics WHERE timestamp > now() - INTERVAL 5 SECONDS) AS busy
FROM (SELECT pid, arg_max(gpu_bytes, timestamp) AS bytes FROM python.memory WHERE gpu_bytes > 0 AND timestamp > now() - INTERVAL 60 SECONDS GROUP BY pid) m`;

// Within a job of three or more: what fewer than a third of it does is odd. A verdict of the service's, or a stop, always is.
function mark_odd(lines: Line[]) {
  const jobs = new Map<string, Line[]>();
  for (const l of lines) jobs.set(l.command, [...(jobs.get(l.command) ?? []), l]);
  for (const job of jobs.values()) {
    const same = (l: Line) => `${l.st} ${l.function}`;
    for (const l of job) {
      const n = job.filter((other) => same(other) === same(l)).length;
      if (l.verdict && !/^sleep|^it sleeps/i.test(l.verdict)) l.odd = l.verdict;
      else if (l.st === "stopped") l.odd = `${l.state}`;
      else if (job.length >= 3 && n * 3 <= job.length) l.odd = `${n === 1 ? "the only one" : `one of ${n}`} of ${job.length} that is ${l.word}${l.function ? ` in ${l.function}` : ""}`;
    }
  }
}

// The same figures as rows: with a process or a job chosen, of those.
const SQL = "SELECT p.*, b.func, b.file, b.lineno, b.state FROM system.process p LEFT JOIN (SELECT * FROM python.backtrace WHERE depth = 0) b ON b.tid = p.pid";

const name_of = (l: Line) => (l.rank !== null ? `rank ${l.rank}` : `pid ${l.pid}`);

function say(lines: Line[]): { title: string; more: string } {
  const odd = lines.filter((l) => l.odd), by = new Map<string, number>();
  for (const l of lines) by.set(l.word, (by.get(l.word) ?? 0) + 1);
  const tally = [...by].sort((a, b) => b[1] - a[1]).map(([word, n]) => `${n} ${word}`).join(", ");
  const [first] = odd;
  if (!first && lines.length === 1) return { title: `${job_name(lines[0].command)} is ${lines[0].word}${lines[0].function ? ` in ${lines[0].function}` : ""}.`, more: `Its main thread: ${lines[0].state}.` };
  if (!first) return { title: `${some(lines.length, "process", "processes")}: ${tally}.`, more: "None differs from the rest of its job." };
  return { title: `${job_name(first.command)}, ${name_of(first)}: ${first.odd}.`, more: `${odd.length > 1 ? `${odd.length - 1} more differ from the rest. ` : ""}${some(lines.length, "process", "processes")}: ${tally}.` };
}

const one = (l: Line) => ({ target: String(l.pid), all: null });

function Rows({ lines, picked, at, probed }: { lines: Line[]; picked: number; at: number; probed: Set<number> }) {
  const gpus = lines.some((l) => l.gpu !== null);
  return (
    <table>
      <thead><tr><th>Process</th><th class="opt">Job</th><th>State</th><th class="num">For</th><th>Innermost own frame</th><th class="num opt">Step</th><th class="num opt">Memory</th>{gpus && <th class="num opt"><a href={href("sql", { q: GPU })} title="From a recording; the query behind it">GPU</a></th>}</tr></thead>
      <tbody>
        {lines.map((l, i) => (
          <>
            <tr key={l.id} class={`go${l.odd ? " odd open" : ""}`} aria-selected={at + i === picked} onClick={() => go("activity", one(l))}>
              <td class={l.odd ? "strong" : ""}><a href={href("activity", one(l))}>{name_of(l)}</a></td>
              <td class="opt job-name" title={l.command}>{job_name(l.command)} {probed.has(l.pid) && <span class="tag" title="An agent is in it">probed</span>}</td>
              <td title={l.state}><StateTag state={l.st} word={l.word} /></td>
              <td class="num">{seconds(l.since)}</td>
              <td class="cut">{l.function ? <span class="mono" title={`${l.file}:${l.line ?? "?"}`}>{l.function} <span class="dim">{short_file(l.file ?? "")}:{l.line ?? "?"}</span></span> : <span class="dim">none</span>}</td>
              <td class="num opt">{count(l.step)}</td>
              <td class="num opt">{bytes((l.memory_mb ?? 0) * 2 ** 20)}</td>
              {gpus && <td class="num opt">{l.gpu ?? ""}</td>}
            </tr>
            {l.odd && <tr key={`${l.id}?`} class="odd why"><td /><td colSpan={gpus ? 7 : 6}>{l.odd}</td></tr>}
          </>
        ))}
      </tbody>
    </table>
  );
}

function Cells({ lines }: { lines: Line[] }) {
  const usual = [...lines].map((l) => l.memory_mb ?? 0).sort((a, b) => a - b)[lines.length >> 1];
  return (
    <div class="cells">
      {lines.map((l) => (
        <a key={l.id} class={`cell st-${l.st}${l.odd ? " odd" : ""}`} href={href("activity", one(l))} title={`${name_of(l)}, pid ${l.pid}, ${l.word}`}>
          <Glyph state={l.st} /><span>{l.rank ?? l.pid}</span>
          <span class={Math.abs((l.memory_mb ?? 0) - usual) > usual * 0.2 ? "strong" : "dim"}>{bytes((l.memory_mb ?? 0) * 2 ** 20)}</span>
        </a>
      ))}
    </div>
  );
}

function Alike({ lines, at, picked, probed }: { lines: Line[]; at: number; picked: number; probed: Set<number> }) {
  if (!lines.length) return null;
  const ranks = lines.filter((l) => l.rank !== null).map((l) => Number(l.rank));
  return (
    <>
      <div class="sec"><h2>{at ? "The rest" : "Processes"}</h2><span class="say">{lines.length}{ranks.length > 1 ? `, ranks ${ranges(ranks)}` : ""}</span></div>
      {lines.length > 24 ? <Cells lines={lines} /> : <Rows lines={lines} at={at} picked={picked} probed={probed} />}
    </>
  );
}

const ORDER: State[] = ["loader", "coll", "compute", "gil", "lock", "io", "wait", "stopped", "unknown"];

const USUAL: State[] = ["loader", "coll", "compute", "gil", "stopped"];

function fits(l: Line, words: string[]): boolean {
  const text = `${name_of(l)} ${l.pid} ${l.command} ${l.word} ${l.function ?? ""}`.toLowerCase();
  return words.every((w) => text.includes(w));
}

// Rows do not move while the pointer is over them: what was sorted stays so until it leaves.
function useCalm<T extends { id: string }>(lines: T[]): { lines: T[]; on: { onMouseEnter(): void; onMouseLeave(): void } } {
  const [still, set] = useState(false), order = useRef<string[]>([]);
  if (still) lines = [...lines].sort((a, b) => (order.current.indexOf(a.id) + 1 || 1e9) - (order.current.indexOf(b.id) + 1 || 1e9));
  order.current = lines.map((l) => l.id);
  return { lines, on: { onMouseEnter: () => set(true), onMouseLeave: () => set(false) } };
}

export default function Now() {
  const { args } = useRoute(), chosen = useChosen(), [picked, pick] = useState(-1), search = args.get("find") ?? "", only = args.get("state");
  const wanted = useRanks(), gpus = useLive<Row[]>(with_args("/api/v1/query", { target: chosen?.target, all: true }), 30000, GPU), gpu_of = (pid: number) => { const r = gpus.data?.find((g) => Number(g.pid) === pid); return r ? `${bytes(Number(r.bytes))}${r.busy === null ? "" : `, ${String(r.busy)}%`}` : null; };
  const now = useLive<NowRow[]>("/api/v1/now", 1000), targets = useLive<Target[]>("/api/v1/targets", 2000);
  const probed = new Set(targets.data?.filter((t) => t.state === "probed").map((t) => t.pid));
  const all: Line[] = (now.data ?? []).filter((r) => !chosen || String(r.pid) === chosen.target || r.id === chosen.target || (chosen.all && r.command.includes(chosen.target))).filter((r) => !args.get("ranks") || wanted(r.rank))
    .map((r) => { const { state, word } = row_state(r.state, r.verdict); return { ...r, st: state, word, odd: null, gpu: gpu_of(r.pid) }; });
  mark_odd(all);
  let lines = all.filter((l) => (!only || l.st === only) && fits(l, search.toLowerCase().split(/\s+/).filter(Boolean)));
  lines.sort((a, b) => Number(!!b.odd) - Number(!!a.odd) || Number(a.rank ?? 1e9) - Number(b.rank ?? 1e9) || b.pid - a.pid);
  const calm = useCalm(lines);
  lines = calm.lines;

  useKeys({
    j: () => pick(Math.min(lines.length - 1, picked + 1)), k: () => pick(Math.max(0, picked - 1)),
    Enter: () => { if (lines[picked]) go("activity", one(lines[picked])); },
    Escape: () => put({ find: null, state: null }),
  });
  const words = say(all), odd = lines.filter((l) => l.odd), rest = lines.filter((l) => !l.odd);
  const last = useRef(words.title), [told, tell] = useState("");
  useEffect(() => { if (last.current !== words.title) { last.current = words.title; tell(words.title); } });

  const dead = (targets.data ?? []).filter((t) => t.state === "dead" || t.state === "archived").length;
  if (!now.data && !now.error) return <Loading what="Looking for Python processes." />;
  return (
    <>
      <Trouble of={now} />
      <div class="body">
        {!all.length && !now.error ? (
          <Blank title={chosen ? `No process that runs fits ${chosen.target}.` : "No Python process of yours is running on this node."}>
            <p>A process appears here by itself within 2 s of its start. To see one from its first line on:</p>
            <Command text="PROBING=1 python train.py" />
            {dead > 0 && <p><a href={href("runs", { target: null, all: null })}>Open a run that has ended</a>: {dead} kept.</p>}
          </Blank>
        ) : (
          <>
            <div class="verdict">
              <span class={`mark${odd.length ? " odd" : ""}`} />
              <div><h1>{words.title}</h1><p>{words.more}{now.at ? ` As of ${clock(now.at)}.` : ""}</p></div>
              <span class="gap" />
              <div class="acts"><a class="ctl main" href={href("activity", odd[0] ? one(odd[0]) : {})}>Open stacks</a></div>
            </div>
            <div class="sr" role="status">{told}</div>
            <div class="bar tally" role="group" aria-label="By state">
              {ORDER.map((s) => {
                const n = all.filter((l) => l.st === s).length;
                return (n > 0 || only === s || USUAL.includes(s)) && <button key={s} class={`ctl${n ? "" : " zero"}`} aria-pressed={only === s} onClick={() => put({ state: only === s ? null : s })}><span class={`st-${s}`}><Glyph state={s} /></span>{WORDS[s]} <b>{n}</b></button>;
              })}
              <span class="gap" />
              <input class="ctl" data-search placeholder="Filter ( / )" aria-label="Filter processes" value={search} onInput={(e) => put({ find: e.currentTarget.value })} />
            </div>
            <div {...calm.on}>
              {odd.length > 0 && <><div class="sec"><h2>Odd ones</h2><span class="say">{odd.length} of {lines.length}</span></div><Rows lines={odd} at={0} picked={picked} probed={probed} /></>}
              <Alike lines={rest} at={odd.length} picked={picked} probed={probed} />
            </div>
            <Lanes lines={lines} at={now.at} />
          </>
        )}
      </div>
      <Foot command={chosen ? command("-t", chosen.target, chosen.all && "--all", "now") : command("now")} curl={curl("/api/v1/now")} sql={SQL} />
    </>
  );
}
