// Torch over all ranks of a job: each step of each rank against the median of the step, and the ranks as they are placed.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { command, curl, with_args, type Row, type Service, type Target } from "../api";
import { count, some } from "../format";
import { useKeys } from "../keys";
import { useLive } from "../live";
import { Legend } from "../plot-parts";
import { go, href, put, useRoute, type Chosen } from "../route";
import { colour, repaint, useCell } from "../store";
import { Blank, Command, Foot, Loading, Trouble, why } from "../ui";
import { median, ms, PARTS } from "./torch";

const STEPS = "SELECT rank, target_pid, step, epoch(timestamp) AS t, duration_ms, data_ms, forward_ms, backward_ms, optimizer_ms FROM python.torch_step QUALIFY step > max(step) OVER () - 160 ORDER BY step";
const GROUPS = "SELECT group_name, any_value(participate_ranks) AS ranks, count(*) AS calls FROM python.comm_collective WHERE participate_ranks IS NOT NULL GROUP BY group_name ORDER BY group_name LIMIT 64";
const PLACED: Record<string, string> = {
  "step time, median": "SELECT rank, median(duration_ms) AS value FROM python.torch_step GROUP BY rank",
  "loader wait, p95": "SELECT rank, quantile_cont(data_ms, 0.95) AS value FROM python.torch_step GROUP BY rank",
  "own time, median": "SELECT rank, median(duration_ms - backward_ms) AS value FROM python.torch_step GROUP BY rank",
  "memory, MB": "SELECT rank, max(memory_mb) AS value FROM memory_usage GROUP BY rank",
  "waiting in collectives, ms a call": "SELECT rank, avg(duration_ms) AS value FROM python.comm_collective GROUP BY rank",
};
const MEASURES: Record<string, string> = { duration_ms: "step time", own: "time before the backward", data_ms: "data", forward_ms: "forward", backward_ms: "backward", optimizer_ms: "optimizer" };
const SCALE = ["--df-less-2", "--df-less", "--df-same", "--df-more", "--df-more-2", "--st-loader"];

const measure = (r: Row, by: string) => (by === "own" ? Number(r.duration_ms) - Number(r.backward_ms) - Number(r.optimizer_ms) : Number(r[by]));
// How far from the median of its step: less, same, more.
const level = (v: number, usual: number) => { const r = usual > 0 ? v / usual : 1; return r < 0.7 ? 0 : r < 0.9 ? 1 : r < 1.1 ? 2 : r < 1.3 ? 3 : r < 2 ? 4 : 5; };

interface Cells { ranks: { rank: string; pid: string }[]; steps: number[]; at: Map<string, Row>; usual: Map<number, number> }

function arrange(rows: Row[], by: string): Cells {
  const ranks = new Map<string, { rank: string; pid: string }>(), at = new Map<string, Row>(), of = new Map<number, number[]>();
  for (const r of rows) {
    const pid = String(r.target_pid), step = Number(r.step);
    ranks.set(pid, { rank: r.rank === null ? `pid ${pid}` : String(r.rank), pid });
    at.set(`${pid} ${step}`, r);
    of.set(step, [...(of.get(step) ?? []), measure(r, by)]);
  }
  return { ranks: [...ranks.values()].sort((a, b) => Number(a.rank) - Number(b.rank) || (a.rank < b.rank ? -1 : 1)), steps: [...of.keys()].sort((a, b) => a - b), at, usual: new Map([...of].map(([step, v]) => [step, median(v)])) };
}

function HeatMap({ cells, by, picked, pick }: { cells: Cells; by: string; picked: { step: number; pid: string } | null; pick(step: number, pid: string): void }) {
  const canvas = useRef<HTMLCanvasElement>(null), paint = useCell(repaint), { ranks, steps } = cells, height = Math.max(60, Math.min(420, ranks.length * 16)), [width, resize] = useState(0);
  useEffect(() => { const watch = new ResizeObserver(() => resize(canvas.current?.clientWidth ?? 0)); watch.observe(canvas.current!); return () => watch.disconnect(); }, []);
  useEffect(() => {
    const c = canvas.current!, ratio = devicePixelRatio, x = c.getContext("2d")!, w = width / steps.length, h = height / ranks.length, colours = SCALE.map(colour);
    c.width = width * ratio;
    c.height = height * ratio;
    x.scale(ratio, ratio);
    ranks.forEach((r, row) => steps.forEach((s, i) => {
      const cell = cells.at.get(`${r.pid} ${s}`);
      if (!cell) return;
      x.fillStyle = colours[level(measure(cell, by), cells.usual.get(s)!)];
      x.fillRect(i * w, row * h, w + 0.4, Math.max(1, h - (h > 5 ? 1 : 0)));
    }));
    const column = picked ? steps.indexOf(picked.step) : -1;
    if (column >= 0) { x.strokeStyle = colour("--fg"); x.lineWidth = 1.5; x.strokeRect(column * w, 0.5, Math.max(2, w), height - 1); }
  }, [cells, by, width, height, paint, picked?.step]);
  const hit = (e: MouseEvent) => { const b = canvas.current!.getBoundingClientRect(); const s = steps[Math.floor(((e.clientX - b.left) / b.width) * steps.length)], r = ranks[Math.floor(((e.clientY - b.top) / b.height) * ranks.length)]; if (s !== undefined && r) pick(s, r.pid); };
  const slow = ranks.map((r) => ({ r, n: steps.filter((s) => { const c = cells.at.get(`${r.pid} ${s}`); return c && level(measure(c, by), cells.usual.get(s)!) >= 4; }).length })).filter((v) => v.n).sort((a, b) => b.n - a.n).slice(0, 3);
  return (
    <div class="heat">
      <div class="ranks" style={{ height: `${height}px` }}>{ranks.map((r, i) => (ranks.length <= 26 || i % Math.ceil(ranks.length / 26) === 0) && <span key={r.pid} style={{ top: `${((i + 0.5) * height) / ranks.length}px` }}>{r.rank}</span>)}</div>
      <canvas ref={canvas} role="img" style={{ height: `${height}px` }} onClick={hit} aria-label={`${MEASURES[by]} of ${some(ranks.length, "rank")} over ${some(steps.length, "step")}, against the median of the step. ${slow.length ? `Often slower: ${slow.map((v) => `rank ${v.r.rank} in ${v.n} steps`).join(", ")}.` : "None is often slower."}`} />
      <span /><div class="ticks"><span>{count(steps[0])}</span><span>step</span><span>{count(steps.at(-1)!)}</span></div>
    </div>
  );
}

// Ranks by host, each coloured by what a query says of it.
function Placement({ chosen, pick }: { chosen: Chosen; pick(rank: string): void }) {
  const { args } = useRoute(), sql = args.get("colour") ?? Object.values(PLACED)[0], [typed, type] = useState(sql), path = with_args("/api/v1/query", { ...chosen });
  const values = useLive<Row[]>(path, 5000, sql), groups = useLive<Row[]>(path, 15000, GROUPS), service = useLive<Service>("/api/v1/service", Infinity);
  useEffect(() => type(sql), [sql]);
  const rows = (values.data ?? []).filter((r) => r.value !== null && r.rank !== null).map((r) => ({ rank: String(r.rank), host: String(r.host ?? service.data?.host ?? "this node"), value: Number(r.value) })).sort((a, b) => Number(a.rank) - Number(b.rank));
  const low = Math.min(...rows.map((r) => r.value)), high = Math.max(...rows.map((r) => r.value)), tone = (v: number) => (high > low * 1.05 ? Math.round((3 * (v - low)) / (high - low)) : 0), hosts = [...new Set(rows.map((r) => r.host))], odd = high > median(rows.map((r) => r.value)) * 1.3;
  const several = (groups.data ?? []).filter((g) => { const n = String(g.ranks).split(",").length; return n > 1; });
  return (
    <>
      <div class="sec"><h2>Placement</h2><span class="say">coloured by</span><select class="ctl" aria-label="Coloured by" value={sql} onChange={(e) => put({ colour: e.currentTarget.value })}>{Object.entries(PLACED).map(([name, q]) => <option key={name} value={q}>{name}</option>)}{!Object.values(PLACED).includes(sql) && <option value={sql}>a query of your own</option>}</select></div>
      <form class="line pane" onSubmit={(e) => { e.preventDefault(); put({ colour: typed }); }}><input class="ctl mono grow" aria-label="Query for the colours: rank, value" value={typed} onInput={(e) => type(e.currentTarget.value)} /><button class="ctl">Colour</button><a href={href("sql", { q: sql })}>As SQL</a></form>
      {values.error ? <p class="pane bad">{why(values.error)} A query gives <code>rank</code> and <code>value</code>.</p> : !values.data ? <Loading what="Asking all ranks." /> : !rows.length ? <p class="pane dim">The query has no row with a rank and a value.</p> : hosts.map((h) => (
        <div class="host" key={h}><span class="dim">{h}</span><span class="grid">{rows.filter((r) => r.host === h).map((r) => <button key={r.rank} class={`sq sq${tone(r.value)}${odd && r.value === high ? " odd" : ""}`} title={`rank ${r.rank}: ${r.value.toPrecision(5)}`} onClick={() => pick(r.rank)}>{r.rank}</button>)}</span></div>))}
      {rows.length > 0 && <p class="pane dim">{Number(low.toPrecision(4))} to {Number(high.toPrecision(4))}; the darkest is the most.</p>}
      <div class="sec"><h2>Groups</h2></div>
      {!several.length ? <p class="pane dim">No collective of a group was seen yet.</p> : <table><thead><tr><th>Group</th><th>Ranks</th><th class="num">Calls</th></tr></thead><tbody>{several.map((g) => <tr key={String(g.group_name)}><td class="mono">{String(g.group_name)}</td><td class="wrap">{String(g.ranks).replaceAll(",", ", ")}</td><td class="num">{count(Number(g.calls))}</td></tr>)}</tbody></table>}
    </>
  );
}

function WhyStep({ cells, step, pid }: { cells: Cells; step: number; pid: string }) {
  const mine = [...cells.at.values()].filter((r) => String(r.target_pid) === pid), of = cells.at.get(`${pid} ${step}`), rank = cells.ranks.find((r) => r.pid === pid)?.rank;
  if (!of) return null;
  const others = cells.ranks.map((r) => cells.at.get(`${r.pid} ${step}`)).filter((r): r is Row => !!r), usual = median(mine.map((r) => Number(r.duration_ms)));
  const rest = (r: Row) => Number(r.duration_ms) - PARTS.reduce((sum, [k]) => sum + Number(r[k] ?? 0), 0), rows: [string, (r: Row) => number][] = [...PARTS.map(([k, name]): [string, (r: Row) => number] => [name, (r) => Number(r[k] ?? 0)]), ["outside of these", rest]];
  return (
    <>
      <div class="pane"><b>Rank {rank}, step {count(step)}</b><p class="mid">{ms(Number(of.duration_ms))}, its median is {ms(usual)}. <a href={href("torch", { target: pid, all: null, step: String(step) })}>What differed, by module and frame</a>.</p></div>
      <table><thead><tr><th>Part</th><th class="num">This step</th><th class="num">Median</th><th class="num">Others</th><th class="num">Differs</th></tr></thead><tbody>{rows.map(([name, f]) => { const is = f(of), was = median(mine.map(f)); return <tr key={name}><td>{name}</td><td class="num">{ms(is)}</td><td class="num dim">{ms(was)}</td><td class="num dim">{ms(median(others.map(f)))}</td><td class={`num ${is - was > usual * 0.1 ? "warn strong" : "dim"}`}>{is >= was ? "+" : "−"}{ms(Math.abs(is - was))}</td></tr>; })}</tbody></table>
    </>
  );
}

export function Ranks({ chosen }: { chosen: Chosen }) {
  const { args } = useRoute(), path = with_args("/api/v1/query", { ...chosen }), steps = useLive<Row[]>(path, 3000, STEPS), by = args.get("by") ?? "own", cells = useMemo(() => arrange(steps.data ?? [], by), [steps.data, by]);
  const targets = useLive<Target[]>("/api/v1/targets", 2000), given = args.get("cell")?.split(" "), chosen_cell = given ? { step: Number(given[0]), pid: given[1] } : null;
  // Until one is chosen: the cell that is furthest above its step.
  const worst = useMemo(() => { let best: { step: number; pid: string } | null = null, most = 0; for (const [key, r] of cells.at) { const step = Number(r.step), d = measure(r, by) - cells.usual.get(step)!; if (d > most) { most = d; best = { step, pid: key.split(" ")[0] }; } } return best; }, [cells, by]);
  const picked = chosen_cell ?? worst, to = (step: number, pid: string) => put({ cell: `${step} ${pid}` });
  const move = (dx: number, dy: number) => { if (!picked) return; const s = cells.steps[Math.max(0, Math.min(cells.steps.length - 1, cells.steps.indexOf(picked.step) + dx))], r = cells.ranks[Math.max(0, Math.min(cells.ranks.length - 1, cells.ranks.findIndex((q) => q.pid === picked.pid) + dy))]; if (r) to(s, r.pid); };
  useKeys({ ArrowLeft: () => move(-1, 0), ArrowRight: () => move(1, 0), ArrowUp: () => move(0, -1), ArrowDown: () => move(0, 1), Enter: () => { if (picked) go("torch", { target: picked.pid, all: null, step: String(picked.step) }); }, Escape: () => put({ cell: null }) });
  const worst_rank = worst && cells.ranks.find((r) => r.pid === worst.pid), late = worst && cells.at.get(`${worst.pid} ${worst.step}`);
  const foot = <Foot command={command("-t", chosen.target, "--all", "torch")} curl={curl(path, STEPS)} />;
  if (!steps.data) return <>{steps.error ? <Blank title="Its steps cannot be read."><p>{why(steps.error)}</p></Blank> : <Loading what="Reading the steps of all ranks." />}{foot}</>;
  if (!cells.ranks.length) return <><div class="body"><Blank title="No torch rows of these processes."><p>The torch probe is off, or nothing has stepped since. From the next step on, for all of them:</p><Command text={command("-t", chosen.target, "--all", "config", "probing.torch.profiling=on")} /></Blank></div>{foot}</>;
  return (
    <>
      <Trouble of={steps} />
      <div class="body">
        <div class="verdict"><span class={`mark${worst ? " odd" : ""}`} /><div><h1>{worst && late ? `Rank ${worst_rank!.rank} was furthest behind: ${ms(measure(late, by))} of ${MEASURES[by]} in step ${count(worst.step)}, where the median is ${ms(cells.usual.get(worst.step)!)}.` : "No rank is behind the others."}</h1><p>{some(cells.ranks.length, "rank")}, the last {some(cells.steps.length, "step")}. Chosen with the mouse or the arrow keys; Enter opens the step.</p></div></div>
        <div class="split">
          <div>
            <div class="sec"><h2>Step by rank</h2><span class="say">against the median of the step, by</span><select class="ctl" aria-label="Measured by" value={by} onChange={(e) => put({ by: e.currentTarget.value })}>{Object.entries(MEASURES).map(([k, name]) => <option key={k} value={k}>{name}</option>)}</select><span class="gap" /><Legend of={[{ name: "faster", token: SCALE[0] }, { name: "usual", token: SCALE[2] }, { name: "slower", token: SCALE[4] }, { name: "twice", token: SCALE[5] }]} /><a href={href("sql", { q: STEPS })}>As SQL</a></div>
            <HeatMap cells={cells} by={by} picked={picked} pick={to} />
            <div class="sec"><h2>Ranks</h2></div>
            <table><thead><tr><th>Rank</th><th class="num">Median step</th>{PARTS.map(([k, name]) => <th key={k} class="num opt">{name}</th>)}<th class="num">Slower in</th></tr></thead><tbody>{cells.ranks.map((r) => {
              const mine = [...cells.at.values()].filter((q) => String(q.target_pid) === r.pid), slow = mine.filter((q) => level(measure(q, by), cells.usual.get(Number(q.step))!) >= 4).length;
              return <tr key={r.pid} class={slow > mine.length / 4 ? "odd" : ""}><td><a href={href("torch", { target: r.pid, all: null })}>rank {r.rank}</a></td><td class="num">{ms(median(mine.map((q) => Number(q.duration_ms))))}</td>{PARTS.map(([k]) => <td key={k} class="num opt">{ms(median(mine.map((q) => Number(q[k]))))}</td>)}<td class={`num ${slow ? "warn" : "dim"}`}>{slow} of {mine.length}</td></tr>;
            })}</tbody></table>
          </div>
          <aside>
            {picked && <WhyStep cells={cells} step={picked.step} pid={picked.pid} />}
            <Placement chosen={chosen} pick={(rank) => { const t = targets.data?.find((q) => String(q.rank) === rank && cells.ranks.some((r) => r.pid === String(q.pid))); if (t) go("torch", { target: String(t.pid), all: null }); }} />
          </aside>
        </div>
      </div>
      {foot}
    </>
  );
}
