// One lane a process: what each was doing in the last 15 minutes, or in the time that was chosen.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { with_args } from "../api";
import { clock } from "../format";
import { useLive } from "../live";
import { put, range_text, useChosen, useRange, useSpan } from "../route";
import { LANES, WORDS, type State } from "../states";
import { colour, repaint, useCell } from "../store";
import { stretches_of, timeline_sql, type Look, type Recorded_cell, type Stretch } from "../timeline";
import { name_of, type Line } from "./now-rows";

const KEEP = 900;
const looks: Look[] = [];
const GUTTER = 76; // for the names, where lanes are high enough for them
const NAMED_PX = 12;

function remember(lines: Line[], at: number) {
  if (!at || looks.at(-1)?.at === at / 1000) return;
  looks.push({ at: at / 1000, states: new Map(lines.map((l) => [l.pid, l.st])) });
  if (looks.length > KEEP) looks.shift();
}

interface Drawn {
  lines: Line[];
  lanes: Stretch[][];
  from: number;
  until: number;
  picked: { from: number; until: number } | null;
}

function draw(c: HTMLCanvasElement, height: number, of: Drawn) {
  const width = c.clientWidth,
    ratio = devicePixelRatio,
    x = c.getContext("2d")!,
    lane = height / of.lines.length,
    left = lane >= NAMED_PX ? GUTTER : 0,
    scale = (width - left) / (of.until - of.from);
  c.width = width * ratio;
  c.height = height * ratio;
  x.scale(ratio, ratio);
  x.font = "11px system-ui, sans-serif";
  x.textBaseline = "middle";
  const at = (t: number) => left + Math.max(0, Math.min(width - left, (t - of.from) * scale));
  x.fillStyle = colour("--bg-2");
  x.fillRect(left, 0, width - left, height);
  of.lanes.forEach((stretches, row) => {
    if (left) {
      x.fillStyle = colour("--fg-2");
      x.fillText(name_of(of.lines[row]), 0, (row + 0.5) * lane, left - 6);
    }
    for (const s of stretches) {
      if (s.until < of.from || s.from > of.until) continue;
      x.fillStyle = colour(LANES[s.state]);
      x.fillRect(at(s.from), row * lane, Math.max(1, at(s.until) - at(s.from)), Math.max(1, lane - 1));
    }
  });
  if (of.picked) {
    x.fillStyle = colour("--focus");
    x.globalAlpha = 0.25;
    x.fillRect(at(of.picked.from), 0, at(of.picked.until) - at(of.picked.from), height);
    x.globalAlpha = 1;
  }
}

// What was at that place.
function tell(line: Line | undefined, lane: Stretch[] | undefined, t: number): string {
  const s = lane?.find((q) => q.from <= t && q.until >= t);
  if (!line || !s) return clock(t * 1000);
  const when = `${clock(s.from * 1000)} to ${clock(s.until * 1000)}`;
  return `${name_of(line)}: ${WORDS[s.state]}, ${when}${s.recorded ? ", as recorded" : ""}`;
}

// What was recorded: of the agents that are in these processes.
function useCells(probed: number[], live: boolean): Recorded_cell[] {
  const chosen = useChosen(),
    range = useRange(),
    one = probed.length === 1 ? probed[0] : null,
    sql = timeline_sql(range.where.replace(" WHERE ", "") || "timestamp > now() - INTERVAL 15 MINUTES", one);
  // What comes later is seen by the page itself, as long as it is open.
  const rows = useLive<Recorded_cell[]>(
    probed.length ? with_args("/api/v1/query", one ? { target: one } : { target: chosen?.target, all: true }) : null,
    live ? 120000 : Infinity,
    sql,
  );
  return rows.data ?? NONE;
}
const NONE: Recorded_cell[] = [];

export function Lanes({ lines, at, probed }: { lines: Line[]; at: number; probed: number[] }) {
  const canvas = useRef<HTMLCanvasElement>(null),
    paint = useCell(repaint),
    span = useSpan(at / 1000),
    cells = useCells(probed, span.live),
    height = Math.min(320, Math.max(24, lines.length * 16));
  const [drag, set] = useState<{ a: number; b: number } | null>(null),
    [hover, point] = useState<{ row: number; t: number } | null>(null);
  remember(lines, at);
  const pids = lines.map((l) => l.pid).join(),
    lanes = useMemo(() => lines.map((l) => stretches_of(l.pid, cells, looks)), [pids, cells, at]);
  const picked = drag && { from: Math.min(drag.a, drag.b), until: Math.max(drag.a, drag.b) };
  useEffect(() => {
    if (canvas.current && lines.length) draw(canvas.current, height, { lines, lanes, ...span, picked });
  }, [lanes, paint, height, span.from, span.until, drag?.b]);
  const left = height / lines.length >= NAMED_PX ? GUTTER : 0;
  const time = (e: PointerEvent) => {
    const { width } = canvas.current!.getBoundingClientRect();
    return span.from + (Math.max(0, e.offsetX - left) / (width - left)) * (span.until - span.from);
  };
  const over = hover && tell(lines[hover.row], lanes[hover.row], hover.t);
  if (!lines.length || !lanes.some((l) => l.length)) return null;
  const seen = [...new Set(lanes.flatMap((l) => l.map((s) => s.state)))] as State[];
  return (
    <>
      <div class="sec">
        <h2>{span.text}</h2>
        <span class="say opt">
          {over || "a lane a process; a drag chooses a time for all views, w and s zoom, a and d move"}
        </span>
        <span class="gap" />
        <span class="keys">
          {seen.map((s) => (
            <span class="key" key={s}>
              <i style={{ background: `var(${LANES[s]})` }} />
              {WORDS[s]}
            </span>
          ))}
        </span>
      </div>
      <div class="chart">
        <canvas
          class="lanes"
          ref={canvas}
          role="img"
          onPointerDown={(e) => {
            const t = time(e);
            set({ a: t, b: t });
            e.currentTarget.setPointerCapture(e.pointerId);
          }}
          onPointerMove={(e) => {
            point({
              row: Math.max(0, Math.min(lines.length - 1, Math.floor((e.offsetY / height) * lines.length))),
              t: time(e),
            });
            if (drag) set({ a: drag.a, b: time(e) });
          }}
          onPointerLeave={() => point(null)}
          onPointerUp={() => {
            set(null);
            if (picked && picked.until - picked.from > (span.until - span.from) / 200)
              put({ range: range_text(picked) });
          }}
          style={{ height: `${height}px` }}
          aria-label={`States of ${lines.length} processes, ${span.text}: ${lines
            .slice(0, 20)
            .map((l) => `${l.rank ?? l.pid} ${WORDS[l.st]}`)
            .join(", ")}`}
        />
        <div class="ticks" style={{ paddingLeft: `${left}px` }}>
          {[0, 1, 2, 3].map((i) => (
            <span key={i}>{clock(1000 * (span.from + (i * (span.until - span.from)) / 3))}</span>
          ))}
        </div>
      </div>
    </>
  );
}
