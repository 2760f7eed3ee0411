// Flame: where the time goes, sampled now or from a recording; one, or two against each other. The canvas has only
// what is in sight; the table beside it has the same figures.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, command, curl, text, with_args } from "../api";
import { diff_folded, flame_words, hits_of, parse_folded, share_of, tops, type Flame, type Order } from "../flame";
import { clock, seconds, some } from "../format";
import { useKeys } from "../keys";
import { NeedTarget, NoAnswer, useTarget } from "../pick";
import { Legend } from "../plot-parts";
import { profile_sql, recorded_folded, type Way } from "../recorded";
import { href, put, range_text, useRoute, type Chosen, type Range } from "../route";
import { paused, useCell } from "../store";
import { Strip, Times } from "../strip";
import { Blank, Command, Foot, Loading, Seg, Switch } from "../ui";
import { Canvas } from "./flame-canvas";
import { Compare, useSides, type Side } from "./flame-sides";

const WAYS: Record<Way, string> = { wall: "Wall", cpu: "On CPU", off: "Off CPU", gil: "GIL" };
const LAYOUTS = {
  "heavy icicle": "Widest first, downwards",
  "heavy flame": "Widest first, upwards",
  "name icicle": "By name, downwards",
  "name flame": "By name, upwards",
};
const KEEP = 20; // rounds of live sampling that are summed up

const percent = (v: number) => (100 * v).toFixed(1),
  signed = (v: number) => `${v > 0 ? "+" : v < 0 ? "−" : ""}${Math.abs(100 * v).toFixed(1)}`;

// The same figures as text, of what fits the search. It is made once a graph: a walk through the boxes does not touch
// it.
function useTable(f: Flame | undefined, find: string) {
  return useMemo(
    () =>
      f && (
        <table>
          <thead>
            <tr>
              <th>Function</th>
              {f.diff ? (
                <>
                  <th class="num">A %</th>
                  <th class="num">B %</th>
                  <th class="num">Change</th>
                </>
              ) : (
                <>
                  <th class="num">Self %</th>
                  <th class="num">Total %</th>
                </>
              )}
            </tr>
          </thead>
          <tbody>
            {tops(f, find ? Infinity : 60)
              .filter((t) => t.name.toLowerCase().includes(find))
              .slice(0, 60)
              .map((t) => (
                <tr key={t.name} class="go" onClick={() => put({ find: t.name })}>
                  <td class="cut mono" title={t.name}>
                    <button
                      class="link"
                      onClick={(e) => {
                        e.currentTarget.blur();
                        put({ find: t.name });
                      }}
                    >
                      {t.name}
                    </button>
                  </td>
                  {f.diff ? (
                    <>
                      <td class="num">{percent(t.a)}</td>
                      <td class="num">{percent(t.b)}</td>
                      <td class={`num ${t.b - t.a > 0.02 ? "warn strong" : "dim"}`}>{signed(t.b - t.a)}</td>
                    </>
                  ) : (
                    <>
                      <td class="num">{percent(t.self / (f.weight[0] || 1))}</td>
                      <td class="num dim">{percent(t.total / (f.weight[0] || 1))}</td>
                    </>
                  )}
                </tr>
              ))}
          </tbody>
        </table>
      ),
    [f, find],
  );
}

interface Options {
  way: Way;
  secs: string;
  native: boolean;
  idle: boolean;
}

const live_path = (of: Chosen, o: Options) =>
  with_args("/flamegraph", {
    target: of.target,
    all: of.all,
    seconds: o.secs,
    native: o.native,
    idle: o.idle || o.way === "off",
    cpu: o.way === "cpu",
    gil: o.way === "gil",
    format: "folded",
  });

async function folded_of(side: Side, o: Options, signal: AbortSignal): Promise<string> {
  if (side.recorded && side.range) return recorded_folded(side.recorded, side.range, o.way, o.idle, signal);
  const lines = await text(live_path(side.of, o), { signal });
  return o.way === "off"
    ? lines
        .split("\n")
        .filter((line) => /(^|;)\[[^;]*\] [\d.]+$/.test(line))
        .join("\n")
    : lines;
}

interface State {
  flame?: Flame;
  error?: ApiError;
  busy: boolean;
  rounds: number;
}

// Asks for one side or both; live: again and again, the last rounds summed up.
function useFlame(a: Side | null, b: Side | null, o: Options, order: Order, live: boolean, fresh: () => void) {
  const [state, set] = useState<State>({ busy: false, rounds: 0 }),
    [round, again] = useState(0),
    still = useCell(paused),
    kept = useRef<{ key: string; a: string[]; b: string[] }>({ key: "", a: [], b: [] });
  const side = (s: Side | null) =>
    s && `${s.of.target} ${s.of.all} ${s.range ? range_text(s.range) : ""} ${s.recorded?.of.target ?? ""}`;
  const key = JSON.stringify([side(a), side(b), o]);
  const show = () => {
    const k = kept.current,
      before = k.a.join("\n");
    return b ? diff_folded(before, k.b.join("\n"), order) : parse_folded(before, order);
  };
  useEffect(() => {
    if (!a || (live && still && kept.current.key === key)) return;
    const stop = new AbortController();
    let later = 0;
    if (kept.current.key !== key) {
      kept.current = { key, a: [], b: [] };
      fresh();
    } else if (!live) kept.current = { key, a: [], b: [] };
    set((s) => ({ ...s, error: undefined, busy: true }));
    Promise.all([folded_of(a, o, stop.signal), b ? folded_of(b, o, stop.signal) : ""]).then(
      ([x, y]) => {
        const k = kept.current;
        k.a = [...k.a, x].slice(-KEEP);
        k.b = [...k.b, y].slice(-KEEP);
        if (!live) fresh();
        set({ flame: show(), busy: false, rounds: k.a.length });
        if (live && !a.range) again((n) => n + 1);
      },
      (error: ApiError) => {
        if (stop.signal.aborted) return;
        set({ error, busy: false, rounds: 0 });
        // The service is away: it comes back.
        if (live || error.status === 0) later = setTimeout(() => again((n) => n + 1), 4000);
      },
    );
    return () => {
      clearTimeout(later);
      stop.abort();
    };
  }, [key, round, live, still]);
  useEffect(() => {
    if (kept.current.a.length) {
      fresh();
      set((s) => ({ ...s, flame: show() }));
    }
  }, [order]);
  return { state, again: () => again((n) => n + 1) };
}

function DiffSay({ f, a, b }: { f: Flame; a: Side; b: Side }) {
  const [first] = tops(f, 1),
    d = first ? first.b - first.a : 0,
    name = (s: Side) => (s.range ? `${clock(s.range.from * 1000)} to ${clock(s.range.until * 1000)}` : s.name);
  return (
    <div class="note odd">
      <span>
        <b>B against A:</b>{" "}
        {!f.diff!.of_a || !f.diff!.of_b
          ? `${f.diff!.of_a ? "B" : "A"} has no sample.`
          : Math.abs(d) < 0.01
            ? "no function differs by more than a hundredth of the time."
            : `${first.name} takes ${(100 * first.b).toFixed(1)}% of the time instead of ` +
              `${(100 * first.a).toFixed(1)}%.`}{" "}
        <span class="dim">
          A is {name(a)}, B is {name(b)}.
        </span>
      </span>
    </div>
  );
}

export default function FlameView() {
  const about = useTarget(),
    { args } = useRoute(),
    chosen = about?.chosen,
    [sets, drags] = useState<"a" | "b">("a");
  const way = (args.get("way") ?? "wall") as Way,
    order = (args.get("order") ?? "heavy") as Order,
    find = (args.get("find") ?? "").toLowerCase(),
    live = args.get("live") === "1";
  const o: Options = {
    way,
    secs: args.get("seconds") ?? "3",
    native: args.get("native") === "1",
    idle: args.get("idle") === "1",
  };
  const sides = useSides(chosen, about?.target, !!about?.dead),
    { a, b, diff, from_record, mine } = sides;
  const [root, zoom] = useState(0),
    [picked, pick] = useState(0),
    up = args.get("shape") === "flame";
  const { state, again } = useFlame(a, b, o, order, live && !from_record, () => {
    zoom(0);
    pick(0);
  });
  const f = state.flame && !!state.flame.diff === !!b ? state.flame : undefined,
    hits = useMemo(() => (f ? hits_of(f, find) : null), [f, find]),
    share = useMemo(() => (f ? share_of(f, root, hits) : 0), [f, root, hits]),
    says = useMemo(() => (f && !f.diff ? flame_words(f) : ""), [f]),
    table = useTable(f, find);
  const step = (to: (i: number) => number) => {
    if (f) {
      const i = to(picked);
      if (i >= 0 && i < f.n) pick(i);
    }
  };
  const set_range = (r: Range) =>
    put(diff && sets === "b" ? { b: range_text(r) } : { a: range_text(r), range: range_text(r), from: "record" });
  useKeys({
    r: again,
    x: () => put({ diff: diff ? null : "1" }),
    Escape: () => {
      if (find) put({ find: null });
      else if (f && root) zoom(Math.max(0, f.parent[root]));
    },
    Enter: () => zoom(picked),
    [up ? "ArrowUp" : "ArrowDown"]: () => step((i) => (f!.end[i] > i + 1 ? i + 1 : i)),
    [up ? "ArrowDown" : "ArrowUp"]: () => step((i) => f!.parent[i]),
    ArrowRight: () => step((i) => (f!.end[i] < f!.n && f!.parent[f!.end[i]] === f!.parent[i] ? f!.end[i] : i)),
    ArrowLeft: () =>
      step((i) => {
        let before = i;
        for (let j = f!.parent[i] + 1; j < i; j = f!.end[j]) before = j;
        return before;
      }),
  });
  if (!about || !chosen) return <NeedTarget what="Flame graph: where the time of a process goes." />;
  const live_command = command(
    "-t",
    chosen.target,
    chosen.all && "--all",
    "flamegraph",
    "--duration",
    `${o.secs}s`,
    o.native && "--native",
    (o.idle || way === "off") && "--idle",
    way === "cpu" && "--cpu",
    way === "gil" && "--gil",
    "-o",
    "flame.svg",
  );
  const sql = a?.recorded && a.range ? profile_sql(a.recorded, a.range, way) : null;
  const foot = sql ? (
    <Foot
      command={command(
        "flamegraph",
        "--from",
        String(a!.recorded!.pid ?? chosen.target),
        "--since",
        clock(a!.range!.from * 1000),
        "--until",
        clock(a!.range!.until * 1000 + 999),
        "-o",
        "flame.svg",
      )}
      curl={curl(with_args("/api/v1/query", { ...a!.recorded!.of }), sql)}
    />
  ) : (
    <Foot
      command={live_command}
      curl={`${curl(live_path(chosen, o).replace("format=folded", "format=svg"))} -o flame.svg`}
      sql="SELECT thread, depth, func, file, lineno, state FROM python.backtrace ORDER BY tid, depth"
    />
  );
  const whole = f?.weight[0] || 1,
    name = f && f.n > picked ? f.names[f.name[picked]] : "";
  const record = command("-t", chosen.target, chosen.all && "--all", "record", "--background"),
    chosen_pid = chosen.all ? "" : /^\d+/.exec(chosen.target)?.[0];
  return (
    <>
      <div class="bar">
        {!about.dead && (
          <Seg
            value={from_record ? "record" : "now"}
            of={{ now: "Sample now", record: "Recorded" }}
            on={(v) => put(v === "now" ? { from: null, a: null, b: null } : { from: "record" })}
            label="Of when"
          />
        )}
        <Seg value={way} of={WAYS} on={(v) => put({ way: v === "wall" ? null : v })} label="What counts" />
        {!from_record && (
          <select
            class="ctl"
            aria-label="How long"
            value={o.secs}
            onChange={(e) => put({ seconds: e.currentTarget.value })}
          >
            {["1", "3", "10", "30", "60"].map((s) => (
              <option key={s} value={s}>
                {s} s
              </option>
            ))}
          </select>
        )}
        {!from_record && (
          <Switch on={o.native} set={(on) => put({ native: on ? "1" : null })}>
            Native frames
          </Switch>
        )}
        <Switch on={o.idle} set={(on) => put({ idle: on ? "1" : null })}>
          Idle threads
        </Switch>
        <Compare sides={sides} mine={chosen_pid} command={about.target?.command} />
        {!from_record && (
          <Switch on={live} set={(on) => put({ live: on ? "1" : null })}>
            Live
          </Switch>
        )}
        {!from_record && !live && (
          <button class="ctl main" disabled={state.busy} title="r" onClick={again}>
            {state.busy ? "Sampling" : "Sample"}
          </button>
        )}
        <span class="gap" />
        <input
          class="ctl"
          data-search
          placeholder="Search frames ( / )"
          aria-label="Search frames"
          value={args.get("find") ?? ""}
          onInput={(e) => put({ find: e.currentTarget.value })}
        />
      </div>
      {diff && (
        <div class="bar">
          {mine.recorded && from_record && !sides.other && (
            <Seg
              value={sets}
              of={{ a: "Drag sets A", b: "Drag sets B" }}
              on={drags}
              label="What a drag on the strip chooses"
            />
          )}
          {!sides.other && !from_record && (
            <span class="mid">
              Times of the same are compared from a recording:{" "}
              <button class="link" onClick={() => put({ from: "record" })}>
                Recorded
              </button>
            </span>
          )}
        </div>
      )}
      {from_record && mine.recorded && a?.range && (
        <>
          <Strip
            of={mine.recorded}
            marks={[
              { name: "A", range: a.range, token: "--accent" },
              ...(b?.range && !sides.other ? [{ name: "B", range: b.range, token: "--st-loader" }] : []),
            ]}
            choose={set_range}
            label={
              `What the main threads did from ${clock(mine.recorded.from * 1000)} to ` +
              `${clock(mine.recorded.until * 1000)}; a drag chooses a time`
            }
          />
          <div class="bar">
            <Times name="A" of={a.range} within={mine.recorded} set={(r) => put({ a: range_text(r) })} />
            {diff && !sides.other && (
              <Times
                name="B"
                of={b?.range ?? { from: a.range.until, until: Math.min(mine.recorded.until, a.range.until + 10) }}
                within={mine.recorded}
                set={(r) => put({ b: range_text(r) })}
              />
            )}
            <span class="gap" />
            <a href={href("sql", { q: sql ?? "" })}>As SQL</a>
          </div>
        </>
      )}
      {from_record &&
        !mine.recorded &&
        (mine.known ? (
          <Blank title="Nothing of this time is recorded.">
            <p>
              {about.dead
                ? "It was not recorded while it ran."
                : "A recording keeps the stacks, a hundred times a second, for a time that can be chosen " +
                  "later; it outlives the process."}
            </p>
            {about.dead ? (
              <p>
                <a href={href("sql", { q: "SELECT name, rows FROM probing.tables WHERE rows > 0" })}>What it left</a>.
              </p>
            ) : (
              <Command text={record} />
            )}
          </Blank>
        ) : (
          <Loading what="Looking for recordings." />
        ))}
      {state.busy && !f && a && (
        <Loading what={from_record ? "Reading what was recorded." : `Sampling for ${o.secs} s.`} />
      )}
      {state.error && <NoAnswer error={state.error} title="It could not be sampled." target={chosen.target} />}
      {diff && a && !b && (
        <p class="pane">
          {sides.other
            ? "B has no recording of its own."
            : "Choose B: a drag on the strip, its times, or another process above."}
        </p>
      )}
      {f && !state.error && f.total === 0 && (
        <p class="pane">
          No sample: no thread ran in these {from_record ? "times" : `${o.secs} s`}. Idle threads shows those that wait.
        </p>
      )}
      {f && !state.error && f.total > 0 && (
        <>
          {b && a ? (
            <DiffSay f={f} a={a} b={b} />
          ) : (
            <div class="verdict">
              <span class="mark none" />
              <div>
                <h1>{says}</h1>
              </div>
            </div>
          )}
          <div class="sec">
            {!b && <b>{some(Math.round(f.total), "sample")}</b>}
            <span class="say">
              {b
                ? "% of the time of each"
                : from_record
                  ? `of ${a?.range ? seconds(a.range.until - a.range.from) : ""}`
                  : live
                    ? `of the last ${some(state.rounds, "round")} of ${o.secs} s`
                    : `of ${o.secs} s`}
              {find ? `; ${percent(share)}% fit the search` : ""}
              {root ? (
                <>
                  ;{" "}
                  <button class="link" onClick={() => zoom(0)}>
                    zoom out
                  </button>
                </>
              ) : (
                ""
              )}
            </span>
            <span class="gap" />
            <select
              class="ctl"
              aria-label="Layout"
              value={`${order} ${up ? "flame" : "icicle"}`}
              onChange={(e) => {
                const [by, shape] = e.currentTarget.value.split(" ");
                put({ order: by === "heavy" ? null : by, shape: shape === "flame" ? shape : null });
              }}
            >
              {Object.entries(LAYOUTS).map(([value, text]) => (
                <option key={value} value={value}>
                  {text}
                </option>
              ))}
            </select>
            <Legend
              of={
                b
                  ? [
                      { name: "less in B", token: "--df-less-2" },
                      { name: "same", token: "--df-same" },
                      { name: "more in B", token: "--df-more-2" },
                    ]
                  : [
                      { name: "Python", token: "--fl-own" },
                      { name: "Python package", token: "--fl-lib" },
                      { name: "native", token: "--fl-nat" },
                      { name: "waiting", token: "--fl-wait" },
                    ]
              }
            />
          </div>
          <div class="body split">
            <div>
              <Canvas flame={f} hits={hits} root={root} up={up} zoom={zoom} picked={picked} pick={pick} />
              <div class="pane" role="status">
                <b class="mono wrap">{name}</b>{" "}
                <span class="mid">
                  {f.diff
                    ? `A ${percent(f.diff.a[picked])}%, B ${percent(f.diff.b[picked])}%, ` +
                      `${signed(f.diff.b[picked] - f.diff.a[picked])} points`
                    : `${percent(f.weight[picked] / whole)}% total, ${percent(f.self[picked] / whole)}% self, ` +
                      `${some(Math.round(f.weight[picked]), "sample")}`}
                </span>{" "}
                <span class="dim opt">Enter zooms, Esc goes back, arrows walk</span>
              </div>
            </div>
            <aside>{table}</aside>
          </div>
        </>
      )}
      {foot}
    </>
  );
}
