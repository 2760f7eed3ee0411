// Runs: what lives, what has ended and left its tables, what is archived. Each opens in the other views.
import { command, curl, type Target } from "../api";
import { bytes, job_name, seconds, some } from "../format";
import { Columns } from "../columns";
import { useLive } from "../live";
import { href, put, useRoute } from "../route";
import { StateTag } from "../states";
import { Blank, Command, Foot, Loading, Trouble } from "../ui";

export default function Runs() {
  const runs = useLive<Target[]>("/api/v1/targets?dead=true", 5000),
    { args } = useRoute(),
    find = args.get("find") ?? "";
  const shown = (runs.data ?? []).filter((t) =>
      `${t.command} ${t.pid} ${t.id} ${t.state}`.toLowerCase().includes(find.toLowerCase()),
    ),
    live = shown.filter((t) => t.state === "probed" || t.state === "python"),
    ended = shown.filter((t) => !live.includes(t));
  const table = (of: Target[]) => (
    <Columns name="runs">
      <table>
        <thead>
          <tr>
            <th>Run</th>
            <th>Job</th>
            <th>State</th>
            <th class="num opt">{of === ended ? "Kept of it" : "Up"}</th>
            <th class="num opt">Memory</th>
            <th class="opt">
              <span class="sr">More</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {of.map((t) => {
            const to = { target: of === ended ? t.id : String(t.pid), all: null };
            return (
              <tr key={t.id}>
                <td>
                  <a href={href("activity", to)}>
                    {t.rank !== null ? `rank ${t.rank}, ` : ""}
                    {t.id}
                  </a>
                </td>
                <td class="cut" title={t.command}>
                  {job_name(t.command)} <span class="dim mono">{t.command}</span>
                </td>
                <td>
                  {of === ended ? (
                    <StateTag state="dead" word={t.state === "archived" ? "archived" : "ended"} />
                  ) : t.state === "probed" ? (
                    <StateTag state="compute" word="probed" />
                  ) : (
                    <StateTag state="wait" word="not probed" />
                  )}
                </td>
                <td class="num opt">{seconds(t.uptime)}</td>
                <td class="num opt">{t.memory_mb === null ? "" : bytes(t.memory_mb * 2 ** 20)}</td>
                <td class="opt">
                  <a href={href("flame", of === ended ? { ...to, from: "record" } : to)}>Flame</a>{" "}
                  <a href={href("torch", to)}>Torch</a> <a href={href("memory", to)}>Memory</a>{" "}
                  <a href={href("training", to)}>Training</a> <a href={href("sql", to)}>SQL</a>
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Columns>
  );
  if (!runs.data && !runs.error) return <Loading what="Looking for runs." />;
  return (
    <>
      <Trouble of={runs} />
      <div class="body">
        <div class="verdict">
          <span class="mark none" />
          <div>
            <h1>
              {some(live.length, "process", "processes")} live, {some(ended.length, "run")} ended.
            </h1>
            <p>
              A run that has ended keeps its tables for 7 days, to its last row, and opens in the same views; where it
              was recorded, Activity goes back through its stacks.
            </p>
          </div>
        </div>
        <div class="bar">
          <input
            class="ctl"
            data-search
            placeholder="Filter ( / )"
            aria-label="Filter runs"
            value={find}
            onInput={(e) => put({ find: e.currentTarget.value })}
          />
        </div>
        {live.length > 0 && (
          <>
            <div class="sec">
              <h2>Live</h2>
              <span class="say">{live.length}</span>
            </div>
            {table(live)}
          </>
        )}
        <div class="sec">
          <h2>Ended</h2>
          <span class="say">{ended.length}</span>
        </div>
        {ended.length ? (
          table(ended)
        ) : (
          <Blank title="No run that has ended is kept.">
            <p>A process leaves its tables when it is probed. From its first line on:</p>
            <Command text="PROBING=1 python train.py" />
          </Blank>
        )}
      </div>
      <Foot
        command={command("list", "--dead")}
        curl={curl("/api/v1/targets?dead=true")}
        sql="SELECT * FROM probing.sources"
      />
    </>
  );
}
