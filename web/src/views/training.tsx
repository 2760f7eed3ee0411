// Training: what is tracked or logged a step, as charts over the step; alerts and the first bad one.
import { command, curl, with_args, type Row, type Target } from "../api";
import { count } from "../format";
import { cell_text } from "../grid-rows";
import { useLive } from "../live";
import { NeedTarget, useTarget } from "../pick";
import { COLOURS } from "../colours";
import { choose_steps } from "../plot-parts";
import { href, range_text, useRange } from "../route";
import { Blank, Command, Foot, Loading, Trouble } from "../ui";
import { Curve, CurveBar, useOther } from "./curve";
import { TrainingOfJob } from "./training-job";

const logs_sql = (within: string) => `SELECT * FROM training_logs${within} ORDER BY timestamp DESC LIMIT 2000`;
const alerts_sql = (within: string) =>
  `SELECT timestamp, kind, severity, subject, step, value, message FROM python.alerts${within} ORDER BY timestamp`;
// JSON has no NaN and no infinity: they come as texts.
const no_number = (v: unknown) => typeof v === "string" && /^[+-]?(nan|inf(inity)?)$/i.test(v);
const number = (v: unknown): number | null => (typeof v === "number" ? v : null);

export default function Training() {
  const about = useTarget(),
    chosen = about?.chosen,
    one = chosen && !chosen.all ? chosen.target : null,
    path = one ? with_args("/api/v1/query", { target: one }) : null;
  const LOGS = logs_sql(useRange(about?.dead, "training_logs").where),
    ALERTS = alerts_sql(useRange(about?.dead, "python.alerts").where),
    logs = useLive<Row[]>(path, 2000, LOGS),
    alerts = useLive<Row[]>(path, 3000, ALERTS);
  const runs = useLive<Target[]>("/api/v1/targets?dead=true", 10000),
    other = useOther(runs.data ?? []);
  if (chosen?.all) return <TrainingOfJob chosen={chosen} />;
  if (!about || !one) return <NeedTarget what="Training: what a job tracks and logs, step by step." />;
  const rows = [...(logs.data ?? [])].reverse(),
    x = rows.map((r, i) => number(r.step) ?? i),
    names = Object.keys(rows[0] ?? {}).filter(
      (n) =>
        !["timestamp", "step", "epoch", "rank", "target_pid"].includes(n) &&
        rows.some((r) => number(r[n]) !== null || no_number(r[n])),
    );
  const times = rows.map((r) => Date.parse(`${String(r.timestamp).replace(" ", "T")}Z`) / 1000);
  const alarms = (alerts.data ?? []).filter((a) => a.step !== null),
    broken = rows.flatMap((r, i) =>
      names.filter((n) => no_number(r[n])).map((n) => ({ step: x[i], name: n, text: `${n} is ${String(r[n])}` })),
    );
  // Of each variable its first bad step, and all alerts; the first of all is what one looks for.
  const bad = [
      ...alarms.map((a) => ({ step: Number(a.step), name: String(a.subject ?? a.kind), text: String(a.message) })),
      ...names.flatMap((n) => broken.filter((b) => b.name === n).slice(0, 1)),
    ].sort((a, b) => a.step - b.step),
    [first] = bad;
  const times_of = (step: number) => {
    const i = x.indexOf(step);
    return i > 0 ? { from: times[i - 1], until: times[i] } : null;
  };
  return (
    <>
      <Trouble of={logs} />
      <div class="body">
        {!logs.data && !logs.error ? (
          <Loading what="Reading its logs." />
        ) : (
          <>
            {rows.length > 0 && (
              <div class="verdict">
                <span class={`mark${first ? " odd" : ""}`} />
                <div>
                  <h1>
                    {first
                      ? `The first bad step is ${count(first.step)}: ${first.text}.`
                      : `${names.join(", ")}: no value is bad in ${count(rows.length)} rows.`}
                  </h1>
                  <p>
                    {broken.length ? `${count(broken.length)} values are no numbers. ` : ""}
                    {first && (
                      <a
                        href={href("flame", {
                          from: "record",
                          ...(times_of(first.step) ? { a: range_text(times_of(first.step)!) } : {}),
                        })}
                      >
                        The flame graph of that step
                      </a>
                    )}
                  </p>
                </div>
              </div>
            )}
            {alerts.data && alerts.data.length > 0 && (
              <>
                <div class="sec">
                  <h2>Alerts</h2>
                  <span class="say">{count(alerts.data.length)}</span>
                  <span class="gap" />
                  <a href={href("sql", { q: ALERTS })}>As SQL</a>
                </div>
                <table>
                  <thead>
                    <tr>
                      <th>When</th>
                      <th>Kind</th>
                      <th class="num">Step</th>
                      <th>What</th>
                    </tr>
                  </thead>
                  <tbody>
                    {alerts.data.slice(-20).map((a, i) => (
                      <tr key={i}>
                        <td>{String(a.timestamp).slice(0, 19)}</td>
                        <td>{String(a.kind)}</td>
                        <td class="num">{count(a.step as number)}</td>
                        <td class="wrap">{String(a.message)}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </>
            )}
            {names.length === 0 ? (
              <Blank title="Nothing is tracked or logged.">
                <p>
                  {about.dead
                    ? "The run left no training_logs."
                    : "Variables of the training function, from the next step on (the torch probe must be on):"}
                </p>
                {!about.dead && <Command text={command("-t", one, "track", "loss@train", "lr")} />}
                <p>
                  Or from the program itself: <code>probing.log(step, loss=loss)</code>
                </p>
              </Blank>
            ) : (
              <>
                <CurveBar runs={runs.data ?? []} mine={one} />
                {names.map((n, i) => (
                  <Curve
                    key={n}
                    name={n}
                    x={x}
                    values={rows.map((r) => number(r[n]))}
                    token={COLOURS[i % COLOURS.length]}
                    say={`by step, ${count(rows.length)} rows; last ${cell_text(rows.at(-1)?.[n] ?? "none")}`}
                    other={other}
                    range={choose_steps(x, times)}
                    marks={bad
                      .filter((b) => b.name === n || !names.includes(b.name))
                      .map((b) => ({ at: b.step, name: b.text }))}
                  />
                ))}
              </>
            )}
          </>
        )}
      </div>
      <Foot command={command("-t", one, "query", LOGS)} curl={curl(path!, LOGS)} sql={LOGS} />
    </>
  );
}
