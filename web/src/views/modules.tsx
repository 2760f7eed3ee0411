// The modules of a model: as the tree that they are, with forward and backward, or the slowest first.
import { useState } from "preact/hooks";
import { with_args, type Row } from "../api";
import { count, ms } from "../format";
import { Columns } from "../columns";
import { useLive } from "../live";
import { href, put, useRoute } from "../route";
import { Loading, Seg, why } from "../ui";

// A time that is a constant lets the engine pass over the rest: a job makes thousands of these rows a second.
const sql_of = (within: string) =>
  `SELECT module, parent, any_value(module_type) AS module_type, min(depth) AS depth,
count(*) FILTER (WHERE stage = 'forward') AS calls,
count(DISTINCT step) FILTER (WHERE stage = 'backward') AS backwards,\n` +
  `  count(DISTINCT step) AS steps, sum(duration_ms) FILTER (WHERE stage = 'forward') AS forward_ms, ` +
  `sum(duration_ms) FILTER (WHERE stage = 'backward') AS backward_ms, sum(self_ms) AS self_ms\n` +
  `FROM python.torch_trace WHERE module IS NOT NULL AND (stage = 'forward' OR depth > 0)${within}
GROUP BY module, parent ORDER BY self_ms DESC LIMIT 2000`;

interface Node {
  row: Row;
  name: string;
  forward: number;
  backward: number;
  children: Node[];
}

// Times a step. The backward of modules is looked at in some steps only.
function tree_of(rows: Row[]): Node[] {
  const nodes = new Map(
    rows.map((row): [string, Node] => [
      String(row.module),
      {
        row,
        name: String(row.module),
        forward: Number(row.forward_ms ?? 0) / Math.max(1, Number(row.steps)),
        backward: Number(row.backward_ms ?? 0) / Math.max(1, Number(row.backwards)),
        children: [],
      },
    ]),
  );
  const roots: Node[] = [];
  for (const n of nodes.values()) {
    const above = n.row.parent === null ? undefined : nodes.get(String(n.row.parent));
    if (above && above !== n) above.children.push(n);
    else roots.push(n);
  }
  const sort = (level: Node[]) => {
    level.sort((a, b) => b.forward + b.backward - a.forward - a.backward);
    for (const n of level) sort(n.children);
  };
  sort(roots);
  return roots;
}

// The last part of a name, below its parent.
const short = (n: Node) =>
  n.row.parent !== null && n.name.startsWith(`${String(n.row.parent)}.`)
    ? n.name.slice(String(n.row.parent).length + 1)
    : n.name;

export function Modules({ target, since, within }: { target: string; since: string; within: string }) {
  const { args } = useRoute(),
    [closed, set] = useState<Set<string>>(new Set()),
    slow = args.get("modules") === "slow",
    sql = sql_of(within),
    rows = useLive<Row[]>(with_args("/api/v1/query", { target }), 5000, sql);
  const roots = tree_of(rows.data ?? []),
    most = Math.max(
      1e-9,
      ...(slow
        ? (rows.data ?? []).map((r) => Number(r.self_ms) / Math.max(1, Number(r.steps)))
        : roots.map((n) => n.forward + n.backward)),
    );
  // A name may stand among its own ancestors in what a hostile process tells: each is shown once.
  const flat = (level: Node[], depth: number, seen: Set<string>): { node: Node; depth: number }[] =>
    level.flatMap((node) => {
      if (seen.has(node.name) || depth > 200) return [];
      seen.add(node.name);
      return [{ node, depth }, ...(closed.has(node.name) ? [] : flat(node.children, depth + 1, seen))];
    });
  const shown = slow
    ? [...roots]
        .flatMap((n) => flat([n], 0, new Set()))
        .sort((a, b) => Number(b.node.row.self_ms) - Number(a.node.row.self_ms))
        .slice(0, 40)
        .map((s) => ({ ...s, depth: 0 }))
    : flat(roots, 0, new Set()).slice(0, 400);
  const toggle = (name: string) =>
    set((was) => {
      const next = new Set(was);
      if (!next.delete(name)) next.add(name);
      return next;
    });
  return (
    <>
      <div class="sec">
        <h2>Modules</h2>
        <span class="say">ms a step{since}</span>
        <Seg
          value={slow ? "slow" : "tree"}
          of={{ tree: "Tree", slow: "Slowest" }}
          on={(v) => put({ modules: v === "slow" ? v : null })}
          label="Order of the modules"
        />
        <span class="gap" />
        <a href={href("sql", { q: sql })}>As SQL</a>
      </div>
      {rows.error ? (
        <p class="pane bad">{why(rows.error)}</p>
      ) : !rows.data ? (
        <Loading what="Reading its modules." />
      ) : !shown.length ? (
        <p class="pane dim">No call of a module was recorded in this time.</p>
      ) : (
        <Columns name="modules">
          <table>
            <thead>
              <tr>
                <th>Module</th>
                <th class="opt">Type</th>
                <th class="num opt">Calls</th>
                <th class="num">Forward</th>
                <th class="num">Backward</th>
                <th class="num">Self</th>
                <th class="opt">
                  <span class="sr">More</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {shown.map(({ node, depth }) => {
                const steps = Math.max(1, Number(node.row.steps)),
                  wide = (v: number) => `${Math.min(56, (56 * v) / most)}px`;
                return (
                  <tr key={node.name}>
                    <td
                      class="cut mono"
                      title={node.name}
                      style={{ paddingLeft: `${16 + Math.min(depth, 20) * 12}px` }}
                    >
                      {!slow && node.children.length > 0 && (
                        <button
                          class="twist link"
                          aria-expanded={!closed.has(node.name)}
                          aria-label={`What is in ${node.name}`}
                          onClick={() => toggle(node.name)}
                        >
                          {closed.has(node.name) ? "▸" : "▾"}
                        </button>
                      )}
                      {!slow && !node.children.length && <span class="twist" />}
                      {slow ? node.name : short(node) || "model"}
                    </td>
                    <td class="opt mid some" style={{ maxWidth: "112px" }} title={String(node.row.module_type ?? "")}>
                      {String(node.row.module_type ?? "")}
                    </td>
                    <td class="num opt">{count(Number(node.row.calls))}</td>
                    <td class="num">{ms(node.forward)}</td>
                    <td class="num">
                      {Number(node.row.backwards) ? ms(node.backward) : <span class="dim">not yet</span>}
                    </td>
                    <td class="num">{ms(Number(node.row.self_ms) / steps)}</td>
                    <td class="opt">
                      {slow ? (
                        <span class="meter" style={{ width: wide(Number(node.row.self_ms) / steps) }} />
                      ) : (
                        <span class="two">
                          <span class="meter fwd" style={{ width: wide(node.forward) }} />
                          <span class="meter bwd" style={{ width: wide(node.backward) }} />
                        </span>
                      )}
                    </td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </Columns>
      )}
    </>
  );
}
