// Debug: breakpoints and log points with their hits, and a debugger for VS Code.
import { useEffect, useState } from "preact/hooks";
import { ApiError, ask, command, curl, with_args, type Row } from "../api";
import { count } from "../format";
import { useLive } from "../live";
import { NeedTarget, useTarget } from "../pick";
import { href, useRoute } from "../route";
import { Blank, Command, Copy, Foot, Loading, Seg, Trouble, why } from "../ui";
import { Act, NoRows, useReadOnly } from "./record";

interface Point {
  number: number;
  action: string;
  place: string;
  condition: string | null;
  hits: number;
  errors: number;
}
const KINDS = { log: "Log", stop: "Stop" };
const HITS = `SELECT timestamp, file, line, function, thread_id, stopped, message, error FROM python.break_hits
ORDER BY timestamp DESC LIMIT 200`;

function Set({ target, done }: { target: string; done(): void }) {
  const { args } = useRoute(),
    [kind, choose] = useState<keyof typeof KINDS>("log"),
    [place, at] = useState(args.get("place") ?? ""),
    [condition, when] = useState(""),
    [text, log] = useState("");
  const [state, set] = useState<{ busy: boolean; error?: ApiError; said?: string }>({ busy: false }),
    fixed = useReadOnly();
  useEffect(() => {
    if (args.get("place")) at(args.get("place")!);
  }, [args.get("place")]);
  const change = !/:\d+$/.test(place.trim()) && /^[^:]+@[\w.<>]+$/.test(place.trim());
  const body = change
    ? `if ${condition.trim() || "True"}`
    : `${place.trim()}${condition.trim() ? ` if ${condition.trim()}` : ""}`;
  const path = with_args(`/api/v1/targets/${encodeURIComponent(target)}/breakpoints`, {
    log: kind === "log" ? text || "{}" : null,
    on_change: change ? place.trim() : null,
  });
  const run = () => {
    set({ busy: true });
    ask(path, { body }).then(
      async (a) => {
        set({ busy: false, said: (await a.text()).trim() });
        done();
      },
      (error) => set({ busy: false, error }),
    );
  };
  const ready = !fixed && !state.busy && place.trim() && (kind === "stop" || text.trim());
  return (
    <form
      class="form"
      onSubmit={(e) => {
        e.preventDefault();
        if (ready) run();
      }}
    >
      <div class="line">
        <Seg value={kind} of={KINDS} on={choose} label="What happens at the place" />
        <span class="mid">
          {kind === "log"
            ? "records a text at each hit; the program goes on"
            : "holds the thread that comes there, until somebody connects and lets it go, 10 minutes at most"}
        </span>
      </div>
      <div class="line">
        <label>
          Where{" "}
          <input
            class="ctl mono"
            data-search
            placeholder="train.py:42, or lr@train ( / )"
            value={place}
            onInput={(e) => at(e.currentTarget.value)}
          />
        </label>
        <label>
          If{" "}
          <input
            class="ctl mono"
            placeholder="loss > 10"
            value={condition}
            onInput={(e) => when(e.currentTarget.value)}
          />
        </label>
        {kind === "log" && (
          <label>
            Text{" "}
            <input
              class="ctl mono"
              placeholder="step={step} loss={loss:.3f}"
              value={text}
              onInput={(e) => log(e.currentTarget.value)}
            />
          </label>
        )}
        <button class="ctl main" disabled={!ready} title={fixed ? "The service only reads: --read-only" : undefined}>
          {kind === "log" ? "Set log point" : "Set breakpoint"}
        </button>
      </div>
      {state.error && <p class="bad wrap">{why(state.error)}</p>}
      {state.said && (
        <p class="wrap">
          Set.{" "}
          {kind === "stop" ? (
            <>
              A prompt in the frame, once it is hit: <code>{state.said}</code>
            </>
          ) : (
            <code>{state.said}</code>
          )}
        </p>
      )}
    </form>
  );
}

function launch(address: string): string {
  const cut = address.lastIndexOf(":");
  return JSON.stringify(
    {
      version: "0.2.0",
      configurations: [
        {
          name: "probing",
          type: "debugpy",
          request: "attach",
          connect: { host: address.slice(0, cut), port: Number(address.slice(cut + 1)) },
          justMyCode: true,
        },
      ],
    },
    null,
    4,
  );
}

function Debugger({ target }: { target: string }) {
  const [address, set] = useState(sessionStorage.getItem(`debug ${target}`) ?? ""),
    id = encodeURIComponent(target);
  const keep = (text: string) => {
    set(text);
    if (text) sessionStorage.setItem(`debug ${target}`, text);
    else sessionStorage.removeItem(`debug ${target}`);
  };
  return (
    <>
      <div class="sec">
        <h2>VS Code</h2>
        <span class="say">the Debug Adapter Protocol, served by the agent</span>
      </div>
      <div class="pane">
        {!address ? (
          <>
            <p class="mid">
              Breakpoints, steps, variables and code in a frame, from an editor. Only a thread that comes to a
              breakpoint stops; who disconnects leaves the program at full speed.
            </p>
            <p>
              <Act label="Serve a debugger" path={`/api/v1/targets/${id}/debug`} done={(said) => keep(said.trim())} />
            </p>
          </>
        ) : (
          <>
            <p>
              It listens at <b class="mono">{address}</b>, for you and root. On another machine first:{" "}
              <code>
                ssh -L {address.split(":").pop()}:{address} {location.hostname}
              </code>
            </p>
            <pre class="text">{launch(address)}</pre>
            <p class="line">
              <Copy text={launch(address)}>Copy launch.json</Copy>{" "}
              <Act
                label="Stop listening"
                danger
                plain
                path={`/api/v1/targets/${id}/debug/stop`}
                done={() => keep("")}
                failed={() => keep("")}
              />
            </p>
          </>
        )}
      </div>
    </>
  );
}

export default function Debug() {
  const about = useTarget(),
    one = about && !about.chosen.all ? about.chosen.target : null,
    id = one ? encodeURIComponent(one) : "",
    probed = !!about?.probed,
    live = one && probed;
  const points = useLive<Point[]>(live ? `/api/v1/targets/${id}/breakpoints` : null, 2000);
  // The table is there from the first breakpoint on.
  const hits = useLive<Row[]>(
    live && points.data?.length ? with_args("/api/v1/query", { target: one }) : null,
    2000,
    HITS,
  );
  if (!about || !one) return <NeedTarget what="Debug: breakpoints, log points and a debugger for a process." />;
  return (
    <>
      <Trouble of={points} />
      <div class="body">
        {about.dead ? (
          <Blank title="It has ended: nothing can be set in it.">
            <p>
              What its breakpoints recorded: <a href={href("sql", { q: HITS })}>python.break_hits</a>.
            </p>
          </Blank>
        ) : !probed ? (
          <NoRows
            what="No agent is in this process."
            target={one}
            probed={false}
            dead={false}
            done={() => points.again()}
          />
        ) : !points.data && !points.error ? (
          <Loading what="Reading its breakpoints." />
        ) : (
          <div class="split">
            <div>
              <Set target={one} done={() => points.again()} />
              <div class="sec">
                <h2>Breakpoints and log points</h2>
                <span class="say">{count(points.data?.length ?? 0)}</span>
              </div>
              {!points.data?.length ? (
                <p class="pane dim">
                  There is none. From Python 3.12 on one costs nothing but in its own function; before, a trace function
                  is asked at every call, and it ends by itself after a minute.
                </p>
              ) : (
                <table>
                  <thead>
                    <tr>
                      <th class="num">No.</th>
                      <th>Action</th>
                      <th>Place</th>
                      <th class="opt">If</th>
                      <th class="num">Hits</th>
                      <th class="num opt">Errors</th>
                      <th>
                        <span class="sr">More</span>
                      </th>
                    </tr>
                  </thead>
                  <tbody>
                    {points.data.map((p) => (
                      <tr key={p.number}>
                        <td class="num">{p.number}</td>
                        <td>{p.action}</td>
                        <td class="cut mono" title={p.place}>
                          {p.place}
                        </td>
                        <td class="opt mono wrap">{p.condition ?? ""}</td>
                        <td class="num">{count(p.hits)}</td>
                        <td class={`num opt ${p.errors ? "warn" : "dim"}`}>{count(p.errors)}</td>
                        <td>
                          <Act
                            label="Remove"
                            danger
                            plain
                            path={`/api/v1/targets/${id}/breakpoints/stop`}
                            body={String(p.number)}
                            done={() => points.again()}
                          />
                        </td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              )}
              {hits.data && hits.data.length > 0 && (
                <>
                  <div class="sec">
                    <h2>Hits</h2>
                    <span class="say">the newest {count(hits.data.length)}</span>
                    <span class="gap" />
                    <a href={href("sql", { q: HITS })}>As SQL</a>
                  </div>
                  <table>
                    <thead>
                      <tr>
                        <th>When</th>
                        <th class="opt">Place</th>
                        <th>What</th>
                      </tr>
                    </thead>
                    <tbody>
                      {hits.data.map((h, i) => (
                        <tr key={i} class={h.stopped ? "odd" : ""}>
                          <td>{String(h.timestamp).slice(11, 23)}</td>
                          <td class="opt mono">
                            {String(h.function)}:{String(h.line)}
                          </td>
                          <td class="mono wrap">
                            {h.error ? (
                              <span class="bad">{String(h.error)}</span>
                            ) : h.stopped ? (
                              `stopped${h.message ? `: ${String(h.message)}` : ""}`
                            ) : (
                              String(h.message ?? "")
                            )}
                          </td>
                        </tr>
                      ))}
                    </tbody>
                  </table>
                </>
              )}
            </div>
            <aside>
              <Debugger target={one} />
              <div class="sec">
                <h2>At a terminal</h2>
              </div>
              <div class="pane">
                <p class="mid">Hold the main thread where it is, with a prompt in its frame:</p>
                <Command text={command("-t", one, "pause")} />
                <p class="mid">Keep the scene of the next exception that ends a thread:</p>
                <Command text={command("-t", one, "catch")} />
              </div>
            </aside>
          </div>
        )}
      </div>
      <Foot
        command={command("-t", one, "break")}
        curl={curl(`/api/v1/targets/${id}/breakpoints`)}
        sql={
          points.data?.length ? HITS : "SELECT name, rows, comment FROM probing.tables WHERE name = 'python.break_hits'"
        }
      />
    </>
  );
}
