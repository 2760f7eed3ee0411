// The views: what the side bar, the keys and the address bar know of them. Each is a file of its own, fetched when it is opened.
import type { ComponentType } from "preact";

export interface View { name: string; title: string; key: string; load(): Promise<{ default: ComponentType }> }

export const VIEWS: View[] = [
  { name: "now", title: "Now", key: "n", load: () => import("./views/now") },
  { name: "activity", title: "Activity", key: "a", load: () => import("./views/activity") },
  { name: "sql", title: "SQL", key: "s", load: () => import("./views/sql") },
];
