// Memory: what the process takes: resident, Python's heap, torch, GPUs on one axis with the steps; which functions it
// grows by; live tensors; mappings.
import { useState } from "preact/hooks";
import { command, curl, with_args, type Row } from "../api";
import { bytes, count, short_file, some } from "../format";
import { Columns } from "../columns";
import { useLive } from "../live";
import { memory_words, recorded_words, type Takes } from "../memory-words";
import { NeedTarget, NoAnswer, useTarget } from "../pick";
import { Plot } from "../plot";
import { choose_time, Legend } from "../plot-parts";
import { href, useRange } from "../route";
import { Foot, Loading, Trouble, why } from "../ui";
import { MemoryOfJob } from "./memory-job";
import { NoRows } from "./record";

interface Memory extends Takes {
  peak_rss_bytes: number;
  swap_bytes: number;
  heap_bytes: number | null;
  heap_blocks: number | null;
  torch_cpu_bytes: number | null;
  torch_cuda_bytes: number | null;
  torch_cuda_reserved_bytes: number | null;
  gpu_bytes: number | null;
  mappings: { path: string; rss_bytes: number; bytes: number; count: number }[];
} // of a run that has ended: no mappings

const usage_sql = (within: string) =>
  `SELECT epoch(timestamp) AS t, memory_mb, swap_mb, threads, cpu_user_s + cpu_system_s AS cpu
FROM memory_usage${within} ORDER BY timestamp DESC LIMIT 3600`;
const inside_sql = (pid: string, within: string) =>
  `SELECT epoch(timestamp) AS t, heap_bytes / 1048576 AS heap, torch_cpu_bytes / 1048576 AS torch,
torch_cuda_bytes / 1048576 AS cuda, gpu_bytes / 1048576 AS gpu FROM python.memory WHERE pid = ${pid}${within}
ORDER BY timestamp DESC LIMIT 3600`;
const steps_sql = (within: string) =>
  `SELECT step, epoch(timestamp) AS t FROM python.torch_step${within} ORDER BY timestamp DESC LIMIT 5000`;
const growth_sql = (within: string) =>
  `SELECT function_name,
any_value(file) AS file, any_value(lineno) AS line, kind, sum(allocated_bytes) AS alive,
sum(allocated_bytes) FILTER (WHERE timestamp > now() - INTERVAL 60 SECONDS) AS new,
sum(gross_bytes) AS allocated
FROM memory_allocations${within}
GROUP BY function_name, kind ORDER BY alive DESC NULLS LAST LIMIT 20`;
const TENSORS = `SELECT name, shape, dtype, device, bytes, requires_grad FROM python.tensors WHERE NOT is_view
ORDER BY bytes DESC LIMIT 20`;
const INSIDE = [
  ["heap", "Python's heap", "--sp-fwd"],
  ["torch", "torch, in RAM", "--sp-data"],
  ["cuda", "torch, on GPUs", "--st-gil"],
  ["gpu", "on GPUs", "--st-io"],
] as const;

// The row of the second before, at most three seconds old: both are written once a second, by different clocks.
function beside(x: number[], rows: Row[], key: string): (number | null)[] {
  let at = 0;
  return x.map((t) => {
    while (at + 1 < rows.length && Number(rows[at + 1].t) <= t) at++;
    const r = rows[at];
    return r && Math.abs(Number(r.t) - t) < 3 && r[key] !== null ? Number(r[key]) : null;
  });
}

function Growth({ target, probed, dead, within }: { target: string; probed: boolean; dead: boolean; within: string }) {
  const sql = growth_sql(within),
    rows = useLive<Row[]>(with_args("/api/v1/query", { target }), 5000, sql),
    [whole, unfold] = useState(false);
  const is_empty = (r: Row) => !Number(r.alive ?? 0) && !Number(r.new ?? 0),
    empty = (rows.data ?? []).filter(is_empty).length,
    shown = (rows.data ?? []).filter((r) => whole || !is_empty(r));
  return (
    <>
      <div class="sec">
        <h2>Growth by function</h2>
        <span class="say">what is alive of what each allocated, sampled</span>
        <span class="gap" />
        <a href={href("sql", { q: sql })}>As SQL</a>
      </div>
      {rows.error ? (
        <p class="pane bad">{why(rows.error)}</p>
      ) : !rows.data ? (
        <Loading what="Reading its allocations." />
      ) : !rows.data.length ? (
        <NoRows
          what="No allocation was sampled."
          target={target}
          probed={probed}
          dead={dead}
          done={() => rows.again()}
          on={{
            text: "Sampling of allocations is off. From then on, while it runs, one in 512 KB:",
            setting: "probing.memory.sampling=on",
          }}
        />
      ) : (
        <Columns name="growth">
          <table>
            <thead>
              <tr>
                <th>Function</th>
                <th class="opt">Place</th>
                <th>Kind</th>
                <th class="num">Alive</th>
                <th class="num">New in a minute</th>
                <th class="num opt">Allocated</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((r, i) => (
                <tr key={i} class={Number(r.new ?? 0) > 2 ** 23 ? "odd" : ""}>
                  <td class="cut mono" title={String(r.function_name)}>
                    {String(r.function_name)}
                  </td>
                  <td class="opt some mono dim" title={String(r.file)}>
                    {short_file(String(r.file ?? ""))}:{String(r.line)}
                  </td>
                  <td>{String(r.kind)}</td>
                  <td class="num">{bytes(Number(r.alive ?? 0))}</td>
                  <td class={`num ${Number(r.new ?? 0) > 2 ** 23 ? "warn strong" : "dim"}`}>
                    {bytes(Number(r.new ?? 0))}
                  </td>
                  <td class="num opt">{bytes(Number(r.allocated))}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Columns>
      )}
      {empty > 0 && (
        <p class="pane">
          <button class="link" aria-expanded={whole} onClick={() => unfold(!whole)}>
            {whole ? "Hide" : "Show"} {some(empty, "function")} of which nothing is alive
          </button>
        </p>
      )}
    </>
  );
}

// A look takes the GIL in slices: it is taken when it is asked for.
function Tensors({ target, probed, dead }: { target: string; probed: boolean; dead: boolean }) {
  const [wanted, want] = useState(false),
    rows = useLive<Row[]>(wanted && probed && !dead ? with_args("/api/v1/query", { target }) : null, Infinity, TENSORS);
  return (
    <>
      <div class="sec">
        <h2>Largest live tensors</h2>
        <span class="gap" />
        {wanted && (
          <button class="ctl" onClick={() => rows.again()}>
            Look again
          </button>
        )}
        <a href={href("sql", { q: TENSORS })}>As SQL</a>
      </div>
      {!probed || dead ? (
        <p class="pane dim">
          {dead
            ? "It has ended: it has no objects any more."
            : "An agent in the process finds them: Settings brings it in."}
        </p>
      ) : !wanted ? (
        <p class="pane">
          <button class="ctl" onClick={() => want(true)}>
            Look for tensors
          </button>{" "}
          <span class="dim">The agent walks through the objects of the process, some milliseconds at a time.</span>
        </p>
      ) : rows.error ? (
        <p class="pane bad">{why(rows.error)}</p>
      ) : !rows.data ? (
        <Loading what="Looking for tensors among the objects of the process." />
      ) : !rows.data.length ? (
        <p class="pane dim">The process has no tensors of torch.</p>
      ) : (
        <table>
          <thead>
            <tr>
              <th>Tensor</th>
              <th>Shape</th>
              <th class="opt">Type</th>
              <th class="opt">Device</th>
              <th class="num">Size</th>
            </tr>
          </thead>
          <tbody>
            {rows.data.map((r, i) => (
              <tr key={i}>
                <td class="cut mono" title={String(r.name ?? "")}>
                  {r.name === null ? <span class="dim">no name</span> : String(r.name)}
                </td>
                <td class="mono some">{String(r.shape)}</td>
                <td class="opt mono">{String(r.dtype)}</td>
                <td class="opt mono">{String(r.device)}</td>
                <td class="num">{bytes(Number(r.bytes))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {wanted && rows.data && rows.data.length > 0 && (
        <p class="pane">
          <a href={href("inspect", { tab: "tensors" })}>All tensors</a>
        </p>
      )}
    </>
  );
}

// The recording of several ranks belongs to the first of them: for another one the whole job is asked.
function useInside(target: string, command: string | undefined, sql: string) {
  const own = useLive<Row[]>(with_args("/api/v1/query", { target }), 5000, sql),
    job = useLive<Row[]>(
      own.data && !own.data.length && command ? with_args("/api/v1/query", { target: command, all: true }) : null,
      5000,
      sql,
    );
  return own.data?.length ? own.data : (job.data ?? own.data);
}

function OverTime({
  target,
  command: job,
  pid,
  dead,
  probed,
}: {
  target: string;
  command: string | undefined;
  pid: string;
  dead: boolean;
  probed: boolean;
}) {
  const range = useRange(dead),
    steps_range = useRange(dead, "python.torch_step"),
    path = with_args("/api/v1/query", { target }),
    sql = usage_sql(range.where),
    rows = useLive<Row[]>(path, 2000, sql),
    inside = useInside(target, job, inside_sql(pid, useRange(dead, "python.memory").and)),
    steps = useLive<Row[]>(path, 5000, steps_sql(steps_range.where));
  const past = [...(rows.data ?? [])].reverse(),
    x = past.map((r) => Number(r.t)),
    within = [...(inside ?? [])].reverse(),
    query = href("sql", { q: sql });
  const cpu = past.map((r, i) =>
    i ? (100 * (Number(r.cpu) - Number(past[i - 1].cpu))) / Math.max(1e-3, x[i] - x[i - 1]) : null,
  );
  const more = INSIDE.filter(([key]) => within.some((r) => r[key] !== null)).map(([key, name, token]) => ({
      name,
      token,
      values: beside(x, within, key),
    })),
    swapped = past.some((r) => Number(r.swap_mb) > 0)
      ? [{ name: "swapped", token: "--st-loader", values: past.map((r) => Number(r.swap_mb)) }]
      : [];
  const series = [
    { name: "resident", token: "--sq-3", values: past.map((r) => Number(r.memory_mb)) },
    ...more,
    ...swapped,
  ];
  // A mark every so many steps, so that they stay lines and do not become an area.
  const done = [...(steps.data ?? [])].reverse().filter((s) => Number(s.t) >= (x[0] ?? 0)),
    every = 10 ** Math.ceil(Math.log10(Math.max(1, done.length / 12))),
    marks = done
      .filter((s) => Number(s.step) % every === 0)
      .map((s) => ({ at: Number(s.t), name: count(Number(s.step)), token: "--line-2" }));
  if (past.length < 2)
    return rows.data ? (
      <NoRows
        what={
          range.text && probed
            ? "No memory is recorded of this time."
            : "No memory over time is recorded of this process."
        }
        target={target}
        probed={probed}
        dead={dead}
        done={() => rows.again()}
      />
    ) : rows.error ? (
      <p class="pane bad">{why(rows.error)}</p>
    ) : (
      <Loading what="Reading what was recorded." />
    );
  return (
    <>
      <div class="sec">
        <h2>Resident memory</h2>
        <span class="say">
          MB, a row a second{marks.length ? `; a line every ${some(every, "step")}` : ""}; a drag chooses a time
        </span>
        <span class="gap" />
        <Legend of={series} />
        <a href={query}>As SQL</a>
      </div>
      <Plot x={x} time height={200} range={choose_time} label="Memory in MB" series={series} marks={marks} />
      {!more.length && !dead && (
        <p class="pane dim">
          Python's heap, torch and GPUs over time come with a recording:{" "}
          <code>{command("-t", target, "record", "--background")}</code>
        </p>
      )}
      <div class="sec">
        <h2>CPU</h2>
        <span class="say">% of a core, all threads</span>
        <span class="gap" />
        <a href={query}>As SQL</a>
      </div>
      <Plot
        x={x}
        time
        height={120}
        range={choose_time}
        label="CPU in percent of a core"
        series={[{ name: "CPU", token: "--sp-fwd", values: cpu }]}
        marks={marks}
      />
    </>
  );
}

export default function MemoryView() {
  const about = useTarget(),
    chosen = about?.chosen,
    id = chosen ? encodeURIComponent(chosen.target) : "",
    one = chosen && !chosen.all,
    range = useRange(about?.dead, "memory_allocations");
  const now = useLive<Memory[]>(one ? `/api/v1/targets/${id}/memory` : null, 2000);
  if (chosen?.all) return <MemoryOfJob chosen={chosen} />;
  if (!about || !chosen) return <NeedTarget what="Memory: what a process takes, and whether it grows." />;
  const m = now.data?.[0],
    most = Math.max(1, ...(m?.mappings ?? []).map((p) => p.rss_bytes));
  const facts: [string, string][] = m
    ? (
        [
          ["resident", bytes(m.rss_bytes)],
          ["at most", bytes(m.peak_rss_bytes)],
          ["Python's heap", bytes(m.heap_bytes)],
          ["swapped", m.swap_bytes ? bytes(m.swap_bytes) : ""],
          ["torch on the CPU", bytes(m.torch_cpu_bytes)],
          ["torch on GPUs", bytes(m.torch_cuda_bytes)],
          ["on GPUs", bytes(m.gpu_bytes)],
        ] as [string, string][]
      ).filter(([, v]) => v)
    : [];
  return (
    <>
      <Trouble of={now.data ? now : { error: undefined, at: 0 }} />
      <div class="body">
        {!m && now.error ? (
          <NoAnswer error={now.error} title="Its memory cannot be read." target={chosen.target} />
        ) : !m ? (
          <Loading what="Reading its memory." />
        ) : (
          <>
            <div class="verdict">
              <span class="mark none" />
              <div>
                <h1>{memory_words(m, about.dead)}</h1>
                <p>{recorded_words(m)}</p>
              </div>
            </div>
            <div class="facts">
              {facts.map(([name, value]) => (
                <span key={name}>
                  <b>{value}</b> {name}
                </span>
              ))}
              <a
                class="behind"
                href={href("sql", { q: "SELECT * FROM system.process" })}
                title="The query behind these figures (q)"
              >
                As SQL
              </a>
            </div>
          </>
        )}
        <OverTime
          target={chosen.target}
          command={about.dead ? undefined : about.target?.command}
          pid={/^\d+/.exec(chosen.target)?.[0] ?? "0"}
          dead={about.dead}
          probed={about.probed}
        />
        <Growth target={chosen.target} probed={about.probed} dead={about.dead} within={range.where} />
        <Tensors target={chosen.target} probed={about.probed} dead={about.dead} />
        {m && m.mappings?.length > 0 && (
          <>
            <div class="sec">
              <h2>Mappings</h2>
              <span class="say">the largest, by what of them is in RAM</span>
              <span class="gap" />
              <a href={href("sql", { q: "SELECT * FROM system.maps" })}>As SQL</a>
            </div>
            <table>
              <thead>
                <tr>
                  <th>Path</th>
                  <th class="num">Resident</th>
                  <th class="num opt">Mapped</th>
                  <th class="num opt">Pieces</th>
                  <th class="opt">
                    <span class="sr">More</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {m.mappings.map((p) => (
                  <tr key={p.path}>
                    <td class="cut mono" title={p.path}>
                      {p.path}
                    </td>
                    <td class="num">{bytes(p.rss_bytes)}</td>
                    <td class="num opt">{bytes(p.bytes)}</td>
                    <td class="num opt" title={some(p.count, "mapping")}>
                      {p.count}
                    </td>
                    <td class="opt">
                      <span class="meter" style={{ width: `${(140 * p.rss_bytes) / most}px` }} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </>
        )}
      </div>
      <Foot
        command={command("-t", chosen.target, "memory")}
        curl={curl(`/api/v1/targets/${id}/memory`)}
        sql="SELECT * FROM system.process"
      />
    </>
  );
}
