// Small shared state: a value with listeners, and hooks that follow it.
import { useEffect, useState } from "preact/hooks";

export interface Cell<T> {
  get(): T;
  set(value: T): void;
  watch(f: () => void): () => void;
}

export function cell<T>(value: T): Cell<T> {
  const watchers = new Set<() => void>();
  return {
    get: () => value,
    set(next) {
      if (next !== value) {
        value = next;
        for (const f of [...watchers]) f();
      }
    },
    watch(f) {
      watchers.add(f);
      return () => {
        watchers.delete(f);
      };
    },
  };
}

export function useCell<T>(c: Cell<T>): T {
  const [, turn] = useState(0);
  useEffect(() => c.watch(() => turn((n) => n + 1)), [c]);
  return c.get();
}

export const paused = cell(false);

export const theme = cell<"system" | "light" | "dark">(
  (localStorage.getItem("theme") as "light" | "dark" | null) ?? "system",
);
const found = new Map<string, string>();
function dress() {
  found.clear();
  const t = theme.get();
  if (t === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("theme");
  } else {
    document.documentElement.dataset.theme = t;
    localStorage.setItem("theme", t);
  }
  repaint.set(repaint.get() + 1);
}
// Canvases read colours when they draw: they draw again when this changes.
export const repaint = cell(0);
dress();
theme.watch(dress);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);

export function colour(token: string): string {
  const known = found.get(token);
  if (known) return known;
  const probe = document.createElement("span");
  probe.style.color = `var(${token})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  found.set(token, value);
  return value;
}
