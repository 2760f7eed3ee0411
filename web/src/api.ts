// What is asked of the service, and how its answers are typed. The page knows nothing of processes beyond this.
export interface Target {
  pid: number;
  state: "probed" | "python" | "dead" | "archived";
  python: string | null;
  rank: number | null;
  uptime: number;
  memory_mb: number | null;
  id: string;
  command: string;
}
export interface Frame {
  function: string;
  name: string;
  file: string;
  line: number | null;
  first_line: number;
  own: boolean;
  locals?: Record<string, string>;
}
export interface Native {
  kind: "native";
  function: string | null;
  module: string | null;
  file: string | null;
  line: number | null;
  pc: string;
}
export interface Merged {
  kind: "python";
  function: string;
  file: string;
  line: number | null;
  frame: number;
}
export interface Wait {
  kind: string;
  what?: string;
  seconds?: number;
  holder_pid?: number;
  holder_tid?: number;
  group?: string;
  absent_ranks?: string;
  object?: number;
  descriptor?: number;
}
export interface Thread {
  tid: number;
  name: string;
  native_name: string;
  state: string;
  running: boolean;
  waits_for?: Wait | null;
  python: boolean;
  gil?: boolean;
  read?: string;
  truncated?: boolean;
  frames?: Frame[];
  stack?: (Native | Merged)[];
}
export interface Process {
  pid: number;
  label: string;
  command: string;
  python: string | null;
  verdict: string | null;
  notes: string[];
  threads: Thread[];
  error?: undefined;
}
// A process that gave no answer, among those that did.
export interface Unread {
  pid: number;
  label: string;
  error: string;
  threads?: undefined;
}
export interface NowRow {
  pid: number;
  rank: number | string | null;
  state: string;
  since: number | null;
  step: number | null;
  memory_mb: number | null;
  function: string | null;
  file: string | null;
  line: number | null;
  verdict: string | null;
  waits?: string | null;
  worker?: string | null;
  id: string;
  command: string;
}
export interface Service {
  version: string;
  host: string;
  target: string | null;
  read_only: boolean;
}
export type Row = Record<string, unknown>;

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

// Marks that turn the direction of the text around them: they are shown by their number, as on a terminal, so that no
// name changes how others read.
const TURNS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
  WRITTEN = /\\u(061c|200[ef]|202[a-e]|206[6-9])/g;

export function plain(text: string): string {
  return text.replace(TURNS, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// Where a mark stands in JSON as its number, that is escaped once more.
export function parse<T>(text: string): T {
  if (text.search(WRITTEN) >= 0)
    text = text.replace(/\\(?:u(061c|200[ef]|202[a-e]|206[6-9])|[^])/g, (all, code) => (code ? `\\\\u${code}` : all));
  return JSON.parse(
    text.search(TURNS) >= 0
      ? text.replace(TURNS, (c) => `\\\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`)
      : text,
  ) as T;
}

const written = (text: string) => text.replace(WRITTEN, (_, code) => String.fromCharCode(parseInt(code, 16)));

export interface Asked {
  body?: string;
  signal?: AbortSignal;
}

export async function ask(path: string, { body, signal }: Asked = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, { method: body === undefined ? "GET" : "POST", body, signal, cache: "no-store" });
  } catch (e) {
    if ((e as Error).name === "AbortError") throw e;
    throw new ApiError(0, "unreachable", "the service does not answer");
  }
  if (answer.ok) return answer;
  const error = await answer.json().then(
    (j) => j.error,
    () => null,
  );
  throw new ApiError(answer.status, error?.code ?? "error", error?.message ?? `HTTP ${answer.status}`);
}

export async function json<T>(path: string, asked?: Asked): Promise<T> {
  return parse<T>(await (await ask(path, asked)).text());
}

export async function text(path: string, asked?: Asked): Promise<string> {
  return plain(await (await ask(path, asked)).text());
}

export function with_args(path: string, args: Record<string, string | number | boolean | null | undefined>): string {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(args))
    if (value !== null && value !== undefined && value !== false && value !== "") q.set(name, written(String(value)));
  return q.size ? `${path}?${q}` : path;
}

export function query<T = Row>(sql: string, target: string | null, all = false, signal?: AbortSignal): Promise<T[]> {
  return json<T[]>(with_args("/api/v1/query", { target, all: target && all }), { body: sql, signal });
}

// --- what one would type instead ---

export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function command(...words: (string | number | false | null | undefined)[]): string {
  return ["probing", ...words.filter((w) => w !== false && w !== null && w !== undefined && w !== "").map(String)]
    .map(quoted)
    .join(" ");
}

export function curl(path: string, body?: string): string {
  return (
    `curl -H "Authorization: Bearer $PROBING_TOKEN" ` +
    `${body === undefined ? "" : `--data-binary ${quoted(body)} `}${quoted(location.origin + path)}`
  );
}
