// Flame: where the time goes, sampled from outside. The canvas has only what is in sight; the table beside it has the same figures.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, command, curl, text, with_args } from "../api";
import { at_point, draw, parse_folded, ROW, tops, type Flame } from "../flame";
import { count, some } from "../format";
import { useKeys } from "../keys";
import { NeedTarget, NoAnswer, useTarget } from "../pick";
import { Legend } from "../plot-parts";
import { href, put, useRoute } from "../route";
import { colour, repaint, useCell } from "../store";
import { Foot, Loading, Seg, Switch } from "../ui";

const TOKENS: Record<string, string> = { all: "--fl-all", wait: "--fl-wait", own0: "--fl-own", own1: "--fl-own-2", lib0: "--fl-lib", lib1: "--fl-lib-2", nat0: "--fl-nat", nat1: "--fl-nat-2", text: "--fl-text", hit: "--fl-hit" };
const WAYS = { wall: "Wall", cpu: "On CPU", gil: "GIL" };

function Canvas({ flame, find, root, zoom, picked, pick, told }: { flame: Flame; find: string; root: number; zoom(i: number): void; picked: number; pick(i: number): void; told(share: number): void }) {
  const box = useRef<HTMLDivElement>(null), canvas = useRef<HTMLCanvasElement>(null), paint = useCell(repaint), [size, set] = useState({ width: 0, height: 0, top: 0 });
  const colours = useMemo(() => Object.fromEntries(Object.entries(TOKENS).map(([k, t]) => [k, colour(t)])), [paint]);
  useEffect(() => {
    const look = () => set({ width: box.current!.clientWidth, height: box.current!.clientHeight, top: box.current!.scrollTop });
    const watch = new ResizeObserver(look);
    watch.observe(box.current!);
    look();
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    const c = canvas.current!, ratio = devicePixelRatio, x = c.getContext("2d")!;
    c.width = size.width * ratio;
    c.height = size.height * ratio;
    x.scale(ratio, ratio);
    if (size.width) told(draw(x, flame, size.width, size.height, { colours, root, picked, find, top: size.top }).share);
  }, [flame, size, colours, root, picked, find]);
  const hit = (e: MouseEvent) => { const r = canvas.current!.getBoundingClientRect(); return at_point(flame, root, size.width, e.clientX - r.left, e.clientY - r.top + size.top); };
  return (
    <div class="stage" ref={box} onScroll={(e) => set((s) => ({ ...s, top: (e.target as HTMLElement).scrollTop }))} style={{ height: `min(${(flame.deepest + 1) * ROW + 2}px, calc(100vh - 250px))` }}>
      <canvas ref={canvas} role="img" style={{ height: `${size.height}px` }} aria-label={`Flame graph of ${count(flame.total)} samples; the table has its figures`} onMouseMove={(e) => { const i = hit(e); if (i >= 0 && i !== picked) pick(i); }} onClick={(e) => { const i = hit(e); if (i >= 0) zoom(i); }} />
      <div style={{ height: `${Math.max(0, (flame.deepest + 1) * ROW - size.height)}px` }} />
    </div>
  );
}

export default function FlameView() {
  const about = useTarget(), { args } = useRoute(), chosen = about?.chosen, [state, set] = useState<{ flame?: Flame; error?: ApiError; busy: boolean }>({ busy: false }), [round, again] = useState(0);
  const way = (args.get("way") ?? "wall") as keyof typeof WAYS, secs = args.get("seconds") ?? "3", native = args.get("native") === "1", idle = args.get("idle") === "1", find = (args.get("find") ?? "").toLowerCase();
  const [root, zoom] = useState(0), [picked, pick] = useState(0), [share, told] = useState(0);
  const path = chosen ? with_args("/flamegraph", { target: chosen.target, all: chosen.all, seconds: secs, native, idle, cpu: way === "cpu", gil: way === "gil", format: "folded" }) : null;
  useEffect(() => {
    if (!path || about?.dead) return;
    const stop = new AbortController();
    set((s) => ({ flame: s.flame, busy: true }));
    text(path, { signal: stop.signal }).then((t) => { zoom(0); pick(0); set({ flame: parse_folded(t), busy: false }); }, (e) => { if (!stop.signal.aborted) set({ error: e, busy: false }); });
    return () => stop.abort();
  }, [path, round, about?.dead]);
  const f = state.flame, list = useMemo(() => f && tops(f), [f]);
  const step = (to: (i: number) => number) => { if (f) { const i = to(picked); if (i >= 0 && i < f.n) pick(i); } };
  useKeys({
    r: () => again(round + 1), Escape: () => { if (find) put({ find: null }); else if (f && root) zoom(Math.max(0, f.parent[root])); }, Enter: () => zoom(picked),
    ArrowDown: () => step((i) => (f!.end[i] > i + 1 ? i + 1 : i)), ArrowUp: () => step((i) => f!.parent[i]),
    ArrowRight: () => step((i) => (f!.end[i] < f!.n && f!.parent[f!.end[i]] === f!.parent[i] ? f!.end[i] : i)),
    ArrowLeft: () => step((i) => { let before = i; for (let j = f!.parent[i] + 1; j < i; j = f!.end[j]) before = j; return before; }),
  });
  if (!about || !chosen) return <NeedTarget what="Flame graph: where the time of a process goes." />;
  const foot = <Foot command={command("-t", chosen.target, chosen.all && "--all", "flamegraph", "--duration", `${secs}s`, native && "--native", idle && "--idle", way === "cpu" && "--cpu", way === "gil" && "--gil", "-o", "flame.svg")} curl={`${curl(path!.replace("format=folded", "format=svg"))} -o flame.svg`} />;
  if (about.dead) return <><div class="body"><NoAnswer error={new ApiError(422, "", "the process has ended")} title="It has ended: it cannot be sampled." target={chosen.target}><p>What was recorded of it: <a href={href("sql", { q: "SELECT * FROM python.samples" })}>python.samples</a>.</p></NoAnswer></div>{foot}</>;
  const whole = f?.weight[0] ?? 1, name = f && f.n > picked ? f.names[f.name[picked]] : "";
  return (
    <>
      <div class="bar">
        <Seg value={way} of={WAYS} on={(v) => put({ way: v === "wall" ? null : v })} label="What counts" />
        <select class="ctl" aria-label="How long" value={secs} onChange={(e) => put({ seconds: e.currentTarget.value })}>{["1", "3", "10", "30", "60"].map((s) => <option key={s} value={s}>{s} s</option>)}</select>
        <Switch on={native} set={(on) => put({ native: on ? "1" : null })}>Native frames</Switch>
        <Switch on={idle} set={(on) => put({ idle: on ? "1" : null })}>Idle threads</Switch>
        <button class="ctl main" disabled={state.busy} title="r" onClick={() => again(round + 1)}>{state.busy ? "Sampling" : "Sample again"}</button>
        <span class="gap" /><input class="ctl" data-search placeholder="Search frames ( / )" aria-label="Search frames" value={args.get("find") ?? ""} onInput={(e) => put({ find: e.currentTarget.value })} />
      </div>
      {state.busy && !f && <Loading what={`Sampling for ${secs} s.`} />}
      {state.error && <NoAnswer error={state.error} title="It could not be sampled." target={chosen.target} />}
      {f && !state.error && (f.total === 0 ? <p class="pane">No sample: no thread ran in these {secs} s. Idle threads shows those that wait.</p> : (
        <>
          <div class="sec">
            <b>{some(f.total, "sample")}</b><span class="say">of {secs} s{find ? `; ${(100 * share).toFixed(1)}% fit the search` : ""}{root ? <>; <button class="link" onClick={() => zoom(0)}>zoom out</button></> : ""}</span><span class="gap" />
            <Legend of={[{ name: "Python", token: "--fl-own" }, { name: "Python package", token: "--fl-lib" }, { name: "native", token: "--fl-nat" }, { name: "waiting", token: "--fl-wait" }]} />
          </div>
          <div class="body split">
            <div>
              <Canvas flame={f} find={find} root={root} zoom={zoom} picked={picked} pick={pick} told={told} />
              <div class="pane" role="status"><b class="mono wrap">{name}</b> <span class="mid">{((100 * f.weight[picked]) / whole).toFixed(1)}% total, {((100 * f.self[picked]) / whole).toFixed(1)}% self, {some(f.weight[picked], "sample")}</span> <span class="dim opt">Enter zooms, Esc goes back, arrows walk</span></div>
            </div>
            <aside><table><thead><tr><th>Function</th><th class="num">Self %</th><th class="num">Total %</th></tr></thead><tbody>{list!.slice(0, 60).map((t) => <tr key={t.name} class="go" onClick={() => put({ find: t.name })}><td class="cut mono" title={t.name}>{t.name}</td><td class="num">{((100 * t.self) / whole).toFixed(1)}</td><td class="num dim">{((100 * t.total) / whole).toFixed(1)}</td></tr>)}</tbody></table></aside>
          </div>
        </>
      ))}
      {foot}
    </>
  );
}
