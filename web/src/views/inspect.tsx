// Inspect: one object, the variables of a frame, one variable over all ranks, modules and tensors that live.
import { useEffect, useState } from "preact/hooks";
import { ApiError, command, curl, json, with_args, type Process, type Row, type Target, type Unread } from "../api";
import { bytes, count, some } from "../format";
import { Grid, type Table } from "../grid";
import { useLive } from "../live";
import { NeedTarget, NoAnswer, useTarget } from "../pick";
import { go, href, put, useRanks, useRoute, type Chosen } from "../route";
import { main_thread } from "../states";
import { Blank, Command, Foot, Loading, Seg, Trouble, why } from "../ui";
import { NoRows, useReadOnly } from "./record";

const TABS = { object: "Object", frame: "Frame", ranks: "Over ranks", modules: "Modules", tensors: "Tensors" };
type Tab = keyof typeof TABS;
interface Numbers { elements: number; all: boolean; nan: number; infinite: number; zero: number; min: number | null; max: number | null; mean: number | null; std: number | null; histogram: number[] }

// An expression is code. What stands in the address was perhaps put there by somebody else: it runs once it was asked for here.
const wanted = new Set<string>();

function Look({ at, children }: { at: string; children: string }) {
  return <a href={href("inspect", { x: at })} onClick={() => wanted.add(at)}>{children}</a>;
}

const short = (v: number | null) => (v === null ? "none" : String(Number(v.toPrecision(5))));

function Histogram({ of }: { of: Numbers }) {
  const most = Math.max(1, ...of.histogram), low = of.min ?? 0, step = ((of.max ?? 0) - low) / of.histogram.length;
  return (
    <>
      <div class="facts"><span><b>{short(of.min)}</b> least</span><span><b>{short(of.max)}</b> most</span><span><b>{short(of.mean)}</b> mean</span><span><b>{short(of.std)}</b> deviation</span>
        <span class={of.nan ? "warn" : ""}><b>{count(of.nan)}</b> NaN</span><span class={of.infinite ? "warn" : ""}><b>{count(of.infinite)}</b> infinite</span><span><b>{count(of.zero)}</b> zero</span></div>
      {!of.all && <p class="pane dim">Of the first {count(of.elements)} elements: the rest could not be read in time.</p>}
      {step > 0 && <table class="histogram"><thead><tr><th class="num">From</th><th class="num">Elements</th><th><span class="sr">More</span></th></tr></thead><tbody>
        {of.histogram.map((n, i) => <tr key={i}><td class="num mono">{short(low + i * step)}</td><td class="num">{count(n)}</td><td class="cut"><span class="meter" style={{ width: `${(100 * n) / most}%` }} /></td></tr>)}
      </tbody></table>}
    </>
  );
}

const text_of = (v: unknown) => (v === null || v === undefined ? "" : typeof v === "object" ? JSON.stringify(v) : typeof v === "number" ? count(v) : String(v));

// What the agent tells is a flat object: texts and numbers are facts, lists of rows are tables.
function Told({ of, expression }: { of: Row; expression: string }) {
  const { numbers, ...rest } = of, facts = Object.entries(rest).filter(([, v]) => !Array.isArray(v) || v.every((i) => typeof i !== "object")), tables = Object.entries(rest).filter(([, v]) => Array.isArray(v) && v.some((i) => typeof i === "object")) as [string, Row[]][];
  const [path, at] = /^(.*?)(@[\w.<>]+)?$/.exec(expression)!.slice(1);
  return (
    <>
      <table><tbody>{facts.map(([name, v]) => <tr key={name}><th scope="row">{name.replaceAll("_", " ")}</th><td class="mono wrap">{/bytes$/.test(name) ? bytes(Number(v)) : Array.isArray(v) ? v.join(" x ") || "scalar" : text_of(v)}</td></tr>)}</tbody></table>
      {numbers ? <><div class="sec"><h2>Numbers</h2><span class="say">read from outside; the process computes nothing for it</span></div><Histogram of={numbers as Numbers} /></> : null}
      {tables.map(([name, rows]) => (
        <div key={name}>
          <div class="sec"><h2>{name.replaceAll("_", " ")}</h2><span class="say">{count(rows.length)}</span></div>
          <table><thead><tr>{Object.keys(rows[0]).map((c) => <th key={c}>{c}</th>)}</tr></thead><tbody>{rows.map((r, i) => (
            <tr key={i}>{Object.entries(r).map(([c, v]) => <td key={c} class="mono wrap">{c === "name" && typeof v === "string" && /^[\w.]+$/.test(v) && (name === "fields" || name === "tensors")
              ? <Look at={`${path}${v.split(".").map((p) => (/^\d+$/.test(p) ? `[${p}]` : `.${p}`)).join("")}${at ?? ""}`}>{v}</Look> : text_of(v)}</td>)}</tr>))}</tbody></table>
        </div>
      ))}
    </>
  );
}

function OneObject({ target }: { target: string }) {
  const { args } = useRoute(), asked = args.get("x") ?? "", [typed, type] = useState(asked), [state, set] = useState<{ of: string; told?: Row; error?: ApiError; busy: boolean }>({ of: "", busy: false }), fixed = useReadOnly(), [round, again] = useState(0);
  const path = `/api/v1/targets/${encodeURIComponent(target)}/inspect`;
  useEffect(() => type(asked), [asked]);
  useEffect(() => {
    if (!asked || fixed || !wanted.has(asked)) return;
    let gone = false;
    set({ of: asked, busy: true });
    json<Row>(path, { body: asked }).then((told) => { if (!gone) set({ of: asked, told, busy: false }); }, (error) => { if (!gone) set({ of: asked, error, busy: false }); });
    return () => { gone = true; };
  }, [asked, path, fixed, round]);
  return (
    <>
      <form class="bar" onSubmit={(e) => { e.preventDefault(); wanted.add(typed); if (typed === asked) again(round + 1); else go("inspect", { tab: null, x: typed }); }}>
        <input class="ctl mono grow" data-search disabled={fixed} aria-label="Expression" placeholder="model.layers[0].weight, or loss@train ( / )" value={typed} onInput={(e) => type(e.currentTarget.value)} />
        <button class="ctl main" disabled={fixed || !typed.trim()} title={fixed ? "The service only reads: --read-only" : undefined}>Inspect</button>
      </form>
      {fixed ? <Blank title="This service only reads."><p>An expression is code that runs in the process. The variables of frames are read from outside: <a href={href("inspect", { tab: "frame" })}>Frame</a>, <a href={href("inspect", { tab: "ranks" })}>Over ranks</a>.</p></Blank>
        : !asked ? <Blank title="Which object?"><p>A name of the program (<code>model</code>), a path from it, or a variable of a function that runs now (<code>loss@train</code>). Tensors show shape, statistics and a histogram; modules their parameters and times; anything its fields. The variables of the running frames are <a href={href("inspect", { tab: "frame" })}>here</a>.</p></Blank>
        : !wanted.has(asked) ? <p class="pane">This link asks for <code>{asked}</code> of the process. An expression is code that runs there: Inspect runs it.</p> : state.busy ? <Loading what={`Looking at ${asked}.`} /> : state.error ? <pre class="pane bad pre">{why(state.error)}</pre> : state.told ? <Told of={state.told} expression={state.of} /> : null}
    </>
  );
}

function Frames({ chosen }: { chosen: Chosen }) {
  const { args } = useRoute(), stacks = useLive<Process[]>(with_args("/api/v1/stacks", { target: chosen.target, locals: true }), 3000);
  if (!stacks.data) return stacks.error ? <NoAnswer error={stacks.error} title="Its frames cannot be read." target={chosen.target} /> : <Loading what="Reading its frames." />;
  const threads = stacks.data.flatMap((p) => p.threads).filter((t) => t.frames?.length), main = stacks.data[0] && main_thread(stacks.data[0]);
  const thread = threads.find((t) => String(t.tid) === args.get("tid")) ?? (main?.frames?.length ? main : threads[0]);
  if (!thread) return <Blank title="No thread is in Python code now." />;
  const own = thread.frames!.findIndex((f) => f.own), at = args.has("depth") ? Number(args.get("depth")) : Math.max(0, own), frame = thread.frames![at] ?? thread.frames![0], rows = Object.entries(frame.locals ?? {});
  return (
    <>
      <Trouble of={stacks} />
      <div class="bar">
        <select class="ctl" aria-label="Thread" value={String(thread.tid)} onChange={(e) => put({ tid: e.currentTarget.value, depth: null })}>{threads.map((t) => <option key={t.tid} value={String(t.tid)}>{t.name} ({t.tid})</option>)}</select>
        <select class="ctl" aria-label="Frame" data-search value={String(at)} onChange={(e) => put({ depth: e.currentTarget.value })}>{thread.frames!.map((f, i) => <option key={i} value={String(i)}>{f.function}, line {f.line ?? "?"}</option>)}</select>
        <span class="gap" /><span class="dim mono cut" title={frame.file}>{frame.file}:{frame.line ?? "?"}</span>
      </div>
      {!rows.length ? <p class="pane dim">The frame has no variables.</p> : (
        <table><thead><tr><th>Variable</th><th>Value</th><th class="opt"><span class="sr">More</span></th></tr></thead><tbody>{rows.map(([name, value]) => (
          <tr key={name}><td class="mono"><Look at={`${name}@${frame.name}`}>{name}</Look></td><td class="mono wrap">{value}</td><td class="opt"><a href={href("inspect", { tab: "ranks", name })}>over ranks</a></td></tr>))}</tbody></table>
      )}
    </>
  );
}

interface Held { label: string; pid: number; value: string | null; where: string; within?: string; error?: string }

// The innermost frame that has it: the program's own first, of the main thread first.
function held_by(p: Process | Unread, name: string): Held {
  if (p.error !== undefined) return { label: p.label, pid: p.pid, value: null, where: "", error: p.error };
  const main = main_thread(p), threads = [main, ...p.threads.filter((t) => t !== main)];
  for (const own of [true, false]) for (const t of threads) for (const f of t?.frames ?? []) {
    if (f.own === own && f.locals && Object.hasOwn(f.locals, name)) return { label: p.label, pid: p.pid, value: f.locals[name], within: f.name, where: `${f.function}, line ${f.line ?? "?"}` };
  }
  return { label: p.label, pid: p.pid, value: null, where: "" };
}

// What is read from outside of a tensor or an object is its kind, not what is in it.
const opaque = (v: string | null) => v !== null && (/^\w*(tensor|array|Parameter)\(/i.test(v) || /0x[0-9a-f]{6,}/.test(v) || /(\.\.\.|…)\W*$/.test(v));

// Two objects that lie in different places may still be equal.
const plain = (v: string | null) => v?.replace(/, data=0x[0-9a-f]+|0x[0-9a-f]{6,}/g, "") ?? null;

// What is in the tensors of that name, asked of each process.
function useNumbers(rows: Held[], name: string) {
  const [read, set] = useState<Map<number, string>>(), fixed = useReadOnly();
  useEffect(() => set(undefined), [name]);
  const ask_all = async () => {
    const found = new Map<number, string>();
    for (const r of rows) if (r.within) {
      try {
        const told = await json<Row>(`/api/v1/targets/${r.pid}/inspect`, { body: `${name}@${r.within}` }), n = told.numbers as Numbers | undefined;
        found.set(r.pid, !n ? "not read" : n.elements === 1 ? short(n.mean) : `mean ${short(n.mean)}, deviation ${short(n.std)}${n.nan ? `, ${count(n.nan)} NaN` : ""}`);
      } catch (e) { found.set(r.pid, why(e as ApiError)); }
    }
    set(found);
  };
  return { read, can: !fixed && rows.some((r) => /^\w*(tensor|array|Parameter)\(/i.test(r.value ?? "")), ask_all };
}

// How a variable compares over processes: of those whose value was read, and no more.
function compare_words(name: string, all: number, have: number, read: number, odd: Held[], all_differ: boolean): string {
  const of = read === all ? `all ${all}` : `the ${read} of ${all} that were read`;
  if (!have) return `No function that runs has ${name}.`;
  if (!read) return `${name} was not read: only its kind is known.`;
  if (odd.length) return `${name} differs in ${odd.length > 6 ? some(odd.length, "process", "processes") : odd.map((r) => r.label).join(", ")}.`;
  if (all_differ) return `${name} is different in each of ${of}.`;
  return read === 1 ? `${name} was read from one process.` : `${name} is the same in ${of}.`;
}

function OverRanks({ chosen, target }: { chosen: Chosen; target: Target | undefined }) {
  const { args } = useRoute(), name = args.get("name") ?? "", [typed, type] = useState(name), of = chosen.all ? chosen : target ? { target: target.command, all: true } : chosen;
  const stacks = useLive<(Process | Unread)[]>(with_args("/api/v1/stacks", { ...of, locals: true }), 2000);
  useEffect(() => type(name), [name]);
  const known = [...new Set((stacks.data ?? []).flatMap((p) => (p.threads ? main_thread(p)?.frames : [])?.filter((f) => f.own).flatMap((f) => Object.keys(f.locals ?? {})) ?? []))].sort();
  const wanted = useRanks(), rows = name ? (stacks.data ?? []).filter((p) => !args.get("ranks") || wanted(/^rank (\d+)$/.exec(p.label)?.[1])).map((p) => held_by(p, name)) : [], tally = new Map<string | null, number>();
  const numbers = useNumbers(rows, name), value = (r: Held) => numbers.read?.get(r.pid) ?? plain(r.value);
  // Only what was read is compared: two tensors of one shape are not the same for that.
  const was_read = (r: Held) => !r.error && (numbers.read?.has(r.pid) ? numbers.read.get(r.pid) !== "not read" : !opaque(r.value)), compared = rows.filter(was_read);
  for (const r of compared) tally.set(value(r), (tally.get(value(r)) ?? 0) + 1);
  const [usual] = [...tally].sort((a, b) => b[1] - a[1])[0] ?? [null], all_differ = tally.size === compared.length && compared.length > 2, differs = (r: Held) => was_read(r) && !all_differ && value(r) !== usual, odd = rows.filter(differs);
  const have = rows.filter((r) => r.value !== null).length, title = compare_words(name, rows.length, have, compared.length, odd, all_differ), against = (r: Held) => (r.error ? "?" : !was_read(r) ? "not read" : differs(r) ? <b>differs</b> : <span class="dim">{all_differ ? "" : compared.length > 1 ? "same" : ""}</span>);
  return (
    <>
      <Trouble of={stacks.data ? stacks : { error: undefined, at: 0 }} />
      <form class="bar" onSubmit={(e) => { e.preventDefault(); put({ name: typed.trim() }); }}>
        <input class="ctl mono grow" data-search list="names" aria-label="Variable" placeholder="A variable: lr, loss, step ( / )" value={typed} onInput={(e) => type(e.currentTarget.value)} /><datalist id="names">{known.map((n) => <option key={n} value={n} />)}</datalist>
        <button class="ctl main">Show</button>
      </form>
      {!stacks.data ? (stacks.error ? <NoAnswer error={stacks.error} title="The variables cannot be read." target={of.target} /> : <Loading what="Reading variables of all processes." />)
        : !name ? <Blank title="Which variable?"><p>Of the functions that run now, in {some(stacks.data.length, "process", "processes")}: {known.slice(0, 60).map((n, i) => <span key={n}>{i ? ", " : ""}<a class="mono" href={href("inspect", { tab: "ranks", name: n })}>{n}</a></span>)}</p><p>They are read from outside: no code runs, and a process that hangs answers too.</p></Blank> : (
          <>
            <div class="verdict"><span class={`mark${odd.length ? " odd" : ""}`} /><div><h1>{title}</h1><p>{rows.some((r) => r.error) ? `${some(rows.filter((r) => r.error).length, "process", "processes")} of ${rows.length} gave no answer.` : `Read from ${some(rows.length, "process", "processes")}, each in its own moment.`}</p></div><span class="gap" />{numbers.can && <div class="acts"><button class="ctl main" onClick={() => void numbers.ask_all()}>Read the numbers</button></div>}</div>
            <table><thead><tr><th>Process</th><th>Value</th><th>Against the rest</th><th class="opt">Of</th></tr></thead><tbody>{[...rows].sort((a, b) => Number(differs(b)) - Number(differs(a))).map((r) => (
              <tr key={r.pid} class={differs(r) ? "odd" : ""}><td class={differs(r) ? "strong" : ""}><a href={href("inspect", { target: String(r.pid), all: null, tab: "frame" })}>{r.label}</a></td><td class="mono wrap">{r.error ? <span class="bad">{r.error}</span> : numbers.read?.get(r.pid) ?? r.value ?? <span class="dim">not there</span>}</td><td>{against(r)}</td><td class="opt mid mono">{r.where}</td></tr>))}</tbody></table>
          </>
        )}
    </>
  );
}

const FRAMES = "SELECT thread, tid, depth, func, file, lineno, locals FROM python.backtrace ORDER BY tid, depth";
const MODULES = "SELECT name, class, parameters, total_parameters, trainable, bytes, device, dtype, training, hooks FROM python.modules ORDER BY total_parameters DESC LIMIT 5000";
const TENSORS = "SELECT name, class, shape, dtype, device, bytes, requires_grad, is_view FROM python.tensors ORDER BY bytes DESC LIMIT 5000";

function Listed({ target, sql, what, probed, dead }: { target: string; sql: string; what: string; probed: boolean; dead: boolean }) {
  // Each look takes the GIL in slices: once, and again when asked.
  const rows = useLive<Row[]>(probed && !dead ? with_args("/api/v1/query", { target }) : null, Infinity, sql);
  if (!probed || dead) return <NoRows what={`No ${what} can be listed.`} target={target} probed={probed} dead={dead} done={() => rows.again()} />;
  if (!rows.data) return rows.error ? <pre class="pane bad pre">{why(rows.error)}</pre> : <Loading what={`Looking for ${what} among the objects of the process.`} />;
  const table: Table = { columns: Object.keys(rows.data[0] ?? {}), rows: rows.data.map((r) => Object.values(r)) };
  return (
    <>
      <div class="sec"><h2>{count(rows.data.length)} {what}</h2><span class="say">{bytes(rows.data.reduce((a, r) => a + (r.is_view ? 0 : Number(r.bytes ?? 0)), 0))} in all</span><span class="gap" /><button class="ctl" onClick={() => rows.again()}>Look again</button><a href={href("sql", { q: sql })}>As SQL</a></div>
      {table.columns.length ? <Grid table={table} height={`min(${table.rows.length * 22 + 40}px, calc(100vh - 210px))`} /> : <Blank title={`The process has no ${what} of torch.`}><p>They are found among the objects that Python's collector knows, once torch is imported.</p></Blank>}
    </>
  );
}

export default function Inspect() {
  const about = useTarget(), { args } = useRoute(), chosen = about?.chosen, tab = (args.get("tab") ?? (chosen?.all ? "ranks" : "object")) as Tab;
  if (!about || !chosen) return <NeedTarget what="Inspect: objects, variables, modules and tensors of a process." />;
  const one = chosen.all ? null : chosen.target, id = encodeURIComponent(chosen.target), probed = about.probed, x = args.get("x") ?? "loss@train";
  const sql = tab === "modules" ? MODULES : TENSORS, of = chosen.all || !about.target ? chosen.target : about.target.command;
  const foot = tab === "object" ? <Foot command={command("-t", chosen.target, "inspect", x)} curl={curl(`/api/v1/targets/${id}/inspect`, x)} sql={FRAMES} />
    : tab === "frame" ? <Foot command={command("-t", chosen.target, "backtrace", "--locals")} curl={curl(`/api/v1/targets/${id}/stacks?locals=true`)} sql={FRAMES} />
    : tab === "ranks" ? <Foot command={command("-t", of, "--all", "backtrace", "--locals")} curl={curl(with_args("/api/v1/stacks", { target: of, all: true, locals: true }))} sql={FRAMES} />
    : <Foot command={command("-t", chosen.target, "query", sql)} curl={curl(with_args("/api/v1/query", { target: chosen.target }), sql)} sql={sql} />;
  return (
    <>
      <div class="body">
        <div class="bar"><Seg value={tab} of={TABS} on={(v) => put({ tab: v })} label="What to look at" /></div>
        {about.dead ? <Blank title="It has ended: it has no objects any more."><p>What ended it, where that was kept: <a href={href("sql", { q: "SELECT thread, depth, function, file, line, locals FROM python.crash_frames ORDER BY id, depth" })}>its last frames with their variables</a>.</p></Blank>
          : tab === "ranks" ? <OverRanks chosen={chosen} target={about.target} />
          : !one ? <NeedTarget what={`${TABS[tab]}: of which process?`} />
          : tab === "object" ? (!probed ? <NoRows what="No agent is in this process." target={one} probed={false} dead={false} done={() => {}} /> : about.target ? <OneObject target={one} /> : <Loading what="Looking for the process." />)
          : tab === "frame" ? <Frames chosen={chosen} />
          : <Listed target={one} sql={sql} what={tab} probed={probed} dead={about.dead} />}
        {!about.dead && !one && tab !== "ranks" && <Command text={command("-t", chosen.target, "--all", "backtrace", "--locals")} />}
      </div>
      {foot}
    </>
  );
}
