// Keys: one listener. A view says which it knows while it is shown; they are off in text fields.
import { useLayoutEffect } from "preact/hooks";
import { VIEWS } from "./views";
import { go } from "./route";

export type Keys = Record<string, () => void>;
const stack: { keys: Keys }[] = [];
let going = 0;

export function useKeys(keys: Keys) {
  // Not after the next paint: a key that comes before it would act on what was shown earlier.
  useLayoutEffect(() => {
    const entry = { keys };
    stack.push(entry);
    return () => {
      stack.splice(stack.indexOf(entry), 1);
    };
  });
}

function is_text(at: EventTarget | null): boolean {
  const e = at as HTMLElement | null;
  return !!e && (/^(INPUT|TEXTAREA|SELECT)$/.test(e.tagName) || e.isContentEditable || !!e.shadowRoot);
}

addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented) return;
  if (is_text(e.target)) {
    if (e.key === "Escape") (e.target as HTMLElement).blur();
    return;
  }
  // What has the focus and does something by these keys does it.
  if ((e.key === "Enter" || e.key === " ") && (e.target as HTMLElement | null)?.closest?.("a, button, summary")) return;
  if (going && Date.now() - going < 1500) {
    going = 0;
    const view = VIEWS.find((v) => v.key === e.key);
    if (view) {
      go(view.name);
      e.preventDefault();
      return;
    }
  }
  if (e.key === "g") {
    going = Date.now();
    return;
  }
  for (let i = stack.length; i-- > 0;) {
    const f = stack[i].keys[e.key];
    if (f) {
      e.preventDefault();
      f();
      return;
    }
  }
});
