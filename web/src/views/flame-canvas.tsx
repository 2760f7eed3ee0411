// The boxes of a flame graph: a canvas of what is in sight.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { at_point, draw, ROW, type Flame } from "../flame";
import { count } from "../format";
import { colour, repaint, useCell } from "../store";

const TOKENS: Record<string, string> = {
  all: "--fl-all",
  wait: "--fl-wait",
  own0: "--fl-own",
  own1: "--fl-own-2",
  lib0: "--fl-lib",
  lib1: "--fl-lib-2",
  nat0: "--fl-nat",
  nat1: "--fl-nat-2",
  text: "--fl-text",
  hit: "--fl-hit",
  more0: "--df-more",
  more1: "--df-more-2",
  less0: "--df-less",
  less1: "--df-less-2",
  same: "--df-same",
};
interface CanvasProps {
  flame: Flame;
  hits: boolean[] | null;
  root: number;
  up: boolean;
  zoom(i: number): void;
  picked: number;
  pick(i: number): void;
}

export function Canvas({ flame, hits, root, up, zoom, picked, pick }: CanvasProps) {
  const box = useRef<HTMLDivElement>(null),
    canvas = useRef<HTMLCanvasElement>(null),
    paint = useCell(repaint),
    [size, set] = useState({ width: 0, height: 0, top: 0 }),
    whole = (flame.deepest + 1) * ROW;
  const colours = useMemo(() => Object.fromEntries(Object.entries(TOKENS).map(([k, t]) => [k, colour(t)])), [paint]);
  useEffect(() => {
    const look = () =>
      box.current &&
      set({ width: box.current!.clientWidth, height: box.current!.clientHeight, top: box.current!.scrollTop });
    const watch = new ResizeObserver(look);
    watch.observe(box.current!);
    look();
    return () => watch.disconnect();
  }, []);
  // A fire is looked at from its foot.
  useLayoutEffect(() => {
    box.current!.scrollTop = up ? whole : 0;
  }, [up, whole]);
  useEffect(() => {
    const c = canvas.current!,
      ratio = devicePixelRatio,
      x = c.getContext("2d")!,
      w = Math.round(size.width * ratio),
      h = Math.round(size.height * ratio);
    if (c.width !== w || c.height !== h) {
      c.width = w;
      c.height = h;
    } // it takes new memory each time
    x.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (size.width) draw(x, flame, size.width, size.height, { colours, root, picked, hits, top: size.top, up });
  }, [flame, size, colours, root, picked, hits, up]);
  const hit = (e: MouseEvent) => {
    const r = canvas.current!.getBoundingClientRect();
    return at_point(flame, root, size.width, e.clientX - r.left, e.clientY - r.top + size.top, up);
  };
  return (
    <div
      class="stage"
      ref={box}
      onScroll={(e) => {
        const { scrollTop } = e.currentTarget;
        set((s) => ({ ...s, top: scrollTop }));
      }}
      style={{ height: `min(${whole + 2}px, calc(100vh - 250px))` }}
    >
      <canvas
        ref={canvas}
        role="img"
        style={{ height: `${size.height}px` }}
        aria-label={
          flame.diff
            ? "Two flame graphs against each other; the table has their figures"
            : `Flame graph of ${count(Math.round(flame.total))} samples; the table has its figures`
        }
        onMouseMove={(e) => {
          const i = hit(e);
          if (i >= 0 && i !== picked) pick(i);
        }}
        onClick={(e) => {
          const i = hit(e);
          if (i >= 0) zoom(i);
        }}
      />
      <div style={{ height: `${Math.max(0, whole - size.height)}px` }} />
    </div>
  );
}
