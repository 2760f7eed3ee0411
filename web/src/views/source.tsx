// The text around a frame's line, with who is at which line.
import { useEffect, useState } from "preact/hooks";
import { text, with_args } from "../api";
import { ranges } from "../format";
import type { Node } from "../tree";

const AROUND = 5;
const kept = new Map<string, Promise<string[] | null>>();

function lines_of(pid: number, file: string): Promise<string[] | null> {
  const key = `${pid} ${file}`;
  if (!kept.has(key)) {
    if (kept.size > 32) kept.delete(kept.keys().next().value!);
    kept.set(
      key,
      text(with_args(`/api/v1/targets/${pid}/source`, { path: file })).then(
        (t) => t.split("\n"),
        () => null,
      ),
    );
  }
  return kept.get(key)!;
}

// Which lines of the function the threads are at.
function places(node: Node): Map<number, string> {
  const by = new Map<number, Set<string>>();
  for (const w of node.who) {
    const line = w.thread.frames?.find((f) => f.function === node.frame?.function && f.file === node.frame?.file)?.line;
    if (line) by.set(line, (by.get(line) ?? new Set()).add(w.process.label));
  }
  const said = (labels: string[]) => {
    const numbers = labels.map((l) => /^rank (\d+)$/.exec(l)?.[1]);
    return labels.length > 1 && numbers.every(Boolean)
      ? `ranks ${ranges(numbers.map(Number))}`
      : labels.length > 3
        ? `${labels.length} processes`
        : labels.join(", ");
  };
  return new Map([...by].map(([line, labels]) => [line, said([...labels])]));
}

export function Source({ node, pid }: { node: Node; pid: number }) {
  const { frame } = node,
    [lines, set] = useState<string[] | null | undefined>(undefined),
    file = frame?.file ?? "",
    at = frame?.line ?? 0,
    real = file.startsWith("/");
  useEffect(() => {
    let gone = false;
    set(undefined);
    if (real)
      void lines_of(pid, file).then((found) => {
        if (!gone) set(found);
      });
    return () => {
      gone = true;
    };
  }, [pid, file]);
  if (!frame || !at) return null;
  if (!real || lines === null) return <p class="pane dim">Its source is not a file that this service can read.</p>;
  const here = places(node),
    first = Math.max(1, Math.max(frame.first_line || 1, at - AROUND)),
    last = Math.min(lines?.length ?? 0, at + AROUND);
  if (!lines || at > lines.length) return null;
  return (
    <pre class="source" aria-label={`Source around line ${at}`}>
      {Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i).map((n) => (
        <span key={n} class={`ln${n === at ? " at" : ""}`}>
          <span class="dim no">{n}</span>
          <span class="code">{lines[n - 1].slice(0, 400) || " "}</span>
          {here.has(n) && <span class="who">{here.get(n)}</span>}
        </span>
      ))}
    </pre>
  );
}
