// Inspect: one object, the variables of a frame, one variable over all ranks, modules and tensors that live.
import { useEffect, useState } from "preact/hooks";
import { ApiError, command, curl, json, with_args, type Process, type Row } from "../api";
import { bytes, count } from "../format";
import { Grid } from "../grid";
import type { Table } from "../grid-rows";
import { useLive } from "../live";
import { NeedTarget, NoAnswer, useTarget } from "../pick";
import { go, href, put, useRoute, type Chosen } from "../route";
import { main_thread } from "../states";
import { Blank, Command, Foot, Loading, Seg, Trouble, why } from "../ui";
import { OverRanks } from "./over-ranks";
import { NoRows, useReadOnly } from "./record";

const TABS = { object: "Object", frame: "Frame", ranks: "Over ranks", modules: "Modules", tensors: "Tensors" };
type Tab = keyof typeof TABS;
export interface Numbers {
  elements: number;
  all: boolean;
  nan: number;
  infinite: number;
  zero: number;
  min: number | null;
  max: number | null;
  mean: number | null;
  std: number | null;
  histogram: number[];
}

// An expression is code. What stands in the address was perhaps put there by somebody else: it runs once it was asked
// for here.
const wanted = new Set<string>();

function Look({ at, children }: { at: string; children: string }) {
  return (
    <a href={href("inspect", { x: at })} onClick={() => wanted.add(at)}>
      {children}
    </a>
  );
}

export const short = (v: number | null) => (v === null ? "none" : String(Number(v.toPrecision(5))));

function Histogram({ of }: { of: Numbers }) {
  const most = Math.max(1, ...of.histogram),
    low = of.min ?? 0,
    step = ((of.max ?? 0) - low) / of.histogram.length;
  return (
    <>
      <div class="facts">
        <span>
          <b>{short(of.min)}</b> least
        </span>
        <span>
          <b>{short(of.max)}</b> most
        </span>
        <span>
          <b>{short(of.mean)}</b> mean
        </span>
        <span>
          <b>{short(of.std)}</b> deviation
        </span>
        <span class={of.nan ? "warn" : ""}>
          <b>{count(of.nan)}</b> NaN
        </span>
        <span class={of.infinite ? "warn" : ""}>
          <b>{count(of.infinite)}</b> infinite
        </span>
        <span>
          <b>{count(of.zero)}</b> zero
        </span>
      </div>
      {!of.all && (
        <p class="pane dim">Of the first {count(of.elements)} elements: the rest could not be read in time.</p>
      )}
      {step > 0 && (
        <table class="histogram">
          <thead>
            <tr>
              <th class="num">From</th>
              <th class="num">Elements</th>
              <th>
                <span class="sr">More</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {of.histogram.map((n, i) => (
              <tr key={i}>
                <td class="num mono">{short(low + i * step)}</td>
                <td class="num">{count(n)}</td>
                <td class="cut">
                  <span class="meter" style={{ width: `${(100 * n) / most}%` }} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}

const text_of = (v: unknown) =>
  v === null || v === undefined
    ? ""
    : typeof v === "object"
      ? JSON.stringify(v)
      : typeof v === "number"
        ? count(v)
        : String(v);

// What the agent tells is a flat object: texts and numbers are facts, lists of rows are tables.
function Told({ of, expression }: { of: Row; expression: string }) {
  const { numbers, ...rest } = of,
    facts = Object.entries(rest).filter(([, v]) => !Array.isArray(v) || v.every((i) => typeof i !== "object")),
    tables = Object.entries(rest).filter(([, v]) => Array.isArray(v) && v.some((i) => typeof i === "object")) as [
      string,
      Row[],
    ][];
  const [path, at] = /^(.*?)(@[\w.<>]+)?$/.exec(expression)!.slice(1);
  return (
    <>
      <table>
        <tbody>
          {facts.map(([name, v]) => (
            <tr key={name}>
              <th scope="row">{name.replaceAll("_", " ")}</th>
              <td class="mono wrap">
                {/bytes$/.test(name) ? bytes(Number(v)) : Array.isArray(v) ? v.join(" x ") || "scalar" : text_of(v)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {numbers ? (
        <>
          <div class="sec">
            <h2>Numbers</h2>
            <span class="say">read from outside; the process computes nothing for it</span>
          </div>
          <Histogram of={numbers as Numbers} />
        </>
      ) : null}
      {tables.map(([name, rows]) => (
        <div key={name}>
          <div class="sec">
            <h2>{name.replaceAll("_", " ")}</h2>
            <span class="say">{count(rows.length)}</span>
          </div>
          <table>
            <thead>
              <tr>
                {Object.keys(rows[0]).map((c) => (
                  <th key={c}>{c}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((r, i) => (
                <tr key={i}>
                  {Object.entries(r).map(([c, v]) => (
                    <td key={c} class="mono wrap">
                      {c === "name" &&
                      typeof v === "string" &&
                      /^[\w.]+$/.test(v) &&
                      (name === "fields" || name === "tensors") ? (
                        <Look
                          at={`${path}${v
                            .split(".")
                            .map((p) => (/^\d+$/.test(p) ? `[${p}]` : `.${p}`))
                            .join("")}${at ?? ""}`}
                        >
                          {v}
                        </Look>
                      ) : (
                        text_of(v)
                      )}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ))}
    </>
  );
}

function OneObject({ target }: { target: string }) {
  const { args } = useRoute(),
    asked = args.get("x") ?? "",
    [typed, type] = useState(asked),
    [state, set] = useState<{ of: string; told?: Row; error?: ApiError; busy: boolean }>({ of: "", busy: false }),
    fixed = useReadOnly(),
    [round, again] = useState(0);
  const path = `/api/v1/targets/${encodeURIComponent(target)}/inspect`;
  useEffect(() => type(asked), [asked]);
  useEffect(() => {
    if (!asked || fixed || !wanted.has(asked)) return;
    let gone = false;
    set({ of: asked, busy: true });
    json<Row>(path, { body: asked }).then(
      (told) => {
        if (!gone) set({ of: asked, told, busy: false });
      },
      (error) => {
        if (!gone) set({ of: asked, error, busy: false });
      },
    );
    return () => {
      gone = true;
    };
  }, [asked, path, fixed, round]);
  return (
    <>
      <form
        class="bar"
        onSubmit={(e) => {
          e.preventDefault();
          wanted.add(typed);
          if (typed === asked) again(round + 1);
          else go("inspect", { tab: null, x: typed });
        }}
      >
        <input
          class="ctl mono grow"
          data-search
          disabled={fixed}
          aria-label="Expression"
          placeholder="model.layers[0].weight, or loss@train ( / )"
          value={typed}
          onInput={(e) => type(e.currentTarget.value)}
        />
        <button
          class="ctl main"
          disabled={fixed || !typed.trim()}
          title={fixed ? "The service only reads: --read-only" : undefined}
        >
          Inspect
        </button>
      </form>
      {fixed ? (
        <Blank title="This service only reads.">
          <p>
            An expression is code that runs in the process. The variables of frames are read from outside:{" "}
            <a href={href("inspect", { tab: "frame" })}>Frame</a>,{" "}
            <a href={href("inspect", { tab: "ranks" })}>Over ranks</a>.
          </p>
        </Blank>
      ) : !asked ? (
        <Blank title="Which object?">
          <p>
            A name of the program (<code>model</code>), a path from it, or a variable of a function that runs now (
            <code>loss@train</code>). Tensors show shape, statistics and a histogram; modules their parameters and
            times; anything its fields. The variables of the running frames are{" "}
            <a href={href("inspect", { tab: "frame" })}>here</a>.
          </p>
        </Blank>
      ) : !wanted.has(asked) ? (
        <p class="pane">
          This link asks for <code>{asked}</code> of the process. An expression is code that runs there: Inspect runs
          it.
        </p>
      ) : state.busy ? (
        <Loading what={`Looking at ${asked}.`} />
      ) : state.error ? (
        <pre class="pane bad pre">{why(state.error)}</pre>
      ) : state.told ? (
        <Told of={state.told} expression={state.of} />
      ) : null}
    </>
  );
}

function Frames({ chosen }: { chosen: Chosen }) {
  const { args } = useRoute(),
    stacks = useLive<Process[]>(with_args("/api/v1/stacks", { target: chosen.target, locals: true }), 3000);
  if (!stacks.data)
    return stacks.error ? (
      <NoAnswer error={stacks.error} title="Its frames cannot be read." target={chosen.target} />
    ) : (
      <Loading what="Reading its frames." />
    );
  const threads = stacks.data.flatMap((p) => p.threads).filter((t) => t.frames?.length),
    main = stacks.data[0] && main_thread(stacks.data[0]);
  const thread = threads.find((t) => String(t.tid) === args.get("tid")) ?? (main?.frames?.length ? main : threads[0]);
  if (!thread) return <Blank title="No thread is in Python code now." />;
  const own = thread.frames!.findIndex((f) => f.own),
    at = args.has("depth") ? Number(args.get("depth")) : Math.max(0, own),
    frame = thread.frames![at] ?? thread.frames![0],
    rows = Object.entries(frame.locals ?? {});
  return (
    <>
      <Trouble of={stacks} />
      <div class="bar">
        <select
          class="ctl"
          aria-label="Thread"
          value={String(thread.tid)}
          onChange={(e) => put({ tid: e.currentTarget.value, depth: null })}
        >
          {threads.map((t) => (
            <option key={t.tid} value={String(t.tid)}>
              {t.name} ({t.tid})
            </option>
          ))}
        </select>
        <select
          class="ctl"
          aria-label="Frame"
          data-search
          value={String(at)}
          onChange={(e) => put({ depth: e.currentTarget.value })}
        >
          {thread.frames!.map((f, i) => (
            <option key={i} value={String(i)}>
              {f.function}, line {f.line ?? "?"}
            </option>
          ))}
        </select>
        <span class="gap" />
        <span class="dim mono cut" title={frame.file}>
          {frame.file}:{frame.line ?? "?"}
        </span>
      </div>
      {!rows.length ? (
        <p class="pane dim">The frame has no variables.</p>
      ) : (
        <table>
          <thead>
            <tr>
              <th>Variable</th>
              <th>Value</th>
              <th class="opt">
                <span class="sr">More</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map(([name, value]) => (
              <tr key={name}>
                <td class="mono">
                  <Look at={`${name}@${frame.name}`}>{name}</Look>
                </td>
                <td class="mono wrap">{value}</td>
                <td class="opt">
                  <a href={href("inspect", { tab: "ranks", name })}>over ranks</a>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}

const FRAMES = "SELECT thread, tid, depth, func, file, lineno, locals FROM python.backtrace ORDER BY tid, depth";
const MODULES = `SELECT name, class, parameters, total_parameters, trainable, bytes, device, dtype, training, hooks
FROM python.modules ORDER BY total_parameters DESC LIMIT 5000`;
const TENSORS = `SELECT name, class, shape, dtype, device, bytes, requires_grad, is_view FROM python.tensors
ORDER BY bytes DESC LIMIT 5000`;

function Listed({
  target,
  sql,
  what,
  probed,
  dead,
}: {
  target: string;
  sql: string;
  what: string;
  probed: boolean;
  dead: boolean;
}) {
  // Each look takes the GIL in slices: once, and again when asked.
  const rows = useLive<Row[]>(probed && !dead ? with_args("/api/v1/query", { target }) : null, Infinity, sql);
  if (!probed || dead)
    return (
      <NoRows
        what={`No ${what} can be listed.`}
        target={target}
        probed={probed}
        dead={dead}
        done={() => rows.again()}
      />
    );
  if (!rows.data)
    return rows.error ? (
      <pre class="pane bad pre">{why(rows.error)}</pre>
    ) : (
      <Loading what={`Looking for ${what} among the objects of the process.`} />
    );
  const table: Table = { columns: Object.keys(rows.data[0] ?? {}), rows: rows.data.map((r) => Object.values(r)) };
  return (
    <>
      <div class="sec">
        <h2>
          {count(rows.data.length)} {what}
        </h2>
        <span class="say">
          {bytes(rows.data.reduce((a, r) => a + (r.is_view ? 0 : Number(r.bytes ?? 0)), 0))} in all
        </span>
        <span class="gap" />
        <button class="ctl" onClick={() => rows.again()}>
          Look again
        </button>
        <a href={href("sql", { q: sql })}>As SQL</a>
      </div>
      {table.columns.length ? (
        <Grid table={table} height={`min(${table.rows.length * 22 + 40}px, calc(100vh - 210px))`} />
      ) : (
        <Blank title={`The process has no ${what} of torch.`}>
          <p>They are found among the objects that Python's collector knows, once torch is imported.</p>
        </Blank>
      )}
    </>
  );
}

export default function Inspect() {
  const about = useTarget(),
    { args } = useRoute(),
    chosen = about?.chosen,
    tab = (args.get("tab") ?? (chosen?.all ? "ranks" : "object")) as Tab;
  if (!about || !chosen) return <NeedTarget what="Inspect: objects, variables, modules and tensors of a process." />;
  const one = chosen.all ? null : chosen.target,
    id = encodeURIComponent(chosen.target),
    probed = about.probed,
    x = args.get("x") ?? "loss@train";
  const sql = tab === "modules" ? MODULES : TENSORS,
    of = chosen.all || !about.target ? chosen.target : about.target.command;
  const foot =
    tab === "object" ? (
      <Foot
        command={command("-t", chosen.target, "inspect", x)}
        curl={curl(`/api/v1/targets/${id}/inspect`, x)}
        sql={FRAMES}
      />
    ) : tab === "frame" ? (
      <Foot
        command={command("-t", chosen.target, "backtrace", "--locals")}
        curl={curl(`/api/v1/targets/${id}/stacks?locals=true`)}
        sql={FRAMES}
      />
    ) : tab === "ranks" ? (
      <Foot
        command={command("-t", of, "--all", "backtrace", "--locals")}
        curl={curl(with_args("/api/v1/stacks", { target: of, all: true, locals: true }))}
        sql={FRAMES}
      />
    ) : (
      <Foot
        command={command("-t", chosen.target, "query", sql)}
        curl={curl(with_args("/api/v1/query", { target: chosen.target }), sql)}
        sql={sql}
      />
    );
  return (
    <>
      <div class="body">
        <div class="bar">
          <Seg value={tab} of={TABS} on={(v) => put({ tab: v })} label="What to look at" />
        </div>
        {about.dead ? (
          <Blank title="It has ended: it has no objects any more.">
            <p>
              What ended it, where that was kept:{" "}
              <a
                href={href("sql", {
                  q: "SELECT thread, depth, function, file, line, locals FROM python.crash_frames ORDER BY id, depth",
                })}
              >
                its last frames with their variables
              </a>
              .
            </p>
          </Blank>
        ) : tab === "ranks" ? (
          <OverRanks chosen={chosen} target={about.target} />
        ) : !one ? (
          <NeedTarget what={`${TABS[tab]}: of which process?`} />
        ) : tab === "object" ? (
          !probed ? (
            <NoRows what="No agent is in this process." target={one} probed={false} dead={false} done={() => {}} />
          ) : about.target ? (
            <OneObject target={one} />
          ) : (
            <Loading what="Looking for the process." />
          )
        ) : tab === "frame" ? (
          <Frames chosen={chosen} />
        ) : (
          <Listed target={one} sql={sql} what={tab} probed={probed} dead={about.dead} />
        )}
        {!about.dead && !one && tab !== "ranks" && (
          <Command text={command("-t", chosen.target, "--all", "backtrace", "--locals")} />
        )}
      </div>
      {foot}
    </>
  );
}
