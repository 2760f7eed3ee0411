// Rows as a table of which only the part in sight is in the document: a million of them scroll.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { cell_text, is_numeric, widths_of, type Table } from "./grid-rows";

const ROW = 22;
// A browser cuts what is taller than some ten million pixels: beyond this, a pixel of the scroll bar stands for more
// than one of the rows.
const TALLEST = 8_000_000;

function compare(a: unknown, b: unknown): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : 1;
}

export function Grid({ table, height }: { table: Table; height: string }) {
  const box = useRef<HTMLDivElement>(null),
    [top, scroll] = useState(0),
    [tall, grow] = useState(400),
    [room, widen] = useState(0),
    [by, sort] = useState<{ column: number; down: boolean } | null>(null);
  const numeric = useMemo(
    () => table.columns.map((_, i) => is_numeric(table, i)),
    [table.columns, table.rows.length > 0],
  );
  const widths = useMemo(() => widths_of(table, room), [table.columns, Math.min(200, table.rows.length), room]);
  const order = useMemo(() => {
    if (!by) return null;
    const at = Array.from(table.rows.keys());
    at.sort((a, b) => (by.down ? -1 : 1) * compare(table.rows[a][by.column], table.rows[b][by.column]));
    return at;
  }, [by, table.rows, table.rows.length]);
  useEffect(() => {
    sort(null);
    box.current?.scrollTo(0, 0);
  }, [table.columns]);
  useEffect(() => {
    const watch = new ResizeObserver(() => {
      grow(box.current?.clientHeight ?? 400);
      widen(box.current?.clientWidth ?? 0);
    });
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  const whole = table.rows.length * ROW,
    space = Math.min(whole, TALLEST),
    // Of the rows, at the upper edge.
    at = space > tall && whole > space ? (top / (space - tall)) * (whole - tall) : top;
  const first = Math.max(0, Math.floor(at / ROW) - 5),
    last = Math.min(table.rows.length, Math.ceil((at + tall) / ROW) + 5),
    wide = widths.reduce((a, b) => a + b, 16);
  const shown = [];
  for (let i = first; i < last; i++) shown.push(i);
  return (
    <div
      class="rows"
      role="table"
      aria-label="Result"
      aria-rowcount={table.rows.length}
      tabIndex={0}
      ref={box}
      style={{ height }}
      onScroll={(e) => scroll(e.currentTarget.scrollTop)}
    >
      <div class="r h" role="row" style={{ width: `${wide}px` }}>
        {table.columns.map((name, i) => (
          <span
            role="columnheader"
            key={i}
            aria-sort={by?.column === i ? (by.down ? "descending" : "ascending") : undefined}
          >
            <button
              class={`c${numeric[i] ? " num" : ""}`}
              style={{ width: `${widths[i]}px` }}
              title={`${name}: sort`}
              onClick={() =>
                sort(by?.column === i ? (by.down ? null : { column: i, down: true }) : { column: i, down: false })
              }
            >
              {name}
              {by?.column === i ? (by.down ? " ▾" : " ▴") : ""}
            </button>
          </span>
        ))}
      </div>
      <div class="space" role="rowgroup" style={{ height: `${space}px`, width: `${wide}px` }}>
        {shown.map((i) => (
          <div class="r" role="row" key={i} aria-rowindex={i + 1} style={{ top: `${i * ROW - at + top}px` }}>
            {table.rows[order ? order[i] : i].map((v, c) => (
              <span
                role="cell"
                key={c}
                class={`c${numeric[c] ? " num" : ""}${v === null ? " null" : ""}`}
                style={{ width: `${widths[c]}px` }}
                title={cell_text(v)}
              >
                {cell_text(v)}
              </span>
            ))}
          </div>
        ))}
      </div>
    </div>
  );
}
