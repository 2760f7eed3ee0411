// Activity: the stacks of all chosen processes as one tree, and of one frame its source place, variables and what it
// waits for.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { command, curl, with_args, type ApiError, type Process, type Target, type Unread } from "../api";
import { is_cluster, processes_of, type ClusterStacks } from "../cluster";
import { clock, ranges, seconds, some } from "../format";
import { useKeys } from "../keys";
import { useLive } from "../live";
import { moment_sql, stacks_at, useRecorded, type Recorded } from "../recorded";
import { href, put, range_text, useRanks, useRoute, type Chosen } from "../route";
import { NeedTarget, NoAnswer, useTarget } from "../pick";
import { StateTag, state_word, thread_state, wait_words } from "../states";
import { Strip as Times } from "../strip";
import { first_end, is_odd, merge, type Node, type Who } from "../tree";
import { Blank, Command, Foot, Loading, Seg, Switch, Trouble } from "../ui";
import { useCell } from "../store";
import { judged } from "../verdict";
import { Act } from "./record";
import { Source } from "./source";

function names(who: Who[], threads: boolean): string {
  if (threads && new Set(who.map((w) => w.process.pid)).size === 1)
    return who.length > 4 ? `${who.length} threads` : who.map((w) => w.thread.name).join(", ");
  const labels = [...new Set(who.map((w) => w.process.label))],
    numbers = labels.map((l) => /^rank (\d+)$/.exec(l)?.[1]);
  if (labels.length > 1 && numbers.every(Boolean)) return `ranks ${ranges(numbers.map(Number))}`;
  return labels.length > 4 ? `${labels.length} processes` : labels.join(", ");
}

// Of a thousand processes no more than the strip has places for, and neighbours as one: a tree has many strips, and
// is drawn anew each second.
const STRIP_PLACES = 240;

function stretches(node: Node, of: number): [number, number][] {
  const places = Math.min(of, STRIP_PLACES),
    apart = places <= 40,
    found: [number, number][] = [];
  for (const i of [...new Set(node.who.map((w) => Math.floor((w.index * places) / of)))].sort((a, b) => a - b)) {
    const last = found[found.length - 1];
    if (last && !apart && last[0] + last[1] === i) last[1]++;
    else found.push([i, 1]);
  }
  return found;
}

function Strip({ node, of, odd }: { node: Node; of: number; odd: boolean }) {
  const w = 120 / Math.min(of, STRIP_PLACES);
  return (
    <svg class="strip" viewBox="0 0 120 10" preserveAspectRatio="none" aria-hidden="true">
      <rect width="120" height="10" fill="var(--bg-3)" />
      {stretches(node, of).map(([i, n]) => (
        <rect
          key={i}
          x={i * w}
          width={Math.max(0.6, n * w - (w >= 3 ? 1 : 0))}
          height="10"
          fill={odd ? "var(--st-loader)" : "var(--st-coll)"}
        />
      ))}
    </svg>
  );
}

interface Shown {
  node: Node;
  path: string;
}

function flat(level: Node[], closed: Set<string>, path = ""): Shown[] {
  return level.flatMap((node) => {
    const here = `${path}/${node.key}`;
    return [{ node, path: here }, ...(closed.has(here) ? [] : flat(node.children, closed, here))];
  });
}

// What the tree shows, in a sentence. Whether that is a fault, only a finding says.
function words_of(processes: Process[], root: Node[], who: Who[], all: boolean): string {
  const threads = all && processes.length === 1,
    [only] = who;
  let level = root,
    parent: Node | undefined;
  while (level.length === 1 && !level[0].ends.length) {
    parent = level[0];
    level = level[0].children;
  }
  if (processes.length > 1 && level.length === 1) return `All ${processes.length} processes are in ${level[0].name}.`;
  if (processes.length > 1 && level.length > 1) {
    const parts = level
      .slice(0, 3)
      .map((n) => `${names(n.who, threads)} in ${n.name}`)
      .join("; ");
    return (
      `${parent ? `Below ${parent.name}: ` : ""}${parts}` +
      `${level.length > 3 ? `; and ${level.length - 3} more` : ""}.`
    );
  }
  if (!only) return `No stack of ${some(processes.length, "process", "processes")}.`;
  const main = who.find((w) => w.thread.tid === w.process.pid) ?? only,
    { verdict } = main.process;
  if (who.length === 1)
    return (
      `${main.process.label} is ${state_word(thread_state(main.thread), main.thread)}: ` +
      `${verdict ?? wait_words(main.thread)}.`
    );
  return (
    `${main.process.label}, main thread: ${verdict ?? wait_words(main.thread)}. ` +
    `${some(who.length, "thread")} shown.`
  );
}

// ?culprit=PID&thread=NAME, as a finding links here: its stack is opened as soon as it was read.
function useCulprit(rows: Shown[], picked: string) {
  const { args } = useRoute(),
    pid = Number(args.get("culprit")),
    thread = args.get("thread");
  const ends = (r: Shown, named: boolean) =>
    r.node.ends.some((w) => w.process.pid === pid && (named ? w.thread.name === thread : w.thread.tid === pid));
  const found = pid ? (rows.find((r) => ends(r, true)) ?? rows.find((r) => ends(r, false))) : undefined;
  useEffect(() => {
    if (found && !picked) put({ frame: found.path, culprit: null, thread: null });
  }, [found?.path, picked]);
}

function Locals({ pid, shown }: { pid: number; shown: Shown }) {
  const { data, error } = useLive<Process[]>(`/api/v1/targets/${pid}/stacks?locals=true`, 3000),
    frame = shown.node.frame;
  if (!frame) return null;
  if (error) return <p class="dim">No variables: {error.message}.</p>;
  const found = data?.[0]?.threads
    .flatMap((t) => t.frames ?? [])
    .find((f) => f.function === frame.function && f.file === frame.file);
  const rows = Object.entries(found?.locals ?? {});
  return (
    <>
      <div class="sec">
        <h2>Variables</h2>
        <span class="say">of pid {pid}</span>
      </div>
      {!data ? (
        <Loading what="Reading variables." />
      ) : !found ? (
        <p class="pane dim">It is not in this function any more.</p>
      ) : !rows.length ? (
        <p class="pane dim">The frame has none.</p>
      ) : (
        <table>
          <tbody>
            {rows.map(([name, value]) => (
              <tr key={name}>
                <td class="mono">{name}</td>
                <td class="mono wrap">{value}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}

function Detail({ shown, total, past, cluster }: { shown: Shown; total: number; past: boolean; cluster: boolean }) {
  const { node } = shown,
    [first] = node.ends.length ? node.ends : node.who,
    frame = node.frame;
  return (
    <>
      <div class="pane">
        <b class="mono wrap">{node.name}</b>
        <p class="mid">
          {frame
            ? `${frame.file}:${frame.line ?? "?"}`
            : node.native?.file
              ? `${node.native.file}:${node.native.line ?? "?"}`
              : (node.native?.module ?? node.where)}
        </p>
        <p class="dim">
          {node.who.length} of {total.toLocaleString("en")}: {names(node.who, !cluster)}
          {first.thread.gil ? ", holds the GIL" : ""}
        </p>
      </div>
      {cluster ? (
        <p class="pane dim">
          Variables, the source and what a thread waits for are on its node: the service there shows them.
        </p>
      ) : (
        <Single node={node} first={first} past={past} shown={shown} />
      )}
    </>
  );
}

// What is known of one thread, which a node of the tree stands for.
function Single({ node, first, past, shown }: { node: Node; first: Who; past: boolean; shown: Shown }) {
  const w = first.thread.waits_for;
  return (
    <>
      <Source node={node} pid={first.process.pid} />
      <div class="pane">
        <b>Waits for</b>
        <ul class="chain">
          <li>
            {first.process.label}, thread {first.thread.name} (tid {first.thread.tid}):{" "}
            <StateTag state={thread_state(first.thread)} word={wait_words(first.thread)} title={first.thread.state} />
          </li>
          {w?.seconds !== undefined && <li>for {seconds(w.seconds)}</li>}
          {(w?.holder_tid || w?.holder_pid) && (
            <li>
              held by {w.holder_pid ? `pid ${w.holder_pid}` : ""}{" "}
              {w.holder_tid
                ? `thread ${first.process.threads.find((t) => t.tid === w.holder_tid)?.name ?? w.holder_tid} ` +
                  `(tid ${w.holder_tid})`
                : ""}
            </li>
          )}
          {w?.absent_ranks && <li>not there: ranks {w.absent_ranks}</li>}
          {first.process.verdict && (
            <li class="end">
              <b>{first.process.verdict}</b>
            </li>
          )}
        </ul>
        {first.process.notes.map((n) => (
          <p key={n} class="dim">
            {n}
          </p>
        ))}
      </div>
      {past ? (
        <p class="pane dim">Variables are not recorded with the stacks.</p>
      ) : (
        <Locals pid={first.process.pid} shown={shown} />
      )}
    </>
  );
}

// Who is at the end of a stack, and what each does; of a cluster's ranks the latter is not known.
function ends_text(node: Node, threads: boolean): string {
  const states = new Set(
    node.ends
      .filter((w) => w.thread.state)
      .map(
        (w) =>
          `${state_word(thread_state(w.thread), w.thread)}` +
          `${w.thread.waits_for?.seconds !== undefined ? ` for ${seconds(w.thread.waits_for.seconds)}` : ""}`,
      ),
  );
  return `${names(node.ends, threads)}${states.size ? `: ${[...states].slice(0, 3).join("; ")}` : ""}`;
}

function Tree({
  rows,
  picked,
  pick,
  closed,
  toggle,
  processes,
  threads,
}: {
  rows: Shown[];
  picked: string;
  pick(path: string): void;
  closed: Set<string>;
  toggle(path: string): void;
  processes: number;
  threads: boolean;
}) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    box.current?.querySelector<HTMLElement>('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
  }, [picked]);
  return (
    <div class="tree" role="tree" aria-label="Merged stacks" ref={box}>
      {rows.map(({ node, path }, i) => {
        const odd = is_odd(node, processes);
        return (
          <>
            <div
              key={path}
              role="treeitem"
              aria-level={node.depth + 1}
              aria-selected={path === picked}
              aria-expanded={node.children.length ? !closed.has(path) : undefined}
              tabIndex={path === picked || (!picked && i === 0) ? 0 : -1}
              class={`${odd ? "odd" : ""}${processes > 1 ? "" : " one"}`}
              onClick={() => pick(path)}
            >
              <span class="num">{node.who.length}</span>
              {processes > 1 ? <Strip node={node} of={processes} odd={odd} /> : <span />}
              <span class="cut" style={{ paddingLeft: `${Math.min(node.depth, 40) * 10}px` }} title={node.name}>
                <span
                  class="twist"
                  onClick={(e) => {
                    e.stopPropagation();
                    toggle(path);
                  }}
                >
                  {node.children.length ? (closed.has(path) ? "▸" : "▾") : ""}
                </span>
                <span class={`fn ${node.kind}`}>{node.name}</span>
              </span>
              <span class="at" title={node.frame?.file}>
                {node.where}
              </span>
            </div>
            {node.ends.length > 0 && !closed.has(path) && (
              <div key={`${path}!`} class="ends">
                {ends_text(node, threads && processes === 1)}
              </div>
            )}
          </>
        );
      })}
    </div>
  );
}

// The stacks of a moment that was recorded: of a run that has ended its last one, until another is chosen.
function usePast(chosen: Chosen | undefined, target: Target | undefined, dead: boolean) {
  const { args } = useRoute(),
    { recorded, known } = useRecorded(chosen && is_cluster(chosen.target) ? undefined : chosen, target),
    on = dead || args.has("at"),
    [found, set] = useState<{ processes?: Process[]; error?: ApiError; at: number }>({ at: 0 });
  const at = recorded ? Math.max(recorded.from, Math.min(recorded.until, Number(args.get("at")) || recorded.until)) : 0;
  useEffect(() => {
    if (!on || !recorded) return;
    let gone = false;
    const wait = setTimeout(
      () =>
        stacks_at(recorded, at, target?.command ?? "").then(
          (processes) => {
            if (!gone) set({ processes, at });
          },
          (error) => {
            if (!gone) set({ error, at });
          },
        ),
      60,
    );
    return () => {
      gone = true;
      clearTimeout(wait);
    };
  }, [on, recorded?.of.target, recorded?.until, at]);
  return { ...found, on, recorded, known, at, shown: found.at };
}

function Slider({ of, at, dead }: { of: Recorded; at: number; dead: boolean }) {
  const to = (t: number) => put({ at: Math.max(of.from, Math.min(of.until, t)).toFixed(2), frame: null }),
    [playing, play] = useState(false);
  useEffect(() => {
    if (playing) {
      const t = setTimeout(() => (at >= of.until ? play(false) : to(at + 1)), 400);
      return () => clearTimeout(t);
    }
  }, [playing, at]);
  useKeys({ a: () => to(at - 1), d: () => to(at + 1) });
  return (
    <>
      <Times
        of={of}
        marks={[]}
        at={at}
        choose={(r) => to(r.until)}
        label={`Recorded from ${clock(of.from * 1000)} to ${clock(of.until * 1000)}: shown is ${clock(at * 1000)}`}
      />
      <div class="bar">
        <input
          class="slide"
          type="range"
          aria-label="Moment"
          aria-valuetext={clock(at * 1000)}
          min={of.from}
          max={of.until}
          step={0.1}
          value={at}
          onInput={(e) => to(Number(e.currentTarget.value))}
        />
        <b class="mono">{clock(at * 1000)}</b>
        <button class="ctl" title="a" onClick={() => to(at - 1)}>
          1 s back
        </button>
        <button class="ctl" title="d" onClick={() => to(at + 1)}>
          1 s on
        </button>
        <button
          class="ctl"
          onClick={() => {
            if (!playing && at >= of.until) to(of.from);
            play(!playing);
          }}
        >
          {playing ? "Stop" : "Play"}
        </button>
        <a href={href("flame", { from: "record", a: range_text({ from: Math.max(of.from, at - 10), until: at }) })}>
          Flame graph of the 10 s before
        </a>
        <span class="gap" />
        {!dead && (
          <button class="ctl main" onClick={() => put({ at: null, frame: null })}>
            Back to now
          </button>
        )}
      </div>
    </>
  );
}

// Holds the main thread between two bytecodes, and lets it go on.
function Pause({ pid, label, probed }: { pid: number; label: string; probed: boolean }) {
  const [said, set] = useState(""),
    path = `/api/v1/targets/${pid}`,
    held = said !== "";
  if (!probed) return null;
  return (
    <>
      {held && (
        <span class="mid">
          {label} is paused, 10 minutes at most. A prompt in its frame: <code>nc {said.replace(/:(\d+)$/, " $1")}</code>
        </span>
      )}
      {held ? (
        <Act label="Go on" path={`${path}/continue`} done={() => set("")} failed={() => set("")} />
      ) : (
        <Act
          label={`Pause ${label}`}
          danger
          confirm={
            `Holds the main thread of ${label} where it is; what waits for it waits too. It goes on by ` +
            `itself after 10 minutes.`
          }
          path={`${path}/pause`}
          done={(answer) => set(answer.trim())}
        />
      )}
    </>
  );
}

export default function Activity() {
  const about = useTarget(),
    { args } = useRoute(),
    [closed, close] = useState<Set<string>>(new Set());
  const chosen = about?.chosen,
    native = args.get("native") === "1",
    lines = args.get("by") === "line",
    single = !!chosen && !chosen.all,
    cluster = !!chosen && is_cluster(chosen.target);
  const threads = cluster || (args.get("threads") ?? (single ? "all" : "main")) === "all",
    idle = cluster || args.get("idle") === "1",
    [first, choose_first] = useState<string>(),
    picked = args.get("frame") ?? first ?? "";
  const past = usePast(chosen, about?.target, !!about?.dead);
  const one = single && !native && /^\d+$/.test(chosen.target); // its stacks are a topic
  const path =
    !chosen || past.on
      ? null
      : one
        ? `/api/v1/targets/${chosen.target}/stacks`
        : with_args("/api/v1/stacks", { target: chosen.target, all: chosen.all, native });
  const stacks = useLive<(Process | Unread)[] | ClusterStacks>(path, cluster ? 3000 : 1000),
    answered = useMemo(
      () => (!stacks.data || Array.isArray(stacks.data) ? stacks.data : processes_of(stacks.data)),
      [stacks.data],
    );
  const wanted = useRanks(),
    ranks = args.get("ranks"),
    given = useMemo(
      () => (past.on ? past.processes : answered)?.filter((p) => !ranks || wanted(/^rank (\d+)$/.exec(p.label)?.[1])),
      [past.on, past.processes, answered, ranks],
    ),
    read = useMemo(() => (given ?? []).filter((p): p is Process => !p.error), [given]),
    unread = (given ?? []).filter((p): p is Unread => !!p.error);
  const tree = useMemo(() => given && merge(read, { lines, threads, idle }), [given, lines, threads, idle]);
  const rows = tree ? flat(tree.root, closed) : [],
    culprits = useCell(judged).flatMap((j) => j.shown?.pid ?? []);
  // Once, when the stacks have come: later it would take away what somebody looks at.
  useEffect(() => choose_first(undefined), [chosen?.target]);
  useEffect(() => {
    if (first === undefined && rows.length && !past.on && !args.has("culprit"))
      choose_first(first_end(rows, read.length, new Set(culprits))?.path ?? "");
  }, [rows.length, first]);
  const at = rows.findIndex((r) => r.path === picked);
  useCulprit(rows, picked);
  const pick = (p: string) => put({ frame: p }),
    toggle = (p: string) =>
      close((s) => {
        const next = new Set(s);
        if (!next.delete(p)) next.add(p);
        return next;
      });
  const move = (n: number) => {
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + n))];
    if (next) pick(next.path);
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: () => toggle(picked),
    ArrowLeft: () => {
      if (!closed.has(picked)) toggle(picked);
    },
    ArrowRight: () => {
      if (closed.has(picked)) toggle(picked);
    },
    Escape: () => {
      choose_first("");
      put({ frame: null });
    },
  });
  if (!about || !chosen) return <NeedTarget what="Stacks: what every thread of a process is doing." />;
  const text = command("-t", chosen.target, chosen.all && "--all", "backtrace", native && "--native"),
    foot =
      past.recorded && past.on ? (
        <Foot
          command={command(
            "-t",
            past.recorded.of.target,
            past.recorded.of.all && "--all",
            "query",
            moment_sql(past.recorded, past.at),
          )}
          curl={curl(with_args("/api/v1/query", { ...past.recorded.of }), moment_sql(past.recorded, past.at))}
        />
      ) : (
        <Foot
          command={text}
          curl={curl(path ?? "/api/v1/stacks")}
          sql="SELECT thread, tid, depth, func, file, lineno, is_gil, state FROM python.backtrace ORDER BY tid, depth"
        />
      );
  const slider = past.on && past.recorded && <Slider of={past.recorded} at={past.at} dead={about.dead} />;
  if (about.dead && !past.recorded)
    return past.known ? (
      <>
        <div class="body">
          <Blank title="It has ended, and its stacks were not recorded.">
            <p>
              What else it left:{" "}
              <a
                href={href("sql", {
                  q: `SELECT timestamp, thread, depth, function, file, line, locals FROM python.crash_frames
ORDER BY id, thread, depth`,
                })}
              >
                the frames that it died in
              </a>
              , where catch was on;{" "}
              <a
                href={href("sql", {
                  q: `SELECT timestamp, thread, depth, function, file, line FROM python.hang_frames
ORDER BY id, thread, depth`,
                })}
              >
                those of its hangs
              </a>
              ; <a href={href("memory")}>its memory</a>; <a href={href("training")}>its logs</a>.
            </p>
            <p>A recording keeps the stacks of the next run, to its last second:</p>
            <Command text={command("-t", "PID", "record", "--background")} />
          </Blank>
        </div>
        {foot}
      </>
    ) : (
      <Loading what="Looking for what was recorded of it." />
    );
  if (past.error)
    return (
      <>
        {slider}
        <div class="body">
          <NoAnswer error={past.error} title="What was recorded cannot be read." target={chosen.target} />
        </div>
        {foot}
      </>
    );
  if (!past.on && !stacks.data && stacks.error)
    return (
      <>
        <div class="body">
          <NoAnswer error={stacks.error} title="Its stacks cannot be read." target={chosen.target} />
        </div>
        {foot}
      </>
    );
  if (!tree)
    return (
      <>
        {slider}
        <Loading what={past.on ? "Reading what was recorded." : "Reading the stacks."} />
      </>
    );
  const says = words_of(read, tree.root, tree.who, threads),
    shown = rows[at];
  return (
    <>
      {!past.on && <Trouble of={stacks} />}
      {slider}
      <div class="bar">
        <Seg
          value={lines ? "line" : "function"}
          of={{ function: "By function", line: "By line" }}
          on={(v) => put({ by: v === "line" ? "line" : null, frame: null })}
          label="Equal by"
        />
        {!cluster && (
          <Switch on={threads} set={(on) => put({ threads: on ? "all" : "main" })}>
            All threads
          </Switch>
        )}
        {!cluster && (
          <Switch on={idle} set={(on) => put({ idle: on ? "1" : null })}>
            Idle threads
          </Switch>
        )}
        <Switch on={native} set={(on) => put({ native: on ? "1" : null, frame: null })}>
          Native frames
        </Switch>
        <span class="gap" />
        {!past.on && single && !cluster && read.length === 1 && (
          <Pause pid={read[0].pid} label={read[0].label} probed={about.probed} />
        )}
        <span class="dim">
          {some(read.length, cluster ? "rank" : "process", cluster ? "ranks" : "processes")}
          {unread.length ? ` of ${given!.length}` : ""},{" "}
          {past.on
            ? `as recorded at ${clock(past.shown * 1000)}`
            : `${stacks.asked ? `read in ${Math.round(stacks.asked)} ms` : "read"} at ${clock(stacks.at)}`}
        </span>
        {!past.on && past.recorded && (
          <button class="ctl" onClick={() => put({ at: past.recorded!.until.toFixed(2), frame: null })}>
            Go back in time
          </button>
        )}
      </div>
      <div class="note info">
        <b>{says}</b>
        {tree.hidden > 0 && <span class="dim">{some(tree.hidden, "thread")} not shown.</span>}
      </div>
      {unread.length > 0 && (
        <div class="note bad" role="alert">
          <span>
            <b>
              {read.length} of {given!.length} processes answered.
            </b>{" "}
            No answer from{" "}
            {unread
              .map((u) => `${u.label} (${u.error})`)
              .slice(0, 6)
              .join(", ")}
            {unread.length > 6 ? ` and ${unread.length - 6} more` : ""}.
          </span>
        </div>
      )}
      <div class="body split">
        <Tree
          rows={rows}
          picked={picked}
          pick={pick}
          closed={closed}
          toggle={toggle}
          processes={read.length}
          threads={threads}
        />
        <aside>
          {shown ? (
            <Detail shown={shown} total={tree.who.length} past={past.on} cluster={cluster} />
          ) : (
            <p class="pane dim">
              Choose a frame, with the mouse or with j and k: its place, its variables, and what it waits for stand
              here.
            </p>
          )}
        </aside>
      </div>
      {foot}
    </>
  );
}
