// Torch over all ranks of a job: each step of each rank against the median of the step, and the ranks as they are
// placed.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { command, curl, with_args, type Row, type Target } from "../api";
import { bytes, count, ms, ranges, some } from "../format";
import { Columns } from "../columns";
import { useKeys } from "../keys";
import { useLive } from "../live";
import { choose_time, Legend } from "../plot-parts";
import { go, href, put, useRanks, useRange, useRoute, type Chosen } from "../route";
import { colour, repaint, useCell } from "../store";
import { Blank, Command, Foot, Loading, Trouble, why } from "../ui";
import { Placement } from "./placement";
import { pattern_words, type Of_rank } from "../pattern";
import { median, times_of } from "../steps";
import { StepFill } from "./step-fill";
import { PARTS } from "./torch";

const steps_sql = (within: string) =>
  `SELECT rank, target_pid, step, epoch(timestamp) AS t, duration_ms, data_ms, forward_ms, backward_ms, optimizer_ms
FROM (FROM python.torch_step WHERE kind IS DISTINCT FROM 'eval')${within}
QUALIFY row_number() OVER (PARTITION BY target_pid ORDER BY step DESC) <= 160 ORDER BY step`;
const COMM = `SELECT op, group_name, rank, count(*) AS calls, avg(bytes) AS bytes, avg(duration_ms) AS ms,
count(*) FILTER (WHERE done IS NULL) AS open FROM python.comm_collective GROUP BY ALL
ORDER BY op, group_name, rank`;
const BETWEEN = `SELECT src_rank, dst_rank, count(*) AS calls, avg(bytes) AS bytes, avg(latency_ms) AS ms
FROM comm_metrics
WHERE src_rank IS NOT NULL GROUP BY ALL ORDER BY ALL LIMIT 4096`;
const MEASURES: Record<string, string> = {
  duration_ms: "step time",
  own: "time before the backward",
  data_ms: "data",
  forward_ms: "forward",
  backward_ms: "backward",
  optimizer_ms: "optimizer",
};
const SCALE = ["--df-less-2", "--df-less", "--df-same", "--df-more", "--df-more-2", "--st-loader"];

const measure = (r: Row, by: string) =>
  by === "own" ? Number(r.duration_ms) - Number(r.backward_ms) - Number(r.optimizer_ms) : Number(r[by]);
// How far from the median of its step: less, same, more.
const level = (v: number, usual: number) => {
  const r = usual > 0 ? v / usual : 1;
  return r < 0.7 ? 0 : r < 0.9 ? 1 : r < 1.1 ? 2 : r < 1.3 ? 3 : r < 2 ? 4 : 5;
};

// own: the number that the rank itself gives to a step.
interface Cells {
  ranks: { rank: string; pid: string }[];
  steps: number[];
  at: Map<string, Row>;
  usual: Map<number, number>;
}

// Each rank counts its steps from when its probe was on. Ranks that step together end their steps together: by that
// their numbers are made those of the first.
function aligned(rows: Row[]): Row[] {
  const by = new Map<string, Row[]>();
  for (const r of rows) by.set(String(r.target_pid), [...(by.get(String(r.target_pid)) ?? []), r]);
  const [first, ...others] = [...by.values()].sort((a, b) => Number(a[0].rank ?? 0) - Number(b[0].rank ?? 0)),
    end = (r: Row) => Number(r.t) + Number(r.duration_ms) / 1000;
  const moved = others.map((of) => {
    const shifts = of.slice(-40).map((r) => {
      let best = first[0];
      for (const f of first) if (Math.abs(end(f) - end(r)) < Math.abs(end(best) - end(r))) best = f;
      return Number(best.step) - Number(r.step);
    });
    const shift = median(shifts),
      sure = shifts.filter((s) => s === shift).length * 2 > shifts.length;
    return of.map((r) => ({ ...r, own: r.step, step: Number(r.step) + (sure ? shift : 0) }));
  });
  return first ? [...first.map((r) => ({ ...r, own: r.step })), ...moved.flat()] : [];
}

// Of two the lower: the slower one is behind, not the faster one ahead.
const lower = (v: number[]) => [...v].sort((a, b) => a - b)[(v.length - 1) >> 1];

function arrange(rows: Row[], by: string): Cells {
  const ranks = new Map<string, { rank: string; pid: string }>(),
    at = new Map<string, Row>(),
    of = new Map<number, number[]>();
  for (const r of aligned(rows)) {
    const pid = String(r.target_pid),
      step = Number(r.step);
    ranks.set(pid, { rank: r.rank === null ? `pid ${pid}` : String(r.rank), pid });
    at.set(`${pid} ${step}`, r);
    of.set(step, [...(of.get(step) ?? []), measure(r, by)]);
  }
  // What only some have, since one was asked a moment later, is no step of all yet.
  const steps = [...of]
    .filter(([, v]) => v.length === ranks.size || of.size < 3)
    .map(([step]) => step)
    .sort((a, b) => a - b)
    .slice(-160);
  return {
    ranks: [...ranks.values()].sort((a, b) => Number(a.rank) - Number(b.rank) || (a.rank < b.rank ? -1 : 1)),
    steps,
    at: new Map([...at].filter(([key]) => steps.includes(Number(key.split(" ")[1])))),
    usual: new Map([...of].map(([step, v]) => [step, lower(v)])),
  };
}

function HeatMap({
  cells,
  by,
  picked,
  pick,
}: {
  cells: Cells;
  by: string;
  picked: { step: number; pid: string } | null;
  pick(step: number, pid: string): void;
}) {
  const canvas = useRef<HTMLCanvasElement>(null),
    paint = useCell(repaint),
    { ranks, steps } = cells,
    height = Math.max(60, Math.min(420, ranks.length * 16)),
    [width, resize] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(() => resize(canvas.current?.clientWidth ?? 0));
    watch.observe(canvas.current!);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    const c = canvas.current!,
      ratio = devicePixelRatio,
      x = c.getContext("2d")!,
      w = width / steps.length,
      h = height / ranks.length,
      colours = SCALE.map(colour);
    c.width = width * ratio;
    c.height = height * ratio;
    x.scale(ratio, ratio);
    ranks.forEach((r, row) =>
      steps.forEach((s, i) => {
        const cell = cells.at.get(`${r.pid} ${s}`);
        if (!cell) return;
        x.fillStyle = colours[level(measure(cell, by), cells.usual.get(s)!)];
        x.fillRect(i * w, row * h, w + 0.4, Math.max(1, h - (h > 5 ? 1 : 0)));
      }),
    );
    const column = picked ? steps.indexOf(picked.step) : -1;
    if (column >= 0) {
      x.strokeStyle = colour("--fg");
      x.lineWidth = 1.5;
      x.strokeRect(column * w, 0.5, Math.max(2, w), height - 1);
    }
  }, [cells, by, width, height, paint, picked?.step]);
  const under = (e: MouseEvent) => {
      const b = canvas.current!.getBoundingClientRect();
      return {
        step: steps[
          Math.max(0, Math.min(steps.length - 1, Math.floor(((e.clientX - b.left) / b.width) * steps.length)))
        ],
        rank: ranks[
          Math.max(0, Math.min(ranks.length - 1, Math.floor(((e.clientY - b.top) / b.height) * ranks.length)))
        ],
      };
    },
    begun = useRef<ReturnType<typeof under> | null>(null);
  // A click chooses a cell, a drag the time of several.
  const over = (e: MouseEvent) => {
    const a = begun.current,
      b = under(e);
    begun.current = null;
    if (!a || !a.rank) return;
    if (a.step === b.step) {
      pick(b.step, b.rank.pid);
      return;
    }
    const cell = (s: number) => cells.at.get(`${a.rank.pid} ${s}`),
      first = cell(Math.min(a.step, b.step)),
      last = cell(Math.max(a.step, b.step));
    if (first && last) choose_time(Number(first.t) - Number(first.duration_ms) / 1000, Number(last.t));
  };
  const slow = ranks
    .map((r) => ({
      r,
      n: steps.filter((s) => {
        const c = cells.at.get(`${r.pid} ${s}`);
        return c && level(measure(c, by), cells.usual.get(s)!) >= 4;
      }).length,
    }))
    .filter((v) => v.n)
    .sort((a, b) => b.n - a.n)
    .slice(0, 3);
  return (
    <div class="heat">
      <div class="ranks" style={{ height: `${height}px` }}>
        {ranks.map(
          (r, i) =>
            (ranks.length <= 26 || i % Math.ceil(ranks.length / 26) === 0) && (
              <span key={r.pid} style={{ top: `${((i + 0.5) * height) / ranks.length}px` }}>
                {r.rank}
              </span>
            ),
        )}
      </div>
      <canvas
        ref={canvas}
        role="img"
        style={{ height: `${height}px` }}
        onPointerDown={(e) => {
          begun.current = under(e);
        }}
        onPointerUp={over}
        aria-label={
          `${MEASURES[by]} of ${some(ranks.length, "rank")} over ${some(steps.length, "step")}, ` +
          `against the median of the step. ` +
          (slow.length
            ? `Often slower: ${slow.map((v) => `rank ${v.r.rank} in ${v.n} steps`).join(", ")}.`
            : "None is often slower.")
        }
      />
      <span />
      <div class="ticks">
        <span>{count(steps[0])}</span>
        <span>step</span>
        <span>{count(steps.at(-1)!)}</span>
      </div>
    </div>
  );
}

// Who comes last to a collective waits least in it: the others wait for that one.
function Collectives({ chosen }: { chosen: Chosen }) {
  const rows = useLive<Row[]>(with_args("/api/v1/query", { ...chosen }), 5000, COMM),
    wanted = useRanks(),
    by = new Map<string, Row[]>();
  for (const r of rows.data ?? [])
    if (wanted(r.rank))
      by.set(`${String(r.op)}\n${String(r.group_name)}`, [
        ...(by.get(`${String(r.op)}\n${String(r.group_name)}`) ?? []),
        r,
      ]);
  const last = (of: Row[]) => {
    const known = of.filter((r) => r.ms !== null).sort((a, b) => Number(a.ms) - Number(b.ms)),
      rest = known.slice(1).map((r) => Number(r.ms));
    return known.length > 1 && Number(known[0].ms) * 1.5 < median(rest) ? known[0] : null;
  };
  return (
    <>
      <div class="sec">
        <h2>Collectives</h2>
        <span class="say">all ranks; who comes last waits least</span>
        <span class="gap" />
        <a href={href("sql", { q: COMM })}>As SQL</a>
      </div>
      {!rows.data ? (
        <Loading what="Asking all ranks." />
      ) : !by.size ? (
        <p class="pane dim">None was seen: torch.distributed is not used, or the torch probe is off.</p>
      ) : (
        <table>
          <thead>
            <tr>
              <th>Operation</th>
              <th class="num">Calls a rank</th>
              <th class="num opt">Bytes</th>
              <th class="num">Mean</th>
              <th class="num">Open</th>
              <th class="num">Last in</th>
            </tr>
          </thead>
          <tbody>
            {[...by.values()]
              .sort((a, b) => Number(b[0].calls) - Number(a[0].calls))
              .slice(0, 20)
              .map((of) => {
                const first = last(of),
                  open = of.filter((r) => Number(r.open)).map((r) => Number(r.rank));
                return (
                  <tr key={`${String(of[0].op)} ${String(of[0].group_name)}`}>
                    <td class="mono op" title={`${String(of[0].op)} of group ${String(of[0].group_name)}`}>
                      {String(of[0].op)} <span class="dim">{String(of[0].group_name ?? "")}</span>
                    </td>
                    <td class="num">{count(Math.round(median(of.map((r) => Number(r.calls)))))}</td>
                    <td class="num opt">{bytes(median(of.map((r) => Number(r.bytes ?? 0))))}</td>
                    <td class="num">
                      {of.some((r) => r.ms !== null)
                        ? ms(median(of.filter((r) => r.ms !== null).map((r) => Number(r.ms))))
                        : ""}
                    </td>
                    <td class={`num ${open.length ? "warn" : "dim"}`}>{open.length ? ranges(open) : "none"}</td>
                    <td class={`num ${first ? "warn strong" : "dim"}`}>
                      {first ? `rank ${String(first.rank)}` : "spread"}
                    </td>
                  </tr>
                );
              })}
          </tbody>
        </table>
      )}
    </>
  );
}

// Sources are rows and destinations columns. A collective moves data between ranks that nobody counts: its
// destination is all of the group (-1).
function Matrix({ chosen }: { chosen: Chosen }) {
  const rows = useLive<Row[]>(with_args("/api/v1/query", { ...chosen }), 5000, BETWEEN),
    of = rows.data ?? [],
    numbers = (key: string) => [...new Set(of.map((r) => Number(r[key])))].sort((a, b) => a - b),
    from = numbers("src_rank"),
    to = numbers("dst_rank"),
    at = new Map(of.map((r) => [`${Number(r.src_rank)} ${Number(r.dst_rank)}`, r]));
  if (!of.length || from.length > 64) return null;
  return (
    <>
      <div class="sec">
        <h2>From rank to rank</h2>
        <span class="say">mean time and bytes a call; all: a collective of the group</span>
        <span class="gap" />
        <a href={href("sql", { q: BETWEEN })}>As SQL</a>
      </div>
      <table>
        <thead>
          <tr>
            <th>From</th>
            {to.map((d) => (
              <th key={d} class="num">
                {d < 0 ? "all" : `rank ${d}`}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {from.map((s) => (
            <tr key={s}>
              <td>rank {s}</td>
              {to.map((d) => {
                const r = at.get(`${s} ${d}`);
                return (
                  <td key={d} class={`num ${r ? "" : "dim"}`} title={r ? `${count(Number(r.calls))} calls` : ""}>
                    {r ? (
                      <>
                        {r.ms === null ? "open" : ms(Number(r.ms))}{" "}
                        <span class="dim">{bytes(Number(r.bytes ?? 0))}</span>
                      </>
                    ) : (
                      ""
                    )}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

function WhyStep({ cells, step, pid }: { cells: Cells; step: number; pid: string }) {
  const mine = [...cells.at.values()].filter((r) => String(r.target_pid) === pid),
    of = cells.at.get(`${pid} ${step}`),
    rank = cells.ranks.find((r) => r.pid === pid)?.rank;
  if (!of) return null;
  const others = cells.ranks.map((r) => cells.at.get(`${r.pid} ${step}`)).filter((r): r is Row => !!r),
    usual = median(mine.map((r) => Number(r.duration_ms)));
  const rest = (r: Row) => Number(r.duration_ms) - PARTS.reduce((sum, [k]) => sum + Number(r[k] ?? 0), 0),
    rows: [string, (r: Row) => number][] = [
      ...PARTS.map(([k, name]): [string, (r: Row) => number] => [name, (r) => Number(r[k] ?? 0)]),
      ["rest of the step", rest],
    ];
  return (
    <>
      <div class="pane">
        <b>
          Rank {rank}, step {count(step)}
        </b>
        <p class="mid">
          {ms(Number(of.duration_ms))}, its median is {ms(usual)}.{" "}
          <a href={href("torch", { target: pid, all: null, step: String(of.own) })}>
            What differed, by module and frame
          </a>
          .
        </p>
      </div>
      <table>
        <thead>
          <tr>
            <th>Part</th>
            <th class="num">This step</th>
            <th class="num">Median</th>
            <th class="num">Others</th>
            <th class="num">Differs</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([name, f]) => {
            const is = f(of),
              was = median(mine.map(f));
            return (
              <tr key={name}>
                <td>{name}</td>
                <td class="num">{ms(is)}</td>
                <td class="num dim">{ms(was)}</td>
                <td class="num dim">{ms(median(others.map(f)))}</td>
                <td class={`num ${is - was > usual * 0.1 ? "warn strong" : "dim"}`}>
                  {is >= was ? "+" : "−"}
                  {ms(Math.abs(is - was))}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </>
  );
}

const by_rank = (cells: Cells, by: string): Of_rank[] =>
  cells.ranks.map(({ rank, pid }) => ({
    rank,
    steps: cells.steps.flatMap((step) => {
      const r = cells.at.get(`${pid} ${step}`),
        usual = cells.usual.get(step) ?? 0;
      return r ? [{ step, is: measure(r, by), usual, slow: level(measure(r, by), usual) >= 4 }] : [];
    }),
  }));

export function Ranks({ chosen }: { chosen: Chosen }) {
  const { args } = useRoute(),
    wanted = useRanks(),
    STEPS = steps_sql(useRange().where),
    path = with_args("/api/v1/query", { ...chosen }),
    steps = useLive<Row[]>(path, 3000, STEPS),
    by = args.get("by") ?? "own",
    cells = useMemo(
      () =>
        arrange(
          (steps.data ?? []).filter((r) => wanted(r.rank)),
          by,
        ),
      [steps.data, by, args.get("ranks")],
    );
  const targets = useLive<Target[]>("/api/v1/targets", 2000),
    given = args.get("cell")?.split(" "),
    chosen_cell = given ? { step: Number(given[0]), pid: given[1] } : null;
  // Until one is chosen: the cell that is furthest above its step.
  const worst = useMemo(() => {
    let best: { step: number; pid: string } | null = null,
      most = 0;
    for (const [key, r] of cells.at) {
      const step = Number(r.step),
        d = measure(r, by) - cells.usual.get(step)!;
      if (d > most) {
        most = d;
        best = { step, pid: key.split(" ")[0] };
      }
    }
    return best;
  }, [cells, by]);
  const picked = chosen_cell ?? worst,
    to = (step: number, pid: string) => put({ cell: `${step} ${pid}` });
  const move = (dx: number, dy: number) => {
    if (!picked) return;
    const s = cells.steps[Math.max(0, Math.min(cells.steps.length - 1, cells.steps.indexOf(picked.step) + dx))],
      r =
        cells.ranks[
          Math.max(0, Math.min(cells.ranks.length - 1, cells.ranks.findIndex((q) => q.pid === picked.pid) + dy))
        ];
    if (r) to(s, r.pid);
  };
  useKeys({
    ArrowLeft: () => move(-1, 0),
    ArrowRight: () => move(1, 0),
    ArrowUp: () => move(0, -1),
    ArrowDown: () => move(0, 1),
    Enter: () => {
      const r = picked && cells.at.get(`${picked.pid} ${picked.step}`);
      if (r) go("torch", { target: picked.pid, all: null, step: String(r.own) });
    },
    Escape: () => put({ cell: null }),
  });
  const foot = <Foot command={command("-t", chosen.target, "--all", "torch")} curl={curl(path, STEPS)} sql={STEPS} />;
  if (!steps.data)
    return (
      <>
        {steps.error ? (
          <Blank title="Its steps cannot be read.">
            <p>{why(steps.error)}</p>
          </Blank>
        ) : (
          <Loading what="Reading the steps of all ranks." />
        )}
        {foot}
      </>
    );
  if (!cells.ranks.length)
    return (
      <>
        <div class="body">
          <Blank title="No torch rows of these processes.">
            <p>The torch probe is off, or nothing has stepped since. From the next step on, for all of them:</p>
            <Command text={command("-t", chosen.target, "--all", "config", "probing.torch.profiling=on")} />
          </Blank>
        </div>
        {foot}
      </>
    );
  return (
    <>
      <Trouble of={steps} />
      <div class="body">
        <div class="verdict">
          <span class="mark none" />
          <div>
            <h1>{pattern_words(by_rank(cells, by), MEASURES[by])}</h1>
            <p>
              {some(cells.ranks.length, "rank")}, the last {some(cells.steps.length, "step")}. Chosen with the mouse or
              the arrow keys; Enter opens the step.
            </p>
          </div>
        </div>
        <div class="split">
          <div>
            <div class="sec">
              <h2>Step by rank</h2>
              <span class="say">against the median of the step, by</span>
              <select
                class="ctl"
                aria-label="Measured by"
                value={by}
                onChange={(e) => put({ by: e.currentTarget.value })}
              >
                {Object.entries(MEASURES).map(([k, name]) => (
                  <option key={k} value={k}>
                    {name}
                  </option>
                ))}
              </select>
              <span class="gap" />
              <Legend
                of={[
                  { name: "faster", token: SCALE[0] },
                  { name: "usual", token: SCALE[2] },
                  { name: "slower", token: SCALE[4] },
                  { name: "twice", token: SCALE[5] },
                ]}
              />
              <a href={href("sql", { q: STEPS })}>As SQL</a>
            </div>
            <HeatMap cells={cells} by={by} picked={picked} pick={to} />
            <div class="sec">
              <h2>Ranks</h2>
            </div>
            <Columns name="ranks">
              <table>
                <thead>
                  <tr>
                    <th>Rank</th>
                    <th class="num">Median step</th>
                    {PARTS.map(([k, name]) => (
                      <th key={k} class="num opt">
                        {name}
                      </th>
                    ))}
                    <th class="num">Slower in</th>
                  </tr>
                </thead>
                <tbody>
                  {cells.ranks.map((r) => {
                    const mine = [...cells.at.values()].filter((q) => String(q.target_pid) === r.pid),
                      slow = mine.filter((q) => level(measure(q, by), cells.usual.get(Number(q.step))!) >= 4).length;
                    return (
                      <tr key={r.pid} class={slow > mine.length / 4 ? "odd" : ""}>
                        <td>
                          <a href={href("torch", { target: r.pid, all: null })}>rank {r.rank}</a>
                        </td>
                        <td class="num">{ms(median(mine.map((q) => Number(q.duration_ms))))}</td>
                        {PARTS.map(([k]) => (
                          <td key={k} class="num opt">
                            {ms(median(mine.map((q) => Number(q[k]))))}
                          </td>
                        ))}
                        <td class={`num ${slow ? "warn" : "dim"}`}>
                          {slow} of {mine.length}
                        </td>
                      </tr>
                    );
                  })}
                </tbody>
              </table>
            </Columns>
          </div>
          <aside>
            {picked && <WhyStep cells={cells} step={picked.step} pid={picked.pid} />}
            <StepFill
              chosen={chosen}
              target={undefined}
              range={times_of([...cells.at.values()])}
              usual={median([...cells.at.values()].map((r) => Number(r.duration_ms)))}
            />
            <Collectives chosen={chosen} />
            <Matrix chosen={chosen} />
            <Placement
              chosen={chosen}
              pick={(rank) => {
                const t = targets.data?.find(
                  (q) => String(q.rank) === rank && cells.ranks.some((r) => r.pid === String(q.pid)),
                );
                if (t) go("torch", { target: String(t.pid), all: null });
              }}
            />
          </aside>
        </div>
      </div>
      {foot}
    </>
  );
}
