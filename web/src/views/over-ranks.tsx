// Inspect, over ranks: one variable in all processes of a job, and who differs.
import { useEffect, useState } from "preact/hooks";
import { ApiError, json, with_args, type Process, type Row, type Target, type Unread } from "../api";
import { count, some } from "../format";
import { useLive } from "../live";
import { NoAnswer } from "../pick";
import { href, put, useRanks, useRoute, type Chosen } from "../route";
import { main_thread } from "../states";
import { Blank, Loading, Trouble, why } from "../ui";
import { short, type Numbers } from "./inspect";
import { useReadOnly } from "./record";

interface Held {
  label: string;
  pid: number;
  value: string | null;
  where: string;
  within?: string;
  error?: string;
}

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

// What is read from outside of a tensor or an object is its kind, not what is in it.
const opaque = (v: string | null) =>
  v !== null && (/^\w*(tensor|array|Parameter)\(/i.test(v) || /0x[0-9a-f]{6,}/.test(v) || /(\.\.\.|…)\W*$/.test(v));

// Two objects that lie in different places may still be equal.
const plain = (v: string | null) => v?.replace(/, data=0x[0-9a-f]+|0x[0-9a-f]{6,}/g, "") ?? null;

// What is in the tensors of that name, asked of each process.
function useNumbers(rows: Held[], name: string) {
  const [read, set] = useState<Map<number, string>>(),
    fixed = useReadOnly();
  useEffect(() => set(undefined), [name]);
  const ask_all = async () => {
    const found = new Map<number, string>();
    for (const r of rows)
      if (r.within) {
        try {
          const told = await json<Row>(`/api/v1/targets/${r.pid}/inspect`, { body: `${name}@${r.within}` }),
            n = told.numbers as Numbers | undefined;
          found.set(
            r.pid,
            !n
              ? "not read"
              : n.elements === 1
                ? short(n.mean)
                : `mean ${short(n.mean)}, deviation ${short(n.std)}${n.nan ? `, ${count(n.nan)} NaN` : ""}`,
          );
        } catch (e) {
          found.set(r.pid, why(e as ApiError));
        }
      }
    set(found);
  };
  return { read, can: !fixed && rows.some((r) => /^\w*(tensor|array|Parameter)\(/i.test(r.value ?? "")), ask_all };
}

// How a variable compares over processes: of those whose value was read, and no more.
function compare_words(
  name: string,
  all: number,
  have: number,
  read: number,
  odd: Held[],
  all_differ: boolean,
): string {
  const of = read === all ? `all ${all}` : `the ${read} of ${all} that were read`;
  if (!have) return `No function that runs has ${name}.`;
  if (!read) return `${name} was not read: only its kind is known.`;
  if (odd.length)
    return (
      `${name} differs in ` +
      `${odd.length > 6 ? some(odd.length, "process", "processes") : odd.map((r) => r.label).join(", ")}.`
    );
  if (all_differ) return `${name} is different in each of ${of}.`;
  return read === 1 ? `${name} was read from one process.` : `${name} is the same in ${of}.`;
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
      : [],
    tally = new Map<string | null, number>();
  const numbers = useNumbers(rows, name),
    value = (r: Held) => numbers.read?.get(r.pid) ?? plain(r.value);
  // Only what was read is compared: two tensors of one shape are not the same for that.
  const was_read = (r: Held) =>
      !r.error && (numbers.read?.has(r.pid) ? numbers.read.get(r.pid) !== "not read" : !opaque(r.value)),
    compared = rows.filter(was_read);
  for (const r of compared) tally.set(value(r), (tally.get(value(r)) ?? 0) + 1);
  const [usual] = [...tally].sort((a, b) => b[1] - a[1])[0] ?? [null],
    all_differ = tally.size === compared.length && compared.length > 2,
    differs = (r: Held) => was_read(r) && !all_differ && value(r) !== usual,
    odd = rows.filter(differs);
  const have = rows.filter((r) => r.value !== null).length,
    title = compare_words(name, rows.length, have, compared.length, odd, all_differ),
    against = (r: Held) =>
      r.error ? (
        "?"
      ) : !was_read(r) ? (
        "not read"
      ) : differs(r) ? (
        <b>differs</b>
      ) : (
        <span class="dim">{all_differ ? "" : compared.length > 1 ? "same" : ""}</span>
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
            <span class={`mark${odd.length ? " odd" : ""}`} />
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
                        (numbers.read?.get(r.pid) ?? r.value ?? <span class="dim">not there</span>)
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
