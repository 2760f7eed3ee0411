// SQL: everything that is known of processes as tables; a query is a link.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, ask, command, curl, parse, with_args, type Row } from "../api";
import { make_editor, type Catalog, type Editor } from "../editor";
import { count, some } from "../format";
import { Grid, is_numeric, type Table } from "../grid";
import { useLive } from "../live";
import { Plot } from "../plot";
import { COLOURS } from "../colours";
import { choose_time } from "../plot-parts";
import { put, useChosen, useRoute } from "../route";
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

function Chart({ table }: { table: Table }) {
  const chosen = useChosen();
  const numeric = table.columns.map((_, i) => i).filter((i) => is_numeric(table, i)),
    [y, set] = useState<number | null>(null);
  const times = table.columns.findIndex(
    (_, i) => typeof table.rows[0]?.[i] === "string" && /^\d{4}-\d\d-\d\d[ T]\d\d:/.test(String(table.rows[0][i])),
  );
  const label = table.columns.findIndex((_, i) => i !== times && !numeric.includes(i)),
    of = y !== null && numeric.includes(y) ? y : (numeric.find((i) => i !== 0) ?? numeric[0]);
  const data = useMemo(() => {
    const rows = table.rows.slice(0, 100_000);
    if (times >= 0) {
      const pairs = rows
        .map((r) => [Date.parse(`${String(r[times]).replace(" ", "T")}Z`) / 1000, r[of] as number | null] as const)
        .filter(([t]) => !Number.isNaN(t))
        .sort((a, b) => a[0] - b[0]);
      return { x: pairs.map(([t]) => t), y: pairs.map(([, v]) => v) };
    }
    const by = numeric[0] !== of && numeric[0] === 0 ? 0 : -1;
    const pairs = rows
      .map((r, i) => [by >= 0 ? (r[by] as number) : i, r[of] as number | null] as const)
      .sort((a, b) => a[0] - b[0]);
    return { x: pairs.map(([t]) => t), y: pairs.map(([, v]) => v) };
  }, [table.rows, table.rows.length, of, times]);
  if (!numeric.length) return <p class="pane dim">No column of the result is a number: there is nothing to draw.</p>;
  return (
    <div>
      <div class="sec">
        <select class="ctl" aria-label="Column" value={of} onChange={(e) => set(Number(e.currentTarget.value))}>
          {numeric.map((i) => (
            <option key={i} value={i}>
              {table.columns[i]}
            </option>
          ))}
        </select>
        <span class="say">
          {times >= 0 ? `over ${table.columns[times]}, UTC as recorded` : label >= 0 ? "in the order of the rows" : ""}
        </span>
      </div>
      <Plot
        x={data.x}
        series={[{ name: table.columns[of], token: COLOURS[0], values: data.y }]}
        height={280}
        time={times >= 0}
        bars={times < 0 && data.x.length <= 200}
        label={table.columns[of]}
        range={times >= 0 && chosen ? choose_time : undefined}
      />
    </div>
  );
}

function past(): string[] {
  try {
    return JSON.parse(localStorage.getItem("sql") ?? "[]");
  } catch {
    return [];
  }
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
    localStorage.setItem("sql", JSON.stringify([text, ...past().filter((t) => t !== text)].slice(0, 30)));
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
  const table = result?.table;
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
