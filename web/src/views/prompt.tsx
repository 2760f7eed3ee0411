// Prompt: Python code run in the process, and what it prints.
import { useRef, useState } from "preact/hooks";
import { command, curl, text, type ApiError } from "../api";
import { NeedTarget, useTarget } from "../pick";
import { Blank, Command, Foot, why } from "../ui";
import { useReadOnly } from "./record";

interface Entry {
  code: string;
  out: string | null;
  error: string | null;
}

export default function Prompt() {
  const about = useTarget(),
    fixed = useReadOnly(),
    [entries, set] = useState<Entry[]>([]),
    [code, type] = useState(""),
    [busy, wait] = useState(false),
    at = useRef(-1);
  const one = about && !about.chosen.all ? about.chosen.target : null;
  if (!about || !one) return <NeedTarget what="Prompt: Python code in a process that runs." />;
  const path = `/api/v1/targets/${encodeURIComponent(one)}/eval`;
  const run = async () => {
    if (!code.trim() || busy) return;
    const entry: Entry = { code, out: null, error: null };
    set((e) => [...e, entry]);
    type("");
    at.current = -1;
    wait(true);
    try {
      entry.out = await text(path, { body: code });
    } catch (e) {
      entry.error = why(e as ApiError);
    }
    wait(false);
    set((e) => [...e]);
  };
  const former = (n: number) => {
    const past = entries.map((e) => e.code).reverse();
    at.current = Math.max(-1, Math.min(past.length - 1, at.current + n));
    type(past[at.current] ?? "");
  };
  return (
    <>
      <div class="body">
        {fixed || about.dead ? (
          <Blank title={about.dead ? "It has ended: no code can run in it." : "This service only reads."}>
            <p>
              {about.dead
                ? "What it left can be asked with SQL."
                : "It was started with --read-only. At a terminal of the node:"}
            </p>
            {!about.dead && <Command text={command("-t", one, "repl")} />}
          </Blank>
        ) : (
          <>
            <div class="note info">
              Code runs in a thread of its own in process {one}, with its variables in sight, and can change it. Each
              run is written down in probing.audit.
            </div>
            <div class="out" role="log">
              {entries.map((e, i) => (
                <div key={i}>
                  <pre class="in">&gt;&gt;&gt; {e.code}</pre>
                  {e.out !== null ? (
                    <pre>{e.out}</pre>
                  ) : e.error ? (
                    <pre class="err">{e.error}</pre>
                  ) : (
                    <pre class="dim">runs</pre>
                  )}
                </div>
              ))}
            </div>
            <div class="out">
              <textarea
                class="ctl"
                rows={3}
                data-search
                aria-label="Python code"
                placeholder="Python code; Ctrl Enter runs it, Up and Down go through what was run"
                value={code}
                onInput={(e) => type(e.currentTarget.value)}
                onKeyDown={(e) => {
                  if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) {
                    e.preventDefault();
                    void run();
                  } else if (e.key === "ArrowUp" && !code.includes("\n")) {
                    e.preventDefault();
                    former(1);
                  } else if (e.key === "ArrowDown" && !code.includes("\n")) {
                    e.preventDefault();
                    former(-1);
                  }
                }}
              />
              <div class="bar">
                <button class="ctl main" disabled={busy || !code.trim()} onClick={() => void run()}>
                  Run
                </button>
                <kbd class="opt">Ctrl Enter</kbd>
              </div>
            </div>
          </>
        )}
      </div>
      <Foot
        command={command("-t", one, "eval", code || entries.at(-1)?.code || "print(1)")}
        curl={curl(path, code || entries.at(-1)?.code || "print(1)")}
        sql="SELECT * FROM probing.audit ORDER BY timestamp DESC LIMIT 100"
      />
    </>
  );
}
