// Where the page is: #/view?target=...&... Everything that a view shows can be had again from its address.
import { cell, useCell } from "./store";

export interface Route { view: string; args: URLSearchParams }

function read(): Route {
  const [view, args] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: view || "now", args: new URLSearchParams(args ?? "") };
}

const here = cell(read());
addEventListener("hashchange", () => here.set(read()));

export const useRoute = (): Route => useCell(here);
export const current = (): Route => here.get();

// What stays when one goes from view to view.
const KEPT = ["target", "all", "range"];

export function href(view: string, args: Record<string, string | null | undefined> = {}): string {
  const q = new URLSearchParams();
  for (const name of KEPT) {
    const value = here.get().args.get(name);
    if (value !== null) q.set(name, value);
  }
  for (const [name, value] of Object.entries(args))
    if (value === null || value === undefined || value === "") q.delete(name);
    else q.set(name, value);
  return `#/${view}${q.size ? `?${q}` : ""}`;
}

export function go(view: string, args: Record<string, string | null | undefined> = {}) {
  location.hash = href(view, args);
}

// Changes arguments of the view that is shown, without a step in the history.
export function put(args: Record<string, string | null | undefined>) {
  const route = here.get(), q = new URLSearchParams(route.args);
  for (const [name, value] of Object.entries(args))
    if (value === null || value === undefined || value === "") q.delete(name);
    else q.set(name, value);
  history.replaceState(null, "", `#/${route.view}${q.size ? `?${q}` : ""}`);
  here.set(read());
}

// The processes that a question is about: ?target= as the API has it, ?all= where it stands for several.
export type Chosen = { target: string; all: boolean };
export function useChosen(): Chosen | null {
  const { args } = useRoute();
  const target = args.get("target");
  return target ? { target, all: args.get("all") === "1" } : null;
}
