// The views: what the side bar, the keys and the address bar know of them. Each is a file of its own, fetched when it
// is opened.
import type { ComponentType } from "preact";

export interface View {
  name: string;
  title: string;
  key: string;
  load(): Promise<{ default: ComponentType }>;
}

export const VIEWS: View[] = [
  { name: "now", title: "Now", key: "n", load: () => import("./views/now") },
  { name: "activity", title: "Activity", key: "a", load: () => import("./views/activity") },
  { name: "flame", title: "Flame", key: "f", load: () => import("./views/flame") },
  { name: "sql", title: "SQL", key: "s", load: () => import("./views/sql") },
  { name: "torch", title: "Torch", key: "t", load: () => import("./views/torch") },
  { name: "memory", title: "Memory", key: "m", load: () => import("./views/memory") },
  { name: "training", title: "Training", key: "l", load: () => import("./views/training") },
  { name: "inspect", title: "Inspect", key: "i", load: () => import("./views/inspect") },
  { name: "prompt", title: "Prompt", key: "p", load: () => import("./views/prompt") },
  { name: "debug", title: "Debug", key: "d", load: () => import("./views/debug") },
  { name: "runs", title: "Runs", key: "r", load: () => import("./views/runs") },
  { name: "settings", title: "Settings", key: ",", load: () => import("./views/settings") },
];
