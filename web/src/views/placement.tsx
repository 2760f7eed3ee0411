// The ranks of a job as they are placed: by pipeline stage and host, in boxes of their innermost group, coloured by
// what a query says of each.
import { useEffect, useState } from "preact/hooks";
import { with_args, type Row, type Service } from "../api";
import { count, ranges } from "../format";
import { useLive } from "../live";
import { href, put, useRanks, useRoute, type Chosen } from "../route";
import { Loading, why } from "../ui";
import { median } from "../steps";

const GROUPS = `SELECT group_name, any_value(participate_ranks) AS ranks, string_agg(DISTINCT op, ', ') AS ops,
  count(*) AS calls
FROM python.comm_collective WHERE participate_ranks IS NOT NULL GROUP BY group_name ORDER BY group_name LIMIT 4096`;
const PLACED: Record<string, string> = {
  "step time, median": `SELECT rank, median(duration_ms) AS value
    FROM (FROM python.torch_step WHERE kind IS DISTINCT FROM 'eval') GROUP BY rank`,
  "loader wait, p95": `SELECT rank, quantile_cont(data_ms, 0.95) AS value
    FROM (FROM python.torch_step WHERE kind IS DISTINCT FROM 'eval') GROUP BY rank`,
  "own time, median": `SELECT rank, median(duration_ms - backward_ms) AS value
    FROM (FROM python.torch_step WHERE kind IS DISTINCT FROM 'eval') GROUP BY rank`,
  "memory, MB": "SELECT rank, max(memory_mb) AS value FROM memory_usage GROUP BY rank",
  "waiting in collectives, ms a call":
    "SELECT rank, avg(duration_ms) AS value FROM python.comm_collective GROUP BY rank",
};

export interface Group {
  name: string;
  ranks: number[];
  ops: string;
  calls: number;
}
// Groups of one size and stride do the same for different ranks.
export interface Kind {
  role: string;
  stride: number;
  size: number;
  groups: Group[];
}

// torch does not say what a group is for. Those that send and receive are stages of a pipeline; of the others
// neighbours share a tensor, and those that lie further apart have the same part of different data: as the usual
// launchers number their ranks.
export function kinds_of(rows: Row[]): Kind[] {
  const groups = rows
    .map((g): Group => ({
      name: String(g.group_name),
      ranks: [...new Set(String(g.ranks).match(/\d+/g)?.map(Number) ?? [])].sort((a, b) => a - b),
      ops: String(g.ops ?? ""),
      calls: Number(g.calls),
    }))
    .filter((g) => g.ranks.length > 1);
  const world = Math.max(0, ...groups.map((g) => g.ranks.length)),
    by = new Map<string, Kind>();
  for (const g of groups) {
    const stride = g.ranks[1] - g.ranks[0],
      size = g.ranks.length,
      key = `${size} ${stride}`,
      kind = by.get(key) ?? { role: "", stride, size, groups: [] };
    kind.groups.push(g);
    by.set(key, kind);
  }
  const kinds = [...by.values()].sort((a, b) => a.stride - b.stride || a.size - b.size),
    parts = kinds.filter((k) => k.size < world);
  for (const k of kinds)
    k.role =
      k.size === world ? "all" : k.groups.some((g) => /send|recv/i.test(g.ops)) ? "pp" : k.stride === 1 ? "tp" : "dp";
  if (parts.length > 2 && !parts.some((k) => k.role === "pp")) parts.at(-1)!.role = "pp";
  return kinds;
}

const place_in = (kinds: Kind[], role: string, rank: number) => {
  const g = kinds.find((k) => k.role === role)?.groups.find((h) => h.ranks.includes(rank));
  return g ? g.ranks.indexOf(rank) : null;
};

export function place_of(kinds: Kind[], rank: number): string {
  return ["tp", "dp", "pp"]
    .map((role) => [role, place_in(kinds, role, rank)] as const)
    .filter(([, at]) => at !== null)
    .map(([role, at]) => `${role} ${at}`)
    .join(", ");
}

interface Placed {
  rank: number;
  host: string;
  value: number;
}

// Within a host: ranks of one box beside each other.
function boxes(of: Placed[], kinds: Kind[]): Placed[][] {
  const inner = kinds.find((k) => k.role === "tp"),
    by = new Map<string, Placed[]>();
  for (const p of of) {
    const key = String(inner?.groups.find((g) => g.ranks.includes(p.rank))?.name ?? "");
    by.set(key, [...(by.get(key) ?? []), p]);
  }
  return [...by.values()];
}

export function Placement({ chosen, pick }: { chosen: Chosen; pick(rank: string): void }) {
  const { args } = useRoute(),
    wanted = useRanks(),
    sql = args.get("colour") ?? Object.values(PLACED)[0],
    [typed, type] = useState(sql),
    path = with_args("/api/v1/query", { ...chosen }),
    lit = args.get("group");
  const values = useLive<Row[]>(path, 5000, sql),
    groups = useLive<Row[]>(path, 15000, GROUPS),
    service = useLive<Service>("/api/v1/service", Infinity),
    kinds = kinds_of(groups.data ?? []);
  useEffect(() => type(sql), [sql]);
  const rows = (values.data ?? [])
    .filter((r) => r.value !== null && r.rank !== null && wanted(r.rank))
    .map((r): Placed => ({
      rank: Number(r.rank),
      host: String(r.host ?? service.data?.host ?? "this node"),
      value: Number(r.value),
    }))
    .sort((a, b) => a.rank - b.rank);
  const low = Math.min(...rows.map((r) => r.value)),
    high = Math.max(...rows.map((r) => r.value)),
    tone = (v: number) => (high > low * 1.05 ? Math.round((3 * (v - low)) / (high - low)) : 0),
    odd = rows.length > 2 && high > median(rows.map((r) => r.value)) * 1.3;
  const stages = [...new Set(rows.map((r) => place_in(kinds, "pp", r.rank)))].sort((a, b) => Number(a) - Number(b)),
    shown = kinds.flatMap((k) => k.groups).find((g) => g.name === lit);
  return (
    <>
      <div class="sec">
        <h2>Placement</h2>
        <span class="say">coloured by</span>
        <select
          class="ctl"
          aria-label="Coloured by"
          value={sql}
          onChange={(e) => put({ colour: e.currentTarget.value })}
        >
          {Object.entries(PLACED).map(([name, q]) => (
            <option key={name} value={q}>
              {name}
            </option>
          ))}
          {!Object.values(PLACED).includes(sql) && <option value={sql}>a query of your own</option>}
        </select>
      </div>
      <form
        class="line pane"
        onSubmit={(e) => {
          e.preventDefault();
          put({ colour: typed });
        }}
      >
        <input
          class="ctl mono grow"
          aria-label="Query for the colours: rank, value"
          value={typed}
          onInput={(e) => type(e.currentTarget.value)}
        />
        <button class="ctl">Colour</button>
        <a href={href("sql", { q: sql })}>As SQL</a>
      </form>
      {values.error ? (
        <p class="pane bad">
          {why(values.error)} A query gives <code>rank</code> and <code>value</code>.
        </p>
      ) : !values.data ? (
        <Loading what="Asking all ranks." />
      ) : !rows.length ? (
        <p class="pane dim">The query has no row with a rank and a value.</p>
      ) : (
        stages.map((stage) => {
          const here = rows.filter((r) => place_in(kinds, "pp", r.rank) === stage);
          return (
            <div key={String(stage)}>
              {stage !== null && <p class="pane dim">pp {stage}</p>}
              {[...new Set(here.map((r) => r.host))].map((h) => (
                <div class="host" key={h}>
                  <span class="dim">{h}</span>
                  <span class="grid">
                    {boxes(
                      here.filter((r) => r.host === h),
                      kinds,
                    ).map((box) => (
                      <span class="box" key={box[0].rank}>
                        {box.map((r) => {
                          const place = place_of(kinds, r.rank),
                            text = `rank ${r.rank}${place ? ` (${place})` : ""}: ${r.value.toPrecision(5)}`;
                          return (
                            <button
                              key={r.rank}
                              class={
                                `sq sq${tone(r.value)}` +
                                `${(odd && r.value === high) || shown?.ranks.includes(r.rank) ? " odd" : ""}`
                              }
                              title={text}
                              aria-label={text}
                              onClick={() => pick(String(r.rank))}
                            >
                              {r.rank}
                            </button>
                          );
                        })}
                      </span>
                    ))}
                  </span>
                </div>
              ))}
            </div>
          );
        })
      )}
      {rows.length > 0 && (
        <p class="pane dim">
          {Number(low.toPrecision(4))} to {Number(high.toPrecision(4))}; the darkest is the most.
          {kinds.some((k) => k.role === "tp") ? " A box is a tp group." : ""}
        </p>
      )}
      <div class="sec">
        <h2>Groups</h2>
        <span class="say">tp, dp, pp by how their ranks lie</span>
        <span class="gap" />
        <a href={href("sql", { q: GROUPS })}>As SQL</a>
      </div>
      {!kinds.length ? (
        <p class="pane dim">
          {groups.data
            ? "No collective of a group was seen yet: they are recorded while the torch probe is on."
            : "Asking all ranks."}
        </p>
      ) : (
        <table>
          <thead>
            <tr>
              <th>Group</th>
              <th>Ranks</th>
              <th class="opt">Operations</th>
              <th class="num">Calls</th>
            </tr>
          </thead>
          <tbody>
            {kinds.flatMap((k) =>
              k.groups.slice(0, 64).map((g) => (
                <tr key={g.name} class={g.name === lit ? "odd" : ""}>
                  <td class="cut" title={g.name}>
                    <button
                      class="link"
                      aria-pressed={g.name === lit}
                      onClick={() => put({ group: g.name === lit ? null : g.name })}
                    >
                      {k.role}
                    </button>{" "}
                    <span class="mono dim">{g.name}</span>
                  </td>
                  <td class="wrap">{ranges(g.ranks)}</td>
                  <td class="opt wrap">{g.ops}</td>
                  <td class="num">{count(g.calls)}</td>
                </tr>
              )),
            )}
          </tbody>
        </table>
      )}
    </>
  );
}
