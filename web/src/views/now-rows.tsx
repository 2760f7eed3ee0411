// The lines of Now: a row a process, or a cell each where there are many.
import type { NowRow, Row } from "../api";
import { bytes, count, job_name, ranges, seconds, short_file } from "../format";
import { go, href } from "../route";
import { Columns } from "../columns";
import { Glyph, StateTag, type State } from "../states";

// culprit: the process that a finding names.
export interface Line extends NowRow {
  st: State;
  word: string;
  culprit: boolean;
  gpu: string | null;
  steps: Steps | null;
}
// What stands under "step": the program's own number, or how many were seen, and since when.
export interface Steps {
  text: string;
  title: string;
}

export const name_of = (l: Line) => l.worker ?? (l.rank !== null ? `rank ${l.rank}` : `pid ${l.pid}`);
export const one = (l: Line) => ({ target: String(l.pid), all: null });

// What a recording has of GPUs (NVML, from outside): the newest of each process, and how busy they are.
export const GPU = `SELECT m.pid, m.bytes, (SELECT round(avg(gpu_util)) FROM gpu_metrics
WHERE timestamp > now() - INTERVAL 5 SECONDS) AS busy
FROM (SELECT pid, arg_max(gpu_bytes, timestamp) AS bytes FROM python.memory
      WHERE gpu_bytes > 0 AND timestamp > now() - INTERVAL 60 SECONDS GROUP BY pid) m`;

export function gpu_of(rows: Row[] | undefined, pid: number): string | null {
  const r = rows?.find((g) => Number(g.pid) === pid);
  return r ? `${bytes(Number(r.bytes))}${r.busy === null ? "" : `, ${String(r.busy)}%`}` : null;
}

function Place({ of: l }: { of: Line }) {
  if (!l.function) return <span class="dim">none</span>;
  const at = `${short_file(l.file ?? "")}:${l.line ?? "?"}`;
  return (
    <span class="mono" title={`${l.file}:${l.line ?? "?"}`}>
      {l.function} <span class="dim">{at}</span>
    </span>
  );
}

function OneRow({ of: l, selected, gpus }: { of: Line; selected: boolean; gpus: boolean }) {
  const to = href("activity", one(l));
  return (
    <tr class={`go${l.culprit ? " odd" : ""}`} aria-selected={selected} onClick={() => go("activity", one(l))}>
      <td class={l.culprit ? "strong" : ""}>
        <a href={to}>{name_of(l)}</a>
      </td>
      <td class="opt job-name" title={l.command}>
        {job_name(l.command)}
      </td>
      <td title={l.waits ?? l.verdict ?? l.state}>
        <StateTag state={l.st} word={l.word} />
      </td>
      <td class="num">{(l.since ?? 0) >= 1 ? seconds(l.since) : ""}</td>
      <td class="cut">
        <Place of={l} />
      </td>
      <td class="num opt" title={l.steps?.title}>
        {l.steps?.text}
      </td>
      <td class="num opt">{bytes((l.memory_mb ?? 0) * 2 ** 20)}</td>
      {gpus && <td class="num opt">{l.gpu ?? ""}</td>}
    </tr>
  );
}

function Rows({ lines, picked, at }: { lines: Line[]; picked: number; at: number }) {
  const gpus = lines.some((l) => l.gpu !== null);
  return (
    <Columns name="now">
      <table>
        <thead>
          <tr>
            <th>Process</th>
            <th class="opt">Job</th>
            <th>State</th>
            <th class="num" title="How long it has been in this state, by evidence: it has not run since">
              For
            </th>
            <th>Innermost own frame</th>
            <th class="num opt">Step</th>
            <th class="num opt">Memory</th>
            {gpus && (
              <th class="num opt">
                <a href={href("sql", { q: GPU })} title="From a recording; the query behind it">
                  GPU
                </a>
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {lines.map((l, i) => (
            <OneRow key={l.id} of={l} selected={at + i === picked} gpus={gpus} />
          ))}
        </tbody>
      </table>
    </Columns>
  );
}

function Cells({ lines }: { lines: Line[] }) {
  return (
    <div class="cells">
      {lines.map((l) => (
        <a
          key={l.id}
          class={`cell st-${l.st}${l.culprit ? " odd" : ""}`}
          href={href("activity", one(l))}
          title={`${name_of(l)}, pid ${l.pid}, ${l.word}`}
        >
          <Glyph state={l.st} />
          <span>{l.rank ?? l.pid}</span>
          <span class="dim">{bytes((l.memory_mb ?? 0) * 2 ** 20)}</span>
        </a>
      ))}
    </div>
  );
}

// More than these are cells.
const ROWS_MAX = 24;

export function Lines({ title, lines, at, picked }: { title: string; lines: Line[]; at: number; picked: number }) {
  if (!lines.length) return null;
  const ranks = lines.filter((l) => l.rank !== null).map((l) => Number(l.rank));
  return (
    <>
      <div class="sec">
        <h2>{title}</h2>
        <span class="say">
          {lines.length}
          {ranks.length > 1 ? `, ranks ${ranges(ranks)}` : ""}
        </span>
      </div>
      {lines.length > ROWS_MAX ? <Cells lines={lines} /> : <Rows lines={lines} at={at} picked={picked} />}
    </>
  );
}

// Where a program tells its own step it is that; else how many were seen, since when.
export function steps_of(l: NowRow): Steps | null {
  return l.step === null ? null : { text: count(l.step), title: "The last step that its torch probe has recorded" };
}
