// Charts: uPlot with the page's colours. Text in them is drawn, never set as HTML.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colour, repaint, useCell } from "./store";

export interface Series {
  name: string;
  token: string;
  values: (number | null)[];
  unit?: string;
}
export interface PlotProps {
  x: number[];
  series: Series[];
  height?: number;
  time?: boolean;
  bars?: boolean;
  label: string;
  format?(v: number): string;
  range?(from: number, to: number): void;
  spans?: boolean; // lines that have their values at other places than their neighbours
  marks?: { at: number; name: string; token?: string }[];
}

export function Plot({
  x,
  series,
  height = 160,
  time = false,
  bars = false,
  label,
  format,
  range,
  spans = false,
  marks,
}: PlotProps) {
  const box = useRef<HTMLDivElement>(null),
    paint = useCell(repaint);
  const shape = `${series.map((s) => s.name + s.token).join()}${height}${time}${bars}${spans}${paint}`,
    made = useRef<uPlot | undefined>(undefined);
  const data = [x, ...series.map((s) => s.values)] as uPlot.AlignedData,
    held = useRef(marks);
  held.current = marks;
  useEffect(() => {
    const host = box.current!,
      line = colour("--line"),
      text = colour("--fg-3"),
      mark = colour("--bad"),
      font = "11px system-ui, sans-serif";
    const axis = { stroke: text, font, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 } };
    const plot = new uPlot(
      {
        width: host.clientWidth,
        height,
        legend: { show: false },
        cursor: { y: false, drag: { x: !!range, y: false } },
        padding: [8, 8, 0, 0],
        scales: { x: { time } },
        axes: [
          {
            ...axis,
            size: 30,
            values: time
              ? (_, at, __, ___, step) => at.map((v) => new Date(v * 1000).toTimeString().slice(0, step < 60 ? 8 : 5))
              : undefined,
          },
          {
            ...axis,
            size: 64,
            values: (_, at) =>
              at.map((v) =>
                v === null
                  ? ""
                  : format
                    ? format(v)
                    : Math.abs(v) >= 1000
                      ? v.toLocaleString("en-US")
                      : String(Number(v.toPrecision(4))),
              ),
          },
        ],
        series: [
          {},
          ...series.map((s) => ({
            label: s.name,
            stroke: colour(s.token),
            fill: bars ? colour(s.token) : undefined,
            width: bars ? 0 : 1.5,
            points: { show: false },
            spanGaps: spans,
            paths: bars ? uPlot.paths.bars!({ size: [0.8, 40] }) : undefined,
          })),
        ],
        hooks: {
          setSelect: [
            (u) => {
              if (range && u.select.width > 4)
                range(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
            },
          ],
          draw: [
            (u) => {
              for (const m of held.current ?? []) {
                const at = u.valToPos(m.at, "x", true);
                if (at < u.bbox.left || at > u.bbox.left + u.bbox.width) continue;
                u.ctx.fillStyle = m.token ? colour(m.token) : mark;
                u.ctx.fillRect(at, u.bbox.top, 1, u.bbox.height);
                if (m.token) {
                  u.ctx.fillStyle = text;
                  u.ctx.font = font;
                  u.ctx.textAlign = "left";
                  u.ctx.textBaseline = "top";
                  u.ctx.fillText(m.name, at + 3, u.bbox.top);
                }
              }
            },
          ],
        },
      },
      data,
      host,
    );
    made.current = plot;
    const watch = new ResizeObserver(() => plot.setSize({ width: host.clientWidth, height }));
    watch.observe(host);
    return () => {
      watch.disconnect();
      plot.destroy();
      made.current = undefined;
    };
  }, [shape]);
  useEffect(() => {
    made.current?.setData(data);
  }, [x, ...series.map((s) => s.values), marks?.length]);
  const last = series
    .map((s) => {
      const v = s.values.at(-1);
      return `${s.name} ${v === null || v === undefined ? "none" : format ? format(v) : v}`;
    })
    .join(", ");
  return (
    <div class="chart">
      <div ref={box} role="img" aria-label={`${label}: ${x.length} points, at the end ${last}`} />
    </div>
  );
}
