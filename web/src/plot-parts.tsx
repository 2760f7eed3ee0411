// What belongs to charts and needs no chart library.
import { put, range_text } from "./route";

export function Legend({ of }: { of: { name: string; token: string }[] }) {
  return (
    <span class="keys">
      {of.map((s) => (
        <span class="key" key={s.name}>
          <i style={{ background: `var(${s.token})` }} />
          {s.name}
        </span>
      ))}
    </span>
  );
}

// What a drag on a chart does: it chooses that time, in all views. The header leads to its flame graph.
export function choose_time(from: number, until: number) {
  if (until > from) put({ range: range_text({ from, until }) });
}

// The same for a chart over steps: from the end of the step before to the end of the last.
export function choose_steps(x: number[], times: number[]) {
  return (from: number, until: number) => {
    const first = x.findIndex((v) => v >= from),
      last = x.findLastIndex((v) => v <= until);
    if (first >= 0 && last >= first) choose_time(times[Math.max(0, first - 1)], times[last]);
  };
}
