// What probing costs the chosen process, as measured: CPU of the agent's threads since the last look, and the bytes
// of its tables.
import { useRef } from "preact/hooks";
import { with_args, type Row, type Target } from "./api";
import { is_cluster } from "./cluster";
import { bytes } from "./format";
import { useLive } from "./live";
import { href, useChosen } from "./route";

// Of several processes, of each of them.
const SQL = `SELECT (SELECT sum(cpu_user_s + cpu_system_s) FROM system.threads WHERE name LIKE 'probing%') AS cpu,
  (SELECT coalesce(sum(bytes), 0) FROM probing.tables WHERE name
NOT IN ('python.samples', 'python.stacks', 'python.sampling', 'python.memory', 'gpu_metrics')) AS bytes`;

const MANY = `SELECT (SELECT sum(cpu_user_s + cpu_system_s) FROM system.threads
WHERE name LIKE 'probing%' AND tid <> target_pid) AS cpu, (SELECT count(DISTINCT target_pid) FROM system.threads
WHERE name LIKE 'probing%' AND tid <> target_pid) AS n,
  (SELECT coalesce(sum(bytes), 0) FROM probing.tables WHERE name
NOT IN ('python.samples', 'python.stacks', 'python.sampling', 'python.memory', 'gpu_metrics')) AS bytes`;

export function Cost() {
  const chosen = useChosen(),
    cluster = !!chosen && is_cluster(chosen.target),
    dead = !!chosen && chosen.target.includes("@"),
    all = !chosen || chosen.all,
    key = chosen?.target ?? "";
  const last = useRef({ cpu: NaN, at: 0, of: "", share: NaN });
  // Without an agent anywhere the question would be an error.
  const targets = useLive<Target[]>("/api/v1/targets", 2000),
    probed = targets.data?.some(
      (t) =>
        t.state === "probed" && (!chosen || chosen.all || String(t.pid) === chosen.target || t.id === chosen.target),
    );
  // Two looks make a figure; from then on it is asked for less often, since asking costs too.
  const { data, at, error } = useLive<Row[]>(
    dead || cluster || !probed ? null : with_args("/api/v1/query", { target: chosen?.target, all }),
    Number.isNaN(last.current.share) ? 5000 : 60000,
    all ? MANY : SQL,
  );
  const row = data?.[0],
    cpu = row?.cpu as number | null | undefined,
    n = all ? Number(row?.n ?? 0) : 1;
  if (last.current.of !== key + n) last.current = { cpu: NaN, at: 0, of: key + n, share: NaN };
  if (cpu !== null && cpu !== undefined && at > last.current.at) {
    if (last.current.at)
      last.current.share = Math.max(0, (cpu - last.current.cpu) / ((at - last.current.at) / 1000)) / Math.max(1, n);
    last.current = { ...last.current, cpu, at };
  }
  if (cluster) return null; // it would be asked of every rank
  const share = last.current.share,
    each = n > 1 ? " each" : "";
  return (
    <a
      class="cost"
      href={href("sql", { q: all ? MANY : SQL })}
      title={
        "CPU time of the agent's threads since the last look, a minute ago at most, and memory of its tables, " +
        "as measured: the query behind it"
      }
    >
      <span class="opt">Cost to the job: </span>
      <span class="narrow">Cost: </span>
      <b>
        {error
          ? "not known"
          : !row && !dead
            ? targets.data && !probed
              ? "no agent in it"
              : "measuring"
            : dead
              ? "none, it has ended"
              : cpu === null || cpu === undefined
                ? "no agent in it"
                : Number.isNaN(share)
                  ? "measuring"
                  : `${(100 * share).toFixed(1)}% CPU, ${bytes(Number(row!.bytes) / Math.max(1, n))}${each}`}
      </b>
    </a>
  );
}
