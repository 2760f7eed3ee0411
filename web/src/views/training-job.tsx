// Training of a job: what its ranks track or log, all ranks on one axis of steps.
import { command, curl, with_args, type Row } from "../api";
import { lines_by_rank } from "../by-rank";
import { smoothed } from "../curves";
import { count, some } from "../format";
import { useLive } from "../live";
import { Plot } from "../plot";
import { Legend } from "../plot-parts";
import { href, useRange, useRanks, useRoute, type Chosen } from "../route";
import { Blank, Command, Foot, Loading, Trouble } from "../ui";
import { CurveBar } from "./curve";

const NO_VALUES = new Set(["timestamp", "step", "epoch", "rank", "target_pid"]);
// The newest rows of each rank.
const job_sql = (within: string) => `SELECT * FROM training_logs${within}
QUALIFY row_number() OVER (PARTITION BY target_pid ORDER BY timestamp DESC) <= 600 ORDER BY timestamp`;

export function TrainingOfJob({ chosen }: { chosen: Chosen }) {
  const wanted = useRanks(),
    sql = job_sql(useRange(false, "training_logs").where),
    path = with_args("/api/v1/query", { ...chosen }),
    logs = useLive<Row[]>(path, 3000, sql);
  const rows = (logs.data ?? []).filter((r) => wanted(r.rank) && typeof r.step === "number"),
    names = Object.keys(rows[0] ?? {}).filter((n) => !NO_VALUES.has(n) && rows.some((r) => typeof r[n] === "number")),
    ranks = new Set(rows.map((r) => r.target_pid)).size;
  const foot = <Foot command={command("-t", chosen.target, "--all", "query", sql)} curl={curl(path, sql)} sql={sql} />;
  const { args } = useRoute(),
    smooth = Number(args.get("smooth") ?? 0);
  if (!logs.data && !logs.error) return <Loading what="Reading the logs of all ranks." />;
  return (
    <>
      <Trouble of={logs} />
      <div class="body">
        {!names.length ? (
          <Blank title="Nothing is tracked or logged in this job.">
            <p>Variables of the training function, from the next step on, in all ranks:</p>
            <Command text={command("-t", chosen.target, "--all", "track", "loss@train", "lr")} />
          </Blank>
        ) : (
          <div class="verdict">
            <span class="mark none" />
            <div>
              <h1>
                {names.join(", ")} of {some(ranks, "rank")}, to step{" "}
                {count(Math.max(...rows.map((r) => Number(r.step))))}.
              </h1>
              <p>{count(rows.length)} rows. Choose a rank for its alerts and its first bad step.</p>
            </div>
          </div>
        )}
        {names.length > 0 && <CurveBar runs={[]} mine="" />}
        {names.map((name) => {
          const { x, lines } = lines_by_rank(rows, "step", name);
          return (
            <div key={name}>
              <div class="sec">
                <h2>{name}</h2>
                <span class="say">by step, a line a rank</span>
                <span class="gap" />
                <Legend of={lines} />
                <a href={href("sql", { q: `SELECT rank, step, "${name}" FROM training_logs ORDER BY step` })}>As SQL</a>
              </div>
              <Plot
                x={x}
                spans
                height={150}
                label={`${name} of each rank`}
                series={lines.map((l) => ({ ...l, values: smoothed(l.values, smooth) }))}
              />
            </div>
          );
        })}
      </div>
      {foot}
    </>
  );
}
