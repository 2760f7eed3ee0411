// Memory: what the process takes, over time and by mapping.
import { command, curl, with_args, type Row } from "../api";
import { bytes, seconds, some } from "../format";
import { useLive } from "../live";
import { NeedTarget, NoAnswer, useTarget } from "../pick";
import { Plot } from "../plot";
import { flame_of, Legend } from "../plot-parts";
import { href } from "../route";
import { Foot, Loading, Trouble } from "../ui";
import { NoRows } from "./record";

interface Memory { rss_bytes: number; peak_rss_bytes: number; swap_bytes: number; growth_bytes_per_minute: number | null; recorded_s: number | null; heap_bytes: number | null; heap_blocks: number | null; torch_cpu_bytes: number | null; torch_cuda_bytes: number | null; torch_cuda_reserved_bytes: number | null; gpu_bytes: number | null; mappings: { path: string; rss_bytes: number; bytes: number; count: number }[] }

const SQL = "SELECT epoch(timestamp) AS t, memory_mb, swap_mb, threads, cpu_user_s + cpu_system_s AS cpu FROM memory_usage ORDER BY timestamp DESC LIMIT 3600";

export default function MemoryView() {
  const about = useTarget(), chosen = about?.chosen, id = chosen ? encodeURIComponent(chosen.target) : "", one = chosen && !chosen.all;
  const now = useLive<Memory[]>(one ? `/api/v1/targets/${id}/memory` : null, 2000), rows = useLive<Row[]>(one ? with_args("/api/v1/query", { target: chosen.target }) : null, 2000, SQL);
  if (!about || !chosen || chosen.all) return <NeedTarget what="Memory: what a process takes, and whether it grows." />;
  const m = now.data?.[0], past = [...(rows.data ?? [])].reverse(), x = past.map((r) => Number(r.t)), most = Math.max(1, ...(m?.mappings ?? []).map((p) => p.rss_bytes));
  const cpu = past.map((r, i) => (i ? (100 * (Number(r.cpu) - Number(past[i - 1].cpu))) / Math.max(1e-3, x[i] - x[i - 1]) : null));
  const facts: [string, string][] = m ? ([["resident", bytes(m.rss_bytes)], ["at most", bytes(m.peak_rss_bytes)], ["Python's heap", bytes(m.heap_bytes)], ["swapped", m.swap_bytes ? bytes(m.swap_bytes) : ""], ["torch on the CPU", bytes(m.torch_cpu_bytes)], ["torch on GPUs", bytes(m.torch_cuda_bytes)], ["on GPUs", bytes(m.gpu_bytes)]] as [string, string][]).filter(([, v]) => v) : [];
  const grows = m?.growth_bytes_per_minute ?? null, query = href("sql", { q: SQL });
  return (
    <>
      <Trouble of={now.data ? now : { error: undefined, at: 0 }} />
      <div class="body">
        {!m && now.error ? <NoAnswer error={now.error} title="Its memory cannot be read." target={chosen.target} /> : !m ? <Loading what="Reading its memory." /> : (
          <>
            <div class="verdict"><span class={`mark${grows !== null && grows > 2 ** 20 ? " odd" : ""}`} /><div><h1>It takes {bytes(m.rss_bytes)}{grows === null ? "." : Math.abs(grows) < 2 ** 20 ? " and does not grow." : `, ${grows > 0 ? "growing" : "shrinking"} by ${bytes(Math.abs(grows))} a minute.`}</h1><p>{m.recorded_s ? `Recorded for ${seconds(m.recorded_s)}.` : "Nothing is recorded over time yet."}</p></div></div>
            <div class="facts">{facts.map(([name, value]) => <span key={name}><b>{value}</b> {name}</span>)}</div>
          </>
        )}
        {past.length > 1 ? (
          <>
            <div class="sec"><h2>Resident memory</h2><span class="say">MB, a row a second; a drag shows the flame graph of that time</span><span class="gap" /><Legend of={[{ name: "resident", token: "--sq-3" }, { name: "swapped", token: "--sp-data" }]} /><a href={query}>As SQL</a></div>
            <Plot x={x} time height={180} range={flame_of} label="Resident memory in MB" series={[{ name: "resident", token: "--sq-3", values: past.map((r) => Number(r.memory_mb)) }, { name: "swapped", token: "--sp-data", values: past.map((r) => Number(r.swap_mb)) }]} />
            <div class="sec"><h2>CPU</h2><span class="say">% of a core, all threads</span><span class="gap" /><a href={query}>As SQL</a></div>
            <Plot x={x} time height={120} range={flame_of} label="CPU in percent of a core" series={[{ name: "CPU", token: "--sp-fwd", values: cpu }]} />
          </>
        ) : rows.data && m && <NoRows what="No memory over time is recorded of this process." target={chosen.target} probed={about.probed} dead={about.dead} done={() => rows.again()} />}
        {m && (
          <>
            <div class="sec"><h2>Mappings</h2><span class="say">the largest, by what of them is in RAM</span><span class="gap" /><a href={href("sql", { q: "SELECT * FROM system.maps" })}>As SQL</a></div>
            <table><thead><tr><th>Path</th><th class="num">Resident</th><th class="num opt">Mapped</th><th class="num opt">Pieces</th><th class="opt"><span class="sr">More</span></th></tr></thead>
              <tbody>{m.mappings.map((p) => <tr key={p.path}><td class="cut mono" title={p.path}>{p.path}</td><td class="num">{bytes(p.rss_bytes)}</td><td class="num opt">{bytes(p.bytes)}</td><td class="num opt" title={some(p.count, "mapping")}>{p.count}</td><td class="opt"><span class="meter" style={{ width: `${(140 * p.rss_bytes) / most}px` }} /></td></tr>)}</tbody></table>
          </>
        )}
      </div>
      <Foot command={command("-t", chosen.target, "memory")} curl={curl(`/api/v1/targets/${id}/memory`)} />
    </>
  );
}
