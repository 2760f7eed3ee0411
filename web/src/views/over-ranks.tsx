// Inspect, over ranks: one variable in all processes of a job, and who differs.
import { useEffect, useState } from "preact/hooks";
import { ApiError, json, with_args, type Process, type Row, type Target, type Unread } from "../api";
import { compare, type Held } from "../compare";
import { count, some } from "../format";
import { useLive } from "../live";
import { NoAnswer } from "../pick";
import { href, put, useRanks, useRoute, type Chosen } from "../route";
import { main_thread } from "../states";
import { Blank, Loading, Trouble, why } from "../ui";
import { short, type Numbers } from "./inspect";
import { useReadOnly } from "./record";

// The innermost frame that has it: the program's own first, of the main thread first.
function held_by(p: Process | Unread, name: string): Held {
  if (p.error !== undefined) return { label: p.label, pid: p.pid, value: null, where: "", error: p.error };
  const main = main_thread(p),
    threads = [main, ...p.threads.filter((t) => t !== main)];
  for (const own of [true, false])
    for (const t of threads)
      for (const f of t?.frames ?? []) {
        if (f.own === own && f.locals && Object.hasOwn(f.locals, name))
          return {
            label: p.label,
            pid: p.pid,
            value: f.locals[name],
            within: f.name,
            where: `${f.function}, line ${f.line ?? "?"}`,
          };
      }
  return { label: p.label, pid: p.pid, value: null, where: "" };
}

// What is in the tensors of that name, asked of each process.
function useNumbers(rows: Held[], name: string) {
  const [read, set] = useState<Map<number, string | null>>(),
    [failures, fail] = useState<Map<number, string>>(),
    fixed = useReadOnly();
  useEffect(() => {
    set(undefined);
    fail(undefined);
  }, [name]);
  const ask_all = async () => {
    const found = new Map<number, string | null>(),
      failed = new Map<number, string>();
    for (const r of rows)
      if (r.within) {
        try {
          const told = await json<Row>(`/api/v1/targets/${r.pid}/inspect`, { body: `${name}@${r.within}` }),
            n = told.numbers as Numbers | undefined;
          found.set(
            r.pid,
            !n
              ? null
              : n.elements === 1
                ? short(n.mean)
                : `mean ${short(n.mean)}, deviation ${short(n.std)}${n.nan ? `, ${count(n.nan)} NaN` : ""}`,
          );
        } catch (e) {
          found.set(r.pid, null);
          failed.set(r.pid, why(e as ApiError));
        }
      }
    set(found);
    fail(failed);
  };
  return {
    read,
    failures,
    can: !fixed && rows.some((r) => /^\w*(tensor|array|Parameter)\(/i.test(r.value ?? "")),
    ask_all,
  };
}

export function OverRanks({ chosen, target }: { chosen: Chosen; target: Target | undefined }) {
  const { args } = useRoute(),
    name = args.get("name") ?? "",
    [typed, type] = useState(name),
    of = chosen.all ? chosen : target ? { target: target.command, all: true } : chosen;
  const stacks = useLive<(Process | Unread)[]>(with_args("/api/v1/stacks", { ...of, locals: true }), 2000);
  useEffect(() => type(name), [name]);
  const known = [
    ...new Set(
      (stacks.data ?? []).flatMap(
        (p) =>
          (p.threads ? main_thread(p)?.frames : [])?.filter((f) => f.own).flatMap((f) => Object.keys(f.locals ?? {})) ??
          [],
      ),
    ),
  ].sort();
  const wanted = useRanks(),
    rows = name
      ? (stacks.data ?? [])
          .filter((p) => !args.get("ranks") || wanted(/^rank (\d+)$/.exec(p.label)?.[1]))
          .map((p) => held_by(p, name))
      : [];
  const numbers = useNumbers(rows, name),
    { title, odd, read, all_differ } = compare(name, rows, numbers.read),
    differs = (r: Held) => odd.has(r.pid),
    against = (r: Held) =>
      r.error ? (
        "?"
      ) : !read.has(r.pid) ? (
        "not read"
      ) : differs(r) ? (
        <b>differs</b>
      ) : (
        <span class="dim">{all_differ ? "" : read.size > 1 ? "same" : ""}</span>
      );
  return (
    <>
      <Trouble of={stacks.data ? stacks : { error: undefined, at: 0 }} />
      <form
        class="bar"
        onSubmit={(e) => {
          e.preventDefault();
          put({ name: typed.trim() });
        }}
      >
        <input
          class="ctl mono grow"
          data-search
          list="names"
          aria-label="Variable"
          placeholder="A variable: lr, loss, step ( / )"
          value={typed}
          onInput={(e) => type(e.currentTarget.value)}
        />
        <datalist id="names">
          {known.map((n) => (
            <option key={n} value={n} />
          ))}
        </datalist>
        <button class="ctl main">Show</button>
      </form>
      {!stacks.data ? (
        stacks.error ? (
          <NoAnswer error={stacks.error} title="The variables cannot be read." target={of.target} />
        ) : (
          <Loading what="Reading variables of all processes." />
        )
      ) : !name ? (
        <Blank title="Which variable?">
          <p>
            Of the functions that run now, in {some(stacks.data.length, "process", "processes")}:{" "}
            {known.slice(0, 60).map((n, i) => (
              <span key={n}>
                {i ? ", " : ""}
                <a class="mono" href={href("inspect", { tab: "ranks", name: n })}>
                  {n}
                </a>
              </span>
            ))}
          </p>
          <p>They are read from outside: no code runs, and a process that hangs answers too.</p>
        </Blank>
      ) : (
        <>
          <div class="verdict">
            <span class={`mark${odd.size ? " odd" : ""}`} />
            <div>
              <h1>{title}</h1>
              <p>
                {rows.some((r) => r.error)
                  ? `${some(rows.filter((r) => r.error).length, "process", "processes")} of ${rows.length} ` +
                    `gave no answer.`
                  : `Read from ${some(rows.length, "process", "processes")}, each in its own moment.`}
              </p>
            </div>
            <span class="gap" />
            {numbers.can && (
              <div class="acts">
                <button class="ctl main" onClick={() => void numbers.ask_all()}>
                  Read the numbers
                </button>
              </div>
            )}
          </div>
          <table>
            <thead>
              <tr>
                <th>Process</th>
                <th>Value</th>
                <th>Against the rest</th>
                <th class="opt">Of</th>
              </tr>
            </thead>
            <tbody>
              {[...rows]
                .sort((a, b) => Number(differs(b)) - Number(differs(a)))
                .map((r) => (
                  <tr key={r.pid} class={differs(r) ? "odd" : ""}>
                    <td class={differs(r) ? "strong" : ""}>
                      <a href={href("inspect", { target: String(r.pid), all: null, tab: "frame" })}>{r.label}</a>
                    </td>
                    <td class="mono wrap">
                      {r.error ? (
                        <span class="bad">{r.error}</span>
                      ) : (
                        (numbers.failures?.get(r.pid) ??
                        numbers.read?.get(r.pid) ??
                        r.value ?? <span class="dim">not there</span>)
                      )}
                    </td>
                    <td>{against(r)}</td>
                    <td class="opt mid mono">{r.where}</td>
                  </tr>
                ))}
            </tbody>
          </table>
        </>
      )}
    </>
  );
}
