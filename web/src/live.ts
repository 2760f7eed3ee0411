// Answers that stay fresh: each question is asked once for all views that show it, and not while the page is hidden
// or paused. What the service has as a topic comes by its stream of events; the rest, and all while there is no
// stream, is asked again after its period. Old answers stay, dated.
import { useEffect, useState } from "preact/hooks";
import { ApiError, json, parse } from "./api";
import { paused } from "./store";
import { topic_of } from "./topics";

export interface Live<T> {
  data: T | undefined;
  error: ApiError | undefined;
  at: number;
  asked: number;
  again(): void;
}

// One stream a tab: a browser opens six connections to a host at most.
const stream = {
  open: undefined as EventSource | undefined,
  topics: "",
  broken: 0,
  members: new Map<string, Source>(),

  serves(topic: string | undefined): boolean {
    return !!topic && !!this.open && this.topics.split(",").includes(topic);
  },

  update() {
    const wanted =
      document.hidden || paused.get() || Date.now() < this.broken ? "" : [...this.members.keys()].sort().join(",");
    if (wanted === this.topics) return;
    this.open?.close();
    this.open = undefined;
    this.topics = wanted;
    if (!wanted) return;
    const events = (this.open = new EventSource(`/api/v1/events?topics=${encodeURIComponent(wanted)}`));
    for (const topic of wanted.split(","))
      events.addEventListener(topic, (e) => this.members.get(topic)?.take(parse((e as MessageEvent<string>).data)));
    events.onerror = () => {
      events.close();
      if (this.open !== events) return;
      this.open = undefined;
      this.topics = "";
      this.broken = Date.now() + 4000;
      setTimeout(() => this.update(), 4100);
      for (const s of this.members.values()) s.ask_soon();
    };
  },
};
// What is wanted less often than this is asked for: the command of a topic runs at its own pace.
const SELDOM_MS = 30000;

class Source {
  data: unknown;
  error: ApiError | undefined;
  at = 0;
  asked = 0;
  private watchers = new Map<() => void, number>();
  private timer = 0;
  private running: AbortController | undefined;
  private topic: string | undefined;

  constructor(
    readonly path: string,
    readonly body?: string,
  ) {
    this.topic = topic_of(path);
    paused.watch(() => this.plan(0));
    document.addEventListener("visibilitychange", () => this.plan(0));
  }

  // An answer of the stream's.
  take(data: unknown) {
    const error = (data as { error?: { code: string; message: string } } | null)?.error;
    if (error?.code === "too_long") {
      // for an event, not for an answer
      this.leave();
      this.topic = undefined;
      this.plan(0);
      return;
    }
    if (error) this.error = new ApiError(422, error.code, error.message);
    else {
      this.data = data;
      this.error = undefined;
      this.at = Date.now();
    }
    for (const f of [...this.watchers.keys()]) f();
  }

  ask_soon() {
    this.plan(0);
  }

  watch(f: () => void, every: number): () => void {
    this.watchers.set(f, every);
    if (this.topic && every < SELDOM_MS) {
      stream.members.set(this.topic, this);
      stream.update();
    }
    this.plan(0);
    return () => {
      this.watchers.delete(f);
      if (this.watchers.size) return;
      this.leave();
      clearTimeout(this.timer);
      this.running?.abort();
    };
  }

  private leave() {
    if (this.topic && stream.members.get(this.topic) === this) {
      stream.members.delete(this.topic);
      setTimeout(() => stream.update(), 50);
    }
  }

  private get every(): number {
    return Math.min(...this.watchers.values());
  }

  private get streamed(): boolean {
    return stream.serves(this.topic) && stream.members.get(this.topic!) === this;
  }

  private plan(wait: number) {
    clearTimeout(this.timer);
    if (this.topic) stream.update();
    if (this.streamed || !this.watchers.size || this.running || document.hidden || (paused.get() && this.at)) return;
    const due = this.at && !this.error ? Math.max(wait, this.at + this.every - Date.now()) : wait;
    if (Number.isFinite(due)) this.timer = setTimeout(() => this.ask(), due);
  }

  // Now, and not when its turn comes, also where the stream brings it.
  again() {
    if (!this.watchers.size || this.running) return;
    clearTimeout(this.timer);
    void this.ask();
  }

  private async ask() {
    const running = (this.running = new AbortController());
    this.asked = performance.now();
    let wait = this.every;
    try {
      this.data = await json(this.path, { body: this.body, signal: running.signal });
      this.error = undefined;
      this.at = Date.now();
    } catch (e) {
      if (running.signal.aborted) {
        this.running = undefined;
        this.plan(0);
        return;
      }
      this.error = e instanceof ApiError ? e : new ApiError(0, "broken", String((e as Error).message));
      // What is asked once is asked again where nobody answered; what was answered with an error stays so.
      wait =
        Number.isFinite(wait) || this.error.status === 0 || this.error.status >= 500
          ? Math.max(4000, Number.isFinite(wait) ? wait : 0)
          : wait;
    }
    this.asked = performance.now() - this.asked;
    this.running = undefined;
    for (const f of [...this.watchers.keys()]) f();
    this.plan(wait);
  }
}

const sources = new Map<string, Source>();

// every: milliseconds; Infinity: once. path null: nothing is asked.
export function useLive<T>(path: string | null, every = 1000, body?: string): Live<T> {
  const [, turn] = useState(0);
  const name = `${path}\n${body ?? ""}`;
  let source = path === null ? undefined : sources.get(name);
  if (path !== null && !source) {
    if (sources.size > 64) sources.delete(sources.keys().next().value!);
    sources.set(name, (source = new Source(path, body)));
  }
  useEffect(() => source?.watch(() => turn((n) => n + 1), every), [source, every]);
  return {
    data: source?.data as T | undefined,
    error: source?.error,
    at: source?.at ?? 0,
    asked: source?.asked ?? 0,
    again: () => source?.again(),
  };
}
