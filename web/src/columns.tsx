// A table whose columns can be hidden: a button above it lists them. What is hidden is kept by this browser.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useKeys } from "./keys";

const KEY = "columns";

function kept(): Record<string, string[]> {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "{}");
  } catch {
    return {};
  }
}

// The cells are those of the view: a column is hidden by hiding its cells, after each change of the table.
function hide(table: HTMLTableElement, hidden: string[]): string[] {
  const names = [...(table.tHead?.rows[0]?.cells ?? [])].map((c) => c.textContent ?? "");
  for (const row of [...table.rows])
    if (row.cells.length === names.length) [...row.cells].forEach((c, i) => (c.hidden = hidden.includes(names[i])));
  return names;
}

export function Columns({ name, children }: { name: string; children: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null),
    [hidden, set] = useState<string[]>(kept()[name] ?? []),
    [names, know] = useState<string[]>([]),
    [open, show] = useState(false);
  useLayoutEffect(() => {
    const table = box.current?.querySelector("table"),
      found = table ? hide(table, hidden) : [];
    if (found.join() !== names.join()) know(found);
  });
  useEffect(() => {
    if (open) box.current?.querySelector<HTMLElement>(".pop input")?.focus();
  }, [open]);
  useKeys(open ? { Escape: () => show(false) } : {});
  const toggle = (column: string) => {
    const next = hidden.includes(column) ? hidden.filter((c) => c !== column) : [...hidden, column];
    localStorage.setItem(KEY, JSON.stringify({ ...kept(), [name]: next }));
    set(next);
  };
  const shown = names.filter((n) => !hidden.includes(n)).length;
  return (
    <div class="columns" ref={box}>
      <button class="ctl opt" aria-expanded={open} onClick={() => show(!open)}>
        Columns{hidden.length ? ` ${shown} of ${names.length}` : ""}
      </button>
      {open && (
        <fieldset class="pop">
          <legend class="sr">Columns</legend>
          {names.filter(Boolean).map((n) => (
            <label key={n}>
              <input
                type="checkbox"
                checked={!hidden.includes(n)}
                disabled={shown === 1 && !hidden.includes(n)}
                onChange={() => toggle(n)}
                onKeyDown={(e) => {
                  if (e.key === "Escape") show(false);
                }}
              />
              {n}
            </label>
          ))}
        </fieldset>
      )}
      {children}
    </div>
  );
}
