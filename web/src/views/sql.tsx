// SQL: everything that is known of processes as tables; a query is a link.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, ask, command, curl, parse, with_args, type Row, type Target } from "../api";
import { make_editor, type Catalog, type Editor } from "../editor";
import { count, some } from "../format";
import { axes_of, lines_of, type Axes } from "../chart";
import { Grid } from "../grid";
import { cell_text, is_numeric, with_ranks, type Table } from "../grid-rows";
import { useLive } from "../live";
import { Plot } from "../plot";
import { choose_time, Legend } from "../plot-parts";
import { put, useChosen, useRoute } from "../route";
import { past, remember, save, saved } from "../saved";
import { copy, Copy, Foot, Loading, Seg } from "../ui";

const MOST = 1_000_000;
const FIRST = "SELECT name, kind, rows, bytes, comment\nFROM probing.tables\nORDER BY rows DESC NULLS LAST, name";

interface Result {
  table: Table;
  over: boolean;
  cut: boolean;
  ms: number;
  bytes: number;
  error: string | null;
}

// Rows as they come, a line each.
async function run(path: string, sql: string, signal: AbortSignal, show: (r: Result) => void) {
  const began = performance.now(),
    table: Table = { columns: [], rows: [] },
    result: Result = { table, over: false, cut: false, ms: 0, bytes: 0, error: null };
  let rest = "",
    told = 0;
  const tell = (more: Partial<Result>) => {
    Object.assign(result, more, { ms: performance.now() - began });
    show({ ...result, table: { ...table } });
  };
  const take = (line: string) => {
    if (!line) return;
    const row = parse<Row>(line);
    if (!table.columns.length) table.columns = Object.keys(row);
    table.rows.push(Object.values(row));
  };
  try {
    const answer = await ask(path, { body: sql, signal }),
      reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      result.bytes += value.length;
      const lines = (rest + value).split("\n");
      rest = lines.pop()!;
      lines.forEach(take);
      if (table.rows.length >= MOST) {
        table.rows.length = MOST;
        void reader.cancel();
        tell({ over: true, cut: true });
        return;
      }
      if (performance.now() - told > 250) {
        told = performance.now();
        tell({});
      }
    }
    take(rest);
    tell({ over: true });
  } catch (e) {
    if (signal.aborted) tell({ over: true, error: "Stopped." });
    else
      tell({
        over: true,
        error:
          e instanceof ApiError
            ? e.message
            : `It broke off after ${some(table.rows.length, "row")}: ${(e as Error).message}`,
      });
  }
}

function useCatalog(target: string | null, all: boolean) {
  const path = with_args("/api/v1/query", { target, all: target && all });
  const tables = useLive<Row[]>(path, 15000, "SELECT name, kind, rows, comment FROM probing.tables"),
    columns = useLive<Row[]>(path, Infinity, 'SELECT "table", "column", unit, comment FROM probing.columns');
  return useMemo(() => {
    const by = new Map<string, { kind: string; rows: number | null; comment: string; columns: Row[] }>();
    for (const t of tables.data ?? [])
      by.set(String(t.name), {
        kind: String(t.kind),
        rows: t.rows as number | null,
        comment: String(t.comment ?? ""),
        columns: [],
      });
    for (const c of columns.data ?? []) by.get(String(c.table))?.columns.push(c);
    return { by, error: tables.error };
  }, [tables.data, columns.data, tables.error]);
}

type Known = ReturnType<typeof useCatalog>;

function Side({ known, insert }: { known: Known; insert(text: string): void }) {
  const [find, search] = useState(""),
    [open, toggle] = useState("");
  const fits = [...known.by].filter(([name, t]) =>
    `${name} ${t.comment} ${t.columns.map((c) => c.column).join(" ")}`.toLowerCase().includes(find.toLowerCase()),
  );
  const groups = new Map<string, typeof fits>();
  for (const entry of fits) {
    const g = entry[0].includes(".") ? entry[0].split(".")[0] : "main";
    groups.set(g, [...(groups.get(g) ?? []), entry]);
  }
  return (
    <aside>
      <div class="bar">
        <input
          class="ctl"
          style={{ width: "100%" }}
          data-search
          placeholder="Tables, columns ( / )"
          aria-label="Find a table"
          value={find}
          onInput={(e) => search(e.currentTarget.value)}
        />
      </div>
      {!known.by.size && !known.error && <Loading what="Reading the catalog." />}
      {[...groups].map(([group, tables]) => (
        <div class="cat" key={group}>
          <h3>{group}</h3>
          {tables.map(([name, t]) => (
            <div key={name}>
              <button
                title={`${name}: ${t.comment}`}
                aria-expanded={open === name}
                onClick={() => toggle(open === name ? "" : name)}
              >
                <span class="cut">{name.split(".").pop()}</span>
                <span class="dim">{t.kind === "live" ? "live" : count(t.rows)}</span>
              </button>
              {open === name && (
                <>
                  {t.columns.map((c) => (
                    <button
                      key={String(c.column)}
                      class="col"
                      title={String(c.comment ?? "")}
                      onClick={() => insert(String(c.column))}
                    >
                      <span class="cut">{String(c.column)}</span>
                      <span class="dim">{String(c.unit ?? "")}</span>
                    </button>
                  ))}
                  <button class="col" onClick={() => insert(`SELECT * FROM ${name} LIMIT 1000`)}>
                    <span class="dim">insert SELECT *</span>
                  </button>
                </>
              )}
            </div>
          ))}
        </div>
      ))}
    </aside>
  );
}

// A few names: a bar each, with its figure.
function Bars({ table, axes }: { table: Table; axes: Axes }) {
  const most = Math.max(...table.rows.map((r) => Math.abs(Number(r[axes.y] ?? 0)))) || 1;
  return (
    <table class="bars">
      <thead>
        <tr>
          <th>{table.columns[axes.x!]}</th>
          <th class="num">{table.columns[axes.y]}</th>
          <th>
            <span class="sr">Bar</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {table.rows.map((r, i) => (
          <tr key={i}>
            <td class="some mono" title={cell_text(r[axes.x!])}>
              {cell_text(r[axes.x!])}
            </td>
            <td class="num">{cell_text(r[axes.y])}</td>
            <td class="cut">
              <span class="meter" style={{ width: `${(100 * Math.abs(Number(r[axes.y] ?? 0))) / most}%` }} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Chart({ table }: { table: Table }) {
  const chosen = useChosen(),
    [x, across] = useState<number | null>(),
    [y, up] = useState<number | null>(null);
  useEffect(() => {
    across(undefined);
    up(null);
  }, [table.columns.join()]);
  const axes = useMemo(() => axes_of(table, { x, y }), [table.rows, table.rows.length, x, y]),
    drawn = useMemo(() => axes && axes.kind !== "label" && lines_of(table, axes), [axes]);
  if (!axes) return <p class="pane dim">No column of the result is a number: there is nothing to draw.</p>;
  const columns = table.columns.map((name, i) => (
    <option key={i} value={i}>
      {name}
    </option>
  ));
  return (
    <div>
      <div class="sec">
        <select class="ctl" aria-label="Drawn" value={axes.y} onChange={(e) => up(Number(e.currentTarget.value))}>
          {columns.filter((_, i) => is_numeric(table, i))}
        </select>
        <span class="say">over</span>
        <select
          class="ctl"
          aria-label="Across"
          value={axes.x ?? -1}
          onChange={(e) => across(Number(e.currentTarget.value) < 0 ? null : Number(e.currentTarget.value))}
        >
          <option value={-1}>the order of the rows</option>
          {columns}
        </select>
        <span class="say">
          {axes.kind === "time" ? "UTC, as recorded" : ""}
          {drawn && drawn.left ? `; ${some(drawn.left, "line")} more not drawn` : ""}
        </span>
        <span class="gap" />
        {drawn && drawn.lines.length > 1 && <Legend of={drawn.lines} />}
      </div>
      {drawn ? (
        <Plot
          x={drawn.x}
          series={drawn.lines}
          height={280}
          time={axes.kind === "time"}
          spans={drawn.lines.length > 1}
          bars={axes.kind !== "time" && drawn.lines.length === 1 && drawn.x.length <= 200}
          label={table.columns[axes.y]}
          range={axes.kind === "time" && chosen ? choose_time : undefined}
        />
      ) : (
        <Bars table={table} axes={axes} />
      )}
    </div>
  );
}

// Queries with a name, of this browser: chosen, kept and forgotten.
function Saved({ text, run }: { text(): string; run(sql: string): void }) {
  const [names, tell] = useState(Object.keys(saved())),
    [asks, ask_name] = useState(false),
    [name, type] = useState("");
  const keep = (sql: string | null) => {
    if (name.trim()) save(name.trim(), sql);
    tell(Object.keys(saved()));
    ask_name(false);
  };
  if (asks)
    return (
      <form
        class="asks"
        onSubmit={(e) => {
          e.preventDefault();
          keep(text());
        }}
      >
        <input
          class="ctl"
          aria-label="Name of the query"
          placeholder="Name"
          list="saved-queries"
          ref={(e) => e?.focus()}
          value={name}
          onInput={(e) => type(e.currentTarget.value)}
          onKeyDown={(e) => {
            if (e.key === "Escape") ask_name(false);
          }}
        />
        <datalist id="saved-queries">
          {names.map((n) => (
            <option key={n} value={n} />
          ))}
        </datalist>
        <button class="ctl main">Save</button>
        {names.includes(name.trim()) && (
          <button type="button" class="ctl danger" onClick={() => keep(null)}>
            Forget it
          </button>
        )}
      </form>
    );
  return (
    <>
      {names.length > 0 && (
        <select
          class="ctl"
          aria-label="Saved queries"
          value=""
          onChange={(e) => {
            const sql = saved()[e.currentTarget.value];
            type(e.currentTarget.value);
            e.currentTarget.value = "";
            if (sql) run(sql);
          }}
        >
          <option value="" disabled>
            Saved
          </option>
          {names.map((n) => (
            <option key={n} value={n}>
              {n}
            </option>
          ))}
        </select>
      )}
      <button class="ctl" onClick={() => ask_name(true)}>
        Save as
      </button>
    </>
  );
}

export default function Sql() {
  const { args } = useRoute(),
    chosen = useChosen(),
    host = useRef<HTMLDivElement>(null),
    editor = useRef<Editor | undefined>(undefined),
    stop = useRef<AbortController | undefined>(undefined);
  const [result, show] = useState<Result>(),
    how = (args.get("as") ?? "table") as "table" | "chart" | "both",
    view = (v: string) => put({ as: v === "table" ? null : v }),
    known = useCatalog(chosen?.target ?? null, chosen?.all ?? false);
  const path = with_args("/api/v1/query", { target: chosen?.target, all: chosen?.all, timeout: 60 }),
    sql = args.get("q") ?? FIRST;
  const go = useRef(() => {});
  go.current = () => {
    const text = editor.current!.text();
    put({ q: text });
    remember(text);
    stop.current?.abort();
    stop.current = new AbortController();
    show({ table: { columns: [], rows: [] }, over: false, cut: false, ms: 0, bytes: 0, error: null });
    const mine = stop.current.signal;
    void run(`${path}&format=jsonl`, text, mine, (r) => {
      if (stop.current?.signal === mine) show(r);
    });
  };
  useEffect(() => {
    const made = (editor.current = make_editor(host.current!, sql, { run: () => go.current(), change: () => {} }));
    return () => {
      made.destroy();
      stop.current?.abort();
    };
  }, []);
  useEffect(() => go.current(), [chosen?.target, chosen?.all]);
  useEffect(() => {
    const tables: Catalog = {};
    for (const [name, t] of known.by)
      tables[name] = t.columns.map((c) => ({
        label: String(c.column),
        detail: String(c.unit ?? ""),
        type: "property",
      }));
    editor.current?.catalog(tables);
  }, [known.by]);
  const download = async () => {
    const blob = await (await ask(`${path}&format=csv`, { body: editor.current!.text() })).blob(),
      a = document.createElement("a");
    a.href = URL.createObjectURL(blob);
    a.download = "rows.csv";
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 10000);
  };
  const targets = useLive<Target[]>(chosen?.all ? "/api/v1/targets" : null, 10000),
    rank_of = useMemo(
      () => new Map((targets.data ?? []).flatMap((t) => (t.rank === null ? [] : [[t.pid, Number(t.rank)]]))),
      [targets.data],
    ),
    table = useMemo(() => result && with_ranks(result.table, rank_of), [result, rank_of.size]);
  return (
    <>
      <div class="sql body">
        <Side known={known} insert={(t) => editor.current?.insert(t)} />
        <div>
          <div class="bar">
            <button class="ctl main" onClick={() => go.current()}>
              Run
            </button>
            <kbd class="opt">Ctrl Enter</kbd>
            <button class="ctl" disabled={!result || result.over} onClick={() => stop.current?.abort()}>
              Stop
            </button>
            <span class="gap" />
            <select
              class="ctl"
              aria-label="History"
              value=""
              onChange={(e) => {
                const t = past()[Number(e.currentTarget.value)];
                e.currentTarget.value = "";
                if (t) {
                  editor.current?.set(t);
                  go.current();
                }
              }}
            >
              <option value="" disabled>
                History
              </option>
              {past().map((t, i) => (
                <option key={t} value={i}>
                  {t.replace(/\s+/g, " ").slice(0, 80)}
                </option>
              ))}
            </select>
            <Saved
              text={() => editor.current!.text()}
              run={(t) => {
                editor.current?.set(t);
                go.current();
              }}
            />
            <button class="ctl" onClick={() => copy(location.href)}>
              Copy link
            </button>
          </div>
          <div class="edit" ref={host} />
          <div class="bar" role="status">
            <span>
              {!result ? (
                ""
              ) : result.error ? (
                <b>{table!.rows.length ? `${some(table!.rows.length, "row")}, then an error` : "It failed"}</b>
              ) : (
                <>
                  <b>{some(table!.rows.length, "row")}</b>{" "}
                  <span class="dim">
                    {result.over ? "in" : "so far,"} {Math.round(result.ms)} ms
                    {result.cut ? `; the first ${count(MOST)}: download has all` : ""}
                  </span>
                </>
              )}
            </span>
            <span class="gap" />
            <Seg value={how} of={{ table: "Table", chart: "Chart", both: "Both" }} on={view} label="Shown as" />
            <button class="ctl" disabled={!table?.rows.length} onClick={() => void download()}>
              Download CSV
            </button>
            {table && table.rows.length > 0 && table.rows.length <= 5000 && (
              <span class="opt">
                <Copy text={[table.columns, ...table.rows].map((r) => r.join("\t")).join("\n")}>Copy rows</Copy>
              </span>
            )}
          </div>
          {result?.error && <pre class="pane bad pre">{result.error}</pre>}
          {table && table.columns.length > 0 && how !== "table" && <Chart table={table} />}
          {table && table.columns.length > 0 && how !== "chart" && (
            <Grid
              table={table}
              height={how === "both" ? "320px" : `min(${table.rows.length * 22 + 40}px, calc(100vh - 330px))`}
            />
          )}
          {result?.over && !result.error && !table!.rows.length && (
            <p class="pane dim">
              No rows. probing.tables says which tables have some, and the view Settings how to record more.
            </p>
          )}
        </div>
      </div>
      <Foot
        command={command(chosen && "-t", chosen?.target, chosen?.all && "--all", "query", sql)}
        curl={curl(path, sql)}
      />
    </>
  );
}
