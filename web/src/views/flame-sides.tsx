// The one or two things that a flame graph is of, and how a second one is chosen.
import type { Target } from "../api";
import { job_name } from "../format";
import { useLive } from "../live";
import { useRecorded, type Recorded } from "../recorded";
import { parse_range, put, range_text, useRange, useRoute, type Chosen, type Range } from "../route";

// One of the two sides: a range of a recording, or what is sampled now.
export interface Side {
  of: Chosen;
  recorded: Recorded | null;
  range: Range | null;
  name: string;
}
const target_name = (t: Target) =>
  `${t.rank !== null ? `rank ${t.rank}, ` : ""}${job_name(t.command)}, pid ${t.pid}` +
  `${t.state === "dead" || t.state === "archived" ? " (ended)" : ""}`;

// B: another time of the same processes, or another process or run.
export function useSides(chosen: Chosen | undefined, target: Target | undefined, dead: boolean) {
  const { args } = useRoute(),
    targets = useLive<Target[]>("/api/v1/targets?dead=true", 10000),
    diff = args.get("diff") === "1",
    other = args.get("with");
  const mine = useRecorded(chosen, target),
    one = other ? targets.data?.find((t) => t.id === other || String(t.pid) === other) : undefined;
  const its = useRecorded(other ? { target: other, all: false } : undefined, one),
    from_record = args.get("from") === "record" || dead || args.has("a");
  // Of what is recorded, the time that is chosen in the header.
  const picked = useRange(),
    whole = (r: Recorded | null): Range | null => {
      if (!r) return null;
      const from = Math.max(r.from, picked.from ?? (picked.last ? r.until - picked.last : r.from)),
        until = Math.min(r.until, picked.until ?? r.until);
      return until > from ? { from, until } : { from: r.from, until: r.until };
    },
    ra = from_record ? (parse_range(args.get("a")) ?? whole(mine.recorded)) : null;
  const a: Side | null =
    !chosen || (from_record && !mine.recorded)
      ? null
      : { of: chosen, recorded: mine.recorded, range: ra, name: "this" };
  const rb = from_record ? parse_range(args.get("b")) : null,
    b_recorded = other ? its.recorded : mine.recorded,
    ended = one?.state === "dead" || one?.state === "archived";
  const b: Side | null =
    !diff || !chosen
      ? null
      : other
        ? from_record || ended
          ? its.recorded
            ? {
                of: { target: other, all: false },
                recorded: its.recorded,
                range: rb ?? whole(its.recorded),
                name: one ? target_name(one) : other,
              }
            : null
          : { of: { target: other, all: false }, recorded: null, range: null, name: one ? target_name(one) : other }
        : rb && b_recorded
          ? { of: chosen, recorded: b_recorded, range: rb, name: "then" }
          : null;
  return { a, b, diff, other, mine, from_record, targets: targets.data ?? [] };
}

type Sides = ReturnType<typeof useSides>;

// With what this is compared, in two clicks: the time before, another time, another rank of the job, another process.
export function Compare({
  sides,
  mine,
  command: job,
}: {
  sides: Sides;
  mine: string | undefined;
  command: string | undefined;
}) {
  const { a, diff, other, from_record, targets } = sides,
    recorded = a?.recorded,
    others = targets.filter((t) => String(t.pid) !== mine),
    ranks = others.filter((t) => job !== undefined && t.command === job && t.rank !== null);
  const option = (t: Target) => (
    <option key={t.id} value={t.state === "probed" || t.state === "python" ? String(t.pid) : t.id}>
      {target_name(t)}
    </option>
  );
  const before = () => {
    const r = a!.range!,
      room = r.from - recorded!.from,
      size = r.until - r.from;
    // Of all that is recorded there is nothing before: its first half against its second.
    const middle = room > size / 10 ? r.from : (r.from + r.until) / 2;
    put({
      diff: "1",
      with: null,
      a: range_text({ from: Math.max(recorded!.from, middle - size), until: middle }),
      b: range_text({ from: middle, until: r.until }),
    });
  };
  return (
    <select
      class="ctl"
      aria-label="Compare with"
      title="x"
      value={diff ? (other ?? "time") : ""}
      onChange={(e) => {
        const v = e.currentTarget.value;
        if (v === "before") before();
        else put({ diff: v ? "1" : null, with: v === "time" || !v ? null : v, b: null });
      }}
    >
      <option value="">Compare with</option>
      {from_record && recorded && a?.range && <option value="before">the time before</option>}
      <option value="time">another time</option>
      {ranks.length > 0 && <optgroup label="Ranks of this job">{ranks.map(option)}</optgroup>}
      <optgroup label="Processes and runs">{others.filter((t) => !ranks.includes(t)).map(option)}</optgroup>
    </select>
  );
}
