// Torch: steps, how they split, what differed in the slowest, modules, collectives.
import type { ComponentChildren } from "preact";
import { command, curl, with_args, type Row } from "../api";
import { count, ms } from "../format";
import { useLive } from "../live";
import { NeedTarget, useTarget } from "../pick";
import { Plot } from "../plot";
import { choose_steps, Legend } from "../plot-parts";
import { href, moment, put, range_text, useRange, useRoute } from "../route";
import { find_step, median, steps_of, times_of, took_long, type Steps } from "../steps";
import { Foot, Loading, Trouble } from "../ui";
import { Modules } from "./modules";
import { Ranks } from "./ranks";
import { NoRows } from "./record";
import { StepFill } from "./step-fill";

const steps_sql = (within: string) =>
  `SELECT step, epoch(timestamp) AS t, duration_ms, data_ms, forward_ms, backward_ms, optimizer_ms,
samples, tokens, memory_mb FROM (FROM python.torch_step WHERE kind IS DISTINCT FROM 'eval')${within}
ORDER BY timestamp DESC LIMIT 400`;
const comm_sql = (within: string) =>
  `SELECT op, group_name, count(*) AS calls, avg(bytes) AS bytes, avg(duration_ms) AS ms,
count(*) FILTER (WHERE done IS NULL) AS open FROM python.comm_collective${within} GROUP BY ALL
ORDER BY calls DESC LIMIT 20`;
export const PARTS = [
  ["data_ms", "data", "--sp-data"],
  ["forward_ms", "forward", "--sp-fwd"],
  ["backward_ms", "backward", "--sp-bwd"],
  ["optimizer_ms", "optimizer", "--sp-opt"],
] as const;

// What differed in one step from the median one: parts, modules, collectives; and the frames, where they are recorded.
function Why({ of, target, picked }: { of: Steps; target: string; picked: number | null }) {
  const { at, nearest } = find_step(of, picked),
    numbers = of.rows.map((r) => Number(r.step));
  if (at !== null) return <WhyStep of={of} target={target} at={at} picked={picked !== null} />;
  return (
    <div class="pane" role="status">
      <b>Step {count(picked!)} is not kept.</b>
      <p class="mid">
        Kept are {count(numbers[0])} to {count(numbers.at(-1)!)}.{" "}
        <button class="link" onClick={() => put({ step: String(nearest) })}>
          The nearest, {count(nearest)}
        </button>
      </p>
    </div>
  );
}

function WhyStep({ of, target, at, picked }: { of: Steps; target: string; at: number; picked: boolean }) {
  const { rows, usual } = of,
    slow = rows[at],
    t = Number(slow.t),
    step = Number(slow.step),
    long = took_long(of, at);
  const title = long
    ? `Why step ${count(step)} took longer`
    : `Step ${count(step)}${picked ? "" : ", the longest kept,"} took about as long as others`;
  const begin = t - Number(slow.duration_ms) / 1000,
    first = Number(rows[0].t);
  const sql = `SELECT module, stage, sum(self_ms) FILTER (WHERE step = ${step}) AS this_step, sum(self_ms) /
count(DISTINCT step) AS mean FROM python.torch_trace\nWHERE module IS NOT NULL
AND timestamp BETWEEN ${moment(first)} AND ${moment(Number(rows.at(-1)!.t) + 1)} GROUP BY ALL
HAVING this_step IS NOT NULL ORDER BY this_step - mean DESC LIMIT 8`;
  const waits = `SELECT op, group_name, sum(duration_ms) FILTER (WHERE step = ${step}) AS this_step, sum(duration_ms) /
count(DISTINCT step) AS mean FROM python.comm_collective\nWHERE timestamp >= ${moment(first)} GROUP BY ALL
HAVING this_step IS NOT NULL ORDER BY this_step - mean DESC LIMIT 4`;
  const path = with_args("/api/v1/query", { target }),
    modules = useLive<Row[]>(path, Infinity, sql),
    comm = useLive<Row[]>(path, Infinity, waits);
  const line = (name: ComponentChildren, is: number, was: number, key: string) => {
    const d = is - was;
    return (
      <tr key={key}>
        <td class="cut">{name}</td>
        <td class="num">{ms(is)}</td>
        <td class="num dim">{ms(was)}</td>
        <td class={`num ${d > usual * 0.1 ? "warn strong" : "dim"}`}>
          {d >= 0 ? "+" : "−"}
          {ms(Math.abs(d))}
        </td>
      </tr>
    );
  };
  const known = PARTS.reduce((sum, [key]) => sum + Number(slow[key] ?? 0), 0),
    rests = rows.map((r) => Number(r.duration_ms) - PARTS.reduce((sum, [key]) => sum + Number(r[key] ?? 0), 0));
  return (
    <>
      <div class="pane">
        <b>{title}</b>
        <p class="mid">
          {picked && (
            <button class="link" onClick={() => put({ step: null })}>
              The longest instead
            </button>
          )}{" "}
          {ms(Number(slow.duration_ms))}, {ms(Math.abs(Number(slow.duration_ms) - usual))}{" "}
          {Number(slow.duration_ms) >= usual ? "over" : "under"} the median of {rows.length} steps.{" "}
          <a
            href={href("flame", {
              target,
              all: null,
              from: "record",
              a: range_text({ from: first, until: Math.max(first + 0.001, begin) }),
              b: range_text({ from: begin, until: t }),
              diff: "1",
            })}
          >
            Its frames against those before
          </a>
          .
        </p>
      </div>
      <table>
        <thead>
          <tr>
            <th>
              Part <a href={href("sql", { q: sql })}>As SQL</a>
            </th>
            <th class="num">This step</th>
            <th class="num">Median</th>
            <th class="num">Differs</th>
          </tr>
        </thead>
        <tbody>
          {PARTS.map(([key, name]) => line(name, Number(slow[key]), median(rows.map((r) => Number(r[key]))), key))}
          {line("rest of the step", Number(slow.duration_ms) - known, median(rests), "rest")}
          {(modules.data ?? [])
            .filter((r) => Number(r.this_step) > Number(r.mean) * 1.2)
            .slice(0, 4)
            .map((r, i) =>
              line(
                <span class="mono" title={String(r.module)}>
                  {String(r.module)} <span class="dim">{String(r.stage)}</span>
                </span>,
                Number(r.this_step),
                Number(r.mean),
                `m${i}`,
              ),
            )}
          {(comm.data ?? []).slice(0, 3).map((r, i) =>
            line(
              <span class="mono">
                {String(r.op)} <span class="dim">group {String(r.group_name)}</span>
              </span>,
              Number(r.this_step),
              Number(r.mean),
              `c${i}`,
            ),
          )}
        </tbody>
      </table>
    </>
  );
}

export default function Torch() {
  const about = useTarget(),
    { args } = useRoute(),
    chosen = about?.chosen,
    picked = args.has("step") ? Number(args.get("step")) : null,
    one = chosen && !chosen.all ? chosen.target : null,
    path = one ? with_args("/api/v1/query", { target: one }) : null;
  const range = useRange(about?.dead, "python.torch_step"),
    STEPS = steps_sql(range.where),
    COMM = comm_sql(range.where),
    steps = useLive<Row[]>(path, 2000, STEPS),
    twenty = steps.data?.length ? Date.now() / 1000 - Number(steps.data[Math.min(19, steps.data.length - 1)].t) : 0;
  // The last twenty steps at least; in powers of two, so that the question stays the same for a while.
  const since = about?.dead || range.where ? null : 2 ** Math.ceil(Math.log2(Math.max(30, twenty)));
  const comm = useLive<Row[]>(steps.data?.length ? path : null, 5000, COMM);
  if (about && chosen?.all) return <Ranks chosen={chosen} />;
  if (!about || !chosen || !one)
    return <NeedTarget what="Torch: the steps of a training, and where their time goes." />;
  const rows = [...(steps.data ?? [])].reverse(),
    durations = rows.map((r) => Number(r.duration_ms)),
    middle = median(durations),
    last = rows.at(-1);
  const sum = (key: string) => rows.reduce((a, r) => a + Number(r[key] ?? 0), 0),
    total = sum("duration_ms") || 1,
    span = rows.length > 1 ? Number(last!.t) - Number(rows[0].t) : 0;
  let below: number[] = rows.map(() => 0);
  const stacked = PARTS.map(([key, name, token]) => {
    below = rows.map((r, i) => below[i] + Number(r[key] ?? 0));
    return { name, token, values: below };
  }).reverse();
  return (
    <>
      <Trouble of={steps} />
      <div class="body">
        {!steps.data && !steps.error ? (
          <Loading what="Reading its steps." />
        ) : !rows.length ? (
          <NoRows
            what="No torch rows of this process."
            target={one}
            probed={about.probed}
            dead={about.dead}
            done={() => steps.again()}
            on={{
              text:
                "The torch probe is off, or the program has not stepped since. From the next step on, " +
                "while it runs:",
              setting: "probing.torch.profiling=on",
            }}
          />
        ) : (
          <>
            <div class="facts">
              <a class="behind" href={href("sql", { q: STEPS })} title="The query behind these figures (q)">
                As SQL
              </a>
              <span>
                <b>{ms(middle)}</b> median step
              </span>
              <span>
                <b>{ms([...durations].sort((a, b) => a - b)[Math.floor(durations.length * 0.95)])}</b> p95
              </span>
              <span>
                <b>{count(Number(last!.step))}</b> last step
              </span>
              {PARTS.map(([key, name]) => (
                <span key={key}>
                  <b>{((100 * sum(key)) / total).toFixed(0)}%</b> {name}
                </span>
              ))}
              {span > 0 && sum("tokens") > 0 && (
                <span>
                  <b>{count(Math.round(sum("tokens") / span))}</b> tokens/s
                </span>
              )}
              {span > 0 && sum("samples") > 0 && (
                <span>
                  <b>{count(Math.round(sum("samples") / span))}</b> samples/s
                </span>
              )}
            </div>
            <div class="split">
              <div>
                <div class="sec">
                  <h2>Step time</h2>
                  <span class="say">the last {rows.length} steps, ms; a drag chooses their time</span>
                  <span class="gap" />
                  <Legend of={PARTS.map(([, name, token]) => ({ name, token }))} />
                  <a href={href("sql", { q: STEPS })}>As SQL</a>
                </div>
                <Plot
                  x={rows.map((r) => Number(r.step))}
                  bars
                  height={200}
                  range={choose_steps(
                    rows.map((r) => Number(r.step)),
                    rows.map((r) => Number(r.t)),
                  )}
                  label="Time of each step in ms, by part"
                  series={[{ name: "rest", token: "--sp-rest", values: durations }, ...stacked]}
                />
                <Modules
                  target={one}
                  since={since ? `, in the last ${since} s` : ""}
                  within={since ? ` AND timestamp > now() - INTERVAL ${since} SECONDS` : range.and}
                />
              </div>
              <aside>
                <StepFill chosen={chosen} target={about.target} range={times_of(rows)} usual={middle} />
                <Why of={steps_of(rows)} target={one} picked={picked} />
                <div class="sec">
                  <h2>Collectives</h2>
                  <span class="gap" />
                  <a href={href("sql", { q: COMM })}>As SQL</a>
                </div>
                {!comm.data?.length ? (
                  <p class="pane dim">None was seen: the job has one process, or torch.distributed is not used.</p>
                ) : (
                  <table>
                    <thead>
                      <tr>
                        <th>Operation</th>
                        <th class="num">Calls</th>
                        <th class="num">Mean</th>
                        <th class="num">Open</th>
                      </tr>
                    </thead>
                    <tbody>
                      {comm.data.map((r, i) => (
                        <tr key={i}>
                          <td class="mono">
                            {String(r.op)} <span class="dim">{String(r.group_name ?? "")}</span>
                          </td>
                          <td class="num">{count(Number(r.calls))}</td>
                          <td class="num">{r.ms === null ? "" : ms(Number(r.ms))}</td>
                          <td class={`num ${Number(r.open) ? "warn" : "dim"}`}>{count(Number(r.open))}</td>
                        </tr>
                      ))}
                    </tbody>
                  </table>
                )}
              </aside>
            </div>
          </>
        )}
      </div>
      <Foot
        command={command("-t", one, "torch")}
        curl={curl(`/api/v1/targets/${encodeURIComponent(one)}/torch`)}
        sql={STEPS}
      />
    </>
  );
}
