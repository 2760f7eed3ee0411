// The page's frame: header, side bar, the view of the address.
import { render, type ComponentType } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Service, Target } from "./api";
import { clock, job_name } from "./format";
import { useKeys } from "./keys";
import { useLive } from "./live";
import { current, go, href, put, range_text, span_of, useChosen, useRoute } from "./route";
import { moved } from "./timeline";
import { paused, theme, useCell } from "./store";
import { Cost } from "./cost";
import { job_link, JobGlyph, JobSays, jobs_of, judged_of, Picker, type Job } from "./jobs";
import { Ended } from "./pick";
import { Seg, Trouble } from "./ui";
import { judged, useDiagnosis, VerdictBar } from "./verdict";
import { VIEWS } from "./views";

function Side({ jobs }: { jobs: Job[] }) {
  const { view } = useRoute(),
    chosen = useChosen(),
    [more, set] = useState(false),
    all = useCell(judged);
  const link = (v: (typeof VIEWS)[number], cls = "") => (
    <a
      key={v.name}
      class={cls}
      href={href(v.name)}
      aria-current={v.name === view ? "page" : undefined}
      onClick={() => set(false)}
    >
      {v.title}
      <kbd>g {v.key}</kbd>
    </a>
  );
  return (
    <nav class="side" aria-label="Views">
      {VIEWS.map((v, i) => link(v, i < 4 ? "" : "rest"))}
      {VIEWS.length > 4 && (
        <span class="more">
          <button aria-expanded={more} onClick={() => set(!more)}>
            More
          </button>
          {more && <span class="pop">{VIEWS.slice(4).map((v) => link(v))}</span>}
        </span>
      )}
      <h2>Jobs</h2>
      {jobs.slice(0, 12).map((j) => (
        <a
          key={j.targets[0].id}
          class="job"
          href={href(view, job_link(j))}
          title={j.command}
          aria-current={chosen && job_link(j).target === chosen.target ? "true" : undefined}
        >
          <b>
            <JobGlyph job={j} found={judged_of(j, all)} />
            <span class="cut">{job_name(j.command)}</span>
          </b>
          <span>
            <JobSays job={j} found={judged_of(j, all)} />
          </span>
        </a>
      ))}
    </nav>
  );
}

const LAST = [
  ["", "Any time"],
  ["60", "Last minute"],
  ["300", "Last 5 minutes"],
  ["900", "Last 15 minutes"],
  ["3600", "Last hour"],
  ["86400", "Last day"],
];

// Which time, and of a job which ranks: they stay from view to view.
function Within() {
  const { args, view } = useRoute(),
    chosen = useChosen(),
    range = args.get("range") ?? "",
    ranks = args.get("ranks") ?? "",
    at = useRef<HTMLSelectElement>(null),
    fixed = /^([\d.]+)-([\d.]+)$/.exec(range);
  const move = (key: "w" | "a" | "s" | "d") => () => {
    const now = Date.now() / 1000,
      from = (view === "flame" && args.get("a")) || range;
    put({ range: range_text(moved(span_of(from, now), key, now)), a: null });
  };
  useKeys({
    R: () => at.current?.focus(),
    ...(RANGED.has(view) ? { w: move("w"), a: move("a"), s: move("s"), d: move("d") } : {}),
  });
  return (
    <>
      {chosen?.all && (
        <input
          class="ctl"
          size={10}
          aria-label="Ranks"
          title="Of its ranks: 0-3, 7"
          placeholder="Ranks: all"
          value={ranks}
          onChange={(e) => put({ ranks: e.currentTarget.value.trim() })}
        />
      )}
      {(chosen || view === "now") && RANGED.has(view) && (
        <select
          class="ctl"
          ref={at}
          aria-label="Time"
          title="Of which time (R)"
          value={range}
          onChange={(e) => put({ range: e.currentTarget.value })}
        >
          {fixed && (
            <option value={range}>
              {clock(Number(fixed[1]) * 1000)} to {clock(Number(fixed[2]) * 1000)}
            </option>
          )}
          {LAST.map(([v, name]) => (
            <option key={v} value={v}>
              {name}
            </option>
          ))}
        </select>
      )}
      {fixed && view !== "flame" && (
        <a class="ctl opt" href={href("flame", { from: "record", a: range })} title="What ran in the chosen time">
          Flame graph
        </a>
      )}
    </>
  );
}
const RANGED = new Set(["now", "flame", "torch", "memory", "training"]);

function Help({ close }: { close(): void }) {
  useKeys({ Escape: close, "?": close });
  const keys: [string, string][] = [
    ...VIEWS.map((v): [string, string] => [`g ${v.key}`, v.title]),
    ["t", "choose processes"],
    ["R", "choose the time"],
    ["Space", "live or paused"],
    ["/", "search"],
    ["j k", "next, former row"],
    ["Enter", "open"],
    ["Esc", "back"],
    ["y", "copy as command"],
    ["Y", "copy link"],
    ["S", "save as one file"],
    ["q", "the query behind"],
    ["x", "diff, in Flame"],
    ["w s", "zoom the time in, out"],
    ["a d", "back, on in time"],
    ["Ctrl Enter", "run"],
    ["?", "this map"],
  ];
  return (
    <div class="pop sheet" role="dialog" aria-label="Keys">
      <b>Keys</b>
      <dl>
        {keys.map(([k, what]) => (
          <>
            <dt>
              <kbd>{k}</kbd>
            </dt>
            <dd>{what}</dd>
          </>
        ))}
      </dl>
    </div>
  );
}

function useView(): { View: ComponentType | undefined; lost: boolean } {
  const { view } = useRoute(),
    [loaded, set] = useState<{ name: string; it: ComponentType }>(),
    [lost, lose] = useState(false);
  // The service was away, or is another one now, whose files have other names.
  useEffect(() => {
    if (!lost) return;
    const look = setInterval(
      () =>
        void fetch("/health", { cache: "no-store" }).then(
          (a) => {
            if (a.ok) location.reload();
          },
          () => {},
        ),
      2000,
    );
    return () => clearInterval(look);
  }, [lost]);
  useEffect(() => {
    const wanted = VIEWS.find((v) => v.name === view) ?? VIEWS[0];
    document.title = `${wanted.title} - Probing`;
    let gone = false;
    void wanted.load().then(
      (m) => {
        if (!gone) {
          set({ name: view, it: m.default });
          lose(false);
        }
      },
      () => {
        if (!gone) lose(true);
      },
    );
    return () => {
      gone = true;
    };
  }, [view]);
  return { View: loaded?.name === view ? loaded.it : undefined, lost };
}

function App() {
  const { View, lost } = useView(),
    targets = useLive<Target[]>("/api/v1/targets", 2000),
    service = useLive<Service>("/api/v1/service", Infinity);
  const { view } = useRoute(),
    still = useCell(paused),
    dress = useCell(theme),
    [help, ask] = useState(false),
    [sheet, open_sheet] = useState(false),
    jobs = jobs_of(targets.data ?? []);
  useEffect(() => open_sheet(false), [view]);
  useKeys({
    ...(sheet ? { Escape: () => open_sheet(false) } : {}),
    " ": () => paused.set(!paused.get()),
    "?": () => ask(!help),
    "/": () => document.querySelector<HTMLElement>("main [data-search]")?.focus(),
  });
  useDiagnosis(targets.data);
  // A service that was started for one process opens on it.
  useEffect(() => {
    const own = service.data?.target;
    if (own && !location.hash) go(current().view, { target: own });
  }, [service.data]);
  return (
    <div class="app">
      <a
        class="skip"
        href="#main"
        onClick={(e) => {
          e.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        To the view
      </a>
      <header class="head">
        <h1 class="sr">{`Probing: ${VIEWS.find((v) => v.name === view)?.title ?? "Now"}`}</h1>
        <a class="brand" href="#/now">
          Probing
        </a>
        <Picker jobs={jobs} />
        <button
          class="ctl controls-open"
          aria-expanded={sheet}
          aria-controls="controls"
          onClick={() => open_sheet(!sheet)}
        >
          Controls
        </button>
        <div id="controls" class={`controls${sheet ? " open" : ""}`}>
          <Within />
          <Seg
            value={still ? "paused" : "live"}
            of={{ live: "Live", paused: "Paused" }}
            on={(v) => paused.set(v === "paused")}
            label="Live or paused (Space)"
          />
          {service.data?.read_only && (
            <span class="tag" title="The service was started with --read-only">
              read only
            </span>
          )}
          <span class="gap" />
          <Cost />
          <select
            class="ctl"
            aria-label="Colours"
            value={dress}
            onChange={(e) => theme.set(e.currentTarget.value as "system")}
          >
            <option value="system">System</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
          <button class="ctl opt" aria-label="Keys" title="Keys (?)" onClick={() => ask(!help)}>
            ?
          </button>
        </div>
      </header>
      <Side jobs={jobs} />
      <main id="main" tabIndex={-1}>
        {still && (
          <div class="note info" role="status">
            Paused. The jobs go on; this page does not. Space goes on.
          </div>
        )}
        <Trouble of={targets} away />
        <Ended targets={targets.data} />
        <VerdictBar targets={targets.data} />
        {View ? (
          <View />
        ) : (
          lost && (
            <div class="note bad" role="alert">
              <span>
                <b>This view could not be fetched from the service.</b> The page opens anew as soon as it answers.
              </span>
            </div>
          )
        )}
      </main>
      {help && <Help close={() => ask(false)} />}
    </div>
  );
}

const app = document.getElementById("app")!;
app.textContent = "";
render(<App />, app);
