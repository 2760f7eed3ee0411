// One lane a process, a column a look: what each was doing since the page was opened.
import { useEffect, useRef } from "preact/hooks";
import { clock } from "../format";
import { flame_of } from "../plot-parts";
import { LANES, WORDS, type State } from "../states";
import { colour, repaint, useCell } from "../store";
import type { Line } from "./now-rows";

const KEEP = 900;
const looks: { at: number; states: Map<string, State> }[] = [];

// A look a second; what is older is left out.
function columns(width: number): { w: number; first: number } {
  const w = Math.max(1, Math.min(6, width / looks.length));
  return { w, first: Math.max(0, looks.length - Math.floor(width / w)) };
}

export function Lanes({ lines, at }: { lines: Line[]; at: number }) {
  const canvas = useRef<HTMLCanvasElement>(null),
    paint = useCell(repaint),
    height = Math.min(260, Math.max(24, lines.length * 14));
  if (at && looks.at(-1)?.at !== at) {
    looks.push({ at, states: new Map(lines.map((l) => [l.id, l.st])) });
    if (looks.length > KEEP) looks.shift();
  }
  const seen = [...new Set(lines.flatMap((l) => looks.map((k) => k.states.get(l.id)).filter((s): s is State => !!s)))];
  useEffect(() => {
    const c = canvas.current;
    if (!c) return;
    const width = c.clientWidth,
      ratio = devicePixelRatio,
      x = c.getContext("2d")!;
    c.width = width * ratio;
    c.height = height * ratio;
    x.scale(ratio, ratio);
    const colours = Object.fromEntries(seen.map((s) => [s, colour(LANES[s])]));
    const { w, first } = columns(width),
      lane = height / lines.length;
    looks.slice(first).forEach((look, i) =>
      lines.forEach((l, row) => {
        const s = look.states.get(l.id);
        if (!s) return;
        x.fillStyle = colours[s];
        x.fillRect(i * w, row * lane, w + 0.5, Math.max(1, lane - 1));
      }),
    );
  }, [at, paint, lines.length, height]);
  // A drag is the flame graph of that time, of the process whose lane it began in.
  const begun = useRef({ x: 0, y: 0 }),
    over = (e: PointerEvent) => {
      const { width } = canvas.current!.getBoundingClientRect(),
        { w, first } = columns(width),
        a = Math.min(begun.current.x, e.offsetX),
        b = Math.max(begun.current.x, e.offsetX),
        time = (x: number) => looks[Math.max(0, Math.min(looks.length - 1, first + Math.floor(x / w)))].at / 1000;
      const line = lines[Math.floor((begun.current.y / height) * lines.length)];
      if (b - a > 4 && line) flame_of(time(a) - 1, time(b), { target: String(line.pid), all: null });
    };
  if (looks.length < 2 || !lines.length) return null;
  return (
    <>
      <div class="sec">
        <h2>Since {clock(looks[0].at)}</h2>
        <span class="say opt">one lane a process, in the order above; a drag shows the flame graph of that time</span>
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
          ref={canvas}
          role="img"
          onPointerDown={(e) => {
            begun.current = { x: e.offsetX, y: e.offsetY };
            e.currentTarget.setPointerCapture(e.pointerId);
          }}
          onPointerUp={over}
          style={{ height: `${height}px` }}
          aria-label={`States of ${lines.length} processes since ${clock(looks[0].at)}: ${lines
            .slice(0, 20)
            .map((l) => `${l.rank ?? l.pid} ${WORDS[l.st]}`)
            .join(", ")}`}
        />
      </div>
    </>
  );
}
