// What fills a step, by name: from the samples of a recording, or of some seconds that are sampled now.
import { useEffect, useState } from "preact/hooks";
import { text, with_args, type ApiError } from "../api";
import { parse_folded, spent_of, type Spent } from "../flame";
import { ms, seconds } from "../format";
import { recorded_folded, useRecorded } from "../recorded";
import { href, type Chosen, type Range } from "../route";
import { call_words } from "../state-words";
import type { Target } from "../api";
import { why } from "../ui";

const NAMED = 6,
  SAMPLED_S = 3;

interface Filled {
  spent: Spent[];
  whole: number;
  how: string;
}

function filled_of(folded: string, how: string): Filled {
  const spent = spent_of(parse_folded(folded));
  return { spent, whole: spent.reduce((sum, s) => sum + s.time, 0), how };
}

function words_of(s: Spent): string {
  const [state, waited] = [...s.waits].sort((a, b) => b[1] - a[1])[0] ?? ["", 0];
  return 2 * waited > s.time ? call_words(state) : "running";
}

// usual: the median step in ms, which the parts sum up to.
export function StepFill({
  chosen,
  target,
  range,
  usual,
}: {
  chosen: Chosen;
  target: Target | undefined;
  range: Range;
  usual: number;
}) {
  const { recorded, known } = useRecorded(chosen, target),
    [filled, set] = useState<Filled>(),
    [error, fail] = useState<ApiError>(),
    [busy, work] = useState(false);
  const within = recorded && {
      from: Math.max(recorded.from, range.from),
      until: Math.min(recorded.until, range.until),
    },
    overlaps = !!within && within.until > within.from,
    key = `${chosen.target} ${overlaps ? Math.floor(within.until / 30) : ""}`;
  useEffect(() => {
    set(undefined);
    if (!recorded || !within || !overlaps) return;
    const stop = new AbortController();
    recorded_folded(recorded, within, "wall", false, stop.signal).then(
      (folded) => set(filled_of(folded, `recorded in ${seconds(within.until - within.from)}`)),
      (e: ApiError) => {
        if (!stop.signal.aborted) fail(e);
      },
    );
    return () => stop.abort();
  }, [key]);
  const sample = async () => {
    work(true);
    fail(undefined);
    try {
      const folded = await text(
        with_args("/flamegraph", { target: chosen.target, all: chosen.all, seconds: SAMPLED_S, format: "folded" }),
      );
      set(filled_of(folded, `sampled for ${SAMPLED_S} s`));
    } catch (e) {
      fail(e as ApiError);
    }
    work(false);
  };
  const named = (filled?.spent ?? []).slice(0, NAMED),
    rest = (filled?.whole ?? 0) - named.reduce((sum, s) => sum + s.time, 0),
    part = (time: number) => time / (filled!.whole || 1);
  return (
    <>
      <div class="sec">
        <h2>What fills the step</h2>
        <span class="say">{filled ? `by function, ${filled.how}` : ""}</span>
        <span class="gap" />
        {filled && !overlaps && (
          <button class="ctl" disabled={busy} onClick={() => void sample()}>
            Sample again
          </button>
        )}
        <a href={href("flame", { from: overlaps ? "record" : null })}>Flame graph</a>
      </div>
      {error && <p class="pane bad">{why(error)}</p>}
      {!filled && known && !overlaps && (
        <p class="pane">
          <button class="ctl" disabled={busy} onClick={() => void sample()}>
            {busy ? `Sampling for ${SAMPLED_S} s` : `Sample for ${SAMPLED_S} s`}
          </button>{" "}
          <span class="dim">
            From outside, a hundred times a second: below 1% of a core. Nothing is recorded of it.
          </span>
        </p>
      )}
      {filled && !filled.whole && <p class="pane dim">No thread ran in that time.</p>}
      {filled && filled.whole > 0 && (
        <table>
          <thead>
            <tr>
              <th>Function</th>
              <th class="opt">It is</th>
              <th class="num">Of a step</th>
              <th class="num">%</th>
            </tr>
          </thead>
          <tbody>
            {named.map((s) => (
              <tr key={s.name}>
                <td class="cut mono" title={s.name}>
                  {s.name}
                </td>
                <td class="opt dim op" title={[...s.waits.keys()].join(", ")}>
                  {words_of(s)}
                </td>
                <td class="num">{ms(usual * part(s.time))}</td>
                <td class="num">{(100 * part(s.time)).toFixed(1)}</td>
              </tr>
            ))}
            {rest > 0 && (
              <tr>
                <td class="dim">all other functions</td>
                <td class="opt" />
                <td class="num dim">{ms(usual * part(rest))}</td>
                <td class="num dim">{(100 * part(rest)).toFixed(1)}</td>
              </tr>
            )}
          </tbody>
        </table>
      )}
    </>
  );
}
