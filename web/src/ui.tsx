// Parts of several views.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { ApiError } from "./api";
import { clock } from "./format";
import { useKeys } from "./keys";
import type { Live } from "./live";
import { href } from "./route";

export function copy(text: string) {
  void navigator.clipboard?.writeText(text);
}

export function Copy({ text, children }: { text: string; children?: ComponentChildren }) {
  const [done, set] = useState(false);
  useEffect(() => {
    if (done) {
      const t = setTimeout(() => set(false), 1200);
      return () => clearTimeout(t);
    }
  }, [done]);
  return (
    <button
      class="ctl"
      onClick={() => {
        copy(text);
        set(true);
      }}
    >
      {done ? "Copied" : (children ?? "Copy")}
    </button>
  );
}

// The foot of every view: the same as a command of the terminal, by HTTP, and as SQL where the view itself has no
// such link.
export function Foot({ command, curl, sql }: { command: string; curl: string; sql?: string }) {
  const [how, set] = useState<"command" | "curl">("command");
  const text = how === "command" ? command : curl;
  const [failed, fail] = useState(""),
    keep = () =>
      void import("./report")
        .then((r) => r.save(command))
        .then(
          () => fail(""),
          (e: Error) => fail(`It could not be saved: ${e.message}.`),
        );
  useKeys({
    y: () => copy(command),
    Y: () => copy(location.href),
    S: keep,
    q: () => document.querySelector<HTMLElement>('main a[href^="#/sql?"]')?.click(),
  });
  return (
    <div class="foot">
      <Seg value={how} of={{ command: "Command", curl: "curl" }} on={(v) => set(v)} label="Shown as" />
      <code class="cut" title={text}>
        {text}
      </code>
      {sql && (
        <a class="ctl" href={href("sql", { q: sql })} title="The query behind these figures (q)">
          SQL
        </a>
      )}
      <Copy text={text}>
        <span>
          Copy<span class="long opt"> as {how}</span>
        </span>
      </Copy>
      <button class="ctl opt" title="This view as one HTML file that opens offline (S)" onClick={keep}>
        Save
      </button>
      {failed && (
        <span class="bad" role="alert">
          {failed}
        </span>
      )}
    </div>
  );
}

export function Seg<T extends string>({
  value,
  of,
  on,
  label,
}: {
  value: T;
  of: Record<T, string>;
  on(value: NoInfer<T>): void;
  label: string;
}) {
  return (
    <span class="seg" role="group" aria-label={label}>
      {(Object.keys(of) as T[]).map((name) => (
        <button key={name} aria-pressed={name === value} onClick={() => on(name)}>
          {of[name]}
        </button>
      ))}
    </span>
  );
}

export function Switch({ on, set, children }: { on: boolean; set(on: boolean): void; children: ComponentChildren }) {
  return (
    <button class="switch" role="switch" aria-checked={on} onClick={() => set(!on)}>
      <i />
      {children}
    </button>
  );
}

export function Command({ text }: { text: string }) {
  return (
    <div class="cmd">
      <code>{text}</code>
      <Copy text={text} />
    </div>
  );
}

// The name of a setting or a table: where there is no room it breaks between its words.
export function Name({ of }: { of: string }) {
  return (
    <span class="name">
      {of.split(/(?<=[._])/).map((part, i) => (
        <span key={i}>
          {i > 0 && <wbr />}
          {part}
        </span>
      ))}
    </span>
  );
}

export function Blank({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="blank">
      <h1>{title}</h1>
      {children}
    </div>
  );
}

// After a moment only, so that what comes at once does not flicker.
export function Loading({ what }: { what: string }) {
  const [late, set] = useState(false);
  useEffect(() => {
    const t = setTimeout(() => set(true), 150);
    return () => clearTimeout(t);
  }, []);
  return (
    <div class="note info" role="status">
      {late ? what : "\u00a0"}
    </div>
  );
}

export function why(e: ApiError): string {
  return e.status === 0
    ? "No answer from the service."
    : e.status === 401
      ? "The service asks for its token: open the link that probing serve printed (probing serve --status shows it)."
      : `${e.message}.`;
}

// An error beside data that was had before. That the service is away is told once, above the view (away).
export function Trouble({ of, away = false }: { of: Pick<Live<unknown>, "error" | "at">; away?: boolean }) {
  if (!of.error || (of.error.status === 0) !== away) return null;
  return (
    <div class="note bad" role="alert">
      <span>
        <b>{why(of.error)}</b>
        {of.at ? ` What you see is of ${clock(of.at)}.` : ""} Trying again every 4 s.
      </span>
    </div>
  );
}
