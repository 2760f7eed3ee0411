// Memory of a job: what each rank takes, on one axis, and by how much it changed.
import { command, curl, with_args, type Row, type Target } from "../api";
import { lines_by_rank, rank_name } from "../by-rank";
import { bytes, some } from "../format";
import { useLive } from "../live";
import { Plot } from "../plot";
import { choose_time, Legend } from "../plot-parts";
import { href, useRange, useRanks, type Chosen } from "../route";
import { Command, Foot, Loading, Trouble } from "../ui";
import { is_chosen } from "../verdict";

const MB = 2 ** 20;
// A row a rank and five seconds: the last half hour of 64 ranks is 23,000 rows.
const job_sql = (within: string) => `SELECT rank, target_pid, floor(epoch(timestamp) / 5) * 5 AS t, max(memory_mb) AS mb
FROM memory_usage${within} GROUP BY ALL ORDER BY t DESC LIMIT 24000`;

interface Of {
  pid: number;
  name: string;
  now: number | null;
  changed: number | null;
}

// Live ranks by their list, with what is recorded of each.
function ranks_of(targets: Target[], rows: Row[]): Of[] {
  return targets.map((t) => {
    const mine = rows.filter((r) => Number(r.target_pid) === t.pid),
      first = mine.at(-1),
      last = mine[0];
    return {
      pid: t.pid,
      name: rank_name({ rank: t.rank, target_pid: t.pid }),
      now: t.memory_mb,
      changed: first && last && first !== last ? Number(last.mb) - Number(first.mb) : null,
    };
  });
}

const signed = (mb: number) => `${mb < 0 ? "−" : "+"}${bytes(Math.abs(mb) * MB)}`;

function Ranks({ of }: { of: Of[] }) {
  return (
    <table>
      <thead>
        <tr>
          <th>Rank</th>
          <th class="num">Resident</th>
          <th class="num">Change in the time shown</th>
        </tr>
      </thead>
      <tbody>
        {of.map((r) => (
          <tr key={r.pid}>
            <td>
              <a href={href("memory", { target: String(r.pid), all: null })}>
                {r.name}, pid {r.pid}
              </a>
            </td>
            <td class="num">{r.now === null ? "" : bytes(r.now * MB)}</td>
            <td class="num">{r.changed === null ? <span class="dim">not recorded</span> : signed(r.changed)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

export function MemoryOfJob({ chosen }: { chosen: Chosen }) {
  const wanted = useRanks(),
    sql = job_sql(useRange().where),
    path = with_args("/api/v1/query", { ...chosen });
  const targets = useLive<Target[]>("/api/v1/targets", 2000),
    live = (targets.data ?? []).filter(
      (t) => (t.state === "probed" || t.state === "python") && is_chosen(chosen, t) && wanted(t.rank),
    );
  const rows = useLive<Row[]>(live.some((t) => t.state === "probed") ? path : null, 5000, sql);
  const shown = (rows.data ?? []).filter((r) => wanted(r.rank)),
    { x, lines } = lines_by_rank(shown, "t", "mb");
  if (!targets.data) return <Loading what="Looking for the ranks of the job." />;
  const sum = live.reduce((all, t) => all + (t.memory_mb ?? 0), 0) * MB,
    most = [...live].sort((a, b) => (b.memory_mb ?? 0) - (a.memory_mb ?? 0))[0];
  return (
    <>
      <Trouble of={rows} />
      <div class="body">
        <div class="verdict">
          <span class="mark none" />
          <div>
            <h1>
              {some(live.length, "process", "processes")} take {bytes(sum)}
              {most ? `, the most ${rank_name({ rank: most.rank, target_pid: most.pid })}.` : "."}
            </h1>
            <p>Choose a rank for its heap, its tensors, its mappings and the functions that it grows by.</p>
          </div>
        </div>
        {x.length > 1 ? (
          <>
            <div class="sec">
              <h2>Resident memory</h2>
              <span class="say">MB; a drag chooses a time</span>
              <span class="gap" />
              <Legend of={lines} />
              <a href={href("sql", { q: sql })}>As SQL</a>
            </div>
            <Plot
              x={x}
              time
              height={220}
              range={choose_time}
              label="Resident memory of each rank in MB"
              series={lines}
            />
          </>
        ) : (
          <div class="pane">
            <p class="mid">Over time it comes with an agent in the ranks, a row a second:</p>
            <Command text={command("-t", chosen.target, "--all", "inject")} />
            <a href={href("sql", { q: sql })}>As SQL</a>
          </div>
        )}
        <Ranks of={ranks_of(live, shown)} />
      </div>
      <Foot command={command("-t", chosen.target, "--all", "memory")} curl={curl(path, sql)} sql={sql} />
    </>
  );
}
